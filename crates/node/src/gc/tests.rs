use std::fs;

use podwright_core::gc::ContainerPolicy;
use podwright_core::ids::{ContainerId, SandboxId};
use podwright_cri::fake::{Fake, FakeImage, FakeOptions, Fault, Rpc, Rule, Script};
use podwright_proto::cri as wire;

use super::*;

const IMAGE: &str = "localhost/app:1";

struct Scene {
    fake: Fake,
    gc: Gc,
    events: tokio::sync::mpsc::Receiver<crate::events::Occurrence>,
    folder: tempfile::TempDir,
}

const HIGH: ImagePolicy =
    ImagePolicy { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: None };

fn nearly_full(_: &Path) -> Result<Disk, MachineError> {
    Ok(Disk { capacity: 1 << 30, available: (1 << 30) / 10 })
}

/// A runtime with nothing in it, and clean-up for it that knows of no pod.
fn scene() -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::start(FakeOptions {
        writes_below: Some(folder.path().into()),
        ..FakeOptions::default()
    });
    fake.images().add(FakeImage::new(IMAGE)).unwrap();
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let metrics = Arc::new(Metrics::default());
    let (recorder, events) = Recorder::new(clock.clone());
    let means = crate::images::Means {
        runtime: fake.client(),
        clock: clock.clone(),
        events: recorder.clone(),
        metrics: metrics.clone(),
        secrets: Arc::new(crate::objects::Objects::new(None, "node-1".into())),
        accounts: Arc::new(crate::images::ApiAccounts(None)),
    };
    let gc = Gc {
        pulled: Images::new(folder.path(), Default::default(), means).unwrap(),
        runtime: fake.client(),
        pleg: Pleg::new(fake.client(), clock.clone(), metrics.clone(), Default::default()),
        events: recorder,
        metrics,
        directory: Arc::default(),
        place: Place {
            node_name: "node-1".into(),
            pod_logs: folder.path().join("logs"),
            log_links: folder.path().join("links"),
        },
        settings: Settings {
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
    Scene { fake, gc, events, folder }
}

impl Scene {
    /// Everything was heard: a pod nobody knows is over.
    fn all_heard(self) -> Self {
        self.gc.directory.set_sources_ready(true);
        self.gc.directory.set_all_known();
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
            log_directory: self.log_folder(pod).to_string_lossy().into_owned(),
            ..Default::default()
        };
        (self.gc.runtime.run_sandbox(config.clone(), "").await.unwrap(), config)
    }

    fn log_folder(&self, pod: &str) -> PathBuf {
        self.gc.place.pod_logs.join(format!("n_{pod}_uid-{pod}"))
    }

    /// A container that ended, with its log and the link to it.
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
        self.fake.script(IMAGE, Script::exits(1, Duration::from_secs(1)).says("last words"));
        let runtime = &self.gc.runtime;
        let id = runtime.create_container(sandbox, config, sandbox_config.clone()).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let log = self.log_folder(&pod).join(format!("app/{attempt}.log"));
        assert!(log.exists(), "{}", log.display());
        fs::create_dir_all(&self.gc.place.log_links).unwrap();
        let link = self.gc.place.log_links.join(format!("{pod}_n_app-{id}.log"));
        std::os::unix::fs::symlink(&log, link).unwrap();
        id
    }

    fn left(&self) -> (usize, usize) {
        let snapshot = self.fake.snapshot();
        (snapshot.containers.len(), snapshot.sandboxes.len())
    }

    fn links(&self) -> usize {
        fs::read_dir(&self.gc.place.log_links).map_or(0, Iterator::count)
    }

    fn reasons(&mut self) -> Vec<std::borrow::Cow<'static, str>> {
        std::iter::from_fn(|| self.events.try_recv().ok()).map(|event| event.reason).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn clean_up_waits_for_the_end_of_a_group_but_not_for_ever() {
    let Scene { gc, .. } = scene();
    let ends = async |every: u64, count: u32| {
        for _ in 0..count {
            tokio::time::sleep(Duration::from_millis(every)).await;
            gc.pleg.leftovers().notify_one();
        }
        std::future::pending::<()>().await;
    };
    for (what, every, count, seconds) in [
        ("nothing ends", 0, 0, 60.0),
        ("one ends after two seconds", 2_000, 1, 3.0),
        ("ten end one after the other", 500, 10, 6.0),
        ("the next ends when the group is over", 1_500, 2, 2.5),
        ("they never cease to end", 500, 1_000, 15.5),
    ] {
        let began = tokio::time::Instant::now();
        tokio::select! {
            () = ends(every, count) => unreachable!("it never returns"),
            () = gc.until_wanted() => {}
        }
        let waited = began.elapsed().as_secs_f64();
        assert!((waited - seconds).abs() < 0.1, "{what}: waited {waited} s, not {seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_living_pod_the_newest_dead_container_stays_with_its_log() {
    let scene = scene();
    let sandbox = scene.sandbox("web", 0).await;
    for attempt in 0..3 {
        scene.dead(&sandbox, attempt).await;
    }
    fs::write(scene.log_folder("web").join("app/0.log.20260101-000000.gz"), "").unwrap();
    scene.gc.collect(Reach::Surplus).await.unwrap();
    assert_eq!((scene.left(), scene.links()), ((1, 1), 1));
    let logs: Vec<_> = fs::read_dir(scene.log_folder("web").join("app")).unwrap().collect();
    assert_eq!(logs.len(), 1, "and what rotation made of the others is gone: {logs:?}");
    assert_eq!(scene.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn pods_of_another_node_in_a_shared_runtime_are_neither_seen_nor_removed() {
    struct Nobody;
    impl crate::pleg::Listener for Nobody {
        fn poke(&self, _: &PodUid, _: &[podwright_core::observed::PodEvent]) {}
    }
    let mut scene = scene().all_heard();
    let sandbox = scene.sandbox("web", 0).await;
    scene.dead(&sandbox, 0).await;
    scene.sandbox("runs", 0).await;
    scene.gc.runtime.stop_sandbox(&sandbox.0).await.unwrap();
    let shared = scene.fake.client().shared_with_others(Arc::new(|_| false));
    let (clock, metrics) = (scene.gc.clock.clone(), scene.gc.metrics.clone());
    let pleg = Pleg::new(shared.clone(), clock, metrics, ContainerPolicy::default());
    pleg.relist(&Nobody).await.unwrap();
    assert!(pleg.runtime_pods().is_empty(), "what is not seen is not ended as an orphan");
    let alone = std::mem::replace(&mut scene.gc.runtime, shared);
    scene.gc.collect(Reach::EverythingDead).await.unwrap();
    assert_eq!(scene.left(), (1, 2));
    scene.gc.runtime = alone;
    scene.gc.collect(Reach::Surplus).await.unwrap();
    assert_eq!(scene.left(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_that_is_gone_nothing_stays_once_every_source_was_heard() {
    let scene = scene();
    let sandbox = scene.sandbox("web", 0).await;
    scene.dead(&sandbox, 0).await;
    scene.gc.runtime.stop_sandbox(&sandbox.0).await.unwrap();
    scene.gc.collect(Reach::Surplus).await.unwrap();
    assert_eq!(scene.left(), (1, 1), "nobody was heard yet");
    let scene = scene.all_heard();
    scene.gc.collect(Reach::Surplus).await.unwrap();
    assert_eq!((scene.left(), scene.links()), ((0, 0), 0));
    assert!(!scene.log_folder("web").exists());
    assert_eq!(scene.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_runs_is_never_removed() {
    let scene = scene().all_heard();
    scene.sandbox("web", 0).await;
    scene.gc.collect(Reach::EverythingDead).await.unwrap();
    assert_eq!(scene.left(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn one_removal_that_fails_keeps_no_other_from_happening() {
    let scene = scene().all_heard();
    for pod in ["bad", "good"] {
        let sandbox = scene.sandbox(pod, 0).await;
        scene.dead(&sandbox, 0).await;
        scene.gc.runtime.stop_sandbox(&sandbox.0).await.unwrap();
    }
    let refusal = Fault::Error(tonic::Code::Internal, "device busy".into());
    scene.fake.fail(Rule::on(Rpc::RemoveContainer, refusal).pod("bad"));
    let error = scene.gc.collect(Reach::Surplus).await.unwrap_err();
    assert!(chain(&error).contains("device busy"), "{}", chain(&error));
    let left = scene.fake.snapshot();
    assert!(left.containers_of("good").next().is_none());
    assert!(left.containers_of("bad").next().is_some());
}

#[tokio::test(start_paused = true)]
async fn links_that_are_not_ours_or_of_a_living_container_stay() {
    let scene = scene().all_heard();
    let links = &scene.gc.place.log_links;
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
    let gone = scene.gc.place.pod_logs.join("n_web_uid-web/app/0.log");
    for (name, target) in [
        (format!("web_n_app-{id}.log"), gone.clone()),
        ("web_n_app-0123.log".to_owned(), gone.clone()),
        ("cut-off".to_owned(), gone),
        ("other_n_app-4567.log".to_owned(), scene.folder.path().join("elsewhere/0.log")),
    ] {
        std::os::unix::fs::symlink(target, links.join(name)).unwrap();
    }
    scene.gc.collect(Reach::Surplus).await.unwrap();
    let mut left: Vec<_> = fs::read_dir(links)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["other_n_app-4567.log".to_owned(), format!("web_n_app-{id}.log")]);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_costs_unused_images_and_says_so_when_that_is_not_enough() {
    let mut scene = scene();
    let sandbox = scene.sandbox("web", 0).await;
    scene.dead(&sandbox, 0).await;
    let images = scene.fake.images();
    images.add(FakeImage::new("localhost/podwright/pause:1")).unwrap();
    images.add(FakeImage::new("localhost/pinned:1").pinned()).unwrap();
    images.add(FakeImage::new("localhost/unused:1").size(60 << 20)).unwrap();
    scene.gc.collect_images().await.unwrap();
    assert_eq!(scene.gc.runtime.list_images().await.unwrap().len(), 4, "all are too young");
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
async fn an_image_that_cannot_be_removed_leaves_it_to_the_next_one() {
    let mut scene = scene();
    let images = scene.fake.images();
    // A tenth of 1 GiB is free and a fifth should be: any two of these are enough.
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
    assert_eq!(scene.reasons(), Vec::<&str>::new(), "enough was freed all the same");
    let left = scene.gc.runtime.list_images().await.unwrap();
    assert_eq!(left.len(), 3, "two that could not go, and the one that did not have to: {left:?}");
}

#[tokio::test(start_paused = true)]
async fn everything_unused_goes_when_asked_for() {
    let scene = scene();
    scene.fake.images().add(FakeImage::new("localhost/unused:1").size(7)).unwrap();
    let reclaimed = scene.gc.reclaim_images().await.unwrap();
    assert_eq!(reclaimed, Reclaimed { images: 2, bytes: 7 + (1 << 20) });
}

#[tokio::test(start_paused = true)]
async fn a_disk_without_capacity_is_an_event_and_two_failures_in_a_row_are_another() {
    let mut scene = scene();
    scene.gc.settings.disk = |_| Ok(Disk { capacity: 0, available: 0 });
    let (gc, stop) = (Arc::new(scene.gc), CancellationToken::new());
    let task = tokio::spawn(gc.clone().tidy_images(stop.clone()));
    tokio::time::sleep(IMAGE_ROUND + Duration::from_secs(1)).await;
    stop.cancel();
    task.await.unwrap();
    let reasons: Vec<_> =
        std::iter::from_fn(|| scene.events.try_recv().ok()).map(|event| event.reason).collect();
    assert_eq!(reasons, ["InvalidDiskCapacity", "InvalidDiskCapacity", "ImageGCFailed"]);
}
