//! State of the container runtime, by its periodic status check.

use std::time::Duration;

use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_proto::cri::{RuntimeFeatures, RuntimeHandler};
use tokio::sync::watch;

/// Interval of status checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval while the runtime is not ready or its status is unknown.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
/// A runtime without a successful status check for this long is down.
const RUNTIME_DOWN: Duration = Duration::from_secs(30);

/// State of the container runtime, as its last status call reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeState {
    /// `Err`: why the state of the runtime is unknown.
    pub reachable: Result<(), String>,
    /// `Err`: why the runtime's network is not ready.
    pub network: Result<(), String>,
    /// `Err`: why the runtime itself is not ready.
    pub runtime: Result<(), String>,
    pub handlers: Vec<RuntimeHandler>,
    pub features: Option<RuntimeFeatures>,
}

impl Default for NodeState {
    fn default() -> Self {
        Self {
            reachable: Err("container runtime status check may not have completed yet".into()),
            network: Err("network state unknown".into()),
            runtime: Ok(()),
            handlers: Vec::new(),
            features: None,
        }
    }
}

impl NodeState {
    fn of(status: cri::RuntimeStatus) -> Self {
        let not_ready = |what: &'static str| move |problem| format!("{what} not ready: {problem}");
        Self {
            reachable: Ok(()),
            network: status.network.map_err(not_ready("container runtime network")),
            runtime: status.runtime.map_err(not_ready("container runtime")),
            handlers: status.handlers,
            features: status.features,
        }
    }

    /// The last reported handlers, also while the runtime is unreachable; `None` before its first
    /// status.
    pub(crate) fn known_handlers(&self) -> Option<&[RuntimeHandler]> {
        let is_known = self.reachable.is_ok() || !self.handlers.is_empty();
        is_known.then_some(self.handlers.as_slice())
    }

    fn is_ready(&self) -> bool {
        self.reachable.is_ok() && self.network.is_ok() && self.runtime.is_ok()
    }
}

/// Checks the runtime status periodically and publishes the result. `cause` says why a supervised
/// runtime is down.
pub(crate) async fn check_runtime(
    runtime: cri::Client,
    clock: Clock,
    state: watch::Sender<NodeState>,
    cause: Option<watch::Receiver<Option<String>>>,
) {
    let mut last_success = None;
    loop {
        // A read, so it may be dropped when it hangs.
        let checked = tokio::time::timeout(RUNTIME_DOWN, runtime.status()).await;
        let problem = match checked {
            Ok(Ok(status)) => {
                last_success = Some(clock.now().mono);
                let now = NodeState::of(status);
                state.send_if_modified(|old| std::mem::replace(old, now.clone()) != now);
                None
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no response within {RUNTIME_DOWN:?}")),
        };
        if let Some(problem) = problem {
            tracing::warn!(error = problem, "check runtime status failed, retrying");
            if last_success.is_some_and(|at| clock.now().mono.since(at) >= RUNTIME_DOWN) {
                let cause = cause.as_ref().and_then(|cause| cause.borrow().clone());
                let cause = cause.map(|cause| format!(": {cause}")).unwrap_or_default();
                state.send_if_modified(|state| {
                    let down = Err(format!("container runtime is down{cause}"));
                    std::mem::replace(&mut state.reachable, down.clone()) != down
                });
            }
        }
        let is_ready = state.borrow().is_ready();
        tokio::time::sleep(if is_ready { CHECK_INTERVAL } else { RECHECK_INTERVAL }).await;
    }
}
