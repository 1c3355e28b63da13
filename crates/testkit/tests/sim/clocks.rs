//! Steps of the wall clock, which must not affect pods.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use podwright_fake_runtime::Rpc;
use podwright_testkit::sim::test_pod::{APP, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;

use crate::{assert_invariants, phases, s};

#[test]
fn clock_step_of_an_hour_harms_no_pod() {
    for hours in [1, -1] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let uid = sim.create(&test_pod("web").container("app", APP)).await;
            let timed = test_pod("timed").container("app", APP);
            let timed = timed.edit(|pod| pod["spec"]["activeDeadlineSeconds"] = json!(600));
            let deadline = sim.create(&timed).await;
            sim.until_ready("web").await;
            sim.until_ready("timed").await;
            sim.clock.step_wall(SignedDuration::from_hours(hours));
            sim.patch("timed", json!({ "metadata": { "labels": { "a": "b" } } })).await;
            sim.pass(s(300)).await;
            for uid in [&uid, &deadline] {
                assert_eq!(invariants::disturbances(&sim, uid), [""; 0], "{hours} h");
            }
            // The deadline ends the pod on time, by the monotonic clock.
            sim.pass(s(310)).await;
            let seen = sim.record.of(&deadline);
            assert_eq!(phases(&seen).last(), Some(&"Failed"), "{hours} h");
            assert_invariants(&sim);
        });
    }
}

#[test]
fn clock_step_does_not_change_a_running_grace_period() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").grace(20).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        sim.clock.step_wall(SignedDuration::from_hours(1));
        sim.pass(s(15)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.pass(s(8)).await;
        assert!(sim.record.pod("web").is_none());
        assert!(record::phase(&sim.record.recorded_pods().last().unwrap().pod).is_terminal());
    });
}

/// The hardware clock runs two hours ahead until NTP corrects it; then the container crashes. The
/// next instance has an earlier creation time than the dead one.
#[test]
fn container_restarted_after_the_clock_was_set_back_is_not_killed() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").sidecar("side", APP).container("app", APP)).await;
        sim.until_ready("web").await;
        sim.clock.step_wall(SignedDuration::from_hours(-2));
        for name in ["app", "side"] {
            assert!(sim.fake.kill_container("web", name, 1), "{name} runs");
        }
        let restarted = |sim: &Sim| {
            let counts = sim.record.pod("web").map(|pod| restarts(&pod));
            counts == Some(vec![1, 1]) && sim.fake.snapshot().running("web").len() == 2
        };
        sim.until("both restarted", s(60), restarted).await;
        let started = sim.fake.count(Rpc::StartContainer);
        sim.pass(s(300)).await;
        sim.restart().await;
        sim.pass(s(300)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0, "{}", sim.history());
        assert_eq!(sim.fake.count(Rpc::StartContainer), started, "{}", sim.history());
        let pod = sim.record.pod("web").unwrap();
        assert_eq!(restarts(&pod), [1, 1]);
        assert!(record::is_ready(&pod), "{}", sim.history());
        // A second crash takes the next attempt number, not one that is in use.
        assert!(sim.fake.kill_container("web", "app", 1));
        let again = |sim: &Sim| sim.record.pod("web").map(|pod| restarts(&pod)) == Some(vec![2, 1]);
        sim.until("it runs a third time", s(60), again).await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0, "{}", sim.history());
        assert_invariants(&sim);
    });
}

/// Restart counts of all regular containers, then of all init containers.
fn restarts(pod: &Pod) -> Vec<i32> {
    let status = pod.status.clone().unwrap_or_default();
    let regular = status.container_statuses.unwrap_or_default();
    let init = status.init_container_statuses.unwrap_or_default();
    regular.iter().chain(&init).map(|status| status.restart_count).collect()
}
