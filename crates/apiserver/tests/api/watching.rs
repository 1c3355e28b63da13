use std::time::Duration;

use podwright_apiserver::Limits;
use serde_json::{Value, json};

use super::world::{NS, World};

#[tokio::test(start_paused = true)]
async fn where_a_watch_begins_follows_from_the_version_it_names() {
    let world = World::new().await;
    let before = world.map("a").await.version();
    world.map("b").await;
    let maps = format!("{NS}/configmaps?watch=1&timeoutSeconds=1");
    for (case, query, want) in [
        ("no version", String::new(), vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt"]),
        (
            "any version",
            "&resourceVersion=0".to_owned(),
            vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt"],
        ),
        ("that of the first", format!("&resourceVersion={before}"), vec!["ADDED b"]),
        (
            "no initial events",
            "&sendInitialEvents=false&resourceVersionMatch=NotOlderThan".to_owned(),
            vec![],
        ),
        (
            "initial events and their end",
            "&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
                .to_owned(),
            vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt", "BOOKMARK -"],
        ),
        ("one name", "&fieldSelector=metadata.name%3Db".to_owned(), vec!["ADDED b"]),
    ] {
        let watched = world.watch(&format!("{maps}{query}")).await.rest().await;
        assert_eq!(watched, want, "{case}");
    }
    let one =
        world.watch(&format!("{NS}/configmaps/b?watch=1&timeoutSeconds=1")).await.rest().await;
    assert_eq!(one, ["ADDED b"]);
    let future = world.get(&format!("{NS}/configmaps?watch=1&sendInitialEvents=true&resourceVersion=99999&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(future.code, 504);
}

#[tokio::test(start_paused = true)]
async fn every_change_is_told_once_and_in_order() {
    let world = World::new().await;
    let start = world.get(&format!("{NS}/configmaps")).await.version();
    let mut here = world.watch(&format!("{NS}/configmaps?watch=1&resourceVersion={start}")).await;
    let mut everywhere =
        world.watch(&format!("/api/v1/configmaps?watch=1&resourceVersion={start}")).await;
    let mut elsewhere = world
        .watch(&format!(
            "/api/v1/namespaces/kube-system/configmaps?watch=1&resourceVersion={start}"
        ))
        .await;
    world.map("a").await;
    world.merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": "1"}})).await.ok();
    world.merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": "1"}})).await.ok(); // changes nothing
    world.pod("other-kind", "n1").await;
    world.delete(&format!("{NS}/configmaps/a")).await.ok();
    let want = ["ADDED a", "MODIFIED a", "DELETED a"];
    assert_eq!(here.lines(3).await, want);
    assert_eq!(everywhere.lines(3).await, want);
    assert_eq!(elsewhere.ready().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_is_told_with_its_last_state_and_a_newer_version() {
    let world = World::new().await;
    let created = world
        .post(&format!("{NS}/configmaps"), json!({"metadata": {"name": "a"}, "data": {"k": "v"}}))
        .await;
    let mut watched = world
        .watch(&format!("{NS}/configmaps?watch=1&resourceVersion={}", created.version()))
        .await;
    world.delete(&format!("{NS}/configmaps/a")).await.ok();
    let event = watched.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["k"]), (&json!("DELETED"), &json!("v")));
    let version: u64 =
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(version > created.version().parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_selector_turns_changes_into_arrivals_and_departures() {
    let world = World::new().await;
    let start = world.get(&format!("{NS}/pods")).await.version();
    let path = format!("{NS}/pods?watch=1&resourceVersion={start}&labelSelector=tier");
    let mut watched = world.watch(&path).await;
    let label = |value: Value| json!({"metadata": {"labels": {"tier": value}}});
    world.pod("a", "n1").await;
    world.merge(&format!("{NS}/pods/a"), label(json!("x"))).await.ok();
    world.merge(&format!("{NS}/pods/a"), label(json!("y"))).await.ok();
    world.merge(&format!("{NS}/pods/a"), label(json!(null))).await.ok();
    world.merge(&format!("{NS}/pods/a"), json!({"metadata": {"labels": {"else": "1"}}})).await.ok();
    world.merge(&format!("{NS}/pods/a"), label(json!("z"))).await.ok();
    world.delete(&format!("{NS}/pods/a?gracePeriodSeconds=0")).await.ok();
    assert_eq!(
        watched.lines(5).await,
        ["ADDED a", "MODIFIED a", "DELETED a", "ADDED a", "DELETED a"]
    );
    // what left is shown as it was in view
    let mut again = world.watch(&path).await;
    let events = [again.next().await, again.next().await, again.next().await].map(Option::unwrap);
    assert_eq!(events[2]["object"]["metadata"]["labels"]["tier"], "y");
    assert_ne!(
        events[2]["object"]["metadata"]["resourceVersion"],
        events[1]["object"]["metadata"]["resourceVersion"]
    );
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_to_those_who_like_them() {
    let world = World::new().await;
    let start = world.get(&format!("{NS}/pods")).await.version();
    let path = format!("{NS}/pods?watch=1&resourceVersion={start}&timeoutSeconds=150");
    let mut watched = world.watch(&format!("{path}&allowWatchBookmarks=true")).await;
    let plain = world.watch(&path).await;
    let newer = world.map("another-kind").await.version();
    let began = tokio::time::Instant::now();
    let bookmark = watched.next().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "Pod");
    assert_eq!(
        bookmark["object"]["metadata"]["resourceVersion"],
        newer.as_str(),
        "others' changes move it on"
    );
    assert_eq!(watched.rest().await, ["BOOKMARK -"]);
    assert_eq!(began.elapsed().as_secs(), 150, "and then its time is over");
    assert_eq!(plain.rest().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_falls_behind_is_told_to_list_again() {
    let world = World::with(Limits { log_entries: 20, ..Limits::default() }).await;
    let start = world.map("a").await.version();
    let path = format!("{NS}/configmaps?watch=1&resourceVersion={start}");
    let mut slow = world.watch(&path).await;
    for i in 0..25 {
        world
            .merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": i.to_string()}}))
            .await
            .ok();
    }
    // one that did not read meanwhile, and one that comes late, are told the same
    for watched in [&mut slow, &mut world.watch(&path).await] {
        let event = watched.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
        assert_eq!(event["object"]["reason"], "Expired");
        let message = event["object"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("too old resource version: {start} (")), "{message}");
        assert_eq!(watched.next().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_tables_and_metadata_too() {
    let world = World::new().await;
    world.map("a").await;
    for (kind, want) in [("Table", "Table"), ("PartialObjectMetadata", "PartialObjectMetadata")] {
        let accept = format!("application/json;as={kind};v=v1;g=meta.k8s.io");
        let request = http::Request::get(format!("{NS}/configmaps?watch=1&timeoutSeconds=1"))
            .header("Accept", accept);
        let response = world.raw(request.body(axum::body::Body::empty()).unwrap()).await;
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let first: Value =
            serde_json::from_slice(body.split(|b| *b == b'\n').next().unwrap()).unwrap();
        assert_eq!(first["object"]["kind"], want);
    }
}

#[tokio::test(start_paused = true)]
async fn both_groups_of_events_show_the_same_events() {
    let world = World::new().await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "m", "type": "Normal", "reportingComponent": "kubelet"});
    world.post(&format!("{NS}/events"), event).await.ok();
    let newer = "/apis/events.k8s.io/v1/namespaces/default/events";
    let listed = world.get(&format!("{newer}?fieldSelector=regarding.name%3Dp")).await.ok();
    assert_eq!(listed.body["kind"], "EventList");
    assert_eq!(listed.body["items"][0]["note"], "m");
    let one = world.get(&format!("{newer}/e")).await.ok();
    assert_eq!(
        (&one.body["apiVersion"], &one.body["regarding"]["name"]),
        (&json!("events.k8s.io/v1"), &json!("p"))
    );
    let patched = world.merge(&format!("{newer}/e"), json!({"note": "n"})).await.ok();
    assert_eq!(patched.body["note"], "n");
    assert_eq!(world.get(&format!("{NS}/events/e")).await.body["message"], "n");
    let watched =
        world.watch(&format!("{newer}?watch=1&timeoutSeconds=1")).await.next().await.unwrap();
    assert_eq!(watched["object"]["note"], "n");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_ends_its_watches() {
    let world = World::new().await;
    let mut watched = world.watch(&format!("{NS}/pods?watch=1")).await;
    world.server.stop();
    let end = tokio::time::timeout(Duration::from_secs(1), watched.next()).await;
    assert_eq!(end, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn a_selector_is_not_lost_in_what_it_does_not_select() {
    let world = World::new().await;
    let start = world.get(&format!("{NS}/configmaps")).await.version();
    let maps = format!("{NS}/configmaps?watch=1&resourceVersion={start}");
    let mut watched = world.watch(&format!("{maps}&labelSelector=mine")).await;
    // more than is read at a time, then the one, then nothing that would wake anybody
    for i in 0..40 {
        world.map(&format!("m{i}")).await;
    }
    let mine = json!({"metadata": {"name": "mine", "labels": {"mine": ""}}});
    world.post(&format!("{NS}/configmaps"), mine).await.ok();
    assert_eq!(watched.ready().await, ["ADDED mine"]);
    assert_eq!(watched.ready().await, Vec::<String>::new());
    // and one that begins late
    let mut late = world.watch(&format!("{maps}&fieldSelector=metadata.name%3Dmine")).await;
    assert_eq!(late.ready().await, ["ADDED mine"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_in_its_time_though_there_is_always_something_to_tell() {
    let world = World::new().await;
    let maps = format!("{NS}/configmaps");
    let mut watched = world.watch(&format!("{maps}?watch=1&timeoutSeconds=5")).await;
    for i in 0..100 {
        world.map(&format!("m{i}")).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        if watched.line().await == "end" {
            return;
        }
    }
    panic!("it never ended");
}
