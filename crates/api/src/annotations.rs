//! Annotations that both the API server and the agent read, or that clients rely on.

pub const ANNOTATION_SOURCE: &str = "kubernetes.io/config.source";
pub const ANNOTATION_SEEN: &str = "kubernetes.io/config.seen";
pub const ANNOTATION_HASH: &str = "kubernetes.io/config.hash";
/// Marks a mirror pod: the API copy of a static pod.
pub const ANNOTATION_MIRROR: &str = "kubernetes.io/config.mirror";
/// What `kubectl apply` without server-side apply set last.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
