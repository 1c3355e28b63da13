//! Node registration, node status and lease.
//!
//! One task registers the node and reports its status when it changes and every five minutes; one
//! renews the lease every ten seconds. Both use a separate connection, so that many busy watches
//! cannot delay heartbeats. `podwright_core::node_status` decides the content; a Node object that was
//! deleted is created again.

pub mod addresses;
pub mod host_addresses;
mod lease;
mod observer;
pub mod own_node;
pub mod pod_ranges;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use podwright_core::backoff::{Doubling, Retry};
use podwright_core::node_status::{
    self, DroppedFields, NodeEvent, NodeObservation, Pressure, ReportSchedule, Settings,
    registration,
};
use podwright_host::clock::Clock;
use podwright_host::{mounts, threads};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::lease::LeaseRenewer;
pub use self::observer::StatusObserver;
pub(crate) use self::observer::problems;
use self::own_node::OwnNode;
use crate::report::events::{Recorder, Severity};
use crate::runtime::state::NodeState;

const REGISTER_RETRY: Doubling = Doubling::new(Duration::from_millis(100), Duration::from_secs(7));
/// Delay before the retry of a failed report.
const RETRY: Duration = Duration::from_secs(1);
/// Attempts of one report: with the cached Node object, then with fresh ones.
const MAX_ATTEMPTS: u32 = 5;

/// Intervals of the heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// `nodeStatusUpdateFrequency`: how often the status is computed.
    pub look: Duration,
    /// `nodeStatusReportFrequency`: how often it is reported without a change.
    pub report: Duration,
    /// `nodeLeaseDurationSeconds`.
    pub lease: Duration,
    /// Source of the jitter, from 0 to 1: [`random`], except in a simulation, which must be
    /// deterministic.
    pub random: fn() -> f64,
}

impl Timing {
    /// Adds up to four percent, so that nodes do not all report at the same time.
    fn jittered(&self, wait: Duration) -> Duration {
        wait.mul_f64(1.0 + 0.04 * (self.random)())
    }

    /// Request timeout: a slower request would delay the next one.
    fn request_timeout(&self) -> Duration {
        self.look.min(self.lease)
    }
}

pub struct Heartbeat {
    /// With a separate connection.
    pub client: kube::Client,
    pub settings: Arc<Settings>,
    pub root_dir: PathBuf,
    /// `registerNode`.
    pub register: bool,
    pub timing: Timing,
    pub look: StatusObserver,
    pub state: watch::Receiver<NodeState>,
    pub shutting_down: watch::Receiver<bool>,
    pub pressure: watch::Receiver<Pressure>,
    /// The object as seen by the watch.
    pub shown: watch::Receiver<OwnNode>,
    pub events: Recorder,
    pub clock: Clock,
}

/// State between two reports.
struct ReportState {
    reports: ReportSchedule,
    dropped_fields: DroppedFields,
    /// The response to the last report, which may be newer than the watch.
    answer: Option<Arc<v1::Node>>,
    unschedulable: Option<bool>,
    /// The last problem, so that it is logged once and not with every attempt.
    last_problem: Option<String>,
}

/// Reason that a report failed.
enum ReportError {
    /// The object does not exist.
    Gone,
    /// The cached copy is outdated.
    Stale,
    Other(String),
}

impl Heartbeat {
    /// Registers the node and reports its status until stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let work = async {
            let mut report_state = ReportState {
                reports: ReportSchedule::every(self.timing.report),
                dropped_fields: DroppedFields::default(),
                answer: None,
                unschedulable: None,
                last_problem: None,
            };
            if self.register {
                self.begin(&mut report_state).await;
            }
            loop {
                let settled = self.report(&mut report_state).await;
                self.wait(settled).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Waits until the next report may be due.
    async fn wait(&mut self, settled: bool) {
        let wait = if settled { self.timing.jittered(self.timing.look) } else { RETRY };
        tokio::select! {
            // Cancel-safe: an unseen change stays marked.
            _ = self.state.changed() => {}
            Ok(()) = self.pressure.changed() => {}
            _ = self.shown.changed() => {}
            () = changed(&mut self.shutting_down) => {}
            () = tokio::time::sleep(wait) => {}
        }
    }

    /// The first registration, and the events of a start.
    async fn begin(&mut self, report_state: &mut ReportState) {
        let seen = self.look.now().await;
        let now = self.clock.now().wall;
        let initial = registration::initial(&self.settings);
        let (_, notices) = node_status::desired(&initial, &self.settings, &seen, now);
        self.emit_events(notices);
        self.ensure_registered(report_state).await;
    }

    /// Registers, retrying without limit.
    async fn ensure_registered(&mut self, report_state: &mut ReportState) {
        let mut retry = Retry::new(REGISTER_RETRY);
        loop {
            let seen = self.look.now().await;
            match self.try_register(&seen).await {
                Ok(node) => {
                    tracing::info!(node = &*self.settings.name, "registered node");
                    report_state.answer = Some(Arc::new(node));
                    report_state.last_problem = None;
                    return;
                }
                Err(problem) => {
                    report_state.log_problem(problem, "cannot register the node, retrying");
                }
            }
            tokio::time::sleep(retry.next_delay()).await;
        }
    }

    async fn try_register(&self, seen: &NodeObservation) -> Result<v1::Node, String> {
        let initial = registration::initial(&self.settings);
        let now = self.clock.now().wall;
        let (node, _) = node_status::desired(&initial, &self.settings, seen, now);
        let nodes = self.nodes();
        let params = PostParams::default();
        match self.within(nodes.create(&params, &node)).await {
            Ok(node) => return Ok(node),
            // It already exists, or creating it is forbidden; either way it may be there.
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 409) => {}
            Err(error) => return Err(error.to_string()),
        }
        let existing = self.within(nodes.get(&self.settings.name)).await;
        let existing = existing.map_err(|error| error.to_string())?;
        self.warn_of_another_machine(&existing, seen);
        let machine_id = seen.identity.as_ref().map(|identity| identity.machine_id.as_str());
        let wanted = registration::reconciled(&existing, &self.settings, machine_id);
        match node_status::patch(&existing, &wanted, &DroppedFields::default()) {
            None => Ok(existing),
            Some((body, _)) => {
                let patched = self.send(&body).await;
                patched.map_err(|error| format!("update the existing Node object: {error}"))
            }
        }
    }

    fn warn_of_another_machine(&self, existing: &v1::Node, seen: &NodeObservation) {
        let Some(identity) = &seen.identity else { return };
        if let Some(other) = registration::other_machine(existing, &identity.machine_id) {
            tracing::warn!(
                node = &*self.settings.name,
                other_machine_id = other,
                machine_id = identity.machine_id,
                "the Node object was reported by another machine before. Fix: if that machine is \
                 still running, give one of them another name with --hostname-override"
            );
        }
    }

    /// Sends a report if one is due; false if it has to be retried.
    async fn report(&mut self, report_state: &mut ReportState) -> bool {
        let seen = self.look.now().await;
        let mut fresh = None;
        for _ in 0..MAX_ATTEMPTS {
            let shown = match fresh.take().or_else(|| self.newest(report_state)) {
                Some(shown) => shown,
                None => match self.within(self.nodes().get_opt(&self.settings.name)).await {
                    Ok(Some(node)) => Arc::new(node),
                    Ok(None) => return self.gone(report_state).await,
                    Err(error) => return report_state.failed(error.to_string()),
                },
            };
            match self.report_against(&shown, &seen, report_state).await {
                Ok(()) => {
                    report_state.last_problem = None;
                    return true;
                }
                Err(ReportError::Gone) => return self.gone(report_state).await,
                Err(ReportError::Other(problem)) => return report_state.failed(problem),
                Err(ReportError::Stale) => {
                    match self.within(self.nodes().get_opt(&self.settings.name)).await {
                        Ok(Some(node)) => fresh = Some(Arc::new(node)),
                        Ok(None) => return self.gone(report_state).await,
                        Err(error) => return report_state.failed(error.to_string()),
                    }
                }
            }
        }
        report_state
            .failed("the Node object changes faster than the status can be patched".to_owned())
    }

    /// The Node object does not exist: registers it, if `registerNode` is set.
    async fn gone(&mut self, report_state: &mut ReportState) -> bool {
        report_state.answer = None;
        if !self.register {
            let problem = "there is no Node object, and registerNode is false".to_owned();
            return report_state.failed(problem);
        }
        tracing::warn!(node = &*self.settings.name, "Node object is gone, registering again");
        self.ensure_registered(report_state).await;
        true
    }

    async fn report_against(
        &self,
        shown: &v1::Node,
        seen: &NodeObservation,
        report_state: &mut ReportState,
    ) -> Result<(), ReportError> {
        let now = self.clock.now();
        self.emit_schedulable_event(shown, report_state);
        let kept;
        let seen = match node_status::volumes::lists_any(shown) {
            false => seen,
            true => {
                let volumes_in_use = self.volumes_in_use(shown).await;
                kept = NodeObservation { volumes_in_use, ..seen.clone() };
                &kept
            }
        };
        let (wanted, notices) = node_status::desired(shown, &self.settings, seen, now.wall);
        let Some((body, news)) = node_status::patch(shown, &wanted, &report_state.dropped_fields)
        else {
            return Ok(());
        };
        if !report_state.reports.is_due(news, now.mono) {
            return Ok(());
        }
        let answer = match self.send(&body).await {
            Ok(answer) => answer,
            Err(kube::Error::Api(status)) if status.code == 404 => return Err(ReportError::Gone),
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 409 | 422) => {
                tracing::debug!(message = status.message, "status patch rejected, rereading node");
                return Err(ReportError::Stale);
            }
            Err(error) => return Err(ReportError::Other(error.to_string())),
        };
        report_state.dropped_fields.learn(&wanted, &answer);
        report_state.reports.sent(news, now.mono, (self.timing.random)());
        report_state.answer = Some(Arc::new(answer));
        self.emit_events(notices);
        Ok(())
    }

    /// `None`: those that the Node object lists, also if the mount table cannot be read.
    async fn volumes_in_use(&self, shown: &v1::Node) -> Option<BTreeSet<String>> {
        let table = threads::blocking(|| mounts::table(Path::new("/proc"))).await;
        match table {
            Ok(Ok(table)) => {
                let points = table.iter().map(|mount| mount.point.as_path());
                node_status::volumes::in_use(shown, &self.root_dir, points)
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot read the mount table, keeping volumesInUse");
                None
            }
            // The agent is stopping.
            Err(_) => None,
        }
    }

    /// The newest copy: the watch's, or the response to the last report.
    fn newest(&self, report_state: &ReportState) -> Option<Arc<v1::Node>> {
        let watched = match &*self.shown.borrow() {
            OwnNode::Unknown => return report_state.answer.clone(),
            OwnNode::Absent => None,
            OwnNode::Present(node) => Some(node.clone()),
        };
        match (watched, &report_state.answer) {
            (Some(watched), Some(answer)) if version(answer) > version(&watched) => {
                Some(answer.clone())
            }
            (watched, _) => watched,
        }
    }

    fn emit_schedulable_event(&self, shown: &v1::Node, report_state: &mut ReportState) {
        let now = shown.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        let before = report_state.unschedulable.replace(now);
        if before.is_some_and(|before| before != now) {
            let reason = if now { "NodeNotSchedulable" } else { "NodeSchedulable" };
            let message = format!("Node {} status is now: {reason}", self.settings.name);
            self.emit_events(vec![NodeEvent { warning: false, reason, message }]);
        }
    }

    fn emit_events(&self, notices: Vec<NodeEvent>) {
        for NodeEvent { warning, reason, message } in notices {
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
        within(self.timing.request_timeout(), request).await
    }
}

impl ReportState {
    /// Logs a problem once. Always false: the report has to be retried.
    fn failed(&mut self, problem: String) -> bool {
        self.log_problem(problem, "cannot report the node status, retrying");
        false
    }

    fn log_problem(&mut self, problem: String, what: &'static str) {
        if self.last_problem.as_ref() != Some(&problem) {
            tracing::warn!(problem, "{what}");
            self.last_problem = Some(problem);
        }
    }
}

/// A request with a timeout, so that it does not delay the next one.
async fn within<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => answer,
        Err(_) => Err(kube::Error::Service(
            format!("the API server did not respond within {timeout:?}").into(),
        )),
    }
}

/// Waits for a change. A node without graceful shutdown has none.
async fn changed(shutting_down: &mut watch::Receiver<bool>) {
    if shutting_down.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A random number from 0 to 1. Not for secrets.
#[allow(clippy::cast_precision_loss, reason = "a rough fraction is enough")]
pub fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

fn version(node: &v1::Node) -> Option<u64> {
    node.metadata.resource_version.as_deref()?.parse().ok()
}
