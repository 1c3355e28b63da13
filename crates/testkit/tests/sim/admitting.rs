//! Pods that wait between their admission and their start.

use podwright_fake_runtime::Rpc;
use podwright_testkit::sim::test_pod::{APP, APP_2, NODE, STUBBORN, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::json;

use super::{assert_invariants, s};

fn requesting(pod: TestPod, cpu: &str) -> TestPod {
    pod.edit(|pod| {
        pod["spec"]["containers"][0]["resources"] = json!({ "requests": { "cpu": cpu } });
    })
}

fn phase(sim: &Sim, name: &str) -> Option<&'static str> {
    sim.record.pod(name).map(|pod| record::phase(&pod).as_str())
}

#[test]
fn resources_of_a_static_pod_that_waits_for_its_name_are_not_given_to_another() {
    sim::run(async {
        let sim = Sim::started(Options { cpus: 4, ..Options::default() }).await;
        let web = |image: &str, cpu: &str| {
            requesting(test_pod("web").grace(30).container("app", image), cpu).manifest()
        };
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &web(STUBBORN, "1"));
        sim.until_ready(&name).await;
        sim.write_manifest("web.json", &web(APP_2, "2500m"));
        sim.pass(s(5)).await;
        assert_eq!(sim.fake.count(Rpc::RunPodSandbox), 1, "the edited pod waits");
        sim.create(&requesting(test_pod("big").container("app", APP), "2")).await;
        sim.until("big is rejected", s(10), |sim| phase(sim, "big") == Some("Failed")).await;
        // One that fits beside both is admitted.
        sim.create(&requesting(test_pod("small").container("app", APP), "500m")).await;
        sim.until_ready("small").await;
        sim.until("the edited pod runs", s(60), |sim| sim.fake.count(Rpc::RunPodSandbox) == 3)
            .await;
        assert_invariants(&sim);
    });
}

#[test]
fn pod_that_another_client_ended_while_it_was_parked_does_not_start() {
    sim::run(async {
        let sim = Sim::started(Options { cpus: 4, ..Options::default() }).await;
        sim.create(&requesting(test_pod("victim").grace(20).container("app", STUBBORN), "3")).await;
        sim.until_ready("victim").await;
        let critical = requesting(test_pod("critical").container("app", APP), "3");
        let critical =
            critical.edit(|pod| pod["spec"]["priorityClassName"] = "system-node-critical".into());
        let uid = sim.create(&critical).await;
        let preempting = |sim: &Sim| sim.fake.count(Rpc::StopContainer) > 0;
        sim.until("the victim is being stopped", s(10), preempting).await;
        // A change of the status alone, as by the pod garbage collector.
        assert!(sim.patch_status("critical", json!({ "status": { "phase": "Failed" } })).await);
        sim.until("the victim has ended", s(60), |sim| phase(sim, "victim") == Some("Failed"))
            .await;
        sim.pass(s(30)).await;
        assert_eq!(phase(&sim, "critical"), Some("Failed"));
        let calls = sim.fake.calls();
        let starts = calls.iter().filter(|call| {
            let pod = call.about.pod.as_ref();
            call.rpc == Rpc::RunPodSandbox && pod.is_some_and(|pod| pod.uid.as_str() == uid)
        });
        assert_eq!(starts.count(), 0, "{}", sim.history());
        assert_invariants(&sim);
    });
}
