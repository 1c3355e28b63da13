//! The power fails at every single write: what was acknowledged is there afterwards, and what
//! was not is there whole or not at all.
//!
//! The disk is one that keeps what it was told to sync and loses the rest: all of it, none of
//! it, or any part, torn within a block, as real ones do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use redb::StorageBackend;

use super::{Act, Change, Expect, Key, Limits, Scope, Store};
use crate::clock::Clock;
use crate::registry::{CONFIG_MAPS, PODS, Resource};

/// What becomes of writes that were not synced when the power went.
#[derive(Clone, Copy, Debug)]
enum Unsynced {
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
    operations: usize,
    /// At this many operations the power goes.
    cut_at: usize,
}

#[derive(Clone, Debug)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Platter {
    fn with(image: Vec<u8>, cut_at: usize) -> Self {
        Self { synced: image.clone(), now: image, cut_at, ..Self::default() }
    }

    /// Counts an operation that changes the disk; fails once there is no power.
    fn powered(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.operations > self.cut_at {
            return Err(io::Error::other("no power"));
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
struct Disk(Arc<Mutex<Platter>>);

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.0.lock();
        let at = offset as usize;
        let found = platter.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.powered()?;
        platter.now.resize(length as usize, 0);
        platter.pending.push(Pending::Length(length as usize));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.powered()?;
        platter.synced = platter.now.clone();
        platter.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.0.lock();
        platter.powered()?;
        let at = offset as usize;
        platter.now[at..at + data.len()].copy_from_slice(data);
        platter.pending.push(Pending::Write(at, data.to_vec()));
        Ok(())
    }
}

const LIMITS: Limits = Limits {
    cache_bytes: 1 << 20,
    log_entries: 6, // so that the log is trimmed on the way
    log_bytes: 1 << 20,
    fading_objects: 10,
    fading_after: std::time::Duration::from_secs(3600),
};

fn put(resource: &Resource, name: &str, expect: Expect, body: &str) -> Change {
    let text = Bytes::from(format!("{body}{}", "x".repeat(600)));
    let key = Key::new(resource, "ns", name);
    Change { key, expect, act: Act::Put { text, previous: None } }
}

/// Writes `n` pairs, each pair in one commit, until the power goes; says how many were
/// acknowledged.
async fn work(disk: &Disk, n: usize) -> usize {
    let Ok(store) = Store::with_backend(disk.clone(), LIMITS, Clock::system()) else { return 0 };
    let mut expect = [Expect::Absent; 2];
    for i in 0..n {
        let body = format!("{i} ");
        let pair = vec![
            put(&PODS, "pod", expect[0], &body),
            put(&CONFIG_MAPS, "map", expect[1], &body),
            put(&CONFIG_MAPS, &format!("extra-{i}"), Expect::Absent, &body),
        ];
        match store.commit(pair).await {
            Ok(at) => expect = [Expect::At(at[0]), Expect::At(at[1])],
            Err(_) => return i,
        }
    }
    n
}

/// What the store holds: how many pairs were written. Fails if it is half a pair.
fn found(store: &Store) -> usize {
    let count = |resource: &Resource, name: &str| {
        let found = store.get(&Key::new(resource, "ns", name)).unwrap();
        found.map_or(0, |document| {
            let text = String::from_utf8(document.text.to_vec()).unwrap();
            text.split(' ').next().unwrap().parse::<usize>().unwrap() + 1
        })
    };
    let (pod, map) = (count(&PODS, "pod"), count(&CONFIG_MAPS, "map"));
    assert_eq!(pod, map, "half a commit");
    let (maps, revision) = store.list(&Scope::new(&CONFIG_MAPS, None), None).unwrap();
    assert_eq!(maps.len(), pod + usize::from(pod > 0), "half a commit");
    let newest = maps.iter().map(|(_, document)| document.revision).max().unwrap_or(0);
    assert!(revision >= newest);
    let history = store.history(&Scope::new(&PODS, None), revision.saturating_sub(2), 10);
    assert!(history.is_ok(), "the log ends where the objects do: {history:?}");
    pod
}

#[tokio::test]
async fn no_acknowledged_write_is_lost_whenever_the_power_goes() {
    const PAIRS: usize = 5;
    // A database gets its name only when it is whole, so the cuts begin after that.
    let fresh = Disk(Arc::new(Mutex::new(Platter::with(Vec::new(), usize::MAX))));
    drop(Store::with_backend(fresh.clone(), LIMITS, Clock::system()).unwrap());
    let fresh = fresh.0.lock().after_cut(Unsynced::Lost);
    let whole = Disk(Arc::new(Mutex::new(Platter::with(fresh.clone(), usize::MAX))));
    assert_eq!(work(&whole, PAIRS).await, PAIRS);
    let operations = whole.0.lock().operations;
    assert!(operations > 60, "too few operations to cut at: {operations}");
    let mut acknowledged_at_all = 0;
    for cut_at in 0..=operations {
        let disk = Disk(Arc::new(Mutex::new(Platter::with(fresh.clone(), cut_at))));
        let acknowledged = work(&disk, PAIRS).await;
        acknowledged_at_all += acknowledged;
        let torn = [1, 7].map(|seed| Unsynced::Torn(seed * 0x9e37_79b9 + cut_at as u64));
        for unsynced in [Unsynced::Lost, Unsynced::Kept].into_iter().chain(torn) {
            let image = disk.0.lock().after_cut(unsynced);
            let again = Disk(Arc::new(Mutex::new(Platter::with(image, usize::MAX))));
            let store = Store::with_backend(again, LIMITS, Clock::system())
                .unwrap_or_else(|error| panic!("cut at {cut_at}, {unsynced:?}: {error}"));
            let there = found(&store);
            assert!(
                there == acknowledged || there == acknowledged + 1,
                "cut at {cut_at}, {unsynced:?}: {acknowledged} acknowledged, {there} there"
            );
        }
    }
    assert!(acknowledged_at_all > operations, "the cuts hit nothing but the beginning");
}
