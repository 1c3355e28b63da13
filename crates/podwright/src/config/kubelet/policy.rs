//! Settings with a fixed set of values.

use serde::{Deserialize, Serialize};

use super::GoDuration;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    #[default]
    Cgroupfs,
    Systemd,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuManagerPolicy {
    #[default]
    None,
    Static,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemoryManagerPolicy {
    #[default]
    None,
    Static,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyManagerPolicy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TopologyManagerScope {
    #[default]
    Container,
    Pod,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HairpinMode {
    #[default]
    PromiscuousBridge,
    HairpinVeth,
    None,
}

/// How changes of ConfigMaps and Secrets are detected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeDetection {
    Get,
    Cache,
    #[default]
    Watch,
}

/// Which images already on the node may be used without proof of the right to pull them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageCredentialsVerification {
    NeverVerify,
    #[default]
    NeverVerifyPreloadedImages,
    NeverVerifyAllowlistedImages,
    AlwaysVerify,
}

/// A level at which Node Allocatable is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    None,
    Pods,
    SystemReserved,
    SystemReservedCompressible,
    KubeReserved,
    KubeReservedCompressible,
}

/// Minimum TLS version of the kubelet server. The TLS library does not support versions below 1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsVersion {
    #[serde(rename = "VersionTLS10")]
    Tls10,
    #[serde(rename = "VersionTLS11")]
    Tls11,
    #[serde(rename = "VersionTLS12")]
    Tls12,
    #[serde(rename = "VersionTLS13")]
    Tls13,
}

/// Grace period of pods of a priority at machine shutdown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownGracePeriod {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CrashLoopBackOff {
    /// Set as long as the gate KubeletCrashLoopBackOffMax is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_container_restart_period: Option<GoDuration>,
}
