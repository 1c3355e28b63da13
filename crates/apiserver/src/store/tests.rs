#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::registry::{CONFIG_MAPS, EVENTS, LEASES, PODS, Resource};

const SMALL: Limits = Limits {
    cache_bytes: 1 << 20,
    log_entries: 4,
    log_bytes: 1 << 20,
    log_entries_per_object: 0,
    log_bytes_per_object: 0,
    max_events: 3,
    event_bytes: 64 << 10,
    event_ttl: Duration::from_secs(60),
};

fn memory(limits: Limits) -> Store {
    Store::in_memory(limits, Clock::system()).unwrap()
}

fn key(resource: &Resource, name: &str) -> Key {
    Key::new(resource, "ns", name)
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn create(key: &Key, body: &str) -> Change {
    let op = WriteOp::Put { text: text(body), previous: None };
    Change { key: key.clone(), expect: Precondition::Absent, op }
}

fn update(key: &Key, at: Revision, body: &str) -> Change {
    let op = WriteOp::Put { text: text(body), previous: None };
    Change { key: key.clone(), expect: Precondition::At(at), op }
}

fn delete(key: &Key, at: Revision) -> Change {
    Change {
        key: key.clone(),
        expect: Precondition::At(at),
        op: WriteOp::Delete { last: text("gone") },
    }
}

fn seen(store: &Store, resource: &Resource) -> Vec<(String, String)> {
    let (objects, _) = store.list(&Scope::new(resource, None), None).unwrap();
    let pair = |(key, document): (Key, Document)| {
        (key.name().to_owned(), String::from_utf8_lossy(&document.text).into_owned())
    };
    objects.into_iter().map(pair).collect()
}

#[tokio::test]
async fn write_needs_the_expected_revision() {
    for resource in [&PODS, &EVENTS] {
        let store = memory(Limits::default());
        let pod = key(resource, "a");
        let other = store.commit(vec![create(&key(resource, "z"), "z")]).await.unwrap()[0];
        let first = store.commit(vec![create(&pod, "1")]).await.unwrap()[0];
        let second = store.commit(vec![update(&pod, first, "2")]).await.unwrap()[0];
        for (case, change, found) in [
            ("create an existing object", create(&pod, "x"), Some(second)),
            ("update an older revision", update(&pod, first, "x"), Some(second)),
            ("update with another object's revision", update(&pod, other, "x"), Some(second)),
            ("delete an older revision", delete(&pod, first), Some(second)),
            ("update a missing object", update(&key(resource, "b"), first, "x"), None),
            ("delete a missing object", delete(&key(resource, "b"), first), None),
        ] {
            let refused = store.commit(vec![change]).await.unwrap_err();
            assert!(
                matches!(refused, CommitError::Conflict { found: f, .. } if f == found),
                "{case}: {refused}"
            );
        }
        assert_eq!(store.get(&pod).unwrap().unwrap().text, text("2"));
        assert_eq!(store.revision(), second, "a refused write uses no revision");
        store.commit(vec![delete(&pod, second)]).await.unwrap();
        assert_eq!(store.get(&pod).unwrap(), None);
    }
}

#[tokio::test]
async fn changes_are_committed_together_or_not_at_all() {
    let store = memory(Limits::default());
    let (map, event) = (key(&CONFIG_MAPS, "a"), key(&EVENTS, "e"));
    let taken = key(&CONFIG_MAPS, "taken");
    store.commit(vec![create(&taken, "t")]).await.unwrap();
    let refused =
        store.commit(vec![create(&map, "1"), create(&event, "1"), create(&taken, "x")]).await;
    assert!(matches!(refused, Err(CommitError::Conflict { .. })));
    assert_eq!((store.get(&map).unwrap(), store.get(&event).unwrap()), (None, None));
    let revisions = store.commit(vec![create(&map, "1"), create(&event, "1")]).await.unwrap();
    assert_eq!(revisions[1], revisions[0] + 1);
    assert_eq!(store.get(&map).unwrap().unwrap().revision, revisions[0]);
    assert_eq!(store.get(&event).unwrap().unwrap().revision, revisions[1]);
}

#[tokio::test]
async fn list_is_ordered_and_starts_after_the_given_key() {
    let store = memory(Limits::default());
    for (namespace, name) in
        [("kube-node-lease", "n2"), ("b", "x"), ("kube-node-lease", "n1"), ("z", "y")]
    {
        store.commit(vec![create(&Key::new(&LEASES, namespace, name), name)]).await.unwrap();
    }
    // node leases are in memory and the others on disk; a list shows them as one
    let names = |after: Option<&str>| -> Vec<String> {
        let (found, _) = store.list(&Scope::new(&LEASES, None), after).unwrap();
        found.into_iter().map(|(key, _)| key.name().to_owned()).collect()
    };
    assert_eq!(names(None), ["x", "n1", "n2", "y"]);
    assert_eq!(names(Some("leases/kube-node-lease/n1")), ["n2", "y"]);
    assert_eq!(names(Some("leases/a")), ["x", "n1", "n2", "y"]);
    assert_eq!(names(Some("leases/z/y")), Vec::<String>::new());
    assert_eq!(names(Some("zzz")), Vec::<String>::new(), "a start after the scope");
}

#[tokio::test]
async fn history_has_every_change_in_order_and_reports_dropped_ones() {
    let store = memory(SMALL);
    let pod = key(&PODS, "a");
    let mut at = store.commit(vec![create(&pod, "0")]).await.unwrap()[0];
    let start = at;
    for i in 1..=3 {
        store.commit(vec![create(&key(&EVENTS, &format!("e{i}")), "e")]).await.unwrap();
        at = store.commit(vec![update(&pod, at, &i.to_string())]).await.unwrap()[0];
    }
    let events_after = |after, limit| {
        let history = store.history(&Scope::new(&PODS, Some("ns")), after, limit)?;
        let texts = history
            .events
            .iter()
            .map(|e| String::from_utf8_lossy(&e.text).into_owned())
            .collect::<Vec<_>>();
        Ok::<_, HistoryError>((texts, history.upto))
    };
    assert_eq!(
        events_after(0, 10).unwrap(),
        (vec!["0".into(), "1".into(), "2".into(), "3".into()], at)
    );
    assert_eq!(events_after(start, 10).unwrap(), (vec!["1".into(), "2".into(), "3".into()], at));
    assert_eq!(
        events_after(start, 1).unwrap(),
        (vec!["1".into()], start + 2),
        "and continues from there"
    );
    assert_eq!(events_after(at, 10).unwrap(), (vec![], at));
    assert_eq!(
        events_after(at + 100, 10).unwrap(),
        (vec![], at + 100),
        "a future revision is kept"
    );
    // four entries are kept: the fifth drops the oldest
    store.commit(vec![update(&pod, at, "4")]).await.unwrap();
    assert!(
        matches!(events_after(0, 10), Err(HistoryError::TooOld { requested: 0, oldest }) if oldest == start)
    );
    assert_eq!(events_after(start, 1).unwrap().0, ["1"]);
}

#[tokio::test]
async fn history_is_bounded_in_bytes() {
    let store = memory(Limits { log_entries: 1000, log_bytes: 10_000, ..SMALL });
    let pod = key(&PODS, "a");
    let mut at = store.commit(vec![create(&pod, "")]).await.unwrap()[0];
    for _ in 0..30 {
        at = store.commit(vec![update(&pod, at, &"x".repeat(1000))]).await.unwrap()[0];
    }
    let scope = Scope::new(&PODS, None);
    assert!(matches!(store.history(&scope, at - 12, 100), Err(HistoryError::TooOld { .. })));
    assert_eq!(store.history(&scope, at - 8, 100).unwrap().events.len(), 8);
}

#[tokio::test]
async fn events_expire_by_bytes() {
    let limits = Limits { max_events: 1000, event_bytes: 10_000, ..Limits::default() };
    let store = memory(limits);
    let names = || {
        let (events, _) = store.list(&Scope::new(&EVENTS, None), None).unwrap();
        events.iter().map(|(key, _)| key.name().to_owned()).collect::<Vec<_>>()
    };
    for name in ["a", "b", "c", "d"] {
        store.commit(vec![create(&key(&EVENTS, name), &"x".repeat(3000))]).await.unwrap();
    }
    assert_eq!(names(), ["b", "c", "d"], "the oldest makes room");
    // an update counts instead of what it replaces
    let at = store.get(&key(&EVENTS, "c")).unwrap().unwrap().revision;
    store.commit(vec![update(&key(&EVENTS, "c"), at, &"y".repeat(3500))]).await.unwrap();
    assert_eq!(names(), ["b", "c", "d"]);
    let at = store.get(&key(&EVENTS, "d")).unwrap().unwrap().revision;
    store.commit(vec![update(&key(&EVENTS, "d"), at, &"y".repeat(6000))]).await.unwrap();
    assert_eq!(names(), ["c", "d"], "least recently changed first");
    for name in ["c", "d"] {
        let at = store.get(&key(&EVENTS, name)).unwrap().unwrap().revision;
        let op = WriteOp::Delete { last: text("") };
        let expect = Precondition::At(at);
        store.commit(vec![Change { key: key(&EVENTS, name), expect, op }]).await.unwrap();
    }
    // nothing is left to count
    for name in ["e", "f", "g"] {
        store.commit(vec![create(&key(&EVENTS, name), &"x".repeat(3000))]).await.unwrap();
    }
    assert_eq!(names(), ["e", "f", "g"]);
}

#[tokio::test]
async fn events_expire_by_age_and_by_number() {
    let seconds = Arc::new(AtomicI64::new(0));
    let clock = Clock::new({
        let seconds = seconds.clone();
        move || Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds.load(Ordering::Relaxed))
    });
    let store = Store::in_memory(SMALL, clock).unwrap();
    for name in ["a", "b", "c", "d"] {
        store.commit(vec![create(&key(&EVENTS, name), name)]).await.unwrap();
        seconds.fetch_add(10, Ordering::Relaxed);
    }
    let names =
        |store: &Store| seen(store, &EVENTS).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&store), ["b", "c", "d"], "three may stay");
    // an update restarts the lifetime
    let at = store.get(&key(&EVENTS, "b")).unwrap().unwrap().revision;
    store.commit(vec![update(&key(&EVENTS, "b"), at, "again")]).await.unwrap();
    seconds.store(85, Ordering::Relaxed);
    let before = store.revision();
    store.expire().await.unwrap();
    assert_eq!(names(&store), ["b", "d"]);
    let events_after = store.history(&Scope::new(&EVENTS, None), before, 10).unwrap().events;
    assert_eq!(
        (events_after.len(), events_after[0].event_type, events_after[0].key.name()),
        (1, EventType::Deleted, "c"),
        "watchers get the deletions"
    );
}

#[tokio::test]
async fn writes_survive_a_restart_and_no_revision_is_reused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let open = || Store::open(&path, SMALL, Clock::system()).unwrap();
    let (pod, lease) = (key(&PODS, "a"), Key::new(&LEASES, "kube-node-lease", "n1"));
    let store = open();
    let at = store.commit(vec![create(&pod, "1")]).await.unwrap()[0];
    let mut leased = store.commit(vec![create(&lease, "0")]).await.unwrap()[0];
    for i in 0..10 {
        leased = store.commit(vec![update(&lease, leased, &i.to_string())]).await.unwrap()[0];
    }
    drop(store);
    let store = open();
    assert_eq!(store.get(&pod).unwrap(), Some(Document { revision: at, text: text("1") }));
    assert_eq!(store.get(&lease).unwrap(), None, "a lease is in memory only");
    assert!(store.revision() >= leased);
    let next = store.commit(vec![create(&key(&PODS, "b"), "1")]).await.unwrap()[0];
    assert!(next > leased);
    // a watch of pods resumes; one of leases cannot
    let pods = store.history(&Scope::new(&PODS, None), at, 10).unwrap();
    assert_eq!(pods.events.iter().map(|e| e.revision).collect::<Vec<_>>(), [next]);
    let leases = store.history(&Scope::new(&LEASES, None), leased - 1, 10);
    assert!(matches!(leases, Err(HistoryError::TooOld { .. })));
}

#[tokio::test]
async fn revisions_after_a_restart_are_beyond_every_one_used_in_memory() {
    for (on_disk, in_memory) in [(1, 100), (1, 400), (150, 100), (150, 150), (190, 2), (300, 80)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let store = Store::open(&path, SMALL, Clock::system()).unwrap();
        let (pod, event) = (key(&PODS, "a"), key(&EVENTS, "e"));
        let mut at = store.commit(vec![create(&pod, "")]).await.unwrap()[0];
        for _ in 1..on_disk {
            at = store.commit(vec![update(&pod, at, "")]).await.unwrap()[0];
        }
        let mut newest = store.commit(vec![create(&event, "")]).await.unwrap()[0];
        for _ in 1..in_memory {
            newest = store.commit(vec![update(&event, newest, "")]).await.unwrap()[0];
        }
        drop(store);
        let store = Store::open(&path, SMALL, Clock::system()).unwrap();
        let begun = store.revision();
        assert!(begun >= newest, "{on_disk} and {in_memory}: {begun} after {newest}");
    }
}

#[tokio::test]
async fn database_file_is_private_and_locked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let store = Store::open(&path, SMALL, Clock::system()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let second = Store::open(&path, SMALL, Clock::system()).map(|_| ()).unwrap_err();
    assert!(second.to_string().contains("already open"), "{second}");
    drop(store);
    Store::open(&path, SMALL, Clock::system()).unwrap();
}

#[tokio::test]
async fn copy_has_the_objects_of_one_moment_while_others_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let store = Store::open(&path("store.redb"), SMALL, Clock::system()).unwrap();
    let key = |number: u32| key(&CONFIG_MAPS, &format!("m{number}"));
    for number in 0..20 {
        store.commit(vec![create(&key(number), "text")]).await.unwrap();
    }
    let revision = store.revision();
    store.copy_to(&path("copy.redb")).unwrap();
    store.commit(vec![create(&key(20), "later")]).await.unwrap();
    assert_eq!(std::fs::metadata(path("copy.redb")).unwrap().permissions().mode() & 0o777, 0o600);
    let copy = Store::open(&path("copy.redb"), SMALL, Clock::system()).unwrap();
    assert!(copy.revision() >= revision, "no revision is used twice");
    for number in 0..20 {
        let (one, other) = (store.get(&key(number)).unwrap(), copy.get(&key(number)).unwrap());
        assert!(one.is_some() && one == other, "{number}");
    }
    assert_eq!(copy.get(&key(20)).unwrap(), None);
}

#[test]
fn a_newer_format_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    drop(Store::open(&path, SMALL, Clock::system()).unwrap());
    disk::set_format(&redb::Database::open(&path).unwrap(), 7).unwrap();
    let refused = Store::open(&path, SMALL, Clock::system()).map(|_| ()).unwrap_err();
    assert!(matches!(refused, StoreError::NewerFormat { found: 7, known: 1 }), "{refused}");
}

#[test]
fn interrupted_creation_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    std::fs::write(directory.path().join("store.redb.new"), [0; 4096]).unwrap();
    drop(Store::open(&path, SMALL, Clock::system()).unwrap());
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["store.redb"]);
}

#[test]
fn file_that_is_no_database_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    std::fs::write(&path, "not a database, but long enough to be looked at as if it were one")
        .unwrap();
    let refused = Store::open(&path, SMALL, Clock::system()).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("store.redb"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = Arc::new(
        Store::open(&directory.path().join("s"), Limits::default(), Clock::system()).unwrap(),
    );
    let counter = key(&CONFIG_MAPS, "counter");
    store.commit(vec![create(&counter, "0")]).await.unwrap();
    let adder = |store: Arc<Store>, counter: Key| async move {
        for _ in 0..25 {
            loop {
                let found = store.get(&counter).unwrap().unwrap();
                let sum: u32 = std::str::from_utf8(&found.text).unwrap().parse().unwrap();
                let change = update(&counter, found.revision, &(sum + 1).to_string());
                if store.commit(vec![change]).await.is_ok() {
                    break;
                }
            }
        }
    };
    let adders: Vec<_> =
        (0..8).map(|_| tokio::spawn(adder(store.clone(), counter.clone()))).collect();
    for adder in adders {
        adder.await.unwrap();
    }
    assert_eq!(store.get(&counter).unwrap().unwrap().text, text("200"));
}

#[tokio::test]
async fn file_stays_small_after_many_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let limits = Limits { log_bytes: 256 << 10, ..Limits::default() };
    let store = Store::open(&path, limits, Clock::system()).unwrap();
    let body = "x".repeat(5000);
    let mut at = store.commit(vec![create(&key(&PODS, "p"), &body)]).await.unwrap()[0];
    for _ in 0..60 {
        let mut changes = Vec::new();
        for i in 0..32 {
            changes.push(create(&key(&CONFIG_MAPS, &format!("m{i}")), &body));
        }
        changes.push(update(&key(&PODS, "p"), at, &body));
        let revisions = store.commit(changes).await.unwrap();
        at = revisions[32];
        let changes = (0..32).map(|i| delete(&key(&CONFIG_MAPS, &format!("m{i}")), revisions[i]));
        store.commit(changes.collect()).await.unwrap();
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size < 8 << 20, "{size} bytes for one pod, after writing 10 MB of others");
}

#[tokio::test]
async fn history_is_longer_than_one_change_of_each_object() {
    let limits = Limits { log_entries_per_object: 2, log_bytes_per_object: 1 << 10, ..SMALL };
    let store = memory(limits);
    let names: Vec<Key> = (0..20).map(|number| key(&PODS, &format!("p{number}"))).collect();
    let mut revisions = Vec::new();
    for name in &names {
        revisions.extend(store.commit(vec![create(name, "1")]).await.unwrap());
    }
    let before = store.revision();
    for (name, at) in names.iter().zip(revisions) {
        store.commit(vec![update(name, at, "2")]).await.unwrap();
    }
    let history = store.history(&Scope::new(&PODS, None), before, 100).unwrap();
    assert_eq!(history.events.len(), names.len());
    let short = memory(SMALL);
    for name in &names {
        short.commit(vec![create(name, "1")]).await.unwrap();
    }
    let forgotten = short.history(&Scope::new(&PODS, None), 0, 100);
    assert!(matches!(forgotten, Err(HistoryError::TooOld { .. })), "without a limit per object");
}

#[tokio::test]
async fn page_has_only_its_objects_and_counts_the_rest() {
    // Leases may be in memory.
    for resource in [&PODS, &LEASES] {
        let store = memory(Limits::default());
        for number in 10..30 {
            let name = Key::new(resource, "ns", &format!("o{number}"));
            store.commit(vec![create(&name, "1")]).await.unwrap();
        }
        let scope = Scope::new(resource, None);
        let (all, _) = store.list(&scope, None).unwrap();
        let after = format!("{}ns/o14", scope.prefix());
        for (after, limit, from) in [(None, 7, 0), (Some(&*after), 7, 5), (Some(&*after), 15, 5)] {
            let Page { objects: page, rest, revision } =
                store.list_page(&scope, after, limit).unwrap();
            assert_eq!(page, all[from..(from + limit)]);
            assert_eq!((rest, revision), (20 - from - limit, store.revision()));
        }
    }
}
