//! The message and enum types that both crates define.

use k8s_cri::v1::security_profile::ProfileType;
use k8s_cri::v1::{
    CgroupDriver, ContainerEventType, ContainerState, MetricType, MountPropagation, NamespaceMode,
    PodSandboxState, Protocol, SupplementalGroupsPolicy,
};
use prost::{DecodeError, Message};
use prost_reflect::MessageDescriptor;
use serde_json::Value;
use serde_json::value::to_value;

/// What `k8s-cri` read, by field name, and what it wrote back.
type Passage = (Value, Vec<u8>);

/// One message, as each crate's own type reads and writes it.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) through_ours: fn(&[u8]) -> Result<Vec<u8>, DecodeError>,
    pub(crate) through_theirs: fn(&[u8]) -> Result<Passage, DecodeError>,
    /// Whether these values fit their types.
    pub(crate) theirs_takes: fn(Value) -> bool,
}

impl Peer {
    /// Rust writes `DnsConfig` where protobuf has `DNSConfig`.
    pub(crate) fn is(&self, message: &MessageDescriptor) -> bool {
        self.name.eq_ignore_ascii_case(message.name())
    }
}

/// One enum of `k8s-cri`.
pub(crate) struct PeerEnum {
    pub(crate) name: &'static str,
    pub(crate) name_of: fn(i32) -> Option<&'static str>,
}

macro_rules! messages {
    ($($name:ident)*) => {
        pub(crate) const MESSAGES: &[Peer] = &[$(Peer {
            name: stringify!($name),
            through_ours: |bytes| Ok(podwright_proto::cri::$name::decode(bytes)?.encode_to_vec()),
            through_theirs: |bytes| {
                let read = k8s_cri::v1::$name::decode(bytes)?;
                Ok((to_value(&read).unwrap(), read.encode_to_vec()))
            },
            theirs_takes: |value| serde_json::from_value::<k8s_cri::v1::$name>(value).is_ok(),
        }),*];
    };
}

macro_rules! enums {
    ($($name:ident)*) => {
        pub(crate) const ENUMS: &[PeerEnum] = &[$(PeerEnum {
            name: stringify!($name),
            name_of: |number| Some($name::try_from(number).ok()?.as_str_name()),
        }),*];
    };
}

messages! {
    AttachRequest
    AttachResponse
    AuthConfig
    Capability
    CdiDevice
    CheckpointContainerRequest
    CheckpointContainerResponse
    Container
    ContainerAttributes
    ContainerConfig
    ContainerEventResponse
    ContainerFilter
    ContainerMetadata
    ContainerMetrics
    ContainerResources
    ContainerStateValue
    ContainerStats
    ContainerStatsFilter
    ContainerStatsRequest
    ContainerStatsResponse
    ContainerStatus
    ContainerStatusRequest
    ContainerStatusResponse
    ContainerUser
    CpuUsage
    CreateContainerRequest
    CreateContainerResponse
    Device
    DnsConfig
    ExecRequest
    ExecResponse
    ExecSyncRequest
    ExecSyncResponse
    FilesystemIdentifier
    FilesystemUsage
    GetEventsRequest
    HugepageLimit
    IdMapping
    Image
    ImageFilter
    ImageFsInfoRequest
    ImageFsInfoResponse
    ImageSpec
    ImageStatusRequest
    ImageStatusResponse
    Int64Value
    KeyValue
    LinuxContainerConfig
    LinuxContainerResources
    LinuxContainerSecurityContext
    LinuxContainerUser
    LinuxPodSandboxConfig
    LinuxPodSandboxStats
    LinuxPodSandboxStatus
    LinuxRuntimeConfiguration
    LinuxSandboxSecurityContext
    ListContainerStatsRequest
    ListContainerStatsResponse
    ListContainersRequest
    ListContainersResponse
    ListImagesRequest
    ListImagesResponse
    ListMetricDescriptorsRequest
    ListMetricDescriptorsResponse
    ListPodSandboxMetricsRequest
    ListPodSandboxMetricsResponse
    ListPodSandboxRequest
    ListPodSandboxResponse
    ListPodSandboxStatsRequest
    ListPodSandboxStatsResponse
    MemoryUsage
    Metric
    MetricDescriptor
    Mount
    Namespace
    NamespaceOption
    NetworkConfig
    NetworkInterfaceUsage
    NetworkUsage
    PodIp
    PodSandbox
    PodSandboxAttributes
    PodSandboxConfig
    PodSandboxFilter
    PodSandboxMetadata
    PodSandboxMetrics
    PodSandboxNetworkStatus
    PodSandboxStateValue
    PodSandboxStats
    PodSandboxStatsFilter
    PodSandboxStatsRequest
    PodSandboxStatsResponse
    PodSandboxStatus
    PodSandboxStatusRequest
    PodSandboxStatusResponse
    PortForwardRequest
    PortForwardResponse
    PortMapping
    ProcessUsage
    PullImageRequest
    PullImageResponse
    RemoveContainerRequest
    RemoveContainerResponse
    RemoveImageRequest
    RemoveImageResponse
    RemovePodSandboxRequest
    RemovePodSandboxResponse
    ReopenContainerLogRequest
    ReopenContainerLogResponse
    RunPodSandboxRequest
    RunPodSandboxResponse
    RuntimeCondition
    RuntimeConfig
    RuntimeConfigRequest
    RuntimeConfigResponse
    RuntimeFeatures
    RuntimeHandler
    RuntimeHandlerFeatures
    RuntimeStatus
    SeLinuxOption
    SecurityProfile
    StartContainerRequest
    StartContainerResponse
    StatusRequest
    StatusResponse
    StopContainerRequest
    StopContainerResponse
    StopPodSandboxRequest
    StopPodSandboxResponse
    SwapUsage
    UInt64Value
    UpdateContainerResourcesRequest
    UpdateContainerResourcesResponse
    UpdateRuntimeConfigRequest
    UpdateRuntimeConfigResponse
    UserNamespace
    VersionRequest
    VersionResponse
}

enums! {
    CgroupDriver
    ContainerEventType
    ContainerState
    MetricType
    MountPropagation
    NamespaceMode
    PodSandboxState
    ProfileType
    Protocol
    SupplementalGroupsPolicy
}
