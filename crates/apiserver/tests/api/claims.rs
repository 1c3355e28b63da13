//! Claims get a volume, and what they kept goes when they go.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use podwright_apiserver::{
    ApiServer, ClaimDirectories, Clock, Identity, Ids, Limits, ReclaimDirectory, Settings, Store,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::world::{NS, World, eventually, pod};

const VOLUMES: &str = "/api/v1/persistentvolumes";

/// Removes directories, but for those with a file `immutable` in them.
struct Reclaim;

impl ReclaimDirectory for Reclaim {
    fn reclaim(&self, directory: PathBuf) -> BoxFuture<'static, std::io::Result<()>> {
        async move {
            if directory.join("immutable").exists() {
                return Err(std::io::Error::other("immutable: not permitted"));
            }
            match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            }
        }
        .boxed()
    }
}

/// A server that may make folders.
async fn alive(folder: &std::path::Path) -> (World, impl Drop + use<>) {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::seeded(1));
    settings.volumes =
        Some(ClaimDirectories { path: folder.to_owned(), reclaim: Arc::new(Reclaim) });
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

#[tokio::test]
async fn volume_that_cannot_be_reclaimed_keeps_no_other_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let (world, _alive) = alive(folder.path()).await;
    let mut volumes = Vec::new();
    // given three claims, and in the directory of each something that stays; they are reclaimed in
    // some order, and in any order two are not the first
    for name in ["a", "b", "c"] {
        world.post(&format!("{NS}/persistentvolumeclaims"), claim(name, "1Gi")).await.ok();
        eventually("it is bound", || async { volume_of(&world, name).await.is_some() }).await;
        let volume = volume_of(&world, name).await.unwrap();
        std::fs::create_dir_all(folder.path().join(&volume)).unwrap();
        std::fs::write(folder.path().join(&volume).join("immutable"), "").unwrap();
        volumes.push(volume);
    }
    for name in ["a", "b", "c"] {
        world.delete(&format!("{NS}/persistentvolumeclaims/{name}")).await.ok();
    }
    let status = async |volume: &str| world.get(&format!("{VOLUMES}/{volume}")).await;
    for volume in &volumes {
        eventually("the failure is shown", || async {
            status(volume).await.body["status"]["phase"] == "Failed"
        })
        .await;
        let shown = status(volume).await.body;
        assert_eq!(shown["status"]["message"], "immutable: not permitted", "{shown}");
    }
    // when one of them can go, it goes, whatever the others do
    std::fs::remove_file(folder.path().join(&volumes[1]).join("immutable")).unwrap();
    world.post(&format!("{NS}/persistentvolumeclaims"), claim("another", "1Gi")).await.ok();
    eventually("it is gone", || async { status(&volumes[1]).await.code == 404 }).await;
    assert!(!folder.path().join(&volumes[1]).exists());
    for kept in [&volumes[0], &volumes[2]] {
        assert_eq!(status(kept).await.body["status"]["phase"], "Failed");
        assert!(folder.path().join(kept).join("immutable").exists());
    }
}
