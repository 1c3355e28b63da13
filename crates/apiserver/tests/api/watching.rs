use std::time::Duration;

use podwright_apiserver::Limits;
use serde_json::{Value, json};

use super::test_server::{NS, TestServer};

#[tokio::test(start_paused = true)]
async fn resource_version_decides_where_a_watch_starts() {
    let test_server = TestServer::new().await;
    let before = test_server.map("a").await.version();
    test_server.map("b").await;
    let maps = format!("{NS}/configmaps?watch=1&timeoutSeconds=1");
    for (case, query, want) in [
        ("no version", String::new(), vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt"]),
        (
            "any version",
            "&resourceVersion=0".to_owned(),
            vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt"],
        ),
        (
            "bookmarks without a version",
            "&allowWatchBookmarks=true".to_owned(),
            vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt", "BOOKMARK -"],
        ),
        (
            "bookmarks and any version",
            "&allowWatchBookmarks=true&resourceVersion=0".to_owned(),
            vec!["ADDED a", "ADDED b", "ADDED kube-root-ca.crt", "BOOKMARK -"],
        ),
        ("that of the first", format!("&resourceVersion={before}"), vec!["ADDED b"]),
        (
            "bookmarks and a version",
            format!("&allowWatchBookmarks=true&resourceVersion={before}"),
            vec!["ADDED b"],
        ),
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
        let watched = test_server.watch(&format!("{maps}{query}")).await.rest().await;
        assert_eq!(watched, want, "{case}");
    }
    let mut bookmarked = test_server.watch(&format!("{maps}&allowWatchBookmarks=true")).await;
    bookmarked.lines(3).await;
    let end = bookmarked.next().await.unwrap();
    let annotations = &end["object"]["metadata"]["annotations"];
    assert_eq!(annotations, &json!({ "k8s.io/initial-events-end": "true" }));
    let one = test_server
        .watch(&format!("{NS}/configmaps/b?watch=1&timeoutSeconds=1"))
        .await
        .rest()
        .await;
    assert_eq!(one, ["ADDED b"]);
    let future = test_server.get(&format!("{NS}/configmaps?watch=1&sendInitialEvents=true&resourceVersion=99999&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(future.code, 504);
}

#[tokio::test(start_paused = true)]
async fn every_change_is_sent_once_and_in_order() {
    let test_server = TestServer::new().await;
    let start = test_server.get(&format!("{NS}/configmaps")).await.version();
    let mut here =
        test_server.watch(&format!("{NS}/configmaps?watch=1&resourceVersion={start}")).await;
    let mut everywhere =
        test_server.watch(&format!("/api/v1/configmaps?watch=1&resourceVersion={start}")).await;
    let mut elsewhere = test_server
        .watch(&format!(
            "/api/v1/namespaces/kube-system/configmaps?watch=1&resourceVersion={start}"
        ))
        .await;
    test_server.map("a").await;
    test_server.merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": "1"}})).await.ok();
    test_server.merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": "1"}})).await.ok(); // changes nothing
    test_server.pod("other-kind", "n1").await;
    test_server.delete(&format!("{NS}/configmaps/a")).await.ok();
    let want = ["ADDED a", "MODIFIED a", "DELETED a"];
    assert_eq!(here.lines(3).await, want);
    assert_eq!(everywhere.lines(3).await, want);
    assert_eq!(elsewhere.ready().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn deleted_object_is_sent_with_its_last_state_and_a_newer_version() {
    let test_server = TestServer::new().await;
    let created = test_server
        .post(&format!("{NS}/configmaps"), json!({"metadata": {"name": "a"}, "data": {"k": "v"}}))
        .await;
    let mut watched = test_server
        .watch(&format!("{NS}/configmaps?watch=1&resourceVersion={}", created.version()))
        .await;
    test_server.delete(&format!("{NS}/configmaps/a")).await.ok();
    let event = watched.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["data"]["k"]), (&json!("DELETED"), &json!("v")));
    let version: u64 =
        event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    assert!(version > created.version().parse().unwrap());
}

#[tokio::test(start_paused = true)]
async fn selector_turns_changes_into_additions_and_deletions() {
    let test_server = TestServer::new().await;
    let start = test_server.get(&format!("{NS}/pods")).await.version();
    let path = format!("{NS}/pods?watch=1&resourceVersion={start}&labelSelector=tier");
    let mut watched = test_server.watch(&path).await;
    let label = |value: Value| json!({"metadata": {"labels": {"tier": value}}});
    test_server.pod("a", "n1").await;
    test_server.merge(&format!("{NS}/pods/a"), label(json!("x"))).await.ok();
    test_server.merge(&format!("{NS}/pods/a"), label(json!("y"))).await.ok();
    test_server.merge(&format!("{NS}/pods/a"), label(json!(null))).await.ok();
    test_server
        .merge(&format!("{NS}/pods/a"), json!({"metadata": {"labels": {"else": "1"}}}))
        .await
        .ok();
    test_server.merge(&format!("{NS}/pods/a"), label(json!("z"))).await.ok();
    test_server.delete(&format!("{NS}/pods/a?gracePeriodSeconds=0")).await.ok();
    assert_eq!(
        watched.lines(5).await,
        ["ADDED a", "MODIFIED a", "DELETED a", "ADDED a", "DELETED a"]
    );
    // the deleted one is shown as it was when it last matched
    let mut again = test_server.watch(&path).await;
    let events = [again.next().await, again.next().await, again.next().await].map(Option::unwrap);
    assert_eq!(events[2]["object"]["metadata"]["labels"]["tier"], "y");
    assert_ne!(
        events[2]["object"]["metadata"]["resourceVersion"],
        events[1]["object"]["metadata"]["resourceVersion"]
    );
}

#[tokio::test(start_paused = true)]
async fn bookmarks_are_sent_every_minute_on_request() {
    let test_server = TestServer::new().await;
    let start = test_server.get(&format!("{NS}/pods")).await.version();
    let path = format!("{NS}/pods?watch=1&resourceVersion={start}&timeoutSeconds=150");
    let mut watched = test_server.watch(&format!("{path}&allowWatchBookmarks=true")).await;
    let plain = test_server.watch(&path).await;
    let newer = test_server.map("another-kind").await.version();
    let began = tokio::time::Instant::now();
    let bookmark = watched.next().await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 60);
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "Pod");
    assert_eq!(
        bookmark["object"]["metadata"]["resourceVersion"],
        newer.as_str(),
        "it advances with changes of other objects"
    );
    for (case, at) in [("another minute later", 120), ("right before the end", 148)] {
        assert_eq!(watched.line().await, "BOOKMARK -");
        assert_eq!(began.elapsed().as_secs(), at, "{case}");
    }
    assert_eq!(watched.rest().await, Vec::<String>::new());
    assert_eq!(began.elapsed().as_secs(), 150, "the timeout");
    assert_eq!(plain.rest().await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn bookmark_after_the_initial_objects_has_the_form_that_clients_wait_for() {
    let test_server = TestServer::new().await;
    let mark = json!({"k8s.io/initial-events-end": "true"});
    let list = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (case, query) in [
        ("requested", list),
        ("a plain watch of everything", "resourceVersion=0"),
        ("a plain watch of the newest", ""),
    ] {
        let path = format!("{NS}/pods?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&{query}");
        let event = test_server.watch(&path).await.next().await.unwrap();
        let version = event["object"]["metadata"]["resourceVersion"].clone();
        assert!(version.is_string(), "{case}: {event}");
        let want = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {"resourceVersion": version, "annotations": mark},
            "spec": {"containers": null}, "status": {},
        });
        assert_eq!(event, json!({"type": "BOOKMARK", "object": want}), "{case}");
    }
    for path in [
        format!("{NS}/pods?watch=1&timeoutSeconds=1&{list}"),
        format!("{NS}/pods?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion=1"),
    ] {
        assert_eq!(test_server.watch(&path).await.rest().await, Vec::<String>::new(), "{path}");
    }
    let request = http::Request::get(format!(
        "{NS}/pods?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&{list}"
    ))
    .header("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
    .body(axum::body::Body::empty())
    .unwrap();
    let text = super::test_server::drained(test_server.raw(request).await.into_body()).await;
    let event: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let rows = event["object"]["rows"].as_array().unwrap();
    assert_eq!((event["type"].as_str(), rows.len()), (Some("BOOKMARK"), 1));
    assert_eq!(rows[0]["object"]["metadata"]["annotations"], mark);
}

#[tokio::test(start_paused = true)]
async fn watch_that_falls_behind_gets_expired() {
    let test_server = TestServer::with(Limits {
        log_entries: 20,
        log_entries_per_object: 0,
        ..Limits::default()
    })
    .await;
    let start = test_server.map("a").await.version();
    let path = format!("{NS}/configmaps?watch=1&resourceVersion={start}");
    let mut slow = test_server.watch(&path).await;
    for i in 0..25 {
        test_server
            .merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": i.to_string()}}))
            .await
            .ok();
    }
    // a watch that did not read meanwhile, and one that starts late, get the same error
    for watched in [&mut slow, &mut test_server.watch(&path).await] {
        let event = watched.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
        assert_eq!(event["object"]["reason"], "Expired");
        let message = event["object"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("too old resource version: {start} (")), "{message}");
        assert_eq!(watched.next().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn watch_supports_tables_and_metadata() {
    let test_server = TestServer::new().await;
    test_server.map("a").await;
    for (kind, want) in [("Table", "Table"), ("PartialObjectMetadata", "PartialObjectMetadata")] {
        let accept = format!("application/json;as={kind};v=v1;g=meta.k8s.io");
        let request = http::Request::get(format!("{NS}/configmaps?watch=1&timeoutSeconds=1"))
            .header("Accept", accept);
        let response = test_server.raw(request.body(axum::body::Body::empty()).unwrap()).await;
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let first: Value =
            serde_json::from_slice(body.split(|b| *b == b'\n').next().unwrap()).unwrap();
        assert_eq!(first["object"]["kind"], want);
    }
}

#[tokio::test(start_paused = true)]
async fn both_event_groups_show_the_same_events() {
    let test_server = TestServer::new().await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "m", "type": "Normal", "reportingComponent": "kubelet"});
    test_server.post(&format!("{NS}/events"), event).await.ok();
    let newer = "/apis/events.k8s.io/v1/namespaces/default/events";
    let listed = test_server.get(&format!("{newer}?fieldSelector=regarding.name%3Dp")).await.ok();
    assert_eq!(listed.body["kind"], "EventList");
    assert_eq!(listed.body["items"][0]["note"], "m");
    let one = test_server.get(&format!("{newer}/e")).await.ok();
    assert_eq!(
        (&one.body["apiVersion"], &one.body["regarding"]["name"]),
        (&json!("events.k8s.io/v1"), &json!("p"))
    );
    let patched = test_server.merge(&format!("{newer}/e"), json!({"note": "n"})).await.ok();
    assert_eq!(patched.body["note"], "n");
    assert_eq!(test_server.get(&format!("{NS}/events/e")).await.body["message"], "n");
    let watched =
        test_server.watch(&format!("{newer}?watch=1&timeoutSeconds=1")).await.next().await.unwrap();
    assert_eq!(watched["object"]["note"], "n");
}

#[tokio::test(start_paused = true)]
async fn stopping_the_server_ends_its_watches() {
    let test_server = TestServer::new().await;
    let mut watched = test_server.watch(&format!("{NS}/pods?watch=1")).await;
    test_server.server.stop();
    let end = tokio::time::timeout(Duration::from_secs(1), watched.next()).await;
    assert_eq!(end, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn selected_event_is_sent_after_many_unselected_ones() {
    let test_server = TestServer::new().await;
    let start = test_server.get(&format!("{NS}/configmaps")).await.version();
    let maps = format!("{NS}/configmaps?watch=1&resourceVersion={start}");
    let mut watched = test_server.watch(&format!("{maps}&labelSelector=mine")).await;
    // more than one batch, then the selected one, then nothing that would notify the watch
    for i in 0..40 {
        test_server.map(&format!("m{i}")).await;
    }
    let mine = json!({"metadata": {"name": "mine", "labels": {"mine": ""}}});
    test_server.post(&format!("{NS}/configmaps"), mine).await.ok();
    assert_eq!(watched.ready().await, ["ADDED mine"]);
    assert_eq!(watched.ready().await, Vec::<String>::new());
    // and one that starts late
    let mut late = test_server.watch(&format!("{maps}&fieldSelector=metadata.name%3Dmine")).await;
    assert_eq!(late.ready().await, ["ADDED mine"]);
}

#[tokio::test(start_paused = true)]
async fn watch_times_out_although_there_are_always_events() {
    let test_server = TestServer::new().await;
    let maps = format!("{NS}/configmaps");
    let mut watched = test_server.watch(&format!("{maps}?watch=1&timeoutSeconds=5")).await;
    for i in 0..100 {
        test_server.map(&format!("m{i}")).await;
        tokio::time::advance(Duration::from_secs(1)).await;
        if watched.line().await == "end" {
            return;
        }
    }
    panic!("the watch did not end");
}
