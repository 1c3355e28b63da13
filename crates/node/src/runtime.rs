//! The container runtime as this node uses it: observed state, images, logs, garbage collection.

pub mod gc;
pub mod images;
pub mod logs;
pub mod pleg;
pub(crate) mod termination_message;
