//! Node lock: one `up`, `down` or `reset` at a time for each state directory.
//!
//! It is an flock on a file below `/run/podwright`, beside the node's directory there and not in
//! it, because `down` removes that. The name of the file depends on the path of the state
//! directory, and a directory may have several paths, so the directory itself is locked as well
//! once it exists. Processes that a command starts inherit the lock as their standard input and
//! release it once their pid file is written, so that the next command either finds every process
//! of a killed command or waits.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use podwright_host::process::ProcessIdentity;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::Layout;
use super::agent::Agent;

/// Most commands finish within this time. A command that waits for pods takes longer and is named
/// in the error.
const TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Read limit for the lock file.
const MAX_HOLDER_SIZE: u64 = 4096;

/// The lock, held until dropped.
#[derive(Debug)]
pub struct NodeLock {
    file: File,
    path: PathBuf,
    run: PathBuf,
    /// The lock is the standard input, and the parent process holds it as well.
    inherited: bool,
    /// The locked state directory, once it exists; an inherited lock leaves it to the parent
    /// process.
    directory: Option<File>,
}

/// Content of the lock file: the process that holds the lock.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    #[serde(rename = "command")]
    command: String,
    #[serde(rename = "process")]
    process: ProcessIdentity,
}

impl NodeLock {
    /// Takes the lock, waiting up to [`TIMEOUT`] for another command.
    pub fn take(layout: &Layout, command: &str, say: &impl Fn(&str)) -> anyhow::Result<Self> {
        Self::take_within(layout, command, say, TIMEOUT)
    }

    /// Takes the lock without waiting; none if another command holds it.
    pub fn try_take(layout: &Layout, command: &str) -> anyhow::Result<Option<Self>> {
        match Self::take_within(layout, command, &|_| {}, Duration::ZERO) {
            Err(error) if error.is::<Held>() => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    fn take_within(
        layout: &Layout,
        command: &str,
        say: &impl Fn(&str),
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let path = layout.lock();
        let shown = path.display();
        let mut waiting = Waiting { layout, deadline: Instant::now() + timeout, reported: false };
        loop {
            let mut file = open(&path).with_context(|| format!("cannot open {shown}"))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Another command may have removed the file while we opened it.
                Ok(()) if is_at(&file, &path)? => {
                    write_holder(&mut file, command)
                        .with_context(|| format!("cannot write {shown}"))?;
                    let run = layout.run();
                    let mut lock = Self { file, path, run, inherited: false, directory: None };
                    lock.take_directory(&mut waiting, say)?;
                    return Ok(lock);
                }
                Ok(()) => continue,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(errno).with_context(|| format!("cannot lock {shown}")),
            }
            waiting.wait(&describe_holder(&mut file, layout), say)?;
        }
    }

    /// Locks the state directory after it was created, so that its other paths are locked too.
    pub fn take_made_directory(
        &mut self,
        layout: &Layout,
        say: &impl Fn(&str),
    ) -> anyhow::Result<()> {
        if self.inherited || self.directory.is_some() {
            return Ok(());
        }
        let deadline = Instant::now() + TIMEOUT;
        self.take_directory(&mut Waiting { layout, deadline, reported: false }, say)
    }

    fn take_directory(
        &mut self,
        waiting: &mut Waiting<'_>,
        say: &impl Fn(&str),
    ) -> anyhow::Result<()> {
        let state = waiting.layout.state();
        let failed = || format!("cannot lock {}", state.display());
        let directory = match File::open(state) {
            Ok(directory) => directory,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(super::unreadable(error, state)),
        };
        loop {
            match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(errno).with_context(failed),
            }
            waiting.wait("another podwright command, by another path,", say)?;
        }
        self.directory = Some(directory);
        Ok(())
    }

    /// The lock of this node, if this process inherited it as its standard input.
    pub fn inherited(layout: &Layout) -> anyhow::Result<Option<Self>> {
        let path = layout.lock();
        let file = std::io::stdin().as_fd().try_clone_to_owned();
        let file = File::from(file.context("cannot duplicate the standard input")?);
        if !is_at(&file, &path)? {
            return Ok(None);
        }
        Ok(Some(Self { file, path, run: layout.run(), inherited: true, directory: None }))
    }

    /// A copy for the standard input of a child process, which holds the lock until it releases it
    /// or exits.
    pub fn share(&self) -> anyhow::Result<Stdio> {
        let copy = self.file.try_clone().context("cannot share the node lock")?;
        Ok(Stdio::from(copy))
    }
}

/// Another command did not release the lock in time.
#[derive(Debug, thiserror::Error)]
#[error("{holder} is working on {}. Fix: wait until it finishes, or stop it, and try again", state.display())]
struct Held {
    holder: String,
    state: PathBuf,
}

/// Wait for another command, with a deadline.
struct Waiting<'a> {
    layout: &'a Layout,
    deadline: Instant,
    reported: bool,
}

impl Waiting<'_> {
    fn wait(&mut self, holder: &str, say: &impl Fn(&str)) -> anyhow::Result<()> {
        let state = self.layout.state().display();
        if Instant::now() >= self.deadline {
            let (holder, state) = (holder.to_owned(), self.layout.state().to_owned());
            return Err(Held { holder, state }.into());
        }
        if !std::mem::replace(&mut self.reported, true) {
            say(&format!("{holder} is working on {state}; waiting for it to finish"));
        }
        std::thread::sleep(POLL);
        Ok(())
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        if self.inherited {
            // On failure the lock is held until this process exits.
            let _ = give_up_inherited();
            return;
        }
        // If the node no longer exists, its lock file is removed too. A failure is harmless: the
        // next command reuses the file.
        if !self.run.exists() {
            let _ = std::fs::remove_file(&self.path);
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}

/// Closes the inherited lock; the parent process may hold it longer.
pub fn give_up_inherited() -> anyhow::Result<()> {
    let nothing = File::open("/dev/null").context("cannot open /dev/null")?;
    nix::unistd::dup2_stdin(&nothing).context("cannot replace the standard input")
}

fn open(path: &Path) -> std::io::Result<File> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    loop {
        std::fs::create_dir_all(directory)?;
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
        match opened {
            // Another command may have removed the directory in between.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
    }
}

fn is_at(file: &File, path: &Path) -> anyhow::Result<bool> {
    let now = match std::fs::metadata(path) {
        Ok(now) => now,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(super::unreadable(error, path)),
    };
    let ours = file.metadata()?;
    Ok((now.dev(), now.ino()) == (ours.dev(), ours.ino()))
}

fn write_holder(file: &mut File, command: &str) -> anyhow::Result<()> {
    let process = ProcessIdentity::of(Path::new("/proc"), std::process::id())?
        .context("this process is not in /proc")?;
    let text = serde_json::to_vec(&Holder { command: command.to_owned(), process })?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)?;
    Ok(())
}

/// "podwright down (process 17)", or the agent if that command has ended and left it the lock.
fn describe_holder(file: &mut File, layout: &Layout) -> String {
    let mut text = Vec::new();
    let read = file.rewind().and_then(|()| file.take(MAX_HOLDER_SIZE).read_to_end(&mut text));
    let holder = read.ok().and_then(|_| serde_json::from_slice::<Holder>(&text).ok());
    // If the process cannot be checked, it is assumed to be running.
    let runs = |process: &ProcessIdentity| process.is_running(Path::new("/proc")).unwrap_or(true);
    match holder {
        Some(Holder { command, process }) => match Agent::of(layout).daemon().running() {
            Ok(Some(agent)) if !runs(&process) => {
                format!("the agent that podwright {command} started (process {})", agent.pid)
            }
            Ok(_) | Err(_) => format!("podwright {command} (process {})", process.pid),
        },
        None => "another podwright command".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn layout(directory: &Path) -> Layout {
        Layout { state: directory.join("state"), runs: directory.join("run") }
    }

    #[test]
    fn second_command_names_the_first_and_waits_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        let first = NodeLock::take(&layout, "down", &|_| {}).unwrap();
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let refused = NodeLock::take_within(&layout, "up", &say, Duration::ZERO).unwrap_err();
        let refused = format!("{refused:#}");
        let holder = format!("podwright down (process {})", std::process::id());
        assert!(refused.contains(&holder), "{refused}");
        let waiting = std::thread::scope(|threads| {
            let waiting = threads.spawn(|| NodeLock::take(&layout, "up", &|_| {}).map(drop));
            drop(first);
            waiting.join().unwrap()
        });
        waiting.unwrap();
    }

    #[test]
    fn directory_with_two_paths_has_one_lock() {
        let base = tempfile::tempdir().unwrap();
        let one = layout(base.path());
        std::fs::create_dir(one.state()).unwrap();
        let link = base.path().join("link");
        std::os::unix::fs::symlink(one.state(), &link).unwrap();
        let other = Layout { state: link, ..one.clone() };
        assert_ne!(one.lock(), other.lock());
        let take = |layout: &Layout| NodeLock::take_within(layout, "up", &|_| {}, Duration::ZERO);
        let first = take(&one).unwrap();
        let refused = format!("{:#}", take(&other).unwrap_err());
        assert!(refused.contains("by another path"), "{refused}");
        drop(first);
        // A directory that the command creates is locked from then on.
        std::fs::remove_dir(one.state()).unwrap();
        let mut first = take(&one).unwrap();
        std::fs::create_dir(one.state()).unwrap();
        first.take_made_directory(&one, &|_| {}).unwrap();
        first.take_made_directory(&one, &|_| {}).unwrap();
        assert!(take(&other).is_err());
        drop(first);
        take(&other).unwrap();
    }

    #[test]
    fn agent_that_inherited_the_lock_is_named() {
        let base = tempfile::tempdir().unwrap();
        let layout = layout(base.path());
        std::fs::create_dir_all(layout.run()).unwrap();
        let held = NodeLock::take(&layout, "up", &|_| {}).unwrap();
        // The command has exited; its agent, here this process, is running.
        let text = std::fs::read_to_string(layout.lock()).unwrap();
        let mut holder: serde_json::Value = serde_json::from_str(&text).unwrap();
        holder["process"]["started"] = 1.into();
        std::fs::write(layout.lock(), holder.to_string()).unwrap();
        Agent::of(&layout).daemon().write_own_pid_file().unwrap();
        let refused = NodeLock::take_within(&layout, "down", &|_| {}, Duration::ZERO).unwrap_err();
        let want = format!("the agent that podwright up started (process {})", std::process::id());
        assert!(format!("{refused:#}").contains(&want), "{refused:#}");
        drop(held);
    }

    #[test]
    fn lock_file_of_a_removed_node_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        drop(NodeLock::take(&layout, "down", &|_| {}).unwrap());
        assert!(!directory.path().join("run").exists());
        let lock = NodeLock::take(&layout, "up", &|_| {}).unwrap();
        std::fs::create_dir(layout.run()).unwrap();
        drop(lock);
        assert!(layout.lock().exists(), "the node exists, and its processes may hold the lock");
    }

    #[test]
    fn lock_file_removed_while_waiting_is_created_again() {
        let directory = tempfile::tempdir().unwrap();
        let layout = layout(directory.path());
        let first = NodeLock::take(&layout, "down", &|_| {}).unwrap();
        let stale = open(&layout.lock()).unwrap();
        drop(first);
        flock(&stale, FlockOperation::NonBlockingLockExclusive).unwrap();
        // The stale file is no longer the lock file of the node.
        assert!(!is_at(&stale, &layout.lock()).unwrap());
        NodeLock::take_within(&layout, "up", &|_| {}, Duration::ZERO).unwrap();
    }
}
