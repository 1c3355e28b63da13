//! A disk for tests that keeps what it was told to sync, and can lose the rest: all of it, none of
//! it, or any part, torn within a block, as real ones do. It can also fail for a while.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

/// What becomes of writes that were not synced when the power went.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unsynced {
    Lost,
    Kept,
    /// Some blocks of some writes, by this seed.
    Torn(u64),
}

#[derive(Debug, Default)]
struct Platter {
    synced: Vec<u8>,
    /// Writes and changes of length since the last sync, oldest first.
    pending: Vec<Pending>,
    now: Vec<u8>,
    /// That change it, so far.
    operations: usize,
    /// Which of these fail, and how.
    faults: Range<usize>,
    fault: Option<io::ErrorKind>,
    unreadable: bool,
}

#[derive(Clone, Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Platter {
    /// Counts an operation that changes the disk.
    fn count(&mut self) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        if self.faults.contains(&number) {
            return Err(self.fault.unwrap_or(io::ErrorKind::Other).into());
        }
        Ok(())
    }

    /// What is found on the disk when the power is back.
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
                // A file system orders a longer file before the data that lies in it.
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
pub(super) struct Disk(Arc<Mutex<Platter>>);

impl Disk {
    /// One that never fails.
    pub(super) fn sound(image: Vec<u8>) -> Self {
        Self::failing(image, 0..0, io::ErrorKind::Other)
    }

    /// One whose operations of these numbers fail.
    pub(super) fn failing(image: Vec<u8>, faults: Range<usize>, fault: io::ErrorKind) -> Self {
        let fault = Some(fault);
        let platter =
            Platter { synced: image.clone(), now: image, faults, fault, ..Platter::default() };
        Self(Arc::new(Mutex::new(platter)))
    }

    /// One that loses its power at this operation.
    pub(super) fn cut_at(image: Vec<u8>, operation: usize) -> Self {
        Self::failing(image, operation..usize::MAX, io::ErrorKind::Other)
    }

    /// What it holds if the power goes now.
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

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock();
        if platter.unreadable {
            return Err(io::Error::other("unreadable"));
        }
        let at = offset as usize;
        let found = platter.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.count()?;
        platter.now.resize(length as usize, 0);
        platter.pending.push(Pending::Length(length as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.count()?;
        platter.synced = platter.now.clone();
        platter.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.count()?;
        let at = offset as usize;
        platter.now[at..at + data.len()].copy_from_slice(data);
        platter.pending.push(Pending::Write(at, data.to_vec()));
        Ok(())
    }
}
