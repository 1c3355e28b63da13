//! Pod lifecycle event generator (PLEG) and the cache of observed pod states.
//!
//! A pod is inspected again for one of two reasons. An event of the runtime names the pod where
//! something happened, at once; a relist of all pods finds what no event reported. Neither is
//! applied as state: both only notify the pod worker, which inspects the pod itself. So a lost
//! event costs time, a duplicate costs nothing, and an inspection that hangs delays only its own
//! pod.
//!
//! The relist runs every second without an event stream, and slower while one is healthy.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, Stream};
use parking_lot::Mutex;
use podwright_core::gc::{self, ContainerPolicy};
use podwright_core::ids::{ContainerId, PodName, PodUid};
use podwright_core::observed::{self, ListedState, ObservedPod, PodEvent, PodListing, State};
use podwright_core::time::Mono;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use tokio::sync::{Notify, watch};
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

type Listing = BTreeMap<PodUid, (PodName, PodListing)>;

pub struct Pleg {
    runtime: cri::Client,
    clock: Clock,
    metrics: Arc<Metrics>,
    keeps: ContainerPolicy,
    /// Result of the last relist.
    last: Mutex<Listing>,
    cache: Mutex<HashMap<PodUid, watch::Sender<Option<Arc<ObservedPod>>>>>,
    /// The pod of each runtime ID, for events that name only the ID, and when it was last observed.
    owners: Mutex<HashMap<Arc<str>, (PodUid, Mono)>>,
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

    /// Lists all pods once and notifies the workers of pods that changed.
    pub async fn relist(&self, listener: &impl Listener) -> Result<(), cri::Error> {
        let began = self.clock.now().mono;
        if let Some(previous) = *self.relisted.borrow() {
            self.metrics.pleg.interval.observe(began.since(previous.began));
        }
        let seen = self.runtime.list_pods().await;
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
        self.count(&seen);
        let changes = {
            let mut last = self.last.lock();
            let changes = compare(&last, &seen);
            self.replace_owners(&seen, began);
            *last = seen;
            changes
        };
        for (uid, events) in &changes {
            if events.iter().any(|e| matches!(e, PodEvent::ContainerRemoved(_))) {
                self.forget_if_gone(uid);
            }
            listener.notify(uid, events);
        }
        self.relisted.send_replace(Some(Relist { began }));
        self.metrics.pleg.last_seen.set(self.clock.now().wall);
        Ok(())
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

    /// Inspects one pod and caches the result.
    pub async fn inspect(
        &self,
        uid: &PodUid,
        name: &PodName,
    ) -> Result<Arc<ObservedPod>, InspectError> {
        let as_of = self.clock.now().mono;
        let result = self.runtime.observe(uid, name, as_of).await;
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
        self.note_owners(&observed);
        if gc::has_surplus(&observed, &self.keeps) {
            self.gc_wakeup.notify_one();
        }
        keep_addresses(before.as_deref(), &mut observed);
        let observed = Arc::new(observed);
        let mut cache = self.cache.lock();
        cache.entry(uid.clone()).or_default().send_if_modified(|cached| {
            // Inspections by a worker and by a request may overlap; the later one is newer.
            let newer = cached.as_ref().is_none_or(|cached| cached.as_of <= observed.as_of);
            if newer {
                *cached = Some(observed.clone());
            }
            newer
        });
        Ok(observed)
    }

    /// Wakes garbage collection before its interval.
    pub fn gc_wakeup(&self) -> &Notify {
        &self.gc_wakeup
    }

    /// The last observed state of a pod.
    pub fn cached(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        self.cache.lock().get(uid).and_then(|state| state.borrow().clone())
    }

    /// Every observed state of a pod from now on. Closed when the pod is gone from the runtime or
    /// removed from the cache.
    pub fn watch(&self, uid: &PodUid) -> watch::Receiver<Option<Arc<ObservedPod>>> {
        self.cache.lock().entry(uid.clone()).or_default().subscribe()
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
        last.iter().map(|(uid, (name, g))| (uid.clone(), name.clone(), g.is_alive())).collect()
    }

    /// Whether a sandbox or container of this pod was running at the last relist.
    pub fn is_alive(&self, uid: &PodUid) -> bool {
        self.last.lock().get(uid).is_some_and(|(_, listed)| listed.is_alive())
    }

    /// The name of a pod of which something was running at the last relist.
    pub fn name_of_alive(&self, uid: &PodUid) -> Option<PodName> {
        let last = self.last.lock();
        last.get(uid).filter(|(_, listed)| listed.is_alive()).map(|(name, _)| name.clone())
    }

    /// Whether a container of this pod was running at the last relist.
    pub fn runs_container(&self, uid: &PodUid) -> bool {
        self.last.lock().get(uid).is_some_and(|(_, listed)| listed.runs_container())
    }

    /// Whether the last relist shows a pod in another state than `observed`. A relist that began
    /// before the observation proves nothing.
    pub fn contradicts(&self, observed: &ObservedPod) -> bool {
        let newer = self.relisted.borrow().is_some_and(|relist| relist.began > observed.as_of);
        let last = self.last.lock();
        let listed = last.get(&observed.uid).map(|(_, listing)| listing);
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
        let Some(observed) = forgotten.and_then(|state| state.borrow().clone()) else { return };
        if self.relisted.borrow().is_some_and(|relist| relist.began < observed.as_of)
            && let Some((_, listed)) = self.last.lock().get_mut(uid)
        {
            *listed = observed.listing();
        }
    }

    fn owner(&self, id: &str) -> Option<PodUid> {
        self.owners.lock().get(id).map(|(uid, _)| uid.clone())
    }

    /// Whether the cached state shows that this container or sandbox has ended.
    fn shows_end(&self, uid: &PodUid, id: &str) -> bool {
        self.cached(uid).is_some_and(|seen| {
            let container = seen.instances.iter().find(|instance| instance.id.as_str() == id);
            let sandbox = seen.sandboxes.iter().find(|sandbox| sandbox.id.as_str() == id);
            container.is_some_and(|instance| instance.exit().is_some())
                || sandbox.is_some_and(|sandbox| !sandbox.ready)
        })
    }

    fn forget_if_gone(&self, uid: &PodUid) {
        if !self.last.lock().contains_key(uid) {
            self.forget(uid);
        }
    }

    fn note_owners(&self, observed: &ObservedPod) {
        let mut owners = self.owners.lock();
        let ids = observed.sandboxes.iter().map(|s| s.id.as_str());
        for id in ids.chain(observed.instances.iter().map(|i| i.id.as_str())) {
            let owner =
                owners.entry(id.into()).or_insert_with(|| (observed.uid.clone(), observed.as_of));
            owner.1 = observed.as_of;
        }
    }

    /// Replaces the owners by those of a relist, but keeps what was observed after it began: it may
    /// have been created while the list was made.
    fn replace_owners(&self, seen: &Listing, began: Mono) {
        let mut owners = self.owners.lock();
        owners.retain(|_, (_, noted)| *noted >= began);
        for (uid, (_, listed)) in seen {
            for id in listed.ids() {
                owners.entry(id.clone()).or_insert_with(|| (uid.clone(), began));
            }
        }
    }

    fn count(&self, seen: &Listing) {
        let containers = |wanted: ListedState| {
            let states = seen.values().flat_map(|(_, listed)| listed.containers.values());
            states.filter(|state| **state == wanted).count()
        };
        let metrics = &self.metrics.pleg;
        metrics.running_pods.set(seen.values().filter(|(_, listed)| listed.is_alive()).count());
        metrics.containers.created.set(containers(ListedState::Created));
        metrics.containers.running.set(containers(ListedState::Running));
        metrics.containers.exited.set(containers(ListedState::Exited));
        metrics.containers.unknown.set(containers(ListedState::Unknown));
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

/// Pods that changed between two listings, with their events.
fn compare(before: &Listing, after: &Listing) -> Vec<(PodUid, Vec<PodEvent>)> {
    let mut changes = Vec::new();
    for (uid, (_, listed)) in after {
        let nothing = PodListing::default();
        let old = before.get(uid).map_or(&nothing, |(_, listed)| listed);
        let events = observed::diff(old, listed);
        if !events.is_empty() {
            changes.push((uid.clone(), events));
        }
    }
    for (uid, (_, listed)) in before.iter().filter(|(uid, _)| !after.contains_key(*uid)) {
        changes.push((uid.clone(), observed::diff(listed, &PodListing::default())));
    }
    changes
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
#[allow(clippy::panic, clippy::unwrap_used)]
mod tests {
    use podwright_core::builders;
    use podwright_fake_runtime::{Fake, FakeOptions, Fault, Rpc, Rule};

    use super::*;

    struct IgnoreAll;

    impl Listener for IgnoreAll {
        fn notify(&self, _: &PodUid, _: &[PodEvent]) {}
    }

    #[tokio::test(start_paused = true)]
    async fn relists_stay_frequent_when_the_event_stream_is_refused_late() {
        let fake = Fake::start(FakeOptions::default());
        let refusal = Fault::Error(tonic::Code::Unimplemented, "no events".into());
        let slow = Fault::Delay(2 * RECONNECT_DELAY);
        for fault in [slow, refusal] {
            fake.fail(Rule::on_any_of([Rpc::GetContainerEvents, Rpc::Subscribe], fault));
        }
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let mut has_events = pleg.has_events.subscribe();
        let following = pleg.event_loop(&IgnoreAll, CancellationToken::new());
        let opened = async { has_events.wait_for(|up| *up).await.map(|up| *up).unwrap() };
        let (open, ()) = tokio::join!(opened, following);
        assert!(open, "no response counts as an open stream");
        assert!(!*pleg.has_events.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn relist_begun_before_a_sandbox_was_created_keeps_its_owner() {
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let at = |second| Mono(Duration::from_secs(second));
        let job = builders::pod("job").container("app").build();
        let observed = builders::observed(&job).sandbox("made", 0, true).build();
        pleg.note_owners(&ObservedPod { as_of: at(2), ..observed });
        pleg.replace_owners(&Listing::new(), at(1));
        assert!(pleg.owners.lock().contains_key("made"), "the list is older than the sandbox");
        pleg.replace_owners(&Listing::new(), at(3));
        assert!(pleg.owners.lock().is_empty(), "it is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_ended_after_the_relist_is_not_alive_once_it_is_forgotten() {
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let at = |second| Mono(Duration::from_secs(second));
        let job = builders::pod("job").container("app").build();
        let listed = builders::observed(&job).sandbox("s", 0, true).build().listing();
        let ended = builders::observed(&job).sandbox("s", 0, false).build();
        for (as_of, alive) in [(1, true), (3, false)] {
            pleg.last.lock().insert(job.uid.clone(), (job.name.clone(), listed.clone()));
            pleg.relisted.send_replace(Some(Relist { began: at(2) }));
            let observed = Arc::new(ObservedPod { as_of: at(as_of), ..ended.clone() });
            pleg.cache.lock().insert(job.uid.clone(), watch::Sender::new(Some(observed)));
            pleg.forget(&job.uid);
            assert_eq!(pleg.is_alive(&job.uid), alive, "observed at {as_of}, listed at 2");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn inspection_that_began_earlier_does_not_replace_a_newer_one() {
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let job = builders::pod("job").container("app").build();
        // The runtime has nothing of the pod; the later inspection saw a sandbox.
        let newer = builders::observed(&job).sandbox("s", 0, true).build();
        let newer = Arc::new(ObservedPod { as_of: Mono(Duration::from_secs(60)), ..newer });
        pleg.cache.lock().insert(job.uid.clone(), watch::Sender::new(Some(newer.clone())));
        let older = pleg.inspect(&job.uid, &job.name).await.unwrap();
        assert!(older.sandboxes.is_empty() && older.as_of < newer.as_of);
        assert_eq!(pleg.cached(&job.uid), Some(newer));
        tokio::time::sleep(Duration::from_secs(61)).await;
        pleg.inspect(&job.uid, &job.name).await.unwrap();
        assert!(pleg.cached(&job.uid).unwrap().sandboxes.is_empty(), "a later one replaces it");
    }

    #[tokio::test(start_paused = true)]
    async fn pleg_is_unhealthy_three_minutes_after_the_last_relist() {
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        assert_eq!(pleg.unhealthy().as_deref(), Some("pleg has yet to be successful"));
        pleg.relist(&IgnoreAll).await.unwrap();
        tokio::time::sleep(RELIST_THRESHOLD - Duration::from_secs(1)).await;
        assert_eq!(pleg.unhealthy(), None);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let text = "pleg was last seen active 181s ago; threshold is 3m0s";
        assert_eq!(pleg.unhealthy().as_deref(), Some(text));
        fake.fail(Rule::on(Rpc::ListPodSandbox, Fault::Error(tonic::Code::Unknown, "x".into())));
        assert!(pleg.relist(&IgnoreAll).await.is_err());
        assert!(pleg.unhealthy().is_some(), "a failed relist proves nothing");
        fake.heal();
        pleg.relist(&IgnoreAll).await.unwrap();
        assert_eq!(pleg.unhealthy(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_relist_after_the_observation_contradicts_it() {
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let at = |second| Mono(Duration::from_secs(second));
        let job = builders::pod("job").container("app").build();
        let seen = |ready| builders::observed(&job).sandbox("s", 0, ready).build();
        pleg.last.lock().insert(job.uid.clone(), (job.name.clone(), seen(true).listing()));
        pleg.relisted.send_replace(Some(Relist { began: at(2) }));
        for (as_of, ready, contradicts) in [(1, false, true), (3, false, false), (1, true, false)] {
            let observed = ObservedPod { as_of: at(as_of), ..seen(ready) };
            assert_eq!(pleg.contradicts(&observed), contradicts, "as of {as_of}, ready {ready}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn exit_hints_are_repeated_and_do_not_delay_others() {
        let hints = [
            Ok(cri::Hint::Ended("ended".into())),
            Ok(cri::Hint::Id("started".into())),
            Ok(cri::Hint::Pod(PodUid::new("pod"))),
        ];
        let began = tokio::time::Instant::now();
        let received = with_repeats(stream::iter(hints)).map(|hint| {
            let source = match hint {
                Ok(cri::Hint::Id(id) | cri::Hint::Ended(id)) => id,
                Ok(cri::Hint::Pod(uid)) => uid.to_string(),
                Err(error) => panic!("{error}"),
            };
            (began.elapsed().as_millis(), source)
        });
        let mut received: Vec<_> = received.collect().await;
        received.sort();
        let want = [
            (0, "ended"),
            (0, "pod"),
            (0, "started"),
            (20, "ended"),
            (100, "ended"),
            (500, "ended"),
            (2000, "ended"),
        ];
        assert_eq!(received, want.map(|(at, source)| (at, source.to_owned())));
    }
}
