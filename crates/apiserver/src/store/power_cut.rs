//! Power failure tests: the power fails at every single write. Acknowledged writes survive, and
//! others are there completely or not at all.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use bytes::Bytes;

use super::fake_disk::{FakeDisk, Unsynced};
use super::{Change, Key, Limits, Precondition, Scope, Store, WriteOp};
use crate::clock::Clock;
use crate::registry::{CONFIG_MAPS, PODS, Resource};

const LIMITS: Limits = Limits {
    cache_bytes: 1 << 20,
    log_entries: 6, // so that the log is trimmed on the way
    log_bytes: 1 << 20,
    log_entries_per_object: 0,
    log_bytes_per_object: 0,
    max_events: 10,
    event_bytes: 64 << 10,
    event_ttl: std::time::Duration::from_secs(3600),
};

fn put(resource: &Resource, name: &str, expect: Precondition, body: &str) -> Change {
    let text = Bytes::from(format!("{body}{}", "x".repeat(600)));
    let key = Key::new(resource, "ns", name);
    Change { key, expect, op: WriteOp::Put { text, previous: None } }
}

/// Writes `n` pairs, each pair in one commit, until the power fails; returns how many were
/// acknowledged.
async fn work(disk: &FakeDisk, n: usize) -> usize {
    let Ok(store) = Store::with_backend(disk.clone(), LIMITS, Clock::system()) else { return 0 };
    let mut expect = [Precondition::Absent; 2];
    for i in 0..n {
        let body = format!("{i} ");
        let pair = vec![
            put(&PODS, "pod", expect[0], &body),
            put(&CONFIG_MAPS, "map", expect[1], &body),
            put(&CONFIG_MAPS, &format!("extra-{i}"), Precondition::Absent, &body),
        ];
        match store.commit(pair).await {
            Ok(at) => expect = [Precondition::At(at[0]), Precondition::At(at[1])],
            Err(_) => return i,
        }
    }
    n
}

/// Number of pairs in the store. Panics on half a pair.
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
async fn no_acknowledged_write_is_lost_at_any_power_failure() {
    const PAIRS: usize = 5;
    // The database is renamed only when it is complete, so the cuts begin after that.
    let fresh = FakeDisk::sound(Vec::new());
    drop(Store::with_backend(fresh.clone(), LIMITS, Clock::system()).unwrap());
    let fresh = fresh.after_cut(Unsynced::Lost);
    let whole = FakeDisk::sound(fresh.clone());
    assert_eq!(work(&whole, PAIRS).await, PAIRS);
    let operations = whole.operations();
    assert!(operations > 60, "too few operations to cut at: {operations}");
    let mut acknowledged_at_all = 0;
    for cut_at in 0..=operations {
        let disk = FakeDisk::cut_at(fresh.clone(), cut_at);
        let acknowledged = work(&disk, PAIRS).await;
        acknowledged_at_all += acknowledged;
        let torn = [1, 7].map(|seed| Unsynced::Torn(seed * 0x9e37_79b9 + cut_at as u64));
        for unsynced in [Unsynced::Lost, Unsynced::Kept].into_iter().chain(torn) {
            let image = disk.after_cut(unsynced);
            let again = FakeDisk::sound(image);
            let store = Store::with_backend(again, LIMITS, Clock::system())
                .unwrap_or_else(|error| panic!("cut at {cut_at}, {unsynced:?}: {error}"));
            let pairs = found(&store);
            assert!(
                pairs == acknowledged || pairs == acknowledged + 1,
                "cut at {cut_at}, {unsynced:?}: {acknowledged} acknowledged, {pairs} found"
            );
        }
    }
    assert!(acknowledged_at_all > operations, "the cuts hit nothing but the beginning");
}
