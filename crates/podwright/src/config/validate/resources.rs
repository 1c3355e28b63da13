//! Validation of reservations and their enforcement.

use std::collections::{BTreeMap, BTreeSet};

use podwright_api::quantity::Quantity;

use super::super::field::FieldPath;
use super::super::kubelet::{Enforcement, MemoryReservationPolicy, percentage};
use super::Validator;

/// Resources that can be reserved.
const RESERVABLE: [&str; 4] = ["cpu", "ephemeral-storage", "memory", "pid"];

pub(super) fn examine(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    reservations(validator, "systemReserved", &c.system_reserved);
    reservations(validator, "kubeReserved", &c.kube_reserved);
    enforcement(validator);
    reserved_cpus(validator);
    numa_memory(validator);
    cgroups(validator);
    reserved_for_classes(validator);
    user_ids(validator);
    validator.require(
        c.memory_reservation_policy == MemoryReservationPolicy::None
            || validator.gates.enabled("MemoryQoS"),
        "memoryReservationPolicy",
        "needs the feature gate MemoryQoS",
    );
}

fn reservations(validator: &mut Validator<'_>, field: &str, reserved: &BTreeMap<String, String>) {
    for (resource, amount) in reserved {
        let field = FieldPath::of(field).key(resource);
        if !RESERVABLE.contains(&resource.as_str()) {
            validator.refuse(&field, format!("cannot be reserved; {} can", RESERVABLE.join(", ")));
        }
        match amount.parse::<Quantity>() {
            Ok(amount) if amount.is_negative() => validator.refuse(&field, "must not be negative"),
            Ok(_) => {}
            Err(_) => validator.refuse(&field, "must be a quantity, such as 500m or 1Gi"),
        }
    }
}

fn enforcement(validator: &mut Validator<'_>) {
    const FIELD: &str = "enforceNodeAllocatable";
    let c = validator.configuration;
    let levels = &c.enforce_node_allocatable;
    let unique: BTreeSet<_> = levels.iter().copied().collect();
    let has = |level: Enforcement| unique.contains(&level);
    validator.require(unique.len() == levels.len(), FIELD, "must not name a level twice");
    if has(Enforcement::None) {
        validator.require(unique.len() == 1, FIELD, "must not name another level beside none");
        return;
    }
    validator.require(
        unique.is_empty() || c.cgroups_per_qos,
        FIELD,
        "must be none or empty while cgroupsPerQOS is false",
    );
    for (whole, compressible, name, cgroup_field, cgroup) in [
        (
            Enforcement::SystemReserved,
            Enforcement::SystemReservedCompressible,
            "system-reserved",
            "systemReservedCgroup",
            &c.system_reserved_cgroup,
        ),
        (
            Enforcement::KubeReserved,
            Enforcement::KubeReservedCompressible,
            "kube-reserved",
            "kubeReservedCgroup",
            &c.kube_reserved_cgroup,
        ),
    ] {
        validator.require(
            !(has(whole) && has(compressible)),
            FIELD,
            format!("must not name both {name} and {name}-compressible"),
        );
        validator.require(
            !(has(whole) || has(compressible)) || !cgroup.is_empty(),
            FIELD,
            format!("names {name}, which needs {cgroup_field}"),
        );
    }
}

fn reserved_cpus(validator: &mut Validator<'_>) {
    const FIELD: &str = "reservedSystemCPUs";
    let c = validator.configuration;
    if c.reserved_system_cpus.is_empty() {
        return;
    }
    validator.require(
        is_cpu_set(&c.reserved_system_cpus),
        FIELD,
        "must be a list of CPUs and ranges of them, such as 0-3,8",
    );
    validator.require(
        c.system_reserved_cgroup.is_empty() && c.kube_reserved_cgroup.is_empty(),
        FIELD,
        "must not be combined with systemReservedCgroup or kubeReservedCgroup",
    );
}

fn is_cpu_set(text: &str) -> bool {
    text.split(',').all(|part| match part.split_once('-') {
        None => part.parse::<u32>().is_ok(),
        Some((first, last)) => matches!(
            (first.parse::<u32>(), last.parse::<u32>()),
            (Ok(first), Ok(last)) if first <= last
        ),
    })
}

fn numa_memory(validator: &mut Validator<'_>) {
    let list = FieldPath::of("reservedMemory");
    let mut seen = BTreeSet::new();
    for (at, reservation) in validator.configuration.reserved_memory.iter().enumerate() {
        let limits = list.index(at).key("limits");
        for (kind, amount) in &reservation.limits {
            let field = limits.key(kind);
            if kind != "memory" && !kind.starts_with("hugepages-") {
                validator.refuse(&field, "cannot be reserved; memory and hugepages-<size> can");
            }
            match amount.0.parse::<Quantity>() {
                Ok(amount) if amount.is_zero() || amount.is_negative() => {
                    validator.refuse(&field, "must be more than 0");
                }
                Ok(_) => {}
                Err(_) => validator.refuse(&field, "must be a quantity, such as 1Gi"),
            }
            if !seen.insert((reservation.numa_node, kind)) {
                let node = reservation.numa_node;
                validator.refuse(&field, format!("is reserved twice on NUMA node {node}"));
            }
        }
    }
}

fn cgroups(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    validator.require(
        c.system_cgroups.is_empty() || !c.cgroup_root.is_empty(),
        "systemCgroups",
        "needs cgroupRoot",
    );
    validator.require(
        c.system_cgroups.is_empty() || !c.system_cgroups.trim_matches('/').is_empty(),
        "systemCgroups",
        "must not be the root cgroup",
    );
    let outside =
        !c.kubelet_cgroups.is_empty() && !c.kubelet_cgroups.starts_with(&c.kube_reserved_cgroup);
    if outside {
        let field = FieldPath::of("kubeletCgroups");
        validator.warn(
            &field,
            "is not within kubeReservedCgroup, so what the agent uses is not reserved",
        );
    }
}

fn reserved_for_classes(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    let list = FieldPath::of("qosReserved");
    for (resource, percent) in &c.qos_reserved {
        let field = list.key(resource);
        if resource != "memory" {
            validator.refuse(&field, "cannot be reserved for QoS classes; memory can");
        }
        if percentage(percent).is_none() {
            validator.refuse(&field, "must be a percentage from 0% to 100%, such as 50%");
        }
    }
    if !c.qos_reserved.is_empty() && !validator.gates.enabled("QOSReserved") {
        validator.warn(&list, "has no effect without the feature gate QOSReserved");
    }
}

fn user_ids(validator: &mut Validator<'_>) {
    const UNIT: i64 = 65536;
    let namespaces = validator.configuration.user_namespaces.as_ref();
    let Some(ids) = namespaces.and_then(|namespaces| namespaces.ids_per_pod) else { return };
    validator.require(
        ids >= UNIT && ids % UNIT == 0 && u32::try_from(ids).is_ok(),
        "userNamespaces.idsPerPod",
        "must be a multiple of 65536 below 4294967296",
    );
}
