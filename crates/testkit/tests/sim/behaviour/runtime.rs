//! Changes in the runtime, and restarts of the agent.

use podwright_fake_runtime::{Code, Condition, EventFault, Fault, Rpc, Rule};
use podwright_testkit::sim::test_pod::{APP, FAILS, JOB, NODE, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;

use crate::{assert_invariants, clean, phases, s};

#[test]
fn finished_pod_is_not_touched_after_an_agent_restart() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("job").restart("Never").container("app", JOB)).await;
        let done = |sim: &Sim| phases(&sim.record.of(&uid)).last() == Some(&"Succeeded");
        sim.until("the job succeeds", s(60), done).await;
        sim.pass(s(10)).await;
        let (shown, made) = (sim.record.of(&uid).len(), sim.fake.count(Rpc::RunPodSandbox));
        sim.restart().await;
        sim.pass(s(60)).await;
        assert_eq!((sim.record.of(&uid).len(), sim.fake.count(Rpc::RunPodSandbox)), (shown, made));
        sim.delete("job", None).await;
        sim.until_gone("job").await;
        // Its directory is removed later, in the next round of housekeeping.
        sim.pass(s(5)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn running_pod_stays_ready_across_an_agent_restart() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let probed = test_pod("probed").container("app", APP).edit(|pod| {
            pod["spec"]["containers"][0]["readinessProbe"] =
                json!({ "exec": { "command": ["true"] } });
        });
        let plain = sim.create(&test_pod("web").sidecar("side", APP).container("app", APP)).await;
        sim.until_ready("web").await;
        let probed = sim.create(&probed).await;
        sim.until_ready("probed").await;
        sim.pass(s(30)).await;
        for _ in 0..3 {
            let probes = sim.fake.count(Rpc::ExecSync);
            sim.restart().await;
            sim.pass(s(20)).await;
            assert!(sim.fake.count(Rpc::ExecSync) > probes, "the new agent probes");
        }
        for uid in [plain, probed] {
            assert!(!sim.record.of(&uid).is_empty(), "no status of {uid:?} was recorded");
            assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        }
        assert_eq!(sim.fake.count(Rpc::StartContainer), 3);
        assert_invariants(&sim);
    });
}

#[test]
fn running_pods_are_not_admitted_again_after_a_restart() {
    sim::run(async {
        let mut sim = Sim::started(Options { max_pods: 2, ..Options::default() }).await;
        let one = sim.create(&test_pod("one").container("app", APP)).await;
        let two = sim.create(&test_pod("two").container("app", APP)).await;
        sim.until_ready("one").await;
        sim.until_ready("two").await;
        // The pod that is listed first would not fit beside the others.
        sim.options.max_pods = 1;
        sim.restart().await;
        sim.pass(s(30)).await;
        for uid in [one, two] {
            assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        }
        let three = sim.create(&test_pod("three").container("app", APP)).await;
        sim.pass(s(5)).await;
        assert_eq!(
            phases(&sim.record.of(&three)).last(),
            Some(&"Failed"),
            "a new pod does not fit"
        );
    });
}

#[test]
fn runtime_outage_of_40_s_pauses_the_node_and_kills_nothing() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.fake.go_down();
        sim.create(&test_pod("late").container("app", APP)).await;
        sim.pass(s(40)).await;
        let state = sim.node().runtime_state();
        assert_eq!(state.reachable, Err("container runtime is down".to_owned()));
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.fake.come_up();
        let began = sim.age();
        sim.until_ready("late").await;
        assert!(sim.age() - began < s(4), "it continues at once: {}", sim.history());
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
        assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        assert_invariants(&sim);
    });
}

#[test]
fn only_host_network_pods_start_without_a_network() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.set_network(Condition::not_ready("NetworkPluginNotReady", "no plugin"));
        sim.pass(s(10)).await;
        sim.create(&test_pod("own").container("app", APP)).await;
        sim.create(&test_pod("hosts").host_network().container("app", APP)).await;
        sim.until_ready("hosts").await;
        sim.pass(s(20)).await;
        assert!(sim.fake.snapshot().running("own").is_empty());
        assert!(sim.events("own").await.contains(&"NetworkNotReady".to_owned()));
        sim.fake.set_network(Condition::Ready);
        let began = sim.age();
        sim.until_ready("own").await;
        assert!(sim.age() - began <= s(2));
    });
}

#[test]
fn externally_removed_container_is_reported_with_137_and_restarted() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(1)).await;
        assert!(sim.fake.remove_container_externally("web", "app"));
        let again = |sim: &Sim| {
            let pod = sim.record.pod("web").unwrap();
            let status = record::containers(&pod)[0].clone();
            let last = status.last_state.and_then(|state| state.terminated);
            last.is_some_and(|end| end.exit_code == 137) && status.restart_count == 1
        };
        sim.until("the restart is reported", s(60), again).await;
        sim.until_ready("web").await;
        assert_invariants(&sim);
    });
}

#[test]
fn pod_marked_terminal_in_the_api_is_stopped_and_stays_terminal() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        assert!(sim.patch_status("web", json!({ "status": { "phase": "Succeeded" } })).await);
        sim.until("it stops", s(30), |sim| sim.fake.snapshot().running("web").is_empty()).await;
        sim.pass(s(30)).await;
        assert_eq!(phases(&sim.record.of(&uid)).last(), Some(&"Succeeded"));
        assert_invariants(&sim);
    });
}

#[test]
fn relist_finds_changes_when_no_event_arrives() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(5)).await;
        sim.fake.disturb_events(Rule::on_events(EventFault::Drop));
        sim.fake.kill_container("web", "app", 1);
        let again =
            |sim: &Sim| record::containers(&sim.record.pod("web").unwrap())[0].restart_count == 1;
        sim.until("it restarted", s(15), again).await;
    });
}

#[test]
fn failed_inspection_is_retried() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let fault = Fault::Error(Code::Unknown, "not now".into());
        sim.fake.fail(Rule::on(Rpc::ContainerStatus, fault).first(1));
        sim.fake.kill_container("web", "app", 1);
        let again =
            |sim: &Sim| record::containers(&sim.record.pod("web").unwrap())[0].restart_count == 1;
        sim.until("it restarted", s(5), again).await;
    });
}

#[test]
fn container_that_ran_between_two_inspections_is_reported_with_its_exit_code() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.disturb_events(Rule::on_events(EventFault::Drop));
        sim.create(&test_pod("job").restart("Never").container("app", FAILS)).await;
        let failed = |sim: &Sim| {
            let Some(pod) = sim.record.pod("job") else { return false };
            record::containers(&pod).first().is_some_and(|c| {
                let end = c.state.as_ref().and_then(|state| state.terminated.as_ref());
                end.is_some_and(|end| end.exit_code == 1)
            })
        };
        sim.until("its exit is reported", s(30), failed).await;
    });
}

#[test]
fn hung_pod_does_not_block_others() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Hang).pod("hung"));
        sim.fake.fail(Rule::on(Rpc::StopContainer, Fault::Hang).pod("stuck"));
        sim.create(&test_pod("stuck").container("app", STUBBORN)).await;
        sim.until_ready("stuck").await;
        sim.delete("stuck", None).await;
        sim.create(&test_pod("hung").container("app", APP)).await;
        sim.pass(s(1)).await;
        for n in 0..5 {
            let name = format!("fine-{n}");
            let began = sim.age();
            sim.create(&test_pod(&name).container("app", APP)).await;
            sim.until_ready(&name).await;
            assert!(sim.age() - began < s(1), "{name}");
        }
    });
}

#[test]
fn critical_pod_is_admitted_beside_a_victim_that_does_not_stop() {
    sim::run(async {
        let sim = Sim::started(Options { max_pods: 1, ..Options::default() }).await;
        sim.create(&test_pod("victim").grace(20).container("app", STUBBORN)).await;
        sim.until_ready("victim").await;
        sim.fake.fail(Rule::on(Rpc::StopContainer, Fault::Hang).pod("victim"));
        let critical = format!("critical-{NODE}");
        sim.write_manifest("critical.json", &test_pod("critical").container("app", APP).manifest());
        // Half again the victim's grace.
        sim.pass(s(29)).await;
        assert_eq!(sim.fake.snapshot().running(&critical), [""; 0]);
        assert_eq!(sim.fake.snapshot().running("victim"), ["app"]);
        sim.pass(s(10)).await;
        assert_eq!(sim.fake.snapshot().running(&critical), ["app"]);
    });
}
