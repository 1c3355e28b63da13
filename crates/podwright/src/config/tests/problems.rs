//! Tests of configuration errors.

use super::*;

#[test]
fn problems_of_several_sources_are_reported_together() {
    let bench = Bench::new()
        .file(
            "kubelet.yaml",
            "maxPods: -5\n\
             port: http\n\
             cgroupDriver: systmd\n\
             syncFrequency: 60\n\
             authentication: {webhook: {cacheTTL: 2 minutes}}\n\
             evictionHard: {memory.availible: 100Mi, nodefs.available: 200%}\n\
             featureGates: {EventedPleg: true, NodeSwap: false}\n\
             enforceNodeAllocatable: [pods, system-reserved]\n",
        )
        .file("d/10.conf", "imageGCHighThresholdPercent: 70\nclusterDNS: 10.0.0.1\n");
    insta::assert_snapshot!(bench.refusal(
        "--kubeconfig=/k --config=kubelet.yaml --config-dir=d --oom-score-adj=5000 \
         --image-gc-low-threshold=75 --max-open-files=lots --node-ip=eth0 \
         --node-labels=kubernetes.io/x=1,team=a/b --topology-manager-policy=most"
    ), @r#"
    invalid configuration, 18 problems:
      --node-ip: "eth0" must be an IP address, or an IPv4 and an IPv6 one with a comma
      kubelet.yaml: authentication.webhook.cacheTTL: "2 minutes" has the unknown unit " minutes"; known are ns, us, ms, s, m, h
      kubelet.yaml: cgroupDriver: "systmd" must be cgroupfs or systemd
      kubelet.yaml: port: "http" must be a whole number of at most 32 bits
      kubelet.yaml: syncFrequency: 60 has no unit; write for example 60s or 60m
      d/10.conf: clusterDNS: "10.0.0.1" must be a list
      --max-open-files: "lots" must be a whole number
      --topology-manager-policy: topologyManagerPolicy: "most" must be one of none, best-effort, restricted, single-numa-node
      kubelet.yaml: featureGates.EventedPleg: true is set for an unknown feature gate (did you mean "EventedPLEG"?)
      kubelet.yaml: featureGates.NodeSwap: false cannot be set: the gate is locked to true
      kubelet.yaml: maxPods: -5 must be 0 or more
      --oom-score-adj: oomScoreAdj: 5000 must be from -1000 to 1000
      --image-gc-low-threshold: imageGCLowThresholdPercent: 75 must be less than imageGCHighThresholdPercent, which is 70
      kubelet.yaml: enforceNodeAllocatable: ["pods","system-reserved"] names system-reserved, which needs systemReservedCgroup
      kubelet.yaml: evictionHard["memory.availible"]: "100Mi" is for an unknown signal (did you mean "memory.available"?); known are allocatableMemory.available, containerfs.available, containerfs.inodesFree, imagefs.available, imagefs.inodesFree, memory.available, nodefs.available, nodefs.inodesFree, pid.available
      kubelet.yaml: evictionHard["nodefs.available"]: "200%" must be from 0% to 100%
      --node-labels: unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: kubernetes.io/x; of these a node may only set beta.kubernetes.io/arch, beta.kubernetes.io/instance-type, beta.kubernetes.io/os, failure-domain.beta.kubernetes.io/region, failure-domain.beta.kubernetes.io/zone, kubernetes.io/arch, kubernetes.io/hostname, kubernetes.io/os, node.kubernetes.io/instance-type, topology.kubernetes.io/region, topology.kubernetes.io/zone, and any in kubelet.kubernetes.io, node.kubernetes.io
      --node-labels: the value "a/b" of team must be empty, or at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit
    "#);
}

#[test]
fn problems_of_command_line_and_file_are_reported_together() {
    let text = "maxPods: -1\nport: http\nauthentication: {webhook: {enabled: true}}\n";
    let bench = Bench::new().file("kubelet.yaml", text).swap("/dev/sda2");
    let refusal = bench.refusal(
        "--kubeconfg=/k --fail-swap-onn=false pods --config=kubelet.yaml --cgroup-driver=systmd -- x",
    );
    insta::assert_snapshot!(refusal, @r#"
    invalid configuration, 7 problems:
      command line: unknown flag --kubeconfg; did you mean --kubeconfig?
      command line: unknown flag --fail-swap-onn; did you mean --fail-swap-on?
      command line: unexpected argument "pods"; the kubelet takes flags only
      command line: unexpected argument "x"
      kubelet.yaml: port: "http" must be a whole number of at most 32 bits
      --cgroup-driver: cgroupDriver: "systmd" must be cgroupfs or systemd
      kubelet.yaml: maxPods: -1 must be 0 or more
    "#);
}

#[test]
fn each_violation_names_the_field_and_what_is_allowed() {
    for (text, want) in [
        ("port: 70000", "port: 70000 must be from 1 to 65535"),
        ("readOnlyPort: -1", "readOnlyPort: -1 must be from 0 to 65535"),
        ("nodeLeaseDurationSeconds: -1", "nodeLeaseDurationSeconds: -1 must be 1 or more"),
        ("maxOpenFiles: -1", "maxOpenFiles: -1 must be 0 or more"),
        (
            "memoryThrottlingFactor: 1.5",
            "memoryThrottlingFactor: 1.5 must be greater than 0 and at most 1",
        ),
        (
            "imageGCLowThresholdPercent: 90",
            "imageGCLowThresholdPercent: 90 must be less than imageGCHighThresholdPercent, which is 85",
        ),
        ("syncFrequency: -1s", r#"syncFrequency: "-1s" must be longer than 0s"#),
        ("imageMinimumGCAge: -1s", r#"imageMinimumGCAge: "-1s" must not be negative"#),
        (
            "imageMaximumGCAge: 1m",
            r#"imageMaximumGCAge: "1m0s" must be longer than imageMinimumGCAge, which is 2m0s, or 0s for never"#,
        ),
        (
            "containerLogMonitorInterval: 1s",
            r#"containerLogMonitorInterval: "1s" must be 3s or longer"#,
        ),
        ("cpuCFSQuotaPeriod: 2s", r#"cpuCFSQuotaPeriod: "2s" must be from 1ms to 1s"#),
        (
            "cpuCFSQuotaPeriod: 50ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}",
            r#"cpuCFSQuotaPeriod: "50ms" must be 100ms unless the feature gate CustomCPUCFSQuotaPeriod is on"#,
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 10m}",
            r#"crashLoopBackOff.maxContainerRestartPeriod: "10m0s" must be from 1s to 5m0s"#,
        ),
        (
            "runOnce: true",
            "runOnce: true must be false: running pods once and exiting no longer exists",
        ),
        (
            "containerRuntimeEndpoint: tcp://127.0.0.1:1",
            r#"containerRuntimeEndpoint: "tcp://127.0.0.1:1" must be a Unix socket, such as unix:///run/containerd/containerd.sock"#,
        ),
        ("staticPodURL: ftp://x", r#"staticPodURL: "ftp://x" must begin with http:// or https://"#),
        (
            "podLogsDir: /var/log/../pods",
            r#"podLogsDir: "/var/log/../pods" must be an absolute path in ASCII, without '.', '..' and doubled or final slashes"#,
        ),
        ("tlsCertFile: /a", r#"tlsCertFile: "/a" must be given together with tlsPrivateKeyFile"#),
        (
            "serverTLSBootstrap: true\nfeatureGates: {RotateKubeletServerCertificate: false}",
            "serverTLSBootstrap: true needs the feature gate RotateKubeletServerCertificate",
        ),
        (
            "serverTLSBootstrap: true",
            "serverTLSBootstrap: true is not supported yet, no serving certificate is requested; give \
             tlsCertFile and tlsPrivateKeyFile, or set it to false for a self-signed certificate",
        ),
        (
            "registerWithTaints: [{key: 'a b', effect: NoSchedule}]",
            "registerWithTaints[0].key: \"a b\" must have a name of at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
        ),
        (
            "registerWithTaints: [{key: a, effect: NoSchedule, timeAdded: '2026-01-01T00:00:00Z'}]",
            r#"registerWithTaints[0].timeAdded: "2026-01-01T00:00:00Z" must not be set"#,
        ),
        (
            "registerWithTaints: [{key: a, effect: NoSchedule}, {key: a, value: b, effect: NoSchedule}]",
            r#"registerWithTaints[1]: {"effect":"NoSchedule","key":"a","value":"b"} has the key and effect of a taint before it"#,
        ),
        (
            "serializeImagePulls: true\nmaxParallelImagePulls: 2",
            "maxParallelImagePulls: 2 must not be more than 1 while serializeImagePulls is true",
        ),
        ("maxParallelImagePulls: 0", "maxParallelImagePulls: 0 must be 1 or more"),
        (
            "preloadedImagesVerificationAllowlist: [a]",
            r#"preloadedImagesVerificationAllowlist: ["a"] must be empty unless imagePullCredentialsVerificationPolicy is NeverVerifyAllowlistedImages"#,
        ),
        (
            "systemReserved: {gpu: '1'}",
            r#"systemReserved.gpu: "1" cannot be reserved; cpu, ephemeral-storage, memory, pid can"#,
        ),
        (
            "kubeReserved: {cpu: lots}",
            r#"kubeReserved.cpu: "lots" must be a quantity, such as 500m or 1Gi"#,
        ),
        ("kubeReserved: {cpu: '-1'}", r#"kubeReserved.cpu: "-1" must not be negative"#),
        (
            "enforceNodeAllocatable: [pods, pods]",
            r#"enforceNodeAllocatable: ["pods","pods"] must not name a level twice"#,
        ),
        (
            "enforceNodeAllocatable: [none, pods]",
            r#"enforceNodeAllocatable: ["none","pods"] must not name another level beside none"#,
        ),
        (
            "cgroupsPerQOS: false",
            r#"enforceNodeAllocatable: ["pods"] must be none or empty while cgroupsPerQOS is false"#,
        ),
        (
            "enforceNodeAllocatable: [kube-reserved]",
            r#"enforceNodeAllocatable: ["kube-reserved"] names kube-reserved, which needs kubeReservedCgroup"#,
        ),
        (
            "enforceNodeAllocatable: [kube-reserved, kube-reserved-compressible]\nkubeReservedCgroup: /k",
            r#"enforceNodeAllocatable: ["kube-reserved","kube-reserved-compressible"] must not name both kube-reserved and kube-reserved-compressible"#,
        ),
        (
            "reservedSystemCPUs: 3-1",
            r#"reservedSystemCPUs: "3-1" must be a list of CPUs and ranges of them, such as 0-3,8"#,
        ),
        (
            "reservedSystemCPUs: '0'\nkubeReservedCgroup: /k",
            r#"reservedSystemCPUs: "0" must not be combined with systemReservedCgroup or kubeReservedCgroup"#,
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 0}}]",
            r#"reservedMemory[0].limits.memory: "0" must be more than 0"#,
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
            r#"reservedMemory[0].limits.cpu: "1" cannot be reserved; memory and hugepages-<size> can"#,
        ),
        ("systemCgroups: /system", r#"systemCgroups: "/system" needs cgroupRoot"#),
        (
            "userNamespaces: {idsPerPod: 70000}",
            "userNamespaces.idsPerPod: 70000 must be a multiple of 65536 below 4294967296",
        ),
        (
            "memoryReservationPolicy: TieredReservation",
            r#"memoryReservationPolicy: "TieredReservation" needs the feature gate MemoryQoS"#,
        ),
        (
            "evictionSoft: {memory.available: 1Gi}",
            r#"evictionSoft["memory.available"]: "1Gi" needs evictionSoftGracePeriod["memory.available"]"#,
        ),
        (
            "evictionHard: {memory.available: '0'}",
            r#"evictionHard["memory.available"]: "0" must be more than 0"#,
        ),
        (
            "evictionSoftGracePeriod: {memory.available: soon}",
            r#"evictionSoftGracePeriod["memory.available"]: "soon" is not a duration; write numbers with units, such as 30s, 1m30s or 100ms"#,
        ),
        (
            "shutdownGracePeriod: 500ms",
            r#"shutdownGracePeriod: "500ms" must be 0s, or 1s or longer"#,
        ),
        (
            "shutdownGracePeriodCriticalPods: 10s",
            r#"shutdownGracePeriodCriticalPods: "10s" must not be longer than shutdownGracePeriod, which is 0s"#,
        ),
        (
            "qosReserved: {memory: '101%'}",
            r#"qosReserved.memory: "101%" must be a percentage from 0% to 100%, such as 50%"#,
        ),
        (
            "qosReserved: {cpu: 50%}",
            r#"qosReserved.cpu: "50%" cannot be reserved for QoS classes; memory can"#,
        ),
        ("cgroupRoot: /\nsystemCgroups: /", r#"systemCgroups: "/" must not be the root cgroup"#),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: -5}]",
            "shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds: -5 must be from 0 to 31622400",
        ),
        (
            "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}, {priority: 1, shutdownGracePeriodSeconds: 6}]",
            "shutdownGracePeriodByPodPriority[1].priority: 1 must not be in two groups",
        ),
        (
            "shutdownGracePeriod: 30s\nshutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriodSeconds: 5}]",
            r#"shutdownGracePeriodByPodPriority: [{"priority":1,"shutdownGracePeriodSeconds":5}] must not be combined with shutdownGracePeriod"#,
        ),
        (
            "containerLogMaxSize: big",
            r#"containerLogMaxSize: "big" must be a quantity, such as 10Mi"#,
        ),
        (
            "enableSystemLogQuery: true\nenableSystemLogHandler: false",
            "enableSystemLogQuery: true needs enableSystemLogHandler",
        ),
        (
            "logging: {vmodule: [{filePattern: 'a=b', verbosity: 1}]}",
            r#"logging.vmodule[0].filePattern: "a=b" must be a pattern without '=' and ','"#,
        ),
        (
            "tracing: {samplingRatePerMillion: -1}",
            "tracing.samplingRatePerMillion: -1 must be from 0 to 1000000",
        ),
        (
            "tlsCipherSuites: [TLS_NULL]",
            "tlsCipherSuites: [\"TLS_NULL\"] must name at least one of TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ),
    ] {
        let bench = Bench::new().file("kubelet.yaml", text);
        let refusal = bench.refusal("--kubeconfig=/k --config=kubelet.yaml");
        let source = if text == "cgroupsPerQOS: false" { "default" } else { "kubelet.yaml" };
        assert_eq!(refusal, format!("invalid configuration: {source}: {want}"), "{text}");
    }
}

#[test]
fn kernel_settings_are_checked_only_with_protect_kernel_defaults() {
    let mut bench = Bench::new().file("kubelet.yaml", "protectKernelDefaults: true");
    bench.settings("--kubeconfig=/k --config=kubelet.yaml");
    bench.host.kernel.push("kernel.panic is 0, not 10".to_owned());
    bench.settings("--kubeconfig=/k");
    assert_eq!(
        bench.refusal("--kubeconfig=/k --config=kubelet.yaml"),
        "invalid configuration: this machine: protectKernelDefaults: kernel settings differ from \
         the required values: kernel.panic is 0, not 10; set them in /etc/sysctl.d, or disable \
         protectKernelDefaults"
    );
}

#[test]
fn settings_that_need_cgroup_v2_are_refused_on_cgroup_v1() {
    for (text, want) in [
        (
            "singleProcessOOMKill: false",
            "singleProcessOOMKill: false must not be false on this machine: cgroup v1 cannot kill a group",
        ),
        (
            "memorySwap: {swapBehavior: LimitedSwap}",
            r#"memorySwap.swapBehavior: "LimitedSwap" needs cgroup v2, which this machine does not have"#,
        ),
    ] {
        let bench = Bench::new().file("kubelet.yaml", text);
        let line = "--kubeconfig=/k --config=kubelet.yaml";
        bench.settings(line);
        let bench = bench.cgroup_v1();
        assert_eq!(bench.refusal(line), format!("invalid configuration: kubelet.yaml: {want}"));
    }
}

#[test]
fn flags_that_depend_on_each_other_are_checked() {
    for (line, want) in [
        (
            "--bootstrap-kubeconfig=/b",
            "--bootstrap-kubeconfig: needs --kubeconfig, the file to write once a certificate is issued",
        ),
        ("--exit-on-lock-contention", "--exit-on-lock-contention: needs --lock-file"),
        (
            "--image-credential-provider-config=/c",
            "--image-credential-provider-config: needs --image-credential-provider-bin-dir",
        ),
        (
            "--image-credential-provider-bin-dir=/c",
            "--image-credential-provider-bin-dir: needs --image-credential-provider-config",
        ),
        ("--cloud-provider=aws", r#"--cloud-provider: "aws" must be empty or "external""#),
        (
            "--authentication-token-webhook",
            "--authentication-token-webhook: authentication.webhook.enabled: true needs an API server; give --kubeconfig or set it to false",
        ),
        (
            "--authorization-mode=Webhook",
            r#"--authorization-mode: authorization.mode: "Webhook" needs an API server; give --kubeconfig or set it to AlwaysAllow"#,
        ),
        (
            "--housekeeping-interval=often",
            r#"--housekeeping-interval: "often" is not a duration; write numbers with units, such as 30s, 1m30s or 100ms"#,
        ),
        (
            "--config=missing.yaml",
            "missing.yaml: cannot be read: No such file or directory (os error 2)",
        ),
        (
            "--config-dir=missing",
            "--config-dir: missing cannot be read: No such file or directory (os error 2)",
        ),
        (
            "--hostname-override=under_score",
            "--hostname-override: gives the node the name \"under_score\", which must be a DNS name: at most 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit",
        ),
    ] {
        let refusal = Bench::new().refusal(line);
        assert_eq!(refusal, format!("invalid configuration: {want}"), "{line}");
    }
}

#[test]
fn invalid_value_is_refused_even_if_overridden() {
    let bench = Bench::new().file("kubelet.yaml", "maxPods: many");
    assert_eq!(
        bench.refusal("--kubeconfig=/k --config=kubelet.yaml --max-pods=5"),
        r#"invalid configuration: kubelet.yaml: maxPods: "many" must be a whole number of at most 32 bits"#
    );
}

#[test]
fn credentials_in_headers_are_masked_in_errors() {
    let bench = Bench::new().file("kubelet.yaml", "staticPodURLHeader: {Authorization: s3cret}");
    let refusal =
        bench.refusal("--kubeconfig=/k --config=kubelet.yaml --manifest-url-header=s3cret");
    insta::assert_snapshot!(refusal, @r"
    invalid configuration, 2 problems:
      kubelet.yaml: staticPodURLHeader.Authorization: <masked> must be a list
      --manifest-url-header: must be pairs Name:value
    ");
    assert!(!refusal.contains("s3cret"));
}

#[test]
fn every_invalid_file_is_named() {
    let bench = Bench::new()
        .raw_file("kubelet.yaml", "kind: Pod\n")
        .raw_file("d/1.conf", "maxPods: 5\n")
        .raw_file("d/2.conf", "");
    insta::assert_snapshot!(bench.refusal("--config=kubelet.yaml --config-dir=d"), @r#"
    invalid configuration, 5 problems:
      kubelet.yaml: apiVersion: is missing; it must be kubelet.config.k8s.io/v1beta1
      kubelet.yaml: kind: "Pod" must be KubeletConfiguration
      d/1.conf: apiVersion: is missing; it must be kubelet.config.k8s.io/v1beta1
      d/1.conf: kind: is missing; it must be KubeletConfiguration
      d/2.conf: is empty; it must contain a KubeletConfiguration
    "#);
}
