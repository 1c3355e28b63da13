//! Observer of calls: sees each call with its whole request, as it arrives and as it ends.
//!
//! The fake itself remembers only what a call is about. A journal of a simulation needs the whole
//! request, and needs it for longer than the fake remembers calls.

use std::sync::Arc;
use std::time::Duration;

use super::faults::Fault;
use super::journal::Outcome;
use super::rpc::{About, Rpc};

/// What happens to a call.
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

/// One moment in a call's life. `seq` is the same for all moments of one call.
#[derive(Debug)]
pub struct ObservedCall<'a> {
    pub seq: u64,
    pub rpc: Rpc,
    /// Since the fake was started.
    pub at: Duration,
    pub progress: CallProgress<'a>,
}

pub type CallObserver = Arc<dyn Fn(&ObservedCall<'_>) + Send + Sync>;
