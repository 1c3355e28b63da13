//! Whether the node can take a pod at all. A rejection is final.

use std::sync::Arc;

use podwright_core::pod::Pod;

/// What the node has to give.
#[derive(Clone, Debug)]
pub struct Limits {
    pub max_pods: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: &'static str,
    pub message: String,
}

/// Asks whether `pod` fits beside the active ones.
pub fn admit(pod: &Pod, active: &[Arc<Pod>], limits: &Limits) -> Result<(), Rejection> {
    let used = active.iter().filter(|other| other.uid != pod.uid).count();
    if used >= limits.max_pods {
        let message = format!(
            "Node didn't have enough resource: pods, requested: 1, used: {used}, capacity: {}",
            limits.max_pods
        );
        return Err(Rejection { reason: "OutOfpods", message });
    }
    Ok(())
}
