//! Sees what came of our acts: the pod lifecycle event generator, and the cache of what it saw.
//!
//! Two ways lead to a fresh look at a pod. The runtime's event stream hints at the one pod where
//! something happened, at once; a relist of everything finds whatever no event told. Neither is
//! applied as state: both only poke the pod's worker, which looks for itself. So a lost event
//! costs time, a doubled one nothing, and a look that hangs keeps only its own pod waiting.
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
use podwright_core::observed::{self, Glance, ObservedPod, PodEvent, PodGlance, State};
use podwright_core::time::Mono;
use podwright_cri as cri;
use podwright_host::clock::Clock;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::last_words;
use crate::metrics::Metrics;

/// How often everything is listed when nobody tells us of changes.
const RELIST: Duration = Duration::from_secs(1);
/// And when the runtime does: the list is only the safety net.
const RELIST_WITH_HINTS: Duration = Duration::from_secs(10);
/// Without a relist for this long, what we know is no longer worth much.
const STALE: Duration = Duration::from_secs(180);
const RECONNECT: Duration = Duration::from_secs(1);
/// A look at something that ended may have come too early, and is made again, this long after the
/// one before.
const ECHOES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(1500),
];

/// Who wants to know that the runtime has news of a pod.
pub trait Listener: Send + Sync + 'static {
    /// The runtime shows changes of this pod, or its cache is stale.
    fn poke(&self, uid: &PodUid, events: &[PodEvent]);
}

type Known = BTreeMap<PodUid, (PodName, PodGlance)>;

pub struct Pleg {
    runtime: cri::Client,
    clock: Clock,
    metrics: Arc<Metrics>,
    keeps: ContainerPolicy,
    /// What the last relist showed.
    last: Mutex<Known>,
    cache: Mutex<HashMap<PodUid, watch::Sender<Option<Arc<ObservedPod>>>>>,
    /// Which pod a runtime id belongs to, for hints that name only the id, and when that was seen.
    owners: Mutex<HashMap<Arc<str>, (PodUid, Mono)>>,
    relisted: watch::Sender<Option<Relist>>,
    /// The runtime answered the last list.
    answers: watch::Sender<bool>,
    hinted: watch::Sender<bool>,
    /// Told when there is something for clean-up to do before its time.
    leftovers: Notify,
}

/// The newest complete relist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relist {
    pub began: Mono,
}

#[derive(Debug, thiserror::Error)]
#[error("pod {name}: cannot see what the runtime has of it")]
pub struct LookError {
    name: PodName,
    #[source]
    pub(crate) source: cri::Error,
}

impl Pleg {
    /// `keeps`: what clean-up leaves of the dead.
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
            answers: watch::Sender::new(false),
            hinted: watch::Sender::new(false),
            leftovers: Notify::new(),
        })
    }

    /// Relists until stopped.
    pub async fn relist_loop(&self, listener: &impl Listener, stop: CancellationToken) {
        let mut hinted = self.hinted.subscribe();
        loop {
            let wait = if *hinted.borrow_and_update() { RELIST_WITH_HINTS } else { RELIST };
            let began = tokio::time::Instant::now();
            if let Err(error) = self.relist(listener).await {
                tracing::warn!(%error, "cannot list the runtime's pods; will try again");
            }
            tokio::select! { biased;
                () = stop.cancelled() => return,
                // Cancel-safe: a change is seen again by the next borrow.
                changed = hinted.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(began + wait) => {}
            }
        }
    }

    /// Lists everything once and pokes the pods where something changed.
    pub async fn relist(&self, listener: &impl Listener) -> Result<(), cri::Error> {
        let began = self.clock.now().mono;
        if let Some(previous) = *self.relisted.borrow() {
            self.metrics.pleg.interval.observe(began.since(previous.began));
        }
        let seen = self.runtime.glance().await;
        self.metrics.pleg.duration.observe(self.clock.now().mono.since(began));
        let answers = seen.as_ref().map_or_else(|error| !error.is_silence(), |_| true);
        self.answers.send_if_modified(|old| std::mem::replace(old, answers) != answers);
        let seen = seen?;
        if self.relisted.borrow().is_some_and(|newest| newest.began > began) {
            // One that began later was faster: it has seen more.
            return Ok(());
        }
        self.count(&seen);
        let changes = {
            let mut last = self.last.lock();
            let changes = compare(&last, &seen);
            self.own(&seen, began);
            *last = seen;
            changes
        };
        for (uid, events) in &changes {
            if events.iter().any(|e| matches!(e, PodEvent::ContainerRemoved(_))) {
                self.forget_if_gone(uid);
            }
            listener.poke(uid, events);
        }
        self.relisted.send_replace(Some(Relist { began }));
        self.metrics.pleg.last_seen.set(self.clock.now().wall);
        Ok(())
    }

    /// Follows the runtime's event stream until stopped; while it is down, relists are frequent.
    pub async fn hint_loop(&self, listener: &impl Listener, stop: CancellationToken) {
        let work = async {
            loop {
                let ended = self.follow_hints(listener).await;
                self.hinted.send_if_modified(|up| std::mem::replace(up, false));
                match ended {
                    // It may have had one before it was replaced by another.
                    Err(error) if error.kind == cri::Kind::Unimplemented => {
                        tracing::info!("the runtime has no event stream; relisting each second");
                        return;
                    }
                    Err(error) => tracing::debug!(%error, "the runtime's event stream ended"),
                    Ok(()) => {}
                }
                tokio::time::sleep(RECONNECT).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    async fn follow_hints(&self, listener: &impl Listener) -> Result<(), cri::Error> {
        let version = self.runtime.version().await?;
        let mut asked = std::pin::pin!(self.runtime.hints(&version.runtime_name));
        // The runtime answers with its first event, a refusal comes at once: silence means that
        // it listens. What happened before is found by one more list.
        let early = tokio::time::timeout(RECONNECT, &mut asked).await;
        let early = early.ok().transpose()?;
        self.relist(listener).await?;
        self.hinted.send_replace(true);
        let hints = match early {
            Some(hints) => hints,
            None => asked.await?,
        };
        let mut hints = with_echoes(hints);
        while let Some(hint) = hints.next().await {
            let uid = match hint? {
                cri::Hint::Pod(uid) => Some(uid),
                cri::Hint::Id(id) => self.owner(&id),
                // An end is final: who has seen it learns nothing by looking again.
                cri::Hint::Ended(id) => self.owner(&id).filter(|uid| !self.shows_end(uid, &id)),
            };
            if let Some(uid) = uid {
                listener.poke(&uid, &[]);
            }
        }
        Ok(())
    }

    /// Looks at one pod now, and remembers what it saw.
    pub async fn look(&self, uid: &PodUid, name: &PodName) -> Result<Arc<ObservedPod>, LookError> {
        let as_of = self.clock.now().mono;
        let looked = self.runtime.observe(uid, name, as_of).await;
        let (mut observed, seen) =
            looked.map_err(|source| LookError { name: name.clone(), source })?;
        let before = self.cached(uid);
        for mut seen in seen {
            if seen.instance.exit().is_some() {
                match before.as_ref().and_then(|old| exited(old, &seen.instance.id)) {
                    // An exit does not change any more; its words are read once.
                    Some(state) => seen.instance.state = state,
                    None => last_words::complete(&mut seen).await,
                }
                let known = observed.instances.iter_mut().find(|i| i.id == seen.instance.id);
                if let Some(instance) = known {
                    instance.state = seen.instance.state;
                }
            }
        }
        self.note_owners(&observed);
        if gc::has_surplus(&observed, &self.keeps) {
            self.leftovers.notify_one();
        }
        keep_addresses(before.as_deref(), &mut observed);
        let observed = Arc::new(observed);
        let mut cache = self.cache.lock();
        cache.entry(uid.clone()).or_default().send_replace(Some(observed.clone()));
        Ok(observed)
    }

    /// Wakes clean-up: something ended that it may want to remove.
    pub fn leftovers(&self) -> &Notify {
        &self.leftovers
    }

    /// What was last seen of a pod.
    pub fn cached(&self, uid: &PodUid) -> Option<Arc<ObservedPod>> {
        self.cache.lock().get(uid).and_then(|cell| cell.borrow().clone())
    }

    /// Every view of a pod from now on. It ends when nothing of the pod is left to see, or it is
    /// forgotten.
    pub fn watch(&self, uid: &PodUid) -> watch::Receiver<Option<Arc<ObservedPod>>> {
        self.cache.lock().entry(uid.clone()).or_default().subscribe()
    }

    /// Waits until everything was listed once.
    pub async fn first_relist(&self) {
        let mut relisted = self.relisted.subscribe();
        let _ = relisted.wait_for(Option::is_some).await;
    }

    /// Waits until everything was listed once more.
    pub async fn next_relist(&self) {
        let mut relisted = self.relisted.subscribe();
        // The sender lives as long as `self`.
        let _ = relisted.changed().await;
    }

    /// Whether the runtime answers at all.
    pub fn answers(&self) -> watch::Receiver<bool> {
        self.answers.subscribe()
    }

    /// The pods the runtime holds, by the last relist.
    pub fn runtime_pods(&self) -> Vec<(PodUid, PodName, bool)> {
        let last = self.last.lock();
        last.iter().map(|(uid, (name, g))| (uid.clone(), name.clone(), g.is_alive())).collect()
    }

    /// Whether the runtime showed something of this pod running.
    pub fn is_alive(&self, uid: &PodUid) -> bool {
        self.last.lock().get(uid).is_some_and(|(_, glance)| glance.is_alive())
    }

    /// Whether the runtime showed a container of this pod running.
    pub fn runs_container(&self, uid: &PodUid) -> bool {
        self.last.lock().get(uid).is_some_and(|(_, glance)| glance.runs_container())
    }

    /// Why what we know of the runtime is out of date; `None` while it is not.
    pub fn unhealthy(&self) -> Option<String> {
        let now = self.clock.now().mono;
        match *self.relisted.borrow() {
            None => Some("pleg has yet to be successful".into()),
            Some(last) if now.since(last.began) > STALE => {
                let ago = now.since(last.began).as_secs();
                Some(format!("pleg was last seen active {ago}s ago; threshold is 3m0s"))
            }
            Some(_) => None,
        }
    }

    pub fn forget(&self, uid: &PodUid) {
        self.cache.lock().remove(uid);
    }

    fn owner(&self, id: &str) -> Option<PodUid> {
        self.owners.lock().get(id).map(|(uid, _)| uid.clone())
    }

    /// Whether what was last seen of a pod shows that this container or sandbox has ended.
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

    /// All there is belongs to whom the list says; and what was made while it was being written
    /// belongs to whom a look at it said.
    fn own(&self, seen: &Known, began: Mono) {
        let mut owners = self.owners.lock();
        owners.retain(|_, (_, noted)| *noted >= began);
        for (uid, (_, glance)) in seen {
            for id in glance.ids() {
                owners.entry(id.clone()).or_insert_with(|| (uid.clone(), began));
            }
        }
    }

    fn count(&self, seen: &Known) {
        let containers = |wanted: Glance| {
            let states = seen.values().flat_map(|(_, glance)| glance.containers.values());
            states.filter(|state| **state == wanted).count()
        };
        let metrics = &self.metrics.pleg;
        metrics.running_pods.set(seen.values().filter(|(_, glance)| glance.is_alive()).count());
        metrics.containers.created.set(containers(Glance::Created));
        metrics.containers.running.set(containers(Glance::Running));
        metrics.containers.exited.set(containers(Glance::Exited));
        metrics.containers.unknown.set(containers(Glance::Unknown));
    }
}

/// Each hint at once. That something ended may come too early, and comes again; others are not held
/// up by that.
fn with_echoes(
    hints: impl Stream<Item = Result<cri::Hint, cri::Error>> + Send + Unpin,
) -> impl Stream<Item = Result<cri::Hint, cri::Error>> + Send + Unpin {
    hints.flat_map_unordered(None, |hint| {
        let again = match &hint {
            Ok(cri::Hint::Ended(id)) => Some(id.clone()),
            Ok(cri::Hint::Pod(_) | cri::Hint::Id(_)) | Err(_) => None,
        };
        let echoes = stream::iter(again).flat_map(|id| {
            stream::iter(ECHOES).then(move |delay| {
                let hint = cri::Hint::Ended(id.clone());
                async move {
                    tokio::time::sleep(delay).await;
                    Ok(hint)
                }
            })
        });
        stream::iter([hint]).chain(echoes).boxed()
    })
}

/// Pods whose glance changed, with the events that follow.
fn compare(before: &Known, after: &Known) -> Vec<(PodUid, Vec<PodEvent>)> {
    let mut changes = Vec::new();
    for (uid, (_, glance)) in after {
        let nothing = PodGlance::default();
        let old = before.get(uid).map_or(&nothing, |(_, glance)| glance);
        let events = observed::diff(old, glance);
        if !events.is_empty() {
            changes.push((uid.clone(), events));
        }
    }
    for (uid, (_, glance)) in before.iter().filter(|(uid, _)| !after.contains_key(*uid)) {
        changes.push((uid.clone(), observed::diff(glance, &PodGlance::default())));
    }
    changes
}

fn exited(old: &ObservedPod, id: &ContainerId) -> Option<State> {
    let instance = old.instances.iter().find(|i| &i.id == id)?;
    instance.exit().map(|exit| State::Exited(exit.clone()))
}

/// A sandbox that ended has no address any more; the pod is still reported under its last one.
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
    use podwright_cri::fake::{Fake, FakeOptions, Fault, Rpc, Rule};

    use super::*;

    struct Nobody;

    impl Listener for Nobody {
        fn poke(&self, _: &PodUid, _: &[PodEvent]) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_refused_late_leaves_the_relists_frequent() {
        let fake = Fake::start(FakeOptions::default());
        let refusal = Fault::Error(tonic::Code::Unimplemented, "no events".into());
        let slow = Fault::Delay(2 * RECONNECT);
        for fault in [slow, refusal] {
            fake.fail(Rule::on_any_of([Rpc::GetContainerEvents, Rpc::Subscribe], fault));
        }
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let mut hinted = pleg.hinted.subscribe();
        let following = pleg.hint_loop(&Nobody, CancellationToken::new());
        let silence = async { hinted.wait_for(|up| *up).await.map(|up| *up).unwrap() };
        let (silent, ()) = tokio::join!(silence, following);
        assert!(silent, "no answer was taken for a yes");
        assert!(!*pleg.hinted.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_began_before_a_container_was_made_does_not_disown_it() {
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
        let pleg = Pleg::new(fake.client(), clock, Arc::default(), ContainerPolicy::default());
        let at = |second| Mono(Duration::from_secs(second));
        let job = builders::pod("job").container("app").build();
        let looked = builders::observed(&job).sandbox("made", 0, true).build();
        pleg.note_owners(&ObservedPod { as_of: at(2), ..looked });
        pleg.own(&Known::new(), at(1));
        assert!(pleg.owners.lock().contains_key("made"), "the list could not know it");
        pleg.own(&Known::new(), at(3));
        assert!(pleg.owners.lock().is_empty(), "it is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hint_that_may_come_too_early_comes_again_and_holds_up_no_other() {
        let hints = [
            Ok(cri::Hint::Ended("ended".into())),
            Ok(cri::Hint::Id("begun".into())),
            Ok(cri::Hint::Pod(PodUid::new("told"))),
        ];
        let began = tokio::time::Instant::now();
        let heard = with_echoes(stream::iter(hints)).map(|hint| {
            let who = match hint {
                Ok(cri::Hint::Id(id) | cri::Hint::Ended(id)) => id,
                Ok(cri::Hint::Pod(uid)) => uid.to_string(),
                Err(error) => panic!("{error}"),
            };
            (began.elapsed().as_millis(), who)
        });
        let mut heard: Vec<_> = heard.collect().await;
        heard.sort();
        let want = [
            (0, "begun"),
            (0, "ended"),
            (0, "told"),
            (20, "ended"),
            (100, "ended"),
            (500, "ended"),
            (2000, "ended"),
        ];
        assert_eq!(heard, want.map(|(at, who)| (at, who.to_owned())));
    }
}
