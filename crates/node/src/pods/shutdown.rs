//! Graceful node shutdown: holds a shutdown of the machine back and ends the pods first.
//!
//! One task follows the login manager. When it announces a shutdown, the node is no longer ready and
//! admits no pod; then the pods end, group by group. The lock that delays the shutdown is released
//! after that. `podwright_core::shutdown` decides the groups and the grace periods.
//!
//! What outlives its group is killed in its cgroup. Otherwise systemd would wait for it, by default
//! for 90 s, before it powers off.

mod login;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::ids::PodUid;
use podwright_core::lifecycle::{Request, Stage};
use podwright_core::shutdown::{self, ShutdownChange, ShutdownGroups, ShutdownRecord};
use podwright_host::clock::Clock;
use podwright_host::files::{Durability, Root};
use podwright_host::login::LoginBus;
use podwright_host::threads;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::PodIndex;
use super::pod_handle::PodHandle;
use crate::error_chain::chain;
use crate::report::Reporting;
use crate::report::events::Severity;
use crate::resources::cgroups::Cgroups;

/// Record of the last shutdown in the root directory, by upstream's name.
pub const FILE: &str = "graceful_node_shutdown_state";
const FILE_MODE: u32 = 0o644;
const MAX_FILE_BYTES: u64 = 64 << 10;

/// How long killed pods are waited for, so that their end is still reported.
const AFTER_KILL: Duration = Duration::from_secs(1);
/// How long the sequence waits for its record to be on the disk.
const RECORD_TIMEOUT: Duration = Duration::from_secs(1);
/// Polling interval while the pods of a node that has just started are not known yet.
const KNOWN_POLL: Duration = Duration::from_millis(100);

/// Settings of the graceful shutdown of a node.
#[derive(Clone, Debug)]
pub struct ShutdownSettings {
    pub groups: ShutdownGroups,
    /// Keep a record on disk and report it as metrics.
    pub records: bool,
    pub announcements: Announcements,
}

/// Who announces a shutdown.
#[derive(Clone, Debug)]
pub enum Announcements {
    /// The login manager on this bus, which is configured in this directory.
    Login { bus: LoginBus, override_dir: PathBuf },
    /// A simulation: whether the machine shuts down.
    Simulated(watch::Receiver<bool>),
}

pub(crate) struct ShutdownDependencies {
    pub node_name: Arc<str>,
    pub root_dir: PathBuf,
    pub pod_index: Arc<PodIndex>,
    pub cgroups: Arc<Cgroups>,
    pub reporting: Reporting,
    pub clock: Clock,
    /// Whether the node is shutting down, for admission and the node status.
    pub state: watch::Sender<bool>,
}

pub(crate) struct ShutdownManager {
    settings: ShutdownSettings,
    dependencies: ShutdownDependencies,
}

impl ShutdownManager {
    pub(crate) fn new(settings: ShutdownSettings, dependencies: ShutdownDependencies) -> Self {
        Self { settings, dependencies }
    }

    /// Follows announcements until stopped.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let work = async {
            self.restore_record().await;
            match self.settings.announcements.clone() {
                Announcements::Login { bus, override_dir } => {
                    login::follow(&self, &bus, &override_dir).await;
                }
                Announcements::Simulated(mut announced) => loop {
                    let now = *announced.borrow_and_update();
                    self.apply(self.change(now)).await;
                    if announced.changed().await.is_err() {
                        return;
                    }
                },
            }
        };
        stop.run_until_cancelled(work).await;
    }

    fn groups(&self) -> &ShutdownGroups {
        &self.settings.groups
    }

    fn change(&self, announced: bool) -> ShutdownChange {
        shutdown::change(*self.dependencies.state.borrow(), announced)
    }

    /// Carries a change out. For a shutdown this returns once the pods have ended.
    async fn apply(&self, change: ShutdownChange) {
        match change {
            ShutdownChange::Begin => self.begin().await,
            ShutdownChange::Cancel => {
                self.event(shutdown::CANCELLED);
                self.dependencies.state.send_replace(false);
            }
            ShutdownChange::Nothing => {}
        }
    }

    async fn begin(&self) {
        self.event(shutdown::DETECTED);
        self.dependencies.state.send_replace(true);
        let start = Some(self.dependencies.clock.now().wall);
        self.record(ShutdownRecord { start, end: None }).await;
        self.wait_until_pods_are_known().await;
        let mut asked = BTreeSet::new();
        for position in 0..self.groups().groups().len() {
            self.end_group(position, &mut asked).await;
        }
        let end = Some(self.dependencies.clock.now().wall);
        self.record(ShutdownRecord { start, end }).await;
        tracing::info!("pods ended because the machine shuts down");
    }

    /// An agent that was started during a shutdown has to learn first which pods there are.
    async fn wait_until_pods_are_known(&self) {
        let known = async {
            while !self.dependencies.pod_index.sources_ready() {
                tokio::time::sleep(KNOWN_POLL).await;
            }
        };
        if tokio::time::timeout(self.groups().total(), known).await.is_err() {
            tracing::warn!("not every pod source has answered, ending the pods that are known");
        }
    }

    /// Ends the pods of a group, and those of lower groups that were admitted meanwhile. `asked`: the
    /// pods that have had the time of their group.
    async fn end_group(&self, position: usize, asked: &mut BTreeSet<PodUid>) {
        let Some(group) = self.groups().groups().get(position) else { return };
        let handles = self.dependencies.pod_index.handles().into_iter();
        let pods: Vec<Arc<PodHandle>> = handles
            .filter(|(_, handle)| handle.stage() < Stage::Finished)
            .filter(|(_, handle)| self.groups().group_of(&handle.pod()) <= position)
            .filter_map(|(uid, handle)| asked.insert(uid).then_some(handle))
            .collect();
        if pods.is_empty() {
            return;
        }
        let (priority, period) = (group.priority, group.period);
        tracing::info!(priority, ?period, pods = pods.len(), "shutdown: ending pods");
        for handle in &pods {
            let kill = shutdown::kill(&handle.pod(), period);
            handle.request(Request::Kill(kill));
        }
        if period.is_zero() || finished_within(&pods, period).await {
            return;
        }
        self.kill_leftovers(&pods).await;
    }

    /// Kills what still runs after the time of its group. Volumes that are still mounted are only
    /// reported: the shutdown unmounts them.
    async fn kill_leftovers(&self, pods: &[Arc<PodHandle>]) {
        let mut killed = Vec::new();
        for handle in pods {
            let pod = handle.pod();
            match handle.stage() {
                Stage::Syncing | Stage::Terminating => {
                    tracing::warn!(pod = %pod.name, "shutdown: pod still runs after the time of its group, killing it");
                    killed.push(handle.clone());
                }
                Stage::Terminated => {
                    tracing::warn!(pod = %pod.name, "shutdown: pod still has volumes or a cgroup after the time of its group");
                }
                Stage::Finished => {}
            }
        }
        let kills = killed.iter().map(|handle| async move {
            let pod = handle.pod();
            if let Err(error) = self.dependencies.cgroups.kill_pod(&pod).await {
                tracing::warn!(pod = %pod.name, error = chain(&error), "shutdown: cannot kill pod");
            }
        });
        let all = async {
            futures::future::join_all(kills).await;
            finished(&killed).await;
        };
        // A process that cannot be killed is left to the shutdown.
        let _ = tokio::time::timeout(AFTER_KILL, all).await;
    }

    fn event(&self, message: &str) {
        let ShutdownDependencies { node_name, reporting, .. } = &self.dependencies;
        reporting.events.node(node_name, Severity::Normal, shutdown::EVENT, message.to_owned());
    }

    async fn record(&self, record: ShutdownRecord) {
        if !self.settings.records {
            return;
        }
        self.dependencies.reporting.metrics.shutdown.set(record);
        let root_dir = self.dependencies.root_dir.clone();
        let written = threads::blocking(move || {
            let text = serde_json::to_vec(&record).unwrap_or_default();
            Root::open(root_dir)?.write_atomic(FILE, &text, FILE_MODE, Durability::Disk)
        });
        // Pods must not lose time to a disk that hangs.
        match tokio::time::timeout(RECORD_TIMEOUT, written).await {
            Ok(Ok(Err(error))) => {
                tracing::warn!(error = chain(&error), "write record of the shutdown failed");
            }
            Err(_) => tracing::warn!("the record of the shutdown is not written yet, going on"),
            Ok(Ok(Ok(())) | Err(_)) => {}
        }
    }

    /// The metrics show the last shutdown, also one of an earlier agent.
    async fn restore_record(&self) {
        if !self.settings.records {
            return;
        }
        let root_dir = self.dependencies.root_dir.clone();
        let read =
            threads::blocking(move || match Root::open(root_dir)?.read(FILE, MAX_FILE_BYTES) {
                Ok(text) => Ok(Some(text)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            });
        let text = match read.await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => {
                tracing::warn!(error = chain(&error), "read record of the last shutdown failed");
                None
            }
            // The agent is stopping.
            Err(_) => return,
        };
        let record =
            text.map_or(Ok(ShutdownRecord::default()), |text| serde_json::from_slice(&text));
        let record = record.unwrap_or_else(|error| {
            tracing::warn!(%error, file = FILE, "record of the last shutdown is unreadable, the next one replaces it");
            ShutdownRecord::default()
        });
        self.dependencies.reporting.metrics.shutdown.set(record);
    }
}

/// Waits until the pods have no container, volume or cgroup any more.
async fn finished(pods: &[Arc<PodHandle>]) {
    for handle in pods {
        let mut desired = handle.desired();
        // An error means that the pod is forgotten.
        let _ = desired.wait_for(|desired| desired.lifecycle.stage() == Stage::Finished).await;
    }
}

async fn finished_within(pods: &[Arc<PodHandle>], period: Duration) -> bool {
    tokio::time::timeout(period, finished(pods)).await.is_ok()
}

#[cfg(test)]
mod tests;
