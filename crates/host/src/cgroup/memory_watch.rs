//! Notifications about the memory of a group.
//!
//! v1 reports when the use crosses an amount, in either direction. v2 has nothing like it; there
//! the stall information of the group reports processes that wait for memory, which is late, but
//! earlier than the OOM killer.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{EventfdFlags, eventfd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::directory::{io_error, is_gone};
use super::{CgroupError, Result};
use crate::change;

/// 100 ms of stalls within a second.
const STALLS: &str = "some 100000 1000000";

/// The kernel forgets the registration when this is dropped.
#[derive(Debug)]
pub struct MemoryWatch {
    kind: Kind,
    fd: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An eventfd.
    Usage,
    /// An open pressure file.
    Stalls,
}

/// A [`MemoryWatch`] that is polled by this async runtime.
#[derive(Debug)]
pub struct PolledWatch {
    kind: Kind,
    fd: AsyncFd<OwnedFd>,
}

impl MemoryWatch {
    /// `dir`: the group in the memory hierarchy of v1.
    pub(super) fn of_usage(dir: &Path, bytes: u64) -> Result<Option<Self>> {
        let usage = dir.join("memory.usage_in_bytes");
        let control = dir.join("cgroup.event_control");
        let (usage, control_exists) = match (File::open(&usage), control.try_exists()) {
            (Ok(file), Ok(exists)) => (file, exists),
            (Err(error), _) if is_gone(&error) => return Ok(None),
            (Err(error), _) => return Err(io_error("open", &usage)(error)),
            (_, Err(error)) => return Err(io_error("look at", &control)(error)),
        };
        if !control_exists {
            return Ok(None);
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| io_error("make an event for", dir)(errno.into()))?;
        let registration = format!("{} {} {bytes}", fd.as_raw_fd(), usage.as_raw_fd());
        change::set(&control, &registration).map_err(|source| CgroupError::Set {
            path: control,
            value: registration,
            source,
        })?;
        Ok(Some(Self { kind: Kind::Usage, fd }))
    }

    /// `dir`: the group in the v2 tree. The root has no file of its own for this.
    pub(super) fn of_stalls(dir: &Path) -> Result<Option<Self>> {
        let path = dir.join("memory.pressure");
        let opened = File::options().read(true).write(true).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        match rustix::io::write(&file, STALLS.as_bytes()) {
            Ok(_) => Ok(Some(Self { kind: Kind::Stalls, fd: file.into() })),
            // The kernel was built or started without it.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => Ok(None),
            Err(errno) => Err(io_error("watch", &path)(errno.into())),
        }
    }

    /// For waiting in an async task.
    pub fn polled(self) -> io::Result<PolledWatch> {
        let interest = match self.kind {
            Kind::Usage => Interest::READABLE,
            Kind::Stalls => Interest::PRIORITY,
        };
        // SAFETY: the `OwnedFd` keeps the descriptor open, and is not replaced, while it is
        // registered.
        #[allow(unsafe_code, reason = "tokio has no safe way to register a descriptor")]
        let fd = unsafe { AsyncFd::register_with_interest(self.fd, interest) };
        Ok(PolledWatch { kind: self.kind, fd: fd? })
    }
}

impl PolledWatch {
    /// Waits for the next notification. Cancel-safe: one that was not waited for stays.
    pub async fn notified(&self) -> io::Result<()> {
        match self.kind {
            Kind::Usage => loop {
                let mut ready = self.fd.readable().await?;
                let mut count = [0; 8];
                match rustix::io::read(self.fd.get_ref(), &mut count) {
                    Ok(_) => return Ok(()),
                    Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                    Err(errno) => return Err(errno.into()),
                }
            },
            Kind::Stalls => {
                let mut ready = self.fd.ready(Interest::PRIORITY).await?;
                ready.clear_ready();
                Ok(())
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// A group of this test; empty when it is dropped.
    struct Group(PathBuf);

    impl Drop for Group {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir(&self.0);
        }
    }

    #[tokio::test]
    async fn use_that_crosses_an_amount_is_notified() {
        podwright_testkit::needs_root!();
        let hierarchy = Path::new("/sys/fs/cgroup/memory");
        if !hierarchy.join("cgroup.event_control").exists() {
            return podwright_testkit::report::skipped("only cgroup v1 has these notifications");
        }
        let group = Group(hierarchy.join(format!("podwright-watch-{}", std::process::id())));
        std::fs::create_dir(&group.0).unwrap();
        let watch = MemoryWatch::of_usage(&group.0, 32 << 20).unwrap().unwrap();
        let watch = watch.polled().unwrap();
        let soon = Duration::from_millis(50);
        assert!(tokio::time::timeout(soon, watch.notified()).await.is_err(), "nothing uses it");
        let script = "echo $$ >\"$0/cgroup.procs\" && \
                      exec dd if=/dev/zero of=/dev/null bs=64M count=2 status=none";
        let mut user = Command::new("sh").args(["-c", script]).arg(&group.0).spawn().unwrap();
        let notified = tokio::time::timeout(Duration::from_secs(60), watch.notified()).await;
        user.wait().unwrap();
        notified.unwrap().unwrap();
        assert!(MemoryWatch::of_usage(&group.0.join("gone"), 1).unwrap().is_none());
    }
}
