//! Agent process of the standalone node: started, found and compared by the commands.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use podwright_host::process::ProcessIdentity;
use serde::{Deserialize, Serialize};

use super::daemon::{Daemon, LockRelease};
use super::lock::NodeLock;
use super::up_options::UpOptions;
use super::{Layout, write_private};

pub struct Agent<'a> {
    layout: &'a Layout,
}

/// Options and supervision of a running agent, stored for other commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    #[serde(rename = "wishes")]
    pub up_options: UpOptions,
    #[serde(rename = "keeper")]
    pub supervisor: Supervisor,
}

/// Purpose of an agent that is started in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    RunPods,
    /// Stop running pods and start none.
    StopPods,
}

/// What supervises the agent process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Supervisor {
    /// Only podwright commands.
    #[serde(rename = "Us")]
    Podwright,
    /// A service manager or a user, who would restart it with their own arguments.
    #[serde(rename = "Other")]
    External,
}

/// Why the running agent must be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    Build,
    UpOptions,
    /// It is stopping all pods for an interrupted command.
    Stopping,
}

impl<'a> Agent<'a> {
    pub fn of(layout: &'a Layout) -> Self {
        Self { layout }
    }

    pub fn daemon(&self) -> Daemon {
        Daemon::new(self.layout.run().join("agent.pid"))
    }

    fn note_path(&self) -> PathBuf {
        self.layout.run().join("agent.json")
    }

    /// Starts it in the background; it reads its options from the record.
    pub fn start(&self, lock: &NodeLock, purpose: Purpose) -> anyhow::Result<ProcessIdentity> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let log = self.layout.agent_log();
        let mut arguments: Vec<&OsStr> =
            ["up", "--foreground", "--state-dir"].map(OsStr::new).to_vec();
        arguments.extend([self.layout.state().as_os_str(), OsStr::new("--log-file")]);
        arguments.push(log.as_os_str());
        match purpose {
            Purpose::RunPods => {}
            Purpose::StopPods => arguments.push(OsStr::new("--stop-pods")),
        }
        self.daemon().start(&program, &arguments, &log, LockRelease::ByDaemon(lock), None)
    }

    /// Registers this process as the agent.
    pub fn register_self(&self, note: &Note) -> anyhow::Result<()> {
        write_private(&self.note_path(), &serde_json::to_vec(note)?)?;
        self.daemon().write_own_pid_file()
    }

    /// Removes the registration of the agent.
    pub fn forget(&self) {
        self.daemon().forget();
        // The file may already be gone.
        let _ = std::fs::remove_file(self.note_path());
    }

    /// Options and supervision of the running agent; none while it is starting.
    pub fn note(&self) -> anyhow::Result<Option<Note>> {
        match std::fs::read(self.note_path()) {
            Ok(text) => {
                let damaged = || {
                    format!(
                        "{} is corrupt, so it is unknown how the agent is supervised. Fix: stop the \
                         agent where it was started and delete the file",
                        self.note_path().display()
                    )
                };
                Ok(Some(serde_json::from_slice(&text).with_context(damaged)?))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(super::unreadable(error, &self.note_path())),
        }
    }

    /// How the running agent differs from the one that this command would start.
    pub fn difference(
        &self,
        process: &ProcessIdentity,
        up_options: &UpOptions,
    ) -> anyhow::Result<Option<Difference>> {
        let theirs = PathBuf::from(format!("/proc/{}/exe", process.pid));
        // A process that is exiting cannot be compared and need not be.
        if same_file(&theirs, Path::new("/proc/self/exe")).is_ok_and(|same| !same) {
            return Ok(Some(Difference::Build));
        }
        let differs = self.note()?.is_some_and(|note| note.up_options != *up_options);
        Ok(differs.then_some(Difference::UpOptions))
    }
}

/// Whether two paths have the same content. A rebuilt program is a new file under the same name,
/// while the running one is still readable through /proc.
fn same_file(one: &Path, other: &Path) -> std::io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    let identity = |found: &Metadata| (found.dev(), found.ino());
    let (first, second) = (one.metadata()?, other.metadata()?);
    if identity(&first) == identity(&second) {
        return Ok(true);
    }
    if first.len() != second.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let read = one.read(&mut left)?;
        let (Some(left), Some(right)) = (left.get(..read), right.get_mut(..read)) else {
            return Ok(false);
        };
        if left.is_empty() {
            return Ok(true);
        }
        other.read_exact(right)?;
        if left != right {
            return Ok(false);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn corrupt_note_is_an_error_that_names_it() {
        let base = tempfile::tempdir().unwrap();
        let layout = Layout { state: base.path().join("s"), runs: base.path().join("run") };
        std::fs::create_dir_all(layout.run()).unwrap();
        let agent = Agent::of(&layout);
        assert_eq!(agent.note().unwrap(), None);
        std::fs::write(agent.note_path(), "{").unwrap();
        let error = format!("{:#}", agent.note().unwrap_err());
        assert!(error.contains("agent.json is corrupt") && error.contains("Fix: "), "{error}");
    }

    #[test]
    fn builds_are_compared_by_content() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let long = vec![7; 200_000];
        let mut changed = long.clone();
        *changed.last_mut().unwrap() = 8;
        let build = file("build", &long);
        for (other, same) in [
            (build.clone(), true),
            (file("copy", &long), true),
            (file("changed", &changed), false),
            (file("longer", &[long.as_slice(), b"x"].concat()), false),
        ] {
            assert_eq!(same_file(&build, &other).unwrap(), same, "{}", other.display());
        }
    }
}
