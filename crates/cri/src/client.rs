//! CRI client.
//!
//! A mutating call, once sent, is never cancelled by the client: a cancelled create leaves its name
//! reserved in the runtime. So each of them runs in a task of its own up to its deadline, and
//! dropping the future only stops the *waiting*. Reads, pulls and exec may be dropped.

mod pod_list;
mod streams;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use podwright_core::ids::{ContainerId, PodName, PodUid, SandboxId};
use podwright_core::labels;
use podwright_core::observed::{ObservedPod, Sandbox};
use podwright_core::time::Mono;
use podwright_proto::cri;
use podwright_proto::cri::image_service_client::ImageServiceClient;
use podwright_proto::cri::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Uri};
use tonic::{Request, Response, Status};

use crate::convert::{self, ObservedContainer};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind};
use crate::ownership::Ownership;
pub use pod_list::PodList;
pub use streams::Streams;

/// Replies larger than this are refused, as upstream does: 16 MiB.
const MAX_REPLY: usize = 16 * 1024 * 1024;
/// The limit of replies that list all objects of the runtime: 64 MiB. Sandboxes carry the
/// annotations of their pods, so 5,000 pods with 4 KB of annotations exceed [`MAX_REPLY`], and each
/// relist would fail.
const MAX_LIST_REPLY: usize = 64 * 1024 * 1024;
/// A hundred years. A grace period has no upper limit, but the protocol has one, and runtimes count
/// nanoseconds.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// `runtimeRequestTimeout`: for every call without a deadline of its own.
    pub call: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { call: Duration::from_secs(120) }
    }
}

/// Called for every finished call: operation, duration, success.
pub type Meter = Arc<dyn Fn(&'static str, Duration, bool) + Send + Sync>;

#[derive(Clone)]
pub struct Client {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    pub(crate) channel: Channel,
    timeouts: Timeouts,
    meter: Meter,
    /// Set if other nodes use the same runtime.
    pub(crate) ownership: Option<Ownership>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub runtime_name: String,
    pub runtime_version: String,
    pub runtime_api_version: String,
}

/// The runtime's conditions. `Err` carries `reason` and `message`.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeStatus {
    pub runtime: Result<(), String>,
    pub network: Result<(), String>,
    pub handlers: Vec<cri::RuntimeHandler>,
    pub features: Option<cri::RuntimeFeatures>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub id: String,
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    pub size: u64,
    pub uid: Option<i64>,
    pub username: String,
    pub pinned: bool,
}

impl Image {
    /// Its tags, then its digests.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tags.iter().chain(&self.digests).map(String::as_str)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullResult {
    pub image_ref: String,
}

impl Client {
    /// A client of a runtime behind a unix socket. It connects with the first call, and reconnects
    /// when the connection breaks.
    pub fn new(endpoint: &Endpoint, timeouts: Timeouts) -> Self {
        let path = endpoint.path().to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(hyper_util::rt::TokioIo::new) }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://localhost")
            .connect_timeout(Duration::from_secs(5));
        Self::over(endpoint.connect_with_connector_lazy(connector), timeouts)
    }

    /// A client over any channel; tests pass one end of a pipe.
    pub fn over(channel: Channel, timeouts: Timeouts) -> Self {
        Self {
            runtime: RuntimeServiceClient::new(channel.clone())
                .max_decoding_message_size(MAX_REPLY),
            images: ImageServiceClient::new(channel.clone()).max_decoding_message_size(MAX_REPLY),
            channel,
            timeouts,
            meter: Arc::new(|_, _, _| {}),
            ownership: None,
        }
    }

    /// The connection, for calls that this client does not offer.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Uses another endpoint for the image service.
    pub fn with_images_at(mut self, endpoint: &Endpoint) -> Self {
        let images = Self::new(endpoint, self.timeouts).images;
        self.images = images;
        self
    }

    pub fn metered(mut self, meter: Meter) -> Self {
        self.meter = meter;
        self
    }

    // === The runtime itself ===

    /// Queries name and version, and checks that the API version is supported.
    pub async fn version(&self) -> Result<Version, Error> {
        let mut client = self.runtime.clone();
        let request = cri::VersionRequest { version: "0.1.0".into() };
        let call = client.version(self.within(request, self.timeouts.call));
        let reply = self.run("version", "Version", "", call).await?;
        if reply.version != "0.1.0" {
            let text = format!("runtime api version is not supported: {:?}", reply.version);
            return Err(Error::bad_reply("Version", "", text));
        }
        let fields = [
            ("runtime_name", &reply.runtime_name),
            ("runtime_version", &reply.runtime_version),
            ("runtime_api_version", &reply.runtime_api_version),
        ];
        let missing: Vec<&str> =
            fields.iter().filter(|(_, value)| value.is_empty()).map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            let text = format!("not all fields are set in VersionResponse (missing {missing})");
            return Err(Error::bad_reply("Version", "", text));
        }
        Ok(Version {
            runtime_name: reply.runtime_name,
            runtime_version: reply.runtime_version,
            runtime_api_version: reply.runtime_api_version,
        })
    }

    pub async fn status(&self) -> Result<RuntimeStatus, Error> {
        let mut client = self.runtime.clone();
        let request = cri::StatusRequest { verbose: false };
        let call = client.status(self.within(request, self.timeouts.call));
        let reply = self.run("status", "Status", "", call).await?;
        let conditions = reply.status.unwrap_or_default().conditions;
        let find = |kind: &str| {
            let condition = conditions.iter().find(|c| c.r#type == kind)?;
            if condition.status {
                return Some(Ok(()));
            }
            let cri::RuntimeCondition { reason, message, .. } = condition;
            Some(Err(format!("{kind}=false reason:{reason} message:{message}")))
        };
        match (find("RuntimeReady"), find("NetworkReady")) {
            (Some(runtime), Some(network)) => Ok(RuntimeStatus {
                runtime,
                network,
                handlers: reply.runtime_handlers,
                features: reply.features,
            }),
            _ => {
                let text = "RuntimeReady or NetworkReady condition are not set";
                Err(Error::bad_reply("Status", "", text))
            }
        }
    }

    /// The runtime's own information beyond the protocol, in its own format.
    pub(crate) async fn verbose_status(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut client = self.runtime.clone();
        let request = cri::StatusRequest { verbose: true };
        let call = client.status(self.within(request, self.timeouts.call));
        Ok(self.run("status", "Status", "", call).await?.info)
    }

    /// The cgroup driver of the runtime; `None` if it is too old to report it.
    pub async fn cgroup_driver(&self) -> Result<Option<cri::CgroupDriver>, Error> {
        let mut client = self.runtime.clone();
        let call =
            client.runtime_config(self.within(cri::RuntimeConfigRequest {}, self.timeouts.call));
        match self.run("runtime_config", "RuntimeConfig", "", call).await {
            Ok(reply) => Ok(reply.linux.map(|linux| linux.cgroup_driver())),
            Err(error) if error.kind == Kind::Unimplemented => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<(), Error> {
        let network_config = Some(cri::NetworkConfig { pod_cidr: pod_cidr.into() });
        let request = cri::UpdateRuntimeConfigRequest {
            runtime_config: Some(cri::RuntimeConfig { network_config }),
        };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client) = (self.clone(), self.runtime.clone());
        let object = pod_cidr.to_owned();
        detached("UpdateRuntimeConfig", async move {
            let call = client.update_runtime_config(request);
            this.run("update_runtime_config", "UpdateRuntimeConfig", &object, call).await.map(drop)
        })
        .await
    }

    // === Observation ===

    /// Everything the runtime reports of one pod. `as_of` is the monotonic time before this call.
    pub async fn observe(
        &self,
        uid: &PodUid,
        name: &PodName,
        as_of: Mono,
    ) -> Result<(ObservedPod, Vec<ObservedContainer>), Error> {
        let (sandboxes, containers) =
            tokio::try_join!(self.list_sandboxes(Some(uid)), self.list_containers(Some(uid)))?;
        let mut observed = ObservedPod::nothing(uid.clone(), name.clone(), as_of);
        for sandbox in sandboxes {
            let seen = self.sandbox_status(&SandboxId::new(sandbox.id)).await;
            observed.sandboxes.extend(unless_gone(seen)?);
        }
        let mut seen_containers = Vec::with_capacity(containers.len());
        for container in containers {
            let sandbox = SandboxId::new(container.pod_sandbox_id);
            let seen = self.container_status(&ContainerId::new(container.id), sandbox).await;
            seen_containers.extend(unless_gone(seen)?);
        }
        observed.instances = seen_containers.iter().map(|seen| seen.instance.clone()).collect();
        observed.sort();
        Ok((observed, seen_containers))
    }

    pub async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<cri::PodSandbox>, Error> {
        let mut client = self.runtime_lists();
        let filter = of.map(|uid| cri::PodSandboxFilter {
            label_selector: [(labels::POD_UID.to_owned(), uid.to_string())].into(),
            ..Default::default()
        });
        let request = cri::ListPodSandboxRequest { filter };
        let call = client.list_pod_sandbox(self.within(request, self.timeouts.call));
        let reply = self.run("list_podsandbox", "ListPodSandbox", "", call).await?;
        Ok(reply.items)
    }

    pub async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<cri::Container>, Error> {
        let mut client = self.runtime_lists();
        let filter = of.map(|uid| cri::ContainerFilter {
            label_selector: [(labels::POD_UID.to_owned(), uid.to_string())].into(),
            ..Default::default()
        });
        let request = cri::ListContainersRequest { filter };
        let call = client.list_containers(self.within(request, self.timeouts.call));
        let reply = self.run("list_containers", "ListContainers", "", call).await?;
        Ok(reply.containers)
    }

    pub async fn sandbox_status(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        const CALL: &str = "PodSandboxStatus";
        let mut client = self.runtime.clone();
        let request =
            cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: false };
        let call = client.pod_sandbox_status(self.within(request, self.timeouts.call));
        let reply = self.run("podsandbox_status", CALL, id.as_str(), call).await?;
        let status =
            reply.status.ok_or_else(|| Error::bad_reply(CALL, id.as_str(), "no status"))?;
        convert::sandbox(&status)
    }

    /// The runtime's own information about a sandbox, in its own format.
    pub async fn sandbox_info(&self, id: &SandboxId) -> Result<BTreeMap<String, String>, Error> {
        let mut client = self.runtime.clone();
        let request =
            cri::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose: true };
        let call = client.pod_sandbox_status(self.within(request, self.timeouts.call));
        Ok(self.run("podsandbox_status", "PodSandboxStatus", id.as_str(), call).await?.info)
    }

    pub(crate) async fn container_info(
        &self,
        id: &ContainerId,
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut client = self.runtime.clone();
        let request = cri::ContainerStatusRequest { container_id: id.to_string(), verbose: true };
        let call = client.container_status(self.within(request, self.timeouts.call));
        Ok(self.run("container_status", "ContainerStatus", id.as_str(), call).await?.info)
    }

    pub async fn container_status(
        &self,
        id: &ContainerId,
        sandbox: SandboxId,
    ) -> Result<ObservedContainer, Error> {
        const CALL: &str = "ContainerStatus";
        let mut client = self.runtime.clone();
        let request = cri::ContainerStatusRequest { container_id: id.to_string(), verbose: false };
        let call = client.container_status(self.within(request, self.timeouts.call));
        let reply = self.run("container_status", CALL, id.as_str(), call).await?;
        let status =
            reply.status.ok_or_else(|| Error::bad_reply(CALL, id.as_str(), "no status"))?;
        convert::container(&status, sandbox)
    }

    // === Sandboxes ===

    pub async fn run_sandbox(
        &self,
        config: cri::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<SandboxId, Error> {
        const CALL: &str = "RunPodSandbox";
        let object = config.metadata.as_ref().map(|m| format!("{}/{}", m.namespace, m.name));
        let object = object.unwrap_or_default();
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.into(),
        };
        let request = self.within(request, self.timeouts.call * 2);
        let (this, mut client) = (self.clone(), self.runtime.clone());
        detached(CALL, async move {
            let call = client.run_pod_sandbox(request);
            let reply = this.run("run_podsandbox", CALL, &object, call).await?;
            if reply.pod_sandbox_id.is_empty() {
                return Err(Error::bad_reply(CALL, &object, "pod_sandbox_id is not set"));
            }
            Ok(SandboxId::new(reply.pod_sandbox_id))
        })
        .await
    }

    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), Error> {
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client, id) = (self.clone(), self.runtime.clone(), id.clone());
        detached("StopPodSandbox", async move {
            let call = client.stop_pod_sandbox(request);
            let reply = this.run("stop_podsandbox", "StopPodSandbox", id.as_str(), call).await;
            unless_gone(reply).map(drop)
        })
        .await
    }

    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), Error> {
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client, id) = (self.clone(), self.runtime.clone(), id.clone());
        detached("RemovePodSandbox", async move {
            let call = client.remove_pod_sandbox(request);
            let reply = this.run("remove_podsandbox", "RemovePodSandbox", id.as_str(), call).await;
            unless_gone(reply).map(drop)
        })
        .await
    }

    /// `Ok(false)`: the runtime does not offer the call.
    pub async fn update_sandbox_resources(
        &self,
        request: cri::UpdatePodSandboxResourcesRequest,
    ) -> Result<bool, Error> {
        const CALL: &str = "UpdatePodSandboxResources";
        let object = request.pod_sandbox_id.clone();
        let request = self.within(request, self.timeouts.call);
        let (this, mut client) = (self.clone(), self.runtime.clone());
        let result = detached(CALL, async move {
            let call = client.update_pod_sandbox_resources(request);
            this.run("update_podsandbox_resources", CALL, &object, call).await
        })
        .await;
        match result {
            Ok(_) => Ok(true),
            Err(error) if error.kind == Kind::Unimplemented => Ok(false),
            // CRI-O before 1.33 reports it only in the message.
            Err(error) if error.message.contains("not implemented") => Ok(false),
            Err(error) => Err(error),
        }
    }

    // === Containers ===

    pub async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<ContainerId, Error> {
        const CALL: &str = "CreateContainer";
        let object = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client) = (self.clone(), self.runtime.clone());
        detached(CALL, async move {
            let call = client.create_container(request);
            let reply = this.run("create_container", CALL, &object, call).await?;
            if reply.container_id.is_empty() {
                return Err(Error::bad_reply(CALL, &object, "container_id is not set"));
            }
            Ok(ContainerId::new(reply.container_id))
        })
        .await
    }

    pub async fn start_container(&self, id: &ContainerId) -> Result<(), Error> {
        let request = cri::StartContainerRequest { container_id: id.to_string() };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client, id) = (self.clone(), self.runtime.clone(), id.clone());
        detached("StartContainer", async move {
            let call = client.start_container(request);
            this.run("start_container", "StartContainer", id.as_str(), call).await.map(drop)
        })
        .await
    }

    /// Sends SIGTERM to the container, and SIGKILL after `grace`.
    pub async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), Error> {
        let grace = grace.min(LONGEST);
        let timeout = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
        let request = cri::StopContainerRequest { container_id: id.to_string(), timeout };
        let request = self.within(request, self.timeouts.call + grace);
        let (this, mut client, id) = (self.clone(), self.runtime.clone(), id.clone());
        detached("StopContainer", async move {
            let call = client.stop_container(request);
            let reply = this.run("stop_container", "StopContainer", id.as_str(), call).await;
            unless_gone(reply).map(drop)
        })
        .await
    }

    pub async fn remove_container(&self, id: &ContainerId) -> Result<(), Error> {
        let request = cri::RemoveContainerRequest { container_id: id.to_string() };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client, id) = (self.clone(), self.runtime.clone(), id.clone());
        detached("RemoveContainer", async move {
            let call = client.remove_container(request);
            let reply = this.run("remove_container", "RemoveContainer", id.as_str(), call).await;
            unless_gone(reply).map(drop)
        })
        .await
    }

    pub async fn update_container_resources(
        &self,
        id: &ContainerId,
        linux: cri::LinuxContainerResources,
    ) -> Result<(), Error> {
        const CALL: &str = "UpdateContainerResources";
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(linux),
            ..Default::default()
        };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client, id) = (self.clone(), self.runtime.clone(), id.clone());
        detached(CALL, async move {
            let call = client.update_container_resources(request);
            this.run("update_container", CALL, id.as_str(), call).await.map(drop)
        })
        .await
    }

    pub async fn reopen_log(&self, id: &ContainerId) -> Result<(), Error> {
        const CALL: &str = "ReopenContainerLog";
        let mut client = self.runtime.clone();
        let request = cri::ReopenContainerLogRequest { container_id: id.to_string() };
        let call = client.reopen_container_log(self.within(request, self.timeouts.call));
        self.run("reopen_container_log", CALL, id.as_str(), call).await.map(drop)
    }

    /// Runs a command in a container and waits for it; `None`: without a time limit.
    pub async fn exec(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, Error> {
        const CALL: &str = "ExecSync";
        let mut client = self.runtime.clone();
        let seconds = timeout.map_or(0, |t| i64::try_from(t.as_secs()).unwrap_or(i64::MAX));
        let shown = command.join(" ");
        let request =
            cri::ExecSyncRequest { container_id: id.to_string(), cmd: command, timeout: seconds };
        let request = match timeout {
            Some(timeout) => self.within(request, self.timeouts.call + timeout),
            None => Request::new(request),
        };
        let call = client.exec_sync(request);
        let reply = self.run("exec_sync", CALL, id.as_str(), call).await;
        match reply {
            Ok(reply) => Ok(ExecOutput {
                exit_code: reply.exit_code,
                stdout: reply.stdout,
                stderr: reply.stderr,
            }),
            Err(error) if error.kind == Kind::TimedOut => {
                let after = timeout.unwrap_or_default().as_secs();
                let message = format!("command timed out: {shown:?} timed out after {after}s");
                Err(Error { message, ..error })
            }
            Err(error) => Err(error),
        }
    }

    // === Images ===

    /// `None`: the image is not present.
    pub async fn image_status(&self, image: &str) -> Result<Option<Image>, Error> {
        const CALL: &str = "ImageStatus";
        let mut client = self.images.clone();
        let spec = cri::ImageSpec { image: image.into(), ..Default::default() };
        let request = cri::ImageStatusRequest { image: Some(spec), verbose: false };
        let call = client.image_status(self.within(request, self.timeouts.call));
        // Absence is not an error in the protocol; runtimes that return NotFound mean the same.
        let reply = unless_gone(self.run("image_status", CALL, image, call).await)?;
        match reply.and_then(|reply| reply.image) {
            None => Ok(None),
            Some(found) if found.id.is_empty() || found.size == 0 => {
                Err(Error::bad_reply(CALL, image, "id or size is not set"))
            }
            Some(found) => Ok(Some(image_from(found))),
        }
    }

    /// What the runtime reports about an image beyond its status, as for a sandbox; `None` if it is
    /// not present.
    pub async fn image_info(&self, image: &str) -> Result<Option<BTreeMap<String, String>>, Error> {
        const CALL: &str = "ImageStatus";
        let mut client = self.images.clone();
        let spec = cri::ImageSpec { image: image.into(), ..Default::default() };
        let request = cri::ImageStatusRequest { image: Some(spec), verbose: true };
        let call = client.image_status(self.within(request, self.timeouts.call));
        let reply = unless_gone(self.run("image_status", CALL, image, call).await)?;
        Ok(reply.map(|reply| reply.info))
    }

    pub async fn list_images(&self) -> Result<Vec<Image>, Error> {
        let mut client = self.images.clone().max_decoding_message_size(MAX_LIST_REPLY);
        let request = cri::ListImagesRequest { filter: None };
        let call = client.list_images(self.within(request, self.timeouts.call));
        let reply = self.run("list_images", "ListImages", "", call).await?;
        Ok(reply.images.into_iter().map(image_from).collect())
    }

    /// Pulls with one set of credentials. Has no deadline of its own; dropping the future cancels
    /// the pull.
    pub async fn pull_image(
        &self,
        image: cri::ImageSpec,
        auth: Option<cri::AuthConfig>,
        sandbox_config: Option<cri::PodSandboxConfig>,
    ) -> Result<PullResult, Error> {
        const CALL: &str = "PullImage";
        let mut client = self.images.clone();
        let name = image.image.clone();
        let request = cri::PullImageRequest { image: Some(image), auth, sandbox_config };
        let call = client.pull_image(Request::new(request));
        let reply = self.run("pull_image", CALL, &name, call).await?;
        if reply.image_ref.is_empty() {
            return Err(Error::bad_reply(CALL, &name, "image_ref is not set"));
        }
        Ok(PullResult { image_ref: reply.image_ref })
    }

    pub async fn remove_image(&self, image: &str) -> Result<(), Error> {
        let spec = cri::ImageSpec { image: image.into(), ..Default::default() };
        let request = cri::RemoveImageRequest { image: Some(spec) };
        let request = self.within(request, self.timeouts.call);
        let (this, mut client, image) = (self.clone(), self.images.clone(), image.to_owned());
        detached("RemoveImage", async move {
            let call = client.remove_image(request);
            let reply = this.run("remove_image", "RemoveImage", &image, call).await;
            unless_gone(reply).map(drop)
        })
        .await
    }

    pub async fn image_fs_info(&self) -> Result<cri::ImageFsInfoResponse, Error> {
        let mut client = self.images.clone();
        let call =
            client.image_fs_info(self.within(cri::ImageFsInfoRequest {}, self.timeouts.call));
        self.run("image_fs_info", "ImageFsInfo", "", call).await
    }

    // === Calls ===

    /// The runtime service for calls that list all objects.
    fn runtime_lists(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone().max_decoding_message_size(MAX_LIST_REPLY)
    }

    fn within<T>(&self, message: T, deadline: Duration) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(deadline.min(LONGEST));
        request
    }

    async fn run<T>(
        &self,
        operation: &'static str,
        call: &'static str,
        object: &str,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let began = Instant::now();
        let result = reply.await;
        (self.meter)(operation, began.elapsed(), result.is_ok());
        match result {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(Error::from_status(call, object, &status)),
        }
    }
}

/// The entry of the pod an object belongs to; objects without pod labels are ignored.
/// Lets a mutating call finish even if its caller no longer waits.
async fn detached<T: Send + 'static>(
    call: &'static str,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work).await.unwrap_or_else(|ended| {
        Err(Error::internal(call, format!("call task ended early: {ended}")))
    })
}

/// NotFound counts as success where the object should be gone.
fn unless_gone<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn image_from(image: cri::Image) -> Image {
    Image {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        uid: image.uid.map(|uid| uid.value),
        username: image.username,
        pinned: image.pinned,
    }
}
