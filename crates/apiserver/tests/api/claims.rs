//! Claims controller: binding of claims and reclaiming of volumes.

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use podwright_apiserver::{
    ApiServer, ClaimDirectories, Clock, Identity, Ids, Limits, ReclaimDirectory, Settings, Store,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::test_server::{NS, TestServer, eventually, pod};

const VOLUMES: &str = "/api/v1/persistentvolumes";

/// Removes directories, except those with a file `immutable`.
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

/// A server that provisions directories.
async fn with_controllers(directory: &std::path::Path) -> (TestServer, impl Drop + use<>) {
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::seeded(1));
    settings.volumes =
        Some(ClaimDirectories { path: directory.to_owned(), reclaim: Arc::new(Reclaim) });
    let server = ApiServer::start(store, settings).await.unwrap();
    let stop = CancellationToken::new();
    let (running, token) = (server.clone(), stop.clone());
    tokio::spawn(async move { running.run_controllers(token).await });
    (TestServer { server, identity: Identity::admin() }, stop.drop_guard())
}

fn claim(name: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
    })
}

async fn volume_of(test_server: &TestServer, name: &str) -> Option<String> {
    let claim = test_server.get(&format!("{NS}/persistentvolumeclaims/{name}")).await.ok();
    if claim.body["status"]["phase"] != "Bound" {
        return None;
    }
    claim.body["spec"]["volumeName"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn claim_gets_a_directory_that_is_deleted_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    eventually("it is bound", || async { volume_of(&test_server, "data").await.is_some() }).await;
    let volume = volume_of(&test_server, "data").await.unwrap();
    let shown = test_server.get(&format!("{VOLUMES}/{volume}")).await.ok();
    let path = directory.path().join(&volume);
    assert_eq!(shown.body["spec"]["hostPath"]["path"], json!(path));
    assert_eq!(shown.body["spec"]["claimRef"]["name"], "data");
    assert_eq!(shown.body["status"]["phase"], "Bound");

    // given a file in it, and a pod that still uses the claim
    std::fs::create_dir_all(path.join("deep")).unwrap();
    let mut user = pod("user", "");
    user["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    user["spec"]["nodeName"] = json!("n1");
    test_server.post(&format!("{NS}/pods"), user).await.ok();
    let deleted = test_server.delete(&format!("{NS}/persistentvolumeclaims/data")).await.ok();
    assert_eq!(deleted.body["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    // when the controller has seen the deletion
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("later", "1Gi")).await.ok();
    eventually("the other is bound", || async { volume_of(&test_server, "later").await.is_some() })
        .await;
    // then the claim is still there, and bound
    let held = test_server.get(&format!("{NS}/persistentvolumeclaims/data")).await.ok().body;
    assert!(held["metadata"]["deletionTimestamp"].is_string(), "{held}");
    assert_eq!(held["status"]["phase"], "Bound");
    let shown = test_server.get(&format!("{VOLUMES}/{volume}")).await.ok();
    assert_eq!(shown.body["status"]["phase"], "Bound");
    assert!(path.exists(), "a pod may still write to it");
    test_server
        .delete_with(&format!("{NS}/pods/user"), json!({"gracePeriodSeconds": 0}))
        .await
        .ok();
    eventually("the claim is gone", || async {
        test_server.get(&format!("{NS}/persistentvolumeclaims/data")).await.code == 404
    })
    .await;
    eventually("the volume is gone", || async {
        test_server.get(&format!("{VOLUMES}/{volume}")).await.code == 404
    })
    .await;
    assert!(!path.exists());
}

#[tokio::test]
async fn pod_without_a_node_does_not_hold_a_claim() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    let mut waiting = pod("waiting", "");
    waiting["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    test_server.post(&format!("{NS}/pods"), waiting).await.ok();
    test_server.delete(&format!("{NS}/persistentvolumeclaims/data")).await.ok();
    eventually("the claim is gone", || async {
        test_server.get(&format!("{NS}/persistentvolumeclaims/data")).await.code == 404
    })
    .await;
}

#[tokio::test]
async fn bound_volume_stays_until_its_claim_is_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    eventually("it is bound", || async { volume_of(&test_server, "data").await.is_some() }).await;
    let volume = volume_of(&test_server, "data").await.unwrap();
    let address = format!("{VOLUMES}/{volume}");
    std::fs::create_dir_all(directory.path().join(&volume)).unwrap();
    let deleted = test_server.delete(&address).await.ok().body;
    assert_eq!(deleted["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    // when the controller has seen the deletion
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("later", "1Gi")).await.ok();
    eventually("the other is bound", || async { volume_of(&test_server, "later").await.is_some() })
        .await;
    assert_eq!(test_server.get(&address).await.ok().body["status"]["phase"], "Bound");
    test_server.delete(&format!("{NS}/persistentvolumeclaims/data")).await.ok();
    eventually("it is gone", || async { test_server.get(&address).await.code == 404 }).await;
    assert!(!directory.path().join(&volume).exists(), "its directory is gone with it");
    // one that nothing claims goes at once
    let unclaimed = json!({"metadata": {"name": "spare"}, "spec": {"capacity": {"storage": "1Mi"},
        "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/srv/data"}}});
    test_server.post(VOLUMES, unclaimed).await.ok();
    test_server.delete(&format!("{VOLUMES}/spare")).await.ok();
    eventually("it is gone", || async {
        test_server.get(&format!("{VOLUMES}/spare")).await.code == 404
    })
    .await;
}

#[tokio::test]
async fn claims_of_an_earlier_build_are_protected_from_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    let address = format!("{NS}/persistentvolumeclaims/data");
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    eventually("it is bound", || async { volume_of(&test_server, "data").await.is_some() }).await;
    let volume = format!("{VOLUMES}/{}", volume_of(&test_server, "data").await.unwrap());
    // An earlier build stored neither finalizer.
    for (address, finalizer) in [(&address, "pvc-protection"), (&volume, "pv-protection")] {
        test_server.merge(address, json!({"metadata": {"finalizers": null}})).await.ok();
        let want = json!([format!("kubernetes.io/{finalizer}")]);
        eventually("it is protected", || async {
            test_server.get(address).await.body["metadata"]["finalizers"] == want
        })
        .await;
    }
}

#[tokio::test]
async fn matching_volume_is_bound_and_retained() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    for (name, size) in [("large", "10Gi"), ("small", "2Gi")] {
        let volume = json!({
            "metadata": {"name": name},
            "spec": {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"],
                     "hostPath": {"path": "/srv/data"}},
        });
        test_server.post(VOLUMES, volume).await.ok();
    }
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("data", "1Gi")).await.ok();
    eventually("it is bound", || async {
        volume_of(&test_server, "data").await.as_deref() == Some("small")
    })
    .await;
    test_server.delete(&format!("{NS}/persistentvolumeclaims/data")).await.ok();
    eventually("the volume is released", || async {
        test_server.get(&format!("{VOLUMES}/small")).await.body["status"]["phase"] == "Released"
    })
    .await;
}

#[tokio::test]
async fn claim_with_empty_storage_class_waits_for_a_volume() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    let mut wanting = claim("wanting", "1Gi");
    wanting["spec"]["storageClassName"] = json!("");
    test_server.post(&format!("{NS}/persistentvolumeclaims"), wanting).await.ok();
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("other", "1Gi")).await.ok();
    eventually("the other is bound", || async { volume_of(&test_server, "other").await.is_some() })
        .await;
    assert_eq!(volume_of(&test_server, "wanting").await, None);
}

#[tokio::test]
async fn failure_to_reclaim_a_volume_does_not_delay_others() {
    let directory = tempfile::tempdir().unwrap();
    let (test_server, _alive) = with_controllers(directory.path()).await;
    let mut volumes = Vec::new();
    // given three claims, each with a directory that cannot be removed; whatever the order, two of
    // them are not the first
    for name in ["a", "b", "c"] {
        test_server.post(&format!("{NS}/persistentvolumeclaims"), claim(name, "1Gi")).await.ok();
        eventually("it is bound", || async { volume_of(&test_server, name).await.is_some() }).await;
        let volume = volume_of(&test_server, name).await.unwrap();
        std::fs::create_dir_all(directory.path().join(&volume)).unwrap();
        std::fs::write(directory.path().join(&volume).join("immutable"), "").unwrap();
        volumes.push(volume);
    }
    for name in ["a", "b", "c"] {
        test_server.delete(&format!("{NS}/persistentvolumeclaims/{name}")).await.ok();
    }
    let status = async |volume: &str| test_server.get(&format!("{VOLUMES}/{volume}")).await;
    for volume in &volumes {
        eventually("the failure is shown", || async {
            status(volume).await.body["status"]["phase"] == "Failed"
        })
        .await;
        let shown = status(volume).await.body;
        assert_eq!(shown["status"]["message"], "immutable: not permitted", "{shown}");
    }
    // when one of them can be removed, it is removed, whatever happens to the others
    std::fs::remove_file(directory.path().join(&volumes[1]).join("immutable")).unwrap();
    test_server.post(&format!("{NS}/persistentvolumeclaims"), claim("another", "1Gi")).await.ok();
    eventually("it is gone", || async { status(&volumes[1]).await.code == 404 }).await;
    assert!(!directory.path().join(&volumes[1]).exists());
    for kept in [&volumes[0], &volumes[2]] {
        assert_eq!(status(kept).await.body["status"]["phase"], "Failed");
        assert!(directory.path().join(kept).join("immutable").exists());
    }
}
