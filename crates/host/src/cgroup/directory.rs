//! One group's directory, in any hierarchy.
//!
//! These are not ordinary files: they exist as soon as the directory does, take one value per
//! write, may vanish between two system calls, and the directory is removed with `rmdir` although
//! it contains them, once no process and no group is left in it.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nix::libc::ENODEV;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::change;

use super::{CgroupError, Result};

/// Rounds of SIGKILL before giving up.
const KILL_PASSES: u32 = 5;
/// How long a round waits for the killed processes.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// How long a directory may stay busy although its processes are gone.
const BUSY_TRIES: u32 = 10;

pub(super) fn io_error(
    attempt: &'static str,
    path: &Path,
) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| CgroupError::Io { attempt, path: path.to_owned(), source }
}

/// False only if it is certain that it does not exist.
pub(super) fn is_there(dir: &Path) -> Result<bool> {
    match dir.metadata() {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(io_error("look at", dir)(error)),
    }
}

/// When the directory last changed; `None` if there is none.
pub(super) fn made(dir: &Path) -> Result<Option<SystemTime>> {
    match dir.metadata().and_then(|metadata| metadata.modified()) {
        Ok(made) => Ok(Some(made)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(io_error("look at", dir)(error)),
    }
}

/// Moves a process into the group, with all its threads.
pub(super) fn join(dir: &Path, pid: u32) -> Result<()> {
    set(dir, "cgroup.procs", &pid.to_string())
}

/// Processes directly in a group. Zero stands for one outside our pid namespace.
pub(super) fn own_pids(dir: &Path) -> Result<BTreeSet<u32>> {
    let listed = read(dir, "cgroup.procs")?.unwrap_or_default();
    let pids = listed.lines().filter_map(|line| line.trim().parse::<u32>().ok());
    Ok(pids.filter(|pid| *pid != 0).collect())
}

/// `None` if there is no such file: its controller is off, or the group is gone.
pub(super) fn read(dir: &Path, file: &str) -> Result<Option<String>> {
    let path = dir.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}

/// A file that holds one number, or `max`, which is `None` inside.
pub(super) fn read_number(dir: &Path, file: &str) -> Result<Option<Option<u64>>> {
    let Some(text) = read(dir, file)? else { return Ok(None) };
    match text.trim() {
        "max" => Ok(Some(None)),
        number => match number.parse() {
            Ok(number) => Ok(Some(Some(number))),
            Err(_) => Err(CgroupError::Unexpected { path: dir.join(file), what: "a number" }),
        },
    }
}

/// How many processes are directly in a group; `None` if it is gone or threaded, when the kernel
/// does not list them.
pub(super) fn count_processes(dir: &Path) -> Option<u64> {
    let listed = read(dir, "cgroup.procs").ok().flatten()?;
    Some(listed.lines().count() as u64)
}

/// The value of `key` in a file of `key value` lines; zero if it is not listed.
pub(super) fn keyed(stat: &str, key: &str) -> u64 {
    let mut pairs = stat.lines().filter_map(|line| line.split_once(' '));
    let found = pairs.find(|(name, _)| *name == key);
    found.and_then(|(_, value)| value.trim().parse().ok()).unwrap_or(0)
}

/// Writes to a file that the kernel created; never creates one.
pub(super) fn set(dir: &Path, file: &str, value: &str) -> Result<()> {
    let path = dir.join(file);
    change::set(&path, value).map_err(|source| CgroupError::Set {
        path,
        value: value.to_owned(),
        source,
    })
}

/// Like [`set`], but it is no error if this kernel has no such file.
pub(super) fn set_if_there(dir: &Path, file: &str, value: &str) -> Result<()> {
    match set(dir, file, value) {
        Err(CgroupError::Set { source, .. }) if is_gone(&source) => Ok(()),
        result => result,
    }
}

pub(super) fn is_invalid(error: &CgroupError) -> bool {
    matches!(error, CgroupError::Set { source, .. } if source.kind() == io::ErrorKind::InvalidInput)
}

/// Every directory from the one below `point` to `dir`, outermost first.
pub(super) fn levels(point: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut levels: Vec<_> =
        dir.ancestors().take_while(|level| *level != point).map(Path::to_owned).collect();
    levels.reverse();
    levels
}

pub(super) fn make(dir: &Path) -> Result<()> {
    match change::mkdirat(CWD, dir, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(io_error("create", dir)(errno.into())),
    }
}

/// Names of the groups directly below; none if the group is gone.
pub(super) fn children(dir: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(names),
        Err(error) => return Err(io_error("list", dir)(error)),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if is_gone(&error) => return Ok(names),
            Err(error) => return Err(io_error("list", dir)(error)),
        };
        // Not following links: the kernel makes none here.
        if entry.file_type().is_ok_and(|file_type| file_type.is_dir()) {
            // Names that are not UTF-8 are not ours.
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

/// Adds the processes in the group and below to `pids`.
pub(super) fn collect_pids(dir: &Path, pids: &mut BTreeSet<u32>) -> Result<()> {
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let listed = read(&dir, "cgroup.procs")?.unwrap_or_default();
        // Zero stands for a process outside our pid namespace.
        let listed = listed.lines().filter_map(|line| line.trim().parse::<u32>().ok());
        pids.extend(listed.filter(|pid| *pid != 0));
        open.extend(children(&dir)?.into_iter().map(|name| dir.join(name)));
    }
    Ok(())
}

/// Kills all processes that `list` returns until it returns none.
///
/// A pid from the list may belong to another process by the time a signal is sent, so each process
/// is first pinned by a pidfd, and signalled only if it is then still listed.
pub(super) fn kill_all(path: &Path, list: impl Fn() -> Result<BTreeSet<u32>>) -> Result<()> {
    let others = || {
        let mut pids = list()?;
        pids.remove(&std::process::id());
        Ok::<_, CgroupError>(pids)
    };
    for _ in 0..KILL_PASSES {
        let listed = others()?;
        if listed.is_empty() {
            return Ok(());
        }
        let pinned: Vec<_> = listed.into_iter().filter_map(|pid| Some((pid, pin(pid)?))).collect();
        let still = others()?;
        let killed: Vec<_> = pinned
            .into_iter()
            .filter(|(pid, _)| still.contains(pid))
            .filter(|(_, fd)| rustix::process::pidfd_send_signal(fd, Signal::KILL).is_ok())
            .map(|(_, fd)| fd)
            .collect();
        wait_for_exit(&killed);
    }
    let pids: Vec<_> = others()?.into_iter().collect();
    if pids.is_empty() {
        return Ok(());
    }
    Err(CgroupError::Undying { path: path.to_owned(), pids, passes: KILL_PASSES })
}

fn pin(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Waits until all have exited, or the time of one round is over.
fn wait_for_exit(processes: &[OwnedFd]) {
    let end = Instant::now() + KILL_WAIT;
    for process in processes {
        let left = end.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return };
        // Readable once it has exited. After an error the next pass checks again.
        let _ = rustix::event::poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
    }
}

/// Removes the group and those below it, innermost first. No error if it is gone.
pub(super) fn remove(dir: &Path) -> Result<()> {
    for name in children(dir)? {
        remove(&dir.join(name))?;
    }
    let mut wait = Duration::from_millis(1);
    for tried in 1.. {
        match change::rmdir(dir) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Its processes have exited, but the kernel has not yet released them.
            Err(Errno::BUSY) if tried < BUSY_TRIES => {
                std::thread::sleep(wait);
                wait *= 2;
            }
            Err(errno) => return Err(io_error("remove", dir)(errno.into())),
        }
    }
    Ok(())
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}
