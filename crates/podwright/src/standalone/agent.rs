//! The agent of a node, as other commands find it.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use podwright_host::process::ProcessIdentity;
use serde::{Deserialize, Serialize};

use super::daemon::{Daemon, Held};
use super::lock::NodeLock;
use super::wishes::Wishes;
use super::{Layout, write_private};

pub struct Agent<'a> {
    layout: &'a Layout,
}

/// What an agent was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    #[serde(rename = "wishes")]
    pub wishes: Wishes,
    #[serde(rename = "keeper")]
    pub keeper: Keeper,
}

/// What an agent is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    RunPods,
    /// To stop those that still run, and start none.
    StopPods,
}

/// Who looks after the agent's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Keeper {
    /// Nobody but our own commands.
    #[serde(rename = "Us")]
    Us,
    /// A service manager or a person, who would start it again with arguments of their own.
    #[serde(rename = "Other")]
    Other,
}

/// Why the agent that runs is not the one that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    Build,
    Wishes,
    /// It was asked to stop all pods, by a command that was interrupted.
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

    /// Starts it in the background; what it is to do is in the record.
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
        self.daemon().start(&program, &arguments, &log, Held::ByDaemon(lock))
    }

    /// Says that this process is the agent.
    pub fn is_us(&self, note: &Note) -> anyhow::Result<()> {
        write_private(&self.note_path(), &serde_json::to_vec(note)?)?;
        self.daemon().note_self()
    }

    /// Says that there is no agent any more.
    pub fn forget(&self) {
        self.daemon().forget();
        // Gone already is as good.
        let _ = std::fs::remove_file(self.note_path());
    }

    /// What the agent that runs was started with; none while it is starting.
    pub fn note(&self) -> anyhow::Result<Option<Note>> {
        match std::fs::read(self.note_path()) {
            Ok(text) => {
                let damaged = || {
                    format!(
                        "{} is damaged, and says who looks after the agent. Fix: stop the agent \
                         where it was started and delete the file",
                        self.note_path().display()
                    )
                };
                Ok(Some(serde_json::from_slice(&text).with_context(damaged)?))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(super::unreadable(error, &self.note_path())),
        }
    }

    /// In what the agent that runs differs from one that we would start.
    pub fn difference(
        &self,
        process: &ProcessIdentity,
        wishes: &Wishes,
    ) -> anyhow::Result<Option<Difference>> {
        let theirs = PathBuf::from(format!("/proc/{}/exe", process.pid));
        // Of a process that is just ending nothing can be said, and nothing has to be.
        if same_file(&theirs, Path::new("/proc/self/exe")).is_ok_and(|same| !same) {
            return Ok(Some(Difference::Build));
        }
        let differs = self.note()?.is_some_and(|note| note.wishes != *wishes);
        Ok(differs.then_some(Difference::Wishes))
    }
}

/// Whether two paths lead to the same content. A program that was built anew is another file under
/// the same name, while the one that runs is still there through /proc.
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
    fn damaged_note_is_an_error_that_names_it() {
        let base = tempfile::tempdir().unwrap();
        let layout = Layout { state: base.path().join("s"), runs: base.path().join("run") };
        std::fs::create_dir_all(layout.run()).unwrap();
        let agent = Agent::of(&layout);
        assert_eq!(agent.note().unwrap(), None);
        std::fs::write(agent.note_path(), "{").unwrap();
        let told = format!("{:#}", agent.note().unwrap_err());
        assert!(told.contains("agent.json is damaged") && told.contains("Fix: "), "{told}");
    }

    #[test]
    fn a_copy_is_the_same_build_and_a_change_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
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
