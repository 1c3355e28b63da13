//! The node of the recordings and the inputs that its shell would provide.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_api::qos::QosClass;
use podwright_core::cgroup::{CgroupName, Driver, PodTree};
use podwright_core::config::env_file::EnvFile;
use podwright_core::config::mounts::{self, Mountable, MountedVolume, VolumeSource};
use podwright_core::config::resources::{self, Placement};
use podwright_core::config::{
    self, CgroupVersion, ConfigError, ContainerInputs, ContainerProvision, EnvInputs, EnvSources,
    Environment, ImageUser, Lookup, Machine, NodeFacts, PodProvision, ResolvedImage, ServiceView,
    Swap, SwapBehaviour,
};
use podwright_core::ids::ContainerId;
use podwright_core::pod::adoption::{
    self, AdoptingNode, Mismatch, RecordedContainer, RecordedPod, RecordedState,
};
use podwright_core::pod::{ContainerKind, Pod};
use podwright_proto::cri;
use serde_json::{Value, json};

use crate::recording::{Recording, UID};

const POD_IP: &str = "10.88.0.2";
const NODE_IP: &str = "192.0.2.1";
const ROOT: &str = "<root>";

/// Our text with the placeholders of the recordings.
pub(crate) fn scrub(text: &str) -> String {
    text.replace(UID, "<uid>").replace(POD_IP, "<podIP>").replace(NODE_IP, "<nodeIP>")
}

pub(crate) struct Node {
    facts: NodeFacts,
    services: Vec<ServiceView>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let amounts =
            [("cpu", "2"), ("memory", "24580016Ki"), ("ephemeral-storage", "267847642337")];
        let api = json!({"metadata": {"namespace": "default", "name": "kubernetes"},
            "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}});
        let facts = NodeFacts {
            host_ips: vec![NODE_IP.parse().unwrap()],
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".to_owned(),
            standalone: false,
            resolv_conf: String::new(),
            root_dir: ROOT.to_owned(),
            pod_logs_dir: "<logs>".to_owned(),
            seccomp_default: false,
            selinux: false,
            thermal_paths: Vec::new(),
            allocatable: amounts.map(|(k, v)| (k.to_owned(), v.parse().unwrap())).into(),
            machine: Machine {
                memory: 24_682_416 << 10,
                hugepage_sizes: vec!["2MB".to_owned(), "1GB".to_owned()],
                cgroups: CgroupVersion::V1,
                cpu_quota_period: Some(100_000),
                whole_container_oom: true,
                memory_qos: None,
                swap: Some(Swap { behaviour: SwapBehaviour::NoSwap, total: 0 }),
            },
            handlers: Vec::new(),
        };
        let services = vec![ServiceView::of(&serde_json::from_value(api).unwrap()).unwrap()];
        Self { facts, services }
    }

    pub(crate) fn sandbox(&self, pod: &Pod, attempt: u32) -> cri::PodSandboxConfig {
        let plan = config::sandbox(pod, attempt, &self.facts, &provision(pod)).unwrap();
        assert_eq!(plan.warnings, []);
        plan.config
    }

    /// Whether this node would adopt a pod that was created by these requests. Its init containers
    /// have succeeded, and the others run.
    pub(crate) fn adopts(
        &self,
        pod: &Pod,
        sandbox: cri::PodSandboxConfig,
        containers: impl Iterator<Item = cri::ContainerConfig>,
    ) -> Result<(), Mismatch> {
        let recorded = |config: cri::ContainerConfig| {
            let name = config.metadata.as_ref().map_or("", |metadata| metadata.name.as_str());
            let state = match pod.container(name).unwrap().kind {
                ContainerKind::Init => RecordedState::Succeeded,
                ContainerKind::Sidecar | ContainerKind::Regular | ContainerKind::Ephemeral => {
                    RecordedState::Running
                }
            };
            RecordedContainer { config, state, image_user: Some(ImageUser::new(None, "")) }
        };
        let running = RecordedPod {
            uid: pod.uid.clone(),
            sandbox,
            handler: String::new(),
            ips: vec![POD_IP.parse().unwrap()],
            containers: containers.map(recorded).collect(),
        };
        let provision = provision(pod);
        let (host_dns, cgroup_parent) = (&provision.host_dns, &provision.cgroup_parent);
        let node = AdoptingNode { facts: &self.facts, host_dns, cgroup_parent };
        adoption::check(pod, &running, &node)
    }

    pub(crate) fn resources(&self, pod: &Pod) -> cri::LinuxContainerResources {
        let container = pod.regular_containers().next().unwrap();
        resources::of_container(pod, container, &self.facts, &Placement::default()).unwrap()
    }

    /// Builds the container that `recorded` names. Values that only the runtime has are taken from
    /// it.
    pub(crate) fn container(
        &self,
        recording: &Recording,
        pod: &Pod,
        recorded: &Value,
    ) -> Result<cri::ContainerConfig, ConfigError> {
        let facts = &self.facts;
        let name = recorded["metadata"]["name"].as_str().unwrap();
        let container = pod.container(name).unwrap();
        let ips: &[IpAddr] = &[POD_IP.parse().unwrap()];
        let pod_ips = if pod.host_network { &[] } else { ips };
        let environment = Environment::build(&EnvInputs {
            pod,
            container,
            pod_ips,
            facts,
            services: Some(&self.services),
            sources: &Objects::of(recording),
            granted: &[],
        })?;
        let provision = provision(pod);
        let volumes = volumes(pod);
        let requests = mounts::requests(pod, container, &environment, &volumes, facts, "")?;
        let of_pod = format!("{ROOT}/pods/{UID}");
        let sub_paths = requests
            .iter()
            .filter(|request| matches!(request.what, Mountable::SubPath { .. }))
            .map(|request| {
                let (volume, index) = (&request.volume, request.index);
                (index, format!("{of_pod}/volume-subpaths/{volume}/{name}/{index}"))
            })
            .collect();
        let etc_hosts =
            mounts::needs_etc_hosts(pod, container, pod_ips).then(|| format!("{of_pod}/etc-hosts"));
        let termination_log = mounts::termination_message_path(container)
            .map(|_| format!("{of_pod}/containers/{name}/<rand>"));
        let reference = recorded["image"]["image"].as_str().unwrap_or_default().to_owned();
        let options = &recorded["linux"]["security_context"]["namespace_options"];
        config::container(&ContainerInputs {
            pod,
            container,
            attempt: crate::attempt(recorded),
            facts,
            pod_provision: &provision,
            provision: &ContainerProvision::default(),
            image: &ResolvedImage { reference, user: ImageUser::new(None, "") },
            environment: &environment,
            mounts: &requests,
            sub_paths: &sub_paths,
            block_devices: &mounts::block_devices(container, &volumes)?,
            etc_hosts: etc_hosts.as_deref(),
            termination_log: termination_log.as_deref(),
            target: options["target_id"].as_str().map(ContainerId::new).as_ref(),
        })
    }
}

fn provision(pod: &Pod) -> PodProvision {
    let class = QosClass::of(&pod.object).unwrap();
    let group = PodTree::below(&CgroupName::ROOT).pod(class, &pod.uid).unwrap();
    PodProvision { cgroup_parent: group.path(Driver::Cgroupfs), ..Default::default() }
}

/// Mount path of each volume type, and which types are read-only.
fn volumes(pod: &Pod) -> BTreeMap<String, MountedVolume> {
    let spec = pod.object.spec.as_ref().unwrap();
    let mounted = |volume: &v1::Volume| {
        let (plugin, read_only) = match volume {
            v1::Volume { host_path: Some(host), .. } => {
                return (host.path.clone(), false);
            }
            v1::Volume { config_map: Some(_), .. } => ("configmap", true),
            v1::Volume { secret: Some(_), .. } => ("secret", true),
            v1::Volume { downward_api: Some(_), .. } => ("downward-api", true),
            v1::Volume { projected: Some(_), .. } => ("projected", true),
            _ => ("empty-dir", false),
        };
        let name = &volume.name;
        (format!("{ROOT}/pods/{UID}/volumes/kubernetes.io~{plugin}/{name}"), read_only)
    };
    let volumes = spec.volumes.iter().flatten();
    volumes
        .map(|volume| {
            let (path, read_only) = mounted(volume);
            let source = VolumeSource::Directory(path);
            (volume.name.clone(), MountedVolume { source, read_only, relabel: false })
        })
        .collect()
}

/// ConfigMaps and Secrets of a recording.
struct Objects {
    config_maps: BTreeMap<String, v1::ConfigMap>,
    secrets: BTreeMap<String, v1::Secret>,
}

impl Objects {
    fn of(recording: &Recording) -> Self {
        let named = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        let config_map = |object: &Value| serde_json::from_value(object.clone()).unwrap();
        let secret = |object: &Value| {
            let mut secret: v1::Secret = serde_json::from_value(object.clone()).unwrap();
            let text = secret.string_data.take().unwrap_or_default();
            let bytes = |text: String| k8s_openapi::ByteString(text.into_bytes());
            secret.data = Some(text.into_iter().map(|(key, text)| (key, bytes(text))).collect());
            secret
        };
        Self {
            config_maps: recording
                .objects("ConfigMap")
                .map(|object| (named(object), config_map(object)))
                .collect(),
            secrets: recording
                .objects("Secret")
                .map(|object| (named(object), secret(object)))
                .collect(),
        }
    }
}

impl EnvSources for Objects {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        self.config_maps.get(name).map_or(Lookup::Missing, Lookup::Found)
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        self.secrets.get(name).map_or(Lookup::Missing, Lookup::Found)
    }

    fn file(&self, _: &str, _: &str) -> EnvFile<'_> {
        EnvFile::NoVolume
    }
}
