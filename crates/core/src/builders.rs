//! Builders of pods and observed states for tests, with defaults for everything irrelevant.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "builders are for tests, and a bad one should panic"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::attempts::Attempts;
use crate::backoff::BackoffLimits;
use crate::ids::{ContainerId, SandboxId};
use crate::lifecycle::Lifecycle;
use crate::observed::{Exit, Instance, ObservedPod, Sandbox, State};
use crate::plan::{Case, LocalState};
use crate::pod::{Pod, RestartPolicy, Source};
use crate::probe::ProbeVerdicts;
use crate::time::{Mono, Now};

/// A moment `second` seconds after the start of the tests, on both clocks.
pub fn t(second: u64) -> Now {
    Now { wall: wall(second), mono: Mono(Duration::from_secs(second)) }
}

fn wall(second: u64) -> Timestamp {
    const START: i64 = 1_767_225_600; // 2026-01-01
    let second = i64::try_from(second).expect("a small number");
    Timestamp::from_second(START + second).expect("a time in range")
}

/// A pod named `name` with no containers yet.
pub fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": { "containers": [], "initContainers": [], "ephemeralContainers": [] },
    }))
}

#[derive(Clone, Debug)]
pub struct PodBuilder(Value);

impl PodBuilder {
    pub fn restart(mut self, policy: RestartPolicy) -> Self {
        self.0["spec"]["restartPolicy"] = json!(policy);
        self
    }

    pub fn container(self, name: &str) -> Self {
        self.add("containers", json!({ "name": name, "image": "i" }))
    }

    pub fn container_with(self, name: &str, fields: Value) -> Self {
        self.add("containers", merged(json!({ "name": name, "image": "i" }), fields))
    }

    pub fn init(self, name: &str) -> Self {
        self.add("initContainers", json!({ "name": name, "image": "i" }))
    }

    pub fn sidecar(self, name: &str) -> Self {
        self.sidecar_with(name, json!({}))
    }

    pub fn sidecar_with(self, name: &str, fields: Value) -> Self {
        let sidecar = json!({ "name": name, "image": "i", "restartPolicy": "Always" });
        self.add("initContainers", merged(sidecar, fields))
    }

    pub fn ephemeral(self, name: &str) -> Self {
        self.add("ephemeralContainers", json!({ "name": name, "image": "i" }))
    }

    pub fn host_network(mut self) -> Self {
        self.0["spec"]["hostNetwork"] = json!(true);
        self
    }

    pub fn grace(mut self, seconds: u64) -> Self {
        self.0["spec"]["terminationGracePeriodSeconds"] = json!(seconds);
        self
    }

    /// Deleted at `second`, with this grace period.
    pub fn deleted(mut self, second: u64, grace: u64) -> Self {
        self.0["metadata"]["deletionTimestamp"] = json!(wall(second).to_string());
        self.0["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self
    }

    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    pub fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["phase"] = json!(phase);
        self
    }

    /// Sets one field of the spec.
    pub fn spec(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    pub fn edit(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(&mut self.0);
        self
    }

    pub fn build(self) -> Pod {
        self.build_from(Source::Api)
    }

    pub fn build_from(self, source: Source) -> Pod {
        let object = serde_json::from_value(self.0).expect("a pod");
        Pod::parse(object, source).expect("a pod we can read")
    }

    fn add(mut self, list: &str, container: Value) -> Self {
        self.0["spec"][list].as_array_mut().expect("a list").push(container);
        self
    }
}

fn merged(mut base: Value, fields: Value) -> Value {
    let (Value::Object(base_fields), Value::Object(fields)) = (&mut base, fields) else {
        return base;
    };
    base_fields.extend(fields);
    base
}

/// Observed state of `pod`: nothing yet.
pub fn observed(pod: &Pod) -> ObservedBuilder<'_> {
    let observed = ObservedPod::nothing(pod.uid.clone(), pod.name.clone(), Mono::ZERO);
    ObservedBuilder { pod, observed }
}

#[derive(Clone, Debug)]
pub struct ObservedBuilder<'a> {
    pod: &'a Pod,
    observed: ObservedPod,
}

impl ObservedBuilder<'_> {
    pub fn sandbox_ready(self) -> Self {
        self.sandbox("sandbox", 0, true)
    }

    pub fn sandbox(mut self, id: &str, attempt: u32, ready: bool) -> Self {
        self.observed.sandboxes.push(Sandbox {
            id: SandboxId::new(id),
            attempt,
            created: wall(u64::from(attempt)),
            ready,
            host_network: Some(self.pod.host_network),
            handler: String::new(),
            ips: Some(vec![IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7))]),
        });
        self
    }

    pub fn edit_sandbox(mut self, edit: impl FnOnce(&mut Sandbox)) -> Self {
        edit(self.observed.sandboxes.last_mut().expect("a sandbox"));
        self
    }

    pub fn running(self, container: &str, at: Now) -> Self {
        self.instance(container, State::Running { started: at.wall }, at)
    }

    pub fn exited(self, container: &str, code: i32, at: Now) -> Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.exited_for(container, code, reason, at)
    }

    pub fn exited_for(self, container: &str, code: i32, reason: &str, at: Now) -> Self {
        let exit = Exit {
            code,
            reason: reason.into(),
            message: String::new(),
            started: at.wall,
            finished: at.wall,
        };
        self.instance(container, State::Exited(exit), at)
    }

    /// A new instance of a container in the sandbox added last; its attempt number follows the
    /// previous one.
    pub fn instance(mut self, container: &str, state: State, at: Now) -> Self {
        let before = self.observed.instances_of(container).count();
        let attempt = u32::try_from(before).expect("a small number");
        let spec = self.pod.container(container);
        let sandbox = self.observed.sandboxes.last().map(|sandbox| sandbox.id.clone());
        self.observed.instances.push(Instance {
            id: ContainerId::new(format!("{container}-{attempt}")),
            container: container.into(),
            sandbox: sandbox.unwrap_or_else(|| SandboxId::new("sandbox")),
            attempt,
            hash: spec.map(|c| c.hash),
            created: at.wall,
            state,
            image: spec.map(|c| c.image.to_string()).unwrap_or_default(),
            image_ref: "sha256:1".into(),
            resources: None,
            user: None,
            stop_signal: None,
            log_path: None,
            mounts: Vec::new(),
        });
        self
    }

    pub fn edit_instance(mut self, edit: impl FnOnce(&mut Instance)) -> Self {
        edit(self.observed.instances.last_mut().expect("an instance"));
        self
    }

    pub fn build(mut self) -> ObservedPod {
        self.observed.sort();
        self.observed
    }
}

/// Inputs of a decision about `pod` at `now`; all other inputs are in a normal state.
pub fn case(pod: Pod, observed: ObservedPod, now: Now) -> Case {
    let lifecycle = Lifecycle::begin(&pod, true);
    Case {
        lifecycle,
        pod,
        observed,
        attempts: Attempts::default(),
        probed: ProbeVerdicts::default(),
        local_state: LocalState {
            network: Ok(()),
            cgroup: true,
            hold: None,
            active: None,
            resizing: std::sync::Arc::default(),
            features: crate::pod::features::PodFeatures::DEFAULT,
        },
        crash_backoff: BackoffLimits::DEFAULT,
        now,
    }
}
