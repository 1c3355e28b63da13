use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1;
use podwright_core::builders::pod;
use podwright_core::config::Lookup;
use podwright_core::credential::{ObjectId, ServiceAccountView, providers};
use podwright_core::start_order::StartStep;
use podwright_fake_runtime::{
    About, Code, Fake, FakeImage, FakeOptions, Fault, Pull as Offer, Rpc, Rule,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::report::events::Occurrence;

const IMAGE: &str = "registry.io/team/app:1";

#[derive(Default)]
struct World {
    secrets: BTreeMap<String, v1::Secret>,
    account: bool,
}

impl Secrets for World {
    fn secret<'a>(&'a self, _: &'a Pod, name: &'a str) -> BoxFuture<'a, Lookup<Arc<v1::Secret>>> {
        let found = self.secrets.get(name).cloned().map(Arc::new);
        async move { found.map_or(Lookup::Missing, Lookup::Found) }.boxed()
    }
}

impl Accounts for World {
    fn account<'a>(
        &'a self,
        _: &'a Pod,
    ) -> BoxFuture<'a, Result<Option<(ObjectId, ServiceAccountView)>, String>> {
        let id = ObjectId { uid: "u".into(), namespace: "default".into(), name: "sa".into() };
        let account = self.account.then(|| (id, ServiceAccountView::default()));
        async move { Ok(account) }.boxed()
    }

    fn token<'a>(&'a self, _: &'a Pod, audience: &'a str) -> BoxFuture<'a, Result<String, String>> {
        let token = format!("token-for-{audience}");
        async move { Ok(token) }.boxed()
    }
}

struct Scene {
    fake: Fake,
    images: Arc<Images>,
    events: mpsc::Receiver<Occurrence>,
    dir: tempfile::TempDir,
}

fn scene(world: World, settings: ImageSettings) -> Scene {
    scene_in(tempfile::tempdir().unwrap(), world, settings)
}

fn scene_in(dir: tempfile::TempDir, world: World, settings: ImageSettings) -> Scene {
    let fake = Fake::start(FakeOptions::default());
    let offer = Offer::takes(Duration::from_secs(1)).needs("me", "secret");
    fake.images().offer(FakeImage::new(IMAGE), offer);
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let (recorder, events) = Recorder::new(clock.clone());
    let world = Arc::new(world);
    let dependencies = ImageDependencies {
        runtime: fake.client(),
        clock,
        events: recorder,
        metrics: Arc::default(),
        secrets: world.clone(),
        accounts: world,
    };
    let settings = ImageSettings { parallel: 5, ..settings };
    let images = Images::new(dir.path(), settings, dependencies).unwrap();
    Scene { fake, images, events, dir }
}

fn secret(name: &str, username: &str, password: &str) -> (String, v1::Secret) {
    let auths =
        json!({ "auths": { "registry.io": { "username": username, "password": password } } });
    let mut secret = v1::Secret {
        type_: Some("kubernetes.io/dockerconfigjson".into()),
        data: Some(
            [(".dockerconfigjson".into(), ByteString(auths.to_string().into_bytes()))].into(),
        ),
        ..Default::default()
    };
    secret.metadata.uid = Some(format!("uid-{name}"));
    (name.to_owned(), secret)
}

fn world(secrets: &[(&str, &str, &str)]) -> World {
    let secrets = secrets.iter().map(|(name, user, password)| secret(name, user, password));
    World { secrets: secrets.collect(), account: false }
}

fn wanting(name: &str, policy: &str, secrets: &[&str]) -> Arc<Pod> {
    let fields = json!({ "image": IMAGE, "imagePullPolicy": policy });
    let secrets: Vec<_> = secrets.iter().map(|name| json!({ "name": name })).collect();
    let pod = pod(name).container_with("app", fields);
    Arc::new(pod.edit(|pod| pod["spec"]["imagePullSecrets"] = json!(secrets)).build())
}

fn rank(pod: &Pod) -> Rank {
    Rank::of(pod, StartStep::PullImage)
}

impl Scene {
    /// For tests that cannot pause time.
    fn at_once(self) -> Self {
        let offer = Offer::takes(Duration::ZERO).needs("me", "secret");
        self.fake.images().offer(FakeImage::new(IMAGE), offer);
        self
    }

    async fn ensure(&self, pod: &Pod) -> Result<PresentImage, ImageUnavailable> {
        self.images.ensure(pod, (&pod.containers[0]).into(), rank(pod), None).await
    }

    fn event_texts(&mut self) -> Vec<(std::borrow::Cow<'static, str>, String)> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(|event| (event.reason, event.message)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn pull_secret_of_the_pod_gives_access_to_the_registry() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    scene.ensure(&wanting("web", "IfNotPresent", &["mine"])).await.unwrap();
    let event_texts = scene.event_texts();
    assert_eq!(event_texts[0].1, format!("Pulling image {IMAGE:?}"));
    assert!(
        event_texts[1].1.starts_with("Successfully pulled image \"registry.io/team/app:1\" in 1.0")
    );
    assert!(event_texts[1].1.ends_with("Image size: 1048576 bytes."));
}

#[tokio::test(start_paused = true)]
async fn every_matching_credential_is_tried_and_all_errors_are_reported() {
    let wrong = [("a", "me", "wrong"), ("b", "you", "secret"), ("c", "me", "secret")];
    let scene = scene(world(&wrong), ImageSettings::default());
    let refused = scene.ensure(&wanting("web", "Always", &["a", "b"])).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ErrImagePull);
    assert!(refused.message.contains("pull access denied") && !refused.message.contains("wrong"));
    assert_eq!(scene.fake.count(Rpc::PullImage), 2);
    scene.ensure(&wanting("web", "Always", &["a", "b", "c"])).await.unwrap();
    assert_eq!(scene.fake.count(Rpc::PullImage), 5);
}

#[tokio::test(start_paused = true)]
async fn missing_pull_secret_is_reported_and_the_pull_continues() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    scene.ensure(&wanting("web", "Always", &["gone", "mine", "lost"])).await.unwrap();
    let (reason, message) = scene.event_texts().remove(0);
    assert_eq!(reason, "FailedToRetrieveImagePullSecret");
    assert!(message.contains("(gone, lost)"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn invalid_pull_secret_fails_the_container_without_leaking_its_content() {
    let mut world = world(&[("mine", "me", "secret")]);
    let broken = v1::Secret {
        type_: Some("kubernetes.io/dockercfg".into()),
        data: Some([(".dockercfg".into(), ByteString(b"{\"x\": hunter2".to_vec()))].into()),
        ..Default::default()
    };
    world.secrets.insert("broken".into(), broken);
    let scene = scene(world, ImageSettings::default());
    let refused = scene.ensure(&wanting("web", "Always", &["broken", "mine"])).await.unwrap_err();
    assert!(refused.message.starts_with("cannot use the pull secret default/broken"));
    assert!(!refused.message.contains("hunter2"));
    assert_eq!(scene.fake.count(Rpc::PullImage), 0);
}

#[tokio::test(start_paused = true)]
async fn node_credentials_serve_every_pod() {
    let dir = tempfile::tempdir().unwrap();
    let auths = json!({ "auths": { "registry.io": { "auth": "bWU6c2VjcmV0" } } });
    std::fs::write(dir.path().join("config.json"), auths.to_string()).unwrap();
    let settings =
        ImageSettings { docker_configs: vec![dir.path().into()], ..ImageSettings::default() };
    let scene = scene(World::default(), settings);
    scene.ensure(&wanting("web", "IfNotPresent", &[])).await.unwrap();
    scene.ensure(&wanting("other", "Never", &[])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn image_pulled_with_one_pods_secret_is_not_usable_by_another() {
    let secrets = [("mine", "me", "secret"), ("twin", "me", "secret")];
    let mut scene = scene(world(&secrets), ImageSettings::default());
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    scene.event_texts();
    let never = scene.ensure(&wanting("b", "Never", &[])).await.unwrap_err();
    assert_eq!(never.reason, StartError::ErrImageNeverPull);
    let pulled = scene.fake.count(Rpc::PullImage);
    let refused = scene.ensure(&wanting("b", "IfNotPresent", &[])).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ErrImagePull, "the registry was contacted");
    assert_eq!(scene.fake.count(Rpc::PullImage), pulled + 1);
    for secret in ["mine", "twin"] {
        scene.ensure(&wanting("c", "Never", &[secret])).await.unwrap();
    }
    assert_eq!(scene.fake.count(Rpc::PullImage), pulled + 1);
    let event_texts = scene.event_texts();
    let want = format!(
        "Container image {IMAGE:?} already present on machine and can be accessed by the pod"
    );
    assert_eq!(event_texts.last().unwrap().1, want);
}

#[tokio::test(start_paused = true)]
async fn without_verification_nothing_is_checked_or_recorded() {
    let settings = ImageSettings { verification: Verification::Off, ..ImageSettings::default() };
    let mut scene = scene(world(&[("mine", "me", "secret")]), settings);
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    scene.ensure(&wanting("b", "Never", &[])).await.unwrap();
    let want = format!("Container image {IMAGE:?} already present on machine");
    assert_eq!(scene.event_texts().last().unwrap().1, want);
    assert!(!scene.dir.path().join("image_manager").exists());
}

#[tokio::test(start_paused = true)]
async fn image_of_an_interrupted_pull_needs_credentials() {
    let first = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    let records = first.images.records.clone().unwrap();
    records.begin(IMAGE).unwrap();
    let again = scene_in(first.dir, world(&[("mine", "me", "secret")]), ImageSettings::default());
    again.fake.images().add(FakeImage::new(IMAGE)).unwrap();
    again.images.settle().await;
    let refused = again.ensure(&wanting("b", "Never", &["mine"])).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ErrImageNeverPull);
    again.ensure(&wanting("b", "IfNotPresent", &["mine"])).await.unwrap();
    again.ensure(&wanting("b", "Never", &["mine"])).await.unwrap();
    let notes = std::fs::read_dir(again.dir.path().join("image_manager/pulling")).unwrap();
    assert_eq!(notes.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn private_image_needs_credentials_when_its_record_cannot_be_written() {
    let scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    let records = scene.dir.path().join("image_manager/pulled");
    std::fs::remove_dir(&records).unwrap();
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    for _ in 0..2 {
        let refused = scene.ensure(&wanting("b", "Never", &[])).await.unwrap_err();
        assert_eq!(refused.reason, StartError::ErrImageNeverPull);
        // A failed pull does not change the record of an earlier one.
        scene.ensure(&wanting("c", "IfNotPresent", &[])).await.unwrap_err();
    }
    std::fs::create_dir(&records).unwrap();
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    scene.ensure(&wanting("a", "Never", &["mine"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn image_of_an_interrupted_pull_needs_credentials_while_its_state_is_unknown() {
    let first = scene(world(&[]), ImageSettings::default());
    first.images.records.clone().unwrap().begin(IMAGE).unwrap();
    let again = scene_in(first.dir, world(&[]), ImageSettings::default());
    again.fake.images().add(FakeImage::new(IMAGE)).unwrap();
    let fault = Fault::Error(Code::Internal, "busy".into());
    again.fake.fail(Rule::on(Rpc::ImageStatus, fault).first(1));
    again.images.settle().await;
    for _ in 0..2 {
        let refused = again.ensure(&wanting("b", "Never", &[])).await.unwrap_err();
        assert_eq!(refused.reason, StartError::ErrImageNeverPull);
        again.ensure(&wanting("b", "IfNotPresent", &[])).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_pulled_if_the_intent_cannot_be_recorded() {
    let scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    std::fs::remove_dir(scene.dir.path().join("image_manager/pulling")).unwrap();
    let absent = scene.ensure(&wanting("a", "Always", &["mine"])).await.unwrap_err();
    assert_eq!(absent.reason, StartError::ErrImagePull);
    assert!(absent.message.starts_with("Failed to record image pull intent"), "{}", absent.message);
    assert_eq!(scene.fake.count(Rpc::PullImage), 0);
}

#[tokio::test(start_paused = true)]
async fn pods_with_the_same_credentials_share_a_pull_and_others_do_not() {
    let secrets = [("mine", "me", "secret"), ("wrong", "me", "no")];
    let scene = scene(world(&secrets), ImageSettings::default());
    let (a, b) = (wanting("a", "Always", &["mine"]), wanting("b", "Always", &["mine"]));
    let c = wanting("c", "Always", &["wrong"]);
    let (a, b, c) = tokio::join!(scene.ensure(&a), scene.ensure(&b), scene.ensure(&c));
    assert!(a.is_ok() && b.is_ok() && c.is_err());
    assert_eq!(scene.fake.count(Rpc::PullImage), 2);
}

#[tokio::test(start_paused = true)]
async fn prefetched_image_is_not_pulled_again_for_its_container() {
    let scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    let pod = wanting("a", "Always", &["mine"]);
    let prefetch = scene.images.prefetch(&pod, &pod.containers[0], rank(&pod));
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.ensure(&pod).await.unwrap();
    assert_eq!(scene.fake.count(Rpc::PullImage), 1);
    drop(prefetch);
    scene.ensure(&pod).await.unwrap();
    assert_eq!(scene.fake.count(Rpc::PullImage), 2, "a later start pulls again");
}

#[tokio::test(start_paused = true)]
async fn prefetched_image_is_reported_as_pulled() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    let pod = wanting("a", "IfNotPresent", &["mine"]);
    let prefetch = scene.images.prefetch(&pod, &pod.containers[0], rank(&pod));
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.ensure(&pod).await.unwrap();
    drop(prefetch);
    let event_texts = scene.event_texts();
    assert!(event_texts[1].1.starts_with("Successfully pulled image"), "{event_texts:?}");
    assert_eq!(scene.fake.count(Rpc::PullImage), 1);
}

#[tokio::test(start_paused = true)]
async fn pulls_above_the_rate_limit_fail_immediately() {
    let settings = ImageSettings { per_second: 5, burst: 10, ..ImageSettings::default() };
    let scene = scene(World::default(), settings);
    let mut refused = 0;
    for n in 0..20 {
        let name = format!("registry.io/many:{n}");
        scene.fake.images().offer(FakeImage::new(name.as_str()), Offer::takes(Duration::ZERO));
        let fields = json!({ "image": name });
        let pod = pod("many").container_with("app", fields).build();
        if let Err(absent) = scene.ensure(&pod).await {
            assert_eq!(absent.message, "pull QPS exceeded");
            refused += 1;
        }
    }
    assert_eq!(refused, 10);
}

#[tokio::test(start_paused = true)]
async fn pulled_image_that_cannot_be_inspected_is_an_error_and_does_not_run_as_root() {
    for policy in ["Always", "IfNotPresent"] {
        let mut scene = scene(world(&[("good", "me", "secret")]), ImageSettings::default());
        let offer = Offer::takes(Duration::from_secs(1)).needs("me", "secret");
        scene.fake.images().offer(FakeImage::new(IMAGE).user(1000), offer);
        // After a pull the image is inspected by its ID.
        let fault = Fault::Error(Code::Internal, "busy".into());
        let by_id = |about: &About| about.image.as_deref().is_some_and(|id| id.contains("sha256"));
        scene.fake.fail(Rule::on(Rpc::ImageStatus, fault).only(by_id).first(1));
        let pod = wanting("p", policy, &["good"]);
        let absent = scene.ensure(&pod).await.unwrap_err();
        assert_eq!(absent.reason, StartError::ImageInspectError, "{policy}");
        let message =
            format!("Failed to inspect image {IMAGE:?}: rpc error: code = Internal desc = busy");
        assert_eq!(absent.message, message, "{policy}");
        assert!(scene.event_texts().contains(&("InspectFailed".into(), message)), "{policy}");
        let present = scene.ensure(&pod).await.unwrap();
        assert_eq!(present.uid, Some(1000), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn pulled_image_that_is_gone_again_is_an_error() {
    let scene = scene(world(&[("good", "me", "secret")]), ImageSettings::default());
    let fault = Fault::Error(Code::NotFound, "no such image".into());
    scene.fake.fail(Rule::on(Rpc::ImageStatus, fault));
    let absent = scene.ensure(&wanting("p", "IfNotPresent", &["good"])).await.unwrap_err();
    assert_eq!(absent.reason, StartError::ImageInspectError);
    assert!(absent.message.contains("after the pull"), "{}", absent.message);
}

#[tokio::test(start_paused = true)]
async fn start_error_follows_from_the_reason_in_the_runtimes_message() {
    for (message, reason) in [
        ("RegistryUnavailable: no route", StartError::RegistryUnavailable),
        ("SignatureValidationFailed: no key", StartError::SignatureValidationFailed),
        ("no such host", StartError::ErrImagePull),
    ] {
        let absent = pull_failure("app", message.to_owned());
        assert_eq!(absent.reason, reason);
    }
    let text = pull_failure("app", "RegistryUnavailable: no route".into()).message;
    assert_eq!(text, "image pull failed for app because the registry is unavailable: no route");
}

/// A plugin that counts its calls and records its requests.
fn plugin(dir: &Path, key: &str, duration: &str) {
    let script = format!(
        r#"#!/bin/sh
echo call >> "{dir}/calls"
asked=$(cat)
echo "$asked" >> "{dir}/asked"
cat <<END
{{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
"cacheKeyType":"{key}","cacheDuration":"{duration}",
"auth":{{"registry.io":{{"username":"$NAME","password":"secret"}}}}}}
END
"#,
        dir = dir.display()
    );
    let path = dir.join("plugin");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn plugin_settings(dir: &Path, token: Option<serde_json::Value>) -> ImageSettings {
    let mut provider = json!({
        "name": "plugin", "matchImages": ["registry.io"], "defaultCacheDuration": "1m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "env": [{ "name": "NAME", "value": "me" }],
    });
    if let Some(token) = token {
        provider["tokenAttributes"] = token;
    }
    let config = json!({
        "kind": "CredentialProviderConfig", "apiVersion": "kubelet.config.k8s.io/v1",
        "providers": [provider],
    });
    ImageSettings {
        plugins: providers(&[config]).unwrap(),
        plugins_dir: dir.to_owned(),
        ..ImageSettings::default()
    }
}

fn calls(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("calls")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn plugin_response_is_used_and_cached_for_its_duration() {
    let dir = tempfile::tempdir().unwrap();
    plugin(dir.path(), "Registry", "10m");
    let scene = scene(World::default(), plugin_settings(dir.path(), None)).at_once();
    scene.ensure(&wanting("a", "Always", &[])).await.unwrap();
    scene.ensure(&wanting("b", "Always", &[])).await.unwrap();
    assert_eq!(calls(dir.path()), 1);
    let asked: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("asked")).unwrap()).unwrap();
    assert_eq!(asked["image"], "registry.io/team/app");
}

#[tokio::test]
async fn failing_plugin_affects_only_its_own_credentials() {
    let dir = tempfile::tempdir().unwrap();
    plugin(dir.path(), "Nonsense", "10m");
    let settings = plugin_settings(dir.path(), None);
    let scene = scene(world(&[("mine", "me", "secret")]), settings).at_once();
    scene.ensure(&wanting("a", "Always", &["mine"])).await.unwrap();
    std::fs::remove_file(dir.path().join("plugin")).unwrap();
    scene.ensure(&wanting("a", "Always", &["mine"])).await.unwrap();
}

#[tokio::test]
async fn plugin_receives_the_service_account_token_of_the_pod() {
    let dir = tempfile::tempdir().unwrap();
    plugin(dir.path(), "Image", "0s");
    let token = json!({
        "serviceAccountTokenAudience": "registry", "cacheType": "Token",
        "requireServiceAccount": true,
    });
    let settings = plugin_settings(dir.path(), Some(token));
    let without = scene(World::default(), settings.clone());
    assert!(without.ensure(&wanting("a", "Always", &[])).await.is_err());
    assert_eq!(calls(dir.path()), 0, "not called without an account");
    let with = scene(World { account: true, ..World::default() }, settings).at_once();
    with.ensure(&wanting("a", "Always", &[])).await.unwrap();
    let asked = std::fs::read_to_string(dir.path().join("asked")).unwrap();
    assert!(asked.contains("\"serviceAccountToken\":\"token-for-registry\""), "{asked}");
    with.ensure(&wanting("b", "Never", &[])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pull_back_off_affects_only_pods_that_would_pull() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), ImageSettings::default());
    let pod = wanting("web", "IfNotPresent", &["mine"]);
    let held = Some("ErrImagePull: gone");
    let wanted = ImageRequest::from(&pod.containers[0]);
    let refused = scene.images.ensure(&pod, wanted, rank(&pod), held).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ImagePullBackOff);
    assert_eq!(refused.message, format!("Back-off pulling image {IMAGE:?}: ErrImagePull: gone"));
    assert!(scene.event_texts().is_empty(), "nothing was pulled");
    scene.ensure(&pod).await.unwrap();
    scene.images.ensure(&pod, wanted, rank(&pod), Some("gone")).await.unwrap();
}

/// A pod with this priority whose image has this name. Its pull stalls or takes a second.
fn pulling(scene: &Scene, name: &str, priority: i32, stalls: bool) -> Arc<Pod> {
    let image = format!("registry.io/{name}:1");
    let offer = if stalls { Offer::stalls() } else { Offer::takes(Duration::from_secs(1)) };
    scene.fake.images().offer(FakeImage::new(image.as_str()), offer);
    let pod = pod(name).container_with("app", json!({ "image": image }));
    Arc::new(pod.spec("priority", json!(priority)).build())
}

fn begin(
    scene: &Scene,
    pod: &Arc<Pod>,
) -> tokio::task::JoinHandle<Result<PresentImage, ImageUnavailable>> {
    let (images, pod) = (scene.images.clone(), pod.clone());
    tokio::spawn(
        async move { images.ensure(&pod, (&pod.containers[0]).into(), rank(&pod), None).await },
    )
}

/// The images in the order of their PullImage calls.
fn pulled(scene: &Scene) -> Vec<String> {
    let calls = scene.fake.calls().into_iter().filter(|call| call.rpc == Rpc::PullImage);
    calls.filter_map(|call| call.about.image).collect()
}

#[tokio::test(start_paused = true)]
async fn hung_pulls_delay_critical_pods_for_a_minute_and_others_until_the_deadline() {
    let scene = scene(World::default(), ImageSettings::default());
    let hung: Vec<_> = (0..5).map(|n| pulling(&scene, &format!("hung{n}"), 0, true)).collect();
    let hung: Vec<_> = hung.iter().map(|pod| begin(&scene, pod)).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = tokio::time::Instant::now();
    let ordinary = begin(&scene, &pulling(&scene, "ordinary", 0, false));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let critical = begin(&scene, &pulling(&scene, "critical", 2_000_000_000, false));
    critical.await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(70), "{:?}", began.elapsed());
    assert!(!ordinary.is_finished());
    ordinary.await.unwrap().unwrap();
    let waited = began.elapsed();
    assert!(waited < podwright_core::image::PULL_DEADLINE + Duration::from_secs(10), "{waited:?}");
    for (n, hung) in hung.into_iter().enumerate() {
        let absent = hung.await.unwrap().unwrap_err();
        let message = format!(
            "pull of image \"registry.io/hung{n}:1\" did not end within 120m0s and was cancelled"
        );
        assert_eq!((absent.reason, absent.message), (StartError::ErrImagePull, message));
    }
    assert!(scene.fake.images().pulls().is_empty(), "cancelled in the runtime, too");
}

#[tokio::test(start_paused = true)]
async fn waiting_pulls_go_by_rank_and_a_shared_pull_has_the_best_rank() {
    let scene = scene(World::default(), ImageSettings::default());
    let busy: Vec<_> = (0..5).map(|n| pulling(&scene, &format!("busy{n}"), 0, false)).collect();
    let busy: Vec<_> = busy.iter().map(|pod| begin(&scene, pod)).collect();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let mut waiting = Vec::new();
    let ordinary: Vec<_> = (0..5).map(|n| pulling(&scene, &format!("o{n}"), 0, false)).collect();
    for pod in &ordinary {
        waiting.push(begin(&scene, pod));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let critical = 2_000_000_000;
    waiting.push(begin(&scene, &pulling(&scene, "critical", critical, false)));
    // A critical pod needs the image of the last ordinary one as well.
    let last = ordinary[4].containers[0].image.to_string();
    let joins = pod("joins").container_with("app", json!({ "image": last }));
    waiting.push(begin(&scene, &Arc::new(joins.spec("priority", json!(critical)).build())));
    for task in busy.into_iter().chain(waiting) {
        task.await.unwrap().unwrap();
    }
    let order = pulled(&scene);
    let mut next: Vec<_> = order[5..7].to_vec();
    next.sort();
    assert_eq!(next, ["registry.io/critical:1", "registry.io/o4:1"], "{order:?}");
    assert_eq!(order.len(), 11, "one pull of each image");
}
