//! Kinds of pods that chaos creates, each with its expected final state.

use std::time::Duration;

use k8s_openapi::api::core::v1::{self, ConfigMap};
use kube::Api;
use kube::api::{Patch, PatchParams};
use podwright_fake_runtime::ExecReply;
use serde_json::json;

use super::{ExpectedState, RequestedPod};
use crate::sim::random::SeededRandom;
use crate::sim::test_pod::{APP, FAILS, FLAKY, INIT, JOB, REMOTE, STUBBORN, TestPod, test_pod};
use crate::sim::{Sim, record};

const SETTINGS: &str = "settings";
pub(super) const FIRST_SETTING: &str = "value";
/// Names of ephemeral containers begin with it.
pub(super) const DEBUGGER: &str = "debugger-";
/// CPU requests of resizable pods; the last one never fits.
pub(super) const CPU_REQUESTS: [&str; 4] = ["50m", "100m", "200m", "64"];
/// The command of preStop hooks.
const HOOK: &str = "hook";

/// Creates what the pods refer to.
pub(super) async fn prepare(sim: &Sim) {
    sim.make::<ConfigMap>(SETTINGS, json!({ "data": { "key": FIRST_SETTING } })).await;
    let hook = ExecReply::exits(0).taking(Duration::from_secs(3));
    sim.fake.handle_exec(move |call| (call.command == [HOOK]).then(|| hook.clone()));
}

pub(super) fn random_pod(name: &str, random: &mut SeededRandom) -> (TestPod, ExpectedState) {
    let pod = test_pod(name);
    match random.below(14) {
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
        12 => (with_cpu(pod.container("app", APP), CPU_REQUESTS[1]), ExpectedState::Runs),
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
        let volume = json!({ "name": SETTINGS, "configMap": { "name": SETTINGS } });
        let scratch = json!({ "name": "scratch", "emptyDir": {} });
        pod["spec"]["volumes"] = json!([volume, scratch]);
        let mount = |name: &str| json!({ "name": name, "mountPath": format!("/{name}") });
        pod["spec"]["containers"][0]["volumeMounts"] = json!([mount(SETTINGS), mount("scratch")]);
    })
}

pub(super) async fn edit_settings(sim: &Sim, content: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(sim.users_client(), "default");
    let edit = Patch::Merge(json!({ "data": { "key": content } }));
    maps.patch(SETTINGS, &PatchParams::default(), &edit).await.expect("the ConfigMap");
}

/// A pod whose only container has this CPU request.
pub(super) fn with_cpu(pod: TestPod, cpu: &str) -> TestPod {
    pod.edit(|pod| pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpu.into())
}

pub(super) fn is_resizable(pod: &TestPod) -> bool {
    cpu(pod).is_some()
}

fn cpu(pod: &TestPod) -> Option<&str> {
    pod.value()["spec"]["containers"][0]["resources"]["requests"]["cpu"].as_str()
}

/// What of a running pod is not as requested: images, resources that fit the node, the content of
/// its volumes.
pub(super) fn outdated(
    sim: &Sim,
    requested: &RequestedPod,
    shown: &v1::Pod,
    settings: &str,
) -> Option<String> {
    let test_pod = &requested.test_pod;
    if let Some(container) = stale_image(test_pod, shown) {
        return Some(format!("{container} has an old image"));
    }
    if let Some(cpu) = cpu(test_pod).filter(|cpu| *cpu != CPU_REQUESTS[3]) {
        let statuses = record::containers(shown);
        let resources = statuses.iter().find_map(|status| status.resources.as_ref());
        let has = resources.and_then(|resources| resources.requests.as_ref()?.get("cpu"));
        if has.is_none_or(|has| has.0 != cpu) {
            return Some(format!("has {has:?} instead of {cpu}"));
        }
    }
    let volumes = test_pod.value()["spec"]["volumes"].as_array().into_iter().flatten();
    if requested.uid.is_some() && volumes.clone().any(|volume| volume["name"] == SETTINGS) {
        let directory = sim.environment.pods().join(shown.metadata.uid.as_deref()?);
        let file = directory.join("volumes/kubernetes.io~configmap").join(SETTINGS).join("key");
        let content = std::fs::read_to_string(file).unwrap_or_default();
        if content != settings {
            return Some(format!("its volume has {content:?} instead of {settings:?}"));
        }
    }
    None
}

/// A container whose status does not show the requested image.
fn stale_image(test_pod: &TestPod, pod: &v1::Pod) -> Option<String> {
    let containers = test_pod.value()["spec"]["containers"].as_array()?;
    let shown = record::containers(pod);
    containers.iter().find_map(|c| {
        let name = c["name"].as_str()?;
        let status = shown.iter().find(|status| status.name == name)?;
        (Some(status.image.as_str()) != c["image"].as_str()).then(|| name.to_owned())
    })
}
