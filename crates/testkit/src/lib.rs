//! Shared test support.
//!
//! Builders of pods and observations are beside the types they build, in
//! `podwright_core::builders`; they are re-exported here for every crate's tests. The simulator
//! ([`sim`]) is the whole node on an in-memory runtime and API server.

pub use podwright_core::builders;

#[cfg(feature = "sim")]
pub mod fixture;
pub mod mutation;
pub mod report;
#[cfg(feature = "sim")]
pub mod sim;
pub mod snapshot;
