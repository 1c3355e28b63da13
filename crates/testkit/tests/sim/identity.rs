//! Pods that share a name or a UID, and API objects that are not what they were.

use podwright_fake_runtime::{Fault, Rpc, Rule};
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::test_pod::{APP, APP_2, INIT, NODE, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim};
use serde_json::json;

use super::{assert_invariants, s};

/// Requests that create or delete pods, which an agent does for mirror pods only.
fn mirror_requests(sim: &Sim) -> usize {
    let calls = sim.api.calls();
    let of_mirrors = |verb: Verb| matches!(verb, Verb::Create | Verb::Delete);
    calls.iter().filter(|call| call.resource == "pods" && of_mirrors(call.verb)).count()
}

#[test]
fn refused_mirror_pod_is_tried_less_and_less_often() {
    sim::run(async {
        let mut sim = Sim::new(Options::default()).await;
        let refusal = ApiRule::on(Verb::Create, "pods", ApiFault::Error(403));
        sim.api.fail(refusal);
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        sim.start().await;
        sim.pass(s(900)).await;
        let tries = mirror_requests(&sim);
        assert!((8..=24).contains(&tries), "{tries} tries in 15 minutes");
        sim.api.heal();
        sim.until_ready(&format!("web-{NODE}")).await;
    });
}

#[test]
fn wrong_not_found_answers_do_not_keep_a_finished_pod_from_being_deleted() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let job = test_pod("job").container("app", INIT).restart("Never");
        sim.api.fail(ApiRule::on(Verb::Patch, "pods/status", ApiFault::Error(404)).first(6));
        sim.create(&job).await;
        sim.until("its end is reported", s(120), |sim| {
            let pod = sim.record.pod("job");
            pod.is_some_and(|pod| sim::record::phase(&pod).is_terminal())
        })
        .await;
        sim.api.fail(ApiRule::on(Verb::Delete, "pods", ApiFault::Error(404)).first(2));
        sim.delete("job", None).await;
        sim.until_gone("job").await;
    });
}

#[test]
fn wrong_not_found_answer_does_not_keep_a_mirror_pod_from_being_deleted() {
    sim::run(async {
        let mut sim = Sim::new(Options::default()).await;
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        sim.start().await;
        let name = format!("web-{NODE}");
        sim.until_ready(&name).await;
        sim.api.fail(ApiRule::on(Verb::Delete, "pods", ApiFault::Error(404)).first(1));
        sim.remove_manifest("web.json");
        sim.until_gone(&name).await;
    });
}

#[test]
fn pod_starts_after_the_orphaned_pod_of_its_uid_has_ended() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let (manifest, name) =
            (test_pod("web").container("app", STUBBORN).manifest(), format!("web-{NODE}"));
        sim.write_manifest("web.json", &manifest);
        sim.until_ready(&name).await;
        sim.crash().await;
        sim.remove_manifest("web.json");
        sim.fake.fail(Rule::on(Rpc::StopPodSandbox, Fault::Delay(s(9))).first(1));
        sim.start().await;
        let stopping = |sim: &Sim| sim.fake.count(Rpc::StopContainer) > 0;
        sim.until("the orphan is being stopped", s(30), stopping).await;
        sim.write_manifest("web.json", &manifest);
        // Until then it has no worker: two tasks must not act on one pod.
        let desired = |sim: &Sim| {
            let pods = sim.node().pod_index.pods();
            pods.iter().find(|pod| pod.is_static()).map(|pod| pod.uid.clone())
        };
        sim.until("its manifest is read", s(8), |sim| desired(sim).is_some()).await;
        let uid = desired(&sim).unwrap();
        sim.pass(s(1)).await;
        assert!(sim.node().pod_index.handle(&uid).is_none());
        let runs = |sim: &Sim| {
            let made = sim.fake.count(Rpc::RunPodSandbox);
            made == 2 && sim.fake.snapshot().running(&name) == ["app"]
        };
        sim.until("it runs in a new sandbox", s(60), runs).await;
        sim.pass(s(60)).await;
        assert!(runs(&sim), "and goes on");
        assert_invariants(&sim);
    });
}

#[test]
fn third_of_three_static_pods_of_one_name_does_not_run_beside_the_second() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        let done = test_pod("web").container("app", INIT).restart("Never").manifest();
        sim.write_manifest("web.json", &done);
        sim.until("it completes", s(30), |sim| {
            let pod = sim.record.pod(&name);
            pod.is_some_and(|pod| sim::record::phase(&pod).is_terminal())
        })
        .await;
        sim.write_manifest("web.json", &test_pod("web").container("app", STUBBORN).manifest());
        sim.pass(s(1)).await;
        sim.write_manifest("web.json", &test_pod("web").container("app", APP_2).manifest());
        for _ in 0..60 {
            sim.pass(s(1)).await;
            assert!(sim.fake.snapshot().running(&name).len() <= 1, "two run at once");
        }
        assert_eq!(sim.fake.snapshot().running(&name), ["app"]);
        assert_invariants(&sim);
    });
}

#[test]
fn rejected_static_pod_is_judged_again_after_a_restart_and_an_api_pod_is_not() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let with_port = |name: &str| {
            test_pod(name).container("app", APP).edit(|pod| {
                let port = json!([{ "containerPort": 80, "hostPort": 8080 }]);
                pod["spec"]["containers"][0]["ports"] = port;
            })
        };
        sim.create(&with_port("first")).await;
        sim.until_ready("first").await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &with_port("web").manifest());
        sim.create(&with_port("api")).await;
        let rejected = |sim: &Sim, name: &str| {
            let pod = sim.record.pod(name);
            pod.is_some_and(|pod| sim::record::phase(&pod).as_str() == "Failed")
        };
        sim.until("both are rejected", s(60), |sim| rejected(sim, &name) && rejected(sim, "api"))
            .await;
        sim.delete("first", None).await;
        sim.until_gone("first").await;
        sim.restart().await;
        sim.until_ready(&name).await;
        sim.pass(s(30)).await;
        assert!(rejected(&sim, "api"));
        assert_eq!(sim.fake.snapshot().running("api"), [""; 0]);
    });
}

#[test]
fn pod_rejected_before_all_pods_are_known_is_reported_as_failed() {
    sim::run(async {
        let mut sim = Sim::new(Options::default()).await;
        // The first round of housekeeping, which knows all pods, comes after the rejection.
        sim.api.fail(ApiRule::on(Verb::List, "pods", ApiFault::Delay(s(1))).first(1));
        let big = test_pod("big").container("app", APP).edit(|pod| {
            let requests = json!({ "requests": { "memory": "900Gi" } });
            pod["spec"]["containers"][0]["resources"] = requests;
        });
        sim.create(&big).await;
        sim.start().await;
        sim.until("it is reported as failed", s(15), |sim| {
            let pod = sim.record.pod("big");
            pod.is_some_and(|pod| sim::record::phase(&pod).as_str() == "Failed")
        })
        .await;
    });
}
