//! How much there is, and how much of it pods may have.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::{Seen, Settings};
use crate::cgroup::less_reserved;
use crate::qos::{CPU, HUGEPAGES, MEMORY, ResourceList, amount};
use crate::quantity::{Format, Quantity};

pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    pub swap: u64,
    /// Pages by page size in bytes.
    pub hugepages: BTreeMap<u64, u64>,
    /// Bytes of the filesystem that holds the root folder; `None` if it cannot be asked.
    pub storage: Option<u64>,
}

/// What pods may not have.
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

/// A threshold as it is written: an amount, or a part of what there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    Amount(Quantity),
    /// `0.1` for `10%`; in single precision, as upstream counts.
    Part(f32),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a threshold is a quantity or a percentage, such as 100Mi or 10%, not {0:?}")]
pub struct BadThreshold(String);

/// More is reserved than there is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid Node Allocatable configuration: {resource}: {reserved} is reserved and only {have} \
     is there; lower systemReserved, kubeReserved or evictionHard"
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
    /// As an amount of what there is.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "upstream counts so, and dashboards compare"
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

impl Amounts {
    /// In the API's terms.
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
    /// What pods may have in all: the capacity less everything that is reserved.
    pub fn allocatable(&self, capacity: &ResourceList) -> ResourceList {
        let eviction = self.eviction(capacity);
        let mut left = less_reserved(capacity, &[&self.system, &self.kube, &eviction]);
        // Huge pages were taken from the memory already.
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

    /// What the cgroup around all pods is held to: eviction begins before that is reached.
    pub fn enforced(&self, capacity: &ResourceList) -> ResourceList {
        less_reserved(capacity, &[&self.system, &self.kube])
    }

    /// Whether something is left at all.
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

/// Sets capacity and allocatable. Resources that others put there are theirs, and allocatable.
pub(super) fn publish(status: &mut v1::NodeStatus, settings: &Settings, seen: &Seen) {
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

/// `example.com/dongle`: neither Kubernetes' own nor a quota's name.
pub fn is_extended(resource: &str) -> bool {
    let native = !resource.contains('/') || resource.contains("kubernetes.io/");
    !native && !resource.starts_with("requests.")
}
