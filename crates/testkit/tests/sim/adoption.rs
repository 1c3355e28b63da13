//! Static pods of a node that another node agent ran before.

use podwright_fake_runtime::{Fault, Rpc, Rule};
use podwright_testkit::sim::test_pod::{APP, APP_2, NODE, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim};
use serde_json::json;

use super::{assert_invariants, s};

/// A UID as another node agent computes it.
const OTHERS: &str = "5f1c1d3b8ef84e0a9f60a2b7f4d2c8aa";
const FILE: &str = "web.json";

fn web() -> TestPod {
    test_pod("web").container("app", APP).edit(|pod| {
        let container = &mut pod["spec"]["containers"][0];
        container["env"] = json!([{ "name": "COLOUR", "value": "blue" }]);
        container["volumeMounts"] = json!([
            { "name": "names", "mountPath": "/names" },
            { "name": "data", "mountPath": "/data" },
        ]);
        let name = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
        pod["spec"]["volumes"] = json!([
            { "name": "names", "downwardAPI": { "items": [name] } },
            { "name": "data", "hostPath": { "path": "/" } },
        ]);
    })
}

/// A node whose previous agent runs the pod under its own UID, and is gone.
async fn taken_over() -> (Sim, String) {
    let mut sim = Sim::started(Options::default()).await;
    let of_other = web().edit(|pod| pod["metadata"]["uid"] = json!(OTHERS));
    sim.write_manifest(FILE, &of_other.manifest());
    let name = format!("web-{NODE}");
    sim.until_ready(&name).await;
    sim.crash().await;
    (sim, name)
}

fn container(sim: &Sim, name: &str) -> (String, String) {
    let snapshot = sim.fake.snapshot();
    let mut containers = snapshot.containers_of(name);
    let only = containers.next().expect("a container");
    assert!(containers.next().is_none(), "two containers");
    (only.id.clone(), only.pod.uid.to_string())
}

#[test]
fn static_pod_of_the_previous_agent_goes_on_after_each_start() {
    sim::run(async {
        let (mut sim, name) = taken_over().await;
        let before = container(&sim, &name);
        assert_eq!(before.1, OTHERS);
        sim.write_manifest(FILE, &web().manifest());
        for _ in 0..3 {
            sim.start().await;
            sim.until_ready(&name).await;
            sim.pass(s(60)).await;
            assert_eq!(container(&sim, &name), before);
            assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
            sim.crash().await;
        }
        // An edit replaces it as any static pod.
        sim.start().await;
        sim.write_manifest(FILE, &test_pod("web").container("app", APP_2).manifest());
        sim.until("it is replaced", s(60), |sim| {
            let snapshot = sim.fake.snapshot();
            snapshot.running(&name) == ["app"]
                && snapshot
                    .containers_of(&name)
                    .all(|container| container.pod.uid.as_str() != OTHERS)
        })
        .await;
        assert_invariants(&sim);
    });
}

#[test]
fn adopted_pod_keeps_its_uid_when_its_container_ends_while_no_agent_runs() {
    sim::run(async {
        let (mut sim, name) = taken_over().await;
        sim.write_manifest(FILE, &web().manifest());
        sim.start().await;
        sim.pass(s(10)).await;
        sim.crash().await;
        assert!(sim.fake.kill_container(&name, "app", 137));
        sim.start().await;
        let restarted = |sim: &Sim| sim.fake.snapshot().running(&name) == ["app"];
        sim.until("it runs again", s(60), restarted).await;
        let snapshot = sim.fake.snapshot();
        assert!(
            snapshot.containers_of(&name).all(|container| container.pod.uid.as_str() == OTHERS)
        );
        assert_eq!(sim.fake.count(Rpc::RunPodSandbox), 1);
        assert_invariants(&sim);
    });
}

#[test]
fn failing_runtime_calls_do_not_keep_a_static_pod_from_being_adopted() {
    sim::run(async {
        let (mut sim, name) = taken_over().await;
        let before = container(&sim, &name);
        sim.write_manifest(FILE, &web().manifest());
        sim.fake.fail(Rule::on(Rpc::ContainerStatus, Fault::Disconnect).pod(&name).first(5));
        sim.start().await;
        sim.until_ready(&name).await;
        sim.pass(s(60)).await;
        assert_eq!(container(&sim, &name), before);
        assert_invariants(&sim);
    });
}

#[test]
fn static_pod_that_differs_from_the_running_one_replaces_it() {
    sim::run(async {
        let (mut sim, name) = taken_over().await;
        let edited =
            web().edit(|pod| pod["spec"]["containers"][0]["env"][0]["value"] = json!("red"));
        sim.write_manifest(FILE, &edited.manifest());
        sim.start().await;
        sim.until("it is replaced", s(60), |sim| {
            let snapshot = sim.fake.snapshot();
            snapshot.running(&name) == ["app"]
                && snapshot
                    .containers_of(&name)
                    .all(|container| container.pod.uid.as_str() != OTHERS)
        })
        .await;
        assert_invariants(&sim);
    });
}
