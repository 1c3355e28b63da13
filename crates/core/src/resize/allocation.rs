//! Allocated resources of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use podwright_api::qos::{CPU, MEMORY};
use podwright_api::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{ActuatedResources, Amounts};
use crate::pod::{Pod, PodParseError};

/// Resources of each container and of the pod, as in a spec.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatedResources {
    #[serde(rename = "containers")]
    containers: BTreeMap<String, Option<ResourceRequirements>>,
    #[serde(rename = "pod")]
    pod: Option<ResourceRequirements>,
}

impl AllocatedResources {
    /// All resources requested by a pod's spec.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.object.spec else { return Self::default() };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        Self {
            containers: containers.map(|c| (c.name.clone(), c.resources.clone())).collect(),
            pod: spec.resources.clone(),
        }
    }

    /// Whether the spec requests other amounts; their spelling does not matter.
    pub fn differs(&self, pod: &Pod) -> bool {
        let requested = Self::of(pod);
        let amounts =
            |all: &Self, name: &str| Amounts::of(all.containers.get(name)?.as_ref()).into();
        let differs = |name: &String| {
            let allocated: Option<Amounts> = amounts(self, name);
            allocated.is_some_and(|allocated| amounts(&requested, name) != Some(allocated))
        };
        let whole = |all: &Self| all.pod.as_ref().map(|pod| Amounts::of(Some(pod)));
        whole(self) != whole(&requested) || requested.containers.keys().any(differs)
    }

    /// The pod with its allocated resources instead of the requested ones.
    pub fn apply(&self, pod: &Pod) -> Result<Pod, PodParseError> {
        let mut object = (*pod.object).clone();
        if let Some(spec) = &mut object.spec {
            self.write(spec);
        }
        Pod::parse(object, pod.source)
    }

    fn write(&self, spec: &mut PodSpec) {
        let write = |container: &mut Container| {
            if let Some(allocated) = self.containers.get(&container.name) {
                container.resources.clone_from(allocated);
            }
        };
        spec.init_containers.iter_mut().flatten().for_each(write);
        spec.containers.iter_mut().for_each(write);
        spec.resources.clone_from(&self.pod);
    }
}

/// The pod with these amounts for one container, for an intermediate state of a resize.
pub fn with_amounts(pod: &Pod, container: &str, amounts: Amounts) -> Result<Pod, PodParseError> {
    let mut object = (*pod.object).clone();
    if let Some(spec) = &mut object.spec {
        let init = spec.init_containers.iter_mut().flatten();
        let this = init.chain(&mut spec.containers).find(|c| c.name == container);
        if let Some(this) = this {
            write(this.resources.get_or_insert_default(), amounts);
        }
    }
    Pod::parse(object, pod.source)
}

/// The spec with the actuated resources instead of the allocated ones.
pub fn as_actuated(spec: &PodSpec, applied: &ActuatedResources) -> PodSpec {
    let mut spec = spec.clone();
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        if let Some(amounts) = applied.containers.get(container.name.as_str()) {
            write(container.resources.get_or_insert_default(), *amounts);
        }
    }
    if let (Some(whole), Some(amounts)) = (&mut spec.resources, applied.pod) {
        write(whole, amounts);
    }
    spec
}

fn write(resources: &mut ResourceRequirements, amounts: Amounts) {
    let Amounts { cpu_request, cpu_limit, memory_request, memory_limit } = amounts;
    set(&mut resources.requests, cpu_request, memory_request);
    set(&mut resources.limits, cpu_limit, memory_limit);
}

fn set(list: &mut Option<BTreeMap<String, ApiQuantity>>, cpu: i64, memory: i64) {
    let list = list.get_or_insert_default();
    let memory = u64::try_from(memory).unwrap_or(0);
    for (name, is_set, amount) in [
        (CPU, cpu > 0, Quantity::from_milli(cpu)),
        (MEMORY, memory > 0, Quantity::from_bytes(memory)),
    ] {
        let written = list.get(name).and_then(|written| Quantity::try_from(written).ok());
        match is_set {
            // Unchanged amounts keep their spelling: `100M` does not become `100000000`.
            _ if written == Some(amount) => {}
            true => drop(list.insert(name.to_owned(), amount.into())),
            false => drop(list.remove(name)),
        }
    }
}

/// Content of resize events: the amounts of each container as JSON.
pub fn summary(pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let list = |containers: &[Container]| -> Vec<Value> {
        let entry = |c: &Container| json!({ "name": c.name, "resources": written(c) });
        containers.iter().map(entry).collect()
    };
    let (init, regular) = match &pod.object.spec {
        Some(spec) => {
            (list(spec.init_containers.as_deref().unwrap_or_default()), list(&spec.containers))
        }
        None => (Vec::new(), Vec::new()),
    };
    // Assembled by hand to keep upstream's field order.
    let mut parts = Vec::new();
    for (name, containers) in [("initContainers", init), ("containers", regular)] {
        if !containers.is_empty() {
            parts.push(format!("{name:?}:{}", Value::from(containers)));
        }
    }
    parts.push(format!("\"generation\":{}", generation.unwrap_or(0)));
    parts.extend(error.map(|error| format!("\"error\":{}", Value::from(error))));
    format!("{{{}}}", parts.join(","))
}

fn written(container: &Container) -> Value {
    let mut written = Map::new();
    if let Some(resources) = &container.resources {
        let lists = [("limits", &resources.limits), ("requests", &resources.requests)];
        for (name, list) in lists {
            if let Some(list) = list.as_ref().filter(|list| !list.is_empty()) {
                written.insert(name.to_owned(), json!(list));
            }
        }
    }
    Value::Object(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builders::pod;

    fn with(resources: Value) -> Pod {
        let fields = Value::from_iter([("resources", resources)]);
        pod("p").container_with("c", fields).container("d").build()
    }

    #[test]
    fn allocated_resources_replace_requested_ones() {
        let before = with(json!({ "requests": { "cpu": "100m", "memory": "32Mi" } }));
        let allocation = AllocatedResources::of(&before);
        for (case, requested, differs) in [
            ("the same", json!({ "requests": { "cpu": "100m", "memory": "32Mi" } }), false),
            (
                "written otherwise",
                json!({ "requests": { "cpu": "0.1", "memory": "33554432" } }),
                false,
            ),
            ("more", json!({ "requests": { "cpu": "200m", "memory": "32Mi" } }), true),
            (
                "a limit",
                json!({ "requests": { "cpu": "100m", "memory": "32Mi" }, "limits": { "cpu": 1 } }),
                true,
            ),
            ("nothing", json!({}), true),
            (
                "a resource that cannot be resized",
                json!({ "requests": { "cpu": "100m", "memory": "32Mi", "x/y": 1 } }),
                false,
            ),
        ] {
            let requested = with(requested);
            assert_eq!(allocation.differs(&requested), differs, "{case}");
            let allocated = allocation.apply(&requested).unwrap();
            assert_eq!(AllocatedResources::of(&allocated), allocation, "{case}");
            assert_eq!(allocated.uid, requested.uid);
        }
    }

    #[test]
    fn intermediate_state_has_its_own_amounts() {
        let before = with(json!({ "requests": { "cpu": "100m", "x/y": "1" }, "limits": {} }));
        let amounts = Amounts { cpu_limit: 500, memory_limit: 64 << 20, ..Amounts::default() };
        let between = with_amounts(&before, "c", amounts).unwrap();
        assert_eq!(Amounts::of_container(&between, between.container("c").unwrap()), amounts);
        let other = |pod: &Pod| Amounts::of_container(pod, pod.container("d").unwrap());
        assert_eq!(other(&between), other(&before));
        let kept = &between.containers[0].spec.resources.as_ref().unwrap().requests;
        assert!(kept.as_ref().unwrap().contains_key("x/y"), "what cannot be resized stays");
    }

    #[test]
    fn container_added_later_keeps_its_resources() {
        let allocation = AllocatedResources::of(&pod("p").container("c").build());
        let later = pod("p")
            .container("c")
            .container_with("new", json!({ "resources": { "requests": { "cpu": "1" } } }));
        let later = later.build();
        assert!(!allocation.differs(&later));
        let allocated = allocation.apply(&later).unwrap();
        assert_eq!(
            Amounts::of_container(&allocated, allocated.container("new").unwrap()).cpu_request,
            1000
        );
    }

    #[test]
    fn summary_matches_upstreams() {
        let resources = json!({ "limits": { "cpu": "300m", "memory": "64Mi" },
                                "requests": { "cpu": "150m", "memory": "32Mi" } });
        let pod = pod("resize").container_with("c", json!({ "resources": resources })).build();
        let want = r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":"300m","memory":"64Mi"},"requests":{"cpu":"150m","memory":"32Mi"}}}],"generation":2}"#;
        assert_eq!(summary(&pod, Some(2), None), want);
        let text = summary(&pod, Some(2), Some("no \"room\""));
        assert!(text.ends_with(r#""generation":2,"error":"no \"room\""}"#), "{text}");
    }
}
