//! Observer of calls: sees each call with its whole request, as it arrives and as it ends.
//!
//! The fake itself keeps only the subject of a call. A journal of a simulation needs the whole
//! request, and needs it for longer than the fake keeps calls.

use std::sync::Arc;
use std::time::Duration;

use super::faults::Fault;
use super::journal::Outcome;
use super::rpc::{About, Rpc};

/// Phase of a call.
#[derive(Debug)]
pub enum CallProgress<'a> {
    /// It arrived, with this request in protobuf encoding.
    Arrived {
        about: &'a About,
        request: &'a [u8],
        fault: Option<&'a Fault>,
    },
    Ended(Outcome),
}

/// One phase of a call. `seq` is the same for all phases of one call.
#[derive(Debug)]
pub struct ObservedCall<'a> {
    pub seq: u64,
    pub rpc: Rpc,
    /// Since the fake was started.
    pub at: Duration,
    pub progress: CallProgress<'a>,
}

pub type CallObserver = Arc<dyn Fn(&ObservedCall<'_>) + Send + Sync>;
