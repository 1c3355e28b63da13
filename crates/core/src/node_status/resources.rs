//! Capacity and allocatable resources of the node.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use podwright_api::qos::{CPU, HUGEPAGES, MEMORY, ResourceList, amount};
use podwright_api::quantity::{Format, Quantity};

use super::{NodeObservation, Settings};
use crate::cgroup::less_reserved;

pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";

/// Resources of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineResources {
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    pub swap: u64,
    /// Number of pages by page size in bytes.
    pub hugepages: BTreeMap<u64, u64>,
    /// Bytes of the filesystem of the root directory; `None` if it cannot be read.
    pub storage: Option<u64>,
}

/// Resources reserved from pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservations {
    /// `systemReserved`.
    pub system: ResourceList,
    /// `kubeReserved`.
    pub kube: ResourceList,
    /// Hard eviction threshold of `memory.available`.
    pub evict_memory: Option<Threshold>,
    /// Hard eviction threshold of `nodefs.available`.
    pub evict_storage: Option<Threshold>,
}

/// A threshold: an amount, or a fraction of the capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    Amount(Quantity),
    /// `0.1` for `10%`; in single precision, as upstream.
    Part(f32),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid threshold {0:?}: use a quantity or a percentage, such as 100Mi or 10%")]
pub struct BadThreshold(String);

/// More is reserved than the machine has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid Node Allocatable configuration: {resource}: {reserved} reserved but only {have} \
     available; lower systemReserved, kubeReserved or evictionHard"
)]
pub struct OverReserved {
    pub resource: String,
    pub reserved: String,
    pub have: String,
}

impl FromStr for Threshold {
    type Err = BadThreshold;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadThreshold(text.to_owned());
        match text.strip_suffix('%') {
            Some(percent) => {
                let percent: f32 = percent.parse().map_err(|_| bad())?;
                Ok(Self::Part(percent / 100.0))
            }
            None => text.parse().map(Self::Amount).map_err(|_| bad()),
        }
    }
}

impl Threshold {
    /// The threshold as an amount.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "same rounding as upstream, dashboards compare the values"
    )]
    pub fn of(self, capacity: Quantity) -> Quantity {
        match self {
            Self::Amount(amount) => amount,
            Self::Part(part) => {
                let amount = capacity.value() as f64 * f64::from(part);
                Quantity::new(amount as i64, Format::BinarySi)
            }
        }
    }
}

impl MachineResources {
    /// As API resources.
    pub fn capacity(&self, max_pods: usize) -> ResourceList {
        let mut list = ResourceList::from([
            (CPU.to_owned(), Quantity::from_milli(i64::from(self.cpus) * 1000)),
            (MEMORY.to_owned(), Quantity::from_bytes(self.memory)),
            (PODS.to_owned(), count(max_pods)),
        ]);
        for (size, pages) in &self.hugepages {
            let name = format!("{HUGEPAGES}{}", Quantity::from_bytes(*size));
            list.insert(name, Quantity::from_bytes(size.saturating_mul(*pages)));
        }
        if let Some(storage) = self.storage {
            list.insert(EPHEMERAL_STORAGE.to_owned(), Quantity::from_bytes(storage));
        }
        list
    }
}

fn count(number: usize) -> Quantity {
    Quantity::new(i64::try_from(number).unwrap_or(i64::MAX), Format::DecimalSi)
}

impl Reservations {
    /// Allocatable resources: capacity less all reservations.
    pub fn allocatable(&self, capacity: &ResourceList) -> ResourceList {
        let eviction = self.eviction(capacity);
        let mut left = less_reserved(capacity, &[&self.system, &self.kube, &eviction]);
        // Memory of huge pages is not available as ordinary memory.
        let huge: Quantity = capacity
            .iter()
            .filter(|(name, _)| name.starts_with(HUGEPAGES))
            .map(|(_, amount)| *amount)
            .sum();
        if let Some(memory) = left.get_mut(MEMORY) {
            let none = Quantity::new(0, memory.format());
            *memory = (*memory - huge).max(none);
        }
        left
    }

    /// Limits of the cgroup of all pods: eviction starts before they are reached.
    pub fn enforced(&self, capacity: &ResourceList) -> ResourceList {
        less_reserved(capacity, &[&self.system, &self.kube])
    }

    /// Checks that reservations leave something for pods.
    pub fn check(&self, capacity: &ResourceList) -> Result<(), OverReserved> {
        let eviction = self.eviction(capacity);
        for (resource, have) in capacity {
            let reserved = amount(&self.system, resource)
                + amount(&self.kube, resource)
                + amount(&eviction, resource);
            if reserved > *have {
                return Err(OverReserved {
                    resource: resource.clone(),
                    reserved: reserved.to_string(),
                    have: have.to_string(),
                });
            }
        }
        Ok(())
    }

    fn eviction(&self, capacity: &ResourceList) -> ResourceList {
        let of = |resource: &str, threshold: Option<Threshold>| {
            let amount = threshold?.of(amount(capacity, resource));
            Some((resource.to_owned(), amount))
        };
        let memory = of(MEMORY, self.evict_memory);
        memory.into_iter().chain(of(EPHEMERAL_STORAGE, self.evict_storage)).collect()
    }
}

/// Sets capacity and allocatable. Resources that others have added are kept and are allocatable.
pub(super) fn publish(status: &mut v1::NodeStatus, settings: &Settings, seen: &NodeObservation) {
    let own = seen.amounts.capacity(settings.max_pods);
    let capacity = status.capacity.get_or_insert_default();
    capacity.retain(|name, _| own.contains_key(name) || !name.starts_with(HUGEPAGES));
    capacity.extend(api(&own));
    let mut allocatable = api(&settings.reservations.allocatable(&own));
    for (name, amount) in capacity.iter().filter(|(name, _)| !own.contains_key(*name)) {
        allocatable.insert(name.clone(), amount.clone());
    }
    status.allocatable = Some(allocatable);
}

pub(super) fn api(list: &ResourceList) -> BTreeMap<String, ApiQuantity> {
    list.iter().map(|(name, amount)| (name.clone(), (*amount).into())).collect()
}

/// `example.com/dongle`: neither a Kubernetes resource nor the name of a quota.
pub fn is_extended(resource: &str) -> bool {
    let native = !resource.contains('/') || resource.contains("kubernetes.io/");
    !native && !resource.starts_with("requests.")
}
