//! Test environment of one bed or one control plane: a directory, a network namespace, a cgroup
//! subtree, and the cleanup process that removes them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::bed_list::BedList;
use crate::cgroup::Cgroup;
use crate::cleanup::CleanupProcess;
use crate::leftovers::{MARK, NETNS, name_of};
use crate::netns::{Host, NetNs};
use crate::process::{Daemon, last_lines, output};
use crate::tools::{provide, repository};

pub struct TestEnvironment {
    id: String,
    directory: PathBuf,
    netns: NetNs,
    cgroup: Cgroup,
    cleanup: Option<CleanupProcess>,
}

impl TestEnvironment {
    /// Creating one can wait for other beds, so it must not block a thread of the async runtime.
    pub(crate) async fn create(host: Host) -> Result<Self> {
        tokio::task::spawn_blocking(move || Self::create_blocking(host)).await?
    }

    fn create_blocking(host: Host) -> Result<Self> {
        provide("host")?;
        let (directory, cleanup) = BedList::open()?.create()?;
        let id = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::create_dir(directory.join("logs"))?;
        let netns = NetNs::create(directory.join(NETNS), host)?;
        let cgroup = Cgroup::named(name_of(&id))?;
        cgroup.create()?;
        Ok(Self { id, directory, netns, cgroup, cleanup: Some(cleanup) })
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The bed's directory, or a path below it.
    pub fn path(&self, below: impl AsRef<Path>) -> PathBuf {
        self.directory.join(below)
    }

    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// A command that runs in this environment: in its namespace and cgroup, marked with its id.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        // The shell joins the cgroup and execs the program, so the pid stays the same.
        let mut command = self.netns.command("sh");
        command.args(["-c", r#"echo 0 >"$0" && exec "$@""#]).arg(self.cgroup.procs_file());
        command.arg(program).env(MARK, &self.id);
        command
    }

    /// Runs a command to completion; see [`output`].
    pub async fn run(&self, command: Command) -> Result<String> {
        let mut command = command;
        tokio::task::spawn_blocking(move || output(&mut command)).await?
    }

    /// Starts a program; its log is `logs/NAME.log` below the directory.
    pub fn daemon(&self, name: &str, command: Command) -> Result<Daemon> {
        Daemon::spawn(name, self.path("logs").join(format!("{name}.log")), command)
    }

    /// Removes the environment.
    pub(crate) fn remove(&mut self) -> Result<()> {
        match self.cleanup.take() {
            Some(cleanup) => cleanup.finish(),
            None => Ok(()),
        }
    }

    /// Keeps the logs of a failed test and prints the end of each.
    #[allow(clippy::print_stderr, reason = "this is the report of a failed test")]
    pub(crate) fn keep_logs(&self) -> Result<()> {
        let kept = repository().join("target/e2e-logs").join(&self.id);
        fs::create_dir_all(&kept)?;
        for entry in fs::read_dir(self.path("logs"))?.flatten() {
            fs::copy(entry.path(), kept.join(entry.file_name()))?;
            if entry.path().extension().is_none_or(|extension| extension != "log") {
                continue; // the audit log is too long to print, and rarely the cause
            }
            let text = fs::read(entry.path())?;
            let text = last_lines(&String::from_utf8_lossy(&text), 40);
            eprintln!("--- the end of {} ---\n{text}", kept.join(entry.file_name()).display());
        }
        Ok(())
    }
}

impl Drop for TestEnvironment {
    #[allow(clippy::panic, reason = "a bed that cannot be removed is a failed test")]
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        if failed {
            // The logs explain the failure; an error while keeping them must not hide it.
            let _ = self.keep_logs();
        }
        let left = self.remove().with_context(|| format!("bed {}", self.id));
        if let Err(error) = left
            && !failed
        {
            panic!("{error:#}");
        }
    }
}
