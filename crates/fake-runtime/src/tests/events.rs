//! Event streams, with and without faults.

use super::*;
use podwright_cri::Hint;

/// All hints during `during`; the stream is opened before, and closed after it.
async fn collect_hints(bed: &Bed, during: impl AsyncFnOnce()) -> Vec<Hint> {
    let client = bed.fake.client();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let listener = tokio::spawn(async move {
        let mut hints = client.hints("containerd").await.unwrap();
        while let Some(Ok(hint)) = hints.next().await {
            let _ = sender.send(hint);
        }
    });
    // The stream opens only with the first event, so there is no sign of when it is ready.
    tokio::time::sleep(seconds(1)).await;
    during().await;
    tokio::time::sleep(seconds(30)).await;
    listener.abort();
    let mut hints = Vec::new();
    while let Some(hint) = receiver.recv().await {
        hints.push(hint);
    }
    hints
}

fn ids(hints: &[Hint]) -> Vec<&str> {
    let ids = hints.iter().map(|hint| match hint {
        Hint::Id(id) | Hint::Ended(id) => id.as_str(),
        Hint::Pod(uid) => uid.as_str(),
    });
    ids.collect()
}

#[tokio::test(start_paused = true)]
async fn containerd_reports_starts_and_exits_but_not_probes() {
    let bed = bed();
    let mut made = None;
    let hints = collect_hints(&bed, async || {
        let (sandbox, container) = bed.running("web").await;
        bed.client.exec(&container, vec!["true".into()], None).await.unwrap();
        bed.fake.kill_container("web", "app", 1);
        bed.client.stop_sandbox(&sandbox).await.unwrap();
        made = Some((sandbox, container));
    })
    .await;
    let (sandbox, container) = made.unwrap();
    let want = [sandbox.as_str(), container.as_str(), container.as_str(), sandbox.as_str()];
    assert_eq!(ids(&hints), want);
    assert_eq!(bed.fake.count(Rpc::Subscribe), 1);
}

#[tokio::test(start_paused = true)]
async fn newer_runtime_reports_pods_by_uid() {
    let options = FakeOptions { features: Features::containerd_2(), ..Default::default() };
    let bed = bed_with(options);
    let hints = collect_hints(&bed, async || {
        let (sandbox, _) = bed.running("web").await;
        bed.client.remove_sandbox(&sandbox).await.unwrap();
    })
    .await;
    // Sandbox and container: created, started, stopped, deleted.
    assert_eq!(ids(&hints), ["uid-web"; 8]);
    assert_eq!(bed.fake.count(Rpc::Subscribe), 0);
}

#[tokio::test(start_paused = true)]
async fn events_are_dropped_duplicated_or_overtaken() {
    for (case, rule, want) in [
        ("undisturbed", None, vec!["s", "c", "d"]),
        ("dropped", Some(EventFault::Drop), vec!["s", "d"]),
        ("doubled", Some(EventFault::Duplicate), vec!["s", "c", "c", "d"]),
        ("overtaken", Some(EventFault::Late(seconds(5))), vec!["s", "d", "c"]),
    ] {
        let bed = bed();
        let (_, dying) = bed.running("db").await;
        if let Some(fault) = rule {
            bed.fake.disturb_events(Rule::on_events(fault).pod("web").container("app"));
        }
        let mut made = None;
        let hints = collect_hints(&bed, async || {
            made = Some(bed.running("web").await);
            bed.fake.kill_container("db", "app", 0);
        })
        .await;
        let (sandbox, container) = made.unwrap();
        let names = [(sandbox.as_str(), "s"), (container.as_str(), "c"), (dying.as_str(), "d")];
        let told = ids(&hints);
        let told: Vec<&str> =
            told.iter().map(|id| names.iter().find(|(known, _)| known == id).unwrap().1).collect();
        assert_eq!(told, want, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn restart_ends_the_stream_and_missed_events_are_not_replayed() {
    let bed = bed();
    let client = bed.fake.client();
    let listener = tokio::spawn(async move {
        let mut hints = client.hints("containerd").await.unwrap();
        let mut received = Vec::new();
        loop {
            match hints.next().await {
                Some(Ok(hint)) => received.push(hint),
                ended => return (received, ended.map(|end| end.unwrap_err().kind)),
            }
        }
    });
    tokio::time::sleep(seconds(1)).await;
    bed.running("web").await;
    tokio::time::sleep(seconds(1)).await;
    bed.fake.go_down();
    bed.fake.kill_container("web", "app", 1);
    bed.fake.come_up();
    let (received, ended) = listener.await.unwrap();
    assert_eq!(received.len(), 2);
    assert!(matches!(ended, Some(Kind::Unavailable | Kind::Other | Kind::TimedOut)), "{ended:?}");
}
