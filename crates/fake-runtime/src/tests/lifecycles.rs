//! Lifecycles of sandboxes and containers: names, starts, stops, restarts.

use podwright_core::observed::State;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn sandbox_name_is_reserved_from_creation_to_removal() {
    let bed = bed();
    bed.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Delay(seconds(5))).nth(1));
    let slow = {
        let client = bed.client.clone();
        tokio::spawn(async move { client.run_sandbox(sandbox_config("web", 0), "").await })
    };
    tokio::time::sleep(seconds(1)).await;
    let run = async |attempt| bed.client.run_sandbox(sandbox_config("web", attempt), "").await;
    let refused = run(0).await.unwrap_err();
    assert_eq!(refused.kind, Kind::AlreadyExists);
    let words = "failed to reserve sandbox name \"web_default_uid-web_0\": \
                 name \"web_default_uid-web_0\" is reserved for ";
    assert!(refused.message.starts_with(words), "{refused}");
    let first = slow.await.unwrap().unwrap();
    assert!(refused.message.contains(first.as_str()), "{refused}");

    bed.client.stop_sandbox(&first).await.unwrap();
    assert_eq!(run(0).await.unwrap_err().kind, Kind::AlreadyExists, "stopped, not removed");
    bed.client.remove_sandbox(&first).await.unwrap();
    run(0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn container_name_is_reserved_until_removal() {
    let bed = bed();
    let sandbox = bed.sandbox("web").await;
    let first = bed.create(&sandbox, "web").await;
    let refused = bed.try_create(&sandbox, "web", 0).await.unwrap_err();
    assert_eq!(refused.kind, Kind::AlreadyExists);
    assert!(refused.message.contains("\"app_web_default_uid-web_0\""), "{refused}");
    bed.try_create(&sandbox, "web", 1).await.unwrap();
    bed.client.remove_container(&first).await.unwrap();
    bed.try_create(&sandbox, "web", 0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_or_started_in_a_sandbox_that_is_not_ready() {
    let bed = bed();
    let sandbox = bed.sandbox("web").await;
    let container = bed.create(&sandbox, "web").await;
    bed.client.stop_sandbox(&sandbox).await.unwrap();
    let refused = bed.try_create(&sandbox, "web", 1).await.unwrap_err();
    assert!(refused.message.starts_with("failed to get sandbox container task"), "{refused}");
    let refused = bed.client.start_container(&container).await.unwrap_err();
    assert!(refused.message.ends_with("is not running"), "{refused}");
    assert_eq!(bed.state("web"), Some(ContainerState::Exited { code: 128 }));
}

#[tokio::test(start_paused = true)]
async fn a_container_without_its_image_cannot_be_created() {
    let bed = bed();
    let sandbox = bed.sandbox("web").await;
    bed.fake.images().remove(IMAGE);
    let refused = bed.try_create(&sandbox, "web", 0).await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotFound);
    bed.fake.images().add(IMAGE).unwrap();
    bed.try_create(&sandbox, "web", 0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_container_starts_once() {
    let bed = bed();
    let (_, container) = bed.running("web").await;
    let again = bed.client.start_container(&container).await.unwrap_err();
    assert!(again.message.ends_with("container is in CONTAINER_RUNNING state"), "{again}");
    bed.fake.kill_container("web", "app", 1);
    let again = bed.client.start_container(&container).await.unwrap_err();
    assert!(again.message.ends_with("container is in CONTAINER_EXITED state"), "{again}");
}

#[tokio::test(start_paused = true)]
async fn a_program_that_cannot_be_started_leaves_an_exited_container() {
    let bed = bed();
    let why = "exec: \"nope\": executable file not found in $PATH";
    bed.fake.script(IMAGE, Script::refuses_to_start(why).then(Script::forever()));
    let sandbox = bed.sandbox("web").await;
    let container = bed.create(&sandbox, "web").await;
    let refused = bed.client.start_container(&container).await.unwrap_err();
    assert!(refused.message.ends_with(why), "{refused}");
    let seen = bed.client.container_status(&container, sandbox.clone()).await.unwrap();
    let State::Exited(exit) = seen.instance.state else { panic!("{:?}", seen.instance.state) };
    assert_eq!((exit.code, exit.reason.as_str()), (128, "StartError"));
    assert!(exit.message.ends_with(why), "{}", exit.message);
    // The next attempt is the script's next run.
    let next = bed.try_create(&sandbox, "web", 1).await.unwrap();
    bed.client.start_container(&next).await.unwrap();
    assert_eq!(bed.state("web"), Some(ContainerState::Running));
}

#[tokio::test(start_paused = true)]
async fn a_container_that_crashes_once_runs_when_started_again() {
    let bed = bed();
    bed.fake.script(IMAGE, Script::crashes_once(seconds(1)));
    let (sandbox, _) = bed.running("web").await;
    let end = bed.fake.wait_for(|seen| seen.running("web").is_empty()).await;
    assert_eq!(end.state("web", "app"), Some(ContainerState::Exited { code: 1 }));
    let second = bed.try_create(&sandbox, "web", 1).await.unwrap();
    bed.client.start_container(&second).await.unwrap();
    tokio::time::sleep(seconds(3600)).await;
    assert_eq!(bed.state("web"), Some(ContainerState::Running));
}

#[tokio::test(start_paused = true)]
async fn scripts_can_be_chosen_by_configuration() {
    let bed = bed();
    bed.fake.choose_scripts(|config| {
        (config.args == ["fail"]).then(|| Script::exits(9, Duration::ZERO))
    });
    let sandbox = bed.sandbox("web").await;
    for (attempt, args, want) in [
        (0, vec!["fail".to_owned()], ContainerState::Exited { code: 9 }),
        (1, vec![], ContainerState::Running),
    ] {
        let config = cri::ContainerConfig { args, ..container_config("web", "app", attempt) };
        let pod = sandbox_config("web", 0);
        let id = bed.client.create_container(&sandbox, config, pod).await.unwrap();
        bed.client.start_container(&id).await.unwrap();
        bed.fake.wait_for(|seen| seen.state("web", "app") == Some(want)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stop_sends_sigterm_waits_and_kills() {
    let exits = |after, code| OnTerm::Exits { after: seconds(after), code };
    for (case, on_term, grace, took, code) in [
        ("obeys at once", exits(0, 0), 30, 0, 0),
        ("needs a while", exits(5, 3), 30, 5, 3),
        ("needs too long", exits(60, 0), 30, 30, 137),
        ("is given longer than the wire can say", exits(5, 3), i64::MAX.unsigned_abs(), 5, 3),
        ("ignores", OnTerm::Ignores, 30, 30, 137),
        ("is killed at once", exits(5, 0), 0, 0, 137),
    ] {
        let bed = bed();
        bed.fake.script(IMAGE, Script::forever().on_sigterm(on_term));
        let (_, container) = bed.running("web").await;
        let began = Instant::now();
        bed.client.stop_container(&container, seconds(grace)).await.unwrap();
        assert_eq!(began.elapsed().as_secs(), took, "{case}");
        assert_eq!(bed.state("web"), Some(ContainerState::Exited { code }), "{case}");
        // A second stop changes nothing.
        bed.client.stop_container(&container, seconds(grace)).await.unwrap();
        assert_eq!(bed.state("web"), Some(ContainerState::Exited { code }), "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn second_stop_with_a_shorter_grace_period_applies() {
    let bed = bed();
    bed.fake.script(IMAGE, Script::forever().ignoring_sigterm());
    let (_, container) = bed.running("web").await;
    let began = Instant::now();
    let (client, id) = (bed.client.clone(), container.clone());
    let patient = tokio::spawn(async move { client.stop_container(&id, seconds(600)).await });
    tokio::time::sleep(seconds(1)).await;
    bed.client.stop_container(&container, seconds(2)).await.unwrap();
    patient.await.unwrap().unwrap();
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(bed.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn stopping_a_sandbox_kills_its_containers_without_sigterm() {
    let bed = bed();
    bed.fake
        .script(IMAGE, Script::forever().on_sigterm(OnTerm::Exits { after: seconds(1), code: 0 }));
    let (sandbox, _) = bed.running("web").await;
    bed.client.stop_sandbox(&sandbox).await.unwrap();
    assert_eq!(bed.state("web"), Some(ContainerState::Exited { code: 137 }));
    assert!(!bed.client.sandbox_status(&sandbox).await.unwrap().ready);
}

#[tokio::test(start_paused = true)]
async fn removing_a_running_container_kills_it() {
    let bed = bed();
    let (_, container) = bed.running("web").await;
    bed.client.remove_container(&container).await.unwrap();
    assert_eq!(bed.state("web"), None);
}

#[tokio::test(start_paused = true)]
async fn container_with_lost_state_is_unknown_until_stopped() {
    let bed = bed();
    let (_, container) = bed.running("web").await;
    assert!(bed.fake.lose_state_of("web", "app"));
    assert_eq!(bed.observe("web").await.0.instances[0].state, State::Unknown);
    bed.fake.script(IMAGE, Script::forever());
    bed.client.stop_container(&container, seconds(2)).await.unwrap();
    assert_eq!(bed.state("web"), Some(ContainerState::Exited { code: 0 }));
}

#[tokio::test(start_paused = true)]
async fn tests_can_end_and_remove_objects_without_the_agent() {
    let bed = bed();
    let (sandbox, _) = bed.running("web").await;
    assert!(bed.fake.lose_addresses("web"));
    assert_eq!(bed.client.sandbox_status(&sandbox).await.unwrap().ips, Some(vec![]));
    assert!(bed.fake.kill_sandbox("default/web"));
    assert!(!bed.client.sandbox_status(&sandbox).await.unwrap().ready);
    assert_eq!(bed.fake.snapshot().running("web"), ["app"], "containers outlive their sandbox");
    assert!(bed.fake.oom_kill("uid-web", "app"));
    assert_eq!(bed.state("web"), Some(ContainerState::Exited { code: 137 }));
    assert!(!bed.fake.kill_container("web", "app", 1), "it has already exited");
    assert!(!bed.fake.remove_container_externally("web", "app"));
    bed.running("db").await;
    assert!(bed.fake.remove_container_externally("db", "app"));
    assert_eq!(bed.state("db"), None);
}

#[tokio::test(start_paused = true)]
async fn runtime_restart_only_breaks_connections() {
    let bed = bed();
    bed.fake.script(IMAGE, Script::exits(4, seconds(20)));
    bed.running("web").await;
    let before = bed.fake.snapshot();
    bed.fake.go_down();
    notice().await;
    assert_eq!(bed.client.version().await.unwrap_err().kind, Kind::Unavailable);
    tokio::time::sleep(seconds(5)).await;
    assert_eq!(bed.client.version().await.unwrap_err().kind, Kind::Unavailable);
    bed.fake.come_up();
    bed.client.version().await.unwrap();
    assert_eq!(bed.fake.snapshot(), before);
    // Containers run and exit even while it is down.
    bed.fake.go_down();
    tokio::time::sleep(seconds(30)).await;
    bed.fake.come_up();
    assert_eq!(bed.state("web"), Some(ContainerState::Exited { code: 4 }));
}

#[tokio::test(start_paused = true)]
async fn restart_drops_calls_under_way_and_releases_their_names() {
    let bed = bed();
    let sandbox = bed.sandbox("db").await;
    let container = bed.create(&sandbox, "db").await;
    bed.fake.fail(Rule::on_any_of([Rpc::RunPodSandbox, Rpc::StartContainer], Fault::Hang));
    let client = bed.client.clone();
    let run = tokio::spawn(async move { client.run_sandbox(sandbox_config("web", 0), "").await });
    let (client, id) = (bed.client.clone(), container.clone());
    let start = tokio::spawn(async move { client.start_container(&id).await });
    tokio::time::sleep(seconds(1)).await;
    bed.fake.heal();
    bed.fake.restart();
    assert!(is_lost(&run.await.unwrap().unwrap_err()));
    assert!(is_lost(&start.await.unwrap().unwrap_err()));
    bed.sandbox("web").await;
    assert_eq!(bed.state("db"), Some(ContainerState::Created), "as the old process left it");
    bed.client.start_container(&container).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn abandoned_start_leaves_an_exited_container() {
    let bed = bed();
    let sandbox = bed.sandbox("web").await;
    let container = bed.create(&sandbox, "web").await;
    bed.fake.fail(Rule::on(Rpc::StartContainer, Fault::Hang));
    let late = bed.client.start_container(&container).await.unwrap_err();
    assert_eq!(late.kind, Kind::TimedOut);
    assert_eq!(bed.state("web"), Some(ContainerState::Exited { code: 128 }));
}

#[tokio::test(start_paused = true)]
async fn all_containers_have_exited_after_a_reboot() {
    let bed = bed();
    let (sandbox, container) = bed.running("web").await;
    bed.fake.reboot();
    notice().await;
    let (observed, _) = bed.observe("web").await;
    assert!(!observed.sandboxes[0].ready);
    assert_eq!(observed.sandboxes[0].ips, Some(vec![]));
    let State::Exited(exit) = &observed.instances[0].state else { panic!("{observed:?}") };
    assert_eq!((exit.code, exit.reason.as_str()), (255, "Unknown"));
    bed.client.remove_container(&container).await.unwrap();
    bed.client.remove_sandbox(&sandbox).await.unwrap();
}
