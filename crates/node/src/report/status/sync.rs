//! Delivery of status reports to the API server: upstream's `syncBatch` and `syncPod`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::pod::desired::ApiUid;
use podwright_core::status::manager::PodLeftovers;
use podwright_core::status::merge::merge;
use podwright_core::status::{manager, patch};
use podwright_core::time::Mono;
use tokio_util::sync::CancellationToken;

use super::{Reports, StatusManager, Tracked};

/// Interval at which all reports are compared with the API.
const RECONCILE: Duration = Duration::from_secs(10);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests. Changes of Ready are sorted first, so they never wait
/// long.
const MAX_CONCURRENT: usize = 16;

/// A pod whose report should be sent now.
struct DueReport {
    uid: PodUid,
    api_uid: ApiUid,
    ready_changes: bool,
}

/// Whether a pod has something to send.
enum PendingReport {
    None,
    /// Not decidable now: must be checked again.
    Unknown,
    Due(DueReport),
}

/// The result of sending one report.
enum SyncOutcome {
    Sent {
        version: u64,
        response: Option<Arc<v1::Pod>>,
    },
    /// The object was deleted, or another object has its name.
    Gone,
    Deleted,
    Failed(String),
}

impl StatusManager {
    /// Sends reports until stopped: on every change, and every ten seconds where the API differs.
    pub async fn run(self: Arc<Self>, client: kube::Client, stop: CancellationToken) {
        let work = async {
            let mut requests = FuturesUnordered::new();
            let mut busy: Vec<PodUid> = Vec::new();
            let mut reconcile = tokio::time::interval(RECONCILE);
            loop {
                let (due, next) = self.due(&busy, MAX_CONCURRENT - busy.len());
                for due in due {
                    busy.push(due.uid.clone());
                    let (this, client) = (self.clone(), client.clone());
                    requests.push(async move {
                        let outcome = this.sync_pod(&client, &due).await;
                        (due, outcome)
                    });
                }
                let until = next.map(|at| at.since(self.clock.now().mono));
                tokio::select! { biased;
                    Some((due, outcome)) = requests.next(), if !requests.is_empty() => {
                        busy.retain(|uid| *uid != due.uid);
                        self.settle(&due, outcome);
                    }
                    // Cancel-safe: an unused permit is kept.
                    () = self.changed.notified() => {}
                    () = sleep(until) => {}
                    _ = reconcile.tick() => self.reconcile(),
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// The reports to send now, changes of Ready first, and when to check again.
    fn due(&self, busy: &[PodUid], limit: usize) -> (Vec<DueReport>, Option<Mono>) {
        let mut due = Vec::new();
        if limit == 0 {
            // A request that ends wakes the loop.
            return (due, None);
        }
        let now = self.clock.now().mono;
        let mut reports = self.reports.lock();
        let Reports { pods, open, waiting } = &mut *reports;
        while let Some((_, uid)) = waiting.first().filter(|(at, _)| *at <= now).cloned() {
            waiting.pop_first();
            open.insert(uid);
        }
        open.retain(|uid| {
            if busy.contains(uid) {
                return true;
            }
            let Some(tracked) = pods.get_mut(uid) else { return false };
            match self.pending(uid, tracked) {
                PendingReport::None => return false,
                PendingReport::Unknown => {}
                PendingReport::Due(_) if now < tracked.not_before => {
                    waiting.insert((tracked.not_before, uid.clone()));
                    return false;
                }
                PendingReport::Due(report) => due.push(report),
            }
            true
        });
        due.sort_by_key(|due| !due.ready_changes);
        due.truncate(limit);
        (due, waiting.first().map(|(at, _)| *at))
    }

    /// Whether one pod has something to send.
    fn pending(&self, uid: &PodUid, tracked: &mut Tracked) -> PendingReport {
        // A static pod without a mirror pod has no object to report to.
        let Some(api_uid) = self.pod_index.api_uid(uid) else { return PendingReport::Unknown };
        let Some(api) = self.newest(uid, tracked.response.as_ref()) else {
            return PendingReport::Unknown;
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
            return PendingReport::Due(DueReport { uid: uid.clone(), api_uid, ready_changes });
        }
        // There is no notification when the leftovers of a pod are gone.
        let deletable = manager::can_be_deleted(&api, &tracked.entry, PodLeftovers::default());
        if deletable || tracked.response.is_some() {
            PendingReport::Unknown
        } else {
            PendingReport::None
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

    /// Rechecks every pod and resends the reports of pods whose status was changed by another
    /// client.
    fn reconcile(&self) {
        let mut reports = self.reports.lock();
        reports.open_all();
        let dropped = self.dropped.lock();
        for (uid, tracked) in &mut reports.pods {
            let (Some(pod), Some(api)) =
                (self.pod_index.pod(uid), self.newest(uid, tracked.response.as_ref()))
            else {
                continue;
            };
            let versions = version(&api).map(|theirs| (theirs, tracked.entry.version));
            if tracked.sent.is_none() || (versions.is_some() && tracked.compared == versions) {
                continue;
            }
            tracked.compared = versions;
            if let Some(shown) = &api.status
                && manager::needs_reconcile(&pod, shown, &tracked.entry, &dropped)
            {
                let differs = patch::patch(shown, &tracked.entry.status, "").unwrap_or_default();
                tracing::debug!(pod = %pod.name, %differs, "status in the API differs, sending ours again");
                tracked.sent = None;
            }
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
        let (entry, response) = match self.reports.lock().pods.get(&due.uid) {
            Some(tracked) => (tracked.entry.clone(), tracked.response.clone()),
            None => return SyncOutcome::Gone,
        };
        let Some(pod) = self.pod_index.pod(&due.uid) else { return SyncOutcome::Gone };
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
        Ok(SyncOutcome::Sent { version: entry.version, response: Some(response) })
    }

    fn settle(&self, due: &DueReport, outcome: SyncOutcome) {
        let now = self.clock.now().mono;
        let mut reports = self.reports.lock();
        match outcome {
            SyncOutcome::Sent { version, response } => {
                if let Some(tracked) = reports.pods.get_mut(&due.uid) {
                    if let Some(changed) = tracked.entry.note_sent(version) {
                        self.metrics.status.sync.observe(now.since(changed));
                    }
                    tracked.sent = Some((due.api_uid.as_str().into(), version));
                    tracked.response = response;
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
                    let wait =
                        (RETRY_FIRST * 2u32.saturating_pow(tracked.failures)).min(RETRY_MOST);
                    tracked.failures = tracked.failures.saturating_add(1).min(8);
                    tracked.not_before = now + wait;
                    tracing::warn!(uid = %due.uid, error, "patch pod status failed, retrying");
                }
            }
        }
    }
}

async fn sleep(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
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
