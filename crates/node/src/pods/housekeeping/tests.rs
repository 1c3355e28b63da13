//! Tests that count what a round visits.

use std::collections::BTreeMap;

use podwright_core::builders;
use podwright_core::cgroup::{CgroupName, PodPolicy, PodTree};
use podwright_core::lifecycle::{Kill, Lifecycle, Request};
use podwright_core::node_status::Settings;
use podwright_core::observed::PodEvent;
use podwright_core::pod::{Pod, Source};
use podwright_core::status::manager::PodLeftovers;
use podwright_core::users::UserRange;
use podwright_fake_runtime::{Fake, FakeOptions};
use podwright_host::cgroup::{Cgroups as HostCgroups, Owner};
use podwright_host::checkpoint::{Checkpoint, IncrementalCheckpoint};
use podwright_host::clock::Clock;
use podwright_host::files::Root;
use podwright_host::mounts;
use tempfile::TempDir;
use tokio::sync::watch;

use super::super::pod_handle::{PodHandle, READS};
use super::super::pod_index::{Entry, Part};
use super::*;
use crate::pods::admission::{self, AdmissionSettings};
use crate::pods::allocations::Allocations;
use crate::report::events::Recorder;
use crate::report::heartbeat::own_node::OwnNode;
use crate::report::status::StatusManager;
use crate::resources::cgroups::Cgroups;
use crate::resources::objects::Objects;
use crate::resources::users::Users;
use crate::resources::volumes::Volumes;
use crate::runtime::pleg::{Listener, Pleg};
use crate::runtime::state::NodeState;
use crate::telemetry::metrics::Metrics;

const SIZES: [usize; 2] = [100, 10_000];

struct Scene {
    _dir: TempDir,
    _fake: Fake,
    clock: Clock,
    pod_index: Arc<PodIndex>,
    pods: Vec<Arc<Pod>>,
    housekeeping: Housekeeping,
}

impl Scene {
    /// Running pods, after the first round.
    fn new(count: usize) -> Self {
        let dir = TempDir::new().unwrap();
        let fake = Fake::start(FakeOptions::default());
        let clock = Clock::manual(builders::t(0));
        let pod_index = Arc::new(PodIndex::default());
        let (metrics, client) = (Arc::new(Metrics::default()), fake.client());
        let pleg = Pleg::new(client.clone(), clock.clone(), metrics.clone(), Default::default());
        let runtime = RuntimeAccess { client, pleg, clock: clock.clone() };
        let status = StatusManager::new(
            pod_index.clone(),
            Arc::new(|_: &PodUid| PodLeftovers::default()),
            "containerd".into(),
            clock.clone(),
            metrics.clone(),
        );
        let (events, _) = Recorder::new(clock.clone());
        let (housekeeping, _) = Housekeeping::new(HousekeepingDependencies {
            pod_index: pod_index.clone(),
            admission: admission(&dir),
            resources: resources(&dir, &clock),
            reporting: Reporting { events, status, metrics },
            runtime,
            tasks: TaskTracker::new(),
            orphan_ended: mpsc::unbounded_channel().0,
            stop: CancellationToken::new(),
        });
        let pods = (0..count).map(|n| {
            let source = if n % 50 == 0 { Source::File } else { Source::Api };
            Arc::new(builders::pod(&format!("p{n}")).container("c").build_from(source))
        });
        let pods: Vec<Arc<Pod>> = pods.collect();
        for pod in &pods {
            pod_index.upsert(Entry::Desired(pod.clone()));
            let handle = PodHandle::new(pod.clone(), Lifecycle::begin(pod, true));
            pod_index.upsert(Entry::Worker(handle));
        }
        pod_index.set_sources_ready(true);
        let mut scene = Self { _dir: dir, _fake: fake, clock, pod_index, pods, housekeeping };
        assert_eq!(scene.round().len(), count, "the first round checks everything");
        scene
    }

    /// The pods that a round checked.
    fn round(&mut self) -> BTreeSet<PodUid> {
        let pods = self.housekeeping.pods_to_check().unwrap();
        for uid in self.housekeeping.end_unwanted(&pods) {
            self.pod_index.remove(Part::Handle(&uid));
        }
        self.housekeeping.clean_up(&pods);
        pods
    }
}

fn admission(dir: &TempDir) -> Arc<Admission> {
    let identity = Settings { name: "n".into(), hostname: "n".into(), ..Settings::default() };
    let settings = AdmissionSettings {
        identity: Arc::new(identity),
        allocatable: BTreeMap::new(),
        sysctls: Arc::default(),
        apparmor: false,
        joined: false,
    };
    let root = Root::open(dir.path()).unwrap();
    let checkpoint = Checkpoint::new(root, admission::FILE, admission::VERSION);
    let checkpoint = IncrementalCheckpoint::new(checkpoint).unwrap();
    let (_, own_node) = watch::channel(OwnNode::default());
    let (_, state) = watch::channel(NodeState::default());
    Arc::new(Admission::new(settings, checkpoint, own_node, state, watch::channel(false).1))
}

fn resources(dir: &TempDir, clock: &Clock) -> NodeResources {
    let (root, mount) = (dir.path(), dir.path().join("cpu"));
    std::fs::create_dir(&mount).unwrap();
    let table = format!(
        "31 23 0:28 / {} rw - tmpfs tmpfs rw\n32 31 0:29 / {} rw - cgroup cgroup rw,cpu\n",
        root.display(),
        mount.display()
    );
    let table = mounts::parse(table.as_bytes());
    let host = HostCgroups::open(&table, root, Owner::Us, Vec::new()).unwrap();
    let objects = Objects::new(None, "n".into());
    let users = Arc::new(Users::new(UserRange::for_pods(110, 0)));
    let (of_pods, clock) = (objects.clone(), clock.clone());
    let volumes =
        Volumes::new(&root.join("root"), users.clone(), of_pods, BTreeMap::new(), clock).unwrap();
    let tree = PodTree::below(&CgroupName::ROOT);
    NodeResources {
        cgroups: Arc::new(Cgroups::new(host, tree, PodPolicy::default())),
        volumes: Arc::new(volumes),
        objects,
        users,
        allocations: Allocations::open(root).unwrap(),
    }
}

/// How many handles are read meanwhile.
fn reads<T>(work: impl FnOnce() -> T) -> usize {
    READS.set(0);
    drop(work());
    READS.get()
}

#[tokio::test]
async fn round_visits_only_the_pods_that_changed() {
    for size in SIZES {
        let mut scene = Scene::new(size);
        assert_eq!(reads(|| scene.round()), 0, "{size} idle pods");
        let [ended, removed, seen] = [1, 2, 3].map(|n| scene.pods[n].clone());

        let handle = scene.pod_index.handle(&ended.uid).unwrap();
        handle.request(Request::Kill(Kill::default()));
        assert_eq!(scene.round(), BTreeSet::from([ended.uid.clone()]));

        scene.pod_index.remove(Part::Desired(&removed));
        let mut checked = BTreeSet::new();
        let visits = reads(|| checked = scene.round());
        assert_eq!(checked, BTreeSet::from([removed.uid.clone()]));
        assert!(visits < 10, "{size} pods: {visits} handles read");
        let handle = scene.pod_index.handle(&removed.uid).unwrap();
        assert!(handle.lifecycle().is_removed_from_source());

        scene.pod_index.notify(&seen.uid, &[PodEvent::ContainerDied("c".into())]);
        let checked = scene.round();
        assert!(checked.contains(&seen.uid) && checked.len() <= 2, "{checked:?}");
    }
}

#[tokio::test]
async fn audit_checks_every_pod_once_a_minute_in_slices() {
    let mut scene = Scene::new(1_000);
    scene.clock.advance(AUDIT_INTERVAL);
    let mut checked = Vec::new();
    for _ in 0..AUDIT_SLICES {
        let slice = scene.round();
        assert_eq!(slice.len(), 1_000 / AUDIT_SLICES);
        checked.extend(slice);
        scene.clock.advance(Duration::from_secs(2));
    }
    let mut all: Vec<PodUid> = scene.pods.iter().map(|pod| pod.uid.clone()).collect();
    all.sort();
    checked.sort();
    assert_eq!(checked, all);
    assert!(scene.round().is_empty(), "until the next minute");
}

#[tokio::test]
async fn look_ups_by_name_visit_only_pods_of_that_name_and_static_ones() {
    let visits = SIZES.map(|size| {
        let mut scene = Scene::new(100);
        for n in 100..size {
            let pod = Arc::new(builders::pod(&format!("p{n}")).container("c").build());
            scene.pod_index.upsert(Entry::Desired(pod.clone()));
            let handle = PodHandle::new(pod.clone(), Lifecycle::begin(&pod, true));
            scene.pod_index.upsert(Entry::Worker(handle));
        }
        scene.round();
        let first = scene.pods[0].clone();
        let index = &scene.pod_index;
        index.with_usage(|_| ());
        [
            reads(|| assert!(!index.other_static(&first))),
            reads(|| assert_eq!(index.static_pods().len(), 2)),
            reads(|| assert!(index.orphans().is_empty())),
            reads(|| index.remove(Part::Desired(&first))),
            reads(|| index.remove(Part::Handle(&first.uid))),
        ]
    });
    assert_eq!(visits[0], visits[1]);
}
