//! Hooks that hang, and what is reported of containers that an unreachable API server missed.

use std::time::Duration;

use podwright_fake_runtime::{ExecReply, Rpc, Script};
use podwright_testkit::sim::test_pod::{APP, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::{Value, json};

use super::{assert_invariants, s};

/// A node on which the command `hang` takes an hour and `ready` succeeds.
async fn node() -> Sim {
    let sim = Sim::started(Options::default()).await;
    let hang = ExecReply::exits(0).taking(Duration::from_secs(3600));
    let script = Script::forever().exec(&["hang"], hang).exec(&["ready"], ExecReply::exits(0));
    sim.fake.script(APP, script);
    sim
}

fn with(name: &str, field: &str, value: Value) -> TestPod {
    test_pod(name).container("app", APP).edit(|pod| {
        pod["spec"]["containers"][0][field] = value;
    })
}

/// kubernetes#116032
#[test]
fn deleted_pod_does_not_wait_for_a_hanging_post_start_hook() {
    sim::run(async {
        let sim = node().await;
        let hook = json!({ "postStart": { "exec": { "command": ["hang"] } } });
        sim.create(&with("web", "lifecycle", hook).grace(5)).await;
        sim.until("the hook runs", s(30), |sim| sim.fake.count(Rpc::ExecSync) == 1).await;
        let before = sim.age();
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        assert!(sim.age() - before < s(15), "gone after {:?}", sim.age() - before);
        assert_invariants(&sim);
    });
}

/// kubernetes#127339
#[test]
fn shorter_deletion_does_not_wait_for_a_hanging_pre_stop_hook() {
    sim::run(async {
        let sim = node().await;
        let hook = json!({ "preStop": { "exec": { "command": ["hang"] } } });
        sim.create(&with("web", "lifecycle", hook).grace(600)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.until("the hook runs", s(30), |sim| sim.fake.count(Rpc::ExecSync) == 1).await;
        sim.pass(s(10)).await;
        let before = sim.age();
        sim.delete("web", Some(2)).await;
        sim.until_gone("web").await;
        assert!(sim.age() - before < s(20), "gone after {:?}", sim.age() - before);
        assert_eq!(sim.fake.count(Rpc::ExecSync), 1, "the hook runs once");
        assert_invariants(&sim);
    });
}

/// kubernetes#141473
#[test]
fn container_replaced_while_the_api_was_away_is_not_reported_ready_by_a_restarted_agent() {
    sim::run(async {
        let mut sim = node().await;
        let probe = json!({
            "exec": { "command": ["ready"] }, "initialDelaySeconds": 30, "periodSeconds": 1,
        });
        let uid = sim.create(&with("web", "readinessProbe", probe)).await;
        sim.until_ready("web").await;
        sim.api.go_down();
        assert!(sim.fake.kill_container("web", "app", 1));
        let replaced = |sim: &Sim| sim.fake.count(Rpc::StartContainer) == 2;
        sim.until("it has restarted", s(60), replaced).await;
        sim.crash().await;
        sim.api.come_up();
        sim.start().await;
        sim.until("the new container is reported", s(60), |sim| {
            let pod = sim.record.pod("web").unwrap();
            record::containers(&pod).iter().any(|status| status.restart_count == 1)
        })
        .await;
        let shown = sim.record.of(&uid);
        let first = shown.iter().find(|sighting| {
            record::containers(&sighting.pod).iter().any(|status| status.restart_count == 1)
        });
        assert!(!record::is_ready(&first.unwrap().pod), "its readiness probe has not run yet");
        sim.until_ready("web").await;
        assert_invariants(&sim);
    });
}
