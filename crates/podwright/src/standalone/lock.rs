//! The lock of a node: one `up`, `down` or `reset` at a time for each state directory.
//!
//! It is a lock on a file below `/run/podwright`, beside the node's own directory there and not in
//! it, because `down` removes that. That file is found by the path of the state directory, and a
//! directory may have several, so the directory itself is locked as well once it is there. Processes that a command starts inherit the lock as their
//! standard input and give it up once they can be found by their pid file, so that the next command
//! sees either all of what a killed one started, or waits for it.

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

/// Most commands are done by then. One that waits for pods to stop is worth naming instead.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Whatever is in the file, this much of it is read.
const LARGEST: u64 = 4096;

/// Held as long as it lives.
#[derive(Debug)]
pub struct NodeLock {
    file: File,
    path: PathBuf,
    run: PathBuf,
    /// It is our standard input, and the process that started us holds it as well.
    inherited: bool,
    /// The state directory, once it is there; of one that is inherited the other process holds it.
    directory: Option<File>,
}

/// What the file says of the process that holds the lock.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    #[serde(rename = "command")]
    command: String,
    #[serde(rename = "process")]
    process: ProcessIdentity,
}

impl NodeLock {
    /// Takes the lock, waiting a moment for another command to end.
    pub fn take(layout: &Layout, command: &str, say: &impl Fn(&str)) -> anyhow::Result<Self> {
        Self::take_within(layout, command, say, PATIENCE)
    }

    fn take_within(
        layout: &Layout,
        command: &str,
        say: &impl Fn(&str),
        patience: Duration,
    ) -> anyhow::Result<Self> {
        let path = layout.lock();
        let shown = path.display();
        let mut waiting = Waiting { layout, deadline: Instant::now() + patience, told: false };
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

    /// Locks the state directory that was made meanwhile, whatever path others know it by.
    pub fn take_made_directory(
        &mut self,
        layout: &Layout,
        say: &impl Fn(&str),
    ) -> anyhow::Result<()> {
        if self.inherited || self.directory.is_some() {
            return Ok(());
        }
        let deadline = Instant::now() + PATIENCE;
        self.take_directory(&mut Waiting { layout, deadline, told: false }, say)
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

    /// The lock of this node, if this process was started with it as its standard input.
    pub fn inherited(layout: &Layout) -> anyhow::Result<Option<Self>> {
        let path = layout.lock();
        let file = std::io::stdin().as_fd().try_clone_to_owned();
        let file = File::from(file.context("cannot hold on to the standard input")?);
        if !is_at(&file, &path)? {
            return Ok(None);
        }
        Ok(Some(Self { file, path, run: layout.run(), inherited: true, directory: None }))
    }

    /// For the standard input of a process that is to hold the lock too, until it gives it up or
    /// ends.
    pub fn share(&self) -> anyhow::Result<Stdio> {
        let copy = self.file.try_clone().context("cannot share the lock of the node")?;
        Ok(Stdio::from(copy))
    }
}

/// Waiting for another command, for a while.
struct Waiting<'a> {
    layout: &'a Layout,
    deadline: Instant,
    told: bool,
}

impl Waiting<'_> {
    fn wait(&mut self, holder: &str, say: &impl Fn(&str)) -> anyhow::Result<()> {
        let state = self.layout.state().display();
        if Instant::now() >= self.deadline {
            anyhow::bail!(
                "{holder} is working on {state}; wait for it to end, or end it, and try again"
            );
        }
        if !std::mem::replace(&mut self.told, true) {
            say(&format!("{holder} is working on {state}; waiting for it to end"));
        }
        std::thread::sleep(POLL);
        Ok(())
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        if self.inherited {
            // If it cannot be, it is held until we end.
            let _ = give_up_inherited();
            return;
        }
        // Of a node that has nothing here nothing stays, the lock included. Failing to remove it
        // does no harm: it is taken by whoever needs it next.
        if !self.run.exists() {
            let _ = std::fs::remove_file(&self.path);
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}

/// Closes the lock that was inherited; the process that shared it may hold it longer.
pub fn give_up_inherited() -> anyhow::Result<()> {
    let nothing = File::open("/dev/null").context("cannot open /dev/null")?;
    nix::unistd::dup2_stdin(&nothing).context("cannot replace the standard input")
}

fn open(path: &Path) -> std::io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    loop {
        std::fs::create_dir_all(folder)?;
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(path);
        match opened {
            // The last node of the machine removed the directory in between.
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
    let read = file.rewind().and_then(|()| file.take(LARGEST).read_to_end(&mut text));
    let holder = read.ok().and_then(|_| serde_json::from_slice::<Holder>(&text).ok());
    // What cannot be found out about processes does not change who is named.
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

    fn layout(folder: &Path) -> Layout {
        Layout { state: folder.join("state"), runs: folder.join("run") }
    }

    #[test]
    fn second_command_names_the_first_and_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path());
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
        // A directory that is made by the command is locked from then on.
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
    fn agent_that_was_left_the_lock_is_named() {
        let base = tempfile::tempdir().unwrap();
        let layout = layout(base.path());
        std::fs::create_dir_all(layout.run()).unwrap();
        let held = NodeLock::take(&layout, "up", &|_| {}).unwrap();
        // The command has ended; its agent, here this process, runs.
        let text = std::fs::read_to_string(layout.lock()).unwrap();
        let mut holder: serde_json::Value = serde_json::from_str(&text).unwrap();
        holder["process"]["started"] = 1.into();
        std::fs::write(layout.lock(), holder.to_string()).unwrap();
        Agent::of(&layout).daemon().note_self().unwrap();
        let refused = NodeLock::take_within(&layout, "down", &|_| {}, Duration::ZERO).unwrap_err();
        let want = format!("the agent that podwright up started (process {})", std::process::id());
        assert!(format!("{refused:#}").contains(&want), "{refused:#}");
        drop(held);
    }

    #[test]
    fn lock_of_a_node_that_is_gone_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path());
        drop(NodeLock::take(&layout, "down", &|_| {}).unwrap());
        assert!(!folder.path().join("run").exists());
        let lock = NodeLock::take(&layout, "up", &|_| {}).unwrap();
        std::fs::create_dir(layout.run()).unwrap();
        drop(lock);
        assert!(layout.lock().exists(), "the node is there, and its processes may hold the lock");
    }

    #[test]
    fn lock_that_was_removed_while_it_was_waited_for_is_taken_again() {
        let folder = tempfile::tempdir().unwrap();
        let layout = layout(folder.path());
        let first = NodeLock::take(&layout, "down", &|_| {}).unwrap();
        let stale = open(&layout.lock()).unwrap();
        drop(first);
        flock(&stale, FlockOperation::NonBlockingLockExclusive).unwrap();
        // That file is nobody's way to the node any more.
        assert!(!is_at(&stale, &layout.lock()).unwrap());
        NodeLock::take_within(&layout, "up", &|_| {}, Duration::ZERO).unwrap();
    }
}
