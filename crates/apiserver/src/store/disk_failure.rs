//! Failure tests: the disk fails at every single write, briefly or for a while, and then works
//! again. The store recovers and keeps every acknowledged write.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;

use super::fake_disk::{FakeDisk, Unsynced};
use super::{
    Change, CommitError, Key, Limits, Precondition, Revision, Scope, Store, StoreError, WriteOp,
};
use crate::clock::Clock;
use crate::registry::{CONFIG_MAPS, LEASES, PODS, Resource};

const LIMITS: Limits = Limits {
    cache_bytes: 1 << 20,
    log_entries: 100,
    log_bytes: 1 << 20,
    log_entries_per_object: 0,
    log_bytes_per_object: 0,
    max_events: 10,
    event_bytes: 64 << 10,
    event_ttl: Duration::from_secs(3600),
};
const ROUNDS: usize = 4;

fn open(disk: &FakeDisk) -> Result<Store, StoreError> {
    Store::with_backend(disk.clone(), LIMITS, Clock::system())
}

/// An empty database, and the range of operations that the rounds take.
async fn fresh() -> (Vec<u8>, std::ops::Range<usize>) {
    let disk = FakeDisk::sound(Vec::new());
    drop(open(&disk).unwrap());
    let image = disk.after_cut(Unsynced::Lost);
    let disk = FakeDisk::sound(image.clone());
    let store = open(&disk).unwrap();
    let begin = disk.operations();
    for round in 0..ROUNDS {
        write(&store, round).await.unwrap();
    }
    let operations = disk.operations() - begin;
    assert!(operations > 4 * ROUNDS, "too few operations to fail at: {operations}");
    (image, begin..disk.operations())
}

/// Writes a round over the one before, as a client does that reads first.
async fn write(store: &Store, round: usize) -> Result<Vec<Revision>, CommitError> {
    let put = |resource: &Resource, name: &str| -> Result<Change, CommitError> {
        let key = Key::new(resource, "ns", name);
        let found = store.get(&key)?;
        let expect = found.map_or(Precondition::Absent, |found| Precondition::At(found.revision));
        let text = Bytes::from(format!("{round} {}", "x".repeat(600)));
        Ok(Change { key, expect, op: WriteOp::Put { text, previous: None } })
    };
    store.commit(vec![put(&PODS, "pod")?, put(&CONFIG_MAPS, &format!("map-{round}"))?]).await
}

/// Number of rounds in the store. Panics on half a round.
fn rounds(store: &Store) -> usize {
    let pod = store.get(&Key::new(&PODS, "ns", "pod")).unwrap();
    let written = pod.map_or(0, |pod| {
        let text = String::from_utf8(pod.text.to_vec()).unwrap();
        text.split(' ').next().unwrap().parse::<usize>().unwrap() + 1
    });
    let (maps, _) = store.list(&Scope::new(&CONFIG_MAPS, None), None).unwrap();
    assert_eq!(maps.len(), written, "half a round");
    written
}

/// Checks that watchers got each round, in order. A round whose outcome was unknown may have been
/// written again.
fn assert_watched(store: &Store, begin: Revision, case: &str) {
    let watched = store.history(&Scope::new(&PODS, None), begin, 100).unwrap();
    let mut watched: Vec<usize> = watched
        .events
        .iter()
        .map(|event| std::str::from_utf8(&event.text[..1]).unwrap().parse().unwrap())
        .collect();
    watched.dedup();
    assert_eq!(watched, (0..ROUNDS).collect::<Vec<_>>(), "{case}");
}

#[tokio::test]
async fn brief_disk_failure_is_not_visible() {
    let (image, operations) = fresh().await;
    for at in operations {
        let disk = FakeDisk::failing(image.clone(), at..at + 1, ErrorKind::StorageFull);
        let store = open(&disk).unwrap();
        let begin = store.revision();
        for round in 0..ROUNDS {
            let written = write(&store, round).await;
            assert!(written.is_ok(), "failed at {at}, round {round}: {written:?}");
            assert_eq!(rounds(&store), round + 1, "failed at {at}");
            assert!(store.revision() >= written.unwrap()[1], "failed at {at}");
        }
        assert_watched(&store, begin, &format!("failed at {at}"));
        // and the power fails
        let again = open(&FakeDisk::sound(disk.after_cut(Unsynced::Lost))).unwrap();
        assert_eq!(rounds(&again), ROUNDS, "failed at {at}");
    }
}

#[tokio::test]
async fn store_recovers_after_the_disk_was_full() {
    let (image, operations) = fresh().await;
    let mut refusals = 0;
    for (at, length) in operations.flat_map(|at| [2, 7, 40].map(|length| (at, length))) {
        let case = format!("failed {length} times at {at}");
        let disk = FakeDisk::failing(image.clone(), at..at + length, ErrorKind::StorageFull);
        let store = open(&disk).unwrap();
        let begin = store.revision();
        let lease = Key::new(&LEASES, "kube-node-lease", "n");
        for round in 0..ROUNDS {
            let mut tries = 0;
            while let Err(error) = write(&store, round).await {
                refusals += 1;
                tries += 1;
                assert!(tries < 100, "{case}: never again: {error}");
                let CommitError::Store(error) = error else { panic!("{case}: {error}") };
                assert!(error.is_transient(), "{case}: {error}");
                assert!(error.to_string().contains("free some space there"), "{case}: {error}");
                // objects in memory can still be written, with their own revisions; these are
                // reserved with the first write
                let found = store.get(&lease).unwrap();
                let expect =
                    found.map_or(Precondition::Absent, |found| Precondition::At(found.revision));
                let op = WriteOp::Put { text: Bytes::from_static(b"l"), previous: None };
                let change = Change { key: lease.clone(), expect, op };
                let before = store.revision();
                let renewed = store.commit(vec![change]).await;
                assert!(round == 0 || renewed.is_ok_and(|at| at[0] > before), "{case}");
                // a write of unknown outcome may have been written; never half of it
                let written_rounds =
                    store.get(&Key::new(&PODS, "ns", "pod")).map(|_| rounds(&store));
                if written_rounds.is_ok_and(|written_rounds| written_rounds > round) {
                    break;
                }
            }
            assert_eq!(rounds(&store), round + 1, "{case}");
        }
        assert_watched(&store, begin, &case);
        let again = open(&FakeDisk::sound(disk.after_cut(Unsynced::Lost))).unwrap();
        assert_eq!(rounds(&again), ROUNDS, "{case}");
    }
    assert!(refusals > 100, "the faults hit nothing");
}

#[tokio::test]
async fn store_recovers_after_read_errors_without_a_write() {
    let (image, _) = fresh().await;
    let disk = FakeDisk::sound(image);
    let uncached = Limits { cache_bytes: 0, ..LIMITS };
    let store = Store::with_backend(disk.clone(), uncached, Clock::system()).unwrap();
    write(&store, 0).await.unwrap();
    let pod = Key::new(&PODS, "ns", "pod");
    disk.set_unreadable(true);
    assert!(store.get(&pod).is_err_and(|error| error.is_transient()));
    disk.set_unreadable(false);
    assert_eq!(rounds(&store), 1);
    write(&store, 1).await.unwrap();
    assert_eq!(rounds(&store), 2);
}
