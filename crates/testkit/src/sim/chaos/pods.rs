//! Kinds of pods that chaos creates, each with its expected final state.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use podwright_fake_runtime::ExecReply;
use serde_json::json;

use super::ExpectedState;
use crate::sim::Sim;
use crate::sim::random::SeededRandom;
use crate::sim::test_pod::{APP, FAILS, FLAKY, INIT, JOB, REMOTE, STUBBORN, TestPod, test_pod};

const SETTINGS: &str = "settings";
/// The command of preStop hooks.
const HOOK: &str = "hook";

/// Creates what the pods refer to.
pub(super) async fn prepare(sim: &Sim) {
    sim.make::<ConfigMap>(SETTINGS, json!({ "data": { "key": "value" } })).await;
    let hook = ExecReply::exits(0).taking(Duration::from_secs(3));
    sim.fake.handle_exec(move |call| (call.command == [HOOK]).then(|| hook.clone()));
}

pub(super) fn random_pod(name: &str, random: &mut SeededRandom) -> (TestPod, ExpectedState) {
    let pod = test_pod(name);
    match random.below(13) {
        0 => (pod.container("app", APP), ExpectedState::Runs),
        1 => (pod.container("a", APP).container("b", FLAKY), ExpectedState::Runs),
        2 => {
            let pod = pod.init("first", INIT).sidecar("side", APP);
            (pod.container("a", APP).container("b", APP), ExpectedState::Runs)
        }
        3 => (pod.restart("Never").container("job", JOB), ExpectedState::Ends),
        4 => (pod.restart("OnFailure").container("job", JOB), ExpectedState::Succeeds),
        5 => (pod.restart("Never").init("first", FAILS).container("job", JOB), ExpectedState::Ends),
        6 => (pod.container("app", REMOTE), ExpectedState::Runs),
        7 => (pod.grace(4).host_network().container("app", STUBBORN), ExpectedState::Runs),
        8 => (probed(pod.container("app", APP)), ExpectedState::Runs),
        9 => {
            let pod = pod.sidecar("one", APP).sidecar("two", APP).container("app", APP);
            (hooked(pod), ExpectedState::Runs)
        }
        10 => (with_settings(pod.container("app", APP)), ExpectedState::Runs),
        11 => {
            let pod = pod.sidecar("side", APP).restart("Never").init("first", INIT);
            (pod.container("job", JOB), ExpectedState::Ends)
        }
        _ => {
            let seconds = 1 + random.below(20);
            let pod = pod.sidecar("side", APP).container("app", APP);
            let pod = pod.edit(|pod| pod["spec"]["activeDeadlineSeconds"] = seconds.into());
            (pod, ExpectedState::Ends)
        }
    }
}

/// Rarely probed: probes are calls, and an idle node makes few of them.
fn probed(pod: TestPod) -> TestPod {
    pod.edit(|pod| {
        let probe = json!({ "exec": { "command": ["probe"] }, "periodSeconds": 60 });
        for kind in ["livenessProbe", "readinessProbe"] {
            pod["spec"]["containers"][0][kind] = probe.clone();
        }
        pod["spec"]["containers"][0]["startupProbe"] =
            json!({ "exec": { "command": ["probe"] }, "periodSeconds": 1, "failureThreshold": 60 });
    })
}

fn hooked(pod: TestPod) -> TestPod {
    pod.edit(|pod| {
        let hook = json!({ "preStop": { "exec": { "command": [HOOK] } } });
        pod["spec"]["containers"][0]["lifecycle"] = hook;
    })
}

fn with_settings(pod: TestPod) -> TestPod {
    pod.edit(|pod| {
        let volume = json!({ "name": "settings", "configMap": { "name": SETTINGS } });
        pod["spec"]["volumes"] = json!([volume]);
        let mount = json!({ "name": "settings", "mountPath": "/settings" });
        pod["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    })
}
