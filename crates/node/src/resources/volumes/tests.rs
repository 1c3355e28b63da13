//! Volume tests on real mounts, with an embedded API server.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use podwright_core::pod::Source;
use podwright_core::users::UserRange;
use podwright_testkit::needs_root;
use rustix::mount::MountFlags;
use serde_json::{Value, json};
use tempfile::TempDir;

use podwright_host::mounts::{self, InUse, Propagation};

use super::*;

const PLAIN: Propagation = Propagation::FromSource;

pub(super) struct Scene {
    pub(super) dir: TempDir,
    pub(super) client: kube::Client,
    pub(super) volumes: Arc<Volumes>,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let client = crate::resources::objects::tests::api().await;
        let account = serde_json::from_value(json!({"metadata": {"name": "robot"}})).unwrap();
        let accounts: Api<v1::ServiceAccount> = Api::default_namespaced(client.clone());
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let volumes = Arc::new(volumes_in(&dir, &client));
        Self { dir, client, volumes }
    }

    /// Replaces the volume manager, as a restart of the agent does.
    pub(super) fn restart(&mut self) {
        self.volumes = Arc::new(volumes_in(&self.dir, &self.client));
    }

    async fn create<K>(&self, object: Value)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::default_namespaced(self.client.clone());
        let object = serde_json::from_value(object).unwrap();
        api.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn edit_map(&self, name: &str, data: Value) {
        let api: Api<v1::ConfigMap> = Api::default_namespaced(self.client.clone());
        let change = Patch::Merge(json!({ "data": data }));
        api.patch(name, &PatchParams::default(), &change).await.unwrap();
    }

    /// A pod created in the API, with all its volumes mounted in its container.
    pub(super) async fn pod(&self, spec: Value) -> Arc<Pod> {
        self.named_pod("p", spec).await
    }

    pub(super) async fn named_pod(&self, name: &str, mut spec: Value) -> Arc<Pod> {
        let names: Vec<Value> = spec["volumes"].as_array().unwrap().clone();
        let mounts = names.iter().map(|volume| {
            let name = volume["name"].as_str().unwrap();
            json!({"name": name, "mountPath": format!("/{name}")})
        });
        let mounts: Vec<Value> = mounts.collect();
        if spec["containers"].is_null() {
            spec["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        spec["containers"][0]["volumeMounts"] = json!(mounts);
        spec["serviceAccountName"] = json!("robot");
        let object = json!({"metadata": {"name": name, "labels": {"app": "x"}}, "spec": spec});
        let api: Api<v1::Pod> = Api::default_namespaced(self.client.clone());
        let object: v1::Pod = serde_json::from_value(object).unwrap();
        let made = api.create(&PostParams::default(), &object).await.unwrap();
        let pod = Arc::new(Pod::parse(made, Source::Api).unwrap());
        self.volumes.make_directories(&pod).unwrap();
        pod
    }

    /// A claim `c` and the local volume `pv` at this path, bound to the claim with the UID `for_uid`,
    /// or to this one if that is empty.
    pub(super) async fn claim_on(&self, data: &Path, for_uid: &str) -> v1::PersistentVolumeClaim {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let claims: Api<v1::PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeName": "pv",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = serde_json::from_value(claim).unwrap();
        let claim = claims.create(&PostParams::default(), &claim).await.unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        claims.patch_status("c", &PatchParams::default(), &bound).await.unwrap();
        let uid = if for_uid.is_empty() { claim.metadata.uid.as_deref().unwrap() } else { for_uid };
        let persistent: Api<v1::PersistentVolume> = Api::all(self.client.clone());
        let volume = json!({"metadata": {"name": "pv"}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "local": {"path": data}, "claimRef": {"namespace": "default", "name": "c", "uid": uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}}}});
        let volume = serde_json::from_value(volume).unwrap();
        persistent.create(&PostParams::default(), &volume).await.unwrap();
        claim
    }

    /// A claim `c` whose directory a standalone node makes; returns its path.
    async fn claim_directory(&self) -> PathBuf {
        let nodes: Api<v1::Node> = Api::all(self.client.clone());
        let node = serde_json::from_value(json!({"metadata": {"name": "n1"}})).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
        let claims: Api<v1::PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let name = "pvc-12ab";
        let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeName": name,
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        let claim = serde_json::from_value(claim).unwrap();
        let claim = claims.create(&PostParams::default(), &claim).await.unwrap();
        let bound = Patch::Merge(json!({"status": {"phase": "Bound"}}));
        claims.patch_status("c", &PatchParams::default(), &bound).await.unwrap();
        let claims = self.dir.path().join("claims");
        std::fs::create_dir(&claims).unwrap();
        std::fs::set_permissions(&claims, PermissionsExt::from_mode(0o700)).unwrap();
        let path = claims.join(name);
        let provisioned = json!({"pv.kubernetes.io/provisioned-by": "podwright"});
        let volume = json!({
            "metadata": {"name": name, "annotations": provisioned},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": path, "type": "DirectoryOrCreate"},
                "claimRef": {"namespace": "default", "name": "c", "uid": claim.metadata.uid}},
        });
        let volume = serde_json::from_value(volume).unwrap();
        let persistent: Api<v1::PersistentVolume> = Api::all(self.client.clone());
        persistent.create(&PostParams::default(), &volume).await.unwrap();
        path
    }

    pub(super) fn at(&self, pod: &Pod, volume: &str) -> PathBuf {
        let mounted = self.volumes.mounted(&pod.uid);
        PathBuf::from(mounted[volume].directory().unwrap())
    }

    async fn edited(&self, pod: &Pod) {
        let told = tokio::time::timeout(Duration::from_secs(30), async {
            while !self.volumes.sources.objects.changed().next().await.contains(&pod.uid) {}
        });
        told.await.unwrap();
        self.volumes.known.lock()[&pod.uid].mark_outdated();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let table = mounts::table(Path::new("/proc")).unwrap();
        for mount in mounts::at_or_below(&table, self.dir.path()) {
            let _ = mounts::detach_own(&mount.point, InUse::Detach);
        }
    }
}

fn volumes_in(dir: &TempDir, client: &kube::Client) -> Volumes {
    let objects = Objects::new(Some(client.clone()), "n1".into());
    let node = ResourceList::from([("memory".to_owned(), "64Mi".parse().unwrap())]);
    let users = Arc::new(Users::new(UserRange::for_pods(110, 0)));
    Volumes::new(&dir.path().join("root"), users, objects, node, Clock::real()).unwrap()
}

fn text(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn mode(path: impl AsRef<Path>) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn is_in_memory(path: &Path) -> bool {
    let table = mounts::table(Path::new("/proc")).unwrap();
    table.iter().any(|mount| mount.point == path && mount.fs_type == "tmpfs")
}

#[tokio::test]
async fn object_volumes_have_their_files_and_modes() {
    needs_root!();
    let scene = Scene::new().await;
    scene
        .create::<v1::ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "1", "b": "2"},
            "binaryData": {"raw": "AAH/"}}))
        .await;
    scene
        .create::<v1::Secret>(json!({"metadata": {"name": "s"}, "stringData": {"k": "hunter2"}}))
        .await;
    let pod = scene
        .pod(json!({"securityContext": {"fsGroup": 4321}, "volumes": [
            {"name": "map", "configMap": {"name": "m", "defaultMode": 0o600,
                "items": [{"key": "a", "path": "sub/a", "mode": 0o444}, {"key": "raw", "path": "r"}]}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "down", "downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "all", "projected": {"sources": [
                {"configMap": {"name": "m"}}, {"secret": {"name": "s"}},
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}]}},
        ]}))
        .await;
    scene.volumes.mount(&pod).await.unwrap();

    let map = scene.at(&pod, "map");
    assert!(map.ends_with(format!("pods/{}/volumes/kubernetes.io~configmap/map", pod.uid)));
    assert_eq!((text(map.join("sub/a")), mode(map.join("sub/a"))), ("1".into(), 0o444));
    assert_eq!(std::fs::read(map.join("r")).unwrap(), [0, 1, 255]);
    assert_eq!(mode(map.join("r")), 0o640, "the group may read it");
    assert_eq!(std::fs::metadata(map.join("r")).unwrap().gid(), 4321);
    assert!(!map.join("b").exists(), "only the listed items");
    assert!(!is_in_memory(&map));

    for (volume, file, want) in
        [("secret", "k", "hunter2"), ("down", "labels", "app=\"x\""), ("all", "a", "1")]
    {
        let path = scene.at(&pod, volume);
        assert!(is_in_memory(&path), "{volume}");
        assert_eq!(text(path.join(file)), want);
    }
    let token = scene.at(&pod, "all").join("token");
    assert_eq!(text(&token).split('.').count(), 3, "a signed token");
    assert_eq!(mode(&token), 0o640);
    assert!(scene.volumes.mounted(&pod.uid).values().all(|volume| volume.read_only));

    scene.volumes.release(&pod.uid).await.unwrap();
    let left: Vec<_> = std::fs::read_dir(scene.volumes.pod_dir(&pod.uid)).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing is left but containers/: {left:?}");
    let table = mounts::table(Path::new("/proc")).unwrap();
    assert!(mounts::at_or_below(&table, scene.dir.path()).is_empty());
}

#[tokio::test]
async fn edit_replaces_content_atomically_and_sub_path_keeps_the_old_file() {
    needs_root!();
    let scene = Scene::new().await;
    scene.create::<v1::ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).await;
    let pod = scene
        .pod(json!({"volumes": [
            {"name": "map", "configMap": {"name": "m"}},
            {"name": "later", "secret": {"secretName": "s", "optional": true}},
        ]}))
        .await;
    scene.volumes.mount(&pod).await.unwrap();
    let (map, later) = (scene.at(&pod, "map"), scene.at(&pod, "later"));
    let edition = std::fs::read_link(map.join("..data")).unwrap();
    let volume = map.to_string_lossy();
    let part = scene.volumes.bind_sub_path(&pod.uid, &volume, "a", "map/c/0", PLAIN);
    let part = part.await.unwrap();
    assert_eq!(text(&part), "1");

    scene.edit_map("m", json!({"a": "2", "b": "3"})).await;
    scene.edited(&pod).await;
    scene.volumes.mount(&pod).await.unwrap();
    assert_eq!((text(map.join("a")), text(map.join("b"))), ("2".into(), "3".into()));
    assert_ne!(std::fs::read_link(map.join("..data")).unwrap(), edition);
    assert_eq!(text(&part), "1", "the subPath keeps the old content");
    assert!(!later.join("k").exists());

    scene.create::<v1::Secret>(json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}})).await;
    scene.edited(&pod).await;
    scene.volumes.mount(&pod).await.unwrap();
    assert_eq!(text(later.join("k")), "v", "an optional Secret appears later");
    scene.volumes.release(&pod.uid).await.unwrap();
}

/// A refresh that began before the pod's volumes are released ends after it.
#[tokio::test]
async fn no_volume_is_set_up_once_the_release_of_the_pods_volumes_has_begun() {
    needs_root!();
    let scene = Scene::new().await;
    scene.create::<v1::ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).await;
    let pod = scene.pod(json!({"volumes": [{"name": "map", "configMap": {"name": "m"}}]})).await;
    scene.volumes.mount(&pod).await.unwrap();
    let (map, entry) = (scene.at(&pod, "map"), scene.volumes.known.lock()[&pod.uid].clone());
    assert!(entry.is_ready());
    entry.lock_work().await.closed = true;
    scene.edit_map("m", json!({"a": "2"})).await;
    scene.edited(&pod).await;
    scene.volumes.set_up_volumes(&pod).await;
    assert_eq!(text(map.join("a")), "1");
    assert!(!entry.is_ready(), "no container starts on them");
    scene.volumes.release(&pod.uid).await.unwrap();
    assert!(!map.exists());
}

#[tokio::test]
async fn missing_sources_are_named_and_retried() {
    needs_root!();
    let scene = Scene::new().await;
    let pod = scene
        .pod(json!({"volumes": [
            {"name": "s", "secret": {"secretName": "absent"}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "none"}},
            {"name": "n", "nfs": {"server": "192.0.2.1", "path": "/x"}},
            {"name": "e", "emptyDir": {}},
        ]}))
        .await;
    let missing = scene.volumes.mount(&pod).await.unwrap_err();
    let errors: Vec<String> = missing.errors.iter().map(ToString::to_string).collect();
    assert_eq!(errors[0], r#"MountVolume.SetUp failed for volume "s" : secret "absent" not found"#);
    assert!(errors[1].starts_with(
        "Unable to attach or mount volumes: unmounted volumes=[d], unattached volumes=[], failed \
         to process volumes=[d]: error processing PVC default/none: failed to fetch PVC from API \
         server: "
    ));
    assert!(errors[2].contains("no volume plugin matched: the volume is nfs"), "{}", errors[2]);
    assert_eq!(errors.len(), 3);
    assert!(missing.retry_in <= Duration::from_millis(500));

    let again = scene.volumes.mount(&pod).await.unwrap_err();
    assert!(again.errors.is_empty(), "not retried before the back-off");
    assert!(again.waiting_for.contains("secret \"absent\" not found"));
    scene
        .create::<v1::Secret>(json!({"metadata": {"name": "absent"}, "stringData": {"k": "v"}}))
        .await;
    scene.edited(&pod).await;
    let left = scene.volumes.mount(&pod).await.unwrap_err();
    assert!(!left.waiting_for.contains("absent"), "{}", left.waiting_for);
    scene.volumes.release(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn full_file_system_keeps_the_old_content_complete() {
    needs_root!();
    let scene = Scene::new().await;
    scene.create::<v1::ConfigMap>(json!({"metadata": {"name": "m"}, "data": {"a": "1"}})).await;
    let resources = json!({"limits": {"memory": "64Ki", "cpu": "1"},
        "requests": {"memory": "64Ki", "cpu": "1"}});
    let pod = scene
        .pod(json!({
            "containers": [{"name": "c", "image": "i", "resources": resources}],
            "volumes": [{"name": "all", "projected": {"sources": [{"configMap": {"name": "m"}}]}}],
        }))
        .await;
    scene.volumes.mount(&pod).await.unwrap();
    let path = scene.at(&pod, "all");
    scene.edit_map("m", json!({"a": "2", "big": "x".repeat(900 << 10)})).await;
    scene.edited(&pod).await;
    scene.volumes.mount(&pod).await.unwrap();
    let outcome = scene.volumes.known.lock()[&pod.uid].clone();
    assert!(outcome.wake_at().is_some(), "it is retried");
    assert_eq!(text(path.join("a")), "1");
    let editions = std::fs::read_dir(&path).unwrap().flatten();
    let editions = editions.filter(|e| e.file_name().to_string_lossy().starts_with("..2"));
    assert_eq!(editions.count(), 1, "the partly written one is removed");
    scene.volumes.release(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn memory_empty_dir_has_its_size_and_keeps_content_across_agent_restart() {
    needs_root!();
    let mut scene = Scene::new().await;
    let pod = scene
        .pod(json!({"securityContext": {"fsGroup": 4321}, "volumes": [
            {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
            {"name": "d", "emptyDir": {}},
        ]}))
        .await;
    scene.volumes.mount(&pod).await.unwrap();
    let (memory, disk) = (scene.at(&pod, "m"), scene.at(&pod, "d"));
    let size = rustix::fs::statvfs(&memory).unwrap();
    assert_eq!(size.f_blocks * size.f_frsize, 8 << 20);
    assert_eq!((mode(&disk), std::fs::metadata(&disk).unwrap().gid()), (0o2777, 4321));
    std::fs::write(memory.join("kept"), "x").unwrap();
    std::fs::write(disk.join("private"), "x").unwrap();
    std::fs::set_permissions(disk.join("private"), PermissionsExt::from_mode(0o600)).unwrap();

    scene.restart();
    scene.volumes.mount(&pod).await.unwrap();
    assert_eq!(text(memory.join("kept")), "x");
    let table = mounts::table(Path::new("/proc")).unwrap();
    let on_it = table.iter().filter(|mount| mount.point == memory).count();
    assert_eq!(on_it, 1, "not mounted twice");
    assert_eq!(mode(disk.join("private")), 0o600, "files of containers are not changed");
    scene.volumes.release(&pod.uid).await.unwrap();
}

#[tokio::test]
async fn claim_resolves_to_its_local_volume_only_if_bound_to_it() {
    needs_root!();
    let scene = Scene::new().await;
    let data = scene.dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("file"), "kept").unwrap();
    let claim = scene.claim_on(&data, "other").await;
    let persistent: Api<v1::PersistentVolume> = Api::all(scene.client.clone());
    let pod = scene
        .pod(json!({"volumes": [{"name": "v", "persistentVolumeClaim":
            {"claimName": "c", "readOnly": true}}]}))
        .await;
    let refused = scene.volumes.mount(&pod).await.unwrap_err();
    assert!(refused.waiting_for.contains("is bound to another claim"), "{}", refused.waiting_for);
    let mine = Patch::Merge(json!({"spec": {"claimRef": {"uid": claim.metadata.uid}}}));
    persistent.patch("pv", &PatchParams::default(), &mine).await.unwrap();
    scene.volumes.known.lock()[&pod.uid].mark_outdated();
    scene.volumes.mount(&pod).await.unwrap();
    let path = scene.at(&pod, "v");
    assert!(path.ends_with("volumes/kubernetes.io~local-volume/pv"));
    assert_eq!(text(path.join("file")), "kept");
    std::fs::write(path.join("file"), "changed").unwrap_err();
    scene.volumes.release(&pod.uid).await.unwrap();
    assert_eq!(text(data.join("file")), "kept", "the data outlives the pod");
}

fn with_claim(context: &Value) -> Value {
    json!({"securityContext": context, "volumes": [
        {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]})
}

#[tokio::test]
async fn directory_of_a_claim_is_open_to_any_user_of_its_pods() {
    needs_root!();
    for (case, before) in [("new", None), ("empty, of an earlier build", Some(0o755))] {
        let scene = Scene::new().await;
        let path = scene.claim_directory().await;
        if let Some(before) = before {
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(before)).unwrap();
        }
        let pod = scene.pod(with_claim(&json!({"runAsUser": 4321}))).await;
        scene.volumes.mount(&pod).await.unwrap();
        assert_eq!(scene.at(&pod, "v"), path, "{case}");
        assert_eq!(mode(&path), 0o777, "{case}");
        scene.volumes.release(&pod.uid).await.unwrap();
        let left: Vec<_> = std::fs::read_dir(scene.volumes.pod_dir(&pod.uid)).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing is left but containers/: {left:?}");
        assert!(path.exists(), "{case}: the data outlives the pod");
    }
}

#[tokio::test]
async fn directory_of_a_claim_with_content_keeps_its_owner_and_mode() {
    needs_root!();
    let scene = Scene::new().await;
    let path = scene.claim_directory().await;
    std::fs::create_dir_all(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(path.join("data"), "x").unwrap();
    let pod = scene.pod(with_claim(&json!({}))).await;
    scene.volumes.mount(&pod).await.unwrap();
    assert_eq!(mode(&path), 0o755);
}

#[tokio::test]
async fn directory_of_a_claim_that_users_of_the_machine_can_reach_stays_closed() {
    needs_root!();
    let scene = Scene::new().await;
    let path = scene.claim_directory().await;
    std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o711)).unwrap();
    let pod = scene.pod(with_claim(&json!({}))).await;
    scene.volumes.mount(&pod).await.unwrap();
    assert_eq!(mode(&path), 0o755);
}

#[tokio::test]
async fn claim_is_given_to_the_group_of_each_new_pod_once() {
    needs_root!();
    let mut scene = Scene::new().await;
    let path = scene.claim_directory().await;
    let file = path.join("private");
    let close = |file: &Path| {
        std::fs::write(file, "x").unwrap();
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o600)).unwrap();
    };
    let group = |path: &Path| std::fs::metadata(path).unwrap().gid();
    let first = scene.named_pod("first", with_claim(&json!({"fsGroup": 4321}))).await;
    scene.volumes.mount(&first).await.unwrap();
    assert_eq!((mode(&path), group(&path)), (0o2777, 4321));
    // what containers do afterwards stays, across restarts of the agent
    close(&file);
    scene.restart();
    scene.volumes.mount(&first).await.unwrap();
    assert_eq!(mode(&file), 0o600);
    // the next pod gets it, unless its policy says that the root shows that nothing is to be done
    let policy = json!({"fsGroup": 4321, "fsGroupChangePolicy": "OnRootMismatch"});
    let second = scene.named_pod("second", with_claim(&policy)).await;
    scene.volumes.mount(&second).await.unwrap();
    assert_eq!(mode(&file), 0o600);
    let third = scene.named_pod("third", with_claim(&json!({"fsGroup": 4321}))).await;
    scene.volumes.mount(&third).await.unwrap();
    assert_eq!((mode(&file), group(&file)), (0o660, 4321));
    // a pod that has run under an earlier build is left alone
    close(&file);
    let fourth = scene.named_pod("fourth", with_claim(&json!({"fsGroup": 4322}))).await;
    std::fs::create_dir_all(scene.volumes.pod_dir(&fourth.uid).join("containers/c")).unwrap();
    scene.volumes.mount(&fourth).await.unwrap();
    assert_eq!((mode(&file), group(&path)), (0o600, 4321));
}

#[tokio::test]
async fn orphan_with_a_foreign_mount_is_kept_and_another_is_removed() {
    needs_root!();
    let mut scene = Scene::new().await;
    let pod =
        scene.pod(json!({"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]})).await;
    scene.volumes.mount(&pod).await.unwrap();
    let foreign = scene.dir.path().join("root/pods/stranger/volumes/kubernetes.io~nfs/data");
    std::fs::create_dir_all(&foreign).unwrap();
    mounts::mount("tmpfs", "tmpfs", &foreign, MountFlags::empty(), "").unwrap();
    std::fs::write(foreign.join("precious"), "x").unwrap();
    scene.restart();
    scene.volumes.remove_orphans(scene.volumes.pods_on_disk().unwrap(), |_| false);
    let gone = async {
        while scene.volumes.pod_dir(&pod.uid).exists() || !scene.volumes.is_settled() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.unwrap();
    assert_eq!(text(foreign.join("precious")), "x");
    let table = mounts::table(Path::new("/proc")).unwrap();
    assert_eq!(mounts::at_or_below(&table, scene.dir.path()).len(), 1);
}

#[tokio::test]
async fn removed_volumes_and_directories_free_the_user_ids_of_their_pod() {
    needs_root!();
    let scene = Scene::new().await;
    let one = scene.named_pod("one", json!({"volumes": []})).await;
    let two = scene.named_pod("two", json!({"volumes": []})).await;
    let ids = |pod: &Pod| scene.volumes.users.of_pod(scene.volumes.pods(), &pod.uid).unwrap();
    let first = ids(&one);
    scene.volumes.release(&one.uid).await.unwrap();
    assert_eq!(ids(&two), first);
    scene.volumes.remove_orphans([two.uid.clone()], |_| false);
    while !scene.volumes.is_settled() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(ids(&one), first);
}

#[tokio::test]
async fn pod_with_a_hanging_mount_blocks_no_other_pod() {
    needs_root!();
    let scene = Scene::new().await;
    let spec = json!({"volumes": [{"name": "e", "emptyDir": {}}]});
    let hangs = scene.named_pod("hangs", spec.clone()).await;
    scene.volumes.mount(&hangs).await.unwrap();
    // given: an operation that hangs holds the lock of the pod
    let entry = scene.volumes.known.lock()[&hangs.uid].clone();
    let guard = entry.lock_work().await;
    // when other pods are set up and released, and waits for the hanging one time out
    for name in ["a", "b", "c", "d", "e"] {
        let other = scene.named_pod(name, spec.clone()).await;
        scene.volumes.mount(&other).await.unwrap();
        scene.volumes.release(&other.uid).await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_millis(1), scene.volumes.mount(&hangs));
        assert!(waiting.await.is_err());
    }
    // then the lock is still held, and the pod continues after the operation has ended
    drop(guard);
    scene.volumes.mount(&hangs).await.unwrap();
    scene.volumes.release(&hangs.uid).await.unwrap();
}

#[tokio::test]
async fn env_file_is_read_inside_its_volume_only() {
    needs_root!();
    let scene = Scene::new().await;
    let pod = scene.pod(json!({"volumes": [{"name": "e", "emptyDir": {}}]})).await;
    scene.volumes.mount(&pod).await.unwrap();
    let path = scene.at(&pod, "e");
    std::fs::write(path.join("env"), "K='v'").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", path.join("evil")).unwrap();
    let read = async |volume: &str, file: &str| {
        let read = scene.volumes.env_file(&pod.uid, volume, file).await;
        read.map(|found| found.map(|file| file.content))
    };
    assert_eq!(read("e", "env").await, Some(Some(b"K='v'".to_vec())));
    for file in ["evil", "../../../etc-hosts", "/etc/passwd", "missing"] {
        assert_eq!(read("e", file).await, Some(None), "{file}");
    }
    assert_eq!(read("other", "env").await, None);
    scene.volumes.release(&pod.uid).await.unwrap();
}
