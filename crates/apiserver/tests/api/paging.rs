use std::collections::BTreeSet;

use podwright_apiserver::Limits;
use serde_json::json;

use super::test_server::{NS, TestServer};

async fn five_maps() -> TestServer {
    let test_server = TestServer::new().await;
    for name in ["a", "b", "c", "d"] {
        test_server.map(name).await;
    }
    test_server // and kube-root-ca.crt
}

#[tokio::test(start_paused = true)]
async fn pages_add_up_to_the_list() {
    let test_server = five_maps().await;
    for (limit, sizes) in [(1, vec![1; 5]), (2, vec![2, 2, 1]), (5, vec![5]), (9, vec![5])] {
        let mut token = String::new();
        let (mut names, mut found) = (Vec::new(), Vec::new());
        let mut versions = BTreeSet::new();
        loop {
            let page = test_server
                .get(&format!("{NS}/configmaps?limit={limit}&continue={token}"))
                .await
                .ok();
            names.extend(page.names().into_iter().map(str::to_owned));
            found.push(page.names().len());
            versions.insert(page.version());
            let left = page.body["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
            assert_eq!(names.len() + usize::try_from(left).unwrap(), 5, "limit {limit}");
            match page.body["metadata"]["continue"].as_str() {
                Some(next) => token = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(names, ["a", "b", "c", "d", "kube-root-ca.crt"], "limit {limit}");
        assert_eq!(found, sizes, "limit {limit}");
        assert_eq!(versions.len(), 1, "one version for the whole list");
    }
}

#[tokio::test(start_paused = true)]
async fn page_is_filled_with_selected_objects() {
    let test_server = five_maps().await;
    test_server
        .merge(&format!("{NS}/configmaps/a"), json!({"metadata": {"labels": {"x": "1"}}}))
        .await
        .ok();
    test_server
        .merge(&format!("{NS}/configmaps/d"), json!({"metadata": {"labels": {"x": "1"}}}))
        .await
        .ok();
    let page = test_server.get(&format!("{NS}/configmaps?limit=1&labelSelector=x")).await.ok();
    assert_eq!(page.names(), ["a"]);
    assert_eq!(page.body["metadata"].get("remainingItemCount"), None);
    let token = page.body["metadata"]["continue"].as_str().unwrap();
    let page = test_server
        .get(&format!("{NS}/configmaps?limit=1&labelSelector=x&continue={token}"))
        .await
        .ok();
    assert_eq!(page.names(), ["d"]);
    assert_eq!(page.body["metadata"].get("continue"), None);
}

#[tokio::test(start_paused = true)]
async fn paged_list_and_a_watch_from_it_miss_nothing() {
    // given a first page, when objects before and after it are created and deleted
    let test_server = five_maps().await;
    let first = test_server.get(&format!("{NS}/configmaps?limit=2")).await.ok();
    test_server.delete(&format!("{NS}/configmaps/a")).await.ok();
    test_server.delete(&format!("{NS}/configmaps/c")).await.ok();
    test_server.map("aa").await;
    test_server.map("e").await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = test_server.get(&format!("{NS}/configmaps?continue={token}")).await.ok();
    assert_eq!(second.version(), first.version());
    let mut known: BTreeSet<String> =
        first.names().into_iter().chain(second.names()).map(str::to_owned).collect();
    // then a watch from the list's version ends with the current objects
    let path =
        format!("{NS}/configmaps?watch=1&timeoutSeconds=1&resourceVersion={}", second.version());
    for line in test_server.watch(&path).await.rest().await {
        let (kind, name) = line.split_once(' ').unwrap();
        if kind == "DELETED" {
            known.remove(name)
        } else {
            known.insert(name.to_owned())
        };
    }
    let now = test_server.get(&format!("{NS}/configmaps")).await;
    assert_eq!(known.iter().map(String::as_str).collect::<Vec<_>>(), now.names());
}

#[tokio::test(start_paused = true)]
async fn list_can_be_continued_only_while_its_history_is_kept() {
    let test_server = TestServer::with(Limits {
        log_entries: 10,
        log_entries_per_object: 0,
        ..Limits::default()
    })
    .await;
    test_server.map("a").await;
    let first = test_server.get(&format!("{NS}/configmaps?limit=1")).await.ok();
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    for i in 0..15 {
        test_server
            .merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": i.to_string()}}))
            .await
            .ok();
    }
    let refused = test_server.get(&format!("{NS}/configmaps?limit=1&continue={token}")).await;
    assert_eq!((refused.code, &refused.body["reason"]), (410, &json!("Expired")));
}

#[tokio::test(start_paused = true)]
async fn resource_versions_are_honoured_in_lists_and_gets() {
    let test_server = TestServer::new().await;
    let first = test_server.map("a").await.version();
    let second = test_server.map("b").await.version();
    test_server.pod("other-kind", "").await;
    for (query, code) in [
        (String::new(), 200),
        ("?resourceVersion=0".to_owned(), 200),
        (format!("?resourceVersion={first}"), 200),
        (format!("?resourceVersion={first}&resourceVersionMatch=NotOlderThan"), 200),
        (format!("?resourceVersion={second}&resourceVersionMatch=Exact"), 200),
        (format!("?resourceVersion={first}&resourceVersionMatch=Exact"), 410),
        ("?resourceVersion=999999&resourceVersionMatch=NotOlderThan".to_owned(), 504),
        ("?resourceVersion=x".to_owned(), 400),
        ("?limit=x".to_owned(), 400),
        ("?fieldSelector=spec.x%3Dy".to_owned(), 400),
        ("?labelSelector=a%20b".to_owned(), 400),
    ] {
        let response = test_server.get(&format!("{NS}/configmaps{query}")).await;
        assert_eq!(response.code, code, "{query}: {}", response.body);
    }
    assert_eq!(
        test_server.get(&format!("{NS}/configmaps/a?resourceVersion=999999")).await.code,
        504
    );
}
