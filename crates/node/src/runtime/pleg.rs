//! Pod lifecycle event generator (PLEG) and the cache of observed pod states.
//!
//! A pod is inspected again for one of two reasons. An event of the runtime names the pod where
//! something happened, at once; a relist of all pods finds what no event reported. Neither is
//! applied as state: both only notify the pod worker, which inspects the pod itself. So a lost
//! event costs time, a duplicate costs nothing, and an inspection that hangs delays only its own
//! pod.
//!
//! The relist runs every second without an event stream, and slower while one is healthy.

mod owners;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, Stream};
use owners::Owners;
use parking_lot::Mutex;
use podwright_core::gc::{self, ContainerPolicy};
use podwright_core::ids::{ContainerId, PodName, PodUid};
use podwright_core::observed::{
    ListedItem, ListedState, ObservedPod, PodChange, PodEvent, PodListing, RuntimeListing, State,
};
use podwright_core::time::Mono;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::runtime::termination_message;
use crate::telemetry::metrics::Metrics;

/// Relist interval without an event stream.
const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// Relist interval with an event stream: the relist only finds lost events.
const RELIST_INTERVAL_WITH_EVENTS: Duration = Duration::from_secs(10);
/// Without a successful relist for this long the PLEG is unhealthy, as upstream.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// Concurrent inspections. After a restart all pods are inspected, and the runtime goes through all
/// its pods for each.
const CONCURRENT_INSPECTIONS: usize = 32;
/// An inspection that takes longer does not count any more: one that hangs must not delay others.
const INSPECTION_HANGS: Duration = Duration::from_secs(1);
/// An inspection right after an exit event may be too early, so the event is repeated after these
/// delays.
const REPEATS: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(1500),
];

/// Receives notifications about pods that changed in the runtime.
pub trait Listener: Send + Sync + 'static {
    /// The pod changed in the runtime, or its cached state may be stale.
    fn notify(&self, uid: &PodUid, events: &[PodEvent]);
}

/// The cached state of a pod.
#[derive(Default)]
struct CacheEntry {
    observed: watch::Sender<Option<Arc<ObservedPod>>>,
    /// The pod worker made this observation, so it needs no notification of what it shows.
    by_worker: bool,
}

/// For whom a pod is inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inspector {
    /// The worker of the pod, which decides on the result.
    Worker,
    /// Any other; the worker does not learn of the result.
    Other,
}

pub struct Pleg {
    runtime: cri::Client,
    clock: Clock,
    metrics: Arc<Metrics>,
    keeps: ContainerPolicy,
    /// Result of the last relist.
    last: Mutex<RuntimeListing>,
    cache: Mutex<HashMap<PodUid, CacheEntry>>,
    owners: Mutex<Owners>,
    inspections: Semaphore,
    relisted: watch::Sender<Option<Relist>>,
    /// The runtime responded to the last relist.
    reachable: Mutex<bool>,
    /// Number of times the runtime responded again after an outage.
    recoveries: watch::Sender<u64>,
    has_events: watch::Sender<bool>,
    /// Notified when garbage collection should run early.
    gc_wakeup: Notify,
}

/// The newest complete relist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relist {
    pub began: Mono,
}

#[derive(Debug, thiserror::Error)]
#[error("pod {name}: cannot inspect its sandboxes and containers")]
pub struct InspectError {
    name: PodName,
    #[source]
    pub(crate) source: cri::Error,
}

impl Pleg {
    /// `keeps`: the dead containers that garbage collection keeps.
    pub fn new(
        runtime: cri::Client,
        clock: Clock,
        metrics: Arc<Metrics>,
        keeps: ContainerPolicy,
    ) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            clock,
            metrics,
            keeps,
            last: Mutex::default(),
            cache: Mutex::default(),
            owners: Mutex::default(),
            inspections: Semaphore::new(CONCURRENT_INSPECTIONS),
            relisted: watch::Sender::new(None),
            reachable: Mutex::default(),
            recoveries: watch::Sender::default(),
            has_events: watch::Sender::new(false),
            gc_wakeup: Notify::new(),
        })
    }

    /// Relists until stopped.
    pub async fn relist_loop(&self, listener: &impl Listener, stop: CancellationToken) {
        let mut has_events = self.has_events.subscribe();
        loop {
            let wait = if *has_events.borrow_and_update() {
                RELIST_INTERVAL_WITH_EVENTS
            } else {
                RELIST_INTERVAL
            };
            let began = tokio::time::Instant::now();
            if let Err(error) = self.relist(listener).await {
                tracing::warn!(%error, "relist failed, retrying");
            }
            tokio::select! { biased;
                () = stop.cancelled() => return,
                // Cancel-safe: a missed change is seen by the next borrow.
                changed = has_events.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(began + wait) => {}
            }
        }
    }

    /// Lists all pods once and notifies the workers of pods that changed since they looked.
    pub async fn relist(&self, listener: &impl Listener) -> Result<(), cri::Error> {
        let began = self.clock.now().mono;
        if let Some(previous) = *self.relisted.borrow() {
            self.metrics.pleg.interval.observe(began.since(previous.began));
        }
        let seen = self.runtime.pod_list().await;
        self.metrics.pleg.duration.observe(self.clock.now().mono.since(began));
        let reachable = seen.as_ref().map_or_else(|error| !error.is_silence(), |_| true);
        let was_reachable = std::mem::replace(&mut *self.reachable.lock(), reachable);
        if reachable && !was_reachable {
            self.recoveries.send_modify(|count| *count += 1);
        }
        let seen = seen?;
        if self.relisted.borrow().is_some_and(|newest| newest.began > began) {
            // A relist that began later has already finished; its result is newer.
            return Ok(());
        }
        let changes = self.merge(seen.items()?, began);
        drop(seen);
        for PodChange { uid, events } in &changes {
            let is_seen = self.is_seen_by_worker(uid);
            if events.iter().any(|e| matches!(e, PodEvent::ContainerRemoved(_))) {
                self.forget_if_gone(uid);
            }
            if !is_seen {
                listener.notify(uid, events);
            }
        }
        self.relisted.send_replace(Some(Relist { began }));
        self.metrics.pleg.last_seen.set(self.clock.now().wall);
        Ok(())
    }

    /// Merges a list into the last one; returns the pods that changed.
    fn merge(&self, items: Vec<ListedItem<'_>>, began: Mono) -> Vec<PodChange> {
        let mut last = self.last.lock();
        let changes = last.merge(items);
        self.owners.lock().follow_relist(&changes, &last, began);
        let totals = last.totals();
        drop(last);
        let metrics = &self.metrics.pleg;
        metrics.running_pods.set(totals.running_pods);
        metrics.containers.created.set(totals.created);
        metrics.containers.running.set(totals.running);
        metrics.containers.exited.set(totals.exited);
        metrics.containers.unknown.set(totals.unknown);
        changes
    }

    /// Whether the pod worker has observed the pod as the last relist shows it.
    fn is_seen_by_worker(&self, uid: &PodUid) -> bool {
        let cache = self.cache.lock();
        let by_worker = cache.get(uid).filter(|entry| entry.by_worker);
        let observed = by_worker.and_then(|entry| entry.observed.borrow().clone());
        drop(cache);
        let Some(observed) = observed else { return false };
        let last = self.last.lock();
        *last.get(uid).unwrap_or(&PodListing::default()) == observed.listing()
    }

    /// Follows the event stream of the runtime until stopped; without it, relists are frequent.
    pub async fn event_loop(&self, listener: &impl Listener, stop: CancellationToken) {
        let work = async {
            loop {
                let ended = self.follow_hints(listener).await;
                self.has_events.send_if_modified(|up| std::mem::replace(up, false));
                match ended {
                    // An earlier runtime version may have had a stream.
                    Err(error) if error.kind == cri::Kind::Unimplemented => {
                        tracing::info!("runtime has no event stream, relisting every second");
                        return;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "runtime event stream ended, reconnecting");
                    }
                    Ok(()) => {}
                }
                tokio::time::sleep(RECONNECT_DELAY).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn follow_hints(&self, listener: &impl Listener) -> Result<(), cri::Error> {
        let version = self.runtime.version().await?;
        let mut opened = std::pin::pin!(self.runtime.hints(&version.runtime_name));
        // The runtime responds with its first event, but refuses at once: no response means that
        // the stream is open. A relist finds what happened before.
        let early = tokio::time::timeout(RECONNECT_DELAY, &mut opened).await;
        let early = early.ok().transpose()?;
        self.relist(listener).await?;
        self.has_events.send_replace(true);
        let hints = match early {
            Some(hints) => hints,
            None => opened.await?,
        };
        let mut hints = with_repeats(hints);
        while let Some(hint) = hints.next().await {
            let uid = match hint? {
                cri::Hint::Pod(uid) => Some(uid),
                cri::Hint::Id(id) => self.owner(&id),
                // An exit is final: once observed, no further inspection is needed.
                cri::Hint::Ended(id) => self.owner(&id).filter(|uid| !self.shows_end(uid, &id)),
            };
            if let Some(uid) = uid {
                listener.notify(&uid, &[]);
            }
        }
        Ok(())
    }

    /// Inspects one pod for its worker and caches the result.
    pub async fn inspect(
        &self,
        uid: &PodUid,
        name: &PodName,
    ) -> Result<Arc<ObservedPod>, InspectError> {
        self.inspect_for(Inspector::Worker, uid, name).await
    }

    /// Inspects one pod and caches the result.
    pub async fn inspect_for(
        &self,
        inspector: Inspector,
        uid: &PodUid,
        name: &PodName,
    ) -> Result<Arc<ObservedPod>, InspectError> {
        let inspection = async {
            let as_of = self.clock.now().mono;
            self.runtime.observe(uid, name, as_of).await
        };
        let result = self.limited(inspection).await;
        let (mut observed, seen) =
            result.map_err(|source| InspectError { name: name.clone(), source })?;
        let before = self.cached(uid);
        for mut seen in seen {
            if seen.instance.exit().is_some() {
                match before.as_ref().and_then(|old| exited(old, &seen.instance.id)) {
                    // An exit is final; its termination message is read once.
                    Some(state) => seen.instance.state = state,
                    None => termination_message::complete(&mut seen).await,
                }
                let known = observed.instances.iter_mut().find(|i| i.id == seen.instance.id);
                if let Some(instance) = known {
                    instance.state = seen.instance.state;
                }
            }
        }
        self.owners.lock().note(&observed);
        if gc::has_surplus(&observed, &self.keeps) {
            self.gc_wakeup.notify_one();
        }
        keep_addresses(before.as_deref(), &mut observed);
        let observed = Arc::new(observed);
        let mut cache = self.cache.lock();
        let entry = cache.entry(uid.clone()).or_default();
        let by_worker = &mut entry.by_worker;
        entry.observed.send_if_modified(|cached| {
            // Inspections by a worker and by a request may overlap; the later one is newer.
            let newer = cached.as_ref().is_none_or(|cached| cached.as_of <= observed.as_of);
            if newer {
                *cached = Some(observed.clone());
                *by_worker = inspector == Inspector::Worker;
            }
            newer
        });
        Ok(observed)
    }

    /// Waits for a permit, and holds it at most for [`INSPECTION_HANGS`].
    async fn limited<T>(&self, inspection: impl Future<Output = T>) -> T {
        // The semaphore is never closed.
        let permit = self.inspections.acquire().await.ok();
        tokio::pin!(inspection);
        tokio::select! { biased;
            result = &mut inspection => return result,
            () = tokio::time::sleep(INSPECTION_HANGS) => drop(permit),
        }
        inspection.await
    }

    /// Wakes garbage collection before its interval.
    pub fn gc_wakeup(&self) -> &Notify {
        &self.gc_wakeup
    }

    /// The last observed state of a pod.
    pub fn cached(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        self.cache.lock().get(uid).and_then(|entry| entry.observed.borrow().clone())
    }

    /// Every observed state of a pod from now on. Closed when the pod is gone from the runtime or
    /// removed from the cache.
    pub fn watch(&self, uid: &PodUid) -> watch::Receiver<Option<Arc<ObservedPod>>> {
        self.cache.lock().entry(uid.clone()).or_default().observed.subscribe()
    }

    /// Waits for the first successful relist.
    pub async fn first_relist(&self) {
        let mut relisted = self.relisted.subscribe();
        let _ = relisted.wait_for(Option::is_some).await;
    }

    /// Waits for the next successful relist.
    pub async fn next_relist(&self) {
        let mut relisted = self.relisted.subscribe();
        // The sender is owned by `self`.
        let _ = relisted.changed().await;
    }

    /// Number of times the runtime responded again after an outage.
    pub fn recoveries(&self) -> watch::Receiver<u64> {
        self.recoveries.subscribe()
    }

    /// The pods of the runtime by the last relist, and whether they are running.
    pub fn runtime_pods(&self) -> Vec<(PodUid, PodName, bool)> {
        let last = self.last.lock();
        last.pods().map(|(uid, name, pod)| (uid.clone(), name.clone(), pod.is_alive())).collect()
    }

    /// Whether a sandbox or container of this pod was running at the last relist.
    pub fn is_alive(&self, uid: &PodUid) -> bool {
        self.last.lock().get(uid).is_some_and(PodListing::is_alive)
    }

    /// The name of a pod of which something was running at the last relist.
    pub fn name_of_alive(&self, uid: &PodUid) -> Option<PodName> {
        let last = self.last.lock();
        last.get(uid).filter(|listed| listed.is_alive()).and_then(|_| last.name(uid).cloned())
    }

    /// Whether a container of this pod was running at the last relist.
    pub fn runs_container(&self, uid: &PodUid) -> bool {
        self.last.lock().get(uid).is_some_and(PodListing::runs_container)
    }

    /// Whether this container was running at the last relist.
    pub fn is_running(&self, id: &str) -> bool {
        let Some(uid) = self.owner(id) else { return false };
        let last = self.last.lock();
        last.get(&uid).and_then(|listed| listed.state(id)) == Some(ListedState::Running)
    }

    /// Whether the last relist shows sandboxes or containers that do not run.
    pub fn lists_dead(&self) -> bool {
        self.last.lock().totals().has_dead()
    }

    /// Whether the last relist shows a pod in another state than `observed`. A relist that began
    /// before the observation proves nothing.
    pub fn contradicts(&self, observed: &ObservedPod) -> bool {
        let newer = self.relisted.borrow().is_some_and(|relist| relist.began > observed.as_of);
        let last = self.last.lock();
        let listed = last.get(&observed.uid);
        newer && *listed.unwrap_or(&PodListing::default()) != observed.listing()
    }

    /// Why the PLEG is unhealthy; `None` while it is healthy.
    pub fn unhealthy(&self) -> Option<String> {
        let now = self.clock.now().mono;
        match *self.relisted.borrow() {
            None => Some("pleg has yet to be successful".into()),
            Some(last) if now.since(last.began) > RELIST_THRESHOLD => {
                let ago = now.since(last.began).as_secs();
                Some(format!("pleg was last seen active {ago}s ago; threshold is 3m0s"))
            }
            Some(_) => None,
        }
    }

    /// Removes a pod from the cache. The last list then shows it as it was last observed, if that
    /// was later: a pod that ended since would count as an orphan until the next relist.
    pub fn forget(&self, uid: &PodUid) {
        let forgotten = self.cache.lock().remove(uid);
        let Some(observed) = forgotten.and_then(|entry| entry.observed.borrow().clone()) else {
            return;
        };
        if self.relisted.borrow().is_some_and(|relist| relist.began < observed.as_of) {
            let mut last = self.last.lock();
            let ids = last.get(uid).into_iter().flat_map(PodListing::ids);
            self.owners.lock().recheck(ids);
            last.replace(uid, observed.listing());
        }
    }

    fn owner(&self, id: &str) -> Option<PodUid> {
        self.owners.lock().get(id).cloned()
    }

    /// Whether the worker has seen that this container or sandbox has ended.
    fn shows_end(&self, uid: &PodUid, id: &str) -> bool {
        // What another inspector saw, the worker may not know yet.
        let by_worker = self.cache.lock().get(uid).is_some_and(|entry| entry.by_worker);
        by_worker
            && self.cached(uid).is_some_and(|seen| {
                let container = seen.instances.iter().find(|instance| instance.id.as_str() == id);
                let sandbox = seen.sandboxes.iter().find(|sandbox| sandbox.id.as_str() == id);
                container.is_some_and(|instance| instance.exit().is_some())
                    || sandbox.is_some_and(|sandbox| !sandbox.ready)
            })
    }

    fn forget_if_gone(&self, uid: &PodUid) {
        if self.last.lock().get(uid).is_none() {
            self.forget(uid);
        }
    }
}

/// Passes each hint on at once and repeats exit hints later, because they may come too early.
/// Repeats do not delay other hints.
fn with_repeats(
    hints: impl Stream<Item = Result<cri::Hint, cri::Error>> + Send + Unpin,
) -> impl Stream<Item = Result<cri::Hint, cri::Error>> + Send + Unpin {
    hints.flat_map_unordered(None, |hint| {
        let again = match &hint {
            Ok(cri::Hint::Ended(id)) => Some(id.clone()),
            Ok(cri::Hint::Pod(_) | cri::Hint::Id(_)) | Err(_) => None,
        };
        let repeats = stream::iter(again).flat_map(|id| {
            stream::iter(REPEATS).then(move |delay| {
                let hint = cri::Hint::Ended(id.clone());
                async move {
                    tokio::time::sleep(delay).await;
                    Ok(hint)
                }
            })
        });
        stream::iter([hint]).chain(repeats).boxed()
    })
}

fn exited(old: &ObservedPod, id: &ContainerId) -> Option<State> {
    let instance = old.instances.iter().find(|i| &i.id == id)?;
    instance.exit().map(|exit| State::Exited(exit.clone()))
}

/// A stopped sandbox has no address, but the status of the pod keeps the last one.
fn keep_addresses(before: Option<&ObservedPod>, now: &mut ObservedPod) {
    if now.ready_sandbox().is_some() {
        return;
    }
    let Some(before) = before else { return };
    for sandbox in &mut now.sandboxes {
        let old = before.sandboxes.iter().find(|s| s.id == sandbox.id);
        if sandbox.ips.as_ref().is_none_or(Vec::is_empty)
            && let Some(old) = old
        {
            sandbox.ips.clone_from(&old.ips);
        }
    }
}

#[cfg(test)]
mod tests;
