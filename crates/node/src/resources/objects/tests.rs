use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use podwright_core::config::EnvSources;
use podwright_testkit::builders::pod;
use serde_json::{Value, json};

use super::*;

/// A client of an API server for this test only.
pub(crate) async fn api() -> Client {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::seeded(1));
    settings.token_key = Some(TokenKey::new(&[7; 32]));
    let server = ApiServer::start(store, settings).await.unwrap();
    Client::new(server.service(Identity::admin()), "default")
}

struct Scene {
    maps: Api<v1::ConfigMap>,
    objects: Arc<Objects>,
}

async fn scene() -> Scene {
    let client = api().await;
    let maps = Api::default_namespaced(client.clone());
    Scene { maps, objects: Objects::new(Some(client), "n1".into()) }
}

impl Scene {
    async fn create(&self, name: &str, fields: Value) {
        let mut map = json!({"metadata": {"name": name}});
        map.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let map = serde_json::from_value(map).unwrap();
        self.maps.create(&PostParams::default(), &map).await.unwrap();
    }

    async fn edit(&self, name: &str, change: Value) {
        self.maps.patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
    }

    async fn read(&self, pod_name: &str, name: &str) -> Lookup<String> {
        let pod = pod(pod_name).build();
        let wanted = vec![(ObjectKind::ConfigMap, name.to_owned())];
        let fetched = self.objects.fetch_objects(&pod, wanted).await;
        match EnvSources::config_map(&fetched, name) {
            Lookup::Found(map) => Lookup::Found(map.data.clone().unwrap_or_default()["k"].clone()),
            Lookup::Missing => Lookup::Missing,
            Lookup::NoApiServer => Lookup::NoApiServer,
            Lookup::Failed(problem) => Lookup::Failed(problem),
        }
    }

    /// The pods that are notified of a change.
    async fn notified_pods(&self) -> Vec<String> {
        let pods =
            tokio::time::timeout(Duration::from_secs(30), self.objects.changed().next()).await;
        pods.unwrap().iter().map(ToString::to_string).collect()
    }
}

#[tokio::test]
async fn watch_is_shared_by_its_pods_and_ends_with_the_last() {
    let scene = scene().await;
    scene.create("m", json!({"data": {"k": "1"}})).await;
    assert_eq!(scene.read("a", "m").await, Lookup::Found("1".into()));
    assert_eq!(scene.read("b", "m").await, Lookup::Found("1".into()));
    assert_eq!(scene.objects.watches(), 1);
    scene.edit("m", json!({"data": {"k": "2"}})).await;
    assert_eq!(scene.notified_pods().await, ["uid-a", "uid-b"]);
    assert_eq!(scene.read("a", "m").await, Lookup::Found("2".into()));

    scene.objects.release(&PodUid::new("uid-a"));
    scene.edit("m", json!({"data": {"k": "3"}})).await;
    assert_eq!(scene.notified_pods().await, ["uid-b"]);
    scene.objects.release(&PodUid::new("uid-b"));
    assert_eq!(scene.objects.watches(), 0);
}

#[tokio::test]
async fn pod_is_notified_when_a_missing_object_appears_or_disappears() {
    let scene = scene().await;
    assert_eq!(scene.read("a", "m").await, Lookup::Missing);
    scene.create("m", json!({"data": {"k": "1"}})).await;
    assert_eq!(scene.notified_pods().await, ["uid-a"]);
    assert_eq!(scene.read("a", "m").await, Lookup::Found("1".into()));
    scene.maps.delete("m", &DeleteParams::default()).await.unwrap();
    assert_eq!(scene.notified_pods().await, ["uid-a"]);
    assert_eq!(scene.read("a", "m").await, Lookup::Missing);
}

#[tokio::test]
async fn label_edits_are_ignored_and_immutable_objects_are_not_watched() {
    let scene = scene().await;
    scene.create("m", json!({"data": {"k": "1"}})).await;
    scene.create("fixed", json!({"data": {"k": "1"}, "immutable": true})).await;
    scene.read("a", "m").await;
    assert_eq!(scene.read("b", "fixed").await, Lookup::Found("1".into()));
    let ended = async {
        loop {
            let over = scene.objects.watched.lock().has_ended("fixed");
            if over {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    scene.edit("m", json!({"metadata": {"labels": {"a": "b"}}})).await;
    scene.edit("m", json!({"data": {"k": "2"}})).await;
    assert_eq!(scene.notified_pods().await, ["uid-a"]);
    assert_eq!(scene.read("a", "m").await, Lookup::Found("2".into()));
}

#[tokio::test]
async fn without_an_api_server_lookups_say_so() {
    let objects = Objects::new(None, "n1".into());
    let pod = pod("p").build();
    let fetched = objects.fetch_objects(&pod, vec![(ObjectKind::Secret, "s".into())]).await;
    assert_eq!(EnvSources::secret(&fetched, "s"), Lookup::NoApiServer);
    assert_eq!(objects.runtime_handler("gvisor").await.unwrap(), "gvisor");
    assert!(matches!(objects.claim(&pod, "c").await, Err(ReadError::NoApiServer)));
}
