//! Admission: the state of this node that decisions depend on, and the record of earlier decisions.
//!
//! A decision is made once and kept in a checkpoint, so that a restart neither rejects a running
//! pod because the labels or the other pods of the node changed, nor admits a rejected one. The
//! decision itself is in `podwright_core::admission`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_api::qos::ResourceList;
use podwright_api::quantity::Quantity;
use podwright_core::admission::sysctls::AllowedSysctls;
use podwright_core::admission::{self, ActivePods, AdmissionDecision, Rejection};
use podwright_core::ids::PodUid;
use podwright_core::node_status::{Pressure, Settings, registration, resources::is_extended};
use podwright_core::pod::{Pod, Source};
use podwright_host::checkpoint::{CheckpointError, IncrementalCheckpoint};
use podwright_host::threads;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::report::heartbeat::own_node::OwnNode;
use crate::runtime::state::NodeState;

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

/// A line of the change log: all that is decided about one pod.
#[derive(Debug, Serialize, Deserialize)]
struct Change {
    #[serde(rename = "uid")]
    uid: PodUid,
    #[serde(rename = "admitted")]
    admitted: bool,
    #[serde(rename = "rejected")]
    rejected: Option<Rejection>,
}

impl Decisions {
    fn apply(&mut self, change: Change) {
        let Change { uid, admitted, rejected } = change;
        match rejected {
            Some(rejection) => drop(self.rejected.insert(uid.clone(), rejection)),
            None => drop(self.rejected.remove(&uid)),
        }
        if admitted {
            self.admitted.insert(uid)
        } else {
            self.admitted.remove(&uid)
        };
    }

    fn change(&self, uid: &PodUid) -> Change {
        let rejected = self.rejected.get(uid).cloned();
        Change { uid: uid.clone(), admitted: self.admitted.contains(uid), rejected }
    }

    fn is_known(&self, uid: &PodUid) -> bool {
        self.admitted.contains(uid) || self.rejected.contains_key(uid)
    }
}

pub struct Admission {
    settings: AdmissionSettings,
    own_node: watch::Receiver<OwnNode>,
    state: watch::Receiver<NodeState>,
    shutting_down: watch::Receiver<bool>,
    /// `None`: the node is never under pressure.
    pressure: Option<watch::Receiver<Pressure>>,
    decided: Mutex<Decisions>,
    /// Pods whose decision on disk is missing or outdated.
    unsaved: Mutex<BTreeSet<PodUid>>,
    checkpoint: IncrementalCheckpoint,
    changed: Notify,
}

impl Admission {
    /// Reads the earlier decisions. An unreadable checkpoint is ignored: running pods are known
    /// from the runtime.
    pub fn new(
        settings: AdmissionSettings,
        checkpoint: IncrementalCheckpoint,
        own_node: watch::Receiver<OwnNode>,
        state: watch::Receiver<NodeState>,
        shutting_down: watch::Receiver<bool>,
    ) -> Self {
        let decided = match checkpoint.load(Decisions::apply) {
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
        let (unsaved, changed) = (Mutex::default(), Notify::new());
        Self {
            settings,
            own_node,
            state,
            shutting_down,
            pressure: None,
            decided,
            unsaved,
            checkpoint,
            changed,
        }
    }

    /// The pressure that the node is under.
    pub fn pressure(&self) -> Pressure {
        self.pressure.as_ref().map(|now| *now.borrow()).unwrap_or_default()
    }

    /// With the pressure that the node is under.
    pub fn under(self, pressure: watch::Receiver<Pressure>) -> Self {
        Self { pressure: Some(pressure), ..self }
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
        drop(decided);
        if changed {
            self.note_unsaved(uid);
        }
    }

    /// Removes the decision about a pod that is no longer known.
    pub fn forget(&self, uid: &PodUid) {
        let mut decided = self.decided.lock();
        if decided.is_known(uid) {
            decided.admitted.remove(uid);
            decided.rejected.remove(uid);
            drop(decided);
            self.note_unsaved(uid);
        }
    }

    /// The pods with a decision.
    pub fn recorded(&self) -> Vec<PodUid> {
        let decided = self.decided.lock();
        decided.admitted.iter().chain(decided.rejected.keys()).cloned().collect()
    }

    /// Called after the change.
    fn note_unsaved(&self, uid: &PodUid) {
        self.unsaved.lock().insert(uid.clone());
        self.changed.notify_one();
    }

    /// Writes changes to the checkpoint until stopped, and then all in one file. Several changes are
    /// one write; a decision that was lost is made again.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.changed.notified().await;
                tokio::time::sleep(FLUSH_DELAY).await;
                let this = self.clone();
                // Writing may block. `save` logs its errors.
                let _ = threads::blocking(move || this.save()).await;
            }
        };
        stop.run_until_cancelled(work).await;
        let merged = threads::blocking(move || {
            self.save();
            self.checkpoint.merge(|| self.decided.lock().clone())
        });
        if let Ok(Err(error)) = merged.await {
            report(&error);
        }
    }

    /// Writes the changes that are not on disk yet.
    fn save(&self) {
        let uids = std::mem::take(&mut *self.unsaved.lock());
        if uids.is_empty() {
            return;
        }
        let (changes, count) = {
            let decided = self.decided.lock();
            let changes: Vec<Change> = uids.iter().map(|uid| decided.change(uid)).collect();
            (changes, decided.admitted.len() + decided.rejected.len())
        };
        if let Err(error) = self.checkpoint.save(&changes, count, || self.decided.lock().clone()) {
            self.unsaved.lock().extend(uids);
            report(&error);
        }
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
            pressure: self.pressure(),
            shutting_down: self.is_shutting_down(),
        }
    }

    /// Whether the machine is shutting down, and the pods end before.
    pub fn is_shutting_down(&self) -> bool {
        *self.shutting_down.borrow()
    }
}

fn report(error: &CheckpointError) {
    let error = crate::error_chain::chain(error);
    tracing::warn!(error, "write admission checkpoint failed, retrying with the next decision");
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use podwright_core::builders::pod;
    use podwright_host::checkpoint::Checkpoint;
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
        let (_, shutting_down) = watch::channel(false);
        let checkpoint = Checkpoint::new(Root::open(directory.path()).unwrap(), FILE, VERSION);
        let checkpoint = IncrementalCheckpoint::new(checkpoint).unwrap();
        (Arc::new(Admission::new(settings(joined), checkpoint, node, state, shutting_down)), shown)
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
        first.forget(&gone);
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
    fn decisions_of_a_large_node_survive_a_restart() {
        let directory = TempDir::new().unwrap();
        let (first, _) = admission(&directory, false);
        let uid = |number: u32| PodUid::new(format!("pod-{number}"));
        let rejection = Rejection { reason: "OutOfpods".into(), message: "full".into() };
        for number in 0..300 {
            let outcome = if number % 3 == 0 { Err(&rejection) } else { Ok(()) };
            first.record(&uid(number), outcome);
            first.save();
        }
        first.forget(&uid(3));
        first.forget(&uid(4));
        first.save();
        assert!(directory.path().join(format!("{FILE}.changes")).exists());
        let (second, _) = admission(&directory, false);
        for number in 0..300 {
            let (before, after) =
                (first.earlier_decision(&uid(number)), second.earlier_decision(&uid(number)));
            assert_eq!(before, after, "of {number}");
            assert_eq!(after.is_none(), number == 3 || number == 4);
        }
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
