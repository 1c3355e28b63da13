use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1;
use podwright_core::builders::pod;
use podwright_core::config::Lookup;
use podwright_core::credential::{ObjectId, ServiceAccountView, providers};
use podwright_cri::fake::{
    About, Code, Fake, FakeImage, FakeOptions, Fault, Pull as Offer, Rpc, Rule,
};
use serde_json::json;
use tokio::sync::mpsc;

use super::*;
use crate::events::Occurrence;

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
    folder: tempfile::TempDir,
}

fn scene(world: World, settings: Settings) -> Scene {
    scene_in(tempfile::tempdir().unwrap(), world, settings)
}

fn scene_in(folder: tempfile::TempDir, world: World, settings: Settings) -> Scene {
    let fake = Fake::start(FakeOptions::default());
    let offer = Offer::takes(Duration::from_secs(1)).needs("me", "secret");
    fake.images().offer(FakeImage::new(IMAGE), offer);
    let clock = Clock::simulated("2026-01-01T00:00:00Z".parse().unwrap());
    let (recorder, events) = Recorder::new(clock.clone());
    let world = Arc::new(world);
    let means = Means {
        runtime: fake.client(),
        clock,
        events: recorder,
        metrics: Arc::default(),
        secrets: world.clone(),
        accounts: world,
    };
    let settings = Settings { parallel: 5, ..settings };
    let images = Images::new(folder.path(), settings, means).unwrap();
    Scene { fake, images, events, folder }
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

impl Scene {
    /// For tests that cannot pause time.
    fn at_once(self) -> Self {
        let offer = Offer::takes(Duration::ZERO).needs("me", "secret");
        self.fake.images().offer(FakeImage::new(IMAGE), offer);
        self
    }

    async fn ensure(&self, pod: &Pod) -> Result<Present, Absent> {
        self.images.ensure(pod, (&pod.containers[0]).into(), None).await
    }

    fn told(&mut self) -> Vec<(std::borrow::Cow<'static, str>, String)> {
        let events = std::iter::from_fn(|| self.events.try_recv().ok());
        events.map(|event| (event.reason, event.message)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pods_secret_opens_the_registry() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    scene.ensure(&wanting("web", "IfNotPresent", &["mine"])).await.unwrap();
    let told = scene.told();
    assert_eq!(told[0].1, format!("Pulling image {IMAGE:?}"));
    assert!(told[1].1.starts_with("Successfully pulled image \"registry.io/team/app:1\" in 1.0"));
    assert!(told[1].1.ends_with("Image size: 1048576 bytes."));
}

#[tokio::test(start_paused = true)]
async fn every_fitting_credential_is_tried_and_all_refusals_are_told() {
    let wrong = [("a", "me", "wrong"), ("b", "you", "secret"), ("c", "me", "secret")];
    let scene = scene(world(&wrong), Settings::default());
    let refused = scene.ensure(&wanting("web", "Always", &["a", "b"])).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ErrImagePull);
    assert!(refused.message.contains("pull access denied") && !refused.message.contains("wrong"));
    assert_eq!(scene.fake.count(Rpc::PullImage), 2);
    scene.ensure(&wanting("web", "Always", &["a", "b", "c"])).await.unwrap();
    assert_eq!(scene.fake.count(Rpc::PullImage), 5);
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_not_there_is_told_and_the_pull_goes_on() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    scene.ensure(&wanting("web", "Always", &["gone", "mine", "lost"])).await.unwrap();
    let (reason, message) = scene.told().remove(0);
    assert_eq!(reason, "FailedToRetrieveImagePullSecret");
    assert!(message.contains("(gone, lost)"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_cannot_be_read_fails_the_container_and_says_nothing_of_it() {
    let mut world = world(&[("mine", "me", "secret")]);
    let broken = v1::Secret {
        type_: Some("kubernetes.io/dockercfg".into()),
        data: Some([(".dockercfg".into(), ByteString(b"{\"x\": hunter2".to_vec()))].into()),
        ..Default::default()
    };
    world.secrets.insert("broken".into(), broken);
    let scene = scene(world, Settings::default());
    let refused = scene.ensure(&wanting("web", "Always", &["broken", "mine"])).await.unwrap_err();
    assert!(refused.message.starts_with("cannot use the pull secret default/broken"));
    assert!(!refused.message.contains("hunter2"));
    assert_eq!(scene.fake.count(Rpc::PullImage), 0);
}

#[tokio::test(start_paused = true)]
async fn the_nodes_own_credentials_serve_every_pod() {
    let folder = tempfile::tempdir().unwrap();
    let auths = json!({ "auths": { "registry.io": { "auth": "bWU6c2VjcmV0" } } });
    std::fs::write(folder.path().join("config.json"), auths.to_string()).unwrap();
    let settings = Settings { docker_configs: vec![folder.path().into()], ..Settings::default() };
    let scene = scene(World::default(), settings);
    scene.ensure(&wanting("web", "IfNotPresent", &[])).await.unwrap();
    scene.ensure(&wanting("other", "Never", &[])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn row_37_what_one_pods_secret_brought_is_not_anothers() {
    let secrets = [("mine", "me", "secret"), ("twin", "me", "secret")];
    let mut scene = scene(world(&secrets), Settings::default());
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    scene.told();
    let never = scene.ensure(&wanting("b", "Never", &[])).await.unwrap_err();
    assert_eq!(never.reason, StartError::ErrImageNeverPull);
    let pulled = scene.fake.count(Rpc::PullImage);
    let refused = scene.ensure(&wanting("b", "IfNotPresent", &[])).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ErrImagePull, "the registry was asked");
    assert_eq!(scene.fake.count(Rpc::PullImage), pulled + 1);
    for secret in ["mine", "twin"] {
        scene.ensure(&wanting("c", "Never", &[secret])).await.unwrap();
    }
    assert_eq!(scene.fake.count(Rpc::PullImage), pulled + 1);
    let told = scene.told();
    let want = format!(
        "Container image {IMAGE:?} already present on machine and can be accessed by the pod"
    );
    assert_eq!(told.last().unwrap().1, want);
}

#[tokio::test(start_paused = true)]
async fn with_the_check_off_nothing_is_asked_or_written_down() {
    let settings = Settings { verification: Verification::Off, ..Settings::default() };
    let mut scene = scene(world(&[("mine", "me", "secret")]), settings);
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    scene.ensure(&wanting("b", "Never", &[])).await.unwrap();
    let want = format!("Container image {IMAGE:?} already present on machine");
    assert_eq!(scene.told().last().unwrap().1, want);
    assert!(!scene.folder.path().join("image_manager").exists());
}

#[tokio::test(start_paused = true)]
async fn what_a_pull_brought_that_a_crash_cut_short_is_closed() {
    let first = scene(world(&[("mine", "me", "secret")]), Settings::default());
    let records = first.images.records.clone().unwrap();
    records.begin(IMAGE).unwrap();
    let again = scene_in(first.folder, world(&[("mine", "me", "secret")]), Settings::default());
    again.fake.images().add(FakeImage::new(IMAGE)).unwrap();
    again.images.settle().await;
    let refused = again.ensure(&wanting("b", "Never", &["mine"])).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ErrImageNeverPull);
    again.ensure(&wanting("b", "IfNotPresent", &["mine"])).await.unwrap();
    again.ensure(&wanting("b", "Never", &["mine"])).await.unwrap();
    let notes = std::fs::read_dir(again.folder.path().join("image_manager/pulling")).unwrap();
    assert_eq!(notes.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn private_image_stays_closed_when_its_record_cannot_be_written() {
    let scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    let records = scene.folder.path().join("image_manager/pulled");
    std::fs::remove_dir(&records).unwrap();
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    for _ in 0..2 {
        let refused = scene.ensure(&wanting("b", "Never", &[])).await.unwrap_err();
        assert_eq!(refused.reason, StartError::ErrImageNeverPull);
        // A pull that fails tells nothing of what came before it.
        scene.ensure(&wanting("c", "IfNotPresent", &[])).await.unwrap_err();
    }
    std::fs::create_dir(&records).unwrap();
    scene.ensure(&wanting("a", "IfNotPresent", &["mine"])).await.unwrap();
    scene.ensure(&wanting("a", "Never", &["mine"])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn image_of_a_pull_cut_short_stays_closed_while_nobody_knows_what_it_brought() {
    let first = scene(world(&[]), Settings::default());
    first.images.records.clone().unwrap().begin(IMAGE).unwrap();
    let again = scene_in(first.folder, world(&[]), Settings::default());
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
async fn nothing_is_pulled_that_cannot_be_noted() {
    let scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    std::fs::remove_dir(scene.folder.path().join("image_manager/pulling")).unwrap();
    let absent = scene.ensure(&wanting("a", "Always", &["mine"])).await.unwrap_err();
    assert_eq!(absent.reason, StartError::ErrImagePull);
    assert!(absent.message.starts_with("Failed to record image pull intent"), "{}", absent.message);
    assert_eq!(scene.fake.count(Rpc::PullImage), 0);
}

#[tokio::test(start_paused = true)]
async fn pods_with_the_same_credentials_share_a_pull_and_others_do_not() {
    let secrets = [("mine", "me", "secret"), ("wrong", "me", "no")];
    let scene = scene(world(&secrets), Settings::default());
    let (a, b) = (wanting("a", "Always", &["mine"]), wanting("b", "Always", &["mine"]));
    let c = wanting("c", "Always", &["wrong"]);
    let (a, b, c) = tokio::join!(scene.ensure(&a), scene.ensure(&b), scene.ensure(&c));
    assert!(a.is_ok() && b.is_ok() && c.is_err());
    assert_eq!(scene.fake.count(Rpc::PullImage), 2);
}

#[tokio::test(start_paused = true)]
async fn a_prefetched_image_is_not_pulled_again_for_its_container() {
    let scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    let pod = wanting("a", "Always", &["mine"]);
    let prefetch = scene.images.prefetch(&pod, &pod.containers[0]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.ensure(&pod).await.unwrap();
    assert_eq!(scene.fake.count(Rpc::PullImage), 1);
    drop(prefetch);
    scene.ensure(&pod).await.unwrap();
    assert_eq!(scene.fake.count(Rpc::PullImage), 2, "a later start asks the registry again");
}

#[tokio::test(start_paused = true)]
async fn an_image_that_came_early_is_told_as_pulled() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    let pod = wanting("a", "IfNotPresent", &["mine"]);
    let prefetch = scene.images.prefetch(&pod, &pod.containers[0]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.ensure(&pod).await.unwrap();
    drop(prefetch);
    let told = scene.told();
    assert!(told[1].1.starts_with("Successfully pulled image"), "{told:?}");
    assert_eq!(scene.fake.count(Rpc::PullImage), 1);
}

#[tokio::test(start_paused = true)]
async fn row_39_more_pulls_than_the_registry_is_to_see_fail_at_once() {
    let settings = Settings { per_second: 5, burst: 10, ..Settings::default() };
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
async fn pulled_image_that_cannot_be_inspected_is_an_error_and_not_an_image_of_root() {
    for policy in ["Always", "IfNotPresent"] {
        let mut scene = scene(world(&[("good", "me", "secret")]), Settings::default());
        let offer = Offer::takes(Duration::from_secs(1)).needs("me", "secret");
        scene.fake.images().offer(FakeImage::new(IMAGE).user(1000), offer);
        // After a pull the image is asked for by its id.
        let fault = Fault::Error(Code::Internal, "busy".into());
        let by_id = |about: &About| about.image.as_deref().is_some_and(|id| id.contains("sha256"));
        scene.fake.fail(Rule::on(Rpc::ImageStatus, fault).only(by_id).first(1));
        let pod = wanting("p", policy, &["good"]);
        let absent = scene.ensure(&pod).await.unwrap_err();
        assert_eq!(absent.reason, StartError::ImageInspectError, "{policy}");
        let message =
            format!("Failed to inspect image {IMAGE:?}: rpc error: code = Internal desc = busy");
        assert_eq!(absent.message, message, "{policy}");
        assert!(scene.told().contains(&("InspectFailed".into(), message)), "{policy}");
        let present = scene.ensure(&pod).await.unwrap();
        assert_eq!(present.uid, Some(1000), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn pulled_image_that_is_gone_again_is_an_error() {
    let scene = scene(world(&[("good", "me", "secret")]), Settings::default());
    let fault = Fault::Error(Code::NotFound, "no such image".into());
    scene.fake.fail(Rule::on(Rpc::ImageStatus, fault));
    let absent = scene.ensure(&wanting("p", "IfNotPresent", &["good"])).await.unwrap_err();
    assert_eq!(absent.reason, StartError::ImageInspectError);
    assert!(absent.message.contains("pulled it and has no image"), "{}", absent.message);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_may_say_what_users_can_mend() {
    for (message, reason) in [
        ("RegistryUnavailable: no route", StartError::RegistryUnavailable),
        ("SignatureValidationFailed: no key", StartError::SignatureValidationFailed),
        ("no such host", StartError::ErrImagePull),
    ] {
        let absent = refusal("app", message.to_owned());
        assert_eq!(absent.reason, reason);
    }
    let text = refusal("app", "RegistryUnavailable: no route".into()).message;
    assert_eq!(text, "image pull failed for app because the registry is unavailable: no route");
}

/// A plugin that counts its calls and answers with what it was asked.
fn plugin(folder: &Path, key: &str, duration: &str) {
    let script = format!(
        r#"#!/bin/sh
echo call >> "{folder}/calls"
asked=$(cat)
echo "$asked" >> "{folder}/asked"
cat <<END
{{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
"cacheKeyType":"{key}","cacheDuration":"{duration}",
"auth":{{"registry.io":{{"username":"$NAME","password":"secret"}}}}}}
END
"#,
        folder = folder.display()
    );
    let path = folder.join("plugin");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

fn plugin_settings(folder: &Path, token: Option<serde_json::Value>) -> Settings {
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
    Settings {
        plugins: providers(&[config]).unwrap(),
        plugins_dir: folder.to_owned(),
        ..Settings::default()
    }
}

fn calls(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("calls")).unwrap_or_default().lines().count()
}

#[tokio::test]
async fn a_plugins_answer_opens_the_registry_and_is_kept_as_long_as_it_says() {
    let folder = tempfile::tempdir().unwrap();
    plugin(folder.path(), "Registry", "10m");
    let scene = scene(World::default(), plugin_settings(folder.path(), None)).at_once();
    scene.ensure(&wanting("a", "Always", &[])).await.unwrap();
    scene.ensure(&wanting("b", "Always", &[])).await.unwrap();
    assert_eq!(calls(folder.path()), 1);
    let asked: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("asked")).unwrap())
            .unwrap();
    assert_eq!(asked["image"], "registry.io/team/app");
}

#[tokio::test]
async fn a_plugin_that_fails_costs_only_its_credentials() {
    let folder = tempfile::tempdir().unwrap();
    plugin(folder.path(), "Nonsense", "10m");
    let settings = plugin_settings(folder.path(), None);
    let scene = scene(world(&[("mine", "me", "secret")]), settings).at_once();
    scene.ensure(&wanting("a", "Always", &["mine"])).await.unwrap();
    std::fs::remove_file(folder.path().join("plugin")).unwrap();
    scene.ensure(&wanting("a", "Always", &["mine"])).await.unwrap();
}

#[tokio::test]
async fn a_plugin_may_be_shown_the_pods_account() {
    let folder = tempfile::tempdir().unwrap();
    plugin(folder.path(), "Image", "0s");
    let token = json!({
        "serviceAccountTokenAudience": "registry", "cacheType": "Token",
        "requireServiceAccount": true,
    });
    let settings = plugin_settings(folder.path(), Some(token));
    let without = scene(World::default(), settings.clone());
    assert!(without.ensure(&wanting("a", "Always", &[])).await.is_err());
    assert_eq!(calls(folder.path()), 0, "of no use without an account");
    let with = scene(World { account: true, ..World::default() }, settings).at_once();
    with.ensure(&wanting("a", "Always", &[])).await.unwrap();
    let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    assert!(asked.contains("\"serviceAccountToken\":\"token-for-registry\""), "{asked}");
    with.ensure(&wanting("b", "Never", &[])).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_image_that_rests_after_a_failed_pull_holds_back_only_who_would_pull_it() {
    let mut scene = scene(world(&[("mine", "me", "secret")]), Settings::default());
    let pod = wanting("web", "IfNotPresent", &["mine"]);
    let held = Some("ErrImagePull: gone");
    let wanted = Wanted::from(&pod.containers[0]);
    let refused = scene.images.ensure(&pod, wanted, held).await.unwrap_err();
    assert_eq!(refused.reason, StartError::ImagePullBackOff);
    assert_eq!(refused.message, format!("Back-off pulling image {IMAGE:?}: ErrImagePull: gone"));
    assert!(scene.told().is_empty(), "nothing was pulled");
    scene.ensure(&pod).await.unwrap();
    scene.images.ensure(&pod, wanted, Some("gone")).await.unwrap();
}
