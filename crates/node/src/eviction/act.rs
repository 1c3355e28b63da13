//! What is done about a threshold: reclaim, then the eviction of one pod.

use std::time::Duration;

use podwright_core::eviction::layout::Reclaimable;
use podwright_core::eviction::victim::{self, Eviction};
use podwright_core::eviction::{
    DiskLayout, Met, PodUsage, Resource, SampleTime, Signal, Verdict, local_storage, ranking,
};
use podwright_core::ids::PodUid;
use podwright_core::lifecycle::{Kill, Stage};

use super::{EvictionManager, Outcome, Scope, State, is_disk};
use crate::error_chain::chain;
use crate::pods;
use crate::report::events::Severity;
use crate::runtime::gc::GcScope;

/// How long the resources of an evicted pod may take to be released.
const RELEASE: Duration = Duration::from_secs(30);
/// Maximum age of the disk usage by which pods are ranked.
const DISK_AGE: Duration = Duration::from_secs(60);
/// How long a pass for a disk waits for that usage.
const MEASURE_LIMIT: Duration = Duration::from_secs(30);

impl EvictionManager {
    /// Acts on the first threshold that is due.
    pub(super) async fn act(&self, state: &mut State, verdict: &Verdict) -> Outcome {
        let layout = state.signals.layout();
        // What could be removed from which disk is not known without the layout.
        let is_actionable = |met: &&Met| layout.is_some() || !is_disk(met.threshold.signal);
        let Some(met) = verdict.due.iter().find(is_actionable) else {
            state.measuring = None;
            return Outcome::Nothing;
        };
        let (signal, layout) = (met.threshold.signal, layout.unwrap_or(DiskLayout::Single));
        if state.measuring.is_none() {
            let text = victim::threshold_met(signal);
            tracing::info!(
                signal = signal.as_str(),
                available = met.observation.available,
                threshold = met.threshold.amount(met.observation.capacity),
                "eviction threshold is met"
            );
            let node = &self.dependencies.node_name;
            self.dependencies.events.node(node, Severity::Warning, "EvictionThresholdMet", text);
            if self.reclaim(signal, layout).await {
                state.signals.measure(Scope::Everything, &state.thresholds).await;
                if state.thresholds.are_resolved(state.signals.observed()) {
                    tracing::info!(
                        signal = signal.as_str(),
                        "enough was reclaimed, no pod is evicted"
                    );
                    return Outcome::Nothing;
                }
            }
        }
        if is_disk(signal) && self.awaits_measurement(state) {
            return Outcome::Measuring;
        }
        state.measuring = None;
        self.observe_ages(verdict);
        self.evict_one(met, verdict, layout).await
    }

    /// Removes what no pod needs. Returns whether anything could be removed.
    async fn reclaim(&self, signal: Signal, layout: DiskLayout) -> bool {
        let gc = &self.dependencies.gc;
        let mut tried = false;
        for what in layout.reclaimable(signal) {
            let result = match what {
                Reclaimable::DeadContainers => gc.collect(GcScope::EverythingDead).await,
                Reclaimable::UnusedImages if self.settings.reclaim_images => {
                    gc.reclaim_images().await.map(drop)
                }
                Reclaimable::UnusedImages => continue,
            };
            tried = true;
            if let Err(error) = result {
                tracing::warn!(error = chain(&error), ?what, "reclaim disk space failed");
            }
        }
        tried
    }

    /// Whether to wait for the disk usage of pods. Without it the wrong pod could be evicted.
    fn awaits_measurement(&self, state: &mut State) -> bool {
        let pods = self.dependencies.pod_index.active_pods();
        if !self.measure(&pods, DISK_AGE) {
            return false;
        }
        let now = self.dependencies.clock.now().mono;
        let since = *state.measuring.get_or_insert(now);
        now.since(since) < MEASURE_LIMIT
    }

    fn observe_ages(&self, verdict: &Verdict) {
        let now = self.dependencies.clock.now();
        for met in &verdict.due {
            let age = match met.observation.at {
                SampleTime::Measured(at) => now.mono.since(at),
                SampleTime::Reported(nanos) => {
                    let age = now.wall.as_nanosecond().saturating_sub(nanos.into());
                    Duration::from_nanos(u64::try_from(age).unwrap_or(0))
                }
            };
            self.dependencies.metrics.evictions.aged(met.threshold.signal.as_str(), age);
        }
    }

    /// Evicts the first pod in the order that may be evicted.
    async fn evict_one(&self, met: &Met, verdict: &Verdict, layout: DiskLayout) -> Outcome {
        let signal = met.threshold.signal;
        let ranked = ranking::ranked(self.usage(signal.resource()).await, signal, layout);
        for mut pod in ranked {
            if !ranking::may_be_evicted(&pod) {
                tracing::debug!(pod = %pod.pod.name, "critical pod is not evicted");
                continue;
            }
            if signal.resource() == Resource::Memory {
                self.add_container_memory(&mut pod).await;
            }
            let eviction = Eviction::new(&pod, met, verdict, self.settings.max_pod_grace);
            let kill = eviction.kill();
            let Eviction { message, annotations, .. } = eviction;
            if self.evict(&pod, signal.as_str(), kill, message, annotations).await {
                self.released(&[pod.pod.uid.clone()]).await;
                return Outcome::Evicted;
            }
        }
        tracing::error!(
            signal = signal.as_str(),
            "unable to evict any pods: every pod on this node is critical or static. Fix: free \
             the resource on the node, or move pods away"
        );
        Outcome::Nothing
    }

    /// Evicts all pods that exceed their own limits of local storage; returns whether there were any.
    pub(super) async fn enforce_limits(&self, state: &State) -> bool {
        let mut pods = self.dependencies.pod_index.active_pods();
        pods.retain(|pod| local_storage::is_limited(pod));
        let disks = &self.dependencies.disks;
        let pod_index = &self.dependencies.pod_index;
        disks.keep(|uid| pod_index.is_active(uid));
        if pods.is_empty() {
            return false;
        }
        self.measure(&pods, disks.period());
        let layout = state.signals.layout().unwrap_or(DiskLayout::Dedicated);
        let mut evictions = Vec::new();
        let mut evicted: Vec<PodUid> = Vec::new();
        for pod in self.usage_of_limited(pods).await {
            let Some(excess) = local_storage::excess(&pod, layout) else { continue };
            if !ranking::may_be_evicted(&pod) {
                tracing::error!(
                    pod = %pod.pod.name,
                    problem = excess.message,
                    "a critical pod exceeds its local storage limit and is not evicted"
                );
                continue;
            }
            evicted.push(pod.pod.uid.clone());
            evictions.push((pod, excess));
        }
        let evictions = evictions.iter().map(|(pod, excess)| {
            let kill = victim::kill_for_limit(&excess.message);
            self.evict(pod, excess.kind, kill, excess.message.clone(), Vec::new())
        });
        let done = futures::future::join_all(evictions).await;
        self.released(&evicted).await;
        done.contains(&true)
    }

    /// Ends a pod. False if it is not there any more. One that does not stop in time counts as
    /// evicted: a second victim would be one too many.
    async fn evict(
        &self,
        pod: &PodUsage,
        signal: &'static str,
        kill: Kill,
        message: String,
        annotations: Vec<(&'static str, String)>,
    ) -> bool {
        let (events, pod_index) = (&self.dependencies.events, &self.dependencies.pod_index);
        let pod = &pod.pod;
        if pod_index.handle(&pod.uid).is_none() {
            return false;
        }
        tracing::warn!(pod = %pod.name, signal, grace = ?kill.grace, "evicting pod");
        events.annotated_pod(pod, Severity::Warning, victim::REASON, message, annotations);
        match pods::end(events, pod_index, &pod.uid, kill).await {
            Ok(()) => {}
            Err(pods::EndError::Unknown(_)) => return false,
            Err(error @ pods::EndError::ExceededGracePeriod { .. }) => {
                tracing::warn!(%error, "evicted pod still stops");
            }
        }
        self.dependencies.metrics.evictions.evicted(signal);
        true
    }

    /// Waits until pods have released their volumes and cgroups.
    async fn released(&self, pods: &[PodUid]) {
        let wait = |uid: &PodUid| {
            let (handle, uid) = (self.dependencies.pod_index.handle(uid), uid.clone());
            async move {
                let Some(handle) = handle else { return };
                let mut desired = handle.desired();
                let finished =
                    desired.wait_for(|desired| desired.lifecycle.stage() >= Stage::Finished);
                if tokio::time::timeout(RELEASE, finished).await.is_err() {
                    tracing::warn!(%uid, "an evicted pod has not released its resources yet");
                }
            }
        };
        futures::future::join_all(pods.iter().map(wait)).await;
    }
}
