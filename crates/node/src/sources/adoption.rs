//! Adoption: static pods continue those that the previous node agent started.
//!
//! Between the sources of static pods and the pod manager. In the first delivery of each source a
//! static pod whose UID is unknown to the runtime gets the UID of a running pod of its name, if that
//! one was created by the same requests (`podwright_core::pod::adoption`). Directories and cgroups
//! follow the UID. The pair is kept in a checkpoint, because containers may have ended when the
//! agent starts again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1;
use podwright_core::config::ImageUser;
use podwright_core::ids::{PodName, PodUid, SandboxId};
use podwright_core::observed::{ObservedPod, PodListing, RuntimeListing, State};
use podwright_core::pod::Source;
use podwright_core::pod::adoption::{
    self, AdoptingNode, Mismatch, RecordedContainer, RecordedPod, RecordedState,
};
use podwright_core::pod::merge::SourceUpdate;
use podwright_cri::{Error, Kind};
use podwright_host::checkpoint::{Checkpoint, CheckpointError};
use podwright_host::files::Root;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error_chain::chain;
use crate::pods::Delivery;
use crate::worker::context::WorkerContext;
use crate::worker::start::host_dns;

/// File name of the checkpoint in the root directory.
const FILE: &str = "adopted_static_pods";
/// Format version of the checkpoint.
const VERSION: u32 = 1;
/// Delay before a runtime that failed is asked again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// A pod that cannot be compared within this time is not adopted. The static pods of the source wait
/// meanwhile.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The pod that a static pod continues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AdoptedPod {
    #[serde(rename = "uid")]
    uid: PodUid,
    #[serde(rename = "source")]
    source: Source,
}

/// By the UID that is computed from the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct AdoptedPods {
    #[serde(rename = "pods")]
    pods: BTreeMap<PodUid, AdoptedPod>,
}

/// Why a running pod is not adopted.
#[derive(Debug, thiserror::Error)]
enum NotAdopted {
    #[error(transparent)]
    Differs(#[from] Mismatch),
    #[error("the runtime does not show how it was created")]
    NotShown,
    #[error("the runtime did not answer within {MAX_WAIT:?}")]
    Timeout,
    #[error("its containers run in more than one sandbox")]
    TwoSandboxes,
    #[error(transparent)]
    Runtime(#[from] Error),
}

pub struct Adoption {
    context: Arc<WorkerContext>,
    checkpoint: Checkpoint,
    adopted: AdoptedPods,
    delivered: BTreeSet<Source>,
}

impl Adoption {
    /// Reads the earlier adoptions. Without them a pod is compared again.
    pub fn open(context: Arc<WorkerContext>, root: Root) -> Self {
        let checkpoint = Checkpoint::new(root, FILE, VERSION);
        let adopted = checkpoint.load().unwrap_or_else(|error: CheckpointError| {
            tracing::warn!(error = chain(&error), "read record of adopted static pods failed");
            None
        });
        let adopted = adopted.unwrap_or_default();
        Self { context, checkpoint, adopted, delivered: BTreeSet::new() }
    }

    /// Passes deliveries on until stopped.
    pub async fn run(
        mut self,
        mut from: mpsc::Receiver<Delivery>,
        to: mpsc::Sender<Delivery>,
        stop: CancellationToken,
    ) {
        let work = async {
            while let Some(delivery) = from.recv().await {
                let Delivery { source, news } = delivery;
                let news = match news {
                    SourceUpdate::All(pods) => SourceUpdate::All(self.resolve(source, pods).await),
                    news @ (SourceUpdate::Changed(_) | SourceUpdate::Gone(_)) => news,
                };
                if to.send(Delivery { source, news }).await.is_err() {
                    return;
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// The pods of a source, with the UIDs under which they run.
    async fn resolve(&mut self, source: Source, pods: Vec<v1::Pod>) -> Vec<v1::Pod> {
        let before = self.adopted.clone();
        if self.delivered.insert(source) {
            self.context.pleg.first_relist().await;
            self.look_for_predecessors(source, &pods).await;
        }
        let computed: BTreeSet<PodUid> = pods.iter().filter_map(uid).collect();
        let current =
            |uid: &PodUid, pod: &AdoptedPod| pod.source != source || computed.contains(uid);
        self.adopted.pods.retain(|uid, pod| current(uid, pod));
        if self.adopted != before
            && let Err(error) = self.checkpoint.save(&self.adopted)
        {
            tracing::warn!(error = chain(&error), "write record of adopted static pods failed");
        }
        let resolved =
            pods.into_iter().map(|pod| match uid(&pod).and_then(|uid| self.known(&uid)) {
                Some(predecessor) => adoption::with_uid(&pod, predecessor),
                None => pod,
            });
        resolved.collect()
    }

    fn known(&self, computed: &PodUid) -> Option<&PodUid> {
        self.adopted.pods.get(computed).map(|pod| &pod.uid)
    }

    /// Compares all pods at the same time: one that hangs must not keep others from being adopted.
    async fn look_for_predecessors(&mut self, source: Source, pods: &[v1::Pod]) {
        let deadline = Instant::now() + MAX_WAIT;
        let Ok(listed) = tokio::time::timeout_at(deadline, self.list()).await else {
            tracing::warn!("list pods for adoption failed, static pods are not adopted");
            return;
        };
        let found = pods.iter().map(|pod| self.predecessor(source, pod, &listed, deadline));
        for (computed, predecessor) in join_all(found).await.into_iter().flatten() {
            match predecessor {
                Some(adopted) => drop(self.adopted.pods.insert(computed, adopted)),
                None => drop(self.adopted.pods.remove(&computed)),
            }
        }
    }

    /// The new entry of the pod in [`AdoptedPods`], if it changes.
    async fn predecessor(
        &self,
        source: Source,
        pod: &v1::Pod,
        listed: &RuntimeListing,
        deadline: Instant,
    ) -> Option<(PodUid, Option<AdoptedPod>)> {
        let computed = uid(pod).filter(|_| adoption::has_computed_uid(pod))?;
        let is_alive = |uid: &PodUid| listed.get(uid).is_some_and(PodListing::is_alive);
        if self.known(&computed).is_some_and(is_alive) {
            return None;
        }
        // Started by a build that does not adopt: it is the pod itself.
        if is_alive(&computed) {
            return Some((computed, None));
        }
        let meta = &pod.metadata;
        let name = PodName::new(
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default(),
        );
        let running: Vec<&PodUid> = listed
            .pods()
            .filter(|(_, known, listing)| **known == name && listing.is_alive())
            .map(|(uid, _, _)| uid)
            .filter(|uid| !self.adopted.pods.values().any(|adopted| adopted.uid == **uid))
            .collect();
        for uid in running {
            let compared = self.compare_with_retries(source, pod, &name, uid);
            let compared = tokio::time::timeout_at(deadline, compared).await;
            match compared.unwrap_or(Err(NotAdopted::Timeout)) {
                Ok(()) => {
                    tracing::info!(pod = %name, %uid, "adopt static pod: its containers match the manifest");
                    return Some((computed, Some(AdoptedPod { uid: uid.clone(), source })));
                }
                Err(reason) => tracing::info!(
                    pod = %name,
                    %uid,
                    reason = chain(&reason),
                    "running pod is not adopted, the static pod of its name replaces it"
                ),
            }
        }
        None
    }

    async fn list(&self) -> RuntimeListing {
        loop {
            match self.context.runtime.list_pods().await {
                Ok(listed) => return listed,
                Err(error) => {
                    tracing::warn!(%error, "list pods for adoption failed, retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }

    /// Replacing a pod because of one lost response would stop what should go on.
    async fn compare_with_retries(
        &self,
        source: Source,
        pod: &v1::Pod,
        name: &PodName,
        uid: &PodUid,
    ) -> Result<(), NotAdopted> {
        loop {
            match self.compare(source, pod, name, uid).await {
                Err(NotAdopted::Runtime(error)) if error.kind != Kind::NotFound => {
                    tracing::warn!(pod = %name, %error, "inspect pod for adoption failed, retrying");
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn compare(
        &self,
        source: Source,
        pod: &v1::Pod,
        name: &PodName,
        uid: &PodUid,
    ) -> Result<(), NotAdopted> {
        let mut pod = pod.clone();
        self.context.settings.features.drop_disabled(&mut pod);
        let Some(pod) = adoption::comparable(&pod, source, uid) else {
            return Err(Mismatch::NotComparable { what: "the manifest" }.into());
        };
        let recorded = self.recorded(name, uid).await?;
        let facts = &self.context.facts_now();
        let host_dns = &host_dns(&facts.resolv_conf);
        let Ok(cgroup_parent) = self.context.resources.cgroups.parent(&pod) else {
            return Err(Mismatch::NotComparable { what: "its cgroup" }.into());
        };
        let node = AdoptingNode { facts, host_dns, cgroup_parent: &cgroup_parent };
        Ok(adoption::check(&pod, &recorded, &node)?)
    }

    /// What runs of a pod, and how it was created.
    async fn recorded(&self, name: &PodName, uid: &PodUid) -> Result<RecordedPod, NotAdopted> {
        let runtime = &self.context.runtime;
        let now = self.context.clock.now().mono;
        let (observed, _) = runtime.observe(uid, name, now).await?;
        let sandbox = observed.ready_sandbox().ok_or(Mismatch::NothingRuns)?;
        if observed.running().any(|instance| instance.sandbox != sandbox.id) {
            return Err(NotAdopted::TwoSandboxes);
        }
        let request = runtime.sandbox_request(&sandbox.id).await?.ok_or(NotAdopted::NotShown)?;
        Ok(RecordedPod {
            uid: uid.clone(),
            handler: sandbox.handler.clone(),
            ips: sandbox.ips.clone().unwrap_or_default(),
            containers: self.recorded_containers(&observed, &sandbox.id).await?,
            sandbox: request,
        })
    }

    async fn recorded_containers(
        &self,
        observed: &ObservedPod,
        sandbox: &SandboxId,
    ) -> Result<Vec<RecordedContainer>, NotAdopted> {
        let runtime = &self.context.runtime;
        let (mut recorded, mut seen) = (Vec::new(), BTreeSet::new());
        // Newest first.
        for instance in observed.instances.iter().filter(|instance| instance.sandbox == *sandbox) {
            if !seen.insert(instance.container.clone()) {
                continue;
            }
            let config =
                runtime.container_request(&instance.id).await?.ok_or(NotAdopted::NotShown)?;
            let image = config.image.as_ref().map_or("", |image| image.image.as_str());
            let image = runtime.image_status(image).await?;
            let state = match &instance.state {
                State::Running { .. } => RecordedState::Running,
                State::Exited(exit) if exit.code == 0 => RecordedState::Succeeded,
                State::Exited(_) | State::Created | State::Unknown => RecordedState::Other,
            };
            let image_user = image.map(|image| ImageUser::new(image.uid, &image.username));
            recorded.push(RecordedContainer { config, state, image_user });
        }
        Ok(recorded)
    }
}

fn uid(pod: &v1::Pod) -> Option<PodUid> {
    pod.metadata.uid.as_deref().map(PodUid::new)
}
