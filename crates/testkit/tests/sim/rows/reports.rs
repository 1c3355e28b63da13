//! What the API server is told, and what others write into it.

use k8s_openapi::api::core::v1;
use podwright_core::pod::Phase;
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::wish::{APP, NODE, STUBBORN, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;

use crate::{lawful, s};

#[test]
fn row_34_a_gate_that_its_owner_opens_makes_the_pod_ready_without_a_look() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let gated = wish("web").container("app", APP).edit(|pod| {
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
            sim.until("Ready follows the gate", s(2), follows).await;
        }
        let starts = sim.fake.count(podwright_cri::fake::Rpc::StartContainer);
        assert_eq!(starts, 1);
    });
}

#[test]
fn row_35_a_report_about_a_pod_that_was_replaced_touches_its_successor_not() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let old = sim.create(&wish("web").container("app", STUBBORN)).await;
        sim.until_ready("web").await;
        let delay = ApiFault::Delay(s(4));
        sim.api.fail(ApiRule::on(Verb::Patch, "pods/status", delay).first(1));
        sim.delete("web", None).await;
        sim.pass(s(1)).await;
        sim.delete("web", Some(0)).await;
        let new = sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(60)).await;
        assert_eq!(laws::disturbances(&sim, &new), [""; 0]);
        assert!(sim.record.of(&old).last().unwrap().gone);
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        lawful(&sim);
    });
}

#[test]
fn row_36_a_foreign_edit_is_repaired_and_foreign_conditions_stay() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").container("app", APP)).await;
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
        sim.until("it is repaired", s(11), repaired).await;
        let pod = sim.record.pod("web").unwrap();
        assert_eq!(record::condition(&pod, "example.com/mine"), Some(true));
    });
}

#[test]
fn row_37_a_pod_that_does_not_change_costs_no_request() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        for n in 0..10 {
            sim.create(&wish(&format!("web-{n}")).container("app", APP)).await;
        }
        sim.until_ready("web-9").await;
        sim.pass(s(30)).await;
        let said = laws::chatter(&sim, 4).await;
        assert_eq!(said.api, 0, "{said:?}");
        assert!(said.runtime <= 60, "{said:?}");
    });
}

#[test]
fn row_39_a_mirror_that_a_user_deletes_is_back_at_once() {
    for grace in [None, Some(0)] {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let name = format!("web-{NODE}");
            sim.write_manifest("web.json", &wish("web").container("app", APP).manifest());
            sim.until_ready(&name).await;
            let uid = sim.record.pod(&name).unwrap().metadata.uid.clone();
            sim.delete(&name, grace).await;
            let back = |sim: &Sim| {
                let pod = sim.record.pod(&name);
                pod.is_some_and(|pod| pod.metadata.uid != uid && record::is_ready(&pod))
            };
            sim.until("a new mirror", s(3), back).await;
            assert_eq!(sim.fake.count(podwright_cri::fake::Rpc::StopContainer), 0);
        });
    }
}

#[test]
fn row_40_a_mirror_stays_until_its_pod_has_stopped() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &wish("web").container("app", STUBBORN).manifest());
        sim.until_ready(&name).await;
        sim.remove_manifest("web.json");
        sim.pass(s(8)).await;
        assert!(sim.record.pod(&name).is_some(), "its container still stops");
        sim.until_gone(&name).await;
        assert!(sim.fake.snapshot().running(&name).is_empty());
    });
}

#[test]
fn a_mirror_stays_as_it_is_until_the_pod_before_an_edit_has_stopped() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.write_manifest("web.json", &wish("web").container("app", STUBBORN).manifest());
        sim.until_ready(&name).await;
        let before = sim.record.pod(&name).unwrap().metadata.uid.clone();
        sim.write_manifest("web.json", &wish("web").container("app", APP).manifest());
        for _ in 0..8 {
            sim.pass(s(1)).await;
            let mirror = sim.record.pod(&name).unwrap();
            assert_eq!(mirror.metadata.uid, before, "its container still stops");
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
fn a_manifest_deleted_and_written_again_in_one_breath_is_another_life() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        let manifest = wish("web").container("app", APP).manifest();
        sim.write_manifest("web.json", &manifest);
        sim.until_ready(&name).await;
        sim.remove_manifest("web.json");
        sim.write_manifest("web.json", &manifest);
        let again = |sim: &Sim| {
            let mirror = sim.record.pod(&name);
            let once = |pod: &v1::Pod| record::containers(pod).iter().all(|c| c.restart_count == 1);
            mirror.is_some_and(|pod| once(&pod) && record::is_ready(&pod))
        };
        sim.until("its second life", s(60), again).await;
        assert_eq!(sim.fake.snapshot().running(&name).len(), 1);
    });
}
