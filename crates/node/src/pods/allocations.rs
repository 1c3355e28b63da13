//! Allocated and actuated resources of pods, kept in a checkpoint.
//!
//! Neither the API nor the runtime keeps them: the spec has the desired resources, and an older
//! runtime does not report what it enforces. What would change a running container if it were lost
//! is written before it is applied, by the caller that applies it. Initial allocations and deferred
//! resizes are written with a delay.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use podwright_core::ids::PodUid;
use podwright_core::pod::{Container, Pod};
use podwright_core::resize::fit::{self, ResizeCapacity};
use podwright_core::resize::{
    AllocatedResources, Amounts, PendingReason, PendingResize, ResizeProgress, ResizeState,
    Resource, reported_differences,
};
use podwright_host::checkpoint::{Checkpoint, CheckpointError, IncrementalCheckpoint};
use podwright_host::files::{FileError, Root};
use podwright_host::threads;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Not the file name of upstream, because the format differs.
const FILE: &str = "granted_resources_state";
const VERSION: u32 = 1;
/// Delay before changes are written, so that several become one write.
const FLUSH_DELAY: Duration = Duration::from_secs(1);

pub struct Allocations {
    state: Mutex<AllocationState>,
    checkpoint: IncrementalCheckpoint,
    /// Locked while writing: an older version must not replace a newer one.
    writing: Mutex<()>,
    changed: Notify,
}

type Records = BTreeMap<PodUid, Record>;

#[derive(Default)]
struct AllocationState {
    records: Records,
    /// Pods whose record on disk is missing or outdated.
    unsaved: BTreeSet<PodUid>,
    /// Pods with a deferred resize.
    deferred: BTreeSet<PodUid>,
}

/// A line of the change log.
#[derive(Debug, Serialize, Deserialize)]
struct Change {
    #[serde(rename = "uid")]
    uid: PodUid,
    /// `None`: the pod is gone.
    #[serde(rename = "record")]
    record: Option<Record>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    #[serde(rename = "grant")]
    grant: AllocatedResources,
    #[serde(rename = "resizing")]
    resizing: Arc<ResizeState>,
}

impl Record {
    fn is_deferred(&self) -> bool {
        let pending = self.resizing.pending.as_ref();
        pending.is_some_and(|pending| pending.why == PendingReason::Deferred)
    }
}

impl AllocationState {
    fn new(records: Records) -> Self {
        let deferred = records.iter().filter(|(_, record)| record.is_deferred());
        let deferred = deferred.map(|(uid, _)| uid.clone()).collect();
        Self { records, unsaved: BTreeSet::new(), deferred }
    }

    /// Sets or removes the record of a pod.
    fn set(&mut self, uid: &PodUid, record: Option<Record>) {
        if record.as_ref().is_some_and(Record::is_deferred) {
            self.deferred.insert(uid.clone());
        } else {
            self.deferred.remove(uid);
        }
        match record {
            Some(record) => drop(self.records.insert(uid.clone(), record)),
            None => drop(self.records.remove(uid)),
        }
        self.unsaved.insert(uid.clone());
    }
}

/// The result of a resize request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeDecision {
    /// The requested resources are already allocated.
    Nothing,
    Granted,
    /// `is_new`: not reported before.
    Refused {
        why: PendingReason,
        message: String,
        is_new: bool,
    },
}

impl Allocations {
    /// Reads the checkpoint. A corrupt file counts as missing.
    pub fn open(root_dir: &Path) -> Result<Arc<Self>, FileError> {
        let checkpoint = Checkpoint::new(Root::open(root_dir)?, FILE, VERSION);
        let checkpoint = IncrementalCheckpoint::new(checkpoint)?;
        let apply = |records: &mut Records, Change { uid, record }| match record {
            Some(record) => drop(records.insert(uid, record)),
            None => drop(records.remove(&uid)),
        };
        let records = match checkpoint.load(apply) {
            Ok(records) => records.unwrap_or_default(),
            Err(error @ (CheckpointError::Corrupt { .. } | CheckpointError::Encode { .. })) => {
                tracing::error!(%error, "read allocation checkpoint failed, allocated resources are unknown");
                Records::default()
            }
            Err(CheckpointError::File { source, .. }) => return Err(source),
        };
        Ok(Arc::new(Self {
            state: Mutex::new(AllocationState::new(records)),
            checkpoint,
            writing: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    /// Writes changes to the checkpoint with a delay until stopped, and then all in one file.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.changed.notified().await;
                tokio::time::sleep(FLUSH_DELAY).await;
                self.write().await;
            }
        };
        stop.run_until_cancelled(work).await;
        // `merge` logs its errors.
        let _ = threads::blocking(move || self.merge()).await;
    }

    /// Returns when all current allocations are on disk. Only the caller waits for the write.
    pub async fn write(self: &Arc<Self>) {
        let this = self.clone();
        // `save` logs its errors.
        let _ = threads::blocking(move || this.save()).await;
    }

    /// The pod with its allocated resources instead of the desired ones.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let grant = self.state.lock().records.get(&pod.uid).map(|record| record.grant.clone());
        match grant.filter(|grant| !pod.is_static() && grant.differs(pod)) {
            None => pod.clone(),
            // A valid pod is also valid with other amounts.
            Some(grant) => grant.apply(pod).map_or_else(|_| pod.clone(), Arc::new),
        }
    }

    /// Allocates the resources of a new pod: the recorded ones, or else those of its spec.
    pub fn admit(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if !pod.is_static() {
            let mut state = self.state.lock();
            if !state.records.contains_key(&pod.uid) {
                let mut record = Record { grant: AllocatedResources::of(pod), ..Record::default() };
                let applied = reported_differences(pod);
                if !applied.is_empty() {
                    Arc::make_mut(&mut record.resizing).applied.containers = applied;
                }
                state.set(&pod.uid, Some(record));
                self.changed.notify_one();
            }
        }
        self.granted(pod)
    }

    /// Allocates the desired resources if they fit beside those of the `others`. A caller that
    /// applies them must write the checkpoint first ([`Self::write`]).
    pub fn request_resize(
        &self,
        pod: &Pod,
        others: impl FnOnce() -> Vec<Arc<Pod>>,
        room: ResizeCapacity<'_>,
        now: Timestamp,
    ) -> ResizeDecision {
        let mut state = self.state.lock();
        let Some(record) = state.records.get(&pod.uid) else { return ResizeDecision::Nothing };
        let differs = record.grant.differs(pod);
        if !differs && record.resizing.pending.is_none() {
            return ResizeDecision::Nothing;
        }
        let mut after = record.clone();
        let resizing = Arc::make_mut(&mut after.resizing);
        let decision = if differs {
            let Ok(granted) = record.grant.apply(pod) else { return ResizeDecision::Nothing };
            let others = others();
            let judged = fit::check_fit(pod, &granted, others.iter().map(|other| &**other), room);
            match judged {
                Ok(()) => {
                    fill_applied(resizing, &granted);
                    resizing.pending = None;
                    let generation = pod.generation();
                    resizing.progress =
                        Some(ResizeProgress { generation, error: None, since: now });
                    after.grant = AllocatedResources::of(pod);
                    ResizeDecision::Granted
                }
                Err((why, message)) => refuse(resizing, why, message, pod.generation(), now),
            }
        } else {
            resizing.pending = None;
            ResizeDecision::Nothing
        };
        if *record != after {
            state.set(&pod.uid, Some(after));
            self.changed.notify_one();
        }
        decision
    }

    pub fn resizing(&self, uid: &PodUid) -> Arc<ResizeState> {
        let state = self.state.lock();
        state.records.get(uid).map(|record| record.resizing.clone()).unwrap_or_default()
    }

    /// Pods with a deferred resize.
    pub fn deferred(&self) -> Vec<PodUid> {
        self.state.lock().deferred.iter().cloned().collect()
    }

    /// Records that a container is about to be created with the allocated resources.
    pub fn note_start(&self, pod: &Pod, container: &Container) {
        self.note(&pod.uid, |resizing| {
            let amounts = Amounts::of_container(pod, container);
            resizing.applied.containers.insert(container.name.clone(), amounts);
            // During a resize only the resize updates the resources of the pod itself.
            if resizing.progress.is_none() {
                resizing.applied.pod = Some(Amounts::of_pod(pod));
            }
        });
    }

    /// Records the resources of a container as applied to the runtime.
    pub fn note_applied(&self, uid: &PodUid, container: &Arc<str>, amounts: Amounts) {
        self.note(uid, |resizing| {
            resizing.applied.containers.insert(container.clone(), amounts);
        });
    }

    /// Records that the pod cgroup has the allocated amount of this resource.
    pub fn note_pod_applied(&self, pod: &Pod, resource: Resource) {
        self.note(&pod.uid, |resizing| {
            let before = resizing.applied.pod.unwrap_or_default();
            resizing.applied.pod = Some(before.with(resource, Amounts::of_pod(pod)));
        });
    }

    /// Records a failed attempt to apply a resize; returns whether the error is new.
    pub fn note_failure(&self, uid: &PodUid, error: &str) -> bool {
        self.note(uid, |resizing| {
            if let Some(progress) = &mut resizing.progress {
                progress.error = Some(error.to_owned());
            }
        })
    }

    /// Records that this resize is completely applied. A newer one may have begun since.
    pub fn note_done(&self, uid: &PodUid, completed: &ResizeProgress) {
        self.note(uid, |resizing| {
            resizing.progress = resizing.progress.take().filter(|progress| progress != completed);
        });
    }

    /// Removes the record of a pod that is no longer known.
    pub fn forget(&self, uid: &PodUid) {
        let mut state = self.state.lock();
        if state.records.contains_key(uid) {
            state.set(uid, None);
            self.changed.notify_one();
        }
    }

    /// The pods with allocated resources.
    pub fn recorded(&self) -> Vec<PodUid> {
        self.state.lock().records.keys().cloned().collect()
    }

    /// Changes a record; during a resize it is written at once. Returns whether it changed.
    fn note(&self, uid: &PodUid, change: impl FnOnce(&mut ResizeState)) -> bool {
        let mut state = self.state.lock();
        let Some(record) = state.records.get(uid) else { return false };
        let mut resizing = (*record.resizing).clone();
        let in_progress = resizing.progress.is_some();
        change(&mut resizing);
        if *record.resizing == resizing {
            return false;
        }
        let record = Record { grant: record.grant.clone(), resizing: Arc::new(resizing) };
        state.set(uid, Some(record));
        drop(state);
        self.changed.notify_one();
        if in_progress {
            threads::in_place(|| self.save());
        }
        true
    }

    /// Writes the changes that are not on disk yet. Readers do not wait for it.
    fn save(&self) {
        let _writing = self.writing.lock();
        let (uids, changes, count) = {
            let mut state = self.state.lock();
            let uids = std::mem::take(&mut state.unsaved);
            let change =
                |uid: &PodUid| Change { uid: uid.clone(), record: state.records.get(uid).cloned() };
            let changes: Vec<Change> = uids.iter().map(change).collect();
            (uids, changes, state.records.len())
        };
        if uids.is_empty() {
            return;
        }
        if let Err(error) = self.checkpoint.save(&changes, count, || self.records()) {
            self.state.lock().unsaved.extend(uids);
            report(&error);
        }
    }

    /// Writes all records to the file that earlier builds read.
    fn merge(&self) {
        self.save();
        let _writing = self.writing.lock();
        if let Err(error) = self.checkpoint.merge(|| self.records()) {
            report(&error);
        }
    }

    fn records(&self) -> Records {
        self.state.lock().records.clone()
    }
}

fn report(error: &CheckpointError) {
    let error = crate::error_chain::chain(error);
    tracing::error!(
        error,
        "write allocation checkpoint failed, a restart of the agent may repeat a resize"
    );
}

/// Containers without a record run with the resources of the pod before this resize.
fn fill_applied(resizing: &mut ResizeState, granted: &Pod) {
    for container in &granted.containers {
        let amounts = Amounts::of_container(granted, container);
        resizing.applied.containers.entry(container.name.clone()).or_insert(amounts);
    }
    resizing.applied.pod.get_or_insert_with(|| Amounts::of_pod(granted));
}

fn refuse(
    resizing: &mut ResizeState,
    why: PendingReason,
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) -> ResizeDecision {
    let same = resizing.pending.as_ref().filter(|before| before.why == why);
    let is_new = same.is_none_or(|before| before.generation != generation);
    let since = same.map_or(now, |before| before.since);
    resizing.pending = Some(PendingResize { why, message: message.clone(), generation, since });
    ResizeDecision::Refused { why, message, is_new }
}

#[cfg(test)]
mod tests {
    use podwright_api::qos::ResourceList;
    use podwright_core::builders::pod;
    use podwright_core::pod::features::PodFeatures;
    use podwright_core::resize::whole_differs;
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn pod_requesting(cpu: &str, generation: i64) -> Arc<Pod> {
        let fields = json!({ "resources": { "requests": { "cpu": cpu } } });
        let pod = pod("p").container_with("c", fields);
        Arc::new(pod.edit(|pod| pod["metadata"]["generation"] = json!(generation)).build())
    }

    fn cpu(pod: &Pod) -> i64 {
        Amounts::of_container(pod, &pod.containers[0]).cpu_request
    }

    fn request(allocations: &Allocations, pod: &Pod) -> ResizeDecision {
        let allocatable = ResourceList::from([("cpu".to_owned(), "1".parse().unwrap())]);
        allocations.request_resize(
            pod,
            Vec::new,
            ResizeCapacity {
                allocatable: &allocatable,
                swap: false,
                features: PodFeatures::DEFAULT,
                pressure: Default::default(),
            },
            NOW,
        )
    }

    #[test]
    fn checkpoint_of_version_1_is_written_as_it_was_read() {
        let text = concat!(
            r#"{"a":{"grant":{"containers":{"c":{"requests":{"cpu":"50m"}}},"pod":null},"#,
            r#""resizing":{"applied":{"containers":{"c":{"cpu_request":50,"cpu_limit":0,"#,
            r#""memory_request":0,"memory_limit":0}},"pod":{"cpu_request":1,"cpu_limit":2,"#,
            r#""memory_request":3,"memory_limit":4}},"pending":{"why":"Deferred","#,
            r#""message":"full","generation":2,"since":"2026-11-18T01:18:00.134367567Z"},"#,
            r#""progress":null}},"b":{"grant":{"containers":{},"pod":{"limits":{"memory":"1Gi"}}},"#,
            r#""resizing":{"applied":{"containers":{},"pod":null},"pending":{"why":"Infeasible","#,
            r#""message":"never","generation":null,"since":"2026-11-18T01:18:00Z"},"#,
            r#""progress":{"generation":3,"error":"busy","since":"2026-11-18T01:18:01Z"}}}}"#,
        );
        let records: Records = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&records).unwrap(), text);
    }

    #[test]
    fn resize_that_fits_is_granted_and_survives_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(directory.path()).unwrap();
        let first = pod_requesting("100m", 1);
        assert_eq!(cpu(&allocations.admit(&first)), 100);
        allocations.note_start(&first, &first.containers[0]);
        assert_eq!(request(&allocations, &first), ResizeDecision::Nothing);

        assert_eq!(request(&allocations, &pod_requesting("500m", 2)), ResizeDecision::Granted);
        let too_much = pod_requesting("5", 3);
        let refused = |is_new| ResizeDecision::Refused {
            why: PendingReason::Deferred,
            message:
                "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 1000"
                    .into(),
            is_new,
        };
        assert_eq!(request(&allocations, &too_much), refused(true));
        assert_eq!(request(&allocations, &too_much), refused(false), "already reported");
        assert_eq!(allocations.deferred(), std::slice::from_ref(&first.uid));

        allocations.save();
        let after = Allocations::open(directory.path()).unwrap();
        assert_eq!(cpu(&after.admit(&too_much)), 500, "neither the desired nor the first amount");
        assert_eq!(request(&after, &too_much), refused(false));
        let resizing = after.resizing(&first.uid);
        assert_eq!(
            resizing.applied.containers["c"].cpu_request, 100,
            "500m is still to be applied"
        );
        assert_eq!(resizing.progress.as_ref().unwrap().generation, Some(2));

        assert_eq!(request(&after, &pod_requesting("500m", 4)), ResizeDecision::Nothing);
        assert_eq!(after.resizing(&first.uid).pending, None, "the request was withdrawn");
        after.recorded().iter().for_each(|uid| after.forget(uid));
        assert_eq!(*after.resizing(&first.uid), ResizeState::default());
    }

    #[test]
    fn each_step_of_a_resize_is_on_disk_before_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(directory.path()).unwrap();
        let (small, large) = (pod_requesting("100m", 1), pod_requesting("200m", 2));
        allocations.admit(&small);
        assert_eq!(request(&allocations, &large), ResizeDecision::Granted);
        allocations.save();
        let stored = || Allocations::open(directory.path()).unwrap().resizing(&small.uid);
        assert_eq!(stored().applied.containers["c"].cpu_request, 100, "as it was created");
        assert!(allocations.note_failure(&small.uid, "no"));
        assert!(!allocations.note_failure(&small.uid, "no"), "the same error is not new");
        assert_eq!(stored().progress.as_ref().unwrap().error.as_deref(), Some("no"));
        allocations.note_start(&large, &large.containers[0]);
        assert_eq!(stored().applied.containers["c"].cpu_request, 200);
        let completed = stored().progress.clone().unwrap();
        let earlier = ResizeProgress { generation: Some(1), ..completed.clone() };
        allocations.note_done(&small.uid, &earlier);
        assert_eq!(stored().progress.as_ref(), Some(&completed), "another resize");
        allocations.note_done(&small.uid, &completed);
        assert_eq!(stored().progress, None);
    }

    #[test]
    fn first_pod_level_resources_are_applied() {
        let directory = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(directory.path()).unwrap();
        let without = pod_requesting("100m", 1);
        allocations.admit(&without);
        let whole = json!({ "requests": { "cpu": "300m" }, "limits": { "memory": "64Mi" } });
        let with = pod("p").container("c").edit(|pod| {
            pod["metadata"]["generation"] = json!(2);
            pod["spec"]["resources"] = whole;
        });
        let with = with.build();
        assert_eq!(request(&allocations, &with), ResizeDecision::Granted);
        let differs = || whole_differs(&with, &allocations.resizing(&with.uid).applied);
        assert!(differs());
        allocations.note_start(&with, &with.containers[0]);
        assert!(differs(), "a container start is not a resize");
        allocations.note_pod_applied(&with, Resource::Memory);
        assert!(differs(), "half of it");
        allocations.note_pod_applied(&with, Resource::Cpu);
        assert!(!differs());
    }

    #[test]
    fn deferred_resize_is_written_once_when_retried() {
        let directory = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(directory.path()).unwrap();
        allocations.admit(&pod_requesting("100m", 1));
        let too_much = pod_requesting("5", 2);
        assert!(matches!(
            request(&allocations, &too_much),
            ResizeDecision::Refused { is_new: true, .. }
        ));
        allocations.save();
        let written =
            || std::fs::metadata(directory.path().join(FILE)).unwrap().modified().unwrap();
        let before = written();
        for _ in 0..3 {
            assert!(matches!(
                request(&allocations, &too_much),
                ResizeDecision::Refused { is_new: false, .. }
            ));
            assert!(allocations.state.lock().unsaved.is_empty());
            allocations.save();
        }
        assert_eq!(written(), before);
        assert_eq!(allocations.deferred(), std::slice::from_ref(&too_much.uid));
        let again = Allocations::open(directory.path()).unwrap();
        assert_eq!(again.deferred(), std::slice::from_ref(&too_much.uid), "after a restart");
        request(&again, &pod_requesting("100m", 3));
        assert!(again.deferred().is_empty(), "withdrawn");
    }

    #[test]
    fn pods_of_a_large_node_survive_a_restart_and_a_downgrade() {
        let directory = tempfile::tempdir().unwrap();
        let named = |number: usize| Arc::new(pod(&format!("p{number}")).container("c").build());
        let allocations = Allocations::open(directory.path()).unwrap();
        for number in 0..300 {
            allocations.admit(&named(number));
            allocations.save();
        }
        allocations.forget(&named(7).uid);
        allocations.save();
        let log = directory.path().join(format!("{FILE}.changes"));
        let text = std::fs::read_to_string(&log).unwrap();
        let last = text.lines().last().unwrap();
        let change = format!(r#""data":{{"uid":"{}","record":null}}"#, named(7).uid);
        assert!(last.contains(&change), "{last}");
        let again = Allocations::open(directory.path()).unwrap();
        assert_eq!(again.records(), allocations.records());
        assert_eq!(again.records().len(), 299);
        again.merge();
        assert!(!log.exists());
        let root = Root::open(directory.path()).unwrap();
        let base: Records = Checkpoint::new(root, FILE, VERSION).load().unwrap().unwrap();
        assert_eq!(base, again.records(), "all that an earlier build reads");
    }

    #[test]
    fn corrupt_checkpoint_counts_as_missing() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        let allocations = Allocations::open(directory.path()).unwrap();
        assert_eq!(cpu(&allocations.granted(&pod_requesting("100m", 1))), 100);
    }
}
