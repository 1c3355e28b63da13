//! Node object settings: identity, heartbeat timing, reservations, enforced limits.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Context;
use k8s_openapi::api::core::v1;
use podwright_api::qos::{CPU, ResourceList};
use podwright_api::quantity::Quantity;
use podwright_core::cgroup::{CgroupConfig, CgroupName, Driver, MemoryReserve, Reserved as Extent};
use podwright_core::eviction::{Signal, Thresholds};
use podwright_core::node_status::{Reservations, Settings};
use podwright_host::machine;
use podwright_node::report::heartbeat::{self, Timing};
use podwright_node::resources::cgroups::Reserved;

use super::eviction;
use crate::config::KubeletSettings;
use crate::config::gates::FeatureGates;
use crate::config::kubelet::{Enforcement, KubeletConfiguration, percentage};
use crate::config::options::CloudProvider;

/// Kubelet version in the Node object: upstream's release and this program's version.
const KUBELET_VERSION: &str = concat!("v1.36.4+podwright.", env!("CARGO_PKG_VERSION"));

/// `declaredFeatures` of the node, for the scheduler. The names are upstream's feature gates.
const DECLARED_FEATURES: [&str; 3] = [
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

pub(super) fn identity(settings: &KubeletSettings, max_pods: usize) -> anyhow::Result<Settings> {
    let KubeletSettings { configuration, options, .. } = settings;
    let taints = configuration.register_with_taints.iter().map(|taint| v1::Taint {
        key: taint.key.clone(),
        value: Some(taint.value.clone()).filter(|value| !value.is_empty()),
        effect: taint.effect.as_str().to_owned(),
        time_added: None,
    });
    Ok(Settings {
        name: settings.node_name.as_str().into(),
        hostname: settings.node_name.clone(),
        labels: options.node_labels.clone(),
        taints: taints.collect(),
        provider_id: configuration.provider_id.clone(),
        node_ips: options.node_ip.0.clone(),
        external_cloud: match options.cloud_provider {
            CloudProvider::None => false,
            CloudProvider::External => true,
        },
        controller_attaches_volumes: configuration.enable_controller_attach_detach,
        port: configuration.port,
        max_pods,
        // Negative: no limit.
        max_images: usize::try_from(configuration.node_status_max_images).ok(),
        reservations: reservations(settings)?,
        ignores_local_storage: !configuration.local_storage_capacity_isolation,
        kubelet_version: KUBELET_VERSION.to_owned(),
        architecture: machine::architecture(),
        declared_features: declared_features(&settings.gates),
    })
}

/// The features of [`DECLARED_FEATURES`] that are on.
fn declared_features(gates: &FeatureGates) -> Vec<&'static str> {
    let declared = DECLARED_FEATURES.into_iter().filter(|gate| gates.enabled(gate));
    declared.filter(|_| gates.enabled("NodeDeclaredFeatures")).collect()
}

pub(super) fn timing(configuration: &KubeletConfiguration) -> Timing {
    let lease = u64::try_from(configuration.node_lease_duration_seconds).unwrap_or(1);
    Timing {
        look: configuration.node_status_update_frequency.to_std(),
        report: configuration.node_status_report_frequency.to_std(),
        lease: std::time::Duration::from_secs(lease),
        random: heartbeat::random,
    }
}

/// Resources that are reserved and not available to pods.
pub(super) fn reservations(settings: &KubeletSettings) -> anyhow::Result<Reservations> {
    let configuration = &settings.configuration;
    let mut system = amounts(&configuration.system_reserved).context("systemReserved")?;
    let mut kube = amounts(&configuration.kube_reserved).context("kubeReserved")?;
    if let Some(cpus) = machine::count_cpus(&configuration.reserved_system_cpus) {
        // Reserved CPUs are for everything but pods and replace both CPU reservations.
        kube.remove(CPU);
        system.insert(CPU.to_owned(), Quantity::from_milli(i64::from(cpus) * 1000));
    }
    let thresholds = match settings.options.allocatable_ignore_eviction {
        true => Thresholds::NONE,
        false => eviction::thresholds(configuration)?,
    };
    Ok(Reservations {
        system,
        kube,
        evict_memory: thresholds.hard(Signal::Memory),
        evict_storage: thresholds.hard(Signal::NodeFs),
    })
}

/// Limits of the cgroup of all pods: capacity less reservations if that is enforced, otherwise the
/// capacity. It is set in both cases, because the default weight is that of one CPU.
pub(super) fn limits_of_pods(
    configuration: &KubeletConfiguration,
    reservations: &Reservations,
    whole: &ResourceList,
    cpus: String,
) -> CgroupConfig {
    let enforced = configuration.enforce_node_allocatable.contains(&Enforcement::Pods);
    let left = if enforced { &reservations.enforced(whole) } else { whole };
    CgroupConfig::for_all_pods(left, Some(cpus))
}

/// Memory that lower QoS classes leave free; `None` unless it is configured and its gate is on.
pub(super) fn memory_reserve(
    settings: &KubeletSettings,
    reservations: &Reservations,
    whole: &ResourceList,
) -> Option<MemoryReserve> {
    let percent = settings.configuration.qos_reserved.get("memory")?;
    let percent = percentage(percent).filter(|_| settings.gates.enabled("QOSReserved"))?;
    let memory = reservations.enforced(whole).get("memory")?.unsigned_value();
    Some(MemoryReserve { percent, allocatable: memory })
}

/// Cgroups whose reservations are enforced.
pub(super) fn reserved(
    configuration: &KubeletConfiguration,
    reservations: &Reservations,
    driver: Driver,
) -> anyhow::Result<Vec<Reserved>> {
    let mut reserved = Vec::new();
    for level in &configuration.enforce_node_allocatable {
        let system = ("system", &configuration.system_reserved_cgroup, &reservations.system);
        let kube = ("kube", &configuration.kube_reserved_cgroup, &reservations.kube);
        let ((owner, group, amounts), what) = match level {
            Enforcement::None | Enforcement::Pods => continue,
            Enforcement::SystemReserved => (system, Extent::Everything),
            Enforcement::SystemReservedCompressible => (system, Extent::OnlyCpu),
            Enforcement::KubeReserved => (kube, Extent::Everything),
            Enforcement::KubeReservedCompressible => (kube, Extent::OnlyCpu),
        };
        reserved.push(Reserved {
            owner,
            name: CgroupName::parse_reserved(group, driver)?,
            config: CgroupConfig::for_reserved(amounts, what),
        });
    }
    Ok(reserved)
}

fn amounts(list: &BTreeMap<String, String>) -> anyhow::Result<ResourceList> {
    let read = |(name, text): (&String, &String)| {
        let quantity = Quantity::from_str(text).with_context(|| format!("{name}: {text}"))?;
        Ok((name.clone(), quantity))
    };
    list.iter().map(read).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use podwright_core::cgroup::PIDS;

    use podwright_core::node_status::resources::Threshold;

    use super::*;
    use crate::config::options::NodeOptions;

    fn settings(configuration: KubeletConfiguration) -> KubeletSettings {
        KubeletSettings {
            configuration,
            gates: FeatureGates::default(),
            options: NodeOptions::default(),
            node_name: "node-1".to_owned(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn features_are_declared_while_their_gates_are_on() {
        let declared = |off: &[&str]| {
            let off = off.iter().map(|name| ((*name).to_owned(), false)).collect();
            declared_features(&FeatureGates::from_settings(&off).0)
        };
        assert_eq!(declared(&[]), DECLARED_FEATURES);
        assert_eq!(
            declared(&["InPlacePodVerticalScalingInitContainers"]),
            ["InPlacePodLevelResourcesVerticalScaling", "RestartAllContainersOnContainerExits"]
        );
        assert_eq!(declared(&["NodeDeclaredFeatures"]), [""; 0]);
    }

    #[test]
    fn reserved_system_cpus_replace_the_reserved_amounts() {
        let list = |cpu: &str| [("cpu".to_owned(), cpu.to_owned())].into();
        let reserved = reservations(&settings(KubeletConfiguration {
            system_reserved: list("250m"),
            kube_reserved: list("500m"),
            reserved_system_cpus: "0-1,4".to_owned(),
            ..KubeletConfiguration::default()
        }));
        let reserved = reserved.unwrap();
        assert_eq!(reserved.system[CPU], Quantity::from_milli(3000));
        assert!(!reserved.kube.contains_key(CPU));
    }

    #[test]
    fn enforced_cgroups_follow_the_configuration() {
        let owned = |cpu: &str| {
            [("cpu", cpu), ("memory", "1Gi")].map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        };
        let configuration = KubeletConfiguration {
            system_reserved: owned("1"),
            kube_reserved: owned("2"),
            system_reserved_cgroup: "/system".to_owned(),
            kube_reserved_cgroup: "/kube".to_owned(),
            enforce_node_allocatable: vec![
                Enforcement::SystemReserved,
                Enforcement::KubeReservedCompressible,
            ],
            ..KubeletConfiguration::default()
        };
        let reservations = reservations(&settings(configuration.clone())).unwrap();
        let found = reserved(&configuration, &reservations, Driver::Cgroupfs).unwrap();
        let limits: Vec<_> = found
            .iter()
            .map(|group| (group.owner, group.config.cpu_shares, group.config.memory_limit))
            .collect();
        assert_eq!(limits, [("system", Some(1024), Some(1 << 30)), ("kube", Some(2048), None)]);
        let whole = ResourceList::from([
            (CPU.to_owned(), Quantity::from_milli(4000)),
            (PIDS.to_owned(), Quantity::from_milli(5_000_000)),
        ]);
        let limits = |configuration: &KubeletConfiguration| {
            let limits = limits_of_pods(configuration, &reservations, &whole, "0-1".to_owned());
            assert_eq!(limits.cpus.as_deref(), Some("0-1"));
            (limits.cpu_shares, limits.pids_limit)
        };
        assert_eq!(limits(&configuration), (Some(4096), Some(5000)), "the whole machine");
        let pods = vec![Enforcement::Pods];
        let held = KubeletConfiguration { enforce_node_allocatable: pods, ..configuration };
        assert_eq!(limits(&held), (Some(1024), Some(5000)));
    }

    #[test]
    fn hard_eviction_thresholds_are_reserved_unless_disabled_by_flag() {
        let mut configuration = KubeletConfiguration::default();
        configuration.eviction_hard.insert("memory.available".into(), "100Mi".into());
        let mut settings = settings(configuration);
        let amount = Quantity::from_bytes(100 << 20);
        let with = reservations(&settings).unwrap();
        assert_eq!(with.evict_memory, Some(Threshold::Amount(amount)));
        settings.configuration.eviction_hard.insert("memory.available".into(), "100%".into());
        assert_eq!(reservations(&settings).unwrap().evict_memory, None, "switched off");
        settings.configuration.eviction_hard.insert("memory.available".into(), "100Mi".into());
        settings.options.allocatable_ignore_eviction = true;
        assert_eq!(reservations(&settings).unwrap().evict_memory, None);
    }
}
