use podwright_core::admission::SYSTEM_CRITICAL;
use podwright_core::builders;
use podwright_core::cgroup::{CgroupName, PodPolicy, PodTree};
use podwright_core::lifecycle::Lifecycle;
use podwright_core::status::manager::PodLeftovers;
use podwright_host::cgroup::{Cgroups as HostCgroups, Owner};
use podwright_host::mounts;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::pod_index::Entry;
use super::*;
use crate::report::events::{Occurrence, Recorder};
use crate::report::status::StatusManager;
use crate::telemetry::metrics::{Exposition, Metrics};

mod logind;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A node with pods whose workers the test plays.
struct Scene {
    dir: TempDir,
    pod_index: Arc<PodIndex>,
    metrics: Arc<Metrics>,
    events: mpsc::Receiver<Occurrence>,
    state: watch::Receiver<bool>,
    announced: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Scene {
    fn new() -> (Self, ShutdownDependencies) {
        let dir = TempDir::new().unwrap();
        let clock = Clock::real();
        let pod_index = Arc::new(PodIndex::default());
        pod_index.set_sources_ready(true);
        let metrics = Arc::new(Metrics::default());
        let status = StatusManager::new(
            pod_index.clone(),
            Arc::new(|_: &PodUid| PodLeftovers::default()),
            "containerd".into(),
            clock.clone(),
            metrics.clone(),
        );
        let (recorder, events) = Recorder::new(clock.clone());
        let (changes, state) = watch::channel(false);
        let dependencies = ShutdownDependencies {
            node_name: "n".into(),
            root_dir: dir.path().to_owned(),
            pod_index: pod_index.clone(),
            cgroups: Arc::new(cgroups(&dir)),
            reporting: Reporting { events: recorder, status, metrics: metrics.clone() },
            clock,
            state: changes,
        };
        let (announced, stop) = (watch::Sender::new(false), CancellationToken::new());
        (Self { dir, pod_index, metrics, events, state, announced, stop }, dependencies)
    }

    /// With a running manager of simulated announcements.
    fn started(normal: u64, critical: u64) -> Self {
        let (scene, dependencies) = Self::new();
        let settings = ShutdownSettings {
            groups: ShutdownGroups::with_critical(seconds(normal + critical), seconds(critical))
                .unwrap(),
            records: true,
            announcements: Announcements::Simulated(scene.announced.subscribe()),
        };
        let manager = ShutdownManager::new(settings, dependencies);
        tokio::spawn(manager.run(scene.stop.clone()));
        scene
    }

    fn pod(&self, name: &str, priority: i32) -> Arc<PodHandle> {
        let pod = builders::pod(name).grace(600).container("c").spec("priority", json!(priority));
        let pod = Arc::new(pod.build());
        let handle = PodHandle::new(pod.clone(), Lifecycle::begin(&pod, true));
        self.pod_index.upsert(Entry::Desired(pod));
        self.pod_index.upsert(Entry::Worker(handle.clone()));
        handle
    }

    fn exposed(&self) -> String {
        let mut out = Exposition::default();
        self.metrics.write(&mut out);
        out.into_page()
    }
}

/// Cgroups of plain files.
fn cgroups(dir: &TempDir) -> Cgroups {
    let mount = dir.path().join("pids");
    std::fs::create_dir(&mount).unwrap();
    let table = format!(
        "31 23 0:28 / {} rw - tmpfs tmpfs rw\n32 31 0:29 / {} rw - cgroup cgroup rw,pids\n",
        dir.path().display(),
        mount.display()
    );
    let table = mounts::parse(table.as_bytes());
    let host = HostCgroups::open(&table, dir.path(), Owner::Us, Vec::new()).unwrap();
    Cgroups::new(host, PodTree::below(&CgroupName::ROOT), PodPolicy::default())
}

/// When the pod was asked to end, since `began`.
async fn asked(handle: &PodHandle, began: Instant) -> Duration {
    let mut desired = handle.desired();
    desired.wait_for(|desired| desired.lifecycle.stage() >= Stage::Terminating).await.unwrap();
    began.elapsed()
}

// The reference, row 37.
#[tokio::test(start_paused = true)]
async fn volume_that_is_never_unmounted_delays_the_next_group_until_the_time_of_its_own() {
    let scene = Scene::started(20, 10);
    let (normal, critical) = (scene.pod("normal", 0), scene.pod("critical", SYSTEM_CRITICAL));
    tokio::task::yield_now().await;
    let began = Instant::now();
    scene.announced.send_replace(true);
    assert!(asked(&normal, began).await < seconds(1));
    assert_eq!(normal.lifecycle().grace(), Some(seconds(20)));
    normal.advance(|lifecycle| lifecycle.stopped());
    let at = asked(&critical, began).await;
    assert!((seconds(20)..seconds(21)).contains(&at), "{at:?}");
    assert_eq!(critical.lifecycle().grace(), Some(seconds(10)));
    // Its own time was over, so it does not delay the end.
    critical.advance(|lifecycle| lifecycle.stopped());
    critical.advance(|lifecycle| lifecycle.released());
    until_ended(&scene).await;
    assert!(began.elapsed() < seconds(22), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn next_group_ends_as_soon_as_the_one_before_is_gone() {
    let scene = Scene::started(20, 10);
    let (normal, critical) = (scene.pod("normal", 7), scene.pod("critical", SYSTEM_CRITICAL));
    tokio::task::yield_now().await;
    let began = Instant::now();
    scene.announced.send_replace(true);
    asked(&normal, began).await;
    tokio::time::sleep(seconds(3)).await;
    assert_eq!(critical.stage(), Stage::Syncing);
    normal.advance(|lifecycle| lifecycle.stopped());
    normal.advance(|lifecycle| lifecycle.released());
    let at = asked(&critical, began).await;
    assert!((seconds(3)..seconds(4)).contains(&at), "{at:?}");
}

// The reference, row 39.
#[tokio::test(start_paused = true)]
async fn group_without_time_is_ended_but_not_waited_for() {
    let scene = Scene::started(20, 0);
    let critical = scene.pod("critical", SYSTEM_CRITICAL);
    tokio::task::yield_now().await;
    scene.announced.send_replace(true);
    asked(&critical, Instant::now()).await;
    assert_eq!(critical.lifecycle().grace(), Some(seconds(1)));
    until_ended(&scene).await;
    assert_eq!(critical.stage(), Stage::Terminating);
}

#[tokio::test]
async fn process_that_outlives_its_group_is_killed_in_its_cgroup() {
    let scene = Scene::started(1, 0);
    let pod = scene.pod("stubborn", 0);
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let group = scene.dir.path().join(format!("pids/kubepods/besteffort/pod{}", pod.pod().uid));
    std::fs::create_dir_all(&group).unwrap();
    std::fs::write(group.join("cgroup.procs"), format!("{}\n", child.id())).unwrap();
    let began = Instant::now();
    scene.announced.send_replace(true);
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert!(began.elapsed() >= seconds(1), "it had the time of its group");
}

/// Waits until the sequence is over and recorded.
async fn until_ended(scene: &Scene) {
    while !scene.exposed().lines().any(|line| {
        line.strip_prefix("kubelet_graceful_shutdown_end_time_seconds ")
            .is_some_and(|value| value.parse::<f64>().unwrap() > 0.0)
    }) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn events_and_metrics_show_a_shutdown_and_its_cancellation() {
    let mut scene = Scene::started(20, 10);
    tokio::task::yield_now().await;
    scene.announced.send_replace(true);
    until_ended(&scene).await;
    assert!(*scene.state.borrow());
    scene.announced.send_replace(false);
    scene.state.wait_for(|down| !down).await.unwrap();
    let mut texts = Vec::new();
    while let Ok(event) = scene.events.try_recv() {
        texts.push(event.message);
    }
    assert_eq!(texts, [shutdown::DETECTED, shutdown::CANCELLED]);
    assert!(scene.exposed().contains("kubelet_graceful_shutdown_start_time_seconds "));
}

#[tokio::test]
async fn unreadable_record_of_a_shutdown_is_ignored_and_an_earlier_one_is_reported() {
    for (text, want) in [
        (
            &br#"{"startTime":"2026-03-01T10:00:00Z","endTime":"2026-03-01T10:00:20Z"}"#[..],
            1_772_359_220.0,
        ),
        (b"{\"startTime\":", 0.0),
        (b"\xff\xff", 0.0),
        (&[b' '; 100_000], 0.0),
    ] {
        let (scene, dependencies) = Scene::new();
        std::fs::write(scene.dir.path().join(FILE), text).unwrap();
        let settings = ShutdownSettings {
            groups: ShutdownGroups::with_critical(seconds(2), seconds(1)).unwrap(),
            records: true,
            announcements: Announcements::Simulated(scene.announced.subscribe()),
        };
        ShutdownManager::new(settings, dependencies).restore_record().await;
        let text = scene.exposed();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("kubelet_graceful_shutdown_end_time_seconds "));
        assert!((line.unwrap().parse::<f64>().unwrap() - want).abs() < 1.0, "{line:?}");
    }
}
