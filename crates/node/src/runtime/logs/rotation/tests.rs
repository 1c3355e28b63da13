use std::fs;
use std::io::Read;
use std::time::Duration;

use podwright_core::ids::SandboxId;
use podwright_fake_runtime::{Fake, FakeImage, FakeOptions, Fault, Rpc, Rule, Script};
use podwright_proto::cri as wire;

use super::*;
use crate::telemetry::metrics::Metrics;

struct Scene {
    fake: Fake,
    rotation: Rotation,
    log: Log,
    _dir: tempfile::TempDir,
}

/// A running container, and its log.
async fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(FakeOptions {
        writes_below: Some(dir.path().into()),
        ..FakeOptions::default()
    });
    fake.images().add(FakeImage::new("app")).unwrap();
    fake.script("app", Script::forever());
    let runtime = fake.client();
    let metadata = wire::PodSandboxMetadata {
        name: "web".into(),
        namespace: "n".into(),
        uid: "u".into(),
        attempt: 0,
    };
    let sandbox = wire::PodSandboxConfig {
        metadata: Some(metadata),
        log_directory: dir.path().to_string_lossy().into_owned(),
        ..Default::default()
    };
    let sandbox_id: SandboxId = runtime.run_sandbox(sandbox.clone(), "").await.unwrap();
    let config = wire::ContainerConfig {
        metadata: Some(wire::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(wire::ImageSpec { image: "app".into(), ..Default::default() }),
        log_path: "app/0.log".into(),
        ..Default::default()
    };
    let id = runtime.create_container(&sandbox_id, config, sandbox).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let metrics = Arc::new(Metrics::default());
    let rotation = Rotation {
        pleg: Pleg::new(runtime.clone(), clock.clone(), metrics, Default::default()),
        runtime,
        clock,
        pod_index: Arc::default(),
        policy: RotationPolicy { max_files: 3, ..RotationPolicy::default() },
        dirs: Arc::new(LogDirs::new(dir.path())),
    };
    let log = Log { id, path: dir.path().join("app/0.log") };
    Scene { fake, rotation, log, _dir: dir }
}

impl Scene {
    async fn look(&self) -> Result<(), String> {
        let need = need(&self.rotation.dirs, &self.log, 10).map_err(|error| chain(&error))?;
        self.rotation.act(&self.log, need).await.map_err(|error| chain(&error))
    }

    fn write(&self, text: &str) {
        fs::write(&self.log.path, text).unwrap();
    }

    fn files(&self) -> Vec<String> {
        let dir = self.log.path.parent().unwrap().read_dir().unwrap();
        let mut names: Vec<String> =
            dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[tokio::test(start_paused = true)]
async fn long_log_is_rotated_older_ones_are_compressed_and_the_oldest_removed() {
    let scene = scene().await;
    scene.write("short");
    scene.look().await.unwrap();
    assert_eq!(scene.files(), ["0.log"]);
    for text in ["first, and long", "second, and long", "third, and long"] {
        scene.write(text);
        scene.look().await.unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
    }
    let names = ["0.log", "0.log.20260101-000010.gz", "0.log.20260101-000020"];
    assert_eq!(scene.files(), names);
    assert_eq!(fs::read_to_string(&scene.log.path).unwrap(), "", "the runtime opened a new one");
    let compressed = File::open(scene.log.path.with_file_name(names[1])).unwrap();
    let mut text = String::new();
    flate2::read::GzDecoder::new(compressed).read_to_string(&mut text).unwrap();
    assert_eq!(text, "second, and long");
}

#[tokio::test(start_paused = true)]
async fn log_that_the_runtime_cannot_reopen_gets_its_name_back() {
    let scene = scene().await;
    scene.write("long enough for it");
    let refusal = Fault::Error(tonic::Code::Internal, "no".into());
    scene.fake.fail(Rule::on(Rpc::ReopenContainerLog, refusal).first(1));
    assert!(scene.look().await.is_err());
    assert_eq!(scene.files(), ["0.log"]);
    assert_eq!(fs::read_to_string(&scene.log.path).unwrap(), "long enough for it");
    scene.look().await.unwrap();
    assert_eq!(scene.files().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn two_rotations_in_one_second_lose_nothing() {
    let scene = scene().await;
    for text in ["first, and long", "second, and long"] {
        scene.write(text);
        scene.look().await.unwrap();
    }
    assert_eq!(scene.files(), ["0.log", "0.log.20260101-000000"]);
    assert_eq!(fs::read_to_string(&scene.log.path).unwrap(), "second, and long");
}

#[tokio::test(start_paused = true)]
async fn log_that_was_moved_away_is_reopened() {
    let scene = scene().await;
    fs::remove_file(&scene.log.path).unwrap();
    scene.look().await.unwrap();
    assert_eq!(scene.files(), ["0.log"]);
}

#[tokio::test(start_paused = true)]
async fn compression_does_not_follow_links() {
    use std::os::unix::fs::symlink;
    let scene = scene().await;
    let own = scene.log.path.parent().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    // A pod with a writable hostPath creates a link named like a rotated log, and one at the path
    // that compression writes to.
    symlink(&secret, own.join("0.log.20250101-000000")).unwrap();
    fs::write(own.join("0.log.20250101-000001"), "old").unwrap();
    let part = own.join("0.log.20250101-000001.tmp");
    symlink(&secret, &part).unwrap();
    scene.write("long enough for it");
    scene.look().await.unwrap();
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    let names =
        ["0.log", "0.log.20250101-000000", "0.log.20250101-000001.gz", "0.log.20260101-000000"];
    assert_eq!(scene.files(), names, "the link is kept and not compressed");
}

#[tokio::test(start_paused = true)]
async fn log_that_is_a_link_is_not_rotated_and_its_target_stays() {
    let scene = scene().await;
    let outside = tempfile::tempdir().unwrap();
    // Below the log directory as well: a link to the log of another pod.
    let own = scene.log.path.parent().unwrap();
    let other = own.parent().unwrap().join("other.log");
    for target in [outside.path().join("secret"), other] {
        fs::write(&target, "long enough for it").unwrap();
        fs::remove_file(&scene.log.path).unwrap();
        std::os::unix::fs::symlink(&target, &scene.log.path).unwrap();
        scene.look().await.unwrap();
        assert_eq!(scene.files(), ["0.log"]);
        assert!(scene.log.path.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "long enough for it");
    }
}

#[tokio::test(start_paused = true)]
async fn log_in_linked_directory_outside_log_directory_is_not_rotated() {
    let scene = scene().await;
    let own = scene.log.path.parent().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("0.log"), "long enough for it").unwrap();
    fs::remove_dir_all(own).unwrap();
    std::os::unix::fs::symlink(outside.path(), own).unwrap();
    scene.look().await.unwrap_err();
    assert_eq!(scene.files(), ["0.log"]);
}

#[tokio::test(start_paused = true)]
async fn compressed_log_keeps_its_modification_time() {
    let scene = scene().await;
    let old = scene.log.path.with_file_name("0.log.20250101-000000");
    fs::write(&old, "old").unwrap();
    let modified = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    File::options().append(true).open(&old).unwrap().set_modified(modified).unwrap();
    scene.write("long enough for it");
    scene.look().await.unwrap();
    let compressed = scene.log.path.with_file_name("0.log.20250101-000000.gz");
    assert_eq!(fs::metadata(compressed).unwrap().modified().unwrap(), modified);
}

#[tokio::test(start_paused = true)]
async fn logs_are_checked_in_slices_and_each_once_in_an_interval() {
    let scene = scene().await;
    // Missing logs: each check is one call to reopen.
    let missing = |_| Log { path: "/nonexistent/log".into(), ..scene.log.clone() };
    for (logs, slices) in [(0, 1), (1, 1), (50, 1), (51, 2), (10_000, SLICES)] {
        assert_eq!(slices_of(logs), slices, "{logs} logs");
    }
    let count = || scene.fake.count(Rpc::ReopenContainerLog);
    let before = count();
    let logs: Vec<Log> = (0..95).map(missing).collect();
    let began = tokio::time::Instant::now();
    let second = Duration::from_secs(1);
    scene.rotation.check_in_slices(logs, SLICES, second, 10).await;
    assert_eq!(count() - before, 95);
    assert_eq!(began.elapsed(), 9 * second, "a pause between any two slices");
}
