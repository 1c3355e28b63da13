//! What Podwright's tests share.
//!
//! The short ways to make pods and observations live beside the types they build, in
//! `podwright_core::builders`; here they are within reach of every crate's tests.

pub use podwright_core::builders;
