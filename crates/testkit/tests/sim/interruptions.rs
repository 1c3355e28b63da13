//! Stops, restarts and removals that something interrupts on the way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{Patch, PatchParams};
use podwright_fake_runtime::{Code, ExecReply, Fault, Rpc, Rule, Script};
use podwright_testkit::sim::test_pod::{APP, APP_2, INIT, NODE, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim};
use serde_json::json;

use super::{assert_invariants, s};

/// A pod whose preStop hook takes 20 of its 60 seconds.
fn draining(sim: &Sim) -> TestPod {
    let drain = ExecReply::exits(0).taking(Duration::from_secs(20));
    let alive = ExecReply::exits(1);
    sim.fake.script(APP, Script::forever().exec(&["drain"], drain).exec(&["alive"], alive));
    test_pod("web").container("app", APP).grace(60).edit(|pod| {
        let hook = json!({ "preStop": { "exec": { "command": ["drain"] } } });
        pod["spec"]["containers"][0]["lifecycle"] = hook;
    })
}

async fn until_stopped(sim: &Sim) {
    sim.until("StopContainer", s(120), |sim| sim.fake.count(Rpc::StopContainer) > 0).await;
}

#[test]
fn shorter_grace_period_does_not_cut_the_pre_stop_hook_off() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&draining(&sim)).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        sim.until("the hook runs", s(30), |sim| sim.fake.count(Rpc::ExecSync) == 1).await;
        let began = sim.age();
        sim.pass(s(5)).await;
        sim.delete("web", Some(40)).await;
        until_stopped(&sim).await;
        assert!(sim.age() - began >= s(19), "stopped after {:?}", sim.age() - began);
        assert_invariants(&sim);
    });
}

#[test]
fn container_that_survives_an_interrupted_liveness_stop_is_later_deleted_gracefully() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let recovered = Arc::new(AtomicBool::new(false));
        let answers = recovered.clone();
        let pod = draining(&sim).edit(|pod| {
            pod["spec"]["containers"][0]["livenessProbe"] = json!({
                "exec": { "command": ["alive"] },
                "initialDelaySeconds": 5, "periodSeconds": 2, "failureThreshold": 1,
            });
        });
        sim.fake.handle_exec(move |call| {
            let is_probe = format!("{call:?}").contains("alive");
            (is_probe && answers.load(Ordering::SeqCst)).then(|| ExecReply::exits(0))
        });
        sim.create(&pod).await;
        sim.until("the hook of the liveness stop runs", s(60), |sim| {
            sim.fake.count(Rpc::ExecSync) >= 2
        })
        .await;
        sim.pass(s(2)).await;
        sim.crash().await;
        recovered.store(true, Ordering::SeqCst);
        sim.start().await;
        sim.pass(s(600)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"], "it runs on");
        let before = sim.age();
        sim.delete("web", None).await;
        until_stopped(&sim).await;
        assert!(sim.age() - before >= s(19), "stopped after {:?}", sim.age() - before);
    });
}

#[test]
fn sleep_hook_gets_the_rest_of_its_time_after_an_agent_restart() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let pod = test_pod("web").container("app", APP).grace(60).edit(|pod| {
            let hook = json!({ "preStop": { "sleep": { "seconds": 30 } } });
            pod["spec"]["containers"][0]["lifecycle"] = hook;
        });
        sim.create(&pod).await;
        sim.until_ready("web").await;
        sim.delete("web", None).await;
        let began = sim.age();
        sim.pass(s(3)).await;
        sim.restart().await;
        until_stopped(&sim).await;
        let after = sim.age() - began;
        assert!((s(29)..s(35)).contains(&after), "stopped after {after:?}");
    });
}

#[test]
fn failed_removal_does_not_lose_the_trigger_of_a_restart_of_all_containers() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let pod = test_pod("web").init("first", INIT).container("app", APP);
        let pod = pod.container("other", APP_2).edit(|pod| {
            let container = &mut pod["spec"]["containers"][0];
            container["restartPolicy"] = json!("Never");
            container["restartPolicyRules"] = json!([{
                "action": "RestartAllContainers",
                "exitCodes": { "operator": "In", "values": [7] },
            }]);
        });
        sim.create(&pod).await;
        sim.until_ready("web").await;
        assert_eq!(sim.fake.count(Rpc::StartContainer), 3);
        let busy = Fault::Error(Code::Unknown, "busy".into());
        let rule = Rule::on(Rpc::RemoveContainer, busy).pod("web").container("first").first(1);
        sim.fake.fail(rule);
        assert!(sim.fake.kill_container("web", "app", 7));
        sim.pass(s(120)).await;
        assert_eq!(sim.fake.count(Rpc::StartContainer), 6, "the init container runs again, too");
    });
}

#[test]
fn static_pod_gets_its_name_and_mirror_pod_when_the_api_pod_of_that_name_is_gone() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let name = format!("web-{NODE}");
        sim.create(&test_pod(&name).container("app", APP)).await;
        sim.until_ready(&name).await;
        sim.write_manifest("web.json", &test_pod("web").container("app", APP_2).manifest());
        sim.pass(s(20)).await;
        sim.patch(&name, json!({ "metadata": { "labels": { "a": "b" } } })).await;
        sim.pass(s(5)).await;
        sim.delete(&name, None).await;
        sim.until("the mirror pod exists", s(120), |sim| {
            let pod = sim.record.pod(&name);
            let image = pod.and_then(|pod| pod.spec.as_ref()?.containers.first()?.image.clone());
            image.as_deref() == Some(APP_2)
        })
        .await;
    });
}

#[test]
fn ephemeral_container_that_the_runtime_lost_is_not_run_again() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let api: Api<v1::Pod> = Api::namespaced(sim.users_client(), "default");
        let debug =
            json!({ "spec": { "ephemeralContainers": [{ "name": "debug", "image": APP_2 }] } });
        let (params, patch) = (PatchParams::default(), Patch::Strategic(&debug));
        api.patch_subresource("ephemeralcontainers", "web", &params, &patch).await.unwrap();
        let runs = |sim: &Sim| sim.fake.snapshot().running("web").contains(&"debug");
        sim.until("it runs", s(60), runs).await;
        sim.pass(s(20)).await;
        assert!(sim.fake.remove_container_externally("web", "debug"));
        sim.pass(s(900)).await;
        assert!(!runs(&sim));
        let pod = sim.record.pod("web").unwrap();
        let status = pod.status.as_ref().unwrap().ephemeral_container_statuses.clone().unwrap();
        let state = status[0].state.clone().unwrap();
        assert_eq!(state.terminated.unwrap().reason.as_deref(), Some("ContainerStatusUnknown"));
        assert_eq!(status[0].restart_count, 0);
    });
}

#[test]
fn mirror_pod_follows_soon_after_an_api_outage() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.pass(s(30)).await;
        sim.api.go_down();
        sim.write_manifest("web.json", &test_pod("web").container("app", APP).manifest());
        sim.pass(s(600)).await;
        sim.api.come_up();
        let name = format!("web-{NODE}");
        sim.until("the mirror pod exists", s(15), |sim| sim.record.pod(&name).is_some()).await;
    });
}
