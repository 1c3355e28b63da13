//! Keeps the cluster's picture of this node true.
//!
//! One task registers the node and reports its status when it changes and every five minutes; one
//! renews its lease every ten seconds. Both speak on a connection of their own, so that a hundred
//! busy watches never make a living node look dead. What is said is decided in
//! `podwright_core::node_status`; a Node object that was deleted under us is made again.

pub mod addresses;
mod lease;
mod look;
pub mod own_node;
pub mod pod_ranges;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use podwright_core::node_status::{self, Notice, Reports, Seen, Settings, Unkept, registration};
use podwright_host::clock::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::lease::LeaseKeeper;
pub use self::look::Look;
use self::own_node::OwnNode;
use crate::events::{Recorder, Severity};
use crate::tools::NodeState;

const REGISTER_FIRST: Duration = Duration::from_millis(100);
const REGISTER_MOST: Duration = Duration::from_secs(7);
/// A report that could not be sent is tried again this soon, then with the next look.
const RETRY: Duration = Duration::from_secs(1);
/// Tries of one report: with the copy we hold, then with fresh ones.
const TRIES: u32 = 5;

/// How often the node is heard of.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// `nodeStatusUpdateFrequency`: how often the node looks at itself.
    pub look: Duration,
    /// `nodeStatusReportFrequency`: how often it reports although nothing changed.
    pub report: Duration,
    /// `nodeLeaseDurationSeconds`.
    pub lease: Duration,
    /// Where the spread of these waits comes from, each time from 0 to 1: [`chance`], except in a
    /// simulation, which must be the same every time.
    pub chance: fn() -> f64,
}

impl Timing {
    /// Up to four percent more, so that the nodes of a rack do not all report at once.
    fn jittered(&self, wait: Duration) -> Duration {
        wait.mul_f64(1.0 + 0.04 * (self.chance)())
    }

    /// A request that took longer would be late for the next one.
    fn patience(&self) -> Duration {
        self.look.min(self.lease)
    }
}

pub struct Heartbeat {
    /// With a connection of its own.
    pub client: kube::Client,
    pub settings: Arc<Settings>,
    /// `registerNode`.
    pub register: bool,
    pub timing: Timing,
    pub look: Look,
    pub state: watch::Receiver<NodeState>,
    /// The object as the watch shows it.
    pub shown: watch::Receiver<OwnNode>,
    pub events: Recorder,
    pub clock: Clock,
}

/// What is remembered between two reports.
struct Memory {
    reports: Reports,
    unkept: Unkept,
    /// The answer to the last report, which may be newer than the watch.
    answer: Option<Arc<v1::Node>>,
    unschedulable: Option<bool>,
    /// The last problem, so that it is told once and not with every try.
    told: Option<String>,
}

/// Why a report did not get through.
enum Trouble {
    /// There is no such object.
    Gone,
    /// Our copy is out of date.
    Stale,
    Other(String),
}

impl Heartbeat {
    /// Registers the node and keeps it true until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let work = async {
            let mut memory = Memory {
                reports: Reports::every(self.timing.report),
                unkept: Unkept::default(),
                answer: None,
                unschedulable: None,
                told: None,
            };
            if self.register {
                self.begin(&mut memory).await;
            }
            loop {
                let settled = self.report(&mut memory).await;
                self.wait(settled).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Waits until there may be something to say.
    async fn wait(&mut self, settled: bool) {
        let wait = if settled { self.timing.jittered(self.timing.look) } else { RETRY };
        tokio::select! {
            // Cancel-safe: a change stays until it is seen.
            _ = self.state.changed() => {}
            _ = self.shown.changed() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }

    /// The first registration, and the events of a start.
    async fn begin(&mut self, memory: &mut Memory) {
        let seen = self.look.now().await;
        let now = self.clock.now().wall;
        let initial = registration::initial(&self.settings);
        let (_, notices) = node_status::desired(&initial, &self.settings, &seen, now);
        self.tell(notices);
        self.ensure_registered(memory).await;
    }

    /// Registers, however long it takes.
    async fn ensure_registered(&mut self, memory: &mut Memory) {
        let mut wait = REGISTER_FIRST;
        loop {
            let seen = self.look.now().await;
            match self.try_register(&seen).await {
                Ok(node) => {
                    tracing::info!(node = &*self.settings.name, "the node is registered");
                    memory.answer = Some(Arc::new(node));
                    memory.told = None;
                    return;
                }
                Err(problem) => {
                    memory.complain(problem, "cannot register the node yet; trying again");
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(REGISTER_MOST);
        }
    }

    async fn try_register(&self, seen: &Seen) -> Result<v1::Node, String> {
        let initial = registration::initial(&self.settings);
        let now = self.clock.now().wall;
        let (node, _) = node_status::desired(&initial, &self.settings, seen, now);
        let nodes = self.nodes();
        let params = PostParams::default();
        match self.within(nodes.create(&params, &node)).await {
            Ok(node) => return Ok(node),
            // Somebody made it for us, or we may not; either way it may be there.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 409) => {}
            Err(error) => return Err(error.to_string()),
        }
        let existing = self.within(nodes.get(&self.settings.name)).await;
        let existing = existing.map_err(|error| error.to_string())?;
        self.warn_of_another_machine(&existing, seen);
        let wanted = registration::reconciled(&existing, &self.settings);
        match node_status::patch(&existing, &wanted, &Unkept::default()) {
            None => Ok(existing),
            Some((body, _)) => {
                let patched = self.send(&body).await;
                patched.map_err(|error| format!("taking over the existing Node object: {error}"))
            }
        }
    }

    fn warn_of_another_machine(&self, existing: &v1::Node, seen: &Seen) {
        let Some(identity) = &seen.identity else { return };
        if let Some(other) = registration::other_machine(existing, &identity.machine_id) {
            tracing::warn!(
                node = &*self.settings.name,
                other_machine_id = other,
                machine_id = identity.machine_id,
                "the Node object was reported by another machine before; if that one still runs, \
                 give one of them another name with --hostname-override"
            );
        }
    }

    /// Sends what should be sent now; false if it has to be tried again.
    async fn report(&mut self, memory: &mut Memory) -> bool {
        let seen = self.look.now().await;
        let mut fresh = None;
        for _ in 0..TRIES {
            let shown = match fresh.take().or_else(|| self.newest(memory)) {
                Some(shown) => shown,
                None => match self.within(self.nodes().get_opt(&self.settings.name)).await {
                    Ok(Some(node)) => Arc::new(node),
                    Ok(None) => return self.gone(memory).await,
                    Err(error) => return memory.failed(error.to_string()),
                },
            };
            match self.report_against(&shown, &seen, memory).await {
                Ok(()) => {
                    memory.told = None;
                    return true;
                }
                Err(Trouble::Gone) => return self.gone(memory).await,
                Err(Trouble::Other(problem)) => return memory.failed(problem),
                Err(Trouble::Stale) => {
                    match self.within(self.nodes().get_opt(&self.settings.name)).await {
                        Ok(Some(node)) => fresh = Some(Arc::new(node)),
                        Ok(None) => return self.gone(memory).await,
                        Err(error) => return memory.failed(error.to_string()),
                    }
                }
            }
        }
        memory.failed("the Node object changes faster than it can be reported".to_owned())
    }

    /// The object is not there (any more): it is made, if that is ours to do.
    async fn gone(&mut self, memory: &mut Memory) -> bool {
        memory.answer = None;
        if !self.register {
            let problem = "there is no Node object, and registerNode is false".to_owned();
            return memory.failed(problem);
        }
        tracing::warn!(node = &*self.settings.name, "the Node object is gone; registering again");
        self.ensure_registered(memory).await;
        true
    }

    async fn report_against(
        &self,
        shown: &v1::Node,
        seen: &Seen,
        memory: &mut Memory,
    ) -> Result<(), Trouble> {
        let now = self.clock.now();
        self.tell_schedulable(shown, memory);
        let (wanted, notices) = node_status::desired(shown, &self.settings, seen, now.wall);
        let Some((body, news)) = node_status::patch(shown, &wanted, &memory.unkept) else {
            return Ok(());
        };
        if !memory.reports.is_due(news, now.mono) {
            return Ok(());
        }
        let answer = match self.send(&body).await {
            Ok(answer) => answer,
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(Trouble::Gone),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 409 | 422) => {
                tracing::debug!(message = status.message, "the report does not fit; looking again");
                return Err(Trouble::Stale);
            }
            Err(error) => return Err(Trouble::Other(error.to_string())),
        };
        memory.unkept.learn(&wanted, &answer);
        memory.reports.sent(news, now.mono, (self.timing.chance)());
        memory.answer = Some(Arc::new(answer));
        self.tell(notices);
        Ok(())
    }

    /// The newest copy we hold: the watch's, or the answer to our last report.
    fn newest(&self, memory: &Memory) -> Option<Arc<v1::Node>> {
        let watched = match &*self.shown.borrow() {
            OwnNode::Unknown => return memory.answer.clone(),
            OwnNode::Absent => None,
            OwnNode::There(node) => Some(node.clone()),
        };
        match (watched, &memory.answer) {
            (Some(watched), Some(answer)) if version(answer) > version(&watched) => {
                Some(answer.clone())
            }
            (watched, _) => watched,
        }
    }

    fn tell_schedulable(&self, shown: &v1::Node, memory: &mut Memory) {
        let now = shown.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        let before = memory.unschedulable.replace(now);
        if before.is_some_and(|before| before != now) {
            let reason = if now { "NodeNotSchedulable" } else { "NodeSchedulable" };
            let message = format!("Node {} status is now: {reason}", self.settings.name);
            self.tell(vec![Notice { warning: false, reason, message }]);
        }
    }

    fn tell(&self, notices: Vec<Notice>) {
        for Notice { warning, reason, message } in notices {
            let severity = if warning { Severity::Warning } else { Severity::Normal };
            self.events.node(&self.settings.name, severity, reason, message);
        }
    }

    fn nodes(&self) -> Api<v1::Node> {
        Api::all(self.client.clone())
    }

    async fn send(&self, body: &serde_json::Value) -> Result<v1::Node, kube::Error> {
        let nodes = self.nodes();
        let params = PatchParams::default();
        let patch = Patch::Strategic(body);
        self.within(nodes.patch_status(&self.settings.name, &params, &patch)).await
    }

    async fn within<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, kube::Error> {
        within(self.timing.patience(), request).await
    }
}

impl Memory {
    /// Tells a problem once. Always false: the report is not settled.
    fn failed(&mut self, problem: String) -> bool {
        self.complain(problem, "cannot report the node's status yet; trying again");
        false
    }

    fn complain(&mut self, problem: String, what: &'static str) {
        if self.told.as_ref() != Some(&problem) {
            tracing::warn!(problem, "{what}");
            self.told = Some(problem);
        }
    }
}

/// A request that is given up after a while: the next one should not be late for it.
async fn within<T>(
    patience: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(patience, request).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service(
            format!("the API server did not answer within {patience:?}").into(),
        )),
    }
}

/// From 0 to 1, different every time. Not for secrets.
#[allow(clippy::cast_precision_loss, reason = "a rough fraction is enough")]
pub fn chance() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

fn version(node: &v1::Node) -> Option<u64> {
    node.metadata.resource_version.as_deref()?.parse().ok()
}
