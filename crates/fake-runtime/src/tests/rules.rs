//! Rules for node agents, and the record of calls.

use super::*;

#[tokio::test(start_paused = true)]
async fn two_running_instances_of_a_container_are_reported() {
    let bed = bed();
    let (sandbox, first) = bed.running("web").await;
    let second = bed.try_create(&sandbox, "web", 1).await.unwrap();
    assert_eq!(bed.fake.violations(), []);
    bed.client.start_container(&second).await.unwrap();
    let [Violation::TwoRunning { container, ids, .. }] = &bed.fake.violations()[..] else {
        panic!("{:?}", bed.fake.violations())
    };
    assert_eq!((container.as_str(), ids), ("app", &[first.to_string(), second.to_string()]));
}

#[tokio::test(start_paused = true)]
async fn a_second_sandbox_is_reported_unless_the_first_is_being_stopped() {
    let bed = bed();
    let first = bed.sandbox("web").await;
    bed.fake.fail(Rule::on(Rpc::StopPodSandbox, Fault::Delay(seconds(3))));
    let client = bed.client.clone();
    let stop = tokio::spawn(async move { client.stop_sandbox(&first).await });
    tokio::time::sleep(seconds(1)).await;
    let run = async |attempt| bed.client.run_sandbox(sandbox_config("web", attempt), "").await;
    run(1).await.unwrap();
    stop.await.unwrap().unwrap();
    assert_eq!(bed.fake.violations(), []);
    run(2).await.unwrap();
    assert!(matches!(bed.fake.violations()[..], [Violation::TwoReady { .. }]));
}

#[tokio::test(start_paused = true)]
async fn overlapping_calls_and_a_short_grace_are_reported() {
    let bed = bed();
    bed.fake.script(IMAGE, Script::forever().ignoring_sigterm());
    let (sandbox, container) = bed.running("web").await;
    let client = bed.client.clone();
    let stop = tokio::spawn(async move { client.stop_container(&container, seconds(1)).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    bed.client.stop_sandbox(&sandbox).await.unwrap();
    stop.await.unwrap().unwrap();
    let violations = bed.fake.violations();
    let [Violation::ShortGrace { seconds: 1, .. }, Violation::Overlap { under_way, made, .. }] =
        &violations[..]
    else {
        panic!("{violations:?}")
    };
    assert_eq!((under_way.rpc, made.rpc), (Rpc::StopContainer, Rpc::StopPodSandbox));
}

#[tokio::test(start_paused = true)]
async fn retry_after_a_timeout_is_no_overlap() {
    let bed = bed();
    let (_, container) = bed.running("web").await;
    bed.fake.fail(Rule::on(Rpc::StopContainer, Fault::Hang).first(3));
    for _ in 0..3 {
        let late = bed.client.stop_container(&container, seconds(30)).await.unwrap_err();
        assert_eq!(late.kind, Kind::TimedOut);
    }
    bed.client.stop_container(&container, seconds(30)).await.unwrap();
    assert_eq!(bed.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn every_call_is_recorded() {
    let bed = bed();
    let (sandbox, _) = bed.running("web").await;
    let calls = bed.fake.calls();
    let told: Vec<_> = calls
        .iter()
        .map(|call| (call.rpc, call.about.is_of("web"), call.about.container.as_deref()))
        .collect();
    let want = [
        (Rpc::RunPodSandbox, true, None),
        (Rpc::CreateContainer, true, Some("app")),
        (Rpc::StartContainer, true, Some("app")),
    ];
    assert_eq!(told, want);
    assert!(calls.iter().all(|call| call.end == Some((Duration::ZERO, Outcome::Done))));

    bed.fake.clear_calls();
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(bed.fake.calls(), [], "nothing is called when nothing happens");
    bed.fake.fail(Rule::on(Rpc::StopPodSandbox, Fault::Hang));
    bed.client.stop_sandbox(&sandbox).await.unwrap_err();
    let [call] = &bed.fake.calls()[..] else { panic!("{:?}", bed.fake.calls()) };
    assert_eq!(call.at, seconds(60));
    let (ended, outcome) = call.end.unwrap();
    assert_eq!((ended.as_secs(), outcome), (70, Outcome::Abandoned));
    assert_eq!(
        call.to_string().split(':').next(),
        Some("#3 60s StopPodSandbox default/web [Hang]")
    );
    assert_eq!(bed.fake.count(Rpc::StopPodSandbox), 1);
}

#[tokio::test(start_paused = true)]
async fn runtime_ends_with_its_last_handle() {
    let Bed { fake, client } = bed();
    let same = fake.clone();
    drop(fake);
    client.version().await.unwrap();
    drop(same);
    assert_eq!(client.version().await.unwrap_err().kind, Kind::Unavailable);
}
