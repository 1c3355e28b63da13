//! Errors in the configuration of a pod's sandbox and containers.
//!
//! These texts appear in `kubectl describe` as `CreateContainerConfigError` and in events, where
//! users and tools match on them, so they are upstream's wherever upstream has one. Some are vague
//! on purpose: the author of a pod must not learn about the node's files from them.

use podwright_api::qos::ResourceError;

use super::downward::FieldError;
use super::env::ObjectKind;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    // === Environment ===
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    NoServiceLinks,
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnknown,
    #[error("{} {name:?} not found", .kind.resource())]
    ObjectMissing { kind: ObjectKind, name: String },
    #[error("couldn't get {} {namespace}/{name}, no kubeClient defined", .kind.variable())]
    NoApiServer { kind: ObjectKind, namespace: String, name: String },
    /// Error text of the API server.
    #[error("{message}")]
    ObjectUnreadable { message: String },
    #[error("couldn't find key {key} in {} {namespace}/{name}", .kind.as_str())]
    KeyMissing { kind: ObjectKind, key: String, namespace: String, name: String },
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    NoEnvFileVolume { volume: String },
    #[error("couldn't parse env file")]
    BadEnvFile,
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NotInEnvFile { key: String, path: String },
    #[error(
        "{field} is not text: a variable in it has a value that is not UTF-8; use the variable \
         from within the container instead"
    )]
    NotText { field: String },

    // === Mounts and devices ===
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume { volume: String, container: String },
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoBlockVolume { volume: String, container: String },
    #[error("error DevicePath `{path}` must be an absolute path")]
    RelativeDevicePath { path: String },
    #[error("missing value for {}", .names.join(", "))]
    MissingValue { names: Vec<String> },
    #[error("error SubPath `{path}` must not be an absolute path")]
    AbsoluteSubPath { path: String },
    #[error("unable to provision SubPath `{path}`: must not contain '..'")]
    BackstepsInSubPath { path: String },
    #[error(
        "failed to create subPath directory for volumeMount {volume:?} of container {container:?}"
    )]
    SubPathNotCreated { volume: String, container: String },
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    SubPathNotPrepared { volume: String, container: String },
    #[error("invalid MountPropagation mode: {mode:?}")]
    Propagation { mode: String },
    #[error("failed to resolve recursive read-only mode: {why}")]
    RecursiveReadOnly { why: String },

    // === Security ===
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsRoot { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image will run as root (pod: {pod:?}, container: \
         {container})"
    )]
    ImageRunsAsRoot { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is \
         non-root (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric { user: String, pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be \
         1-(2147483647)): must be between 0 and 2147483647, inclusive (pod: {pod:?}, container: \
         {container})"
    )]
    ImageUserInvalid { uid: i64, pod: String, container: String },
    #[error("unsupported supplementalGroupsPolicy: {policy}")]
    GroupsPolicy { policy: String },
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoSeccompProfile,
    #[error("seccomp profile {profile:?} must not contain '..'")]
    BackstepsInSeccompProfile { profile: String },
    #[error("missing localhost apparmor profile name")]
    NoAppArmorProfile,
    #[error("unknown apparmor profile type: {kind:?}")]
    AppArmorType { kind: String },
    #[error("can't set `spec.hostUsers: false`, {subject} does not support user namespaces{why}")]
    NoUserNamespaces { subject: String, why: String },
    #[error("create user namespace: no range of ids has been set aside for the pod")]
    NoIdMappings,
    #[error("unable to find target container {target}")]
    NoTarget { target: String },

    // === Names and addresses ===
    #[error("pod {field} {value:?} is not a valid DNS {kind}: {why}")]
    HostName { field: &'static str, value: String, kind: &'static str, why: String },
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         (64 characters is the max, {} characters requested)", .fqdn.len()
    )]
    FqdnTooLong { fqdn: String },
    #[error("{why}")]
    HostDns { why: String },

    // === Resources ===
    #[error(transparent)]
    Resources(#[from] ResourceError),
}
