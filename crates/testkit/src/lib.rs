//! What Podwright's tests share.
//!
//! The short ways to make pods and observations live beside the types they build, in
//! `podwright_core::builders`; here they are within reach of every crate's tests. The simulator
//! ([`sim`]) is the whole node in a world that exists only in memory.

pub use podwright_core::builders;

#[cfg(feature = "sim")]
pub mod fixture;
pub mod mutation;
pub mod report;
#[cfg(feature = "sim")]
pub mod sim;
pub mod snapshot;
