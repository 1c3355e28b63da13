//! Total resources of a pod, and its QoS class.
//!
//! The class determines the pod's cgroup and the order of OOM kills and evictions; the totals are
//! its cgroup limits and what admission counts. Both are API, so the rules are exactly upstream's.
//! Quantities are parsed once, here, so that later code does not handle invalid ones: a manifest
//! from disk has not been validated by an API server.
//!
//! Requests must already be defaulted from limits, as for every pod on this node.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};

use crate::quantity::{ParseQuantityError, Quantity};

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
/// Prefix of `hugepages-2Mi` and similar names.
pub const HUGEPAGES: &str = "hugepages-";

/// Amounts by resource name.
pub type ResourceList = BTreeMap<String, Quantity>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QosClass {
    #[serde(rename = "BestEffort")]
    BestEffort,
    #[serde(rename = "Burstable")]
    Burstable,
    #[serde(rename = "Guaranteed")]
    Guaranteed,
}

/// Requests and limits of a container, or of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requirements {
    #[serde(rename = "requests")]
    pub requests: ResourceList,
    #[serde(rename = "limits")]
    pub limits: ResourceList,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerResources {
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "resources")]
    pub resources: Requirements,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitResources {
    #[serde(rename = "name")]
    pub name: String,
    #[serde(rename = "resources")]
    pub resources: Requirements,
    /// It keeps running beside the others (`restartPolicy: Always`), so its resources are added to
    /// theirs.
    #[serde(rename = "sidecar")]
    pub sidecar: bool,
}

/// All resources in a pod's spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodResources {
    #[serde(rename = "containers")]
    pub containers: Vec<ContainerResources>,
    /// In start order.
    #[serde(rename = "init")]
    pub init: Vec<InitResources>,
    /// Pod-level resources; only if they name a resource that can be set at pod level.
    #[serde(rename = "pod")]
    pub pod: Option<Requirements>,
    /// Overhead of the sandbox, from the RuntimeClass.
    #[serde(rename = "overhead")]
    pub overhead: ResourceList,
}

/// Whether a total includes the sandbox overhead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overhead {
    Included,
    Excluded,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{holder}: {field} of {resource}")]
pub struct ResourceError {
    /// `container "web"`, or `the pod`.
    holder: String,
    field: &'static str,
    resource: String,
    source: ParseQuantityError,
}

impl QosClass {
    /// The class in the pod's status, set at admission, else the class of its spec.
    pub fn of(pod: &Pod) -> Result<Self, ResourceError> {
        let given = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
        match given.and_then(Self::parse) {
            Some(class) => Ok(class),
            None => match &pod.spec {
                Some(spec) => PodResources::parse(spec).map(|resources| resources.class()),
                None => Ok(Self::BestEffort),
            },
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Guaranteed, Self::Burstable, Self::BestEffort]
            .into_iter()
            .find(|class| class.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PodResources {
    pub fn parse(spec: &PodSpec) -> Result<Self, ResourceError> {
        let of = |container: &Container| {
            Requirements::parse(container.resources.as_ref(), || {
                format!("container {:?}", container.name)
            })
        };
        let mut containers = Vec::with_capacity(spec.containers.len());
        for container in &spec.containers {
            let resources = of(container)?;
            containers.push(ContainerResources { name: container.name.clone(), resources });
        }
        let mut init = Vec::new();
        for container in spec.init_containers.iter().flatten() {
            init.push(InitResources {
                name: container.name.clone(),
                resources: of(container)?,
                sidecar: container.restart_policy.as_deref() == Some("Always"),
            });
        }
        let whole = Requirements::parse(spec.resources.as_ref(), || "the pod".to_owned())?;
        let overhead = parse_list(spec.overhead.as_ref(), "overhead", || "the pod".to_owned())?;
        let counts = whole.requests.keys().chain(whole.limits.keys()).any(|name| pod_level(name));
        Ok(Self { containers, init, pod: counts.then_some(whole), overhead })
    }

    /// The class of these resources.
    pub fn class(&self) -> QosClass {
        if let Some(pod) = &self.pod {
            return pod.class();
        }
        let mut classes = self.every_container().map(Requirements::class);
        let Some(first) = classes.next() else { return QosClass::BestEffort };
        if classes.all(|class| class == first) { first } else { QosClass::Burstable }
    }

    /// Peak of the pod's requests over its lifetime.
    pub fn requests(&self, overhead: Overhead) -> ResourceList {
        let mut total = self.peak(|resources| &resources.requests);
        if let Some(pod) = &self.pod {
            set_pod_level(&mut total, &pod.requests);
        }
        if overhead == Overhead::Included {
            add(&mut total, &self.overhead);
        }
        total
    }

    /// Peak of the pod's limits over its lifetime, as far as its containers set limits.
    pub fn limits(&self, overhead: Overhead) -> ResourceList {
        let mut total = self.peak(|resources| &resources.limits);
        if let Some(pod) = &self.pod {
            set_pod_level(&mut total, &pod.limits);
        }
        if overhead == Overhead::Included {
            for (name, cost) in &self.overhead {
                // Overhead is not added where there is no limit.
                if let Some(limit) = total.get_mut(name).filter(|limit| !limit.is_zero()) {
                    *limit += *cost;
                }
            }
        }
        total
    }

    /// Total requests of the containers, ignoring pod-level resources.
    pub fn container_requests(&self) -> ResourceList {
        self.peak(|resources| &resources.requests)
    }

    /// Whether every container, or the pod itself, has a limit for `resource`.
    pub fn is_limited(&self, resource: &str) -> bool {
        let has_limit = |resources: &Requirements| !amount(&resources.limits, resource).is_zero();
        self.pod.as_ref().is_some_and(has_limit) || self.every_container().all(has_limit)
    }

    /// Init containers run one after the other, each beside the sidecars started before it; then
    /// the regular containers run beside all sidecars. The result is the maximum of these sums.
    fn peak(&self, of: impl Fn(&Requirements) -> &ResourceList) -> ResourceList {
        let mut running = ResourceList::new();
        for container in &self.containers {
            add(&mut running, of(&container.resources));
        }
        let mut sidecars = ResourceList::new();
        let mut starting = ResourceList::new();
        for container in &self.init {
            let own = of(&container.resources);
            let mut now = sidecars.clone();
            add(&mut now, own);
            if container.sidecar {
                add(&mut running, own);
                sidecars.clone_from(&now);
            }
            raise(&mut starting, &now);
        }
        raise(&mut running, &starting);
        running
    }

    fn every_container(&self) -> impl Iterator<Item = &Requirements> {
        let init = self.init.iter().map(|container| &container.resources);
        init.chain(self.containers.iter().map(|container| &container.resources))
    }
}

impl Requirements {
    fn parse(
        api: Option<&ResourceRequirements>,
        holder: impl Fn() -> String,
    ) -> Result<Self, ResourceError> {
        let Some(api) = api else { return Ok(Self::default()) };
        Ok(Self {
            requests: parse_list(api.requests.as_ref(), "request", &holder)?,
            limits: parse_list(api.limits.as_ref(), "limit", &holder)?,
        })
    }

    /// Only CPU and memory determine the class.
    fn class(&self) -> QosClass {
        let class_of = |resource| {
            let request = amount(&self.requests, resource);
            if request != amount(&self.limits, resource) {
                QosClass::Burstable
            } else if request.is_zero() {
                QosClass::BestEffort
            } else {
                QosClass::Guaranteed
            }
        };
        let (cpu, memory) = (class_of(CPU), class_of(MEMORY));
        if cpu == memory { cpu } else { QosClass::Burstable }
    }
}

/// Amount of a resource; zero if it is not listed.
pub fn amount(list: &ResourceList, resource: &str) -> Quantity {
    list.get(resource).copied().unwrap_or_default()
}

/// Resources that can be set at pod level.
fn pod_level(resource: &str) -> bool {
    resource == CPU || resource == MEMORY || resource.starts_with(HUGEPAGES)
}

fn set_pod_level(total: &mut ResourceList, pod: &ResourceList) {
    let set = pod.iter().filter(|(name, _)| pod_level(name));
    total.extend(set.map(|(name, quantity)| (name.clone(), *quantity)));
}

fn add(total: &mut ResourceList, more: &ResourceList) {
    for (name, quantity) in more {
        match total.get_mut(name) {
            Some(sum) => *sum += *quantity,
            None => {
                total.insert(name.clone(), *quantity);
            }
        }
    }
}

fn raise(total: &mut ResourceList, other: &ResourceList) {
    for (name, quantity) in other {
        if total.get(name).is_none_or(|current| quantity > current) {
            total.insert(name.clone(), *quantity);
        }
    }
}

fn parse_list(
    api: Option<&BTreeMap<String, ApiQuantity>>,
    field: &'static str,
    holder: impl Fn() -> String,
) -> Result<ResourceList, ResourceError> {
    let parse = |(name, quantity): (&String, &ApiQuantity)| match Quantity::try_from(quantity) {
        Ok(quantity) => Ok((name.clone(), quantity)),
        Err(source) => {
            Err(ResourceError { holder: holder(), field, resource: name.clone(), source })
        }
    };
    api.into_iter().flatten().map(parse).collect()
}

#[cfg(test)]
#[path = "qos/tests.rs"]
mod tests;
