//! Fake disk for tests: keeps synced data, and can lose the rest: all of it, none of it, or any
//! part, torn within a block, as real disks do. It can also fail for a while.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

/// Fate of unsynced writes at a power failure.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unsynced {
    Lost,
    Kept,
    /// Some blocks of some writes, chosen by this seed.
    Torn(u64),
}

#[derive(Debug, Default)]
struct FakeDiskState {
    synced: Vec<u8>,
    /// Writes and changes of length since the last sync, oldest first.
    pending: Vec<Pending>,
    now: Vec<u8>,
    /// Number of operations so far that change the disk.
    operations: usize,
    /// Which of these operations fail, and how.
    faults: Range<usize>,
    fault: Option<io::ErrorKind>,
    unreadable: bool,
}

#[derive(Clone, Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl FakeDiskState {
    /// Counts an operation that changes the disk.
    fn count(&mut self) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        if self.faults.contains(&number) {
            return Err(self.fault.unwrap_or(io::ErrorKind::Other).into());
        }
        Ok(())
    }

    /// Content of the disk after a power failure.
    fn after_cut(&self, unsynced: Unsynced) -> Vec<u8> {
        let mut image = self.synced.clone();
        let mut state = match unsynced {
            Unsynced::Lost => return image,
            Unsynced::Kept => 0,
            Unsynced::Torn(seed) => seed | 1,
        };
        let mut coin = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state & 1 == 1 || state == 0
        };
        for pending in &self.pending {
            match pending {
                // A file system orders an extended length before the data written there.
                Pending::Length(length) => image.resize(*length, 0),
                Pending::Write(offset, data) => {
                    for (block, bytes) in data.chunks(512).enumerate() {
                        if coin() {
                            let at = offset + block * 512;
                            image[at..at + bytes.len()].copy_from_slice(bytes);
                        }
                    }
                }
            }
        }
        image
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct FakeDisk(Arc<Mutex<FakeDiskState>>);

impl FakeDisk {
    /// A disk that never fails.
    pub(super) fn sound(image: Vec<u8>) -> Self {
        Self::failing(image, 0..0, io::ErrorKind::Other)
    }

    /// A disk on which the operations in this range fail.
    pub(super) fn failing(image: Vec<u8>, faults: Range<usize>, fault: io::ErrorKind) -> Self {
        let fault = Some(fault);
        let state = FakeDiskState {
            synced: image.clone(),
            now: image,
            faults,
            fault,
            ..FakeDiskState::default()
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// A disk that loses power at this operation.
    pub(super) fn cut_at(image: Vec<u8>, operation: usize) -> Self {
        Self::failing(image, operation..usize::MAX, io::ErrorKind::Other)
    }

    /// Its content if the power fails now.
    pub(super) fn after_cut(&self, unsynced: Unsynced) -> Vec<u8> {
        self.0.lock().after_cut(unsynced)
    }

    pub(super) fn set_unreadable(&self, unreadable: bool) {
        self.0.lock().unreadable = unreadable;
    }

    pub(super) fn operations(&self) -> usize {
        self.0.lock().operations
    }
}

impl StorageBackend for FakeDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.0.lock();
        if state.unreadable {
            return Err(io::Error::other("unreadable"));
        }
        let at = offset as usize;
        let found = state.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.count()?;
        state.now.resize(length as usize, 0);
        state.pending.push(Pending::Length(length as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        state.count()?;
        state.synced = state.now.clone();
        state.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.0.lock();
        state.count()?;
        let at = offset as usize;
        state.now[at..at + data.len()].copy_from_slice(data);
        state.pending.push(Pending::Write(at, data.to_vec()));
        Ok(())
    }
}
