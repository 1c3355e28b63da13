use std::fs;

use podwright_core::gc::ContainerPolicy;
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_fake_runtime::{Fake, FakeImage, FakeOptions, Fault, Rpc, Rule, Script};
use podwright_proto::cri as wire;

use super::*;

const IMAGE: &str = "localhost/app:1";

struct Scene {
    fake: Fake,
    gc: Gc,
    events: tokio::sync::mpsc::Receiver<crate::report::events::Occurrence>,
    dir: tempfile::TempDir,
}

const HIGH: ImagePolicy =
    ImagePolicy { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: None };

fn nearly_full(_: &Path) -> Result<Disk, MachineError> {
    Ok(Disk { capacity: 1 << 30, available: (1 << 30) / 10 })
}

/// An empty runtime, and garbage collection with an empty pod index.
fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(FakeOptions {
        writes_below: Some(dir.path().into()),
        ..FakeOptions::default()
    });
    fake.images().add(FakeImage::new(IMAGE)).unwrap();
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let metrics = Arc::new(Metrics::default());
    let (recorder, events) = Recorder::new(clock.clone());
    let dependencies = crate::runtime::images::ImageDependencies {
        runtime: fake.client(),
        clock: clock.clone(),
        events: recorder.clone(),
        metrics: metrics.clone(),
        secrets: Arc::new(crate::resources::objects::Objects::new(None, "node-1".into())),
        accounts: Arc::new(crate::runtime::images::ApiAccounts(None)),
    };
    let gc = Gc {
        pulled: Images::new(dir.path(), Default::default(), dependencies).unwrap(),
        runtime: fake.client(),
        pleg: Pleg::new(fake.client(), clock.clone(), metrics.clone(), Default::default()),
        events: recorder,
        metrics,
        pod_index: Arc::default(),
        locations: LogLocations {
            node_name: "node-1".into(),
            pod_logs: dir.path().join("logs"),
            log_links: dir.path().join("links"),
        },
        settings: GcSettings {
            containers: ContainerPolicy::default(),
            images: HIGH,
            kept_images: vec!["localhost/podwright/pause:1".into()],
            disk: nearly_full,
        },
        images: Mutex::default(),
        began: clock.now().mono,
        round: Mutex::default(),
        clock,
    };
    Scene { fake, gc, events, dir }
}

impl Scene {
    /// All sources are ready: an unknown pod is an orphan.
    fn with_sources_ready(self) -> Self {
        self.gc.pod_index.set_sources_ready(true);
        self.gc.pod_index.set_all_known();
        self
    }

    fn labels(&self, pod: &str) -> [(String, String); 3] {
        [
            ("io.kubernetes.pod.name".to_owned(), pod.to_owned()),
            ("io.kubernetes.pod.namespace".to_owned(), "n".to_owned()),
            ("io.kubernetes.pod.uid".to_owned(), format!("uid-{pod}")),
        ]
    }

    async fn sandbox(&self, pod: &str, attempt: u32) -> (SandboxId, wire::PodSandboxConfig) {
        let metadata = wire::PodSandboxMetadata {
            name: pod.to_owned(),
            namespace: "n".to_owned(),
            uid: format!("uid-{pod}"),
            attempt,
        };
        let config = wire::PodSandboxConfig {
            metadata: Some(metadata),
            labels: self.labels(pod).into(),
            log_directory: self.log_dir(pod).to_string_lossy().into_owned(),
            ..Default::default()
        };
        (self.gc.runtime.run_sandbox(config.clone(), "").await.unwrap(), config)
    }

    fn log_dir(&self, pod: &str) -> PathBuf {
        self.gc.locations.pod_logs.join(format!("n_{pod}_uid-{pod}"))
    }

    /// An exited container, with its log and the link to it.
    async fn dead(
        &self,
        (sandbox, sandbox_config): &(SandboxId, wire::PodSandboxConfig),
        attempt: u32,
    ) -> ContainerId {
        let pod = sandbox_config.metadata.clone().unwrap().name;
        let config = wire::ContainerConfig {
            metadata: Some(wire::ContainerMetadata { name: "app".into(), attempt }),
            image: Some(wire::ImageSpec { image: IMAGE.into(), ..Default::default() }),
            labels: self.labels(&pod).into(),
            log_path: format!("app/{attempt}.log"),
            ..Default::default()
        };
        self.fake.script(IMAGE, Script::exits(1, Duration::from_secs(1)).prints("last words"));
        let runtime = &self.gc.runtime;
        let id = runtime.create_container(sandbox, config, sandbox_config.clone()).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let log = self.log_dir(&pod).join(format!("app/{attempt}.log"));
        assert!(log.exists(), "{}", log.display());
        fs::create_dir_all(&self.gc.locations.log_links).unwrap();
        let link = self.gc.locations.log_links.join(format!("{pod}_n_app-{id}.log"));
        std::os::unix::fs::symlink(&log, link).unwrap();
        id
    }

    fn left(&self) -> (usize, usize) {
        let snapshot = self.fake.snapshot();
        (snapshot.containers.len(), snapshot.sandboxes.len())
    }

    fn links(&self) -> usize {
        fs::read_dir(&self.gc.locations.log_links).map_or(0, Iterator::count)
    }

    fn reasons(&mut self) -> Vec<std::borrow::Cow<'static, str>> {
        std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.reason).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn collection_waits_for_the_end_of_a_group_with_a_limit() {
    let Scene { gc, .. } = scene();
    let ends = async |every: u64, count: u32| {
        for _ in 0..count {
            tokio::time::sleep(Duration::from_millis(every)).await;
            gc.pleg.gc_wakeup().notify_one();
        }
        std::future::pending::<()>().await;
    };
    for (what, every, count, seconds) in [
        ("nothing exits", 0, 0, 60.0),
        ("one exits after two seconds", 2_000, 1, 3.0),
        ("ten exit one after the other", 500, 10, 6.0),
        ("the next one exits after the group", 1_500, 2, 2.5),
        ("exits never stop", 500, 1_000, 15.5),
    ] {
        let began = tokio::time::Instant::now();
        tokio::select! {
            () = ends(every, count) => unreachable!("it never returns"),
            _ = gc.wait_for_round() => {}
        }
        let waited = began.elapsed().as_secs_f64();
        assert!((waited - seconds).abs() < 0.1, "{what}: waited {waited} s, not {seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn active_pod_keeps_its_newest_dead_container_and_log() {
    let scene = scene();
    let sandbox = scene.sandbox("web", 0).await;
    for attempt in 0..3 {
        scene.dead(&sandbox, attempt).await;
    }
    fs::write(scene.log_dir("web").join("app/0.log.20260101-000000.gz"), "").unwrap();
    scene.gc.collect(GcScope::Surplus).await.unwrap();
    assert_eq!((scene.left(), scene.links()), ((1, 1), 1));
    let logs: Vec<_> = fs::read_dir(scene.log_dir("web").join("app")).unwrap().collect();
    assert_eq!(logs.len(), 1, "rotated logs of the others are removed: {logs:?}");
    assert_eq!(scene.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn pods_of_another_node_in_a_shared_runtime_are_neither_listed_nor_removed() {
    struct IgnoreEvents;
    impl crate::runtime::pleg::Listener for IgnoreEvents {
        fn notify(&self, _: &PodUid, _: &[podwright_core::observed::PodEvent]) {}
    }
    let mut scene = scene().with_sources_ready();
    let sandbox = scene.sandbox("web", 0).await;
    scene.dead(&sandbox, 0).await;
    scene.sandbox("runs", 0).await;
    scene.gc.runtime.stop_sandbox(&sandbox.0).await.unwrap();
    let shared = scene.fake.client().shared_with_others(Arc::new(|_| false));
    let (clock, metrics) = (scene.gc.clock.clone(), scene.gc.metrics.clone());
    let pleg = Pleg::new(shared.clone(), clock, metrics, ContainerPolicy::default());
    pleg.relist(&IgnoreEvents).await.unwrap();
    assert!(pleg.runtime_pods().is_empty(), "unlisted pods are not terminated as orphans");
    let alone = std::mem::replace(&mut scene.gc.runtime, shared);
    scene.gc.collect(GcScope::EverythingDead).await.unwrap();
    assert_eq!(scene.left(), (1, 2));
    scene.gc.runtime = alone;
    scene.gc.collect(GcScope::Surplus).await.unwrap();
    assert_eq!(scene.left(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn nothing_of_a_deleted_pod_stays_once_all_sources_are_ready() {
    let scene = scene();
    let sandbox = scene.sandbox("web", 0).await;
    scene.dead(&sandbox, 0).await;
    scene.gc.runtime.stop_sandbox(&sandbox.0).await.unwrap();
    scene.gc.collect(GcScope::Surplus).await.unwrap();
    assert_eq!(scene.left(), (1, 1), "no source is ready yet");
    let scene = scene.with_sources_ready();
    scene.gc.collect(GcScope::Surplus).await.unwrap();
    assert_eq!((scene.left(), scene.links()), ((0, 0), 0));
    assert!(!scene.log_dir("web").exists());
    assert_eq!(scene.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn running_sandbox_is_never_removed() {
    let scene = scene().with_sources_ready();
    scene.sandbox("web", 0).await;
    scene.gc.collect(GcScope::EverythingDead).await.unwrap();
    assert_eq!(scene.left(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn failed_removal_does_not_block_others() {
    let scene = scene().with_sources_ready();
    for pod in ["bad", "good"] {
        let sandbox = scene.sandbox(pod, 0).await;
        scene.dead(&sandbox, 0).await;
        scene.gc.runtime.stop_sandbox(&sandbox.0).await.unwrap();
    }
    let refusal = Fault::Error(tonic::Code::Internal, "device busy".into());
    scene.fake.fail(Rule::on(Rpc::RemoveContainer, refusal).pod("bad"));
    let error = scene.gc.collect(GcScope::Surplus).await.unwrap_err();
    assert!(chain(&error).contains("device busy"), "{}", chain(&error));
    let left = scene.fake.snapshot();
    assert!(left.containers_of("good").next().is_none());
    assert!(left.containers_of("bad").next().is_some());
}

#[tokio::test(start_paused = true)]
async fn foreign_links_and_links_of_running_containers_stay() {
    let scene = scene().with_sources_ready();
    let links = &scene.gc.locations.log_links;
    fs::create_dir_all(links).unwrap();
    let sandbox = scene.sandbox("web", 0).await;
    scene.fake.script(IMAGE, Script::forever());
    let config = wire::ContainerConfig {
        metadata: Some(wire::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(wire::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        labels: scene.labels("web").into(),
        ..Default::default()
    };
    let id = scene.gc.runtime.create_container(&sandbox.0, config, sandbox.1).await.unwrap();
    scene.gc.runtime.start_container(&id).await.unwrap();
    let gone = scene.gc.locations.pod_logs.join("n_web_uid-web/app/0.log");
    for (name, target) in [
        (format!("web_n_app-{id}.log"), gone.clone()),
        ("web_n_app-0123.log".to_owned(), gone.clone()),
        ("cut-off".to_owned(), gone),
        ("other_n_app-4567.log".to_owned(), scene.dir.path().join("elsewhere/0.log")),
    ] {
        std::os::unix::fs::symlink(target, links.join(name)).unwrap();
    }
    scene.gc.collect(GcScope::Surplus).await.unwrap();
    let mut left: Vec<_> = fs::read_dir(links)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["other_n_app-4567.log".to_owned(), format!("web_n_app-{id}.log")]);
}

#[tokio::test(start_paused = true)]
async fn periodic_round_lists_nothing_while_everything_runs() {
    let scene = scene().with_sources_ready();
    let gc = &scene.gc;
    let relist = || async { gc.pleg.relist(&*gc.pod_index).await.unwrap() };
    let sandbox = scene.sandbox("web", 0).await;
    scene.fake.script(IMAGE, Script::forever());
    let config = wire::ContainerConfig {
        metadata: Some(wire::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(wire::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        labels: scene.labels("web").into(),
        ..Default::default()
    };
    let created = gc.runtime.create_container(&sandbox.0, config, sandbox.1.clone()).await;
    gc.runtime.start_container(&created.unwrap()).await.unwrap();
    relist().await;
    let lists = scene.fake.count(Rpc::ListContainers);
    assert!(!gc.may_have_leftovers().await);
    assert_eq!(scene.fake.count(Rpc::ListContainers), lists);

    fs::create_dir_all(&gc.locations.log_links).unwrap();
    let link = gc.locations.log_links.join("web_n_app-0123.log");
    std::os::unix::fs::symlink(gc.locations.pod_logs.join("gone"), &link).unwrap();
    assert!(gc.may_have_leftovers().await, "a dangling link");
    fs::remove_file(&link).unwrap();
    fs::create_dir_all(gc.locations.pod_logs.join("n_other_uid-other")).unwrap();
    assert!(gc.may_have_leftovers().await, "logs of an unknown pod");
    fs::remove_dir(gc.locations.pod_logs.join("n_other_uid-other")).unwrap();
    assert!(!gc.may_have_leftovers().await);
    scene.dead(&sandbox, 1).await;
    relist().await;
    assert!(gc.may_have_leftovers().await, "a dead container");
}

#[tokio::test(start_paused = true)]
async fn full_disk_removes_unused_images_and_reports_if_not_enough_is_freed() {
    let mut scene = scene();
    let sandbox = scene.sandbox("web", 0).await;
    scene.dead(&sandbox, 0).await;
    let images = scene.fake.images();
    images.add(FakeImage::new("localhost/podwright/pause:1")).unwrap();
    images.add(FakeImage::new("localhost/pinned:1").pinned()).unwrap();
    images.add(FakeImage::new("localhost/unused:1").size(60 << 20)).unwrap();
    scene.gc.collect_images().await.unwrap();
    assert_eq!(scene.gc.runtime.list_images().await.unwrap().len(), 4, "all below the minimum age");
    assert_eq!(scene.reasons(), ["FreeDiskSpaceFailed"]);
    tokio::time::sleep(Duration::from_secs(300)).await;
    scene.gc.collect_images().await.unwrap();
    let tags = |image: &cri::Image| image.tags.concat();
    let mut left: Vec<String> =
        scene.gc.runtime.list_images().await.unwrap().iter().map(tags).collect();
    left.sort();
    assert_eq!(left, [IMAGE, "localhost/pinned:1", "localhost/podwright/pause:1"]);
    assert_eq!(scene.reasons(), ["FreeDiskSpaceFailed"], "60 MiB of the 100 or so");
}

#[tokio::test(start_paused = true)]
async fn image_that_cannot_be_removed_is_skipped() {
    let mut scene = scene();
    let images = scene.fake.images();
    // A tenth of 1 GiB is free and a fifth is required: any two of these are enough.
    for name in ["a", "b", "c", "d"] {
        images.add(FakeImage::new(format!("localhost/{name}:1")).size(60 << 20)).unwrap();
        scene.gc.collect_images().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    scene.reasons();
    tokio::time::sleep(Duration::from_secs(300)).await;
    let refusal = Fault::Error(tonic::Code::Internal, "image is being used".into());
    scene.fake.fail(Rule::on(Rpc::RemoveImage, refusal).first(2));
    let error = scene.gc.collect_images().await.unwrap_err();
    assert!(chain(&error).contains("image is being used"), "{}", chain(&error));
    assert_eq!(scene.reasons(), Vec::<&str>::new(), "enough was freed");
    let left = scene.gc.runtime.list_images().await.unwrap();
    assert_eq!(left.len(), 3, "two that failed, and one that was not needed: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn reclaim_removes_every_unused_image_that_has_its_minimum_age() {
    let scene = scene();
    scene.fake.images().add(FakeImage::new("localhost/unused:1").size(7)).unwrap();
    let young = scene.gc.reclaim_images().await.unwrap();
    assert_eq!(young, Reclaimed::default(), "it may just have been pulled for a pod");
    tokio::time::sleep(Duration::from_secs(300)).await;
    let reclaimed = scene.gc.reclaim_images().await.unwrap();
    assert_eq!(reclaimed, Reclaimed { images: 2, bytes: 7 + (1 << 20) });
}

#[tokio::test(start_paused = true)]
async fn disk_without_capacity_and_repeated_failure_are_events() {
    let mut scene = scene();
    scene.gc.settings.disk = |_| Ok(Disk { capacity: 0, available: 0 });
    let (gc, stop) = (Arc::new(scene.gc), CancellationToken::new());
    let task = tokio::spawn(gc.clone().run_image_gc(stop.clone()));
    tokio::time::sleep(IMAGE_ROUND + Duration::from_secs(1)).await;
    stop.cancel();
    task.await.unwrap();
    let reasons: Vec<_> =
        std::iter::from_fn(|| scene.events.try_recv().ok()).map(|event| event.reason).collect();
    assert_eq!(reasons, ["InvalidDiskCapacity", "InvalidDiskCapacity", "ImageGCFailed"]);
}
