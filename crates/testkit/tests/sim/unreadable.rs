//! API pods with values that this agent does not support, as from a newer API server.

use podwright_fake_runtime::{Call, Rpc};
use podwright_testkit::sim::test_pod::{APP, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::{Value, json};

use crate::{assert_invariants, clean, phases, s};

/// Enum values that no version of Kubernetes has, in every enum of a pod that is acted on.
fn unknown_values(pod: &mut Value) {
    if pod["metadata"]["name"] != "web" {
        return;
    }
    let spec = &mut pod["spec"];
    spec["restartPolicy"] = "Sometimes".into();
    spec["preemptionPolicy"] = "Sometimes".into();
    let container = &mut spec["containers"][0];
    container["restartPolicy"] = "Sometimes".into();
    container["restartPolicyRules"] = json!([
        { "action": "Restart", "exitCodes": { "operator": "Near", "values": [1] } },
        { "action": "Sleep", "exitCodes": { "operator": "In", "values": [2] } },
        { "action": "Restart" },
    ]);
    container["imagePullPolicy"] = "Sometimes".into();
    container["terminationMessagePolicy"] = "Sometimes".into();
    container["ports"] = json!([{ "containerPort": 80, "protocol": "QUIC" }]);
}

/// A container without a name cannot be run.
fn nameless(pod: &mut Value) {
    if pod["metadata"]["name"] == "web" {
        pod["spec"]["containers"][0]["name"] = "".into();
    }
}

/// Fields that this agent does not know, at each level of a pod, and an operator.
fn unknown_fields(pod: &mut Value) {
    if pod["metadata"]["name"] != "web" {
        return;
    }
    pod["metadata"]["newField"] = json!({ "a": [1] });
    let spec = &mut pod["spec"];
    spec["newFeature"] = json!({ "mode": "Fast" });
    spec["tolerations"] = json!([
        { "key": "a", "operator": "Near", "value": "5", "newField": 1 },
    ]);
    spec["containers"][0]["newField"] = json!([{ "name": "x" }]);
    spec["containers"][0]["securityContext"] = json!({ "newField": true });
}

/// The only source of this volume is of a newer version.
fn unknown_volume(pod: &mut Value) {
    if pod["metadata"]["name"] == "web" {
        pod["spec"]["volumes"] = json!([{ "name": "v", "hologram": { "depth": 3 } }]);
        let mounts = json!([{ "name": "v", "mountPath": "/v" }]);
        pod["spec"]["containers"][0]["volumeMounts"] = mounts;
    }
}

/// The operator of this requirement is of a newer version.
fn unknown_requirement(pod: &mut Value) {
    if pod["metadata"]["name"] == "web" {
        pod["spec"]["affinity"] = json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "a", "operator": "Near", "values": ["b"] }] },
            ] },
        } });
    }
}

fn stops(sim: &Sim) -> Vec<Call> {
    sim.fake.calls().into_iter().filter(|call| call.rpc == Rpc::StopContainer).collect()
}

#[test]
fn api_pod_with_unknown_enum_values_runs_restarts_and_is_deleted() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.api.rewrite_pods(unknown_values);
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        // An unknown restart policy restarts, as an unset one does.
        assert!(sim.fake.kill_container("web", "app", 0));
        let again = |sim: &Sim| {
            let pod = sim.record.pod("web").unwrap();
            record::is_ready(&pod) && record::containers(&pod)[0].restart_count == 1
        };
        sim.until("it restarted", s(60), again).await;
        sim.restart().await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        assert_eq!(stops(&sim), [], "{}", sim.history());
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        assert_eq!(stops(&sim)[0].grace, Some(10), "{}", sim.history());
        sim.pass(s(10)).await;
        assert_invariants(&sim);
        clean(&sim, &[]);
    });
}

#[test]
fn running_pod_whose_object_becomes_unreadable_runs_until_it_is_deleted() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        let neighbour = sim.create(&test_pod("neighbour").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.until_ready("neighbour").await;
        sim.api.rewrite_pods(nameless);
        assert!(sim.patch("web", json!({ "metadata": { "labels": { "a": "b" } } })).await);
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        // An agent that never parsed it finds it running.
        sim.restart().await;
        sim.pass(s(300)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"], "{}", sim.history());
        assert_eq!(stops(&sim), [], "{}", sim.history());
        assert!(sim.environment.pods_with_directory().contains(&uid));
        assert!(sim.environment.pods_with_cgroup().contains(&uid));
        assert_eq!(phases(&sim.record.of(&uid)).last(), Some(&"Running"), "{}", sim.history());
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        assert_eq!(stops(&sim)[0].grace, Some(10), "{}", sim.history());
        sim.pass(s(10)).await;
        assert_eq!(invariants::disturbances(&sim, &neighbour), [""; 0]);
        assert_invariants(&sim);
        clean(&sim, &[neighbour]);
    });
}

#[test]
fn unreadable_pod_is_rejected_with_a_reason_and_can_be_deleted() {
    for gracefully in [true, false] {
        sim::run(async {
            let mut sim = Sim::started(Options::default()).await;
            sim.api.rewrite_pods(nameless);
            let uid = sim.create(&test_pod("web").container("app", APP)).await;
            let failed = |sim: &Sim| phases(&sim.record.of(&uid)).last() == Some(&"Failed");
            sim.until("it is rejected", s(30), failed).await;
            let status = sim.record.pod("web").unwrap().status.clone().unwrap();
            assert_eq!(status.reason.as_deref(), Some("FailedValidation"));
            let message = status.message.unwrap_or_default();
            assert!(message.starts_with("Pod was rejected: "), "{message}");
            assert!(message.contains("a container without a name"), "{message}");
            assert!(sim.events("web").await.contains(&"FailedValidation".to_owned()));
            sim.restart().await;
            sim.pass(s(30)).await;
            assert_eq!(sim.fake.count(Rpc::RunPodSandbox), 0, "{}", sim.history());
            sim.delete("web", (!gracefully).then_some(0)).await;
            sim.until_gone("web").await;
            sim.pass(s(10)).await;
            assert_invariants(&sim);
            clean(&sim, &[]);
        });
    }
}

#[test]
fn api_pod_with_fields_of_a_newer_version_runs_and_is_deleted() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.api.rewrite_pods(unknown_fields);
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.restart().await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        assert_eq!(stops(&sim), [], "{}", sim.history());
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(s(10)).await;
        assert_invariants(&sim);
        clean(&sim, &[]);
    });
}

#[test]
fn pod_with_a_volume_of_a_newer_version_waits_with_a_reason_and_can_be_deleted() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.api.rewrite_pods(unknown_volume);
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.pass(s(60)).await;
        assert_eq!(sim.fake.count(Rpc::CreateContainer), 0, "{}", sim.history());
        assert!(sim.events("web").await.contains(&"FailedMount".to_owned()));
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(s(10)).await;
        assert_invariants(&sim);
        clean(&sim, &[]);
    });
}

#[test]
fn pod_with_an_operator_of_a_newer_version_is_rejected_and_can_be_deleted() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.api.rewrite_pods(unknown_requirement);
        let uid = sim.create(&test_pod("web").container("app", APP)).await;
        let failed = |sim: &Sim| phases(&sim.record.of(&uid)).last() == Some(&"Failed");
        sim.until("it is rejected", s(30), failed).await;
        let status = sim.record.pod("web").unwrap().status.clone().unwrap();
        assert_eq!(status.reason.as_deref(), Some("NodeAffinity"), "{:?}", status.message);
        assert_eq!(sim.fake.count(Rpc::RunPodSandbox), 0, "{}", sim.history());
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(s(10)).await;
        assert_invariants(&sim);
        clean(&sim, &[]);
    });
}
