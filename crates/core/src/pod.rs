//! Parsed pod: the API object, converted once into the types that decisions use.
//!
//! Decisions never read a restart policy or a container kind from the raw object: strings become
//! enums here. A static pod that cannot be parsed is refused with a reason. A pod from the API is
//! not: its server may be newer than this agent, and every pod needs a status and must be
//! deletable. Unknown values fall back as upstream's kubelet does; a pod that no kubelet could run
//! is marked [`Pod::unreadable`].

pub mod adoption;
pub mod container;
pub mod desired;
pub mod features;
pub mod hold;
pub mod manifest;
pub mod merge;
pub mod mirror;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use podwright_api::qos::{Overhead, PodResources, ResourceList};
use serde::{Deserialize, Serialize};

pub use container::{
    AfterExit, Container, ContainerHash, ContainerKind, ProbeKind, RestartPolicy, RestartRule,
};

use crate::ids::{PodName, PodUid};

/// Source of a pod. Written into the annotation `kubernetes.io/config.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Source {
    #[serde(rename = "api")]
    Api,
    #[serde(rename = "file")]
    File,
    #[serde(rename = "http")]
    Http,
}

impl Source {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

/// The API server's default for `terminationGracePeriodSeconds`.
const DEFAULT_GRACE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    #[serde(rename = "Pending")]
    Pending,
    #[serde(rename = "Running")]
    Running,
    #[serde(rename = "Succeeded")]
    Succeeded,
    #[serde(rename = "Failed")]
    Failed,
    #[serde(rename = "Unknown")]
    Unknown,
}

impl Phase {
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            Some("Unknown") => Self::Unknown,
            _ => Self::Pending,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }

    /// No container of the pod will run again.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Succeeded | Self::Failed => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

/// Deletion requested in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    #[serde(rename = "at")]
    pub at: Timestamp,
    #[serde(rename = "grace")]
    pub grace: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub uid: PodUid,
    pub name: PodName,
    pub source: Source,
    /// The defaulted object without `managedFields`. For passing on, not for decisions.
    pub object: Arc<v1::Pod>,
    pub restart_policy: RestartPolicy,
    /// Init containers in spec order, then regular ones in spec order, then ephemeral ones.
    pub containers: Vec<Container>,
    pub host_network: bool,
    /// Resources that the pod requests, with overhead; empty if they cannot be parsed.
    pub requests: ResourceList,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Duration,
    pub active_deadline: Option<Duration>,
    pub deletion: Option<Deletion>,
    /// Phase in the API object; the node's own phase is in the status manager.
    pub api_phase: Phase,
    /// Why this agent cannot run the pod; never set on a static pod. The pod is not started, and
    /// its running containers are left alone until the object is deleted.
    pub unreadable: Option<Arc<str>>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodParseError {
    #[error("pod {name} has no uid; the API server or the static pod defaulting sets it")]
    NoUid { name: String },
    #[error("pod with uid {uid:?} has no name")]
    NoName { uid: String },
    #[error("pod {name} has no spec")]
    NoSpec { name: String },
    #[error("pod {name}: spec.restartPolicy is {value:?}; it may be Always, OnFailure or Never")]
    RestartPolicy { name: String, value: String },
    #[error("pod {name}: container {container}: {problem}")]
    Container { name: String, container: String, problem: String },
    #[error("pod {name}: spec.{list} has a container without a name")]
    NamelessContainer { name: String, list: &'static str },
}

/// How strictly an object is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseMode {
    /// Every value must be known, so that the author of a manifest gets an error.
    Strict,
    /// Unknown values fall back as upstream's kubelet does.
    Lenient,
}

impl ParseMode {
    fn of(source: Source) -> Self {
        match source {
            Source::File | Source::Http => Self::Strict,
            Source::Api => Self::Lenient,
        }
    }
}

impl Pod {
    pub fn parse(mut object: v1::Pod, source: Source) -> Result<Self, PodParseError> {
        object.metadata.managed_fields = None;
        Self::from_object(Arc::new(object), source)
    }

    pub(crate) fn from_object(object: Arc<v1::Pod>, source: Source) -> Result<Self, PodParseError> {
        let meta = &object.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return Err(PodParseError::NoName { uid: uid.to_owned() });
        }
        let name = PodName::new(meta.namespace.as_deref().unwrap_or("default"), name);
        if uid.is_empty() {
            return Err(PodParseError::NoUid { name: name.to_string() });
        }
        let mode = ParseMode::of(source);
        let mut unreadable = None;
        let mut refuse_or_mark = |bad: PodParseError| match mode {
            ParseMode::Strict => Err(bad),
            ParseMode::Lenient => {
                unreadable.get_or_insert_with(|| Arc::from(bad.to_string()));
                Ok(())
            }
        };
        let no_spec = v1::PodSpec::default();
        let spec = match object.spec.as_ref() {
            Some(spec) => spec,
            None => {
                refuse_or_mark(PodParseError::NoSpec { name: name.to_string() })?;
                &no_spec
            }
        };
        let restart_policy = match (spec.restart_policy.as_deref(), mode) {
            (None, _) => RestartPolicy::Always,
            (Some(text), ParseMode::Strict) => {
                let value = text.to_owned();
                RestartPolicy::parse(text)
                    .ok_or_else(|| PodParseError::RestartPolicy { name: name.to_string(), value })?
            }
            // Upstream restarts containers under every policy that it does not know.
            (Some(text), ParseMode::Lenient) => {
                RestartPolicy::parse(text).unwrap_or(RestartPolicy::Always)
            }
        };
        let (containers, problems) = container::parse_all(spec, mode);
        for problem in problems {
            refuse_or_mark(problem.of_pod(&name))?;
        }
        let deletion = meta.deletion_timestamp.as_ref().map(|at| Deletion {
            at: at.0,
            grace: meta.deletion_grace_period_seconds.map(seconds),
        });
        Ok(Self {
            uid: PodUid::new(uid),
            restart_policy,
            containers,
            host_network: spec.host_network.unwrap_or(false),
            requests: PodResources::parse(spec)
                .map(|resources| resources.requests(Overhead::Included))
                .unwrap_or_default(),
            grace: spec.termination_grace_period_seconds.map_or(DEFAULT_GRACE, seconds),
            active_deadline: spec.active_deadline_seconds.filter(|s| *s > 0).map(seconds),
            deletion,
            api_phase: Phase::parse(object.status.as_ref().and_then(|s| s.phase.as_deref())),
            unreadable,
            name,
            source,
            object,
        })
    }

    /// A pod from a file or URL: it exists without the API server.
    pub fn is_static(&self) -> bool {
        match self.source {
            Source::File | Source::Http => true,
            Source::Api => false,
        }
    }

    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|c| &*c.name == name)
    }

    /// Init containers and sidecars, in start order.
    pub fn init_containers(&self) -> impl DoubleEndedIterator<Item = &Container> + Clone {
        self.containers.iter().filter(|c| c.kind.is_init())
    }

    pub fn regular_containers(&self) -> impl DoubleEndedIterator<Item = &Container> + Clone {
        self.containers.iter().filter(|c| c.kind == ContainerKind::Regular)
    }

    pub fn ephemeral_containers(&self) -> impl DoubleEndedIterator<Item = &Container> + Clone {
        self.containers.iter().filter(|c| c.kind == ContainerKind::Ephemeral)
    }

    /// No container of this pod is ever restarted.
    pub fn runs_once(&self) -> bool {
        self.restart_policy == RestartPolicy::Never
            && self.containers.iter().all(|c| match c.kind {
                ContainerKind::Sidecar => false,
                ContainerKind::Init | ContainerKind::Regular => {
                    c.policy.is_none_or(|p| p == RestartPolicy::Never) && c.rules.is_empty()
                }
                ContainerKind::Ephemeral => true,
            })
    }

    /// The API shows a status from this node: the pod was admitted before and stays admitted.
    pub fn was_reported(&self) -> bool {
        self.object.status.as_ref().is_some_and(|status| status.start_time.is_some())
    }

    pub fn generation(&self) -> Option<i64> {
        self.object.metadata.generation
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// `name_namespace(uid)`, the form upstream's messages use.
    pub fn described(&self) -> String {
        format!("{}_{}({})", self.name.name, self.name.namespace, self.uid)
    }
}

/// Negative durations in a spec mean zero, as upstream.
fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

/// Form of a pod in recorded cases: object and source; the rest is parsed again.
#[derive(Serialize, Deserialize)]
struct Recorded {
    #[serde(rename = "source")]
    source: Source,
    #[serde(rename = "object")]
    object: Arc<v1::Pod>,
}

impl Serialize for Pod {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Recorded { source: self.source, object: self.object.clone() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Pod {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let recorded = Recorded::deserialize(deserializer)?;
        Self::from_object(recorded.object, recorded.source).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(spec: &serde_json::Value, source: Source) -> Result<Pod, PodParseError> {
        let object =
            json!({ "metadata": { "name": "p", "namespace": "n", "uid": "u" }, "spec": spec });
        Pod::parse(serde_json::from_value(object).expect("a pod"), source)
    }

    #[test]
    fn unknown_value_is_refused_in_a_manifest_and_falls_back_in_the_api() {
        let container = |fields: serde_json::Value| {
            let mut container = json!({ "name": "c", "restartPolicy": "Never" });
            container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            json!({ "containers": [container] })
        };
        let rule = |action: &str, operator: &str| {
            let codes = json!({ "operator": operator, "values": [1] });
            json!({ "restartPolicyRules": [{ "action": action, "exitCodes": codes }] })
        };
        for (case, spec) in [
            (
                "the pod's policy",
                json!({ "restartPolicy": "Odd", "containers": [{ "name": "c" }] }),
            ),
            ("a container's policy", container(json!({ "restartPolicy": "Odd" }))),
            ("a rule's action", container(rule("Odd", "In"))),
            ("a rule's operator", container(rule("Restart", "Odd"))),
            (
                "a rule without codes",
                container(json!({ "restartPolicyRules": [{ "action": "Restart" }] })),
            ),
        ] {
            assert!(read(&spec, Source::File).is_err(), "{case}");
            assert!(read(&spec, Source::Http).is_err(), "{case}");
            let pod = read(&spec, Source::Api).unwrap();
            assert_eq!((pod.unreadable.as_deref(), pod.containers.len()), (None, 1), "{case}");
        }
        let odd = json!({ "restartPolicy": "Odd", "containers": [{ "name": "c" }] });
        let odd = read(&odd, Source::Api).unwrap();
        assert_eq!(odd.restart_policy, RestartPolicy::Always, "as upstream");
    }

    #[test]
    fn pod_that_cannot_run_is_refused_in_a_manifest_and_marked_in_the_api() {
        for (case, spec, containers) in [
            ("no spec", json!(null), 0),
            ("nameless", json!({ "containers": [{ "image": "i" }, { "name": "b" }] }), 1),
            (
                "nameless init",
                json!({ "initContainers": [{}], "containers": [{ "name": "b" }] }),
                1,
            ),
        ] {
            assert!(read(&spec, Source::File).is_err(), "{case}");
            let pod = read(&spec, Source::Api).unwrap();
            assert!(pod.unreadable.is_some(), "{case}");
            assert_eq!(pod.containers.len(), containers, "{case}");
        }
        let without_uid = json!({ "metadata": { "name": "p" }, "spec": { "containers": [] } });
        let without_uid = Pod::parse(serde_json::from_value(without_uid).unwrap(), Source::Api);
        assert!(without_uid.is_err(), "without a UID there is nothing to register");
    }
}
