//! Admission: the state of this node that decisions depend on, and the record of earlier decisions.
//!
//! A decision is made once and kept in a checkpoint, so that a restart neither rejects a running
//! pod because the labels or the other pods of the node changed, nor admits a rejected one. The
//! decision itself is in `podwright_core::admission`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::admission::{self, ActivePods, AdmissionDecision, Rejection};
use podwright_core::ids::PodUid;
use podwright_core::node_status::{Pressure, Settings, registration, resources::is_extended};
use podwright_core::pod::{Pod, Source};
use podwright_core::qos::ResourceList;
use podwright_core::quantity::Quantity;
use podwright_host::checkpoint::{Checkpoint, CheckpointError};
use podwright_host::threads;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::context::NodeState;
use crate::report::heartbeat::own_node::OwnNode;

/// File name of the checkpoint in the root directory.
pub const FILE: &str = "admitted_pods_state";
/// Format version of the checkpoint.
pub const VERSION: u32 = 1;

/// Delay before changes are written, so that several become one write.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

/// Settings that do not change while the agent runs.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    pub identity: Arc<Settings>,
    /// Resources for pods, as the node computes them.
    pub allocatable: ResourceList,
    pub sysctls: Arc<AllowedSysctls>,
    pub apparmor: bool,
    /// The node is joined: the API server has its Node object.
    pub joined: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Decisions {
    #[serde(rename = "admitted")]
    admitted: BTreeSet<PodUid>,
    #[serde(rename = "rejected")]
    rejected: BTreeMap<PodUid, Rejection>,
}

pub struct Admission {
    settings: AdmissionSettings,
    own_node: watch::Receiver<OwnNode>,
    state: watch::Receiver<NodeState>,
    decided: Mutex<Decisions>,
    checkpoint: Checkpoint,
    changed: Notify,
}

impl Admission {
    /// Reads the earlier decisions. An unreadable checkpoint is ignored: running pods are known
    /// from the runtime.
    pub fn new(
        settings: AdmissionSettings,
        checkpoint: Checkpoint,
        own_node: watch::Receiver<OwnNode>,
        state: watch::Receiver<NodeState>,
    ) -> Self {
        let decided = match checkpoint.load() {
            Ok(decided) => decided.unwrap_or_default(),
            Err(error @ CheckpointError::Corrupt { .. }) => {
                tracing::warn!(%error, "read admission checkpoint failed, only running pods count as admitted");
                Decisions::default()
            }
            Err(error) => {
                let error = crate::error_chain::chain(&error);
                tracing::warn!(
                    error,
                    "read admission checkpoint failed, only running pods count as admitted"
                );
                Decisions::default()
            }
        };
        let decided = Mutex::new(decided);
        Self { settings, own_node, state, decided, checkpoint, changed: Notify::new() }
    }

    /// Notified when the Node object changes.
    pub fn own_node(&self) -> watch::Receiver<OwnNode> {
        self.own_node.clone()
    }

    /// Whether enough is known to decide: the Node object of a joined node arrives with its first
    /// watch, the features of the runtime with its first status.
    pub fn can_decide(&self, pod: &Pod) -> bool {
        if admission::wants_strict_groups(pod) && self.state.borrow().reachable.is_err() {
            return false;
        }
        match (pod.source, &*self.own_node.borrow()) {
            (Source::Api, OwnNode::Unknown) => !self.settings.joined,
            (Source::Api | Source::File | Source::Http, _) => true,
        }
    }

    /// The earlier decision about this pod.
    pub fn earlier_decision(&self, uid: &PodUid) -> Option<Result<(), Rejection>> {
        let decided = self.decided.lock();
        if let Some(rejection) = decided.rejected.get(uid) {
            return Some(Err(rejection.clone()));
        }
        decided.admitted.contains(uid).then_some(Ok(()))
    }

    pub fn decide(&self, pod: &Pod, active: ActivePods<'_>) -> AdmissionDecision {
        admission::admit_beside(pod, active, &self.node())
    }

    pub fn record(&self, uid: &PodUid, outcome: Result<(), &Rejection>) {
        let mut decided = self.decided.lock();
        let changed = match outcome {
            Ok(()) => decided.admitted.insert(uid.clone()),
            Err(rejection) => {
                decided.rejected.insert(uid.clone(), rejection.clone()) != Some(rejection.clone())
            }
        };
        if changed {
            self.changed.notify_one();
        }
    }

    /// Removes the decisions about unknown pods.
    pub fn retain(&self, known: impl Fn(&PodUid) -> bool) {
        let mut decided = self.decided.lock();
        let before = decided.admitted.len() + decided.rejected.len();
        decided.admitted.retain(|uid| known(uid));
        decided.rejected.retain(|uid, _| known(uid));
        if decided.admitted.len() + decided.rejected.len() != before {
            self.changed.notify_one();
        }
    }

    /// Writes changes to the checkpoint until stopped. Several changes are one write; a decision
    /// that was lost is made again.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.changed.notified().await;
                tokio::time::sleep(FLUSH_DELAY).await;
                let this = self.clone();
                // Writing may block.
                let saved = threads::blocking(move || {
                    let decided = this.decided.lock().clone();
                    this.checkpoint.save(&decided)
                });
                if let Ok(Err(error)) = saved.await {
                    let error = crate::error_chain::chain(&error);
                    tracing::warn!(error, "write admission checkpoint failed");
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// The node as in its Node object, or as it will be registered.
    fn node(&self) -> admission::Node {
        let AdmissionSettings { identity, allocatable, sysctls, apparmor, joined: _ } =
            &self.settings;
        let mut allocatable = allocatable.clone();
        let (labels, taints) = match self.own_node.borrow().object() {
            Some(node) => {
                let shown = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
                for (name, amount) in shown.into_iter().flatten().filter(|(n, _)| is_extended(n)) {
                    if let Ok(amount) = Quantity::try_from(amount) {
                        allocatable.insert(name.clone(), amount);
                    }
                }
                let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
                (node.metadata.labels.clone(), taints)
            }
            None => (registration::initial(identity).metadata.labels, None),
        };
        let features = self.state.borrow().features;
        admission::Node {
            name: identity.name.clone(),
            labels: labels.unwrap_or_default(),
            taints: taints.unwrap_or_default(),
            allocatable,
            sysctls: sysctls.clone(),
            apparmor: *apparmor,
            strict_groups: features.is_some_and(|features| features.supplemental_groups_policy),
            pressure: Pressure::default(),
            shutting_down: false,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use podwright_core::builders::pod;
    use podwright_host::files::Root;
    use tempfile::TempDir;

    use super::*;

    fn settings(joined: bool) -> AdmissionSettings {
        let identity = Settings { name: "n".into(), hostname: "n".into(), ..Settings::default() };
        AdmissionSettings {
            identity: Arc::new(identity),
            allocatable: [("pods".to_owned(), "1".parse().unwrap())].into(),
            sysctls: Arc::default(),
            apparmor: false,
            joined,
        }
    }

    fn admission(directory: &TempDir, joined: bool) -> (Arc<Admission>, watch::Sender<OwnNode>) {
        let (shown, node) = watch::channel(OwnNode::default());
        let (_, state) = watch::channel(NodeState::default());
        let checkpoint = Checkpoint::new(Root::open(directory.path()).unwrap(), FILE, VERSION);
        (Arc::new(Admission::new(settings(joined), checkpoint, node, state)), shown)
    }

    #[tokio::test(start_paused = true)]
    async fn decisions_survive_a_restart() {
        let directory = TempDir::new().unwrap();
        let rejection = Rejection { reason: "OutOfpods".into(), message: "full".into() };
        let (first, _) = admission(&directory, false);
        let stop = CancellationToken::new();
        let keeping = tokio::spawn(first.clone().keep(stop.clone()));
        let (taken, refused, gone) = (PodUid::new("a"), PodUid::new("b"), PodUid::new("c"));
        first.record(&taken, Ok(()));
        first.record(&gone, Ok(()));
        first.record(&refused, Err(&rejection));
        first.retain(|uid| *uid != gone);
        let path = directory.path().join(FILE);
        let written = || std::fs::read_to_string(&path).unwrap_or_default();
        while !written().contains("full") || written().contains("\"c\"") {
            tokio::time::sleep(FLUSH_DELAY).await;
        }
        stop.cancel();
        keeping.await.unwrap();
        let (second, _) = admission(&directory, false);
        assert_eq!(second.earlier_decision(&taken), Some(Ok(())));
        assert_eq!(second.earlier_decision(&refused), Some(Err(rejection)));
        assert_eq!(second.earlier_decision(&gone), None);
    }

    #[test]
    fn checkpoint_of_version_1_is_written_as_it_was_read() {
        let text =
            r#"{"admitted":["a","b"],"rejected":{"c":{"reason":"OutOfcpu","message":"full"}}}"#;
        let decided: Decisions = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&decided).unwrap(), text);
    }

    #[test]
    fn corrupt_checkpoint_is_moved_aside() {
        let directory = TempDir::new().unwrap();
        std::fs::write(directory.path().join(FILE), b"{\"version\":1,\"sh").unwrap();
        let (admission, _) = admission(&directory, false);
        assert_eq!(admission.earlier_decision(&PodUid::new("a")), None);
        assert!(directory.path().join(format!("{FILE}.corrupt-1")).exists());
    }

    #[test]
    fn api_pods_wait_for_the_node_object() {
        let directory = TempDir::new().unwrap();
        let pod = pod("p").container("c");
        let (joined, shown) = admission(&directory, true);
        assert!(!joined.can_decide(&pod.clone().build()));
        assert!(joined.can_decide(&pod.clone().build_from(Source::File)));
        shown.send_replace(OwnNode::Absent);
        assert!(joined.can_decide(&pod.clone().build()));
        let (standalone, _) = admission(&directory, false);
        assert!(standalone.can_decide(&pod.build()));
    }
}
