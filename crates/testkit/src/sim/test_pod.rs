//! Builder of pods for simulations, and the images they use.

use std::time::Duration;

use podwright_fake_runtime::{Fake, Pull, Script};
use serde_json::{Value, json};

pub const NODE: &str = "node-a";

/// Runs until it is stopped.
pub const APP: &str = "localhost/podwright/app:1";
/// A newer version of the same.
pub const APP_2: &str = "localhost/podwright/app:2";
/// Succeeds after half a second.
pub const INIT: &str = "localhost/podwright/init:1";
/// Succeeds after three seconds.
pub const JOB: &str = "localhost/podwright/job:1";
/// Fails after two seconds, always.
pub const FAILS: &str = "localhost/podwright/fails:1";
/// Fails after two seconds, the first time.
pub const FLAKY: &str = "localhost/podwright/flaky:1";
/// Ignores SIGTERM.
pub const STUBBORN: &str = "localhost/podwright/stubborn:1";
/// Not on the machine; pulling it takes twenty seconds.
pub const REMOTE: &str = "localhost/podwright/remote:1";

pub(super) fn stock(fake: &Fake) {
    let second = Duration::from_secs(1);
    for image in [APP, APP_2, INIT, JOB, FAILS, FLAKY, STUBBORN] {
        fake.images().add(image).expect("an image name");
    }
    fake.images().offer(REMOTE, Pull::takes(second * 20));
    fake.script(INIT, Script::exits(0, second / 2));
    fake.script(JOB, Script::exits(0, second * 3));
    fake.script(FAILS, Script::exits(1, second * 2));
    fake.script(FLAKY, Script::crashes_once(second * 2));
    fake.script(STUBBORN, Script::forever().ignoring_sigterm());
}

/// A pod to be created.
#[derive(Clone, Debug)]
pub struct TestPod(Value);

/// A pod of this name on the simulated node, with no containers yet and ten seconds of grace.
pub fn test_pod(name: &str) -> TestPod {
    TestPod(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name, "namespace": "default" },
        "spec": {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 10,
            "automountServiceAccountToken": false,
            "containers": [],
        },
    }))
}

impl TestPod {
    pub fn container(self, name: &str, image: &str) -> Self {
        self.add("containers", json!({ "name": name, "image": image }))
    }

    pub fn init(self, name: &str, image: &str) -> Self {
        self.add("initContainers", json!({ "name": name, "image": image }))
    }

    pub fn sidecar(self, name: &str, image: &str) -> Self {
        let sidecar = json!({ "name": name, "image": image, "restartPolicy": "Always" });
        self.add("initContainers", sidecar)
    }

    /// With a token of this service account in the first container. It is a mount, so it needs
    /// root.
    pub fn with_token_of(self, account: &str) -> Self {
        self.edit(|pod| {
            pod["spec"]["serviceAccountName"] = account.into();
            let token = json!({ "serviceAccountToken": { "path": "token" } });
            let volume = json!({ "name": "token", "projected": { "sources": [token] } });
            let mount = json!({ "name": "token", "mountPath": "/token" });
            push(&mut pod["spec"]["volumes"], volume);
            push(&mut pod["spec"]["containers"][0]["volumeMounts"], mount);
        })
    }

    pub fn restart(self, policy: &str) -> Self {
        self.edit(|pod| pod["spec"]["restartPolicy"] = policy.into())
    }

    pub fn grace(self, seconds: u64) -> Self {
        self.edit(|pod| pod["spec"]["terminationGracePeriodSeconds"] = seconds.into())
    }

    pub fn host_network(self) -> Self {
        self.edit(|pod| pod["spec"]["hostNetwork"] = true.into())
    }

    pub fn annotation(self, key: &str, value: &str) -> Self {
        self.edit(|pod| pod["metadata"]["annotations"][key] = value.into())
    }

    pub fn edit(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(&mut self.0);
        self
    }

    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The names of all its containers that keep running.
    pub fn lasting(&self) -> Vec<&str> {
        let names = |list: &str, which: fn(&&Value) -> bool| {
            let containers = self.0["spec"][list].as_array().into_iter().flatten();
            containers.filter(which).filter_map(|c| c["name"].as_str()).collect::<Vec<_>>()
        };
        let mut all = names("initContainers", |c| c["restartPolicy"] == "Always");
        all.extend(names("containers", |_| true));
        all
    }

    /// As a static pod's manifest, without a node name.
    pub fn manifest(&self) -> String {
        let mut manifest = self.0.clone();
        if let Some(spec) = manifest["spec"].as_object_mut() {
            spec.remove("nodeName");
            spec.remove("automountServiceAccountToken");
        }
        manifest.to_string()
    }

    fn add(self, list: &str, container: Value) -> Self {
        self.edit(|pod| push(&mut pod["spec"][list], container))
    }
}

/// Appends to a list that may not exist yet.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        none => *none = json!([item]),
    }
}
