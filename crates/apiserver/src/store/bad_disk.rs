//! The disk fails at every single write, for a moment or for a while, and then works again: so does
//! the store, and it holds what it said it holds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;

use super::platter::{Disk, Unsynced};
use super::{Act, Change, CommitError, Expect, Key, Limits, Revision, Scope, Store, StoreError};
use crate::clock::Clock;
use crate::registry::{CONFIG_MAPS, LEASES, PODS, Resource};

const LIMITS: Limits = Limits {
    cache_bytes: 1 << 20,
    log_entries: 100,
    log_bytes: 1 << 20,
    fading_objects: 10,
    fading_after: Duration::from_secs(3600),
};
const ROUNDS: usize = 4;

fn open(disk: &Disk) -> Result<Store, StoreError> {
    Store::with_backend(disk.clone(), LIMITS, Clock::system())
}

/// An empty database, and the operations that the rounds take from it on.
async fn fresh() -> (Vec<u8>, std::ops::Range<usize>) {
    let disk = Disk::sound(Vec::new());
    drop(open(&disk).unwrap());
    let image = disk.after_cut(Unsynced::Lost);
    let disk = Disk::sound(image.clone());
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
        let expect = found.map_or(Expect::Absent, |found| Expect::At(found.revision));
        let text = Bytes::from(format!("{round} {}", "x".repeat(600)));
        Ok(Change { key, expect, act: Act::Put { text, previous: None } })
    };
    store.commit(vec![put(&PODS, "pod")?, put(&CONFIG_MAPS, &format!("map-{round}"))?]).await
}

/// How many rounds are there. Fails if there is half of one.
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

/// What watchers were told: each round, in order. One of which nobody could say whether it was
/// written may have been written again.
fn assert_told(store: &Store, begin: Revision, case: &str) {
    let told = store.history(&Scope::new(&PODS, None), begin, 100).unwrap();
    let mut told: Vec<usize> = told
        .events
        .iter()
        .map(|event| std::str::from_utf8(&event.text[..1]).unwrap().parse().unwrap())
        .collect();
    told.dedup();
    assert_eq!(told, (0..ROUNDS).collect::<Vec<_>>(), "{case}");
}

#[tokio::test]
async fn a_fault_that_passes_at_once_is_noticed_by_nobody() {
    let (image, operations) = fresh().await;
    for at in operations {
        let disk = Disk::failing(image.clone(), at..at + 1, ErrorKind::StorageFull);
        let store = open(&disk).unwrap();
        let begin = store.revision();
        for round in 0..ROUNDS {
            let written = write(&store, round).await;
            assert!(written.is_ok(), "failed at {at}, round {round}: {written:?}");
            assert_eq!(rounds(&store), round + 1, "failed at {at}");
            assert!(store.revision() >= written.unwrap()[1], "failed at {at}");
        }
        assert_told(&store, begin, &format!("failed at {at}"));
        // and the power goes
        let again = open(&Disk::sound(disk.after_cut(Unsynced::Lost))).unwrap();
        assert_eq!(rounds(&again), ROUNDS, "failed at {at}");
    }
}

#[tokio::test]
async fn a_disk_that_was_full_is_written_to_again() {
    let (image, operations) = fresh().await;
    let mut refusals = 0;
    for (at, length) in operations.flat_map(|at| [2, 7, 40].map(|length| (at, length))) {
        let case = format!("failed {length} times at {at}");
        let disk = Disk::failing(image.clone(), at..at + length, ErrorKind::StorageFull);
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
                assert!(error.passes(), "{case}: {error}");
                assert!(error.to_string().contains("free some space there"), "{case}: {error}");
                // what is in memory goes on, and under revisions of its own; these are marked off
                // with the first write
                let found = store.get(&lease).unwrap();
                let expect = found.map_or(Expect::Absent, |found| Expect::At(found.revision));
                let act = Act::Put { text: Bytes::from_static(b"l"), previous: None };
                let change = Change { key: lease.clone(), expect, act };
                let before = store.revision();
                let renewed = store.commit(vec![change]).await;
                assert!(round == 0 || renewed.is_ok_and(|at| at[0] > before), "{case}");
                // one whose end the disk did not tell may have been written; never half of it
                let there = store.get(&Key::new(&PODS, "ns", "pod")).map(|_| rounds(&store));
                if there.is_ok_and(|there| there > round) {
                    break;
                }
            }
            assert_eq!(rounds(&store), round + 1, "{case}");
        }
        assert_told(&store, begin, &case);
        let again = open(&Disk::sound(disk.after_cut(Unsynced::Lost))).unwrap();
        assert_eq!(rounds(&again), ROUNDS, "{case}");
    }
    assert!(refusals > 100, "the faults hit nothing");
}

#[tokio::test]
async fn a_disk_that_could_not_be_read_is_read_again_although_nobody_writes() {
    let (image, _) = fresh().await;
    let disk = Disk::sound(image);
    let uncached = Limits { cache_bytes: 0, ..LIMITS };
    let store = Store::with_backend(disk.clone(), uncached, Clock::system()).unwrap();
    write(&store, 0).await.unwrap();
    let pod = Key::new(&PODS, "ns", "pod");
    disk.set_unreadable(true);
    assert!(store.get(&pod).is_err_and(|error| error.passes()));
    disk.set_unreadable(false);
    assert_eq!(rounds(&store), 1);
    write(&store, 1).await.unwrap();
    assert_eq!(rounds(&store), 2);
}
