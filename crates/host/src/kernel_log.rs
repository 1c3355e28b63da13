//! The kernel's log, record by record.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tokio::net::unix::pipe::Receiver;

/// Where the kernel offers its log.
pub const KERNEL_LOG: &str = "/dev/kmsg";
/// The kernel's own limit of a record.
const MAX_RECORD: usize = 8192;
/// After so many records other tasks get their turn: there can be thousands at once.
const BATCH: u32 = 64;

/// A reader that begins with the oldest record that the kernel still has.
#[derive(Debug)]
pub struct KernelLog {
    /// No pipe, but read like one: tokio reads other files in threads.
    file: Receiver,
    buffer: Vec<u8>,
    read: u32,
}

impl KernelLog {
    pub fn open(path: &Path) -> io::Result<Self> {
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        Self::of(OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?)
    }

    /// `file`: one that does not block, and of which each read is a record.
    fn of(file: File) -> io::Result<Self> {
        let file = Receiver::from_file_unchecked(file)?;
        Ok(Self { file, buffer: vec![0; MAX_RECORD], read: 0 })
    }

    /// The next record. What is not UTF-8 is replaced. Records that the kernel has overwritten, and
    /// ones that are too long, are skipped.
    pub async fn next(&mut self) -> io::Result<String> {
        self.read = self.read.wrapping_add(1);
        if self.read.is_multiple_of(BATCH) {
            tokio::task::yield_now().await;
        }
        loop {
            self.file.readable().await?;
            match self.file.try_read(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    let record = self.buffer.get(..length).unwrap_or_default();
                    return Ok(String::from_utf8_lossy(record).into_owned());
                }
                Err(error) => match error.kind() {
                    // Nothing yet; overwritten; longer than the buffer.
                    ErrorKind::WouldBlock
                    | ErrorKind::BrokenPipe
                    | ErrorKind::InvalidInput
                    | ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    /// A log whose records the test writes.
    fn log() -> (KernelLog, OwnedFd) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
        (KernelLog::of(File::from(ours)).unwrap(), theirs)
    }

    #[tokio::test]
    async fn records_are_read_one_by_one_as_they_come() {
        let (mut log, kernel) = log();
        rustix::io::write(&kernel, b"6,1,1,-;one\n").unwrap();
        rustix::io::write(&kernel, b"6,2,2,-;\xff two\n").unwrap();
        assert_eq!(log.next().await.unwrap(), "6,1,1,-;one\n");
        assert_eq!(log.next().await.unwrap(), "6,2,2,-;\u{fffd} two\n");
        let later = tokio::spawn(async move { log.next().await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!later.is_finished());
        rustix::io::write(&kernel, b"6,3,3,-;three\n").unwrap();
        assert_eq!(later.await.unwrap().unwrap(), "6,3,3,-;three\n");
    }

    #[tokio::test]
    async fn record_that_is_too_long_is_cut_and_the_end_is_an_error() {
        let (mut log, kernel) = log();
        rustix::io::write(&kernel, &vec![b'x'; 3 * MAX_RECORD]).unwrap();
        assert_eq!(log.next().await.unwrap().len(), MAX_RECORD);
        drop(kernel);
        log.next().await.unwrap_err();
        KernelLog::open(Path::new("/no/such/log")).unwrap_err();
    }
}
