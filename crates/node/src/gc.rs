//! Clean-up: dead containers and sandboxes, logs nobody can ask for, images nobody uses.
//!
//! What goes is chosen in `podwright_core::gc`; here it is looked up and removed. A round runs
//! every minute, and soon after somebody noticed that there is something to do: a crash loop
//! must not pile up its dead, and a deleted pod's disk is wanted back.

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

use crate::causes::chain;
use crate::events::{Recorder, Severity};
use crate::images::Images;
use crate::metrics::Metrics;
use crate::pleg::Pleg;
use crate::pods::Directory;
use crate::tools::Tools;

const CONTAINER_ROUND: Duration = Duration::from_secs(60);
const IMAGE_ROUND: Duration = Duration::from_secs(300);
/// Pods end in groups, and to remove one slows the end of the next: a group is over when for so
/// long nothing ended,
const SETTLE: Duration = Duration::from_secs(1);
/// or has lasted so long: on some nodes there is always something that ends.
const LONGEST_GROUP: Duration = Duration::from_secs(15);
/// Removals under way at a time: one that hangs must not hold up all the others.
const AT_ONCE: usize = 4;

/// How much is kept.
#[derive(Clone, Debug)]
pub struct Settings {
    pub containers: ContainerPolicy,
    pub images: ImagePolicy,
    /// Images that are never removed, by name: the sandboxes' own, where we brought it.
    pub kept_images: Vec<String>,
    /// Tells how full the file system of a path is; a simulation brings its own.
    pub disk: fn(&Path) -> Result<Disk, MachineError>,
}

/// How full the file system of a path really is.
pub fn real_disk(path: &Path) -> Result<Disk, MachineError> {
    let machine::Disk { capacity, available, .. } = machine::disk(path)?;
    Ok(Disk { capacity, available })
}

/// How far clean-up goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What the policy gives up.
    Surplus,
    /// The disk is all but full: whatever has ended goes, even of pods that are still there.
    EverythingDead,
}

#[derive(Debug, thiserror::Error)]
pub enum GcError {
    #[error("cannot list what the runtime holds")]
    List(#[source] cri::Error),
    #[error("failed to remove {what}")]
    Runtime { what: String, source: cri::Error },
    #[error("cannot remove logs")]
    Logs(#[from] FileError),
    #[error("cannot read {path}")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot tell how full the image file system is")]
    Disk(#[from] MachineError),
    #[error(transparent)]
    Capacity(#[from] podwright_core::gc::DiskError),
    #[error("the agent stops")]
    Stopping,
    #[error("{0} of several removals failed; the first")]
    Several(usize, #[source] Box<GcError>),
}

impl GcError {
    /// The first of some errors, which says how many there were.
    fn of(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            count => Err(Self::Several(count, Box::new(errors.remove(0)))),
        }
    }
}

/// Where leftovers lie, and who complains of them.
#[derive(Clone, Debug)]
pub struct Place {
    pub node_name: Arc<str>,
    pub pod_logs: PathBuf,
    pub log_links: PathBuf,
}

pub struct Gc {
    runtime: cri::Client,
    clock: Clock,
    events: Recorder,
    metrics: Arc<Metrics>,
    pleg: Arc<Pleg>,
    directory: Arc<Directory>,
    place: Place,
    pulled: Arc<Images>,
    settings: Settings,
    images: Mutex<ImageRecords>,
    began: Mono,
    /// One round at a time.
    round: Mutex<()>,
}

impl Gc {
    pub fn new(tools: &Tools, directory: Arc<Directory>, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            runtime: tools.runtime.clone(),
            clock: tools.clock.clone(),
            events: tools.events.clone(),
            metrics: tools.metrics.clone(),
            pleg: tools.pleg.clone(),
            directory,
            pulled: tools.images.clone(),
            place: Place {
                node_name: tools.settings.node_name.clone(),
                pod_logs: (&tools.facts.pod_logs_dir).into(),
                log_links: tools.settings.log_links_dir.clone(),
            },
            settings,
            images: Mutex::default(),
            began: tools.clock.now().mono,
            round: Mutex::default(),
        })
    }

    /// Removes what containers leave behind, until stopped.
    pub async fn tidy_containers(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            self.pleg.first_relist().await;
            loop {
                self.until_wanted().await;
                if let Err(error) = self.collect(Reach::Surplus).await {
                    self.complain("ContainerGCFailed", chain(&error));
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Somebody noticed leftovers and their group is complete, or it is time for a round.
    async fn until_wanted(&self) {
        let leftovers = self.pleg.leftovers();
        if timeout(CONTAINER_ROUND, leftovers.notified()).await.is_ok() {
            let group = async { while timeout(SETTLE, leftovers.notified()).await.is_ok() {} };
            let _ = timeout(LONGEST_GROUP, group).await;
        }
    }

    /// Removes images when the disk fills or they grow old, until stopped.
    pub async fn tidy_images(self: Arc<Self>, stop: CancellationToken) {
        if !self.settings.images.is_on() {
            tracing::debug!("images are never removed: imageGCHighThresholdPercent is 100");
            return;
        }
        let work = async {
            let mut failed_before = false;
            loop {
                let failed = match self.collect_images().await {
                    Ok(()) => false,
                    // Once may be a runtime that just starts.
                    Err(error) if !failed_before => {
                        tracing::warn!(error = chain(&error), "image garbage collection failed");
                        true
                    }
                    Err(error) => {
                        self.complain("ImageGCFailed", chain(&error));
                        true
                    }
                };
                failed_before = failed;
                tokio::time::sleep(IMAGE_ROUND).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Nothing of this pod is wanted any more.
    fn is_over(&self, pod: &PodUid, reach: Reach) -> bool {
        self.directory.sources_ready()
            && self.directory.standing(pod, |standing| match reach {
                Reach::Surplus => standing.content_may_be_removed(),
                Reach::EverythingDead => {
                    standing.content_may_be_removed() || standing.runtime_may_be_removed()
                }
            })
    }

    fn complain(&self, reason: &'static str, text: String) {
        self.events.node(&self.place.node_name, Severity::Warning, reason, text);
    }
}

#[cfg(test)]
mod tests;
