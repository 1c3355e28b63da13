//! Options and features of the fake runtime.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use podwright_proto::cri;
use tokio::time::Instant;

use super::observer::CallObserver;
use super::rpc::PodRef;

/// Source of the time of day.
pub type Wall = Arc<dyn Fn() -> Timestamp + Send + Sync>;

#[derive(Clone)]
pub struct FakeOptions {
    /// Seed of everything random: ids, the order of lists, which calls fail.
    pub seed: u64,
    /// The clock behind all timestamps. By default it starts with 2026 and follows tokio's time.
    pub wall: Wall,
    pub features: Features,
    /// Pods get an IPv6 address too.
    pub dual_stack: bool,
    /// Containers write their logs and files, but only below this directory.
    pub writes_below: Option<PathBuf>,
    /// How many of the latest calls are kept.
    pub keep_calls: usize,
    /// Observes every call, whether it is kept or not.
    pub observer: Option<CallObserver>,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            wall: wall_from(Timestamp::constant(1_767_225_600, 0)),
            features: Features::containerd_1_6(),
            dual_stack: false,
            writes_below: None,
            keep_calls: 100_000,
            observer: None,
        }
    }
}

impl fmt::Debug for FakeOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeOptions")
            .field("seed", &self.seed)
            .field("features", &self.features)
            .field("dual_stack", &self.dual_stack)
            .field("writes_below", &self.writes_below)
            .field("keep_calls", &self.keep_calls)
            .finish_non_exhaustive()
    }
}

/// A clock that shows `start` now and then follows tokio's time, paused or not.
pub fn wall_from(start: Timestamp) -> Wall {
    let began = Instant::now();
    Arc::new(move || start.saturating_add(began.elapsed()).unwrap_or(start))
}

/// Features of the runtime, by its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Reply of RuntimeConfig; without, it is not implemented.
    pub cgroup_driver: Option<cri::CgroupDriver>,
    /// Whether GetContainerEvents is implemented. containerd's own events always are.
    pub cri_events: bool,
    /// Whether container statuses report the current resources.
    pub status_resources: bool,
    /// Whether UpdatePodSandboxResources is implemented.
    pub sandbox_resources: bool,
    /// Whether the default handler supports features of newer pods.
    pub handlers: bool,
}

impl Features {
    /// The oldest supported runtime.
    pub const fn containerd_1_6() -> Self {
        Self {
            cgroup_driver: None,
            cri_events: false,
            status_resources: false,
            sandbox_resources: false,
            handlers: false,
        }
    }

    pub const fn containerd_2() -> Self {
        Self {
            cgroup_driver: Some(cri::CgroupDriver::Cgroupfs),
            cri_events: true,
            status_resources: true,
            sandbox_resources: true,
            handlers: true,
        }
    }

    pub(super) fn version(self) -> &'static str {
        if self.cgroup_driver.is_some() { "v2.1.4" } else { "1.6.20" }
    }
}

/// Condition of the runtime or its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Ready,
    NotReady { reason: String, message: String },
}

impl Condition {
    pub fn not_ready(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self::NotReady { reason: reason.into(), message: message.into() }
    }
}

/// A command about to run in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCall {
    pub pod: PodRef,
    pub container: String,
    pub container_id: String,
    pub command: Vec<String>,
}
