//! Volume teardown next to mounts of the host, on real mounts.

use std::process::Command;

use podwright_host::mounts::{self, InUse, Propagation};
use rustix::mount::MountFlags;
use serde_json::json;

use super::tests::Scene;
use super::*;

macro_rules! needs_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            return;
        }
    };
}

/// A shared mount of the host, beside the root directory, which is a shared mount, too.
struct Host {
    scene: Scene,
}

impl Host {
    async fn new() -> Self {
        let scene = Scene::new().await;
        let this = Self { scene };
        for name in ["mnt", "root"] {
            this.mount(name);
            assert!(
                Command::new("mount")
                    .arg("--make-shared")
                    .arg(this.path(name))
                    .status()
                    .unwrap()
                    .success()
            );
        }
        std::fs::create_dir(this.path("mnt/disks")).unwrap();
        // The directory of pods is on the new file system.
        let mut this = this;
        this.scene.restart();
        this
    }

    fn path(&self, path: &str) -> PathBuf {
        self.scene.dir.path().join(path)
    }

    /// Mounts a file system with a file in it, as a user of the host would.
    fn mount(&self, path: &str) -> PathBuf {
        let path = self.path(path);
        std::fs::create_dir_all(&path).unwrap();
        mounts::mount("tmpfs", "users", &path, MountFlags::empty(), "").unwrap();
        std::fs::write(path.join("file"), "precious").unwrap();
        path
    }

    fn is_there(&self, path: &str) -> bool {
        let text = std::fs::read_to_string(self.path(path).join("file"));
        text.is_ok_and(|text| text == "precious")
    }

    fn mounts_of_pods(&self) -> Vec<PathBuf> {
        let table = mounts::table(Path::new("/proc")).unwrap();
        let of_pods = mounts::at_or_below(&table, &self.path("root/pods"));
        of_pods.into_iter().map(|mount| mount.point.clone()).collect()
    }
}

#[tokio::test]
async fn released_sub_path_leaves_the_mounts_of_the_host() {
    needs_root!();
    for propagation in [Propagation::FromSource, Propagation::Both] {
        let host = Host::new().await;
        let mnt = host.path("mnt");
        let spec = json!({"volumes": [{"name": "h", "hostPath": {"path": mnt}}]});
        let pod = host.scene.pod(spec).await;
        host.mount("mnt/disks/before");
        host.scene.volumes.mount(&pod).await.unwrap();
        let volume = host.scene.at(&pod, "h").to_string_lossy().into_owned();
        let bound =
            host.scene.volumes.bind_sub_path(&pod.uid, &volume, "disks", "h/c/0", propagation);
        let bound = bound.await.unwrap();
        host.mount("mnt/disks/later");
        host.mount("mnt/disks/later/nested");
        assert!(bound.join("later/nested/file").exists(), "HostToContainer depends on it");

        host.scene.volumes.release(&pod.uid).await.unwrap();

        for path in ["mnt", "mnt/disks/before", "mnt/disks/later", "mnt/disks/later/nested"] {
            assert!(host.is_there(path), "{propagation:?}: the host lost {path}");
        }
        assert_eq!(host.mounts_of_pods(), Vec::<PathBuf>::new());
    }
}

#[tokio::test]
async fn released_local_volume_leaves_the_mounts_below_its_source() {
    needs_root!();
    let host = Host::new().await;
    host.scene.claim_on(&host.path("mnt/disks"), "").await;
    let claim = json!({"claimName": "c"});
    let spec = json!({"volumes": [{"name": "v", "persistentVolumeClaim": claim}]});
    let pod = host.scene.pod(spec).await;
    host.scene.volumes.mount(&pod).await.unwrap();
    host.mount("mnt/disks/later");
    assert!(host.scene.at(&pod, "v").join("later/file").exists());
    host.scene.volumes.release(&pod.uid).await.unwrap();
    assert!(host.is_there("mnt/disks/later"));
    assert_eq!(host.mounts_of_pods(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn foreign_mount_in_an_empty_dir_is_named_and_nothing_is_lost() {
    needs_root!();
    let host = Host::new().await;
    let volumes = json!([
        {"name": "disk", "emptyDir": {}}, {"name": "other", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]);
    let pod = host.scene.pod(json!({"volumes": volumes})).await;
    let neighbour = host.scene.named_pod("neighbour", json!({"volumes": volumes})).await;
    for pod in [&pod, &neighbour] {
        host.scene.volumes.mount(pod).await.unwrap();
    }
    let kept = host.scene.at(&pod, "other").join("kept");
    let in_memory = host.scene.at(&pod, "memory").join("kept");
    for path in [&kept, &in_memory] {
        std::fs::write(path, "x").unwrap();
    }
    let inside = host.scene.at(&pod, "disk").join("inside");
    let relative = inside.strip_prefix(host.scene.dir.path()).unwrap().to_str().unwrap().to_owned();
    host.mount(&relative);

    let error = host.scene.volumes.release(&pod.uid).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("Fix: umount {}", inside.display())), "{text}");
    assert!(host.is_there(&relative) && kept.exists() && in_memory.exists());
    // and the other pod is not affected
    host.scene.volumes.release(&neighbour.uid).await.unwrap();
    assert!(!host.scene.volumes.has_volumes(&neighbour.uid));

    // when the user unmounts it, release succeeds
    mounts::detach_own(&inside, InUse::Fail).unwrap();
    host.scene.volumes.release(&pod.uid).await.unwrap();
    assert!(!host.scene.volumes.has_volumes(&pod.uid));
    assert_eq!(host.mounts_of_pods(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn tmpfs_on_a_disk_backed_empty_dir_is_foreign() {
    needs_root!();
    let mut host = Host::new().await;
    let volumes = json!([
        {"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]);
    let pod = host.scene.pod(json!({"volumes": volumes})).await;
    host.scene.volumes.mount(&pod).await.unwrap();
    let (disk, memory) = (host.scene.at(&pod, "disk"), host.scene.at(&pod, "memory"));
    let relative = disk.strip_prefix(host.scene.dir.path()).unwrap().to_str().unwrap().to_owned();
    host.mount(&relative);
    let markers = ["disk", "memory"].map(|name| {
        let plugin = host.scene.volumes.pod_dir(&pod.uid).join("plugins/kubernetes.io~empty-dir");
        plugin.join(name).join("ready")
    });
    // given: also the record of an earlier version, after this version has set the pod up
    for earlier in [false, true] {
        if earlier {
            for marker in &markers {
                std::fs::write(marker, "").unwrap();
            }
            host.scene.restart();
            host.scene.volumes.mount(&pod).await.unwrap();
        }
        let error = host.scene.volumes.release(&pod.uid).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("Fix: umount {}", disk.display())), "{text}");
        assert!(host.is_there(&relative) && mounts::is_mount_point(&memory).unwrap());
    }
    mounts::detach_own(&disk, InUse::Fail).unwrap();
    host.scene.volumes.release(&pod.uid).await.unwrap();
    assert_eq!(host.mounts_of_pods(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn memory_volume_of_an_earlier_version_is_unmounted_without_a_recorded_medium() {
    needs_root!();
    let host = Host::new().await;
    let spec = json!({"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]});
    let pod = host.scene.pod(spec).await;
    let marker = Path::new("plugins/kubernetes.io~empty-dir/m/ready");
    for content in [Some(""), None] {
        host.scene.volumes.make_directories(&pod).unwrap();
        host.scene.volumes.mount(&pod).await.unwrap();
        let marker = host.scene.volumes.pod_dir(&pod.uid).join(marker);
        match content {
            Some(content) => std::fs::write(&marker, content).unwrap(),
            // An agent killed between the mount and the marker leaves none.
            None => std::fs::remove_file(&marker).unwrap(),
        }
        host.scene.volumes.release(&pod.uid).await.unwrap();
        assert_eq!(host.mounts_of_pods(), Vec::<PathBuf>::new(), "{content:?}");
    }
}

#[tokio::test]
async fn directory_that_is_not_of_a_pod_is_never_removed() {
    needs_root!();
    let mut host = Host::new().await;
    let pods = host.path("root/pods");
    let kept = ["lost+found", "backup", "lost+found/volumes", "lost+found/plugins", "0a0b"];
    for directory in kept {
        std::fs::create_dir_all(pods.join(directory)).unwrap();
    }
    for file in ["lost+found/#12", "backup/data", "notes"] {
        std::fs::write(pods.join(file), "precious").unwrap();
    }
    let uid = "9a5b1c7e-8f7e-4c7b-9c52-3f0d9b6f1a2b";
    let ours = [
        "a/volumes",
        "b/plugins",
        "c/containers",
        "d/volume-subpaths",
        uid,
        "0123456789abcdef0123456789abcdef",
    ];
    for directory in ours {
        std::fs::create_dir_all(pods.join(directory)).unwrap();
    }
    std::fs::create_dir(pods.join("e")).unwrap();
    std::fs::write(pods.join("e/etc-hosts"), "").unwrap();
    host.scene.restart();
    let on_disk = host.scene.volumes.pods_on_disk().unwrap();
    host.scene.volumes.remove_orphans(on_disk, |_| false);
    while !host.scene.volumes.is_settled() {
        tokio::task::yield_now().await;
    }
    for path in kept.into_iter().chain(["lost+found/#12", "backup/data", "notes"]) {
        assert!(pods.join(path).exists(), "{path} was removed");
    }
    for path in ours.into_iter().chain(["e"]) {
        let directory = pods.join(path.split('/').next().unwrap());
        assert!(!directory.exists(), "{path} was not removed");
    }
}

#[tokio::test]
async fn file_system_mounted_only_inside_a_volume_is_not_lost() {
    needs_root!();
    let host = Host::new().await;
    let spec = json!({"volumes": [{"name": "m", "emptyDir": {"medium": "Memory"}}]});
    let pod = host.scene.pod(spec).await;
    host.scene.volumes.mount(&pod).await.unwrap();
    let inside = host.scene.at(&pod, "m").join("inside");
    let relative = inside.strip_prefix(host.scene.dir.path()).unwrap().to_str().unwrap().to_owned();
    host.mount(&relative);
    let error = host.scene.volumes.release(&pod.uid).await.unwrap_err();
    let text = crate::error_chain::chain(&error);
    assert!(text.contains(&format!("Fix: umount {}", inside.display())), "{text}");
    assert!(host.is_there(&relative));
    // when it is also mounted elsewhere, the release does not lose it
    std::fs::create_dir(host.path("mnt/seen")).unwrap();
    mounts::bind(&inside, &host.path("mnt/seen"), Propagation::FromSource).unwrap();
    host.scene.volumes.release(&pod.uid).await.unwrap();
    assert!(host.is_there("mnt/seen"));
    assert_eq!(host.mounts_of_pods(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn released_pod_keeps_its_directory_while_a_source_names_it() {
    needs_root!();
    let host = Host::new().await;
    let pod = host.scene.pod(json!({"volumes": [{"name": "e", "emptyDir": {}}]})).await;
    host.scene.volumes.mount(&pod).await.unwrap();
    let directory = host.scene.volumes.open_pod_dir(&pod.uid).unwrap();
    std::fs::create_dir(directory.path().join("containers/c")).unwrap();
    let message = directory.path().join("containers/c/1");
    std::fs::write(&message, "done").unwrap();
    assert!(host.scene.volumes.has_volumes(&pod.uid));
    host.scene.volumes.release(&pod.uid).await.unwrap();
    assert!(!host.scene.volumes.has_volumes(&pod.uid));
    let settled = async || {
        while !host.scene.volumes.is_settled() {
            tokio::task::yield_now().await;
        }
    };
    // given: a source still names the finished pod
    host.scene.volumes.remove_orphans([pod.uid.clone()], |uid| *uid == pod.uid);
    settled().await;
    assert_eq!(std::fs::read_to_string(&message).unwrap(), "done");
    let on_disk = host.scene.volumes.pods_on_disk().unwrap();
    host.scene.volumes.remove_orphans(on_disk, |_| false);
    let again = host.scene.volumes.make_directories(&pod).unwrap_err();
    assert!(matches!(again, VolumeError::BeingRemoved { .. }), "{again}");
    settled().await;
    assert!(!host.scene.volumes.pod_dir(&pod.uid).exists());
    host.scene.volumes.make_directories(&pod).unwrap();
}
