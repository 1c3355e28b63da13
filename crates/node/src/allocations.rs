//! What each pod was granted, and what of it was applied.
//!
//! A fact that neither the API nor the runtime keeps: the spec says what is wished for, and an
//! older runtime does not tell what it enforces. So it is kept in a small file. What would change
//! a running container if it were lost is written before it is acted on, by whoever acts; that a
//! pod started with what its spec says, or that a wish has to wait, is written when there is time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use podwright_core::ids::PodUid;
use podwright_core::pod::{Container, Pod};
use podwright_core::resize::fit::{self, Room};
use podwright_core::resize::{Amounts, Grant, NotGranted, Pending, Progress, Resizing, Resource};
use podwright_host::checkpoint::{Checkpoint, CheckpointError};
use podwright_host::files::{FileError, Root};
use podwright_host::threads;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Not upstream's files: their shape is another.
const FILE: &str = "granted_resources_state";
const VERSION: u32 = 1;
/// How long what is not urgent may wait for more of its kind.
const UNHURRIED: Duration = Duration::from_secs(1);

pub struct Allocations {
    kept: Mutex<Kept>,
    checkpoint: Checkpoint,
    /// The version on disk. Held while writing: an older one must not be written over a newer one.
    on_disk: Mutex<u64>,
    changed: Notify,
}

type Records = BTreeMap<PodUid, Record>;

#[derive(Default)]
struct Kept {
    records: Records,
    /// Goes up with every change.
    version: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    #[serde(rename = "grant")]
    grant: Grant,
    #[serde(rename = "resizing")]
    resizing: Arc<Resizing>,
}

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It wishes for what it has.
    Nothing,
    Granted,
    /// `news`: that was not said before.
    Refused {
        why: NotGranted,
        message: String,
        news: bool,
    },
}

impl Allocations {
    /// Reads what the agent before us wrote. A file that cannot be read is as good as none.
    pub fn open(root_dir: &Path) -> Result<Arc<Self>, FileError> {
        let checkpoint = Checkpoint::new(Root::open(root_dir)?, FILE, VERSION);
        let records = match checkpoint.load() {
            Ok(records) => records.unwrap_or_default(),
            Err(error @ (CheckpointError::Corrupt { .. } | CheckpointError::Encode { .. })) => {
                tracing::error!(%error, "what pods were granted is not known any more");
                Records::default()
            }
            Err(CheckpointError::File { source, .. }) => return Err(source),
        };
        Ok(Arc::new(Self {
            kept: Mutex::new(Kept { records, version: 0 }),
            checkpoint,
            on_disk: Mutex::new(0),
            changed: Notify::new(),
        }))
    }

    /// Writes what is not urgent, some time after it changed, until stopped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let work = async {
            loop {
                self.changed.notified().await;
                tokio::time::sleep(UNHURRIED).await;
                self.write().await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Returns when everything is on disk that was granted up to now. The disk may take its time;
    /// nobody but the caller waits for it.
    pub async fn write(self: &Arc<Self>) {
        let this = self.clone();
        // Whether it worked is logged there.
        let _ = threads::blocking(move || this.save()).await;
    }

    /// The pod with what it was granted in place of what it wishes for.
    pub fn granted(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let grant = self.kept.lock().records.get(&pod.uid).map(|record| record.grant.clone());
        match grant.filter(|grant| !pod.is_static() && grant.differs(pod)) {
            None => pod.clone(),
            // A pod that could be read can be read with other amounts.
            Some(grant) => grant.apply(pod).map_or_else(|_| pod.clone(), Arc::new),
        }
    }

    /// A pod begins: it has what it was granted once, or else what its spec says.
    pub fn admit(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        if !pod.is_static() {
            let mut kept = self.kept.lock();
            if !kept.records.contains_key(&pod.uid) {
                let record = Record { grant: Grant::of(pod), ..Record::default() };
                kept.records.insert(pod.uid.clone(), record);
                self.changed(&mut kept);
            }
        }
        self.granted(pod)
    }

    /// Grants what the pod wishes for, if it fits beside what the `others` were granted. Whoever
    /// applies the grant writes it down first ([`Self::write`]).
    pub fn wish(
        &self,
        pod: &Pod,
        others: impl FnOnce() -> Vec<Arc<Pod>>,
        room: Room<'_>,
        now: Timestamp,
    ) -> Answer {
        let mut kept = self.kept.lock();
        let Some(record) = kept.records.get_mut(&pod.uid) else { return Answer::Nothing };
        let wishes = record.grant.differs(pod);
        if !wishes && record.resizing.pending.is_none() {
            return Answer::Nothing;
        }
        let mut after = record.clone();
        let resizing = Arc::make_mut(&mut after.resizing);
        let answer = if wishes {
            let Ok(granted) = record.grant.apply(pod) else { return Answer::Nothing };
            let others = others();
            let judged = fit::judge(pod, &granted, others.iter().map(|other| &**other), room);
            match judged {
                Ok(()) => {
                    made_with(resizing, &granted);
                    resizing.pending = None;
                    let generation = pod.generation();
                    resizing.progress = Some(Progress { generation, error: None, since: now });
                    after.grant = Grant::of(pod);
                    Answer::Granted
                }
                Err((why, message)) => refuse(resizing, why, message, pod.generation(), now),
            }
        } else {
            resizing.pending = None;
            Answer::Nothing
        };
        if *record != after {
            *record = after;
            self.changed(&mut kept);
        }
        answer
    }

    pub fn resizing(&self, uid: &PodUid) -> Arc<Resizing> {
        let kept = self.kept.lock();
        kept.records.get(uid).map(|record| record.resizing.clone()).unwrap_or_default()
    }

    /// Pods whose wish may be granted later.
    pub fn deferred(&self) -> Vec<PodUid> {
        let deferred = |record: &Record| {
            let pending = record.resizing.pending.as_ref();
            pending.is_some_and(|pending| pending.why == NotGranted::Deferred)
        };
        let kept = self.kept.lock();
        let records = kept.records.iter();
        records.filter(|(_, record)| deferred(record)).map(|(uid, _)| uid.clone()).collect()
    }

    /// A container is about to be made with what its pod was granted.
    pub fn note_start(&self, pod: &Pod, container: &Container) {
        self.note(&pod.uid, |resizing| {
            let amounts = Amounts::of_container(pod, container);
            resizing.applied.containers.insert(container.name.clone(), amounts);
            // In the middle of a resize it is the resize that knows how far the pod itself is.
            if resizing.progress.is_none() {
                resizing.applied.pod = Some(Amounts::of_pod(pod));
            }
        });
    }

    /// The runtime was told what a container has now.
    pub fn note_applied(&self, uid: &PodUid, container: &Arc<str>, amounts: Amounts) {
        self.note(uid, |resizing| {
            resizing.applied.containers.insert(container.clone(), amounts);
        });
    }

    /// The pod's own group has what was granted of this resource.
    pub fn note_whole(&self, pod: &Pod, resource: Resource) {
        self.note(&pod.uid, |resizing| {
            let before = resizing.applied.pod.unwrap_or_default();
            resizing.applied.pod = Some(before.with(resource, Amounts::of_pod(pod)));
        });
    }

    /// A try to apply a grant failed. Whether that is news.
    pub fn note_failure(&self, uid: &PodUid, error: &str) -> bool {
        self.note(uid, |resizing| {
            if let Some(progress) = &mut resizing.progress {
                progress.error = Some(error.to_owned());
            }
        })
    }

    /// Everything that was granted is applied.
    pub fn note_done(&self, uid: &PodUid) {
        self.note(uid, |resizing| resizing.progress = None);
    }

    /// Forgets pods that nobody wants any more.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let mut kept = self.kept.lock();
        let before = kept.records.len();
        kept.records.retain(|uid, _| keep(uid));
        if kept.records.len() != before {
            self.changed(&mut kept);
        }
    }

    /// In the middle of a resize every step counts; else there is time. Whether it changed.
    fn note(&self, uid: &PodUid, change: impl FnOnce(&mut Resizing)) -> bool {
        let mut kept = self.kept.lock();
        let Some(record) = kept.records.get_mut(uid) else { return false };
        let mut resizing = (*record.resizing).clone();
        let under_way = resizing.progress.is_some();
        change(&mut resizing);
        if *record.resizing == resizing {
            return false;
        }
        record.resizing = Arc::new(resizing);
        self.changed(&mut kept);
        drop(kept);
        if under_way {
            self.save();
        }
        true
    }

    fn changed(&self, kept: &mut Kept) {
        kept.version += 1;
        self.changed.notify_one();
    }

    /// Writes what is not on disk yet. Nobody who asks what was granted waits for it.
    fn save(&self) {
        let mut on_disk = self.on_disk.lock();
        let (records, version) = {
            let kept = self.kept.lock();
            if kept.version == *on_disk {
                return;
            }
            (kept.records.clone(), kept.version)
        };
        match self.checkpoint.save(&records) {
            Ok(()) => *on_disk = version,
            Err(error) => {
                let error = crate::causes::chain(&error);
                tracing::error!(error, "a restart of the agent may take a resize for undone");
            }
        }
    }
}

/// Containers nobody wrote down run with what their pod had before this resize.
fn made_with(resizing: &mut Resizing, granted: &Pod) {
    for container in &granted.containers {
        let amounts = Amounts::of_container(granted, container);
        resizing.applied.containers.entry(container.name.clone()).or_insert(amounts);
    }
    resizing.applied.pod.get_or_insert_with(|| Amounts::of_pod(granted));
}

fn refuse(
    resizing: &mut Resizing,
    why: NotGranted,
    message: String,
    generation: Option<i64>,
    now: Timestamp,
) -> Answer {
    let same = resizing.pending.as_ref().filter(|before| before.why == why);
    let news = same.is_none_or(|before| before.generation != generation);
    let since = same.map_or(now, |before| before.since);
    resizing.pending = Some(Pending { why, message: message.clone(), generation, since });
    Answer::Refused { why, message, news }
}

#[cfg(test)]
mod tests {
    use podwright_core::builders::pod;
    use podwright_core::qos::ResourceList;
    use podwright_core::resize::whole_differs;
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn asking(cpu: &str, generation: i64) -> Arc<Pod> {
        let fields = json!({ "resources": { "requests": { "cpu": cpu } } });
        let pod = pod("p").container_with("c", fields);
        Arc::new(pod.edit(|pod| pod["metadata"]["generation"] = json!(generation)).build())
    }

    fn cpu(pod: &Pod) -> i64 {
        Amounts::of_container(pod, &pod.containers[0]).cpu_request
    }

    fn wish(allocations: &Allocations, pod: &Pod) -> Answer {
        let allocatable = ResourceList::from([("cpu".to_owned(), "1".parse().unwrap())]);
        allocations.wish(pod, Vec::new, Room { allocatable: &allocatable, swap: false }, NOW)
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
    fn a_wish_is_granted_if_it_fits_and_a_restart_remembers() {
        let folder = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(folder.path()).unwrap();
        let first = asking("100m", 1);
        assert_eq!(cpu(&allocations.admit(&first)), 100);
        allocations.note_start(&first, &first.containers[0]);
        assert_eq!(wish(&allocations, &first), Answer::Nothing);

        assert_eq!(wish(&allocations, &asking("500m", 2)), Answer::Granted);
        let too_much = asking("5", 3);
        let refused = |news| Answer::Refused {
            why: NotGranted::Deferred,
            message:
                "Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 1000"
                    .into(),
            news,
        };
        assert_eq!(wish(&allocations, &too_much), refused(true));
        assert_eq!(wish(&allocations, &too_much), refused(false), "that was said already");
        assert_eq!(allocations.deferred(), std::slice::from_ref(&first.uid));

        allocations.save();
        let after = Allocations::open(folder.path()).unwrap();
        assert_eq!(cpu(&after.admit(&too_much)), 500, "neither the wish nor the first grant");
        assert_eq!(wish(&after, &too_much), refused(false));
        let resizing = after.resizing(&first.uid);
        assert_eq!(
            resizing.applied.containers["c"].cpu_request, 100,
            "500m is still to be applied"
        );
        assert_eq!(resizing.progress.as_ref().unwrap().generation, Some(2));

        assert_eq!(wish(&after, &asking("500m", 4)), Answer::Nothing);
        assert_eq!(after.resizing(&first.uid).pending, None, "the wish was taken back");
        after.retain(|_| false);
        assert_eq!(*after.resizing(&first.uid), Resizing::default());
    }

    #[test]
    fn row_27_each_step_of_a_resize_is_on_disk_before_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(folder.path()).unwrap();
        let (small, large) = (asking("100m", 1), asking("200m", 2));
        allocations.admit(&small);
        assert_eq!(wish(&allocations, &large), Answer::Granted);
        allocations.save();
        let stored = || Allocations::open(folder.path()).unwrap().resizing(&small.uid);
        assert_eq!(stored().applied.containers["c"].cpu_request, 100, "as it was made");
        assert!(allocations.note_failure(&small.uid, "no"));
        assert!(!allocations.note_failure(&small.uid, "no"), "once is enough");
        assert_eq!(stored().progress.as_ref().unwrap().error.as_deref(), Some("no"));
        allocations.note_start(&large, &large.containers[0]);
        assert_eq!(stored().applied.containers["c"].cpu_request, 200);
        allocations.note_done(&small.uid);
        assert_eq!(stored().progress, None);
    }

    #[test]
    fn what_a_pod_gets_for_the_first_time_as_a_whole_has_to_be_applied() {
        let folder = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(folder.path()).unwrap();
        let without = asking("100m", 1);
        allocations.admit(&without);
        let whole = json!({ "requests": { "cpu": "300m" }, "limits": { "memory": "64Mi" } });
        let with = pod("p").container("c").edit(|pod| {
            pod["metadata"]["generation"] = json!(2);
            pod["spec"]["resources"] = whole;
        });
        let with = with.build();
        assert_eq!(wish(&allocations, &with), Answer::Granted);
        let differs = || whole_differs(&with, &allocations.resizing(&with.uid).applied);
        assert!(differs());
        allocations.note_start(&with, &with.containers[0]);
        assert!(differs(), "a start is no resize");
        allocations.note_whole(&with, Resource::Memory);
        assert!(differs(), "half of it");
        allocations.note_whole(&with, Resource::Cpu);
        assert!(!differs());
    }

    #[test]
    fn a_wish_that_waits_is_written_once_however_often_it_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let allocations = Allocations::open(folder.path()).unwrap();
        allocations.admit(&asking("100m", 1));
        let too_much = asking("5", 2);
        assert!(matches!(wish(&allocations, &too_much), Answer::Refused { news: true, .. }));
        allocations.save();
        let written = || std::fs::metadata(folder.path().join(FILE)).unwrap().modified().unwrap();
        let (before, version) = (written(), allocations.kept.lock().version);
        for _ in 0..3 {
            assert!(matches!(wish(&allocations, &too_much), Answer::Refused { news: false, .. }));
            allocations.save();
        }
        assert_eq!((written(), allocations.kept.lock().version), (before, version));
    }

    #[test]
    fn a_spoilt_file_is_as_good_as_none() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{").unwrap();
        let allocations = Allocations::open(folder.path()).unwrap();
        assert_eq!(cpu(&allocations.granted(&asking("100m", 1))), 100);
    }
}
