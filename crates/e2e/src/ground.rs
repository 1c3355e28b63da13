//! The piece of the machine one bed stands on, or one control plane: a folder, a network namespace,
//! a subtree of cgroups, and the guardian that takes it all away again.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cgroup::Cgroup;
use crate::guardian::Guardian;
use crate::netns::{Host, NetNs};
use crate::process::{Daemon, last_lines, output};
use crate::remains::{MARK, NETNS, name_of};
use crate::roster::Roster;
use crate::tools::{provide, repository};

pub struct Ground {
    id: String,
    folder: PathBuf,
    netns: NetNs,
    cgroup: Cgroup,
    guardian: Option<Guardian>,
}

impl Ground {
    /// Claiming can wait for others, so it must not hold a thread of the runtime.
    pub(crate) async fn claim(host: Host) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::claim_now(host)).await?
    }

    fn claim_now(host: Host) -> Result<Self> {
        provide("host")?;
        let (folder, guardian) = Roster::open()?.claim()?;
        let id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::create_dir(folder.join("logs"))?;
        let netns = NetNs::create(folder.join(NETNS), host)?;
        let cgroup = Cgroup::named(name_of(&id))?;
        cgroup.create()?;
        Ok(Self { id, folder, netns, cgroup, guardian: Some(guardian) })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The bed's folder, or something below it.
    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.folder.join(below)
    }

    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// A command that runs on this ground: in its namespace and its cgroup, marked with its id.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        // The shell enrols itself and becomes the program, so the pid stays the same.
        let mut command = self.netns.command("sh");
        command.args(["-c", r#"echo 0 >"$0" && exec "$@""#]).arg(self.cgroup.enrolment());
        command.arg(program).env(MARK, &self.id);
        command
    }

    /// Runs a command to its end; see [`output`].
    pub async fn run(&self, command: Command) -> Result<String> {
        let mut command = command;
        tokio::task::spawn_blocking(move || output(&mut command)).await?
    }

    /// Starts a program; its log is `logs/NAME.log` below the folder.
    pub fn daemon(&self, name: &str, command: Command) -> Result<Daemon> {
        Daemon::spawn(name, self.path("logs").join(format!("{name}.log")), command)
    }

    /// Gives the ground back.
    pub(crate) fn leave(&mut self) -> Result<()> {
        match self.guardian.take() {
            Some(guardian) => guardian.dismiss(),
            None => Ok(()),
        }
    }

    /// Keeps the logs of a failed test and shows how each ended.
    #[allow(clippy::print_stderr, reason = "this is the report of a failed test")]
    pub(crate) fn keep_logs(&self) -> Result<()> {
        let kept = repository().join("target/e2e-logs").join(&self.id);
        fs::create_dir_all(&kept)?;
        for entry in fs::read_dir(self.path("logs"))?.flatten() {
            fs::copy(entry.path(), kept.join(entry.file_name()))?;
            if entry.path().extension().is_none_or(|extension| extension != "log") {
                continue; // the audit log is too long to show, and seldom the reason
            }
            let text = fs::read(entry.path())?;
            let text = last_lines(&String::from_utf8_lossy(&text), 40);
            eprintln!("--- the end of {} ---\n{text}", kept.join(entry.file_name()).display());
        }
        Ok(())
    }
}

impl Drop for Ground {
    #[allow(clippy::panic, reason = "a bed that cannot be cleared away is a failed test")]
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            // The logs explain the failure; a failure to keep them must not hide it.
            let _ = self.keep_logs();
        }
        let left = self.leave().with_context(|| format!("bed {}", self.id));
        if let Err(error) = left
            && !failed
        {
            panic!("{error:#}");
        }
    }
}
