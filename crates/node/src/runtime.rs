//! The container runtime as this node uses it: observed state, images, logs, garbage collection.

pub mod gc;
pub mod images;
pub mod logs;
pub mod pleg;
pub mod state;
pub(crate) mod termination_message;

use std::sync::Arc;

use podwright_cri as cri;
use podwright_host::clock::Clock;

use pleg::Pleg;

/// The runtime and what is known about its pods.
#[derive(Clone)]
pub struct RuntimeAccess {
    pub client: cri::Client,
    pub pleg: Arc<Pleg>,
    pub clock: Clock,
}
