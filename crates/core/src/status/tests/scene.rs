//! Test fixture: a pod on a node, set up in a few calls.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use serde_json::{Value, json};

use crate::attempts::{Attempts, StartError};
use crate::backoff::BackoffLimits;
use crate::ids::{ContainerId, SandboxId};
use crate::lifecycle::{Kill, Lifecycle, Request};
use crate::observed::{Exit, Instance, ObservedPod, Sandbox, State};
use crate::plan::{self, Hold, Inputs, LocalState, Plan};
use crate::pod::features::PodFeatures;
use crate::pod::{Pod, ProbeKind, Source};
use crate::probe::{ProbeVerdict, ProbeVerdicts};
use crate::status::manager::{Acceptance, CachedStatus, ReportTrigger, StatusUpdate, accept};
use crate::status::{NodeAddresses, Runtime, StatusSources, conditions, generate};
use crate::time::{Mono, Now};

/// Start of the fixture's clock, in seconds after the epoch.
const OPENING: i64 = 1_700_000_000;

pub(super) fn t(second: i64) -> Timestamp {
    Timestamp::from_second(OPENING + second).unwrap()
}

pub(super) struct Scene {
    pub pod: Pod,
    pub observed: ObservedPod,
    pub attempts: Attempts,
    pub lifecycle: Lifecycle,
    pub probed: ProbeVerdicts,
    pub local_state: LocalState,
    pub now: Now,
    pub node: NodeAddresses,
    pub agent_started: Timestamp,
    pub recursive_read_only: bool,
    pub entry: Option<CachedStatus>,
}

/// A pod object with these containers, as `name`, `init:name` or `sidecar:name`.
pub(super) fn object(policy: &str, containers: &[&str]) -> Value {
    let mut object = json!({
        "metadata": { "name": "web", "namespace": "default", "uid": "u1", "generation": 1 },
        "spec": { "restartPolicy": policy, "containers": [], "initContainers": [] },
    });
    for container in containers {
        let (list, name, own) = match container.split_once(':') {
            Some(("init", name)) => ("initContainers", name, None),
            Some((_, name)) => ("initContainers", name, Some("Always")),
            None => ("containers", *container, None),
        };
        let mut spec = json!({ "name": name, "image": "busybox:latest" });
        if let Some(own) = own {
            spec["restartPolicy"] = own.into();
        }
        object["spec"][list].as_array_mut().unwrap().push(spec);
    }
    object
}

/// Parses a pod after `edit` has changed the object.
pub(super) fn pod(mut object: Value, edit: impl FnOnce(&mut Value)) -> Pod {
    edit(&mut object);
    Pod::parse(serde_json::from_value(object).unwrap(), Source::Api).unwrap()
}

impl Scene {
    pub(super) fn new(policy: &str, containers: &[&str]) -> Self {
        Self::of(pod(object(policy, containers), |_| {}))
    }

    pub(super) fn edited(policy: &str, containers: &[&str], edit: impl FnOnce(&mut Value)) -> Self {
        Self::of(pod(object(policy, containers), edit))
    }

    pub(super) fn of(pod: Pod) -> Self {
        let now = Now { wall: t(0), mono: Mono(Duration::from_secs(1000)) };
        Self {
            observed: ObservedPod::nothing(pod.uid.clone(), pod.name.clone(), now.mono),
            attempts: Attempts::default(),
            lifecycle: Lifecycle::begin(&pod, false),
            probed: ProbeVerdicts::default(),
            local_state: LocalState {
                network: Ok(()),
                cgroup: true,
                hold: None,
                active: None,
                resizing: Arc::default(),
                features: PodFeatures::DEFAULT,
            },
            now,
            node: NodeAddresses { host_ips: vec!["192.0.2.7".parse().unwrap()] },
            agent_started: t(-3600),
            recursive_read_only: false,
            entry: None,
            pod,
        }
    }

    /// Replaces the pod by an edited one, as a watch event does.
    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut Value)) -> &mut Self {
        let object = serde_json::to_value(&*self.pod.object).unwrap();
        self.pod = pod(object, edit);
        self
    }

    /// The API now shows the last report, as if it had been sent.
    pub(super) fn sent(&mut self) -> &mut Self {
        let status = serde_json::to_value(&*self.entry.as_ref().unwrap().status).unwrap();
        self.edit(|object| object["status"] = status)
    }

    /// Requests the deletion of the pod.
    pub(super) fn delete(&mut self) -> &mut Self {
        let at = self.now.wall.to_string();
        self.edit(|object| {
            object["metadata"]["deletionTimestamp"] = at.into();
            object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        });
        self.lifecycle.request(Request::Update, &self.pod);
        self
    }

    pub(super) fn evict(&mut self, message: &str) -> &mut Self {
        self.lifecycle.request(Request::Kill(Kill::evict("Evicted", message, None)), &self.pod);
        self
    }

    pub(super) fn hold(&mut self, reason: &str, message: &str) -> &mut Self {
        self.local_state.hold = Some(Hold { reason: reason.into(), message: message.into() });
        self
    }

    pub(super) fn wait(&mut self, seconds: u64) -> &mut Self {
        let wait = Duration::from_secs(seconds);
        self.now = Now { wall: self.now.wall + wait, mono: self.now.mono + wait };
        self
    }

    pub(super) fn sandbox(&mut self, ips: &[&str]) -> &mut Self {
        let attempt = u32::try_from(self.observed.sandboxes.len()).unwrap();
        for sandbox in &mut self.observed.sandboxes {
            sandbox.ready = false;
        }
        let ips: Vec<IpAddr> = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        self.observed.sandboxes.insert(
            0,
            Sandbox {
                id: SandboxId::new(format!("s{attempt}")),
                attempt,
                created: self.now.wall,
                ready: true,
                host_network: Some(self.pod.host_network),
                handler: String::new(),
                ips: Some(ips),
            },
        );
        self
    }

    pub(super) fn sandbox_dies(&mut self) -> &mut Self {
        self.observed.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
        let running: Vec<_> =
            self.observed.running().map(|instance| instance.container.to_string()).collect();
        running.iter().for_each(|name| {
            self.exits(name, 137);
        });
        self
    }

    /// Adds the next instance of a container.
    pub(super) fn instance(&mut self, name: &str, state: State) -> &mut Self {
        let attempt = self.observed.newest(name).map_or(0, |newest| newest.attempt + 1);
        let sandbox = self.observed.newest_sandbox().map(|sandbox| sandbox.id.clone());
        let order = i64::try_from(self.observed.instances.len()).unwrap();
        self.observed.instances.push(Instance {
            id: ContainerId::new(format!("{name}-{attempt}")),
            container: name.into(),
            sandbox: sandbox.unwrap_or_else(|| SandboxId::new("none")),
            attempt,
            hash: self.pod.container(name).map(|container| container.hash),
            created: t(order),
            state,
            image: "docker.io/library/busybox:latest".into(),
            image_ref: "sha256:1f2e".into(),
            resources: None,
            user: None,
            stop_signal: None,
            log_path: None,
            mounts: Vec::new(),
        });
        self.observed.sort();
        self
    }

    pub(super) fn runs(&mut self, name: &str) -> &mut Self {
        let started = self.now.wall;
        self.instance(name, State::Running { started })
    }

    /// The newest instance exits; if none is running, one is started first.
    pub(super) fn exits(&mut self, name: &str, code: i32) -> &mut Self {
        let reason = if code == 0 { "Completed" } else { "Error" };
        let (started, finished) = (self.now.wall, self.now.wall);
        let exit = Exit { code, reason: reason.into(), message: String::new(), started, finished };
        if !self.observed.newest(name).is_some_and(Instance::is_running) {
            self.runs(name);
        }
        self.newest(name).state = State::Exited(exit);
        self
    }

    pub(super) fn newest(&mut self, name: &str) -> &mut Instance {
        self.observed.instances.iter_mut().find(|i| *i.container == *name).unwrap()
    }

    /// The runtime removes every instance of a container.
    pub(super) fn forgets(&mut self, name: &str) -> &mut Self {
        self.observed.instances.retain(|instance| *instance.container != *name);
        self
    }

    pub(super) fn probe(
        &mut self,
        name: &str,
        kind: ProbeKind,
        verdict: ProbeVerdict,
    ) -> &mut Self {
        let id = self.newest(name).id.clone();
        self.probed.set(&id, kind, verdict);
        self
    }

    pub(super) fn fails_to_start(
        &mut self,
        name: &str,
        reason: StartError,
        message: &str,
    ) -> &mut Self {
        let container = self.pod.container(name).unwrap();
        let (name, key): (Arc<str>, u64) = (container.name.clone(), container.backoff_key);
        let retry = Duration::from_secs(10);
        self.attempts.note_start_failure(&name, key, reason, message.into(), self.now, retry);
        self
    }

    /// The newest instance crashed; its restart is in back-off.
    pub(super) fn crash_loops(&mut self, name: &str, code: i32) -> &mut Self {
        self.exits(name, code);
        let container = self.pod.container(name).unwrap().clone();
        let newest = self.observed.newest(name).unwrap().clone();
        let key = container.backoff_key;
        let limits = BackoffLimits::DEFAULT;
        self.attempts.note_exit(&container.name, key, &newest, self.now);
        self.attempts.note_restart(&container.name, key, &newest, self.now, &limits);
        // The exit is shown briefly before the back-off.
        self.wait(2)
    }

    /// Every sandbox was stopped and nothing is running: the pod has stopped.
    pub(super) fn stopped(&mut self) -> &mut Self {
        for sandbox in &mut self.observed.sandboxes {
            sandbox.ready = false;
            self.attempts.note_sandbox_stopped(sandbox.id.clone(), self.now.mono);
        }
        self
    }

    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs {
            pod: &self.pod,
            observed: &self.observed,
            attempts: &self.attempts,
            lifecycle: &self.lifecycle,
            probed: &self.probed,
            local_state: &self.local_state,
            crash_backoff: &BackoffLimits::DEFAULT,
            now: self.now,
        }
    }

    pub(super) fn plan(&self) -> Plan {
        plan::decide(&self.inputs())
    }

    /// The current status.
    pub(super) fn status(&self) -> PodStatus {
        self.status_with(&self.plan())
    }

    pub(super) fn status_with(&self, plan: &Plan) -> PodStatus {
        generate(&StatusSources {
            inputs: &self.inputs(),
            plan,
            old: self.entry.as_ref().map(|entry| &*entry.status),
            node: &self.node,
            agent_started: self.agent_started,
            runtime: Runtime { name: "containerd", recursive_read_only: self.recursive_read_only },
        })
    }

    pub(super) fn accept(&self, occasion: ReportTrigger, status: PodStatus) -> Acceptance {
        let cached = self.entry.as_ref();
        accept(
            &StatusUpdate { pod: &self.pod, cached, mirror: None, occasion, now: self.now },
            status,
        )
    }

    /// Generates a status and accepts it; later reports build on it.
    pub(super) fn report(&mut self) -> &mut Self {
        match self.accept(ReportTrigger::Sync, self.status()) {
            Acceptance::Accepted { entry, .. } => self.entry = Some(entry),
            Acceptance::Unchanged => {}
            Acceptance::Refused(refusal) => panic!("{refusal}"),
        }
        self
    }

    pub(super) fn reported(&self) -> &PodStatus {
        &self.entry.as_ref().expect("something was reported").status
    }
}

pub(super) fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

/// Phase, reason and message.
pub(super) fn outcome(status: &PodStatus) -> [&str; 3] {
    [&status.phase, &status.reason, &status.message].map(|t| t.as_deref().unwrap_or_default())
}

/// Status, reason and message of a condition.
pub(super) fn condition_of<'a>(status: &'a PodStatus, type_: &str) -> Option<[&'a str; 3]> {
    conditions::condition(status, type_).map(|condition| {
        let text = |text: &'a Option<String>| text.as_deref().unwrap_or_default();
        [condition.status.as_str(), text(&condition.reason), text(&condition.message)]
    })
}

pub(super) fn container<'a>(status: &'a PodStatus, name: &str) -> &'a ContainerStatus {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|status| status.name == name).unwrap()
}

/// Short form of a container's state: `running`, `waiting Reason`, `terminated 1 Error`.
pub(super) fn state(status: &PodStatus, name: &str) -> String {
    brief(container(status, name).state.as_ref())
}

pub(super) fn last_state(status: &PodStatus, name: &str) -> String {
    brief(container(status, name).last_state.as_ref())
}

fn brief(state: Option<&k8s_openapi::api::core::v1::ContainerState>) -> String {
    let Some(state) = state else { return "nothing".into() };
    let words = match (&state.running, &state.waiting, &state.terminated) {
        (Some(_), None, None) => "running".into(),
        (None, Some(waiting), None) => {
            format!("waiting {}", waiting.reason.as_deref().unwrap_or_default())
        }
        (None, None, Some(end)) => {
            format!("terminated {} {}", end.exit_code, end.reason.as_deref().unwrap_or_default())
        }
        (None, None, None) => "nothing".into(),
        _ => "several states at once".into(),
    };
    words.trim_end().to_owned()
}
