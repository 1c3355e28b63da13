//! Tests of precedence: defaults, presets, the file, drop-ins, flags.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::duration::GoDuration;
use super::super::kubelet::{
    AuthorizationMode, CgroupDriver, EVICTION_HARD, ImagePulls, KubeletConfiguration, LogFormat,
};
use super::super::options::{CloudProvider, NodeOptions};
use super::*;

fn default_thresholds() -> BTreeMap<String, String> {
    EVICTION_HARD.iter().map(|(signal, amount)| ((*signal).into(), (*amount).into())).collect()
}

fn thresholds(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(signal, amount)| ((*signal).into(), (*amount).into())).collect()
}

// Differs from upstream: there is no second, less restrictive set of defaults.
#[test]
fn flags_without_file_have_secure_defaults_and_no_eviction() {
    let settings = Bench::new().settings("--kubeconfig=/etc/kubeconfig");
    let c = &settings.configuration;
    assert!(!c.authentication.anonymous.enabled);
    assert!(c.authentication.webhook.enabled);
    assert_eq!(c.authorization.mode, AuthorizationMode::Webhook);
    assert_eq!(c.read_only_port, 0);
    assert_eq!(c.address.to_string(), "0.0.0.0");
    assert!(c.eviction_hard.is_empty());
}

#[test]
fn empty_file_has_secure_defaults_and_the_five_thresholds() {
    let settings = Bench::settings_of("");
    let c = &settings.configuration;
    assert!(!c.authentication.anonymous.enabled);
    assert!(c.authentication.webhook.enabled);
    assert_eq!(c.authorization.mode, AuthorizationMode::Webhook);
    assert_eq!(c.read_only_port, 0);
    assert_eq!(c.eviction_hard, default_thresholds());
}

#[test]
fn eviction_thresholds_replace_the_defaults_unless_merged() {
    let mut with_defaults = default_thresholds();
    with_defaults.insert("memory.available".into(), "200Mi".into());
    for (case, text, want) in [
        ("not set", "", default_thresholds()),
        ("null", "evictionHard:\n", default_thresholds()),
        (
            "memory only",
            "evictionHard: {memory.available: 200Mi}",
            thresholds(&[("memory.available", "200Mi")]),
        ),
        ("none at all", "evictionHard: {}", BTreeMap::new()),
        (
            "memory and the rest",
            "evictionHard: {memory.available: 200Mi}\nmergeDefaultEvictionSettings: true",
            with_defaults,
        ),
        (
            "none and the rest",
            "evictionHard: {}\nmergeDefaultEvictionSettings: true",
            default_thresholds(),
        ),
    ] {
        assert_eq!(Bench::settings_of(text).configuration.eviction_hard, want, "{case}");
    }
}

#[test]
fn drop_ins_change_eviction_thresholds_one_by_one_and_a_flag_replaces_them_all() {
    let bench = Bench::new()
        .file("kubelet.yaml", "")
        .file("d/10.conf", "evictionHard: {memory.available: 300Mi, nodefs.inodesFree: null}");
    let line = "--kubeconfig=/k --config=kubelet.yaml --config-dir=d";
    let mut want = default_thresholds();
    want.insert("memory.available".into(), "300Mi".into());
    want.remove("nodefs.inodesFree");
    assert_eq!(bench.settings(line).configuration.eviction_hard, want);

    let by_flag = bench.settings(&format!("{line} --eviction-hard=pid.available<5%"));
    assert_eq!(by_flag.configuration.eviction_hard, thresholds(&[("pid.available", "5%")]));
    let none = bench.settings(&format!("{line} --eviction-hard="));
    assert!(none.configuration.eviction_hard.is_empty());
    let without_file = bench.settings("--kubeconfig=/k --config-dir=d");
    assert_eq!(
        without_file.configuration.eviction_hard,
        thresholds(&[("memory.available", "300Mi")])
    );
}

#[test]
fn last_drop_in_wins_and_flags_override_it() {
    let bench = Bench::new()
        .file("kubelet.yaml", "maxPods: 5")
        .file("d/20-more.conf", "maxPods: 20")
        .file("d/10-some.conf", "maxPods: 10")
        .file("d/30-other.yaml", "maxPods: 30");
    let max_pods = |line: &str| bench.settings(line).configuration.max_pods;
    assert_eq!(max_pods("--kubeconfig=/k"), 110);
    assert_eq!(max_pods("--kubeconfig=/k --config=kubelet.yaml"), 5);
    assert_eq!(max_pods("--kubeconfig=/k --config=kubelet.yaml --config-dir=d"), 20);
    assert_eq!(max_pods("--kubeconfig=/k --max-pods=7 --config=kubelet.yaml --config-dir=d"), 7);
    assert_eq!(max_pods("--kubeconfig=/k --config-dir=d"), 20);
}

#[test]
fn in_a_drop_in_lists_replace_and_null_goes_back_to_the_default() {
    let bench = Bench::new()
        .file("kubelet.yaml", "clusterDNS: [10.0.0.1, 10.0.0.2]\nmaxPods: 5\nport: 10999")
        .file("d/1.conf", "clusterDNS: [10.0.0.3]\nmaxPods: null\nport: 0");
    let c = bench.settings("--kubeconfig=/k --config=kubelet.yaml --config-dir=d").configuration;
    assert_eq!(c.cluster_dns, ["10.0.0.3"]);
    assert_eq!(c.max_pods, 110);
    assert_eq!(c.port, 10250, "zero means not set, also in a drop-in");
}

#[test]
fn feature_gates_of_files_and_flags_add_up() {
    let bench = Bench::new()
        .file("kubelet.yaml", "featureGates: {EventedPLEG: true, MemoryQoS: true}")
        .file("d/1.conf", "featureGates: {PodsAPI: true}");
    let settings = bench.settings(
        "--kubeconfig=/k --config=kubelet.yaml --config-dir=d --feature-gates=MemoryQoS=false",
    );
    for (gate, want) in [("EventedPLEG", true), ("PodsAPI", true), ("MemoryQoS", false)] {
        assert_eq!(settings.gates.enabled(gate), want, "{gate}");
    }
}

#[test]
fn zero_in_a_file_means_not_set_and_on_a_flag_means_zero() {
    let text = "maxPods: 0\nsyncFrequency: 0s\naddress: ''\ncgroupDriver: ''\n\
                healthzPort: 0\nregistryPullQPS: 0\nlogging: {flushFrequency: 0, verbosity: 0}";
    let settings = Bench::settings_of(text);
    let c = &settings.configuration;
    assert_eq!(c.max_pods, 110);
    assert_eq!(c.sync_frequency, GoDuration::from_secs(60));
    assert_eq!(c.address.to_string(), "0.0.0.0");
    assert_eq!(c.cgroup_driver, CgroupDriver::Cgroupfs);
    assert_eq!(c.logging.flush_frequency, GoDuration::from_secs(5));
    assert_eq!((c.healthz_port, c.registry_pull_qps), (0, 0), "here zero is a value: off");
    let by_flag = Bench::new().settings("--kubeconfig=/k --max-pods=0");
    assert_eq!(by_flag.configuration.max_pods, 0);
}

#[test]
fn report_frequency_defaults_to_the_update_frequency_of_the_file() {
    for (text, dropin, want) in [
        ("", "", 300),
        ("nodeStatusUpdateFrequency: 20s", "", 20),
        ("nodeStatusUpdateFrequency: 20s\nnodeStatusReportFrequency: 1m", "", 60),
        ("", "nodeStatusUpdateFrequency: 20s", 300),
    ] {
        let bench = Bench::new().file("kubelet.yaml", text).file("d/1.conf", dropin);
        let line = "--kubeconfig=/k --config=kubelet.yaml --config-dir=d";
        let c = bench.settings(line).configuration;
        assert_eq!(
            c.node_status_report_frequency,
            GoDuration::from_secs(want),
            "{text:?} {dropin:?}"
        );
    }
    let by_flag = Bench::new().settings("--kubeconfig=/k --node-status-update-frequency=20s");
    assert_eq!(by_flag.configuration.node_status_report_frequency, GoDuration::from_secs(300));
}

#[test]
fn images_are_pulled_in_parallel_by_default() {
    let five = ImagePulls::Parallel { at_most: 5 };
    for (text, flags, want, shown) in [
        ("", "", five, (Some(false), Some(5))),
        ("serializeImagePulls: true", "", ImagePulls::OneAtATime, (Some(true), None)),
        ("", "--serialize-image-pulls", ImagePulls::OneAtATime, (Some(true), None)),
        (
            "serializeImagePulls: true",
            "--serialize-image-pulls=false",
            five,
            (Some(false), Some(5)),
        ),
        (
            "maxParallelImagePulls: 3",
            "",
            ImagePulls::Parallel { at_most: 3 },
            (Some(false), Some(3)),
        ),
        ("maxParallelImagePulls: 1", "", ImagePulls::OneAtATime, (Some(true), Some(1))),
    ] {
        let bench = Bench::new().file("kubelet.yaml", text);
        let c =
            bench.settings(&format!("--kubeconfig=/k --config=kubelet.yaml {flags}")).configuration;
        assert_eq!(c.image_pulls(), want, "{text:?} {flags}");
        assert_eq!(
            (c.serialize_image_pulls, c.max_parallel_image_pulls),
            shown,
            "{text:?} {flags}"
        );
    }
}

#[test]
fn node_without_api_server_listens_on_loopback_and_accepts_certificates_only() {
    let settings = Bench::new().settings("");
    let c = &settings.configuration;
    assert_eq!(c.address.to_string(), "127.0.0.1");
    assert!(!c.authentication.webhook.enabled);
    assert!(!c.authentication.anonymous.enabled);
    assert_eq!(c.authorization.mode, AuthorizationMode::AlwaysAllow);
    assert_eq!(settings.warnings, Vec::<String>::new());

    let overridden =
        Bench::new().file("kubelet.yaml", "address: 10.0.0.1").settings("--config=kubelet.yaml");
    assert_eq!(overridden.configuration.address.to_string(), "10.0.0.1");
}

#[test]
fn defaults_of_up_are_overridden_by_files_and_flags() {
    let bench = Bench::new().swap("/dev/sda2").file("kubelet.yaml", "maxPods: 7");
    let preset =
        Preset::up(&json!({"containerRuntimeEndpoint": "unix:///run/own.sock", "maxPods": 6}));
    let settings = bench.resolve_as(&preset, "").unwrap();
    let c = &settings.configuration;
    assert!(!c.fail_swap_on);
    assert_eq!(c.container_runtime_endpoint, "unix:///run/own.sock");
    assert_eq!(c.max_pods, 6);
    assert!(c.authentication.webhook.enabled, "it has an API server");
    let with_file = bench.resolve_as(&preset, "--config=kubelet.yaml").unwrap();
    assert_eq!(with_file.configuration.max_pods, 7);
}

// Differs from upstream: cgroup v1 is accepted by default.
#[test]
fn swap_is_refused_and_cgroup_v1_only_if_forbidden() {
    Bench::new().cgroup_v1().settings("--kubeconfig=/k");
    let bench =
        Bench::new().cgroup_v1().swap("/swap.img").file("kubelet.yaml", "failCgroupV1: true");
    insta::assert_snapshot!(bench.refusal("--kubeconfig=/k --config=kubelet.yaml"), @r"
    invalid configuration, 2 problems:
      this machine: failSwapOn: running with swap on is not supported, please disable swap or set --fail-swap-on flag to false; active: /swap.img
      kubelet.yaml: failCgroupV1: true forbids this machine, which has cgroup v1; boot it with cgroup v2 or set it to false
    ");
    bench.settings(
        "--kubeconfig=/k --config=kubelet.yaml --fail-swap-on=false --fail-cgroupv1=false",
    );
}

#[test]
fn settings_that_exist_only_as_flags_have_their_defaults_and_are_set() {
    let settings = Bench::new().settings("--kubeconfig=/k");
    let defaults = NodeOptions { kubeconfig: Some("/k".into()), ..NodeOptions::default() };
    assert_eq!(settings.options, defaults);
    assert_eq!(settings.node_name, "worker-1");

    let bench = Bench::new();
    let settings = bench.settings(
        "--kubeconfig=k --root-dir=/data --cert-dir ./pki --hostname-override=Node.Example \
         --node-ip=10.0.0.1,fd00::1 --node-labels=a=b,topology.kubernetes.io/zone=z \
         --cloud-provider=external --maximum-dead-containers=7 --minimum-container-ttl-duration=1m",
    );
    let options = &settings.options;
    assert_eq!(options.kubeconfig, Some(bench.path("k")), "relative to the current directory");
    assert_eq!(options.cert_dir, bench.path("pki"));
    assert_eq!(options.root_dir, path("/data"));
    assert_eq!(settings.node_name, "node.example");
    assert_eq!(options.node_ip.0.len(), 2);
    assert_eq!(options.node_labels["a"], "b");
    assert_eq!(options.cloud_provider, CloudProvider::External);
    assert_eq!(options.maximum_dead_containers, 7);
    assert_eq!(options.minimum_container_ttl, GoDuration::from_secs(60));
}

#[test]
fn paths_are_relative_to_their_source() {
    let bench = Bench::new()
        .file(
            "etc/kubelet.yaml",
            "staticPodPath: manifests\ntlsCertFile: a.crt\ntlsPrivateKeyFile: a.key",
        )
        .file("etc/d/1.conf", "tlsCertFile: b.crt");
    let line =
        "--kubeconfig=/k --config=etc/kubelet.yaml --config-dir=etc/d --tls-private-key-file=c.key";
    let c = bench.settings(line).configuration;
    assert_eq!(path(&c.static_pod_path), bench.path("etc/manifests"));
    assert_eq!(path(&c.tls_cert_file), bench.path("etc/d/b.crt"));
    assert_eq!(path(&c.tls_private_key_file), bench.path("c.key"));
}

#[test]
fn cgroup_root_defaults_to_the_root_with_cgroups_per_qos() {
    assert_eq!(Bench::settings_of("").configuration.cgroup_root, "/");
    assert_eq!(Bench::settings_of("cgroupRoot: /pods").configuration.cgroup_root, "/pods");
    let without = Bench::settings_of("cgroupsPerQOS: false\nenforceNodeAllocatable: []");
    assert_eq!(without.configuration.cgroup_root, "");
}

#[test]
fn json_files_are_accepted() {
    let text = r#"{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "maxPods": 9, "logging": {"format": "json"}}"#;
    let bench = Bench::new().raw_file("kubelet.json", text);
    let c = bench.settings("--kubeconfig=/k --config=kubelet.json").configuration;
    assert_eq!((c.max_pods, c.logging.format), (9, LogFormat::Json));
}

#[test]
fn gates_enable_the_settings_they_guard() {
    let off =
        "featureGates: {KubeletCrashLoopBackOffMax: false, KubeletEnsureSecretPulledImages: false}";
    let c = Bench::settings_of(off).configuration;
    assert_eq!(c.crash_loop_back_off.max_container_restart_period, None);
    assert_eq!(c.image_pull_credentials_verification_policy, None);
    let c = Bench::settings_of("").configuration;
    assert_eq!(
        c.crash_loop_back_off.max_container_restart_period,
        Some(GoDuration::from_secs(300))
    );
    assert!(c.image_pull_credentials_verification_policy.is_some());
}

#[test]
fn an_empty_file_of_the_right_kind_gives_the_defaults() {
    let c = Bench::settings_of("").configuration;
    let want = KubeletConfiguration {
        // Defaults that depend on other settings are filled in.
        cgroup_root: c.cgroup_root.clone(),
        serialize_image_pulls: c.serialize_image_pulls,
        max_parallel_image_pulls: c.max_parallel_image_pulls,
        crash_loop_back_off: c.crash_loop_back_off.clone(),
        image_pull_credentials_verification_policy: c.image_pull_credentials_verification_policy,
        eviction_hard: default_thresholds(),
        ..KubeletConfiguration::default()
    };
    assert_eq!(c, want);
}
