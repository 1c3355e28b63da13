//! Pod statuses and mirror pods in the API, and foreign writes to them.

use k8s_openapi::api::core::v1;
use podwright_core::pod::Phase;
use podwright_core::throttle::RequestLimit;
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::test_pod::{APP, NODE, STUBBORN, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;

use crate::{assert_invariants, s};

#[test]
fn readiness_gate_makes_the_pod_ready_without_an_inspection() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let gated = test_pod("web").container("app", APP).edit(|pod| {
            pod["spec"]["readinessGates"] = json!([{ "conditionType": "example.com/gate" }]);
        });
        sim.create(&gated).await;
        let running = |sim: &Sim| {
            let pod = sim.record.pod("web");
            pod.is_some_and(|pod| record::condition(&pod, "ContainersReady") == Some(true))
        };
        sim.until("its containers are ready", s(60), running).await;
        assert!(!record::is_ready(&sim.record.pod("web").unwrap()));
        for (status, ready) in [("True", true), ("False", false), ("True", true)] {
            let gate = json!({ "type": "example.com/gate", "status": status });
            assert!(sim.patch_status("web", json!({ "status": { "conditions": [gate] } })).await);
            let follows = |sim: &Sim| record::is_ready(&sim.record.pod("web").unwrap()) == ready;
            sim.until("Ready follows the readiness gate", s(2), follows).await;
        }
        let starts = sim.fake.count(podwright_fake_runtime::Rpc::StartContainer);
        assert_eq!(starts, 1);
    });
}

#[test]
fn changes_of_ready_do_not_wait_for_the_request_rate() {
    sim::run(async {
        let request_limit = RequestLimit { per_second: 1, burst: 1 };
        let sim = Sim::started(Options { request_limit, ..Options::default() }).await;
        sim.pass(s(30)).await;
        sim.api.clear_calls();
        let (pods, began) = (20, sim.age());
        let names: Vec<String> = (0..pods).map(|n| format!("p{n}")).collect();
        for name in &names {
            sim.create(&test_pod(name).container("app", APP)).await;
        }
        let ready =
            |sim: &Sim, name: &str| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
        // At one request a second, their first reports alone would take longer.
        sim.until("all are ready", s(12), |sim| names.iter().all(|name| ready(sim, name))).await;
        sim.pass(s(60)).await;
        let calls = sim.api.calls();
        let reports = calls.iter().filter(|call| call.resource == "pods/status").count();
        let seconds = usize::try_from((sim.age() - began).as_secs()).unwrap();
        let allowed = pods + seconds + 1;
        assert!(reports <= allowed, "{reports} reports, {allowed} allowed");
        assert_invariants(&sim);
    });
}

#[test]
fn status_of_a_replaced_pod_does_not_reach_its_successor() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let old = sim.create(&test_pod("web").container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        let delay = ApiFault::Delay(s(4));
        sim.api.fail(ApiRule::on(Verb::Patch, "pods/status", delay).first(1));
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        sim.delete("web", Some(0)).await;
        let new = sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(60)).await;
        assert_eq!(invariants::disturbances(&sim, &new), [""; 0]);
        assert!(sim.record.of(&old).last().unwrap().gone);
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        assert_invariants(&sim);
    });
}

#[test]
fn foreign_status_edit_is_repaired_and_foreign_conditions_stay() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let conditions = json!([
            { "type": "Ready", "status": "False" },
            { "type": "example.com/mine", "status": "True" },
        ]);
        let edit = json!({ "status": { "phase": "Pending", "conditions": conditions } });
        assert!(sim.patch_status("web", edit).await);
        sim.pass(s(1)).await;
        let repaired = |sim: &Sim| {
            let pod = sim.record.pod("web").unwrap();
            record::is_ready(&pod) && record::phase(&pod).as_str() == "Running"
        };
        sim.until("the status is repaired", s(11), repaired).await;
        let pod = sim.record.pod("web").unwrap();
        assert_eq!(record::condition(&pod, "example.com/mine"), Some(true));
    });
}

#[test]
fn unchanged_pod_causes_no_request() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        for n in 0..10 {
            sim.create(&test_pod(&format!("web-{n}")).container("app", APP)).await;
        }
        sim.until_ready("web-9").await;
        sim.pass(s(30)).await;
        let said = invariants::request_rate(&sim, 4).await;
        assert_eq!(said.api, 0, "{said:?}");
        assert!(said.runtime <= 60, "{said:?}");
    });
}

#[test]
fn deleted_mirror_pod_is_recreated_at_once() {
    for grace in [None, Some(0)] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let name = format!("web-{NODE}");
            sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
            sim.until_ready(&name).await;
            let uid = sim.record.pod(&name).unwrap().metadata.uid.clone();
            sim.delete(&name, grace).await;
            let back = |sim: &Sim| {
                let pod = sim.record.pod(&name);
                pod.is_some_and(|pod| pod.metadata.uid != uid && record::is_ready(&pod))
            };
            sim.until("a new mirror pod", s(3), back).await;
            assert_eq!(sim.fake.count(podwright_fake_runtime::Rpc::StopContainer), 0);
        });
    }
}

#[test]
fn restarted_agent_continues_the_status_of_a_mirror_pod_that_is_delivered_late() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        sim.until_ready(&name).await;
        sim.pass(s(60)).await;
        let times = |sim: &Sim| {
            let status = sim.record.pod(&name).unwrap().status.clone().unwrap();
            let conditions = status.conditions.into_iter().flatten();
            let transitions: Vec<_> =
                conditions.map(|c| (c.type_, c.last_transition_time)).collect();
            (status.start_time.unwrap(), transitions)
        };
        let before = times(&sim);
        sim.api.fail(ApiRule::on(Verb::List, "pods", ApiFault::Delay(s(5))).first(1));
        sim.restart().await;
        sim.pass(s(30)).await;
        assert_eq!(times(&sim), before);
        // The agent does report, and what it reports next continues as well.
        assert!(sim.fake.kill_container(&name, "app", 1));
        let restarted = |sim: &Sim| {
            let pod = sim.record.pod(&name).unwrap();
            record::is_ready(&pod) && record::containers(&pod)[0].restart_count == 1
        };
        sim.until("the container is restarted", s(60), restarted).await;
        assert_eq!(times(&sim).0, before.0);
    });
}

#[test]
fn mirror_pod_stays_until_its_pod_has_stopped() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &test_pod("web").container("app", STUBBORN).manifest());
        sim.until_ready(&name).await;
        sim.remove_manifest("web.json");
        sim.pass(s(8)).await;
        assert!(sim.record.pod(&name).is_some(), "its container is still stopping");
        sim.until_gone(&name).await;
        assert!(sim.fake.snapshot().running(&name).is_empty());
    });
}

#[test]
fn mirror_pod_is_replaced_after_the_pod_before_an_edit_has_stopped() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &test_pod("web").container("app", STUBBORN).manifest());
        sim.until_ready(&name).await;
        let before = sim.record.pod(&name).unwrap().metadata.uid.clone();
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        for _ in 0..8 {
            sim.pass(s(1)).await;
            let mirror = sim.record.pod(&name).unwrap();
            assert_eq!(mirror.metadata.uid, before, "its container is still stopping");
            assert_eq!(record::phase(&mirror), Phase::Running);
        }
        let replaced = |sim: &Sim| {
            let mirror = sim.record.pod(&name);
            mirror.is_some_and(|pod| pod.metadata.uid != before && record::is_ready(&pod))
        };
        sim.until("the mirror of the new one", s(60), replaced).await;
    });
}

#[test]
fn manifest_deleted_and_rewritten_at_once_is_a_new_pod() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        let manifest = test_pod("web").container("app", APP).manifest();
        sim.write_manifest("web.json", &manifest);
        sim.until_ready(&name).await;
        sim.remove_manifest("web.json");
        sim.write_manifest("web.json", &manifest);
        let again = |sim: &Sim| {
            let mirror = sim.record.pod(&name);
            let once = |pod: &v1::Pod| record::containers(pod).iter().all(|c| c.restart_count == 1);
            mirror.is_some_and(|pod| once(&pod) && record::is_ready(&pod))
        };
        sim.until("the second pod runs", s(60), again).await;
        assert_eq!(sim.fake.snapshot().running(&name).len(), 1);
    });
}
