//! Service account tokens of pods that outlive the agent that fetched the first one.

use k8s_openapi::api::core::v1;
use podwright_fake_runtime::Rpc;
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::test_pod::{APP, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;

use crate::{assert_invariants, mounting, s};

const TOKEN: &str = "serviceaccounts/token";
/// A token of one hour is renewed well before this.
const RENEWED_WITHIN: u64 = 50 * 60;

/// A simulation with a running pod that has a token.
async fn pod_with_token(pod: &TestPod) -> (Sim, String) {
    let sim = Sim::started(Options::default()).await;
    sim.make::<v1::ServiceAccount>("robot", json!({})).await;
    sim.make::<v1::Secret>("secret", json!({ "stringData": { "key": "value" } })).await;
    let uid = sim.create(pod).await;
    sim.until("it runs", s(60), |sim| !sim.fake.snapshot().running("web").is_empty()).await;
    (sim, uid)
}

/// The token as the pod's containers read it.
fn token(sim: &Sim, uid: &str) -> String {
    let path = format!("pods/{uid}/volumes/kubernetes.io~projected/token/token");
    std::fs::read_to_string(sim.environment.root().join(path)).expect("a token")
}

/// Granted token requests.
fn granted(sim: &Sim) -> usize {
    let calls = sim.api.calls();
    let granted = |call: &&sim::api::ApiCall| call.resource == TOKEN && call.code == Some(201);
    calls.iter().filter(granted).count()
}

async fn until_renewed(sim: &Sim, uid: &str, what: &str) {
    let before = token(sim, uid);
    sim.until(what, s(RENEWED_WITHIN), |sim| token(sim, uid) != before).await;
}

#[test]
fn token_is_renewed_after_a_restart_although_the_first_requests_fail() {
    if !mounting() {
        return;
    }
    sim::run(async {
        let web = test_pod("web").container("app", APP).with_token_of("robot");
        let (mut sim, uid) = pod_with_token(&web).await;
        sim.until_ready("web").await;
        sim.crash().await;
        sim.api.fail(ApiRule::on(Verb::Create, TOKEN, ApiFault::Error(500)).first(6));
        sim.start().await;
        until_renewed(&sim, &uid, "the restarted agent fetches a token").await;
        until_renewed(&sim, &uid, "and the next one").await;
        assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0, "{}", sim.history());
        assert_invariants(&sim);
    });
}

#[test]
fn token_is_renewed_after_a_restart_although_another_volume_is_broken() {
    if !mounting() {
        return;
    }
    sim::run(async {
        let web = test_pod("web").container("app", APP).with_token_of("robot").edit(|pod| {
            let volume = json!({ "name": "broken", "secret": { "secretName": "secret" } });
            let mount = json!({ "name": "broken", "mountPath": "/broken" });
            pod["spec"]["volumes"].as_array_mut().unwrap().insert(0, volume);
            let mounts = &mut pod["spec"]["containers"][0]["volumeMounts"];
            mounts.as_array_mut().unwrap().insert(0, mount);
        });
        let (mut sim, uid) = pod_with_token(&web).await;
        sim.until_ready("web").await;
        sim.crash().await;
        let secrets: kube::Api<v1::Secret> = kube::Api::namespaced(sim.users_client(), "default");
        secrets.delete("secret", &Default::default()).await.unwrap();
        sim.start().await;
        until_renewed(&sim, &uid, "the restarted agent fetches a token").await;
        until_renewed(&sim, &uid, "and the next one").await;
        // Neither is requested repeatedly while the other volume stays broken.
        sim.pass(s(600)).await;
        assert!(granted(&sim) <= 4, "{} tokens\n{}", granted(&sim), sim.history());
        let events = sim.events("web").await;
        assert!(events.contains(&"FailedMount".to_owned()), "{events:?}");
        assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        // The missing object is recreated, and with it the volume.
        sim.make::<v1::Secret>("secret", json!({ "stringData": { "key": "newer" } })).await;
        let file = format!("pods/{uid}/volumes/kubernetes.io~secret/broken/key");
        let file = sim.environment.root().join(file);
        let newer = |_: &Sim| std::fs::read_to_string(&file).is_ok_and(|text| text == "newer");
        sim.until("the volume shows the new Secret", s(300), newer).await;
        assert_invariants(&sim);
    });
}

#[test]
fn token_is_renewed_soon_after_the_machine_was_suspended() {
    if !mounting() {
        return;
    }
    sim::run(async {
        let web = test_pod("web").container("app", APP).with_token_of("robot");
        let (sim, uid) = pod_with_token(&web).await;
        sim.until_ready("web").await;
        sim.pass(s(60)).await;
        // The monotonic clock stands still while the machine is suspended.
        sim.clock.step_wall(jiff::SignedDuration::from_hours(2));
        let before = token(&sim, &uid);
        sim.until("the token is renewed", s(360), |sim| token(sim, &uid) != before).await;
        assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        assert_invariants(&sim);
    });
}

#[test]
fn token_of_a_pod_in_a_long_init_container_is_renewed_after_a_restart() {
    if !mounting() {
        return;
    }
    sim::run(async {
        let web = test_pod("web").init("long", APP).container("app", APP).with_token_of("robot");
        let (mut sim, uid) = pod_with_token(&web).await;
        sim.pass(s(5)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["long"]);
        assert_eq!(record::phase(&sim.record.pod("web").unwrap()).as_str(), "Pending");
        sim.restart().await;
        until_renewed(&sim, &uid, "the restarted agent fetches a token").await;
        until_renewed(&sim, &uid, "and the next one").await;
        assert_eq!(sim.fake.snapshot().running("web"), ["long"]);
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0, "{}", sim.history());
        assert_invariants(&sim);
    });
}
