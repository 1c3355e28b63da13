//! Termination of pods: deletion, eviction, orphans.

use std::time::Duration;

use podwright_core::ids::PodUid;
use podwright_core::lifecycle::{Kill, TerminationCause};
use podwright_fake_runtime::{Code, Fault, OnTerm, Rpc, Rule, Script};
use podwright_node::pods;
use podwright_testkit::sim::test_pod::{APP, APP_2, NODE, REMOTE, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::json;

use crate::{assert_invariants, clean, phases, s};

/// The grace period of every StopContainer so far.
fn graces(sim: &Sim) -> Vec<i64> {
    let calls = sim.fake.calls();
    calls.iter().filter(|c| c.rpc == Rpc::StopContainer).filter_map(|c| c.grace).collect()
}

fn count(sim: &Sim, rpcs: &[Rpc]) -> u64 {
    rpcs.iter().map(|rpc| sim.fake.count(*rpc)).sum()
}

const MAKING: [Rpc; 3] = [Rpc::RunPodSandbox, Rpc::CreateContainer, Rpc::StartContainer];

#[test]
fn nothing_is_started_after_deletion() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", STUBBORN).container("b", APP)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.patch("web", json!({ "metadata": { "labels": { "a": "b" } } })).await;
        sim.set_image("web", "b", APP_2).await;
        let made = count(&sim, &MAKING);
        sim.until_gone("web").await;
        assert_eq!(count(&sim, &MAKING), made);
        assert_eq!(count(&sim, &[Rpc::StopPodSandbox]), 1, "killed once");
        assert_invariants(&sim);
    });
}

#[test]
fn hundred_updates_during_a_sync_are_merged_into_one() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", REMOTE).container("b", APP)).await;
        sim.pass(s(1)).await;
        for n in 0..100 {
            sim.patch("web", json!({ "metadata": { "labels": { "n": n.to_string() } } })).await;
        }
        sim.set_image("web", "b", APP_2).await;
        sim.until_ready("web").await;
        sim.pass(s(60)).await;
        assert!(sim.fake.count(Rpc::StartContainer) <= 3, "{}", sim.history());
        let pod = sim.record.pod("web").unwrap();
        let b = record::containers(&pod).into_iter().find(|c| c.name == "b").unwrap();
        assert_eq!(b.image, APP_2, "the newest spec applies");
        assert!(sim.fake.count(Rpc::ListPodSandbox) < 40, "not one inspection per update");
    });
}

#[test]
fn shorter_grace_period_applies_at_once_and_a_longer_one_never() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").grace(30).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", Some(30)).await;
        sim.pass(s(2)).await;
        assert_eq!(graces(&sim), [30]);
        sim.delete("web", Some(5)).await;
        sim.pass(s(1)).await;
        assert_eq!(graces(&sim), [30, 5], "while the first stop is under way");
        sim.delete("web", Some(60)).await;
        sim.pass(s(1)).await;
        assert_eq!(graces(&sim), [30, 5]);
        let began = sim.age();
        sim.until_gone("web").await;
        assert!(sim.age() - began < s(5), "five seconds, not thirty");
        assert_invariants(&sim);
    });
}

#[test]
fn container_keeps_its_grace_period_while_the_runtime_cannot_be_reached() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").grace(20).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.fake.fail(Rule::on(Rpc::StopContainer, Fault::Disconnect).pod("web").first(2));
        sim.delete("web", None).await;
        let third = |sim: &Sim| sim.fake.count(Rpc::StopContainer) == 3;
        sim.until("it is stopped a third time", s(60), third).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"], "not killed with its sandbox");
        assert_eq!(graces(&sim), [20, 20, 20]);
        sim.until_gone("web").await;
        assert_invariants(&sim);
    });
}

#[test]
fn pod_ends_with_its_sandbox_if_its_container_cannot_be_stopped() {
    let refused = Fault::Error(Code::Unknown, "refused".into());
    for (fault, stops) in [(Fault::Disconnect, 4), (refused, 1)] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            sim.create(&test_pod("web").grace(20).container("app", STUBBORN)).await;
            sim.until_ready("web").await;
            sim.fake.fail(Rule::on(Rpc::StopContainer, fault).pod("web"));
            sim.delete("web", None).await;
            sim.until("it is stopped", s(120), |sim| sim.fake.snapshot().running("web").is_empty())
                .await;
            assert_eq!(sim.fake.count(Rpc::StopContainer), stops);
            sim.until_gone("web").await;
        });
    }
}

#[test]
fn eviction_of_a_deleting_pod_adds_its_message_and_keeps_the_cause() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").grace(30).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        let node = sim.node();
        let pod = PodUid::new(uid.as_str());
        let kill = Kill::evict("Evicted", "the node was low on memory", Some(s(3)));
        node.end_pod(&pod, kill).await.unwrap();
        let cause = node.pod_index.handle(&pod).map(|handle| handle.lifecycle().cause());
        assert!(cause.is_none_or(|cause| cause == Some(TerminationCause::Deleted)));
        assert_eq!(graces(&sim), [30, 3], "the eviction's grace is shorter");
        sim.until_gone("web").await;
        let last = sim.record.of(&uid).pop().unwrap();
        assert_eq!(last.pod.status.as_ref().unwrap().reason.as_deref(), Some("Evicted"));
        assert_invariants(&sim);
    });
}

#[test]
fn eviction_is_reported_when_the_pod_has_stopped_and_its_caller_waits() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").grace(30).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        let node = sim.node();
        let kill = Kill::evict("Evicted", "the node was low on memory", Some(s(4)));
        let began = sim.age();
        node.end_pod(&PodUid::new(uid.as_str()), kill).await.unwrap();
        assert!(sim.age() - began >= s(4) && sim.age() - began < s(6));
        sim.pass(s(1)).await;
        let pod = sim.record.pod("web").unwrap();
        assert_eq!(record::phase(&pod).as_str(), "Failed");
        assert_eq!(record::condition(&pod, "DisruptionTarget"), Some(true));
        assert_eq!(record::condition(&pod, "Ready"), Some(false));
        let shown = sim.record.of(&uid);
        let early = shown.iter().filter(|s| s.at < began + Duration::from_secs(4));
        assert!(early.clone().all(|s| record::phase(&s.pod).as_str() != "Failed"));
        assert_invariants(&sim);
    });
}

#[test]
fn pod_that_outlives_its_eviction_is_reported() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let hang = Fault::Hang;
        sim.fake.fail(Rule::on(Rpc::StopContainer, hang).first(2));
        let node = sim.node();
        let kill = Kill::evict("Evicted", "", Some(s(1)));
        let ended = node.end_pod(&PodUid::new(uid), kill).await;
        assert!(matches!(ended, Err(pods::EndError::ExceededGracePeriod { .. })));
        sim.pass(s(60)).await;
        assert!(sim.events("web").await.contains(&"ExceededGracePeriod".to_owned()));
        assert!(sim.fake.snapshot().running("web").is_empty(), "it is stopped nevertheless");
    });
}

#[test]
fn stop_without_effect_is_retried_with_back_off() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.fake.ignore_stops();
        sim.delete("web", None).await;
        sim.pass(s(65)).await;
        let stops = [Rpc::StopContainer, Rpc::StopPodSandbox].map(|rpc| sim.fake.count(rpc));
        assert_eq!(stops, [7, 7], "at once, and then every ten seconds");
        assert!(sim.record.pod("web").is_some(), "a running pod is not removed");
        sim.fake.heal();
        sim.until_gone("web").await;
        // Its directory is removed later, in the next round of housekeeping.
        sim.pass(s(5)).await;
        clean(&sim, &[]);
        assert_invariants(&sim);
    });
}

#[test]
fn stop_of_an_orphan_without_effect_is_retried_with_back_off() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let manifest = test_pod("static").container("app", APP).manifest();
        sim.write_manifest("static.json", &manifest);
        let name = format!("static-{NODE}");
        let runs = |sim: &Sim| !sim.fake.snapshot().running(&name).is_empty();
        sim.until("it runs", s(60), runs).await;
        sim.crash().await;
        sim.remove_manifest("static.json");
        sim.fake.ignore_stops();
        sim.start().await;
        sim.pass(s(65)).await;
        let stops = sim.fake.count(Rpc::StopContainer);
        assert!((2..=8).contains(&stops), "{stops} stops in a minute");
        sim.fake.heal();
        sim.until("nothing is left", s(60), |sim| !runs(sim)).await;
        assert_invariants(&sim);
    });
}

#[test]
fn nothing_of_an_orphan_is_removed_while_its_sandbox_is_being_stopped() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let manifest = test_pod("static").container("app", APP).manifest();
        sim.write_manifest("static.json", &manifest);
        let name = format!("static-{NODE}");
        let runs = |sim: &Sim| !sim.fake.snapshot().running(&name).is_empty();
        sim.until("it runs", s(60), runs).await;
        sim.crash().await;
        sim.remove_manifest("static.json");
        let hang = Fault::Hang;
        sim.fake.fail(Rule::on(Rpc::StopPodSandbox, hang).first(8));
        sim.start().await;
        // Garbage collection runs once a minute.
        sim.pass(s(80)).await;
        assert!(!runs(&sim), "the container is stopped");
        let removals = sim.fake.count(Rpc::RemoveContainer) + sim.fake.count(Rpc::RemovePodSandbox);
        assert_eq!(removals, 0);
        let removed = |sim: &Sim| sim.fake.count(Rpc::RemovePodSandbox) > 0;
        sim.until("it is removed after the stop", s(240), removed).await;
        assert_invariants(&sim);
    });
}

#[test]
fn deleted_pod_reports_its_exit_before_it_is_removed() {
    for (code, want) in [(0, "Succeeded"), (137, "Failed")] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let on_term = OnTerm::Exits { after: s(1), code };
            sim.fake.script(APP, Script::forever().on_sigterm(on_term));
            let uid = sim.create(&test_pod("web").container("app", APP)).await;
            sim.until_ready("web").await;
            sim.delete("web", None).await;
            sim.until_gone("web").await;
            assert_eq!(phases(&sim.record.of(&uid)).last(), Some(&want));
        });
    }
}

#[test]
fn pod_deleted_during_image_pull_fails_at_once_and_leaves_nothing() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", REMOTE)).await;
        sim.pass(s(3)).await;
        assert_eq!(sim.fake.images().pulls().len(), 1);
        let began = sim.age();
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        assert!(sim.age() - began < s(2), "it does not wait for the pull");
        assert_eq!(sim.fake.count(Rpc::CreateContainer), 0);
        let seen = sim.record.of(&uid);
        let last = &seen.last().unwrap().pod;
        assert_eq!(record::phase(last).as_str(), "Failed");
        let state = record::containers(last)[0].state.clone().unwrap().terminated.unwrap();
        assert_eq!(
            (state.exit_code, state.reason.as_deref()),
            (137, Some("ContainerStatusUnknown"))
        );
        sim.pass(s(30)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn containers_stop_while_the_api_is_down_and_the_status_follows() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        sim.api.go_down();
        sim.pass(s(60)).await;
        assert!(sim.fake.snapshot().running("web").is_empty());
        assert!(sim.record.pod("web").is_some());
        sim.api.come_up();
        sim.until_gone("web").await;
        assert_eq!(phases(&sim.record.of(&uid)).last(), Some(&"Failed"));
        sim.pass(s(5)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn force_deleted_pod_gets_the_grace_period_of_its_spec() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").grace(20).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", Some(0)).await;
        sim.until_gone("web").await;
        sim.pass(s(18)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        assert_eq!(graces(&sim), [20]);
        sim.pass(s(5)).await;
        assert!(sim.fake.snapshot().running("web").is_empty());
        assert!(sim.record.of(&uid).last().unwrap().gone, "nothing was reported after it");
        sim.pass(s(10)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn restarted_agent_continues_a_termination_without_a_second_pre_stop_hook() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let pod = test_pod("web").container("app", STUBBORN).grace(20).edit(|pod| {
            let hook = json!({ "preStop": { "exec": { "command": ["drain"] } } });
            pod["spec"]["containers"][0]["lifecycle"] = hook;
        });
        sim.create(&pod).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.until("it is being stopped", s(10), |sim| sim.fake.count(Rpc::StopContainer) == 1)
            .await;
        sim.pass(s(8)).await;
        sim.restart().await;
        sim.until("it is stopped again", s(10), |sim| sim.fake.count(Rpc::StopContainer) == 2)
            .await;
        assert_eq!(sim.fake.count(Rpc::ExecSync), 1, "the hook runs once");
        let graces = graces(&sim);
        assert!(graces[1] <= graces[0] - 8, "{graces:?}: the time before the restart counts");
        sim.until_gone("web").await;
        assert_invariants(&sim);
    });
}
