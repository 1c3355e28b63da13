//! CRI methods, and the subject of a call.

use std::fmt;

use podwright_core::ids::{PodName, PodUid};
use podwright_proto::cri;

macro_rules! rpcs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A method of the three services, by its name in the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rpc {
            $($(#[$doc])* $name,)*
        }

        impl Rpc {
            /// All of them, for a fault matrix.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

rpcs! {
    Version,
    Status,
    RuntimeConfig,
    UpdateRuntimeConfig,
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    ListPodSandbox,
    PodSandboxStatus,
    UpdatePodSandboxResources,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ListContainers,
    ContainerStatus,
    UpdateContainerResources,
    ReopenContainerLog,
    CheckpointContainer,
    ExecSync,
    Exec,
    Attach,
    PortForward,
    GetContainerEvents,
    ContainerStats,
    ListContainerStats,
    PodSandboxStats,
    ListPodSandboxStats,
    ListMetricDescriptors,
    ListPodSandboxMetrics,
    PullImage,
    ImageStatus,
    ListImages,
    RemoveImage,
    ImageFsInfo,
    /// In containerd's own event service.
    Subscribe,
}

impl Rpc {
    /// Whether it changes a pod: its sandbox or one of its containers.
    pub fn changes_pods(self) -> bool {
        matches!(
            self,
            Self::RunPodSandbox
                | Self::StopPodSandbox
                | Self::RemovePodSandbox
                | Self::UpdatePodSandboxResources
                | Self::CreateContainer
                | Self::StartContainer
                | Self::StopContainer
                | Self::RemoveContainer
                | Self::UpdateContainerResources
        )
    }
}

impl fmt::Display for Rpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A pod, by both of its identities.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub uid: PodUid,
    pub name: PodName,
}

impl PodRef {
    pub(super) fn of(meta: &cri::PodSandboxMetadata) -> Self {
        Self {
            uid: PodUid::new(meta.uid.as_str()),
            name: PodName::new(meta.namespace.as_str(), meta.name.as_str()),
        }
    }

    /// Whether it matches `pod`: a name, `namespace/name`, or a UID.
    pub fn is(&self, pod: &str) -> bool {
        &*self.name.name == pod || self.uid.as_str() == pod || self.name.to_string() == pod
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.uid)
    }
}

/// Subject of a call or an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Absent for calls about no pod, and for ids unknown to the runtime.
    pub pod: Option<PodRef>,
    /// The name of the container within its pod.
    pub container: Option<String>,
    pub container_id: Option<String>,
    pub sandbox_id: Option<String>,
    /// For calls about images.
    pub image: Option<String>,
}

impl About {
    pub(super) fn image(spec: Option<&cri::ImageSpec>) -> Self {
        Self { image: spec.map(|spec| spec.image.clone()), ..Self::default() }
    }

    pub(super) fn config(config: Option<&cri::PodSandboxConfig>) -> Self {
        let meta = config.and_then(|config| config.metadata.as_ref());
        Self { pod: meta.map(PodRef::of), ..Self::default() }
    }

    pub fn is_of(&self, pod: &str) -> bool {
        self.pod.as_ref().is_some_and(|known| known.is(pod))
    }
}
