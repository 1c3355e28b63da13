//! Labels and annotations that identify the runtime's containers and sandboxes.
//!
//! They are exactly upstream's, so that either agent can take over a node from the other without
//! restarting a container.

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP_HANDLER: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
