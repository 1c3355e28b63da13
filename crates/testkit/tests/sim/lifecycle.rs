//! Lifecycle of one pod without faults.

use std::time::Duration;

use podwright_core::pod::Phase;
use podwright_testkit::sim::test_pod::{APP, INIT, JOB, test_pod};
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
