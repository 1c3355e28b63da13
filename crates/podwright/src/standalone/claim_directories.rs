//! Removal of the directories of PersistentVolumeClaims.

use std::io;
use std::path::{Path, PathBuf};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use podwright_apiserver::ReclaimDirectory;
use podwright_host::files::Root;
use podwright_host::threads;

/// Removes directories the same way as those of pods: entry by entry, beneath the parent, without
/// following links or mounts.
pub struct HostDirectories;

impl ReclaimDirectory for HostDirectories {
    fn reclaim(&self, directory: PathBuf) -> BoxFuture<'static, io::Result<()>> {
        async move {
            let removed = threads::blocking(move || remove(&directory)).await;
            removed.unwrap_or_else(|error| Err(io::Error::other(error)))
        }
        .boxed()
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(io::Error::other(format!(
            "{} is not the directory of a claim",
            directory.display()
        )));
    };
    let removed = match Root::open(parent) {
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => Err(error),
        Ok(root) => root.remove_dir_all(name),
    };
    removed.map_err(|error| io::Error::other(format!("{:#}", anyhow::Error::new(error))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
    use kube::Api;
    use kube::api::{DeleteParams, PostParams};
    use podwright_apiserver::{
        ApiServer, ClaimDirectories, Clock, Identity, Ids, Limits, Settings, Store,
    };
    use podwright_host::mounts::{self, InUse};
    use rustix::fs::Mode;
    use rustix::mount::MountFlags;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// An API server that removes directories of claims.
    struct Server {
        claims: Api<PersistentVolumeClaim>,
        volumes: Api<PersistentVolume>,
        directory: tempfile::TempDir,
        stop: CancellationToken,
    }

    impl Server {
        async fn start() -> Self {
            // In memory, because creating a hundred thousand directories on disk is slow.
            let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            let directory = directory.unwrap();
            let clock = Clock::system();
            let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
            let mut settings = Settings::new(clock, Ids::seeded(1));
            let path = directory.path().to_owned();
            settings.volumes = Some(ClaimDirectories { path, reclaim: Arc::new(HostDirectories) });
            let server = ApiServer::start(store, settings).await.unwrap();
            let client = kube::Client::new(server.service(Identity::admin()), "default");
            let stop = CancellationToken::new();
            let token = stop.clone();
            tokio::spawn(async move { server.run_controllers(token).await });
            let claims = Api::default_namespaced(client.clone());
            Self { claims, volumes: Api::all(client), directory, stop }
        }

        /// Creates a bound claim and its directory.
        async fn claim(&self, name: &str) -> PathBuf {
            let claim = json!({"metadata": {"name": name}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
            let claim = serde_json::from_value(claim).unwrap();
            self.claims.create(&PostParams::default(), &claim).await.unwrap();
            let volume = self.until(async || {
                let claim = self.claims.get(name).await.unwrap();
                claim.spec.unwrap().volume_name
            });
            let directory = self.directory.path().join(volume.await);
            std::fs::create_dir(&directory).unwrap();
            directory
        }

        async fn delete(&self, name: &str) {
            self.claims.delete(name, &DeleteParams::default()).await.unwrap();
        }

        /// Waits until `done` returns a value; panics on timeout.
        async fn until<T>(&self, done: impl AsyncFn() -> Option<T>) -> T {
            let waiting = async {
                loop {
                    if let Some(done) = done().await {
                        return done;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap()
        }

        async fn phase(&self, directory: &Path) -> Option<String> {
            let name = directory.file_name().unwrap().to_str().unwrap();
            self.volumes.get_opt(name).await.unwrap()?.status?.phase
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.stop.cancel();
        }
    }

    #[tokio::test]
    async fn claim_with_hundred_thousand_nested_directories_is_reclaimed() {
        let server = Server::start().await;
        let directory = server.claim("deep").await;
        let mut here = std::os::fd::OwnedFd::from(std::fs::File::open(&directory).unwrap());
        for _ in 0..100_000 {
            rustix::fs::mkdirat(&here, "d", Mode::RWXU).unwrap();
            let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
            here = rustix::fs::openat(&here, "d", flags, Mode::empty()).unwrap();
        }
        server.delete("deep").await;
        server.until(async || (!directory.exists()).then_some(())).await;
        server.until(async || server.phase(&directory).await.is_none().then_some(())).await;
    }

    #[tokio::test]
    async fn mount_in_a_released_claim_survives_and_others_are_reclaimed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let server = Server::start().await;
        let occupied = server.claim("occupied").await;
        let plain = [server.claim("a").await, server.claim("b").await];
        let point = occupied.join("backup");
        std::fs::create_dir(&point).unwrap();
        mounts::mount("tmpfs", "users", &point, MountFlags::empty(), "").unwrap();
        std::fs::write(point.join("file"), "precious").unwrap();
        for name in ["occupied", "a", "b"] {
            server.delete(name).await;
        }
        for directory in &plain {
            server.until(async || (!directory.exists()).then_some(())).await;
        }
        let failed = async || (server.phase(&occupied).await? == "Failed").then_some(());
        server.until(failed).await;
        assert_eq!(std::fs::read_to_string(point.join("file")).unwrap(), "precious");
        // after the user unmounts it, the claim is reclaimed as well
        mounts::detach_own(&point, InUse::Fail).unwrap();
        server.until(async || (!occupied.exists()).then_some(())).await;
    }
}
