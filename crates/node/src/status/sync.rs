//! Sends reports to the API server: `syncBatch` and `syncPod`.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::pod::registry::ApiUid;
use podwright_core::status::manager::Remains;
use podwright_core::status::merge::merge;
use podwright_core::status::{manager, patch};
use podwright_core::time::Mono;
use tokio_util::sync::CancellationToken;

use super::{Reports, StatusManager, Tracked};

/// How often everything is compared with what the API shows.
const RECONCILE: Duration = Duration::from_secs(10);
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MOST: Duration = Duration::from_secs(10);
/// Requests under way at once. A report of Ready does not wait behind others: it is sorted first.
const AT_ONCE: usize = 16;

/// A pod whose report should be sent now.
struct Due {
    uid: PodUid,
    api_uid: ApiUid,
    ready_changes: bool,
}

/// What the API server is owed of a pod.
enum Debt {
    Nothing,
    /// Perhaps something, soon: it has to be looked at again.
    Unknown,
    Report(Due),
}

/// What became of one report.
enum Outcome {
    Sent {
        version: u64,
        answer: Option<Arc<v1::Pod>>,
    },
    /// The object is gone, or another one has its name.
    Gone,
    Deleted,
    Failed(String),
}

impl StatusManager {
    /// Sends until stopped: on every change, and every ten seconds what differs.
    pub async fn run(self: Arc<Self>, client: kube::Client, stop: CancellationToken) {
        let work = async {
            let mut under_way = FuturesUnordered::new();
            let mut busy: Vec<PodUid> = Vec::new();
            let mut reconcile = tokio::time::interval(RECONCILE);
            loop {
                let (due, next) = self.due(&busy, AT_ONCE - busy.len());
                for due in due {
                    busy.push(due.uid.clone());
                    let (this, client) = (self.clone(), client.clone());
                    under_way.push(async move {
                        let outcome = this.sync_pod(&client, &due).await;
                        (due, outcome)
                    });
                }
                let until = next.map(|at| at.since(self.clock.now().mono));
                tokio::select! { biased;
                    Some((due, outcome)) = under_way.next(), if !under_way.is_empty() => {
                        busy.retain(|uid| *uid != due.uid);
                        self.settle(&due, outcome);
                    }
                    // Cancel-safe: a permit that was not taken stays.
                    () = self.changed.notified() => {}
                    () = sleep(until) => {}
                    _ = reconcile.tick() => self.reconcile(),
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Which reports to send now, those that change Ready first; and when to look again.
    fn due(&self, busy: &[PodUid], room: usize) -> (Vec<Due>, Option<Mono>) {
        let mut due = Vec::new();
        if room == 0 {
            // Whoever makes room is a reason to look again.
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
            match self.debt(uid, tracked) {
                Debt::Nothing => return false,
                Debt::Unknown => {}
                Debt::Report(_) if now < tracked.not_before => {
                    waiting.insert((tracked.not_before, uid.clone()));
                    return false;
                }
                Debt::Report(report) => due.push(report),
            }
            true
        });
        due.sort_by_key(|due| !due.ready_changes);
        due.truncate(room);
        (due, waiting.first().map(|(at, _)| *at))
    }

    /// What the API server is owed of one pod.
    fn debt(&self, uid: &PodUid, tracked: &mut Tracked) -> Debt {
        // A static pod without a mirror has nowhere to report to.
        let Some(api_uid) = self.directory.api_uid(uid) else { return Debt::Unknown };
        let Some(api) = self.newest(uid, tracked.answer.as_ref()) else { return Debt::Unknown };
        if tracked.answer.as_ref().is_some_and(|answer| !Arc::ptr_eq(answer, &api)) {
            // The watch has caught up; one copy is enough.
            tracked.answer = None;
        }
        let sent = tracked.sent.as_ref().filter(|(to, _)| **to == *api_uid.as_str());
        let sent = sent.map(|(_, version)| *version);
        let remains = self.remains(uid, &api, &tracked.entry);
        if manager::needs_update(&tracked.entry, sent, Some(&api), remains) {
            let nothing = v1::PodStatus::default();
            let shown = api.status.as_ref().unwrap_or(&nothing);
            let ready_changes = manager::changes_ready(shown, &tracked.entry.status);
            return Debt::Report(Due { uid: uid.clone(), api_uid, ready_changes });
        }
        // Nobody tells when what is left of a pod is gone.
        let waits = manager::can_be_deleted(&api, &tracked.entry, Remains::default());
        if waits || tracked.answer.is_some() { Debt::Unknown } else { Debt::Nothing }
    }

    /// What of the pod is still here; looked up only if nothing else keeps its object.
    fn remains(&self, uid: &PodUid, api: &v1::Pod, entry: &manager::Entry) -> Remains {
        let nothing = Remains::default();
        match manager::can_be_deleted(api, entry, nothing) {
            true => (self.leftovers)(uid),
            false => nothing,
        }
    }

    /// Looks at every pod again, whether or not it is known to owe anything, and forgets what was
    /// sent of those whose status somebody else edited.
    fn reconcile(&self) {
        let mut reports = self.reports.lock();
        reports.open_all();
        let dropped = self.dropped.lock();
        for (uid, tracked) in &mut reports.pods {
            let (Some(pod), Some(api)) =
                (self.directory.pod(uid), self.newest(uid, tracked.answer.as_ref()))
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
                tracing::debug!(pod = %pod.name, %differs, "the API shows another status; ours is sent again");
                tracked.sent = None;
            }
        }
    }

    /// The newest copy of the API object: the watch's, or the answer to our last patch.
    fn newest(&self, uid: &PodUid, answer: Option<&Arc<v1::Pod>>) -> Option<Arc<v1::Pod>> {
        let pod = self.directory.pod(uid)?;
        let watched = match pod.is_static() {
            true => self.directory.mirror_of(&pod)?.pod.object.clone(),
            false => pod.object.clone(),
        };
        let same = answer.filter(|answer| answer.metadata.uid == watched.metadata.uid);
        Some(match same {
            Some(answer) if version(answer) > version(&watched) => answer.clone(),
            Some(_) | None => watched,
        })
    }

    async fn sync_pod(&self, client: &kube::Client, due: &Due) -> Outcome {
        let (entry, answer) = match self.reports.lock().pods.get(&due.uid) {
            Some(tracked) => (tracked.entry.clone(), tracked.answer.clone()),
            None => return Outcome::Gone,
        };
        let Some(pod) = self.directory.pod(&due.uid) else { return Outcome::Gone };
        let api: Api<v1::Pod> = Api::namespaced(client.clone(), &pod.name.namespace);
        let Some(mut newest) = self.newest(&due.uid, answer.as_ref()) else { return Outcome::Gone };
        // Against the copy we hold; if the server knows better, against a fresh one.
        for fresh in [false, true] {
            if fresh {
                newest = match api.get(&pod.name.name).await {
                    Ok(live) => Arc::new(live),
                    Err(error) if is_not_found(&error) => return Outcome::Gone,
                    Err(error) => return Outcome::Failed(error.to_string()),
                };
                if newest.metadata.uid.as_deref() != Some(due.api_uid.as_str()) {
                    return Outcome::Gone;
                }
            }
            match self.send(&api, &pod, due, &entry, newest.clone()).await {
                Ok(outcome) => return outcome,
                Err(error) if is_not_found(&error) => return Outcome::Gone,
                Err(error) if !fresh && is_refusal(&error) => {
                    tracing::debug!(pod = %pod.name, %error, "refused; asking for the live object");
                }
                Err(error) => return Outcome::Failed(error.to_string()),
            }
        }
        Outcome::Gone
    }

    async fn send(
        &self,
        api: &Api<v1::Pod>,
        pod: &Pod,
        due: &Due,
        entry: &manager::Entry,
        newest: Arc<v1::Pod>,
    ) -> Result<Outcome, kube::Error> {
        let may_run = self.directory.standing(&due.uid, |s| s.could_have_running_containers());
        let merged = merge(&newest, &entry.status, may_run, self.clock.now().wall);
        let nothing = v1::PodStatus::default();
        let before = newest.status.as_ref().unwrap_or(&nothing);
        let uid = due.api_uid.as_str();
        let body = patch::worth_sending(before, &merged, uid, &self.dropped.lock());
        let answer = match body {
            None => newest,
            Some(body) => {
                let params = PatchParams::default();
                let patch = Patch::Strategic(&body);
                let mut answer = api.patch_status(&pod.name.name, &params, &patch).await?;
                // Often the largest part of a pod, and nothing that we ask of it.
                answer.metadata.managed_fields = None;
                if let Some(kept) = &answer.status {
                    self.dropped.lock().learn(&body, kept);
                }
                Arc::new(answer)
            }
        };
        let remains = self.remains(&due.uid, &answer, entry);
        if manager::can_be_deleted(&answer, entry, remains) {
            let params = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.into()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            api.delete(&pod.name.name, &params).await?;
            return Ok(Outcome::Deleted);
        }
        Ok(Outcome::Sent { version: entry.version, answer: Some(answer) })
    }

    fn settle(&self, due: &Due, outcome: Outcome) {
        let now = self.clock.now().mono;
        let mut reports = self.reports.lock();
        match outcome {
            Outcome::Sent { version, answer } => {
                if let Some(tracked) = reports.pods.get_mut(&due.uid) {
                    if let Some(changed) = tracked.entry.note_sent(version) {
                        self.metrics.status.sync.observe(now.since(changed));
                    }
                    tracked.sent = Some((due.api_uid.as_str().into(), version));
                    tracked.answer = answer;
                    tracked.failures = 0;
                    tracked.not_before = now;
                }
            }
            Outcome::Gone | Outcome::Deleted => reports.forget(&due.uid),
            Outcome::Failed(error) => {
                if let Some(tracked) = reports.pods.get_mut(&due.uid) {
                    let wait =
                        (RETRY_FIRST * 2u32.saturating_pow(tracked.failures)).min(RETRY_MOST);
                    tracked.failures = tracked.failures.saturating_add(1).min(8);
                    tracked.not_before = now + wait;
                    tracing::warn!(uid = %due.uid, error, "cannot report a pod's status yet");
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

/// The server understood and said no: our copy is out of date, or the name is another pod's.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 409 | 422))
}
