//! What admission asks about this node, and what it decided before.
//!
//! A decision is made once. What was admitted and what was rejected is written down, so that a
//! restart neither rejects a pod that runs, because the node's labels or its other pods changed
//! meanwhile, nor takes one that was turned away. The decision itself is
//! `podwright_core::admission`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::admission::sysctls::Allowed;
use podwright_core::admission::{self, Rejection, Verdict};
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

use crate::heartbeat::own_node::OwnNode;
use crate::tools::NodeState;

/// The name of the file below the root folder.
pub const FILE: &str = "admitted_pods_state";
/// Of its content.
pub const VERSION: u32 = 1;

/// How long a decision may wait for others to be written with it.
const UNHURRIED: Duration = Duration::from_secs(1);

/// What does not change while the agent runs.
#[derive(Clone, Debug)]
pub struct Ground {
    pub identity: Arc<Settings>,
    /// What pods may have, as the node itself counts.
    pub allocatable: ResourceList,
    pub sysctls: Arc<Allowed>,
    pub apparmor: bool,
    /// There is an API server, which will show the node's object.
    pub joined: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Decided {
    #[serde(rename = "admitted")]
    admitted: BTreeSet<PodUid>,
    #[serde(rename = "rejected")]
    rejected: BTreeMap<PodUid, Rejection>,
}

pub struct Admission {
    ground: Ground,
    shown: watch::Receiver<OwnNode>,
    state: watch::Receiver<NodeState>,
    decided: Mutex<Decided>,
    checkpoint: Checkpoint,
    changed: Notify,
}

impl Admission {
    /// Reads what was decided before. A file that cannot be read is out of the way; what runs is
    /// known from the runtime.
    pub fn new(
        ground: Ground,
        checkpoint: Checkpoint,
        shown: watch::Receiver<OwnNode>,
        state: watch::Receiver<NodeState>,
    ) -> Self {
        let decided = match checkpoint.load() {
            Ok(decided) => decided.unwrap_or_default(),
            Err(error @ CheckpointError::Corrupt { .. }) => {
                tracing::warn!(%error, "what was admitted is taken from what runs");
                Decided::default()
            }
            Err(error) => {
                let error = crate::causes::chain(&error);
                tracing::warn!(error, "cannot read which pods were admitted");
                Decided::default()
            }
        };
        let decided = Mutex::new(decided);
        Self { ground, shown, state, decided, checkpoint, changed: Notify::new() }
    }

    /// Told when the node's object changes.
    pub fn shown(&self) -> watch::Receiver<OwnNode> {
        self.shown.clone()
    }

    /// Whether enough is known to decide: the object of a joined node comes with its first watch, and
    /// what the runtime can do with its first answer.
    pub fn can_decide(&self, pod: &Pod) -> bool {
        if admission::wants_strict_groups(pod) && self.state.borrow().answering.is_err() {
            return false;
        }
        match (pod.source, &*self.shown.borrow()) {
            (Source::Api, OwnNode::Unknown) => !self.ground.joined,
            (Source::Api | Source::File | Source::Http, _) => true,
        }
    }

    /// What was decided of this pod before.
    pub fn earlier(&self, uid: &PodUid) -> Option<Result<(), Rejection>> {
        let decided = self.decided.lock();
        if let Some(rejection) = decided.rejected.get(uid) {
            return Some(Err(rejection.clone()));
        }
        decided.admitted.contains(uid).then_some(Ok(()))
    }

    pub fn decide(&self, pod: &Pod, active: &[Arc<Pod>]) -> Verdict {
        admission::admit(pod, active, &self.node())
    }

    pub fn remember(&self, uid: &PodUid, outcome: Result<(), &Rejection>) {
        let mut decided = self.decided.lock();
        let news = match outcome {
            Ok(()) => decided.admitted.insert(uid.clone()),
            Err(rejection) => {
                decided.rejected.insert(uid.clone(), rejection.clone()) != Some(rejection.clone())
            }
        };
        if news {
            self.changed.notify_one();
        }
    }

    /// Forgets pods that nobody knows any more.
    pub fn retain(&self, known: impl Fn(&PodUid) -> bool) {
        let mut decided = self.decided.lock();
        let before = decided.admitted.len() + decided.rejected.len();
        decided.admitted.retain(|uid| known(uid));
        decided.rejected.retain(|uid, _| known(uid));
        if decided.admitted.len() + decided.rejected.len() != before {
            self.changed.notify_one();
        }
    }

    /// Writes every change down until stopped. Many changes are one file; a decision that was
    /// lost is made again.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.changed.notified().await;
                tokio::time::sleep(UNHURRIED).await;
                let this = self.clone();
                // The disk may take its time.
                let saved = threads::blocking(move || {
                    let decided = this.decided.lock().clone();
                    this.checkpoint.save(&decided)
                });
                if let Ok(Err(error)) = saved.await {
                    let error = crate::causes::chain(&error);
                    tracing::warn!(error, "cannot write down which pods were admitted");
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// The node as it is shown, or as it is about to be.
    fn node(&self) -> admission::Node {
        let Ground { identity, allocatable, sysctls, apparmor, joined: _ } = &self.ground;
        let mut allocatable = allocatable.clone();
        let (labels, taints) = match self.shown.borrow().object() {
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

    fn ground(joined: bool) -> Ground {
        let identity = Settings { name: "n".into(), hostname: "n".into(), ..Settings::default() };
        Ground {
            identity: Arc::new(identity),
            allocatable: [("pods".to_owned(), "1".parse().unwrap())].into(),
            sysctls: Arc::default(),
            apparmor: false,
            joined,
        }
    }

    fn admission(folder: &TempDir, joined: bool) -> (Arc<Admission>, watch::Sender<OwnNode>) {
        let (shown, node) = watch::channel(OwnNode::default());
        let (_, state) = watch::channel(NodeState::default());
        let checkpoint = Checkpoint::new(Root::open(folder.path()).unwrap(), FILE, VERSION);
        (Arc::new(Admission::new(ground(joined), checkpoint, node, state)), shown)
    }

    #[tokio::test(start_paused = true)]
    async fn a_decision_is_the_same_after_a_restart() {
        let folder = TempDir::new().unwrap();
        let rejection = Rejection { reason: "OutOfpods".into(), message: "full".into() };
        let (first, _) = admission(&folder, false);
        let stop = CancellationToken::new();
        let keeping = tokio::spawn(first.clone().keep(stop.clone()));
        let (taken, refused, gone) = (PodUid::new("a"), PodUid::new("b"), PodUid::new("c"));
        first.remember(&taken, Ok(()));
        first.remember(&gone, Ok(()));
        first.remember(&refused, Err(&rejection));
        first.retain(|uid| *uid != gone);
        let path = folder.path().join(FILE);
        let written = || std::fs::read_to_string(&path).unwrap_or_default();
        while !written().contains("full") || written().contains("\"c\"") {
            tokio::time::sleep(UNHURRIED).await;
        }
        stop.cancel();
        keeping.await.unwrap();
        let (second, _) = admission(&folder, false);
        assert_eq!(second.earlier(&taken), Some(Ok(())));
        assert_eq!(second.earlier(&refused), Some(Err(rejection)));
        assert_eq!(second.earlier(&gone), None);
    }

    #[test]
    fn checkpoint_of_version_1_is_written_as_it_was_read() {
        let text =
            r#"{"admitted":["a","b"],"rejected":{"c":{"reason":"OutOfcpu","message":"full"}}}"#;
        let decided: Decided = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&decided).unwrap(), text);
    }

    #[test]
    fn a_file_with_garbage_is_moved_aside() {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join(FILE), b"{\"version\":1,\"sh").unwrap();
        let (admission, _) = admission(&folder, false);
        assert_eq!(admission.earlier(&PodUid::new("a")), None);
        assert!(folder.path().join(format!("{FILE}.corrupt-1")).exists());
    }

    #[test]
    fn pods_of_the_api_wait_for_the_nodes_object() {
        let folder = TempDir::new().unwrap();
        let pod = pod("p").container("c");
        let (joined, shown) = admission(&folder, true);
        assert!(!joined.can_decide(&pod.clone().build()));
        assert!(joined.can_decide(&pod.clone().build_from(Source::File)));
        shown.send_replace(OwnNode::Absent);
        assert!(joined.can_decide(&pod.clone().build()));
        let (alone, _) = admission(&folder, false);
        assert!(alone.can_decide(&pod.build()));
    }
}
