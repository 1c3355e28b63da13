//! Resource fit: requests of the active pods plus those of the new pod against allocatable.

use podwright_api::qos::{CPU, MEMORY, Overhead, PodResources, amount};
use podwright_api::quantity::Quantity;

use super::usage::Used;
use super::{Node, Rejection};
use crate::node_status::resources::{EPHEMERAL_STORAGE, PODS, is_extended};

/// An insufficient resource. Amounts are in the units of the message: millicores, bytes or a count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    pub resource: String,
    pub requested: i64,
    pub used: i64,
    pub capacity: i64,
}

impl Shortage {
    pub(super) fn rejection(&self) -> Rejection {
        let Self { resource, requested, used, capacity } = self;
        Rejection {
            reason: format!("OutOf{resource}"),
            message: format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: \
                 {used}, capacity: {capacity}"
            ),
        }
    }

    /// Amount that has to be freed.
    pub(super) fn missing(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

/// All insufficient resources, in upstream's order.
pub(super) fn shortages(resources: &PodResources, others: &Used, node: &Node) -> Vec<Shortage> {
    let mut short = Vec::new();
    let pods = i64::try_from(others.pods).unwrap_or(i64::MAX);
    let allowed = amount(&node.allocatable, PODS).value();
    if pods.saturating_add(1) > allowed {
        let resource = PODS.to_owned();
        short.push(Shortage { resource, requested: 1, used: pods, capacity: allowed });
    }
    let wanted = resources.requests(Overhead::Included);
    const FIRST: [&str; 3] = [CPU, MEMORY, EPHEMERAL_STORAGE];
    // Extended resources that the node does not list are left to the scheduler, as in the kubelet.
    let known = |name: &&str| !is_extended(name) || node.allocatable.contains_key(*name);
    let rest = wanted.keys().map(String::as_str).filter(|name| !FIRST.contains(name));
    let names: Vec<&str> = FIRST.into_iter().chain(rest.filter(known)).collect();
    for name in names {
        let requested = number(name, amount(&wanted, name));
        let (used, capacity) = (
            number(name, amount(&others.requests, name)),
            number(name, amount(&node.allocatable, name)),
        );
        if requested > 0 && requested > capacity.saturating_sub(used) {
            short.push(Shortage { resource: name.to_owned(), requested, used, capacity });
        }
    }
    short
}

pub(super) fn number(resource: &str, quantity: Quantity) -> i64 {
    if resource == CPU { quantity.milli_value() } else { quantity.value() }
}
