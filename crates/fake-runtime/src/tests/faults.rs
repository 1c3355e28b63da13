//! Faults: what the client gets, and the state they leave in the runtime.

use tokio::time::Instant;
use tonic::Code;

use super::*;

/// Result for the caller.
enum Felt {
    Fine,
    Failed(Kind),
    /// The connection is gone.
    Lost,
}

#[tokio::test(start_paused = true)]
async fn each_fault_has_its_effect_on_a_sandbox() {
    let exhausted = || (Code::ResourceExhausted, "too many".to_owned());
    let (code, words) = exhausted();
    // RunPodSandbox has twice the deadline of other calls: 20 s here.
    for (case, fault, felt, took, made) in [
        ("error", Fault::Error(code, words.clone()), Felt::Failed(Kind::Exhausted), 0, 0),
        ("done but error", Fault::DoneButError(code, words), Felt::Failed(Kind::Exhausted), 0, 1),
        ("delay", Fault::Delay(seconds(7)), Felt::Fine, 7, 1),
        (
            "delay beyond the deadline",
            Fault::Delay(seconds(70)),
            Felt::Failed(Kind::TimedOut),
            20,
            0,
        ),
        ("hang", Fault::Hang, Felt::Failed(Kind::TimedOut), 20, 0),
        ("late, before the deadline", Fault::Late(seconds(5)), Felt::Failed(Kind::TimedOut), 20, 1),
        ("late, after the deadline", Fault::Late(seconds(25)), Felt::Failed(Kind::TimedOut), 20, 1),
        ("disconnect", Fault::Disconnect, Felt::Lost, 0, 0),
        ("done but disconnect", Fault::DoneButDisconnect, Felt::Lost, 0, 1),
        ("twice", Fault::Twice, Felt::Failed(Kind::AlreadyExists), 0, 1),
        ("overtaken by none", Fault::Overtaken(seconds(7)), Felt::Fine, 7, 1),
    ] {
        let bed = bed();
        bed.fake.fail(Rule::on(Rpc::RunPodSandbox, fault).pod("web").nth(1));
        let began = Instant::now();
        let result = bed.client.run_sandbox(sandbox_config("web", 0), "").await;
        let as_said = match (&felt, &result) {
            (Felt::Fine, Ok(_)) => true,
            (Felt::Failed(kind), Err(error)) => error.kind == *kind,
            (Felt::Lost, Err(error)) => is_lost(error),
            (Felt::Fine, Err(_)) | (Felt::Failed(_) | Felt::Lost, Ok(_)) => false,
        };
        assert!(as_said, "{case}: {result:?}");
        assert_eq!(began.elapsed().as_secs(), took, "{case}");
        tokio::time::sleep(seconds(100)).await;
        assert_eq!(bed.fake.snapshot().sandboxes_of("web").count(), made, "{case}");
        // In any case the name is free exactly if nothing was created.
        let again = bed.client.run_sandbox(sandbox_config("web", 0), "").await;
        assert_eq!(again.is_ok(), made == 0, "{case}");
        assert_eq!(bed.fake.violations(), [], "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn overtaken_response_comes_next_with_the_old_state() {
    let bed = bed();
    bed.fake.fail(Rule::on(Rpc::ListPodSandbox, Fault::Overtaken(seconds(8))).nth(1));
    let client = bed.client.clone();
    let first = tokio::spawn(async move { client.list_sandboxes(None).await });
    tokio::time::sleep(seconds(1)).await;
    bed.sandbox("web").await;
    tokio::time::sleep(seconds(1)).await;
    assert!(!first.is_finished(), "another call does not count");
    let began = Instant::now();
    assert_eq!(bed.client.list_sandboxes(None).await.unwrap().len(), 1);
    assert_eq!(first.await.unwrap().unwrap().len(), 0);
    assert_eq!(began.elapsed(), Duration::ZERO);
    let record = bed.fake.calls();
    let record = record.iter().filter(|call| call.rpc == Rpc::ListPodSandbox);
    let faults: Vec<bool> = record.map(|call| call.fault.is_some()).collect();
    assert_eq!(faults, [true, false], "what went wrong is on record");
}

#[tokio::test(start_paused = true)]
async fn timed_out_call_keeps_its_name_until_it_ends() {
    let bed = bed();
    bed.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Late(seconds(60))).nth(1));
    let run = async || bed.client.run_sandbox(sandbox_config("web", 0), "").await;
    let late = run().await.unwrap_err();
    assert_eq!(late.kind, Kind::TimedOut);
    let text = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    assert_eq!(late.rpc_text(), text);
    assert_eq!(bed.fake.snapshot().sandboxes_of("web").count(), 0, "nothing is visible");
    assert_eq!(run().await.unwrap_err().kind, Kind::AlreadyExists);
    bed.fake.wait_for(|seen| seen.sandboxes_of("web").count() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn restart_cancels_delayed_work() {
    let bed = bed();
    bed.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Late(Duration::MAX)).nth(1));
    let run = async || bed.client.run_sandbox(sandbox_config("web", 0), "").await;
    assert_eq!(run().await.unwrap_err().kind, Kind::TimedOut);
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(run().await.unwrap_err().kind, Kind::AlreadyExists, "an hour later");
    bed.fake.restart();
    tokio::time::sleep(seconds(1)).await;
    run().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn hung_call_does_not_block_other_calls() {
    let bed = bed();
    bed.fake.fail(Rule::on_every_call(Fault::Hang).pod("stuck"));
    let client = bed.client.clone();
    let stuck =
        tokio::spawn(async move { client.run_sandbox(sandbox_config("stuck", 0), "").await });
    let began = Instant::now();
    bed.running("web").await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(stuck.await.unwrap().unwrap_err().kind, Kind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn every_call_can_be_refused_and_works_after_healing() {
    let bed = bed();
    let (sandbox, container) = bed.running("web").await;
    bed.fake.fail(Rule::on_every_call(Fault::Error(Code::Internal, "broken".into())));
    let client = &bed.client;
    let failures = [
        client.version().await.err(),
        client.status().await.err(),
        client.cgroup_driver().await.err(),
        client.set_pod_cidr("10.0.0.0/24").await.err(),
        client.list_pods().await.err(),
        client.sandbox_status(&sandbox).await.err(),
        client.container_status(&container, sandbox.clone()).await.err(),
        client.run_sandbox(sandbox_config("db", 0), "").await.err(),
        client.stop_sandbox(&sandbox).await.err(),
        client.remove_sandbox(&sandbox).await.err(),
        bed.try_create(&sandbox, "web", 1).await.err(),
        client.start_container(&container).await.err(),
        client.stop_container(&container, seconds(2)).await.err(),
        client.remove_container(&container).await.err(),
        client.reopen_log(&container).await.err(),
        client.exec(&container, vec!["true".into()], None).await.err(),
        client.image_status(IMAGE).await.err(),
        client.list_images().await.err(),
        client.remove_image(IMAGE).await.err(),
        client.image_fs_info().await.err(),
        client.hints("containerd").await.err(),
    ];
    for failure in failures {
        let failure = failure.unwrap();
        assert_eq!((failure.kind, failure.message.as_str()), (Kind::Other, "broken"), "{failure}");
    }
    bed.fake.heal();
    assert_eq!(bed.fake.snapshot().running("web"), ["app"], "and nothing happened");
    client.version().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn killed_agents_unfinished_calls_are_rolled_back() {
    let bed = bed();
    bed.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Delay(seconds(5))).nth(1));
    let client = bed.client.clone();
    let run = tokio::spawn(async move { client.run_sandbox(sandbox_config("web", 0), "").await });
    tokio::time::sleep(seconds(1)).await;
    bed.fake.hang_up();
    // The next agent has a connection of its own.
    let next = bed.fake.client();
    assert!(is_lost(&run.await.unwrap().unwrap_err()));
    next.run_sandbox(sandbox_config("web", 0), "").await.unwrap();
    tokio::time::sleep(seconds(60)).await;
    assert_eq!(bed.fake.snapshot().sandboxes_of("web").count(), 1);
    assert_eq!(bed.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn same_seed_gives_the_same_run() {
    let play = async |seed| {
        let bed = bed_with(FakeOptions { seed, ..Default::default() });
        bed.fake.fail(Rule::on_every_call(Fault::Error(Code::Internal, "no".into())).chance(0.3));
        let mut outcomes = Vec::new();
        for n in 0..20 {
            let pod = format!("p{n}");
            outcomes.push(bed.client.run_sandbox(sandbox_config(&pod, 0), "").await.is_ok());
        }
        let ids: Vec<String> = bed.fake.snapshot().sandboxes.into_iter().map(|s| s.id).collect();
        (outcomes, ids)
    };
    assert_eq!(play(1).await, play(1).await);
    assert_ne!(play(1).await, play(2).await);
}
