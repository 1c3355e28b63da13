//! Resource usage statistics in the format of `/stats/summary`.
//!
//! The format is upstream's (`stats/v1alpha1`); unknown values are omitted, never estimated.
//! [`rate`] computes rates from two readings.

mod groups;
pub mod usage;

use std::time::Duration;

use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

pub use self::groups::{Daemon, DaemonGroups};

/// Timestamp in whole seconds, as in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Timestamp);

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = Timestamp::from_second(self.0.as_second()).unwrap_or(self.0);
        serializer.collect_str(&whole)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    pub node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub system_containers: Vec<ContainerStats>,
    pub start_time: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rlimit: Option<RlimitStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pub pod_ref: PodReference,
    pub start_time: Moment,
    pub containers: Vec<ContainerStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volume: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    pub ephemeral_storage: Option<FsStats>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    pub process_stats: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodReference {
    pub name: String,
    pub namespace: String,
    pub uid: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    pub name: String,
    pub start_time: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<SwapStats>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    pub time: Moment,
    /// Current CPU usage in nanocores; absent until there are two readings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_core_nano_seconds: Option<u64>,
    pub psi: Psi,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    pub time: Moment,
    /// Up to the limit; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major_page_faults: Option<u64>,
    pub psi: Psi,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IoStats {
    pub time: Moment,
    pub psi: Psi,
}

/// Pressure stall information: time that tasks were stalled on a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Psi {
    pub full: PsiData,
    pub some: PsiData,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PsiData {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    pub time: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_usage_bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkStats {
    pub time: Moment,
    /// `eth0`, as upstream; absent if there is no such interface.
    #[serde(flatten, serialize_with = "expected")]
    pub default: Option<Interface>,
    pub interfaces: Vec<Interface>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    pub name: String,
    pub rx_bytes: u64,
    pub rx_errors: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    #[serde(skip)]
    pub rx_packets: u64,
    #[serde(skip)]
    pub rx_dropped: u64,
    #[serde(skip)]
    pub tx_packets: u64,
    #[serde(skip)]
    pub tx_dropped: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FsStats {
    pub time: Moment,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

impl FsStats {
    /// Part of a filesystem: capacity of the whole, usage of the part.
    pub fn part(&self, time: Moment, used: Used) -> Self {
        Self { time, used_bytes: Some(used.bytes), inodes_used: Some(used.inodes), ..self.clone() }
    }
}

/// Disk usage of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    pub inodes: u64,
}

impl std::ops::Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

impl std::iter::Sum for Used {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |all, part| all + part)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStats {
    #[serde(flatten)]
    pub fs: FsStats,
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc_ref: Option<ClaimReference>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimReference {
    pub name: String,
    pub namespace: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_fs: Option<FsStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_fs: Option<FsStats>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RlimitStats {
    pub time: Moment,
    pub maxpid: u64,
    pub curproc: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    #[serde(rename = "process_count")]
    pub process_count: u64,
}

impl Summary {
    /// Keeps only the fields of `?only_cpu_and_memory=true`.
    pub fn cpu_and_memory_only(mut self) -> Self {
        let node = &mut self.node;
        (node.io, node.network, node.fs) = (None, None, None);
        (node.runtime, node.rlimit) = (None, None);
        let containers = node.system_containers.iter_mut();
        for container in containers.chain(self.pods.iter_mut().flat_map(|p| &mut p.containers)) {
            (container.io, container.rootfs, container.logs) = (None, None, None);
        }
        for pod in &mut self.pods {
            (pod.io, pod.network, pod.ephemeral_storage) = (None, None, None);
            (pod.process_stats, pod.volume) = (None, Vec::new());
        }
        self
    }
}

/// Usage in nanocores between two readings of a counter in nanoseconds.
///
/// A counter that decreased belongs to a new container, so there is no rate yet.
pub fn rate(earlier: u64, later: u64, between: Duration) -> Option<u64> {
    let used = u128::from(later.checked_sub(earlier)?);
    let between = between.as_nanos();
    let per_second = (used * 1_000_000_000).checked_div(between)?;
    u64::try_from(per_second).ok()
}

/// Volumes that count as the pod's local ephemeral storage.
pub fn is_local_and_ephemeral(volume: &k8s_openapi::api::core::v1::Volume) -> bool {
    let on_disk = volume
        .empty_dir
        .as_ref()
        .is_some_and(|dir| dir.medium.as_deref().is_none_or(|medium| medium.is_empty()));
    on_disk || volume.config_map.is_some()
}

/// Interfaces that are internal to the node or lead to containers, as in cAdvisor.
const INTERNAL_INTERFACES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Interfaces in the text of `/proc/net/dev`, except internal ones.
pub fn interfaces(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> =
            numbers.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, rest @ ..] = &numbers[..]
        else {
            return None;
        };
        let [tx_bytes, tx_packets, tx_errors, tx_dropped, ..] = rest else { return None };
        Some(Interface {
            name: name.trim().to_owned(),
            rx_bytes: *rx_bytes,
            rx_packets: *rx_packets,
            rx_errors: *rx_errors,
            rx_dropped: *rx_dropped,
            tx_bytes: *tx_bytes,
            tx_packets: *tx_packets,
            tx_errors: *tx_errors,
            tx_dropped: *tx_dropped,
        })
    };
    let leads_out = |interface: &Interface| {
        let name = interface.name.to_ascii_lowercase();
        !INTERNAL_INTERFACES.iter().any(|prefix| name.starts_with(prefix))
    };
    text.lines().filter_map(interface).filter(leads_out).collect()
}

/// Network of a pod or node; `None` without interfaces.
pub fn network(time: Moment, interfaces: &[Interface]) -> Option<NetworkStats> {
    let default = interfaces.iter().find(|interface| interface.name == "eth0").cloned();
    let interfaces = interfaces.to_vec();
    (!interfaces.is_empty()).then_some(NetworkStats { time, default, interfaces })
}

/// Fields of an interface; without one only an empty name, which is always present.
fn expected<S: Serializer>(default: &Option<Interface>, out: S) -> Result<S::Ok, S::Error> {
    match default {
        Some(interface) => interface.serialize(out),
        None => {
            let mut fields = out.serialize_map(Some(1))?;
            fields.serialize_entry("name", "")?;
            fields.end()
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn rate_requires_two_readings_of_the_same_counter() {
        let second = Duration::from_secs(1);
        for (case, earlier, later, between, want) in [
            ("half a core", 1_000_000_000, 1_500_000_000, second, Some(500_000_000)),
            ("two cores over two seconds", 0, 4_000_000_000, 2 * second, Some(2_000_000_000)),
            ("idle", 7, 7, second, Some(0)),
            ("a new container under an old name", 9, 7, second, None),
            ("no time passed", 0, 7, Duration::ZERO, None),
            ("too much to be true", 0, u64::MAX, Duration::from_nanos(1), None),
        ] {
            assert_eq!(rate(earlier, later, between), want, "{case}");
        }
    }

    #[test]
    fn interfaces_are_parsed_without_loopback() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
             face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs \
             drop fifo colls carrier compressed\n    lo:     100       1    0    0    0     0          \
             0         0      100       1    0    0    0     0       0          0\n  eth0: 613509583  \
             400    1    2    0     0          0         0  1917500     300    3    4    0     0       \
             0          0\nbroken: 1 2\nworse: a b c d e f g h i j k l m n o p\n";
        let found = interfaces(text);
        assert_eq!(found.len(), 1);
        let eth0 = &found[0];
        assert_eq!((eth0.rx_bytes, eth0.tx_bytes), (613_509_583, 1_917_500));
        assert_eq!((eth0.rx_packets, eth0.rx_errors, eth0.rx_dropped), (400, 1, 2));
        assert_eq!((eth0.tx_packets, eth0.tx_errors, eth0.tx_dropped), (300, 3, 4));
        let time = Moment(Timestamp::UNIX_EPOCH);
        let json = |found: &[Interface]| serde_json::to_value(network(time, found)).unwrap();
        let eth0 = json(&found);
        assert_eq!((&eth0["name"], &eth0["rxBytes"]), (&"eth0".into(), &613_509_583.into()));
        let other = json(&[Interface { name: "ens3".into(), ..found[0].clone() }]);
        assert_eq!((&other["name"], &other["rxBytes"]), (&"".into(), &serde_json::Value::Null));
        assert_eq!(other["interfaces"][0]["name"], "ens3");
        assert_eq!(network(time, &[]), None);
    }

    #[test]
    fn times_are_in_whole_seconds() {
        let time = Moment("2026-11-15T19:40:46.987654321Z".parse().unwrap());
        assert_eq!(serde_json::to_value(time).unwrap(), "2026-11-15T19:40:46Z");
    }

    #[test]
    fn only_volumes_on_local_disk_count_as_ephemeral() {
        for (volume, want) in [
            (serde_json::json!({ "name": "v", "emptyDir": {} }), true),
            (serde_json::json!({ "name": "v", "emptyDir": { "medium": "Memory" } }), false),
            (serde_json::json!({ "name": "v", "configMap": { "name": "c" } }), true),
            (serde_json::json!({ "name": "v", "secret": { "secretName": "s" } }), false),
            (serde_json::json!({ "name": "v", "hostPath": { "path": "/" } }), false),
        ] {
            let parsed = serde_json::from_value(volume.clone()).unwrap();
            assert_eq!(is_local_and_ephemeral(&parsed), want, "{volume}");
        }
    }

    #[test]
    fn interfaces_of_containers_are_not_counted() {
        let line = |name: &str| format!("{name}: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n");
        let names = ["lo", "vethab12", "docker0", "nerdctl0", "Veth1", "eth0", "ens3", "cni0"];
        let text: String = names.iter().map(|name| line(name)).collect();
        let found: Vec<_> = interfaces(&text).into_iter().map(|found| found.name).collect();
        assert_eq!(found, ["eth0", "ens3", "cni0"]);
    }
}
