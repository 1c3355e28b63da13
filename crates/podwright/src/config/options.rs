//! Settings that exist only as flags.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::duration::GoDuration;

/// The default of `--root-dir`.
pub const ROOT_DIR: &str = "/var/lib/kubelet";

/// Settings that exist only as flags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct NodeOptions {
    #[serde(deserialize_with = "named_path")]
    pub config: Option<PathBuf>,
    #[serde(deserialize_with = "named_path")]
    pub config_dir: Option<PathBuf>,
    /// Without it the node runs static pods only.
    #[serde(deserialize_with = "named_path")]
    pub kubeconfig: Option<PathBuf>,
    #[serde(deserialize_with = "named_path")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    pub cert_dir: PathBuf,
    pub root_dir: PathBuf,
    pub hostname_override: String,
    pub node_ip: NodeIp,
    pub node_labels: BTreeMap<String, String>,
    pub cloud_provider: CloudProvider,
    pub runtime_cgroups: String,
    #[serde(deserialize_with = "named_path")]
    pub lock_file: Option<PathBuf>,
    pub exit_on_lock_contention: bool,
    #[serde(deserialize_with = "named_path")]
    pub image_credential_provider_config: Option<PathBuf>,
    #[serde(deserialize_with = "named_path")]
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// Negative: no limit.
    pub maximum_dead_containers: i32,
    pub maximum_dead_containers_per_container: i32,
    pub minimum_container_ttl: GoDuration,
    /// Node Allocatable is computed as if there were no hard eviction thresholds.
    pub allocatable_ignore_eviction: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            config: None,
            config_dir: None,
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            cert_dir: PathBuf::from("/var/lib/kubelet/pki"),
            root_dir: PathBuf::from(ROOT_DIR),
            hostname_override: String::new(),
            node_ip: NodeIp::default(),
            node_labels: BTreeMap::new(),
            cloud_provider: CloudProvider::None,
            runtime_cgroups: String::new(),
            lock_file: None,
            exit_on_lock_contention: false,
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            maximum_dead_containers: -1,
            maximum_dead_containers_per_container: 1,
            minimum_container_ttl: GoDuration::ZERO,
            allocatable_ignore_eviction: false,
        }
    }
}

/// An empty path means none: scripts write `--kubeconfig=$MAYBE`.
fn named_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = Option::<PathBuf>::deserialize(deserializer)?;
    Ok(path.filter(|path| !path.as_os_str().is_empty()))
}

/// What completes the Node object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum CloudProvider {
    /// The node itself.
    #[default]
    None,
    /// A cloud controller; the node is tainted until then.
    External,
}

impl<'de> Deserialize<'de> for CloudProvider {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "" => Ok(Self::None),
            "external" => Ok(Self::External),
            _ => Err(D::Error::custom("must be empty or \"external\"")),
        }
    }
}

/// The configured node addresses: none, one, or one of each family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct NodeIp(pub Vec<IpAddr>);

impl FromStr for NodeIp {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let addresses: Result<Vec<IpAddr>, _> = text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
            .map(str::parse)
            .collect();
        let addresses = addresses
            .map_err(|_| "must be an IP address, or an IPv4 and an IPv6 one with a comma")?;
        match addresses.as_slice() {
            [] | [_] => Ok(Self(addresses)),
            [one, other] if one.is_ipv4() == other.is_ipv4() => {
                Err("must not be two addresses of one family")
            }
            [one, other] if one.is_unspecified() || other.is_unspecified() => {
                Err("must not contain 0.0.0.0 or :: with another address")
            }
            [_, _] => Ok(Self(addresses)),
            _ => Err("must be at most two addresses"),
        }
    }
}

impl<'de> Deserialize<'de> for NodeIp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn node_ip_is_empty_or_one_address_or_one_of_each_family() {
        for (text, want) in [
            ("", Ok(0)),
            ("10.0.0.1", Ok(1)),
            ("::", Ok(1)),
            ("10.0.0.1, fd00::1", Ok(2)),
            ("10.0.0.1,10.0.0.2", Err("must not be two addresses of one family")),
            ("0.0.0.0,fd00::1", Err("must not contain 0.0.0.0 or :: with another address")),
            ("10.0.0.1,fd00::1,10.0.0.2", Err("must be at most two addresses")),
            ("eth0", Err("must be an IP address, or an IPv4 and an IPv6 one with a comma")),
        ] {
            assert_eq!(text.parse::<NodeIp>().map(|ip| ip.0.len()), want, "{text}");
        }
    }

    #[test]
    fn empty_path_means_none() {
        let options: NodeOptions =
            serde_json::from_str(r#"{"kubeconfig": "", "lockFile": "/run/lock"}"#).unwrap();
        assert_eq!(options.kubeconfig, None);
        assert_eq!(options.lock_file, Some(PathBuf::from("/run/lock")));
    }

    #[test]
    fn cloud_providers_other_than_external_are_refused() {
        let read = |text: &str| {
            serde_json::from_value::<CloudProvider>(text.into()).map_err(|error| error.to_string())
        };
        assert_eq!(read(""), Ok(CloudProvider::None));
        assert_eq!(read("external"), Ok(CloudProvider::External));
        assert_eq!(read("aws"), Err("must be empty or \"external\"".to_owned()));
    }
}
