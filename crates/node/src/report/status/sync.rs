//! Delivery of status reports to the API server: upstream's `syncBatch` and `syncPod`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use podwright_core::backoff::Doubling;
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::pod::desired::ApiUid;
use podwright_core::status::manager::PodLeftovers;
use podwright_core::status::merge::merge;
use podwright_core::status::queue::ReportCheck;
use podwright_core::status::{manager, patch, phase_of};
use podwright_core::time::Mono;
use tokio_util::sync::CancellationToken;

use super::{Reports, StatusManager, Tracked};
use crate::client::request_rate::RequestRate;

/// Interval at which each report is compared with the API.
const RECONCILE: Duration = Duration::from_secs(10);
/// Interval of the slices of the sweep: each pod is in one of ten.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const RETRY: Doubling = Doubling::new(Duration::from_secs(1), Duration::from_secs(10));
/// Delays of the checks of a pod that waits for something without an event.
const RECHECK_MOST: Duration = Duration::from_secs(1);
const RECHECK: Doubling = Doubling::new(Duration::from_millis(100), RECHECK_MOST);
/// Maximum number of concurrent requests. Changes of Ready are queued first, so they never wait
/// long.
const MAX_CONCURRENT: usize = 16;

/// A pod whose report should be sent now.
struct DueReport {
    uid: PodUid,
    api_uid: ApiUid,
}

/// Whether a pod has something to send.
enum PendingReport {
    None,
    /// Not decidable now, and there is no event when it is: must be checked again.
    CheckIn(Duration),
    Due {
        ready_changes: bool,
    },
}

/// The result of sending one report.
enum SyncOutcome {
    Sent {
        version: u64,
        response: Option<Arc<v1::Pod>>,
        phase_withheld: bool,
    },
    /// The object was deleted, or another object has its name.
    Gone,
    Deleted,
    Failed(String),
}

impl StatusManager {
    /// Sends reports until stopped: on every change, and every ten seconds where the API differs.
    ///
    /// `client` has no rate limit: changes of Ready are sent at once, other reports at `rate`. A report
    /// that waits for its turn is sent with its newest content.
    pub async fn run(
        self: Arc<Self>,
        client: kube::Client,
        rate: Arc<RequestRate>,
        stop: CancellationToken,
    ) {
        let work = async {
            // When the next report that does not change Ready may be sent.
            let mut turn = None;
            let mut requests = FuturesUnordered::new();
            let mut next_sweep = self.clock.now().mono;
            loop {
                let now = self.clock.now().mono;
                if next_sweep <= now {
                    self.sweep();
                    next_sweep = now + SWEEP_INTERVAL;
                }
                let mut wake = next_sweep;
                // Without a free request nothing is checked: one that ends wakes the loop, and
                // until then several events of a pod become one check.
                if requests.len() < MAX_CONCURRENT {
                    self.check_changed();
                    for due in self.due(MAX_CONCURRENT - requests.len(), &rate, &mut turn) {
                        let (this, client, rate) = (self.clone(), client.clone(), rate.clone());
                        requests.push(async move {
                            let outcome = this.sync_pod(&client, &due).await;
                            if let SyncOutcome::Deleted = outcome {
                                // The second request for this pod.
                                rate.reserve();
                            }
                            (due, outcome)
                        });
                    }
                    let delayed = self.reports.lock().queue.next_delay();
                    // A turn that has come waits for a report or for a free request.
                    let turn = turn.filter(|at| *at > now);
                    wake = [delayed, turn].into_iter().flatten().fold(wake, Mono::min);
                }
                let wait = wake.since(self.clock.now().mono);
                tokio::select! { biased;
                    Some((due, outcome)) = requests.next(), if !requests.is_empty() => {
                        self.settle(&due, outcome);
                    }
                    // Cancel-safe: an unused permit is kept.
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep(wait) => {}
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Checks the pods that had an event or whose delay has passed, and queues what can be sent.
    /// Returns how many pods were checked.
    pub(super) fn check_changed(&self) -> usize {
        self.reports.lock().queue.expire(self.clock.now().mono);
        let mut checked = 0;
        while let Some(check) = self.next_check() {
            checked += 1;
            // Checked without the lock, which pod workers need: a check may read directories.
            let Some(mut copy) = self.tracked(&check.uid) else { continue };
            let pending = self.pending(&check.uid, &mut copy);
            let now = self.clock.now().mono;
            let mut reports = self.reports.lock();
            let Reports { pods, queue, .. } = &mut *reports;
            let Some(tracked) = pods.get_mut(&check.uid) else { continue };
            tracked.response = copy.response;
            match pending {
                PendingReport::None => {}
                PendingReport::CheckIn(delay) => {
                    tracked.rechecks = tracked.rechecks.saturating_add(1);
                    queue.delay(check, now + delay);
                }
                PendingReport::Due { .. } if now < tracked.not_before => {
                    queue.delay(check, tracked.not_before);
                }
                PendingReport::Due { ready_changes } => queue.due(check, ready_changes),
            }
        }
        checked
    }

    fn next_check(&self) -> Option<ReportCheck> {
        self.reports.lock().queue.next_check()
    }

    fn tracked(&self, uid: &PodUid) -> Option<Tracked> {
        self.reports.lock().pods.get(uid).cloned()
    }

    /// The reports to send now, changes of Ready first. `turn` is the time of the next other one, as
    /// far as it is reserved.
    fn due(&self, limit: usize, rate: &RequestRate, turn: &mut Option<Mono>) -> Vec<DueReport> {
        let now = self.clock.now().mono;
        let mut due = Vec::new();
        let mut reports = self.reports.lock();
        while due.len() < limit {
            let next = reports.queue.next_ready_change().or_else(|| {
                let is_due =
                    reports.queue.has_other() && *turn.get_or_insert_with(|| rate.reserve()) <= now;
                let other = if is_due { reports.queue.next_other() } else { None };
                if other.is_some() {
                    *turn = None;
                }
                other
            });
            let Some(uid) = next else { break };
            match self.pod_index.api_uid(&uid) {
                Some(api_uid) => due.push(DueReport { uid, api_uid }),
                // Its object was deleted after the check.
                None => reports.queue.sent(&uid),
            }
        }
        due
    }

    /// Whether one pod has something to send.
    fn pending(&self, uid: &PodUid, tracked: &mut Tracked) -> PendingReport {
        let again = PendingReport::CheckIn(RECHECK.after(tracked.rechecks));
        let Some(pod) = self.pod_index.pod(uid) else { return again };
        let (Some(api_uid), Some(api)) =
            (self.pod_index.api_uid(uid), self.newest(uid, tracked.response.as_ref()))
        else {
            // A static pod without a mirror pod has no object to report to.
            return if pod.is_static() { PendingReport::None } else { again };
        };
        if tracked.response.as_ref().is_some_and(|response| !Arc::ptr_eq(response, &api)) {
            // The watch has caught up; its copy is enough.
            tracked.response = None;
        }
        let sent = tracked.sent.as_ref().filter(|(to, _)| **to == *api_uid.as_str());
        let sent = sent.map(|(_, version)| *version);
        let remains = self.remains(uid, &api, &tracked.entry);
        if manager::needs_update(&tracked.entry, sent, Some(&api), remains) {
            let nothing = v1::PodStatus::default();
            let shown = api.status.as_ref().unwrap_or(&nothing);
            let ready_changes = manager::changes_ready(shown, &tracked.entry.status);
            return PendingReport::Due { ready_changes };
        }
        // There is no notification when a withheld terminal phase may be sent,
        if tracked.phase_withheld {
            let may_run = self.pod_index.cleanup_policy(uid, |p| p.could_have_running_containers());
            return if may_run { again } else { PendingReport::Due { ready_changes: true } };
        }
        // nor when the leftovers of a pod are gone.
        if manager::can_be_deleted(&api, &tracked.entry, PodLeftovers::default()) {
            return again;
        }
        // Nor when the watch has caught up, but a response held longer costs only memory.
        match tracked.response.is_some() && tracked.rechecks == 0 {
            true => PendingReport::CheckIn(RECHECK_MOST),
            false => PendingReport::None,
        }
    }

    /// What the pod still has on this node; evaluated only if nothing else prevents the deletion.
    fn remains(&self, uid: &PodUid, api: &v1::Pod, entry: &manager::CachedStatus) -> PodLeftovers {
        let nothing = PodLeftovers::default();
        match manager::can_be_deleted(api, entry, nothing) {
            true => (self.leftovers)(uid),
            false => nothing,
        }
    }

    /// Rechecks the next slice of the pods, and resends the reports of those whose status was
    /// changed by another client.
    pub(super) fn sweep(&self) {
        let slice = {
            let mut reports = self.reports.lock();
            let Reports { pods, sweep, .. } = &mut *reports;
            sweep.next_slice(pods)
        };
        for uid in slice {
            self.compare(&uid);
            self.reports.lock().queue.check(&uid);
        }
    }

    /// Compares a report that was sent with the API, unless neither has changed since the last
    /// comparison.
    fn compare(&self, uid: &PodUid) {
        let Some(copy) = self.tracked(uid) else { return };
        let (Some(pod), Some(api)) =
            (self.pod_index.pod(uid), self.newest(uid, copy.response.as_ref()))
        else {
            return;
        };
        let versions = version(&api).map(|theirs| (theirs, copy.entry.version));
        if copy.sent.is_none() || (versions.is_some() && copy.compared == versions) {
            return;
        }
        let differing = api.status.as_ref().filter(|shown| {
            manager::needs_reconcile(&pod, shown, &copy.entry, &self.dropped.lock())
        });
        if let Some(tracked) = self.reports.lock().pods.get_mut(uid) {
            tracked.compared = versions;
            if differing.is_some() {
                tracked.sent = None;
            }
        }
        if let Some(shown) = differing {
            let differs = patch::patch(shown, &copy.entry.status, "").unwrap_or_default();
            tracing::debug!(pod = %pod.name, %differs, "status in the API differs, sending ours again");
        }
    }

    /// The newest copy of the API object: from the watch, or from the response to our last patch.
    fn newest(&self, uid: &PodUid, response: Option<&Arc<v1::Pod>>) -> Option<Arc<v1::Pod>> {
        let pod = self.pod_index.pod(uid)?;
        let watched = match pod.is_static() {
            true => self.pod_index.mirror_of(&pod)?.pod.object.clone(),
            false => pod.object.clone(),
        };
        let same = response.filter(|response| response.metadata.uid == watched.metadata.uid);
        Some(match same {
            Some(response) if version(response) > version(&watched) => response.clone(),
            Some(_) | None => watched,
        })
    }

    async fn sync_pod(&self, client: &kube::Client, due: &DueReport) -> SyncOutcome {
        let Some(pod) = self.pod_index.pod(&due.uid) else { return SyncOutcome::Gone };
        let mirror = self.mirror_of(&pod);
        let (entry, response) = match self.reports.lock().pods.get_mut(&due.uid) {
            Some(tracked) => {
                tracked.continue_mirror(mirror.as_deref());
                (tracked.entry.clone(), tracked.response.clone())
            }
            None => return SyncOutcome::Gone,
        };
        let api: Api<v1::Pod> = Api::namespaced(client.clone(), &pod.name.namespace);
        let Some(mut newest) = self.newest(&due.uid, response.as_ref()) else {
            return SyncOutcome::Gone;
        };
        // First against the cached copy; if the server refuses, against a fresh one.
        for fresh in [false, true] {
            if fresh {
                newest = match api.get(&pod.name.name).await {
                    Ok(live) => Arc::new(live),
                    Err(error) if is_not_found(&error) => return SyncOutcome::Gone,
                    Err(error) => return SyncOutcome::Failed(error.to_string()),
                };
                if newest.metadata.uid.as_deref() != Some(due.api_uid.as_str()) {
                    return SyncOutcome::Gone;
                }
            }
            match self.send(&api, &pod, due, &entry, newest.clone()).await {
                Ok(outcome) => return outcome,
                Err(error) if is_not_found(&error) => return SyncOutcome::Gone,
                Err(error) if !fresh && is_refusal(&error) => {
                    tracing::debug!(pod = %pod.name, %error, "patch pod status refused, reading the live object");
                }
                Err(error) => return SyncOutcome::Failed(error.to_string()),
            }
        }
        SyncOutcome::Gone
    }

    async fn send(
        &self,
        api: &Api<v1::Pod>,
        pod: &Pod,
        due: &DueReport,
        entry: &manager::CachedStatus,
        newest: Arc<v1::Pod>,
    ) -> Result<SyncOutcome, kube::Error> {
        let may_run =
            self.pod_index.cleanup_policy(&due.uid, |s| s.could_have_running_containers());
        let merged = merge(&newest, &entry.status, may_run, self.clock.now().wall);
        let nothing = v1::PodStatus::default();
        let before = newest.status.as_ref().unwrap_or(&nothing);
        let uid = due.api_uid.as_str();
        let body = patch::worth_sending(before, &merged, uid, &self.dropped.lock());
        let response = match body {
            None => newest,
            Some(body) => {
                let params = PatchParams::default();
                let patch = Patch::Strategic(&body);
                let mut response = api.patch_status(&pod.name.name, &params, &patch).await?;
                // Often the largest part of a pod, and not used here.
                response.metadata.managed_fields = None;
                if let Some(kept) = &response.status {
                    self.dropped.lock().learn(&body, kept);
                }
                Arc::new(response)
            }
        };
        let remains = self.remains(&due.uid, &response, entry);
        if manager::can_be_deleted(&response, entry, remains) {
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.into()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            api.delete(&pod.name.name, &params).await?;
            return Ok(SyncOutcome::Deleted);
        }
        let shown = response.status.as_ref().unwrap_or(&nothing);
        let phase_withheld =
            phase_of(&entry.status).is_terminal() && !phase_of(shown).is_terminal();
        let response = Some(response);
        Ok(SyncOutcome::Sent { version: entry.version, response, phase_withheld })
    }

    fn settle(&self, due: &DueReport, outcome: SyncOutcome) {
        let now = self.clock.now().mono;
        let mut reports = self.reports.lock();
        reports.queue.sent(&due.uid);
        match outcome {
            SyncOutcome::Sent { version, response, phase_withheld } => {
                if let Some(tracked) = reports.pods.get_mut(&due.uid) {
                    if let Some(changed) = tracked.entry.note_sent(version) {
                        self.metrics.status.sync.observe(now.since(changed));
                    }
                    tracked.sent = Some((due.api_uid.as_str().into(), version));
                    tracked.response = response;
                    tracked.phase_withheld = phase_withheld;
                    tracked.rechecks = 0;
                    tracked.failures = 0;
                    tracked.not_before = now;
                }
            }
            // The watch may lag behind, or the response may be wrong: the report is kept until the
            // pod is removed from this node, and is sent to the object that has its UID then.
            SyncOutcome::Gone => {
                let replaced = self.pod_index.api_uid(&due.uid).as_ref() != Some(&due.api_uid);
                if let Some(tracked) = reports.pods.get_mut(&due.uid) {
                    tracked.sent =
                        tracked.sent.take().filter(|(to, _)| **to != *due.api_uid.as_str());
                    tracked.response = None;
                    tracked.not_before = if replaced { now } else { now + RECONCILE };
                }
            }
            SyncOutcome::Deleted => reports.forget(&due.uid),
            SyncOutcome::Failed(error) => {
                if let Some(tracked) = reports.pods.get_mut(&due.uid) {
                    tracked.not_before = now + RETRY.after(tracked.failures);
                    tracked.failures = tracked.failures.saturating_add(1);
                    tracing::warn!(uid = %due.uid, error, "patch pod status failed, retrying");
                }
            }
        }
    }
}

fn version(pod: &v1::Pod) -> Option<u64> {
    pod.metadata.resource_version.as_deref()?.parse().ok()
}

fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The server rejected the request: our copy is out of date, or the name belongs to another pod.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 409 | 422))
}
