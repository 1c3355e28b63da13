use std::collections::BTreeSet;

use podwright_apiserver::Limits;
use serde_json::json;

use super::world::{NS, World};

async fn five_maps() -> World {
    let world = World::new().await;
    for name in ["a", "b", "c", "d"] {
        world.map(name).await;
    }
    world // and kube-root-ca.crt
}

#[tokio::test(start_paused = true)]
async fn pages_together_are_the_list() {
    let world = five_maps().await;
    for (limit, sizes) in [(1, vec![1; 5]), (2, vec![2, 2, 1]), (5, vec![5]), (9, vec![5])] {
        let mut token = String::new();
        let (mut names, mut found) = (Vec::new(), Vec::new());
        let mut versions = BTreeSet::new();
        loop {
            let page =
                world.get(&format!("{NS}/configmaps?limit={limit}&continue={token}")).await.ok();
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
async fn a_page_is_filled_with_what_the_selector_leaves() {
    let world = five_maps().await;
    world
        .merge(&format!("{NS}/configmaps/a"), json!({"metadata": {"labels": {"x": "1"}}}))
        .await
        .ok();
    world
        .merge(&format!("{NS}/configmaps/d"), json!({"metadata": {"labels": {"x": "1"}}}))
        .await
        .ok();
    let page = world.get(&format!("{NS}/configmaps?limit=1&labelSelector=x")).await.ok();
    assert_eq!(page.names(), ["a"]);
    assert_eq!(page.body["metadata"].get("remainingItemCount"), None);
    let token = page.body["metadata"]["continue"].as_str().unwrap();
    let page =
        world.get(&format!("{NS}/configmaps?limit=1&labelSelector=x&continue={token}")).await.ok();
    assert_eq!(page.names(), ["d"]);
    assert_eq!(page.body["metadata"].get("continue"), None);
}

#[tokio::test(start_paused = true)]
async fn a_list_in_pages_and_a_watch_from_it_miss_nothing() {
    // given a first page, when objects before and behind it come and go
    let world = five_maps().await;
    let first = world.get(&format!("{NS}/configmaps?limit=2")).await.ok();
    world.delete(&format!("{NS}/configmaps/a")).await.ok();
    world.delete(&format!("{NS}/configmaps/c")).await.ok();
    world.map("aa").await;
    world.map("e").await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = world.get(&format!("{NS}/configmaps?continue={token}")).await.ok();
    assert_eq!(second.version(), first.version());
    let mut known: BTreeSet<String> =
        first.names().into_iter().chain(second.names()).map(str::to_owned).collect();
    // then whoever watches from the list's version ends with what there is
    let path =
        format!("{NS}/configmaps?watch=1&timeoutSeconds=1&resourceVersion={}", second.version());
    for line in world.watch(&path).await.rest().await {
        let (kind, name) = line.split_once(' ').unwrap();
        if kind == "DELETED" {
            known.remove(name)
        } else {
            known.insert(name.to_owned())
        };
    }
    let now = world.get(&format!("{NS}/configmaps")).await;
    assert_eq!(known.iter().map(String::as_str).collect::<Vec<_>>(), now.names());
}

#[tokio::test(start_paused = true)]
async fn a_list_can_be_continued_only_while_its_changes_are_known() {
    let world = World::with(Limits { log_entries: 10, ..Limits::default() }).await;
    world.map("a").await;
    let first = world.get(&format!("{NS}/configmaps?limit=1")).await.ok();
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    for i in 0..15 {
        world
            .merge(&format!("{NS}/configmaps/a"), json!({"data": {"k": i.to_string()}}))
            .await
            .ok();
    }
    let refused = world.get(&format!("{NS}/configmaps?limit=1&continue={token}")).await;
    assert_eq!((refused.code, &refused.body["reason"]), (410, &json!("Expired")));
}

#[tokio::test(start_paused = true)]
async fn versions_are_honoured_in_lists_and_reads() {
    let world = World::new().await;
    let first = world.map("a").await.version();
    let second = world.map("b").await.version();
    world.pod("other-kind", "").await;
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
        let answer = world.get(&format!("{NS}/configmaps{query}")).await;
        assert_eq!(answer.code, code, "{query}: {}", answer.body);
    }
    assert_eq!(world.get(&format!("{NS}/configmaps/a?resourceVersion=999999")).await.code, 504);
}
