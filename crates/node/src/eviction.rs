//! Eviction manager: ends pods before the node runs out of memory, disk, inodes or process ids.
//!
//! `podwright_core::eviction` decides; this module measures, reclaims and ends pods. A pass over all
//! signals runs every ten seconds. In between memory alone is read, more often the closer a
//! threshold is, and where the kernel reports that memory crossed an amount, right then: a pod can
//! allocate gigabytes in ten seconds. Nothing here waits for the runtime or a file system before it
//! acts on memory.

mod act;
mod signals;
mod usage;
mod watches;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::eviction::{
    self, Cadence, DiskLayout, Forecast, History, Resource, Signal, Thresholds, Verdict,
};
use podwright_core::node_status::Pressure;
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use podwright_host::machine::{Disk, Machine, MachineError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pods::PodIndex;
use crate::report::events::Recorder;
use crate::resources::cgroups::Cgroups;
use crate::runtime::gc::Gc;
use crate::runtime::pleg::Pleg;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::stats::DiskUsage;
use signals::Signals;
use watches::Watches;

/// The period of passes.
const PERIOD: Duration = Duration::from_secs(10);
/// The shortest time between two looks at memory that a notification caused.
const SHORTEST: Duration = Duration::from_millis(50);
/// Time until the next pass while the disk usage of pods is measured.
const MEASURING: Duration = Duration::from_secs(1);

/// Settings of the eviction manager.
#[derive(Clone)]
pub struct EvictionSettings {
    pub thresholds: Thresholds,
    /// `evictionPressureTransitionPeriod`.
    pub transition: Duration,
    /// `evictionMaxPodGracePeriod`, in seconds.
    pub max_pod_grace: i64,
    /// `localStorageCapacityIsolation`: pods are held to their own limits of local storage.
    pub local_storage: bool,
    /// Unused images may be removed to free space.
    pub reclaim_images: bool,
    /// The runtime says on which file system writable layers are.
    pub split_images: bool,
    pub machine: Machine,
    /// Reads the file system of a path; replaced in simulations.
    pub filesystem: fn(&Path) -> Result<Filesystem, MachineError>,
}

impl EvictionSettings {
    /// No thresholds and no limits.
    pub fn none() -> Self {
        Self {
            thresholds: Thresholds::NONE,
            transition: Duration::from_secs(300),
            max_pod_grace: 0,
            local_storage: false,
            reclaim_images: true,
            split_images: false,
            machine: Machine::at("/"),
            filesystem: real_filesystem,
        }
    }

    fn is_inert(&self) -> bool {
        self.thresholds.is_empty() && !self.local_storage
    }
}

/// A file system and its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filesystem {
    pub disk: Disk,
    pub device: u64,
}

pub fn real_filesystem(path: &Path) -> Result<Filesystem, MachineError> {
    use podwright_host::machine;
    Ok(Filesystem { disk: machine::disk(path)?, device: machine::device(path)? })
}

/// The components of the node that evictions use.
pub struct EvictionDependencies {
    pub node_name: Arc<str>,
    pub root_dir: std::path::PathBuf,
    pub runtime: podwright_cri::Client,
    pub clock: Clock,
    pub pleg: Arc<Pleg>,
    pub pod_index: Arc<PodIndex>,
    pub cgroups: Arc<Cgroups>,
    pub disks: Arc<DiskUsage>,
    pub gc: Arc<Gc>,
    pub events: Recorder,
    pub metrics: Arc<Metrics>,
}

pub struct EvictionManager {
    settings: EvictionSettings,
    dependencies: EvictionDependencies,
    pressure: watch::Sender<Pressure>,
    /// What the last pass found, for [`Self::forecast`].
    last: Mutex<LastPass>,
}

#[derive(Clone, Debug, Default)]
struct LastPass {
    thresholds: Option<Thresholds>,
    observed: eviction::Observations,
    problems: signals::Problems,
    verdict: Verdict,
    layout: Option<DiskLayout>,
}

/// What is measured in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Everything,
    /// Only memory; all else is as old as it was.
    Memory,
}

/// What a pass did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Pods were evicted, and waited for.
    Evicted,
    /// The disk usage of pods is not known yet.
    Measuring,
    Nothing,
}

/// State of the task.
struct State {
    signals: Signals,
    thresholds: Thresholds,
    history: History,
    verdict: Verdict,
    cadence: Cadence,
    watches: Watches,
    /// Since when a pass waits for the disk usage of pods.
    measuring: Option<Mono>,
}

impl EvictionManager {
    /// `pressure` is reported by the node and used by admission.
    pub fn new(
        settings: EvictionSettings,
        dependencies: EvictionDependencies,
        pressure: watch::Sender<Pressure>,
    ) -> Arc<Self> {
        Arc::new(Self { settings, dependencies, pressure, last: Mutex::default() })
    }

    /// Runs passes until stopped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        if self.settings.is_inert() {
            return tracing::debug!("no eviction thresholds, nothing is evicted");
        }
        for signal in self.settings.thresholds.ignored() {
            tracing::warn!(
                signal = signal.as_str(),
                "this eviction threshold is ignored: it follows from those of nodefs or imagefs"
            );
        }
        let work = async {
            let mut state = State {
                signals: Signals::new(&self.settings, &self.dependencies),
                thresholds: self.settings.thresholds.clone(),
                history: History::default(),
                verdict: Verdict::default(),
                cadence: Cadence::default(),
                watches: Watches::default(),
                measuring: None,
            };
            // Without it no pod has statistics.
            self.dependencies.pleg.first_relist().await;
            let mut scope = Scope::Everything;
            loop {
                scope = match self.pass(&mut state, scope).await {
                    Outcome::Evicted => Scope::Everything,
                    Outcome::Measuring => self.rest(&mut state, MEASURING).await,
                    Outcome::Nothing => self.rest(&mut state, PERIOD).await,
                };
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// One pass: measures, decides, reports pressure, and acts on one threshold.
    async fn pass(&self, state: &mut State, scope: Scope) -> Outcome {
        state.signals.measure(scope, &state.thresholds).await;
        let now = self.dependencies.clock.now().mono;
        let observed = state.signals.observed().clone();
        let verdict =
            state.history.pass(&state.thresholds, observed, self.settings.transition, now);
        self.report(verdict.pressure);
        state.verdict = verdict.clone();
        *self.last.lock() = LastPass {
            thresholds: Some(state.thresholds.clone()),
            observed: state.signals.observed().clone(),
            problems: state.signals.problems().clone(),
            verdict: verdict.clone(),
            layout: state.signals.layout(),
        };
        if scope == Scope::Everything {
            if self.settings.local_storage && self.enforce_limits(state).await {
                return Outcome::Evicted;
            }
            let cgroups = &self.dependencies.cgroups;
            state.watches.renew(&state.thresholds, state.signals.memory(), cgroups).await;
        }
        let outcome = self.act(state, &verdict).await;
        // Known only now: these thresholds count from the next pass on.
        if let Some(layout) = state.signals.layout() {
            state.thresholds = self.settings.thresholds.with_layout(layout);
        }
        outcome
    }

    fn report(&self, pressure: Pressure) {
        self.pressure.send_if_modified(|old| {
            if *old != pressure {
                let Pressure { memory, disk, pids } = pressure;
                tracing::info!(memory, disk, pids, "pressure of the node changed");
            }
            std::mem::replace(old, pressure) != pressure
        });
    }

    /// Waits for the next pass. Returns early if a threshold of memory is newly met.
    async fn rest(&self, state: &mut State, period: Duration) -> Scope {
        let clock = &self.dependencies.clock;
        let until = clock.now().mono + period;
        loop {
            let now = clock.now().mono;
            let left = until.since(now);
            if left.is_zero() {
                return Scope::Everything;
            }
            let next = state.cadence.next(&state.thresholds, state.signals.observed(), now);
            let is_notified = tokio::select! {
                // Cancel-safe: an event that was not waited for stays in its descriptor.
                () = state.watches.notified() => true,
                () = tokio::time::sleep(next.min(left)) => false,
            };
            if !is_notified && next >= left {
                continue;
            }
            let passed = clock.now().mono.since(now);
            tokio::time::sleep(SHORTEST.saturating_sub(passed)).await;
            state.signals.measure(Scope::Memory, &state.thresholds).await;
            if self.is_newly_met(state) {
                return Scope::Memory;
            }
        }
    }

    /// A threshold that the last pass found met was acted on, as far as possible.
    fn is_newly_met(&self, state: &State) -> bool {
        let observed = state.signals.observed();
        let mut thresholds = state.thresholds.iter();
        thresholds.any(|threshold| {
            let was_met = state.verdict.met.iter().any(|(met, _)| met == threshold);
            let seen = observed.get(&threshold.signal);
            threshold.signal.resource() == Resource::Memory
                && !was_met
                && seen.is_some_and(|seen| threshold.is_met(seen))
        })
    }

    /// How far away each threshold is, and which pods would go first, from the last pass and the
    /// current usage.
    pub async fn forecast(&self) -> Forecast {
        let last = self.last.lock().clone();
        let Some(thresholds) = last.thresholds else { return Forecast::default() };
        let layout = last.layout.unwrap_or(DiskLayout::Single);
        let pods = self.all_usage().await;
        let LastPass { observed, problems, verdict, .. } = last;
        eviction::forecast(&thresholds, &observed, &verdict, &problems, &pods, layout)
    }
}

/// Whether the signal is about a file system.
fn is_disk(signal: Signal) -> bool {
    match signal.resource() {
        Resource::EphemeralStorage | Resource::Inodes => true,
        Resource::Memory | Resource::Pids => false,
    }
}
