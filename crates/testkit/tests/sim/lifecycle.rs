//! Lifecycle of one pod without faults.

use std::time::Duration;

use podwright_core::pod::Phase;
use podwright_fake_runtime::{Code, ExecReply, Fault, Rpc, Rule, Script};
use podwright_testkit::sim::test_pod::{APP, INIT, JOB, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};

use crate::{message, s, write_message};

#[test]
fn pod_with_all_kinds_of_containers_runs_and_leaves_nothing_behind() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let pod = test_pod("web").init("first", INIT).sidecar("side", APP);
        sim.create(&pod.container("a", APP).container("b", APP)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(Duration::from_secs(5)).await;
        assert_eq!(invariants::leftovers(&sim, &[]), [""; 0]);
        assert_eq!(invariants::violations(&sim), [""; 0]);
    });
}

#[test]
fn finished_pod_keeps_termination_message_across_restart() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let job = test_pod("job").restart("Never").container("app", JOB).edit(|pod| {
            pod["spec"]["volumes"] = serde_json::json!([{ "name": "scratch", "emptyDir": {} }]);
            pod["spec"]["containers"][0]["volumeMounts"] =
                serde_json::json!([{ "name": "scratch", "mountPath": "/scratch" }]);
        });
        let uid = sim.create(&job).await;
        let done = |sim: &Sim| {
            write_message(sim, &uid, "all is well");
            let pod = sim.record.pod("job");
            pod.is_some_and(|pod| record::phase(&pod) == Phase::Succeeded)
        };
        sim.until("it succeeds", s(60), done).await;
        sim.pass(s(10)).await;
        assert!(!sim.environment.has_volumes(&uid), "it is finished");
        // when the agent is killed and restarted repeatedly
        for _ in 0..3 {
            sim.crash().await;
            sim.pass(s(1)).await;
            sim.start().await;
            sim.pass(s(30)).await;
            assert_eq!(message(&sim, "job").as_deref(), Some("all is well"));
        }
        let shown = sim.record.of(&uid);
        let ended = shown.iter().filter(|s| record::phase(&s.pod).is_terminal());
        let lost = ended.filter(|s| crate::message_of(&s.pod).as_deref() != Some("all is well"));
        assert_eq!(lost.count(), 0, "{}", sim.history());
        assert_eq!(sim.environment.pods_with_directory(), [uid], "the message is read from there");
        // then the directory is removed with the object, also if the agent is down at that time
        sim.crash().await;
        sim.delete("job", Some(0)).await;
        sim.start().await;
        sim.pass(s(5)).await;
        assert_eq!(invariants::leftovers(&sim, &[]), [""; 0]);
        assert_eq!(invariants::violations(&sim), [""; 0]);
    });
}

/// Containers of `web` in the order of their StopContainer calls, each with its grace period and
/// the time since `began`, in seconds.
fn stops(sim: &Sim, began: Duration) -> Vec<(String, i64, u64)> {
    let calls = sim.fake.calls();
    let stops = calls.iter().filter(|call| call.rpc == Rpc::StopContainer);
    let stop = |call: &podwright_fake_runtime::Call| {
        Some((call.about.container.clone()?, call.grace?, (call.at - began).as_secs()))
    };
    stops.filter_map(stop).collect()
}

#[test]
fn sidecars_stop_last_in_reverse_order() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let hook = ExecReply::exits(0).taking(s(3));
        sim.fake.script(APP, Script::forever().exec(&["hook"], hook));
        let pod = test_pod("web").sidecar("one", APP).sidecar("two", APP).container("app", APP);
        let pod = pod.edit(|pod| {
            pod["spec"]["containers"][0]["lifecycle"] =
                serde_json::json!({ "preStop": { "exec": { "command": ["hook"] } } });
        });
        sim.create(&pod).await;
        sim.until_ready("web").await;
        let began = sim.age();
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        let stops = stops(&sim, began);
        let order: Vec<&str> = stops.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(order, ["app", "two", "one"], "{}", sim.history());
        // The hook and the wait for other containers are part of the grace period of ten seconds.
        assert!(stops.iter().all(|(_, grace, at)| (3..6).contains(at) && *grace <= 7), "{stops:?}");
        assert_eq!(invariants::violations(&sim), [""; 0]);
    });
}

#[test]
fn sidecar_waits_no_longer_than_its_grace_period() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let hook = ExecReply::exits(0).taking(s(4));
        sim.fake.script(APP, Script::forever().exec(&["hook"], hook));
        let pod = test_pod("web").sidecar("side", APP).container("app", STUBBORN).edit(|pod| {
            pod["spec"]["initContainers"][0]["lifecycle"] =
                serde_json::json!({ "preStop": { "exec": { "command": ["hook"] } } });
        });
        sim.create(&pod).await;
        sim.until_ready("web").await;
        // The stop of the regular container gets no response before the sidecar's time is over.
        sim.fake.fail(Rule::on(Rpc::StopContainer, Fault::Delay(s(9))).first(1));
        let began = sim.age();
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        let stops = stops(&sim, began);
        let side = stops.iter().find(|(name, ..)| name == "side").expect("a stop");
        assert!((9..12).contains(&side.2), "{stops:?}\n{}", sim.history());
    });
}

#[test]
fn sidecar_is_not_stopped_when_the_stop_of_a_regular_container_failed() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").sidecar("side", APP).container("app", APP)).await;
        sim.until_ready("web").await;
        let fault = Fault::Error(Code::Unknown, "a fault of the simulation".into());
        sim.fake.fail(Rule::on(Rpc::StopContainer, fault).first(1));
        let began = sim.age();
        sim.delete("web", None).await;
        sim.until("a stop failed", s(30), |sim| sim.fake.count(Rpc::StopContainer) > 0).await;
        sim.pass(s(5)).await;
        let early = stops(&sim, began);
        assert!(early.iter().all(|(name, ..)| name == "app"), "{early:?}\n{}", sim.history());
        sim.until_gone("web").await;
        assert_eq!(invariants::violations(&sim), [""; 0]);
    });
}
