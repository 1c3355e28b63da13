//! The wall clock is stepped, and no pod notices.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use podwright_cri::fake::Rpc;
use podwright_testkit::sim::wish::{APP, STUBBORN, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;

use crate::{lawful, phases, s};

#[test]
fn a_step_of_an_hour_either_way_harms_no_pod() {
    for hours in [1, -1] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let uid = sim.create(&wish("web").container("app", APP)).await;
            let timed = wish("timed").container("app", APP);
            let timed = timed.edit(|pod| pod["spec"]["activeDeadlineSeconds"] = json!(600));
            let deadline = sim.create(&timed).await;
            sim.until_ready("web").await;
            sim.until_ready("timed").await;
            sim.clock.step_wall(SignedDuration::from_hours(hours));
            sim.patch("timed", json!({ "metadata": { "labels": { "a": "b" } } })).await;
            sim.pass(s(300)).await;
            for uid in [&uid, &deadline] {
                assert_eq!(laws::disturbances(&sim, uid), [""; 0], "{hours} h");
            }
            // The deadline ends the pod when it is due, by our own clock.
            sim.pass(s(310)).await;
            let seen = sim.record.of(&deadline);
            assert_eq!(phases(&seen).last(), Some(&"Failed"), "{hours} h");
            lawful(&sim);
        });
    }
}

#[test]
fn a_step_while_a_pod_stops_does_not_change_its_grace() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").grace(20).container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        sim.clock.step_wall(SignedDuration::from_hours(1));
        sim.pass(s(15)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.pass(s(8)).await;
        assert!(sim.record.pod("web").is_none());
        assert!(record::phase(&sim.record.sightings().last().unwrap().pod).is_terminal());
    });
}

/// The hardware clock ran two hours ahead until NTP set it back; then the container crashes. The
/// instance that follows has an earlier creation time than the dead one.
#[test]
fn container_restarted_after_the_clock_was_set_back_is_not_killed() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").sidecar("side", APP).container("app", APP)).await;
        sim.until_ready("web").await;
        sim.clock.step_wall(SignedDuration::from_hours(-2));
        for name in ["app", "side"] {
            assert!(sim.fake.kill_container("web", name, 1), "{name} runs");
        }
        let restarted = |sim: &Sim| {
            let counts = sim.record.pod("web").map(|pod| restarts(&pod));
            counts == Some(vec![1, 1]) && sim.fake.snapshot().running("web").len() == 2
        };
        sim.until("both run again", s(60), restarted).await;
        let started = sim.fake.count(Rpc::StartContainer);
        sim.pass(s(300)).await;
        sim.restart().await;
        sim.pass(s(300)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0, "{}", sim.story());
        assert_eq!(sim.fake.count(Rpc::StartContainer), started, "{}", sim.story());
        let pod = sim.record.pod("web").unwrap();
        assert_eq!(restarts(&pod), [1, 1]);
        assert!(record::is_ready(&pod), "{}", sim.story());
        // A second crash takes the next number, not one that is taken.
        assert!(sim.fake.kill_container("web", "app", 1));
        let again = |sim: &Sim| sim.record.pod("web").map(|pod| restarts(&pod)) == Some(vec![2, 1]);
        sim.until("it runs a third time", s(60), again).await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0, "{}", sim.story());
        lawful(&sim);
    });
}

/// Restart counts of all regular containers, then of all init containers.
fn restarts(pod: &Pod) -> Vec<i32> {
    let status = pod.status.clone().unwrap_or_default();
    let regular = status.container_statuses.unwrap_or_default();
    let init = status.init_container_statuses.unwrap_or_default();
    regular.iter().chain(&init).map(|status| status.restart_count).collect()
}
