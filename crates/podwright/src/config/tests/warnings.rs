//! Tests of configuration warnings.

use super::*;

fn warnings(text: &str, flags: &str) -> Vec<String> {
    let bench = Bench::new().file("kubelet.yaml", text);
    let settings = bench.settings(&format!("--kubeconfig=/k --config=kubelet.yaml {flags}"));
    settings.warnings.iter().map(|warning| bench.here(warning)).collect()
}

/// A file in which everything is the default.
const QUIET: &str = "";

#[test]
fn unknown_key_is_a_warning_that_names_its_file() {
    assert_eq!(
        warnings(&format!("{QUIET}maxPod: 5\nlogging: {{formt: json}}\nport: 1\nport: 2\n"), ""),
        [
            "kubelet.yaml: port is written more than once; the last one counts",
            r#"kubelet.yaml: unknown field logging.formt is ignored (did you mean "format"?)"#,
            r#"kubelet.yaml: unknown field maxPod is ignored (did you mean "maxPods"?)"#,
        ]
    );
}

#[test]
fn settings_without_effect_are_listed_in_one_warning() {
    assert_eq!(
        warnings(
            "cpuManagerPolicy: static\nhairpinMode: none\n",
            "--housekeeping-interval=10s --experimental-mounter-path=/x --hairpin-mode=none \
             --topology-manager-scope=container --max-pods=5",
        ),
        ["accepted, but without effect: --experimental-mounter-path, --hairpin-mode, \
          --housekeeping-interval, --topology-manager-scope, cpuManagerPolicy"]
    );
    assert_eq!(warnings(QUIET, ""), Vec::<String>::new());
}

#[test]
fn joined_machine_that_stays_down_after_a_kernel_error_is_warned_about() {
    for (flags, want) in [("--kubeconfig=/k", 1), ("", 0)] {
        let mut bench = Bench::new().file("kubelet.yaml", QUIET);
        bench.host.stays_down = Some("kernel.panic is 0".to_owned());
        let warnings = bench.settings(&format!("--config=kubelet.yaml {flags}")).warnings;
        let found = warnings.iter().filter(|warning| warning.starts_with("kernel.panic is 0: "));
        assert_eq!(found.count(), want, "{flags}");
    }
}

#[test]
fn options_without_effect_are_listed() {
    assert_eq!(
        warnings(
            &format!(
                "{QUIET}cgroupsPerQOS: false\nenforceNodeAllocatable: []\n\
                 localStorageCapacityIsolation: false\neventRecordQPS: 5\neventBurst: 10\n\
                 kubeAPIQPS: 5\nkubeAPIBurst: 10\nsyncFrequency: 10s\n"
            ),
            "--lock-file=/run/lock --exit-on-lock-contention --make-iptables-util-chains=true",
        ),
        ["accepted, but without effect: --exit-on-lock-contention, --lock-file, \
          cgroupsPerQOS"]
    );
    assert_eq!(warnings(QUIET, "--cgroups-per-qos"), Vec::<String>::new());
}

#[test]
fn feature_gates_without_effect_are_listed_in_one_warning() {
    assert_eq!(
        warnings(
            &format!("{QUIET}featureGates: {{EnvFiles: false, PodsAPI: true, NodeSwap: true}}"),
            ""
        ),
        ["feature gates accepted, but without effect: PodsAPI"]
    );
}

#[test]
fn anonymous_access_to_everything_is_a_warning() {
    assert_eq!(
        warnings(QUIET, "--anonymous-auth --authorization-mode=AlwaysAllow"),
        ["--anonymous-auth: authentication.anonymous.enabled with authorization.mode AlwaysAllow \
          allows every client that reaches 0.0.0.0:10250 to run commands in every container"]
    );
    let on_loopback =
        warnings(QUIET, "--anonymous-auth --authorization-mode=AlwaysAllow --address=127.0.0.1");
    assert_eq!(on_loopback, Vec::<String>::new());
}

#[test]
fn ignored_list_items_are_named() {
    assert_eq!(
        warnings(
            &format!(
                "{QUIET}clusterDNS: [10.0.0.1, dns.example]\n\
                 tlsCipherSuites: [TLS_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA25]\n"
            ),
            ""
        ),
        [
            r#"kubelet.yaml: clusterDNS[1] is ignored: "dns.example" is not an IP address"#,
            r#"kubelet.yaml: tlsCipherSuites[1] is ignored: "TLS_AES_128_GCM_SHA25" is not a supported cipher suite (did you mean "TLS_AES_128_GCM_SHA256"?)"#,
        ]
    );
}

/// Installers write every field, most of them as zeroes. These must be read as the defaults,
/// without warnings.
#[test]
fn file_written_by_an_installer_gives_no_warning() {
    let text = "\
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json: {infoBufferSize: \"0\"}
    text: {infoBufferSize: \"0\"}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
";
    assert_eq!(warnings(text, ""), Vec::<String>::new());
}

// The list is that of cmd/kubelet/app/options/globalflags_linux.go in v1.36.
#[test]
fn flags_of_the_cadvisor_library_are_accepted_and_reported_as_without_effect() {
    let flags = "--application-metrics-count-limit=1 --boot-id-file=/b --container-hints=/h \
                 --containerd=/run/c.sock --enable-load-reader --event-storage-age-limit=default=0 \
                 --event_storage_event_limit=default=0 --global-housekeeping-interval=1m \
                 --log-cadvisor-usage=false --machine-id-file=/m --storage-driver-user=u \
                 --storage-driver-password=hidden --storage-driver-host=h --storage-driver-db=d \
                 --storage-driver-table=t --storage-driver-secure \
                 --storage-driver-buffer-duration=1s --containerd-namespace=k8s.io";
    let shown = warnings(QUIET, flags).join("\n");
    let named = flags.split_whitespace().filter_map(|flag| flag.split('=').next());
    for flag in named.map(|flag| flag.replace('_', "-")) {
        assert!(shown.contains(&flag), "{flag} in {shown}");
    }
    assert!(!shown.contains("hidden"), "{shown}");
}

// pkg/features registers the gates of client-go with the kubelet's own.
#[test]
fn feature_gates_of_client_go_are_accepted() {
    let gates = "WatchListClient: false, InOrderInformersBatchProcess: false, AtomicFIFO: false, \
                 InformerResourceVersion: false, UnlockWhileProcessingFIFO: false, \
                 ClientsAllowCBOR: true, ClientsPreferCBOR: true, ClientsAllowCARotation: false, \
                 ClientsAllowTLSCacheGC: false, InOrderInformers: true";
    assert_eq!(
        warnings(&format!("{QUIET}featureGates: {{{gates}}}"), ""),
        ["feature gates accepted, but without effect: AtomicFIFO, ClientsAllowCARotation, \
          ClientsAllowCBOR, ClientsAllowTLSCacheGC, ClientsPreferCBOR, \
          InOrderInformersBatchProcess, InformerResourceVersion, UnlockWhileProcessingFIFO, \
          WatchListClient"]
    );
}
