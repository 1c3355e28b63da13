//! Garbage collection of dead containers and sandboxes, orphaned logs and unused images.
//!
//! `podwright_core::gc` decides what is removed; this module lists and removes it. A round runs every
//! minute, and soon after leftovers are reported, so that a crash loop does not accumulate dead
//! containers and the disk of a deleted pod is freed.

mod containers;
mod images;
mod logs;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::gc::{ContainerPolicy, Disk, ImagePolicy, ImageRecords};
use podwright_core::ids::PodUid;
use podwright_core::time::Mono;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use podwright_host::files::FileError;
use podwright_host::machine::{self, MachineError};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub use images::Reclaimed;

use crate::error_chain::chain;
use crate::pods::PodIndex;
use crate::report::events::{Recorder, Severity};
use crate::runtime::images::Images;
use crate::runtime::pleg::Pleg;
use crate::telemetry::metrics::Metrics;

const CONTAINER_ROUND: Duration = Duration::from_secs(60);
const IMAGE_ROUND: Duration = Duration::from_secs(300);
/// Pods often terminate in groups, and removal slows the termination of the next. So a round starts
/// when nothing has ended for this long,
const SETTLE: Duration = Duration::from_secs(1);
/// or this long after the first: on some nodes something always ends.
const LONGEST_GROUP: Duration = Duration::from_secs(15);
/// Parallel removals, so that one that hangs does not block all others.
const AT_ONCE: usize = 4;

/// Configuration of garbage collection.
#[derive(Clone, Debug)]
pub struct GcSettings {
    pub containers: ContainerPolicy,
    pub images: ImagePolicy,
    /// Images that are never removed, by name: the sandbox image, if this agent provided it.
    pub kept_images: Vec<String>,
    /// Reads the usage of a path's file system; replaced in simulations.
    pub disk: fn(&Path) -> Result<Disk, MachineError>,
}

/// The real usage of a path's file system.
pub fn real_disk(path: &Path) -> Result<Disk, MachineError> {
    let machine::Disk { capacity, available, .. } = machine::disk(path)?;
    Ok(Disk { capacity, available })
}

/// Scope of a container garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcScope {
    /// What the policy allows to remove.
    Surplus,
    /// The disk is almost full: all dead containers, even of pods that still exist.
    EverythingDead,
}

/// What starts a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundTrigger {
    /// Leftovers were reported.
    Leftovers,
    Interval,
}

#[derive(Debug, thiserror::Error)]
pub enum GcError {
    #[error("cannot list containers, sandboxes or images of the runtime")]
    List(#[source] cri::Error),
    #[error("failed to remove {what}")]
    Runtime { what: String, source: cri::Error },
    #[error("cannot remove logs")]
    Logs(#[from] FileError),
    #[error("cannot read {path}")]
    ListLogs { path: PathBuf, source: std::io::Error },
    #[error("cannot read the usage of the image file system")]
    Disk(#[from] MachineError),
    #[error(transparent)]
    Capacity(#[from] podwright_core::gc::DiskError),
    #[error("the agent is stopping")]
    Stopping,
    #[error("{0} removals failed; the first error")]
    Several(usize, #[source] Box<GcError>),
}

impl GcError {
    /// The first of the errors, with their number.
    fn of(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            count => Err(Self::Several(count, Box::new(errors.remove(0)))),
        }
    }
}

/// Locations of logs, and the node name for events.
#[derive(Clone, Debug)]
pub struct LogLocations {
    pub node_name: Arc<str>,
    pub pod_logs: PathBuf,
    pub log_links: PathBuf,
}

/// The components of the node that garbage collection uses.
pub struct GcDependencies {
    pub runtime: cri::Client,
    pub clock: Clock,
    pub events: Recorder,
    pub metrics: Arc<Metrics>,
    pub pleg: Arc<Pleg>,
    pub pod_index: Arc<PodIndex>,
    pub images: Arc<Images>,
    pub locations: LogLocations,
}

pub struct Gc {
    runtime: cri::Client,
    clock: Clock,
    events: Recorder,
    metrics: Arc<Metrics>,
    pleg: Arc<Pleg>,
    pod_index: Arc<PodIndex>,
    locations: LogLocations,
    pulled: Arc<Images>,
    settings: GcSettings,
    images: Mutex<ImageRecords>,
    began: Mono,
    /// Serializes rounds.
    round: Mutex<()>,
}

impl Gc {
    pub fn new(dependencies: GcDependencies, settings: GcSettings) -> Arc<Self> {
        let GcDependencies { runtime, clock, events, metrics, pleg, pod_index, images, locations } =
            dependencies;
        Arc::new(Self {
            began: clock.now().mono,
            runtime,
            clock,
            events,
            metrics,
            pleg,
            pod_index,
            locations,
            pulled: images,
            settings,
            images: Mutex::default(),
            round: Mutex::default(),
        })
    }

    /// Collects dead containers, sandboxes and logs until stopped.
    pub async fn run_container_gc(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            self.pleg.first_relist().await;
            loop {
                let is_due = match self.wait_for_round().await {
                    RoundTrigger::Leftovers => true,
                    RoundTrigger::Interval => self.may_have_leftovers().await,
                };
                if is_due && let Err(error) = self.collect(GcScope::Surplus).await {
                    self.emit_event("ContainerGCFailed", chain(&error));
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Waits for leftovers and the end of their group, or for the next periodic round.
    async fn wait_for_round(&self) -> RoundTrigger {
        let leftovers = self.pleg.gc_wakeup();
        if timeout(CONTAINER_ROUND, leftovers.notified()).await.is_err() {
            return RoundTrigger::Interval;
        }
        let group = async { while timeout(SETTLE, leftovers.notified()).await.is_ok() {} };
        let _ = timeout(LONGEST_GROUP, group).await;
        RoundTrigger::Leftovers
    }

    /// Removes images when the disk fills or they are old, until stopped.
    pub async fn run_image_gc(self: Arc<Self>, stop: CancellationToken) {
        if !self.settings.images.is_on() {
            tracing::debug!("image garbage collection is off: imageGCHighThresholdPercent is 100");
            return;
        }
        let work = async {
            let mut failed_before = false;
            loop {
                let failed = match self.collect_images().await {
                    Ok(()) => false,
                    // The first failure may be a runtime that is still starting.
                    Err(error) if !failed_before => {
                        tracing::warn!(
                            error = chain(&error),
                            "image garbage collection failed, retrying"
                        );
                        true
                    }
                    Err(error) => {
                        self.emit_event("ImageGCFailed", chain(&error));
                        true
                    }
                };
                failed_before = failed;
                tokio::time::sleep(IMAGE_ROUND).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Whether the content of this pod may be removed.
    fn may_collect(&self, pod: &PodUid, reach: GcScope) -> bool {
        self.pod_index.sources_ready()
            && self.pod_index.cleanup_policy(pod, |policy| match reach {
                GcScope::Surplus => policy.content_may_be_removed(),
                GcScope::EverythingDead => {
                    policy.content_may_be_removed() || policy.runtime_may_be_removed()
                }
            })
    }

    fn emit_event(&self, reason: &'static str, text: String) {
        self.events.node(&self.locations.node_name, Severity::Warning, reason, text);
    }
}

#[cfg(test)]
mod tests;
