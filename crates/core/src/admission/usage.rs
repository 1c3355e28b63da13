//! Running totals of what the active pods request, so that admission does not visit each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_api::qos::ResourceList;
use podwright_api::quantity::Quantity;

use super::ports::{HostPort, host_ports};
use crate::ids::PodUid;
use crate::pod::Pod;

/// Requests and host ports of the active pods, and their sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ActiveUsage {
    pods: BTreeMap<PodUid, PodUsage>,
    requests: BTreeMap<Arc<str>, Total>,
    /// By port number and owner.
    ports: BTreeMap<i32, BTreeMap<PodUid, Vec<OwnedPort>>>,
}

/// What one pod adds to the totals. Not the pod itself, which would keep an old object in memory.
#[derive(Clone, Debug, PartialEq)]
struct PodUsage {
    requests: Box<[(Arc<str>, Quantity)]>,
    ports: Box<[i32]>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Total {
    sum: Quantity,
    pods: usize,
}

#[derive(Clone, Debug, PartialEq)]
struct OwnedPort {
    address: Box<str>,
    protocol: Box<str>,
}

/// Number and requests of the pods beside which a new pod is to run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Used {
    pub(super) pods: usize,
    pub(super) requests: ResourceList,
}

impl Used {
    pub(super) fn of<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>) -> Self {
        let mut used = Self::default();
        used.add(pods);
        used
    }

    pub(super) fn add<'a>(&mut self, pods: impl IntoIterator<Item = &'a Arc<Pod>>) {
        for pod in pods {
            self.pods += 1;
            for (name, quantity) in &pod.requests {
                match self.requests.get_mut(name) {
                    Some(sum) => *sum += *quantity,
                    None => drop(self.requests.insert(name.clone(), *quantity)),
                }
            }
        }
    }
}

impl ActiveUsage {
    /// Counts a pod, in place of an earlier version of it.
    pub fn set(&mut self, pod: &Pod) {
        self.remove(&pod.uid);
        let mut requests = Vec::with_capacity(pod.requests.len());
        for (name, quantity) in &pod.requests {
            let known = self.requests.get_key_value(name.as_str()).map(|(name, _)| name.clone());
            let name = known.unwrap_or_else(|| name.as_str().into());
            let total = self.requests.entry(name.clone()).or_default();
            total.sum += *quantity;
            total.pods += 1;
            requests.push((name, *quantity));
        }
        let mut ports = Vec::new();
        for HostPort { address, protocol, port } in host_ports(pod) {
            let owned = OwnedPort { address: address.into(), protocol: protocol.into() };
            let owners = self.ports.entry(port).or_default();
            owners.entry(pod.uid.clone()).or_default().push(owned);
            ports.push(port);
        }
        let usage = PodUsage { requests: requests.into(), ports: ports.into() };
        self.pods.insert(pod.uid.clone(), usage);
    }

    pub fn remove(&mut self, uid: &PodUid) {
        let Some(PodUsage { requests, ports }) = self.pods.remove(uid) else { return };
        for (name, quantity) in requests {
            let Some(total) = self.requests.get_mut(&name) else { continue };
            total.pods -= 1;
            if total.pods == 0 {
                self.requests.remove(&name);
            } else if total.sum.is_saturated() {
                // The sum lost what exceeded its maximum, so nothing can be subtracted from it.
                total.sum = sum_of(self.pods.values(), &name);
            } else {
                total.sum -= quantity;
            }
        }
        for port in ports {
            let Some(owners) = self.ports.get_mut(&port) else { continue };
            owners.remove(uid);
            if owners.is_empty() {
                self.ports.remove(&port);
            }
        }
    }

    /// Number and requests of all pods but one.
    pub(super) fn without(&self, uid: &PodUid) -> Used {
        let own = self.pods.get(uid);
        let own_requests = own.map(|own| &*own.requests).unwrap_or_default();
        let mut requests = ResourceList::new();
        for (name, total) in &self.requests {
            let mut sum = total.sum;
            if let Some((_, quantity)) = own_requests.iter().find(|(own, _)| own == name) {
                if total.pods == 1 {
                    continue;
                }
                sum = match sum.is_saturated() {
                    true => {
                        let others = self.pods.iter().filter(|(other, _)| *other != uid);
                        sum_of(others.map(|(_, usage)| usage), name)
                    }
                    false => sum - *quantity,
                };
            }
            requests.insert(name.as_ref().to_owned(), sum);
        }
        Used { pods: self.pods.len() - usize::from(own.is_some()), requests }
    }

    /// Whether another pod has a host port that this pod wants.
    pub(super) fn conflicts(&self, pod: &Pod) -> bool {
        host_ports(pod).any(|wanted| {
            let owners = self.ports.get(&wanted.port).into_iter().flatten();
            let taken = owners.filter(|(owner, _)| **owner != pod.uid).flat_map(|(_, taken)| taken);
            taken.into_iter().any(|OwnedPort { address, protocol }| {
                wanted.collides(HostPort { address, protocol, port: wanted.port })
            })
        })
    }
}

fn sum_of<'a>(pods: impl Iterator<Item = &'a PodUsage>, name: &str) -> Quantity {
    let requests = pods.flat_map(|usage| &usage.requests);
    requests.filter(|(other, _)| **other == *name).map(|(_, quantity)| *quantity).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::ports;
    use super::*;
    use crate::builders::pod;

    /// One of a few pods, with some version of its requests and host ports.
    fn version(name: u8, cpu: u16, extended: u8, port: u8, address: bool) -> Arc<Pod> {
        let mut requests = json!({ "memory": "1Ki" });
        if cpu > 0 {
            requests["cpu"] = json!(format!("{cpu}m"));
        }
        // The last one saturates any sum.
        match extended {
            0 => {}
            1 => requests["example.com/dongle"] = json!("1"),
            _ => requests["example.com/dongle"] = json!("9e29"),
        }
        let mut host_port = json!({ "containerPort": 1, "hostPort": port });
        if address {
            host_port["hostIP"] = json!("10.0.0.1");
        }
        let fields = json!({ "resources": { "requests": requests }, "ports": [host_port] });
        Arc::new(pod(&format!("p{name}")).container_with("c", fields).build())
    }

    proptest! {
        #[test]
        fn totals_match_the_sum_over_all_pods_after_any_changes(
            steps in prop::collection::vec(
                (0u8..5, 0u16..4, 0u8..3, 0u8..3, any::<bool>(), any::<bool>()), 0..40,
            ),
        ) {
            let mut usage = ActiveUsage::default();
            let mut model: BTreeMap<PodUid, Arc<Pod>> = BTreeMap::new();
            for (name, cpu, extended, port, address, ends) in steps {
                let pod = version(name, cpu, extended, port, address);
                // As a new pod, or as the next version of a counted one.
                let others: Vec<&Arc<Pod>> =
                    model.values().filter(|other| other.uid != pod.uid).collect();
                prop_assert_eq!(usage.without(&pod.uid), Used::of(others.iter().copied()));
                prop_assert_eq!(usage.conflicts(&pod), ports::conflict(&pod, &others));
                match ends {
                    true => {
                        usage.remove(&pod.uid);
                        model.remove(&pod.uid);
                    }
                    false => {
                        usage.set(&pod);
                        model.insert(pod.uid.clone(), pod);
                    }
                }
                let all = usage.without(&PodUid::new("absent"));
                prop_assert_eq!(all, Used::of(model.values()));
            }
            for uid in model.keys() {
                usage.remove(uid);
            }
            prop_assert!(usage.requests.is_empty() && usage.ports.is_empty());
        }
    }
}
