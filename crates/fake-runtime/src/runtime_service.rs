//! The CRI's runtime service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use podwright_proto::cri;
use podwright_proto::cri::runtime_service_server::RuntimeService;
use tonic::{Request, Response, Status};

use super::containers::State;
use super::event_service::from_first;
use super::options::Condition;
use super::rpc::{About, Rpc};
use super::serve::{Shared, Via};
use super::{containers, exec, sandboxes};

/// The fake as a gRPC service.
#[derive(Clone)]
pub(super) struct Served(pub(super) Arc<Shared>);

type Reply<T> = Result<Response<T>, Status>;

impl Served {
    fn about_sandbox(&self, id: &str) -> About {
        self.0.runtime_state.lock().about_sandbox(id)
    }

    fn about_container(&self, id: &str) -> About {
        self.0.runtime_state.lock().about_container(id)
    }

    /// Method that this version of the runtime lacks.
    async fn missing<T: Send + 'static>(&self, via: Via, rpc: Rpc, about: About) -> Reply<T> {
        let text = format!("method {rpc} not implemented");
        self.0.respond(via, rpc, about, |_| Err(Status::unimplemented(text))).await
    }

    /// The fake has no streaming server.
    async fn no_streaming<T: Send + 'static>(&self, via: Via, rpc: Rpc, about: About) -> Reply<T> {
        let text = "streaming server is not running";
        self.0.respond(via, rpc, about, move |_| Err(Status::unknown(text))).await
    }
}

#[tonic::async_trait]
impl RuntimeService for Served {
    async fn version(&self, request: Request<cri::VersionRequest>) -> Reply<cri::VersionResponse> {
        let via = Via::of(&request);
        self.0
            .respond(via, Rpc::Version, About::default(), |runtime_state| {
                Ok(cri::VersionResponse {
                    version: "0.1.0".into(),
                    runtime_name: "containerd".into(),
                    runtime_version: runtime_state.options.features.version().into(),
                    runtime_api_version: "v1".into(),
                })
            })
            .await
    }

    async fn status(&self, request: Request<cri::StatusRequest>) -> Reply<cri::StatusResponse> {
        let via = Via::of(&request);
        self.0
            .respond(via, Rpc::Status, About::default(), |runtime_state| {
                let condition = |kind: &str, is: &Condition| match is {
                    Condition::Ready => cri::RuntimeCondition {
                        r#type: kind.into(),
                        status: true,
                        ..Default::default()
                    },
                    Condition::NotReady { reason, message } => cri::RuntimeCondition {
                        r#type: kind.into(),
                        status: false,
                        reason: reason.clone(),
                        message: message.clone(),
                    },
                };
                let conditions = vec![
                    condition("RuntimeReady", &runtime_state.runtime),
                    condition("NetworkReady", &runtime_state.network),
                ];
                let modern = runtime_state.options.features.handlers;
                let features = cri::RuntimeHandlerFeatures {
                    recursive_read_only_mounts: true,
                    user_namespaces: true,
                };
                let handler = cri::RuntimeHandler { name: String::new(), features: Some(features) };
                Ok(cri::StatusResponse {
                    status: Some(cri::RuntimeStatus { conditions }),
                    runtime_handlers: if modern { vec![handler] } else { vec![] },
                    features: modern.then(|| cri::RuntimeFeatures {
                        supplemental_groups_policy: true,
                        ..Default::default()
                    }),
                    ..Default::default()
                })
            })
            .await
    }

    async fn runtime_config(
        &self,
        request: Request<cri::RuntimeConfigRequest>,
    ) -> Reply<cri::RuntimeConfigResponse> {
        let (via, rpc) = (Via::of(&request), Rpc::RuntimeConfig);
        let driver = self.0.runtime_state.lock().options.features.cgroup_driver;
        let Some(driver) = driver else {
            return self.missing(via, rpc, About::default()).await;
        };
        let linux = cri::LinuxRuntimeConfiguration { cgroup_driver: driver.into() };
        let config = cri::RuntimeConfigResponse { linux: Some(linux) };
        self.0.respond(via, rpc, About::default(), move |_| Ok(config)).await
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Reply<cri::UpdateRuntimeConfigResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        self.0
            .respond(via, Rpc::UpdateRuntimeConfig, About::default(), |runtime_state| {
                let network = request.runtime_config.and_then(|config| config.network_config);
                runtime_state.pod_cidr = network.map(|network| network.pod_cidr);
                Ok(cri::UpdateRuntimeConfigResponse {})
            })
            .await
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Reply<cri::RunPodSandboxResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        let about = About::config(request.config.as_ref());
        let work = |shared, pace| sandboxes::run(shared, request, pace);
        self.0.serve(via, Rpc::RunPodSandbox, about, work).await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Reply<cri::StopPodSandboxResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().pod_sandbox_id);
        let about = self.about_sandbox(&id);
        if self.0.runtime_state.lock().ignores_stops {
            let done = cri::StopPodSandboxResponse {};
            return self.0.respond(via, Rpc::StopPodSandbox, about, move |_| Ok(done)).await;
        }
        let work = |shared, pace| sandboxes::stop(shared, id, pace);
        self.0.serve(via, Rpc::StopPodSandbox, about, work).await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Reply<cri::RemovePodSandboxResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().pod_sandbox_id);
        let about = self.about_sandbox(&id);
        let work = |shared, pace| sandboxes::remove(shared, id, pace);
        self.0.serve(via, Rpc::RemovePodSandbox, about, work).await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Reply<cri::ListPodSandboxResponse> {
        let (via, filter) = (Via::of(&request), request.into_inner().filter);
        let wanted = filter.as_ref().map(|filter| &filter.label_selector);
        let about = self.0.runtime_state.lock().about_selector(wanted);
        self.0
            .respond(via, Rpc::ListPodSandbox, about, move |runtime_state| {
                let items = runtime_state.list_sandboxes(filter.as_ref());
                Ok(cri::ListPodSandboxResponse { items })
            })
            .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Reply<cri::PodSandboxStatusResponse> {
        let via = Via::of(&request);
        let cri::PodSandboxStatusRequest { pod_sandbox_id: id, verbose } = request.into_inner();
        let about = self.about_sandbox(&id);
        self.0
            .respond(via, Rpc::PodSandboxStatus, about, move |runtime_state| {
                let sandbox = runtime_state.sandbox(&id)?;
                let info = if verbose { sandbox.info() } else { BTreeMap::new() };
                let status = Some(sandbox.status());
                Ok(cri::PodSandboxStatusResponse { status, info, ..Default::default() })
            })
            .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Reply<cri::UpdatePodSandboxResourcesResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        let (about, rpc) =
            (self.about_sandbox(&request.pod_sandbox_id), Rpc::UpdatePodSandboxResources);
        if !self.0.runtime_state.lock().options.features.sandbox_resources {
            return self.missing(via, rpc, about).await;
        }
        self.0
            .respond(via, rpc, about, move |runtime_state| {
                runtime_state.sandbox(&request.pod_sandbox_id)?;
                if let Some(sandbox) = runtime_state.sandboxes.get_mut(&request.pod_sandbox_id) {
                    let linux = sandbox.config.linux.get_or_insert_default();
                    linux.overhead = request.overhead;
                    linux.resources = request.resources;
                }
                Ok(cri::UpdatePodSandboxResourcesResponse {})
            })
            .await
    }

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Reply<cri::CreateContainerResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        let meta = request.config.as_ref().and_then(|config| config.metadata.as_ref());
        let container = meta.map(|meta| meta.name.clone());
        let about = About { container, ..self.about_sandbox(&request.pod_sandbox_id) };
        let work = |shared, pace| containers::create(shared, request, pace);
        self.0.serve(via, Rpc::CreateContainer, about, work).await
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Reply<cri::StartContainerResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().container_id);
        let about = self.about_container(&id);
        let work = |shared, pace| containers::start(shared, id, pace);
        self.0.serve(via, Rpc::StartContainer, about, work).await
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Reply<cri::StopContainerResponse> {
        let (mut via, request) = (Via::of(&request), request.into_inner());
        via.grace = Some(request.timeout);
        let id = request.container_id;
        let about = self.about_container(&id);
        if self.0.runtime_state.lock().ignores_stops {
            let done = cri::StopContainerResponse {};
            return self.0.respond(via, Rpc::StopContainer, about, move |_| Ok(done)).await;
        }
        let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or(0));
        let work = |shared, pace| containers::stop(shared, id, grace, pace);
        self.0.serve(via, Rpc::StopContainer, about, work).await
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Reply<cri::RemoveContainerResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().container_id);
        let about = self.about_container(&id);
        let work = |shared, pace| containers::remove(shared, id, pace);
        self.0.serve(via, Rpc::RemoveContainer, about, work).await
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Reply<cri::ListContainersResponse> {
        let (via, filter) = (Via::of(&request), request.into_inner().filter);
        let wanted = filter.as_ref().map(|filter| &filter.label_selector);
        let about = self.0.runtime_state.lock().about_selector(wanted);
        self.0
            .respond(via, Rpc::ListContainers, about, move |runtime_state| {
                let containers = runtime_state.list_containers(filter.as_ref());
                Ok(cri::ListContainersResponse { containers })
            })
            .await
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Reply<cri::ContainerStatusResponse> {
        let via = Via::of(&request);
        let cri::ContainerStatusRequest { container_id: id, verbose } = request.into_inner();
        let about = self.about_container(&id);
        self.0
            .respond(via, Rpc::ContainerStatus, about, move |runtime_state| {
                let container = runtime_state.container(&id)?;
                let status = Some(runtime_state.container_status(container));
                let info =
                    if verbose { sandboxes::recorded(&container.config) } else { BTreeMap::new() };
                Ok(cri::ContainerStatusResponse { status, info })
            })
            .await
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Reply<cri::UpdateContainerResourcesResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        let about = self.about_container(&request.container_id);
        self.0
            .respond(via, Rpc::UpdateContainerResources, about, move |runtime_state| {
                runtime_state.container(&request.container_id)?;
                let container = runtime_state.containers.get_mut(&request.container_id);
                if let (Some(container), Some(linux)) = (container, request.linux) {
                    let config = container.config.linux.get_or_insert_default();
                    update(config.resources.get_or_insert_default(), linux);
                }
                Ok(cri::UpdateContainerResourcesResponse {})
            })
            .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Reply<cri::ReopenContainerLogResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().container_id);
        let about = self.about_container(&id);
        self.0
            .respond(via, Rpc::ReopenContainerLog, about, move |runtime_state| {
                if runtime_state.container(&id)?.state != State::Running {
                    return Err(Status::unknown("container is not running"));
                }
                runtime_state.reopen_log(&id);
                Ok(cri::ReopenContainerLogResponse {})
            })
            .await
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Reply<cri::CheckpointContainerResponse> {
        let via = Via::of(&request);
        let about = self.about_container(&request.into_inner().container_id);
        self.missing(via, Rpc::CheckpointContainer, about).await
    }

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> Reply<cri::ExecSyncResponse> {
        let (via, request) = (Via::of(&request), request.into_inner());
        let about = self.about_container(&request.container_id);
        let work = |shared, pace| exec::exec(shared, request, pace);
        self.0.serve(via, Rpc::ExecSync, about, work).await
    }

    async fn exec(&self, request: Request<cri::ExecRequest>) -> Reply<cri::ExecResponse> {
        let via = Via::of(&request);
        let about = self.about_container(&request.into_inner().container_id);
        self.no_streaming(via, Rpc::Exec, about).await
    }

    async fn attach(&self, request: Request<cri::AttachRequest>) -> Reply<cri::AttachResponse> {
        let via = Via::of(&request);
        let about = self.about_container(&request.into_inner().container_id);
        self.no_streaming(via, Rpc::Attach, about).await
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> Reply<cri::PortForwardResponse> {
        let via = Via::of(&request);
        let about = self.about_sandbox(&request.into_inner().pod_sandbox_id);
        self.no_streaming(via, Rpc::PortForward, about).await
    }

    type GetContainerEventsStream = BoxStream<'static, Result<cri::ContainerEventResponse, Status>>;

    async fn get_container_events(
        &self,
        request: Request<cri::GetEventsRequest>,
    ) -> Reply<Self::GetContainerEventsStream> {
        let (via, rpc) = (Via::of(&request), Rpc::GetContainerEvents);
        if !self.0.runtime_state.lock().options.features.cri_events {
            return self.missing(via, rpc, About::default()).await;
        }
        self.0
            .serve(via, rpc, About::default(), |shared: Arc<Shared>, pace| async move {
                pace.keep().await;
                let events = shared.runtime_state.lock().hub.follow_cri();
                Ok(from_first(events).await)
            })
            .await
    }

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Reply<cri::ContainerStatsResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().container_id);
        let about = self.about_container(&id);
        self.0
            .respond(via, Rpc::ContainerStats, about, move |runtime_state| {
                let stats = Some(runtime_state.container_stats(runtime_state.container(&id)?));
                Ok(cri::ContainerStatsResponse { stats })
            })
            .await
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Reply<cri::ListContainerStatsResponse> {
        let (via, filter) = (Via::of(&request), request.into_inner().filter);
        let wanted = filter.as_ref().map(|filter| &filter.label_selector);
        let about = self.0.runtime_state.lock().about_selector(wanted);
        self.0
            .respond(via, Rpc::ListContainerStats, about, move |runtime_state| {
                let stats = runtime_state.list_container_stats(filter.as_ref());
                Ok(cri::ListContainerStatsResponse { stats })
            })
            .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Reply<cri::PodSandboxStatsResponse> {
        let (via, id) = (Via::of(&request), request.into_inner().pod_sandbox_id);
        let about = self.about_sandbox(&id);
        self.0
            .respond(via, Rpc::PodSandboxStats, about, move |runtime_state| {
                let stats = Some(runtime_state.sandbox_stats(runtime_state.sandbox(&id)?));
                Ok(cri::PodSandboxStatsResponse { stats })
            })
            .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Reply<cri::ListPodSandboxStatsResponse> {
        let (via, filter) = (Via::of(&request), request.into_inner().filter);
        let wanted = filter.as_ref().map(|filter| &filter.label_selector);
        let about = self.0.runtime_state.lock().about_selector(wanted);
        self.0
            .respond(via, Rpc::ListPodSandboxStats, about, move |runtime_state| {
                let stats = runtime_state.list_sandbox_stats(filter.as_ref());
                Ok(cri::ListPodSandboxStatsResponse { stats })
            })
            .await
    }

    async fn list_metric_descriptors(
        &self,
        request: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Reply<cri::ListMetricDescriptorsResponse> {
        self.missing(Via::of(&request), Rpc::ListMetricDescriptors, About::default()).await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Reply<cri::ListPodSandboxMetricsResponse> {
        self.missing(Via::of(&request), Rpc::ListPodSandboxMetrics, About::default()).await
    }
}

/// Zero and absent values leave a setting unchanged.
fn update(now: &mut cri::LinuxContainerResources, wanted: cri::LinuxContainerResources) {
    let set = |now: &mut i64, wanted: i64| {
        if wanted != 0 {
            *now = wanted;
        }
    };
    set(&mut now.cpu_shares, wanted.cpu_shares);
    set(&mut now.cpu_quota, wanted.cpu_quota);
    set(&mut now.cpu_period, wanted.cpu_period);
    set(&mut now.memory_limit_in_bytes, wanted.memory_limit_in_bytes);
    set(&mut now.memory_swap_limit_in_bytes, wanted.memory_swap_limit_in_bytes);
    set(&mut now.oom_score_adj, wanted.oom_score_adj);
    if !wanted.cpuset_cpus.is_empty() {
        now.cpuset_cpus = wanted.cpuset_cpus;
    }
    if !wanted.cpuset_mems.is_empty() {
        now.cpuset_mems = wanted.cpuset_mems;
    }
    if !wanted.hugepage_limits.is_empty() {
        now.hugepage_limits = wanted.hugepage_limits;
    }
    now.unified.extend(wanted.unified);
}
