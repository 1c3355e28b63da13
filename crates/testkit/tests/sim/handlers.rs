//! Runtime handlers: those that the runtime reports, and those that RuntimeClasses name.

use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;
use kube::api::PostParams;
use podwright_fake_runtime::{Features, Rpc};
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::test_pod::{APP, test_pod};
use podwright_testkit::sim::{self, Options, Sim};
use serde_json::json;

use super::{assert_invariants, s};

#[test]
fn handlers_are_used_that_the_runtime_reports_after_the_agents_start() {
    sim::run(async {
        // The agent of a simulation is started without any.
        let features = Features::containerd_2();
        let sim = Sim::started(Options { features, ..Options::default() }).await;
        let web = test_pod("web").container("app", APP).edit(|pod| {
            pod["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": {} }]);
            pod["spec"]["containers"][0]["volumeMounts"] = json!([{
                "name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "Enabled",
            }]);
        });
        sim.create(&web).await;
        sim.until_ready("web").await;
        assert_invariants(&sim);
    });
}

#[test]
fn sandbox_is_created_again_while_its_runtime_class_cannot_be_read() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        create_class(&sim).await;
        let web = test_pod("web")
            .container("app", APP)
            .edit(|pod| pod["spec"]["runtimeClassName"] = json!("slow"));
        sim.create(&web).await;
        sim.until_ready("web").await;
        sim.api.fail(ApiRule::on(Verb::Get, "runtimeclasses", ApiFault::Error(503)));
        let before = sim.fake.count(Rpc::RunPodSandbox);
        assert!(sim.fake.kill_sandbox("web"));
        sim.until("it runs in another sandbox", s(120), |sim| {
            let again = sim.fake.count(Rpc::RunPodSandbox) > before;
            again && sim.fake.snapshot().running("web") == ["app"]
        })
        .await;
        assert_invariants(&sim);
        // The API server's word that there is no such class counts.
        sim.api.heal();
        sim.api.fail(ApiRule::on(Verb::Get, "runtimeclasses", ApiFault::Error(404)));
        let before = sim.fake.count(Rpc::RunPodSandbox);
        assert!(sim.fake.kill_sandbox("web"));
        sim.pass(s(120)).await;
        assert_eq!(sim.fake.count(Rpc::RunPodSandbox), before);
    });
}

#[test]
fn agent_started_during_an_outage_goes_on_with_the_handler_of_the_sandbox() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        create_class(&sim).await;
        let web = test_pod("web")
            .container("app", APP)
            .edit(|pod| pod["spec"]["runtimeClassName"] = json!("slow"));
        sim.create(&web).await;
        sim.until_ready("web").await;
        sim.api.fail(ApiRule::on(Verb::Get, "runtimeclasses", ApiFault::Error(503)));
        sim.restart().await;
        assert!(sim.fake.kill_container("web", "app", 1));
        let running = |sim: &Sim| sim.fake.snapshot().running("web") == ["app"];
        sim.until("the container runs again", s(120), running).await;
        let before = sim.fake.count(Rpc::RunPodSandbox);
        assert!(sim.fake.kill_sandbox("web"));
        sim.until("it runs in another sandbox", s(120), |sim| {
            sim.fake.count(Rpc::RunPodSandbox) > before && running(sim)
        })
        .await;
        assert_invariants(&sim);
    });
}

async fn create_class(sim: &Sim) {
    let class = json!({ "metadata": { "name": "slow" }, "handler": "runc-slow" });
    let classes: Api<RuntimeClass> = Api::all(sim.users_client());
    let class = serde_json::from_value(class).unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap();
}
