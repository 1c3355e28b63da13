//! Claims get a volume, and what they kept goes when they go.

use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::world::{NS, World, eventually, pod};

const VOLUMES: &str = "/api/v1/persistentvolumes";

/// A server that may make folders.
async fn alive(folder: &std::path::Path) -> (World, impl Drop + use<>) {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::seeded(1));
    settings.volumes = Some(folder.to_owned());
    let server = ApiServer::start(store, settings).await.unwrap();
    let stop = CancellationToken::new();
    let (running, token) = (server.clone(), stop.clone());
    tokio::spawn(async move { running.run_controllers(token).await });
    (World { server, who: Identity::admin() }, stop.drop_guard())
}

fn claim(name: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    })
}

async fn volume_of(world: &World, name: &str) -> Option<String> {
    let claim = world.get(&format!("{NS}/persistentvolumeclaims/{name}")).await.ok();
    if claim.body["status"]["phase"] != "Bound" {
        return None;
    }
    claim.body["spec"]["volumeName"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn a_claim_gets_a_folder_which_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _alive) = alive(folder.path()).await;
    world.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    eventually("it is bound", || async { volume_of(&world, "data").await.is_some() }).await;
    let volume = volume_of(&world, "data").await.unwrap();
    let shown = world.get(&format!("{VOLUMES}/{volume}")).await.ok();
    let path = folder.path().join(&volume);
    assert_eq!(shown.body["spec"]["hostPath"]["path"], json!(path));
    assert_eq!(shown.body["spec"]["claimRef"]["name"], "data");
    assert_eq!(shown.body["status"]["phase"], "Bound");

    // given something written, and a pod that still uses the claim
    std::fs::create_dir_all(path.join("deep")).unwrap();
    let mut user = pod("user", "");
    user["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    world.post(&format!("{NS}/pods"), user).await.ok();
    world.delete(&format!("{NS}/persistentvolumeclaims/data")).await.ok();
    eventually("the volume is let go", || async {
        world.get(&format!("{VOLUMES}/{volume}")).await.body["status"]["phase"] == "Released"
    })
    .await;
    assert!(path.exists(), "a pod may still write to it");
    world.delete_with(&format!("{NS}/pods/user"), json!({"gracePeriodSeconds": 0})).await.ok();
    eventually("the volume is gone", || async {
        world.get(&format!("{VOLUMES}/{volume}")).await.code == 404
    })
    .await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_volume_that_fits_is_taken_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _alive) = alive(folder.path()).await;
    for (name, size) in [("large", "10Gi"), ("small", "2Gi")] {
        let volume = json!({
            "metadata": {"name": name},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
                     "hostPath": {"path": "/srv/data"}},
        });
        world.post(VOLUMES, volume).await.ok();
    }
    world.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    eventually("it is bound", || async {
        volume_of(&world, "data").await.as_deref() == Some("small")
    })
    .await;
    world.delete(&format!("{NS}/persistentvolumeclaims/data")).await.ok();
    eventually("the volume waits for its owner", || async {
        world.get(&format!("{VOLUMES}/small")).await.body["status"]["phase"] == "Released"
    })
    .await;
}

#[tokio::test]
async fn a_claim_that_wants_no_new_volume_waits() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _alive) = alive(folder.path()).await;
    let mut wanting = claim("wanting", "1Gi");
    wanting["spec"]["storageClassName"] = json!("");
    world.post(&format!("{NS}/persistentvolumeclaims"), wanting).await.ok();
    world.post(&format!("{NS}/persistentvolumeclaims"), claim("other", "1Gi")).await.ok();
    eventually("the other is bound", || async { volume_of(&world, "other").await.is_some() }).await;
    assert_eq!(volume_of(&world, "wanting").await, None);
}
