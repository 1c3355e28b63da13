//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`.
//!
//! Wire type with the same names, the same defaults and the same JSON as upstream's, so that a
//! cluster's existing files work and `/configz` reads as tools expect. Settings with a fixed set of
//! values are enums, so that an invalid value is found while decoding and the error lists the
//! valid ones. Combinations are checked in [`super::validate`].

mod auth;
mod defaults;
mod logging;
mod memory;
mod policy;
mod taint;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

pub use auth::{
    AnonymousAuthentication, Authentication, Authorization, AuthorizationMode,
    WebhookAuthentication, WebhookAuthorization, X509Authentication,
};
pub use defaults::{EVICTION_HARD, ZERO_IS_UNSET};
pub use logging::{FormatOptions, LogFormat, Logging, OutputRouting, Tracing, VerbosityOverride};
pub use memory::{
    MemoryReservation, MemoryReservationPolicy, MemorySwap, QuantityText, SwapBehavior,
    UserNamespaces, percentage,
};
pub use policy::{
    CgroupDriver, ChangeDetection, CpuManagerPolicy, CrashLoopBackOff, Enforcement, HairpinMode,
    ImageCredentialsVerification, MemoryManagerPolicy, ShutdownGracePeriod, TlsVersion,
    TopologyManagerPolicy, TopologyManagerScope,
};
pub use taint::{Taint, TaintEffect};

use super::duration::GoDuration;

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub const KIND: &str = "KubeletConfiguration";

/// All settings of a configuration file, in the order of `/configz`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletConfiguration {
    pub kind: String,
    pub api_version: String,

    pub enable_server: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub static_pod_path: String,
    pub pod_logs_dir: String,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL", skip_serializing_if = "String::is_empty")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader", skip_serializing_if = "Headers::is_empty")]
    pub static_pod_url_header: Headers,

    pub address: IpAddr,
    pub port: i32,
    #[serde(skip_serializing_if = "is_zero")]
    pub read_only_port: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_cert_file: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tls_private_key_file: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tls_cipher_suites: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tls_curve_preferences: Vec<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_min_version: Option<TlsVersion>,
    #[serde(skip_serializing_if = "is_false")]
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap", skip_serializing_if = "is_false")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,

    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    pub registry_burst: i32,
    /// Set as long as the gate KubeletEnsureSecretPulledImages is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_credentials_verification_policy: Option<ImageCredentialsVerification>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preloaded_images_verification_allowlist: Vec<String>,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    pub event_burst: i32,

    pub enable_debugging_handlers: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub enable_contention_profiling: bool,
    pub healthz_port: i32,
    pub healthz_bind_address: IpAddr,
    pub oom_score_adj: i32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS", skip_serializing_if = "Vec::is_empty")]
    pub cluster_dns: Vec<String>,
    pub streaming_connection_idle_timeout: GoDuration,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,

    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    pub volume_stats_agg_period: GoDuration,

    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet_cgroups: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system_cgroups: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    pub cgroup_driver: CgroupDriver,
    pub cpu_manager_policy: CpuManagerPolicy,
    #[serde(rename = "singleProcessOOMKill", skip_serializing_if = "Option::is_none")]
    pub single_process_oom_kill: Option<bool>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    pub cpu_manager_reconcile_period: GoDuration,
    pub memory_manager_policy: MemoryManagerPolicy,
    pub topology_manager_policy: TopologyManagerPolicy,
    pub topology_manager_scope: TopologyManagerScope,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub qos_reserved: BTreeMap<String, String>,

    pub runtime_request_timeout: GoDuration,
    pub hairpin_mode: HairpinMode,
    pub max_pods: i32,
    #[serde(rename = "podCIDR", skip_serializing_if = "String::is_empty")]
    pub pod_cidr: String,
    pub pod_pids_limit: i64,
    pub resolv_conf: String,
    #[serde(skip_serializing_if = "is_false")]
    pub run_once: bool,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    pub node_status_max_images: i32,
    pub max_open_files: i64,
    pub content_type: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: i32,
    /// Unset until all sources are read: its default depends on `max_parallel_image_pulls`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serialize_image_pulls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_parallel_image_pulls: Option<i32>,

    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_hard: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_soft: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    pub eviction_pressure_transition_period: GoDuration,
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_max_pod_grace_period: i32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    pub merge_default_eviction_settings: bool,
    #[serde(skip_serializing_if = "is_zero")]
    pub pods_per_core: i32,
    pub enable_controller_attach_detach: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub protect_kernel_defaults: bool,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: bool,
    pub iptables_masquerade_bit: i32,
    pub iptables_drop_bit: i32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub feature_gates: BTreeMap<String, bool>,
    pub fail_swap_on: bool,
    pub memory_swap: MemorySwap,

    pub container_log_max_size: String,
    pub container_log_max_files: i32,
    pub container_log_max_workers: i32,
    pub container_log_monitor_interval: GoDuration,
    pub config_map_and_secret_change_detection_strategy: ChangeDetection,

    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub system_reserved: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kube_reserved: BTreeMap<String, String>,
    #[serde(rename = "reservedSystemCPUs", skip_serializing_if = "String::is_empty")]
    pub reserved_system_cpus: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub show_hidden_metrics_for_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub system_reserved_cgroup: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kube_reserved_cgroup: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub enforce_node_allocatable: Vec<Enforcement>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_unsafe_sysctls: Vec<String>,
    pub volume_plugin_dir: String,
    #[serde(rename = "providerID", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    #[serde(skip_serializing_if = "is_false")]
    pub kernel_memcg_notification: bool,
    pub logging: Logging,
    pub enable_system_log_handler: bool,
    pub enable_system_log_query: bool,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriod>,
    pub crash_loop_back_off: CrashLoopBackOff,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_memory: Vec<MemoryReservation>,
    pub enable_profiling_handler: bool,
    pub enable_debug_flags_handler: bool,
    pub seccomp_default: bool,
    pub memory_throttling_factor: f64,
    pub memory_reservation_policy: MemoryReservationPolicy,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub register_with_taints: Vec<Taint>,
    pub register_node: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tracing: Option<Tracing>,
    pub local_storage_capacity_isolation: bool,
    pub container_runtime_endpoint: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_namespaces: Option<UserNamespaces>,
}

/// Image pull mode, derived from two settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePulls {
    OneAtATime,
    Parallel { at_most: u32 },
}

impl KubeletConfiguration {
    /// The image pull mode.
    pub fn image_pulls(&self) -> ImagePulls {
        let limit = self.max_parallel_image_pulls.map(|limit| u32::try_from(limit).unwrap_or(1));
        match (self.serialize_image_pulls, limit) {
            (Some(true), _) | (None, Some(0 | 1)) => ImagePulls::OneAtATime,
            (_, limit) => ImagePulls::Parallel {
                at_most: limit.unwrap_or(defaults::PARALLEL_IMAGE_PULLS).max(1),
            },
        }
    }

    /// The endpoint of the image service; by default the runtime's.
    pub fn image_endpoint(&self) -> &str {
        match self.image_service_endpoint.as_str() {
            "" => &self.container_runtime_endpoint,
            other => other,
        }
    }

    /// Content of `/configz`: everything except headers that may contain credentials.
    pub fn to_configz(&self) -> serde_json::Value {
        let mut shown = self.clone();
        for values in shown.static_pod_url_header.0.values_mut() {
            *values = vec![MASKED.to_owned()];
        }
        serde_json::json!({ "kubeletconfig": shown })
    }
}

const MASKED: &str = "<masked>";

/// HTTP headers by name. They may contain credentials, so their values are never printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<String, Vec<String>>);

impl Headers {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, MASKED))).finish()
    }
}

// Serde passes a reference to these predicates.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &i32) -> bool {
    *value == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn image_pull_mode_depends_on_two_settings() {
        for (serialize, limit, want) in [
            (None, None, ImagePulls::Parallel { at_most: 5 }),
            (Some(true), None, ImagePulls::OneAtATime),
            (Some(true), Some(1), ImagePulls::OneAtATime),
            (Some(false), None, ImagePulls::Parallel { at_most: 5 }),
            (Some(false), Some(1), ImagePulls::Parallel { at_most: 1 }),
            (None, Some(1), ImagePulls::OneAtATime),
            (None, Some(3), ImagePulls::Parallel { at_most: 3 }),
        ] {
            let configuration = KubeletConfiguration {
                serialize_image_pulls: serialize,
                max_parallel_image_pulls: limit,
                ..Default::default()
            };
            assert_eq!(configuration.image_pulls(), want, "{serialize:?}, {limit:?}");
        }
    }

    #[test]
    fn headers_with_credentials_are_never_printed() {
        let mut configuration = KubeletConfiguration::default();
        configuration
            .static_pod_url_header
            .0
            .insert("Authorization".to_owned(), vec!["Bearer s3cret".to_owned()]);
        assert!(!format!("{configuration:?}").contains("s3cret"));
        let configz = configuration.to_configz().to_string();
        assert!(!configz.contains("s3cret"), "{configz}");
        assert!(configz.contains("Authorization"), "{configz}");
    }

    #[test]
    fn configuration_round_trips_through_json() {
        let written = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        let read: KubeletConfiguration = serde_json::from_value(written).unwrap();
        assert_eq!(read, KubeletConfiguration::default());
    }
}
