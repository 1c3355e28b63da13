//! What a feature gate changes here.

use Effect::{Absent, Always, Library, Works};

/// What setting a gate changes in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Both values work.
    Works,
    /// The feature does not exist here, so that only "off" matches the behaviour.
    Absent,
    /// The behaviour is always that of "on".
    Always,
    /// It changes upstream's client library, which this program does not use.
    Library,
    /// Upstream's kubelet does not read it either.
    Elsewhere,
}

/// The effect of a gate.
pub(super) fn of(name: &str) -> Effect {
    let found = EFFECTS.binary_search_by(|(known, _)| (*known).cmp(name)).ok();
    found.and_then(|at| EFFECTS.get(at)).map_or(Effect::Elsewhere, |(_, effect)| *effect)
}

/// Every gate that can be set and that upstream's kubelet reads.
pub(super) const EFFECTS: [(&str, Effect); 71] = [
    ("AllowDNSOnlyNodeCSR", Absent),
    ("AtomicFIFO", Library),
    ("CPUManagerPolicyAlphaOptions", Absent),
    ("CPUManagerPolicyBetaOptions", Absent),
    ("CRIListStreaming", Absent),
    ("CSIVolumeHealth", Absent),
    ("ChangeContainerStatusOnKubeletRestart", Works),
    ("ClientsAllowCARotation", Library),
    ("ClientsAllowCBOR", Library),
    ("ClientsAllowTLSCacheGC", Library),
    ("ClientsPreferCBOR", Library),
    ("ClusterTrustBundleProjection", Absent),
    ("ComponentFlagz", Absent),
    ("ComponentStatusz", Absent),
    ("ContainerCheckpoint", Absent),
    ("ContainerRestartRules", Works),
    ("ContainerStopSignals", Works),
    ("CustomCPUCFSQuotaPeriod", Works),
    ("DRAExtendedResource", Absent),
    ("DRANodeAllocatableResources", Absent),
    ("DRAWorkloadResourceClaims", Absent),
    ("DisableCPUQuotaWithExclusiveCPUs", Absent),
    ("EnvFiles", Works),
    ("EventedPLEG", Always),
    ("ExtendWebSocketsToKubelet", Absent),
    ("GracefulNodeShutdown", Works),
    ("GracefulNodeShutdownBasedOnPodPriority", Works),
    ("HostnameOverride", Works),
    ("ImageVolumeWithDigest", Absent),
    ("InOrderInformersBatchProcess", Library),
    ("InPlacePodLevelResourcesVerticalScaling", Works),
    ("InPlacePodVerticalScalingExclusiveCPUs", Absent),
    ("InPlacePodVerticalScalingExclusiveMemory", Absent),
    ("InPlacePodVerticalScalingInitContainers", Works),
    ("InformerResourceVersion", Library),
    ("KubeletCrashLoopBackOffMax", Works),
    ("KubeletEnsureSecretPulledImages", Works),
    ("KubeletInUserNamespace", Absent),
    ("KubeletPodResourcesListUseActivePods", Absent),
    ("KubeletRegistrationGetOnExistsOnly", Absent),
    ("KubeletSeparateDiskGC", Absent),
    ("KubeletServiceAccountTokenForCredentialProviders", Works),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", Absent),
    ("LoggingAlphaOptions", Absent),
    ("MemoryQoS", Works),
    ("NativeHistograms", Absent),
    ("NodeDeclaredFeatures", Works),
    ("PLEGOnDemandRelist", Always),
    ("PodAndContainerStatsFromCRI", Absent),
    ("PodCertificateRequest", Absent),
    ("PodLevelResourceManagers", Absent),
    ("PodLevelResources", Works),
    ("PodLogsQuerySplitStreams", Works),
    ("PodReadyToStartContainersCondition", Works),
    ("PodsAPI", Absent),
    ("PreventStaticPodAPIReferences", Works),
    ("QOSReserved", Works),
    ("ReduceDefaultCrashLoopBackOffDecay", Works),
    ("ReloadKubeletClientCAFile", Works),
    ("ReloadKubeletServerCertificateFile", Works),
    ("ResourceHealthStatus", Absent),
    ("ResourceHealthStatusMessage", Absent),
    ("RestartAllContainersOnContainerExits", Works),
    ("RotateKubeletServerCertificate", Absent),
    ("RuntimeClassInImageCriApi", Absent),
    ("SELinuxMount", Absent),
    ("TaintTolerationComparisonOperators", Works),
    ("TopologyManagerPolicyAlphaOptions", Absent),
    ("UnlockWhileProcessingFIFO", Library),
    ("UserNamespacesHostNetworkSupport", Absent),
    ("WatchListClient", Library),
];
