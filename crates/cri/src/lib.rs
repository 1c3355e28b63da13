//! Client of the container runtime over the CRI, in Podwright's own types.
//!
//! The rest of the node never sees a gRPC status or a protobuf enum: calls take and return the
//! types of `podwright_core`, replies are validated here, and every error says which call failed on
//! which object and whether a retry can help.

pub mod client;
pub mod convert;
mod downloads;
pub mod endpoint;
pub mod error;
pub mod hints;
mod leftovers;
#[cfg(test)]
mod mutated_replies;
mod ownership;
mod recorded;

pub use client::{
    Client, ExecOutput, Image, PodList, PullResult, RuntimeStatus, Streams, Timeouts, Version,
};
pub use convert::{ObservedContainer, Termination};
pub use endpoint::Endpoint;
pub use error::{Error, Kind};
pub use hints::Hint;
pub use leftovers::Leftovers;
pub use ownership::IsOwn;
