//! Direct CRI client of the runtime, bypassing any agent: lists what runs, and creates pods by bare
//! CRI calls.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use podwright_proto::cri::image_service_client::ImageServiceClient;
use podwright_proto::cri::runtime_service_client::RuntimeServiceClient;
use podwright_proto::cri::{
    Container, ContainerConfig, ContainerMetadata, CreateContainerRequest, ImageSpec,
    LinuxPodSandboxConfig, ListContainersRequest, ListPodSandboxRequest, PodSandbox,
    PodSandboxConfig, PodSandboxMetadata, PodSandboxStatus, PodSandboxStatusRequest,
    RemovePodSandboxRequest, RunPodSandboxRequest, StartContainerRequest, StopPodSandboxRequest,
};
use tonic::transport::{Channel, Endpoint};

const LIMIT: Duration = Duration::from_secs(120);

/// The same message size limit as upstream.
const LARGEST: usize = 16 << 20;

#[derive(Clone)]
pub struct Cri {
    /// For calls that this type does not wrap.
    pub runtime: RuntimeServiceClient<Channel>,
    pub images: ImageServiceClient<Channel>,
    cgroup_parent: String,
    logs: String,
}

impl Cri {
    pub(crate) async fn connect(socket: &Path, cgroup_parent: String, logs: &Path) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let channel = endpoint.timeout(LIMIT).connect_timeout(LIMIT).connect().await;
        let channel = channel.with_context(|| format!("connecting to {}", socket.display()))?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(LARGEST),
            images: ImageServiceClient::new(channel).max_decoding_message_size(LARGEST),
            cgroup_parent,
            logs: logs.display().to_string(),
        })
    }

    /// Every sandbox, in any state.
    pub async fn sandboxes(&self) -> Result<Vec<PodSandbox>> {
        let response =
            self.runtime.clone().list_pod_sandbox(ListPodSandboxRequest::default()).await;
        Ok(response.context("listing sandboxes")?.into_inner().items)
    }

    /// Every container, in any state.
    pub async fn containers(&self) -> Result<Vec<Container>> {
        let response = self.runtime.clone().list_containers(ListContainersRequest::default()).await;
        Ok(response.context("listing containers")?.into_inner().containers)
    }

    /// A plain sandbox config, below the bed's cgroup, for [`Self::run_sandbox`].
    pub fn sandbox(&self, name: &str) -> PodSandboxConfig {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let uid = format!("bare-{}", MADE.fetch_add(1, Ordering::Relaxed));
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid,
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: format!("{}/{name}", self.logs),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Creates and starts a sandbox; returns its id.
    pub async fn run_sandbox(&self, config: PodSandboxConfig) -> Result<String> {
        self.run_sandbox_with(config, "").await
    }

    /// Like [`Self::run_sandbox`], with a runtime handler: `runc`, `other` or `crun`.
    pub async fn run_sandbox_with(
        &self,
        config: PodSandboxConfig,
        handler: &str,
    ) -> Result<String> {
        let request =
            RunPodSandboxRequest { config: Some(config), runtime_handler: handler.to_owned() };
        let response = self.runtime.clone().run_pod_sandbox(request).await;
        Ok(response.context("running a sandbox")?.into_inner().pod_sandbox_id)
    }

    pub async fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatus> {
        let request =
            PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), ..Default::default() };
        let response = self.runtime.clone().pod_sandbox_status(request).await;
        let status = response
            .with_context(|| format!("getting the status of sandbox {id}"))?
            .into_inner()
            .status;
        status.with_context(|| format!("sandbox {id} has no status"))
    }

    /// Creates and starts a container of an image that is present; returns its id.
    pub async fn run_container(
        &self,
        sandbox: &str,
        config: &PodSandboxConfig,
        name: &str,
        image: &str,
        command: &[&str],
    ) -> Result<String> {
        let container = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(ImageSpec { image: image.to_owned(), ..Default::default() }),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            log_path: format!("{name}.log"),
            ..Default::default()
        };
        let mut runtime = self.runtime.clone();
        let create = CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(container),
            sandbox_config: Some(config.clone()),
        };
        let created = runtime.create_container(create).await;
        let id = created.with_context(|| format!("creating {name}"))?.into_inner().container_id;
        let start = StartContainerRequest { container_id: id.clone() };
        runtime.start_container(start).await.with_context(|| format!("starting {name}"))?;
        Ok(id)
    }

    /// Stops a sandbox and removes it.
    pub async fn remove_sandbox(&self, id: &str) -> Result<()> {
        let mut runtime = self.runtime.clone();
        let stop = StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        runtime.stop_pod_sandbox(stop).await.with_context(|| format!("stopping sandbox {id}"))?;
        let remove = RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        let removed = runtime.remove_pod_sandbox(remove).await;
        removed.with_context(|| format!("removing sandbox {id}"))?;
        Ok(())
    }
}
