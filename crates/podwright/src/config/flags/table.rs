//! Table of all flags of the kubelet of Kubernetes v1.36 on Linux.

use super::Group::{
    Api, Configuration, Images, Logs, Network, Node, Pods, Process, Resources, Runtime, Server,
    Storage,
};
use super::Kind::{
    Address, Bool, Duration, Gates, Headers, Int32, Int64, Labels, Level, List, Map, ModuleLevels,
    NumaMemory, Pair, Quantity, Taints, Text, Thresholds,
};
use super::{Flag, Group, Kind, Sets};

const fn field(
    name: &'static str,
    kind: Kind,
    field: &'static str,
    group: Group,
    help: &'static str,
) -> Flag {
    Flag { name, short: None, kind, sets: Sets::Field(field), group, help }
}

const fn option(
    name: &'static str,
    kind: Kind,
    option: &'static str,
    group: Group,
    help: &'static str,
) -> Flag {
    Flag { name, short: None, kind, sets: Sets::Option(option), group, help }
}

const fn nothing(name: &'static str, kind: Kind, group: Group, help: &'static str) -> Flag {
    Flag { name, short: None, kind, sets: Sets::Nothing, group, help }
}

/// By section, the most important flags first. `--help` and `--version` are not settings and not
/// listed.
#[rustfmt::skip] // one flag, one line
pub const FLAGS: [Flag; 129] = [
    option("config", Text, "config", Configuration, "File with a KubeletConfiguration, overridden by flags"),
    option("config-dir", Text, "configDir", Configuration, "Directory of *.conf drop-ins, merged over the file in lexical order"),
    field("feature-gates", Gates, "featureGates", Configuration, "Feature gates to switch, added to those in the files"),

    option("kubeconfig", Text, "kubeconfig", Node, "Kubeconfig of the API server; without it only static pods run"),
    option("bootstrap-kubeconfig", Text, "bootstrapKubeconfig", Node, "Credentials for requesting a client certificate when --kubeconfig has none"),
    option("cert-dir", Text, "certDir", Node, "Directory for the node's certificates and keys"),
    option("hostname-override", Text, "hostnameOverride", Node, "Name of the node, instead of the machine's hostname"),
    option("node-ip", Text, "nodeIp", Node, "Address of the node, or an IPv4 and an IPv6 one; :: prefers IPv6"),
    option("node-labels", Labels, "nodeLabels", Node, "Labels for the node when it registers"),
    field("register-node", Bool, "registerNode", Node, "Create the Node object if it does not exist"),
    field("register-with-taints", Taints, "registerWithTaints", Node, "Taints for the node when it registers"),
    field("provider-id", Text, "providerID", Node, "Identifier of the machine at its cloud provider"),
    option("cloud-provider", Text, "cloudProvider", Node, "Empty, or `external` if a cloud controller completes the Node"),
    field("rotate-certificates", Bool, "rotateCertificates", Node, "Renew the client certificate before it expires"),
    field("rotate-server-certificates", Bool, "serverTLSBootstrap", Node, "Request the serving certificate from the API server"),
    field("node-status-update-frequency", Duration, "nodeStatusUpdateFrequency", Node, "How often the node's status is computed"),
    field("node-status-max-images", Int32, "nodeStatusMaxImages", Node, "Most images listed in the node's status; -1 lists all"),

    field("pod-manifest-path", Text, "staticPodPath", Pods, "Static pods: a manifest file or a directory of manifests"),
    field("manifest-url", Text, "staticPodURL", Pods, "URL that serves static pod manifests"),
    field("manifest-url-header", Headers, "staticPodURLHeader", Pods, "HTTP headers to send to --manifest-url"),
    field("file-check-frequency", Duration, "fileCheckFrequency", Pods, "How often static pod files are read again"),
    field("http-check-frequency", Duration, "httpCheckFrequency", Pods, "How often --manifest-url is read again"),
    field("sync-frequency", Duration, "syncFrequency", Pods, "How often every pod is synced even without events"),
    field("max-pods", Int32, "maxPods", Pods, "Pods that may run on this node"),
    field("pods-per-core", Int32, "podsPerCore", Pods, "Pods that may run per CPU core; 0 is no such limit"),
    field("pod-max-pids", Int64, "podPidsLimit", Pods, "Most processes in one pod; -1 is as many as the node allows"),
    field("seccomp-default", Bool, "seccompDefault", Pods, "Use the seccomp profile RuntimeDefault where a pod names none"),
    field("allowed-unsafe-sysctls", List, "allowedUnsafeSysctls", Pods, "Unsafe sysctls pods may set, or prefixes ending in *"),
    field("runonce", Bool, "runOnce", Pods, "Refused: running pods once and exiting no longer exists"),

    field("container-runtime-endpoint", Text, "containerRuntimeEndpoint", Runtime, "Socket of the CRI runtime"),
    field("image-service-endpoint", Text, "imageServiceEndpoint", Runtime, "Socket of the CRI image service, if it is another"),
    field("runtime-request-timeout", Duration, "runtimeRequestTimeout", Runtime, "Deadline for calls to the runtime that are not streams or pulls"),
    option("runtime-cgroups", Text, "runtimeCgroups", Runtime, "Cgroup the runtime runs in"),
    option("maximum-dead-containers", Int32, "maximumDeadContainers", Runtime, "Most dead containers kept on the node; negative is no limit"),
    option("maximum-dead-containers-per-container", Int32, "maximumDeadContainersPerContainer", Runtime, "Most old instances kept of one container"),
    option("minimum-container-ttl-duration", Duration, "minimumContainerTtl", Runtime, "Age a dead container must reach before it is removed"),

    field("serialize-image-pulls", Bool, "serializeImagePulls", Images, "Pull one image at a time"),
    field("registry-qps", Int32, "registryPullQPS", Images, "Pulls started per second; 0 is no limit"),
    field("registry-burst", Int32, "registryBurst", Images, "Pulls that may be started at once within --registry-qps"),
    field("image-gc-high-threshold", Int32, "imageGCHighThresholdPercent", Images, "Disk usage in percent at which unused images are removed; 100 never"),
    field("image-gc-low-threshold", Int32, "imageGCLowThresholdPercent", Images, "Disk usage in percent at which removing images stops"),
    field("minimum-image-ttl-duration", Duration, "imageMinimumGCAge", Images, "Age an unused image must reach before it may be removed"),
    option("image-credential-provider-config", Text, "imageCredentialProviderConfig", Images, "Configuration file or directory of registry credential plugins"),
    option("image-credential-provider-bin-dir", Text, "imageCredentialProviderBinDir", Images, "Directory of the registry credential plugins"),

    field("address", Address, "address", Server, "Address the server listens on"),
    field("port", Int32, "port", Server, "Port the server listens on"),
    field("read-only-port", Int32, "readOnlyPort", Server, "Port of the server without authentication; 0 is off"),
    field("healthz-bind-address", Address, "healthzBindAddress", Server, "Address the health port listens on"),
    field("healthz-port", Int32, "healthzPort", Server, "Port of the health endpoint; 0 is off"),
    field("enable-server", Bool, "enableServer", Server, "Enable the kubelet server"),
    field("enable-debugging-handlers", Bool, "enableDebuggingHandlers", Server, "Serve logs, exec, attach and port-forward"),
    field("anonymous-auth", Bool, "authentication.anonymous.enabled", Server, "Accept requests without credentials as system:anonymous"),
    field("client-ca-file", Text, "authentication.x509.clientCAFile", Server, "CA of the client certificates that are accepted"),
    field("authentication-token-webhook", Bool, "authentication.webhook.enabled", Server, "Verify bearer tokens with the API server"),
    field("authentication-token-webhook-cache-ttl", Duration, "authentication.webhook.cacheTTL", Server, "How long token reviews are cached"),
    field("authorization-mode", Text, "authorization.mode", Server, "AlwaysAllow, or Webhook to authorize with the API server"),
    field("authorization-webhook-cache-authorized-ttl", Duration, "authorization.webhook.cacheAuthorizedTTL", Server, "How long allowed requests are cached"),
    field("authorization-webhook-cache-unauthorized-ttl", Duration, "authorization.webhook.cacheUnauthorizedTTL", Server, "How long denied requests are cached"),
    field("tls-cert-file", Text, "tlsCertFile", Server, "Serving certificate; without it one is created in --cert-dir"),
    field("tls-private-key-file", Text, "tlsPrivateKeyFile", Server, "Key of --tls-cert-file"),
    field("tls-min-version", Text, "tlsMinVersion", Server, "Lowest TLS version: VersionTLS12 or VersionTLS13"),
    field("tls-cipher-suites", List, "tlsCipherSuites", Server, "Cipher suites to offer, by their IANA names"),
    field("streaming-connection-idle-timeout", Duration, "streamingConnectionIdleTimeout", Server, "Idle time after which exec, attach and port-forward are closed"),
    field("contention-profiling", Bool, "enableContentionProfiling", Server, "Profile lock contention"),

    field("cgroup-driver", Text, "cgroupDriver", Resources, "cgroupfs or systemd, if the runtime does not report it"),
    field("cgroup-root", Text, "cgroupRoot", Resources, "Parent cgroup of the pods' cgroups"),
    field("cgroups-per-qos", Bool, "cgroupsPerQOS", Resources, "Create a cgroup for each QoS class and pod"),
    field("fail-cgroupv1", Bool, "failCgroupV1", Resources, "Refuse to start on a machine with cgroup v1"),
    field("fail-swap-on", Bool, "failSwapOn", Resources, "Refuse to start on a machine with swap"),
    field("cpu-cfs-quota", Bool, "cpuCFSQuota", Resources, "Enforce CPU limits"),
    field("cpu-cfs-quota-period", Duration, "cpuCFSQuotaPeriod", Resources, "Period over which CPU limits are enforced, 1ms to 1s"),
    field("enforce-node-allocatable", List, "enforceNodeAllocatable", Resources, "What reservations are enforced on: pods, system-reserved, kube-reserved, either with -compressible, or none"),
    field("system-reserved", Map, "systemReserved", Resources, "Reserved for the system: cpu, memory, ephemeral-storage, pid"),
    field("system-reserved-cgroup", Text, "systemReservedCgroup", Resources, "Cgroup --system-reserved is enforced on"),
    field("kube-reserved", Map, "kubeReserved", Resources, "Reserved for Kubernetes: cpu, memory, ephemeral-storage, pid"),
    field("kube-reserved-cgroup", Text, "kubeReservedCgroup", Resources, "Cgroup --kube-reserved is enforced on"),
    field("reserved-cpus", Text, "reservedSystemCPUs", Resources, "CPUs reserved for system and Kubernetes, such as 0-1,4"),
    field("reserved-memory", NumaMemory, "reservedMemory", Resources, "Memory reserved per NUMA node, such as 0:memory=1Gi"),
    field("qos-reserved", Map, "qosReserved", Resources, "Share of requests reserved per QoS class, such as memory=50%"),
    field("cpu-manager-policy", Text, "cpuManagerPolicy", Resources, "none or static"),
    field("cpu-manager-policy-options", Pair, "cpuManagerPolicyOptions", Resources, "Options of --cpu-manager-policy"),
    field("cpu-manager-reconcile-period", Duration, "cpuManagerReconcilePeriod", Resources, "How often CPU sets are compared with the cgroups"),
    field("memory-manager-policy", Text, "memoryManagerPolicy", Resources, "None or Static"),
    field("topology-manager-policy", Text, "topologyManagerPolicy", Resources, "none, best-effort, restricted or single-numa-node"),
    field("topology-manager-policy-options", Map, "topologyManagerPolicyOptions", Resources, "Options of --topology-manager-policy"),
    field("topology-manager-scope", Text, "topologyManagerScope", Resources, "container or pod"),
    field("eviction-hard", Thresholds, "evictionHard", Resources, "Evict immediately below these, such as memory.available<1Gi"),
    field("eviction-soft", Thresholds, "evictionSoft", Resources, "Evict after a grace period below these"),
    field("eviction-soft-grace-period", Map, "evictionSoftGracePeriod", Resources, "Grace periods of --eviction-soft"),
    field("eviction-max-pod-grace-period", Int32, "evictionMaxPodGracePeriod", Resources, "Maximum grace period in seconds in a soft eviction"),
    field("eviction-minimum-reclaim", Map, "evictionMinimumReclaim", Resources, "Minimum to reclaim in an eviction"),
    field("eviction-pressure-transition-period", Duration, "evictionPressureTransitionPeriod", Resources, "How long a pressure condition outlasts the pressure"),
    field("kernel-memcg-notification", Bool, "kernelMemcgNotification", Resources, "Use kernel notifications for memory thresholds"),
    option("experimental-allocatable-ignore-eviction", Bool, "allocatableIgnoreEviction", Resources, "Leave hard eviction thresholds out of Node Allocatable"),
    field("system-cgroups", Text, "systemCgroups", Resources, "Cgroup for processes that are in no other cgroup"),
    field("kubelet-cgroups", Text, "kubeletCgroups", Resources, "Cgroup to run the agent in"),
    field("local-storage-capacity-isolation", Bool, "localStorageCapacityIsolation", Resources, "Account for ephemeral storage"),

    field("cluster-dns", List, "clusterDNS", Network, "DNS servers for pods with dnsPolicy ClusterFirst"),
    field("cluster-domain", Text, "clusterDomain", Network, "DNS domain of the cluster"),
    field("resolv-conf", Text, "resolvConf", Network, "Resolver file pods' DNS settings are derived from; empty for none"),
    field("pod-cidr", Text, "podCIDR", Network, "Address range for pods of a node without a cluster"),
    field("make-iptables-util-chains", Bool, "makeIPTablesUtilChains", Network, "Create the iptables chains that other components expect"),
    field("hairpin-mode", Text, "hairpinMode", Network, "promiscuous-bridge, hairpin-veth or none"),

    option("root-dir", Text, "rootDir", Storage, "Directory for pods' files, volumes and checkpoints"),
    field("volume-plugin-dir", Text, "volumePluginDir", Storage, "Directory of FlexVolume drivers"),
    field("volume-stats-agg-period", Duration, "volumeStatsAggPeriod", Storage, "How often volumes' disk usage is measured; negative is never"),
    field("enable-controller-attach-detach", Bool, "enableControllerAttachDetach", Storage, "Leave attaching volumes to the control plane"),
    field("container-log-max-size", Text, "containerLogMaxSize", Storage, "Size at which a container's log is rotated"),
    field("container-log-max-files", Int32, "containerLogMaxFiles", Storage, "Most log files kept of one container, at least 2"),
    nothing("experimental-mounter-path", Text, Storage, "Program that mounts volumes"),

    field("kube-api-qps", Int32, "kubeAPIQPS", Api, "Requests per second to the API server"),
    field("kube-api-burst", Int32, "kubeAPIBurst", Api, "Requests that may be sent at once within --kube-api-qps"),
    field("kube-api-content-type", Text, "contentType", Api, "Content type of requests"),
    field("event-qps", Int32, "eventRecordQPS", Api, "Events sent per second"),
    field("event-burst", Int32, "eventBurst", Api, "Events that may be sent at once within --event-qps"),

    field("oom-score-adj", Int32, "oomScoreAdj", Process, "OOM score adjustment of the agent, -1000 to 1000"),
    field("max-open-files", Int64, "maxOpenFiles", Process, "Files the agent may hold open"),
    field("protect-kernel-defaults", Bool, "protectKernelDefaults", Process, "Refuse to start if kernel settings differ from the required values"),
    option("lock-file", Text, "lockFile", Process, "File to hold a lock on while running"),
    option("exit-on-lock-contention", Bool, "exitOnLockContention", Process, "Exit when another process requests --lock-file"),
    nothing("housekeeping-interval", Duration, Process, "How often container statistics are collected"),

    Flag { name: "v", short: Some('v'), kind: Level, sets: Sets::Field("logging.verbosity"), group: Logs, help: "How much to log: 0 normal, 2 to 5 more, from 6 everything" },
    field("vmodule", ModuleLevels, "logging.vmodule", Logs, "How much to log for some modules, such as pleg=6,status*=4"),
    field("logging-format", Text, "logging.format", Logs, "text or json"),
    field("log-flush-frequency", Duration, "logging.flushFrequency", Logs, "Longest time between log flushes"),
    field("log-text-split-stream", Bool, "logging.options.text.splitStream", Logs, "Errors to stderr, the rest to stdout"),
    field("log-text-info-buffer-size", Quantity, "logging.options.text.infoBufferSize", Logs, "Buffer for messages with --log-text-split-stream"),
    field("log-json-split-stream", Bool, "logging.options.json.splitStream", Logs, "Errors to stderr, the rest to stdout"),
    field("log-json-info-buffer-size", Quantity, "logging.options.json.infoBufferSize", Logs, "Buffer for messages with --log-json-split-stream"),
];
