//! What the node has granted a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Amounts, Applied};
use crate::pod::{BadPod, Pod};
use crate::qos::{CPU, MEMORY};
use crate::quantity::Quantity;

/// The resources of each container and of the pod as a whole, as a spec writes them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    #[serde(rename = "containers")]
    containers: BTreeMap<String, Option<ResourceRequirements>>,
    #[serde(rename = "pod")]
    pod: Option<ResourceRequirements>,
}

impl Grant {
    /// All that a pod's spec wishes for.
    pub fn of(pod: &Pod) -> Self {
        let Some(spec) = &pod.object.spec else { return Self::default() };
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        Self {
            containers: containers.map(|c| (c.name.clone(), c.resources.clone())).collect(),
            pod: spec.resources.clone(),
        }
    }

    /// The spec wishes for something else; how it is written does not matter.
    pub fn differs(&self, pod: &Pod) -> bool {
        let wish = Self::of(pod);
        let amounts =
            |all: &Self, name: &str| Amounts::of(all.containers.get(name)?.as_ref()).into();
        let differs = |name: &String| {
            let granted: Option<Amounts> = amounts(self, name);
            granted.is_some_and(|granted| amounts(&wish, name) != Some(granted))
        };
        let whole = |all: &Self| all.pod.as_ref().map(|pod| Amounts::of(Some(pod)));
        whole(self) != whole(&wish) || wish.containers.keys().any(differs)
    }

    /// The pod with what it was granted in place of what it wishes for.
    pub fn apply(&self, pod: &Pod) -> Result<Pod, BadPod> {
        let mut object = (*pod.object).clone();
        if let Some(spec) = &mut object.spec {
            self.write(spec);
        }
        Pod::parse(object, pod.source)
    }

    fn write(&self, spec: &mut PodSpec) {
        let write = |container: &mut Container| {
            if let Some(granted) = self.containers.get(&container.name) {
                container.resources.clone_from(granted);
            }
        };
        spec.init_containers.iter_mut().flatten().for_each(write);
        spec.containers.iter_mut().for_each(write);
        spec.resources.clone_from(&self.pod);
    }
}

/// The pod with these amounts for one of its containers, for telling the runtime about a moment
/// between grant and wish.
pub fn with_amounts(pod: &Pod, container: &str, amounts: Amounts) -> Result<Pod, BadPod> {
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

/// The spec with what was applied so far in place of what was granted.
pub fn as_applied(spec: &PodSpec, applied: &Applied) -> PodSpec {
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
            // As it is written: `100M` does not become `100000000` for a while.
            _ if written == Some(amount) => {}
            true => drop(list.insert(name.to_owned(), amount.into())),
            false => drop(list.remove(name)),
        }
    }
}

/// What the events of a resize say: the amounts of each container, as JSON.
pub fn summary(pod: &Pod, generation: Option<i64>, error: Option<&str>) -> String {
    let list = |containers: &[Container]| -> Vec<Value> {
        let told = |c: &Container| json!({ "name": c.name, "resources": written(c) });
        containers.iter().map(told).collect()
    };
    let (init, regular) = match &pod.object.spec {
        Some(spec) => {
            (list(spec.init_containers.as_deref().unwrap_or_default()), list(&spec.containers))
        }
        None => (Vec::new(), Vec::new()),
    };
    // Put together by hand: people read it, and the order is upstream's.
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
    fn a_grant_stands_in_for_the_wish() {
        let before = with(json!({ "requests": { "cpu": "100m", "memory": "32Mi" } }));
        let grant = Grant::of(&before);
        for (case, wish, differs) in [
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
            let wish = with(wish);
            assert_eq!(grant.differs(&wish), differs, "{case}");
            let granted = grant.apply(&wish).unwrap();
            assert_eq!(Grant::of(&granted), grant, "{case}");
            assert_eq!(granted.uid, wish.uid);
        }
    }

    #[test]
    fn a_moment_in_between_has_its_own_amounts() {
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
    fn a_container_that_came_later_keeps_what_it_has() {
        let grant = Grant::of(&pod("p").container("c").build());
        let later = pod("p")
            .container("c")
            .container_with("new", json!({ "resources": { "requests": { "cpu": "1" } } }));
        let later = later.build();
        assert!(!grant.differs(&later));
        let granted = grant.apply(&later).unwrap();
        assert_eq!(
            Amounts::of_container(&granted, granted.container("new").unwrap()).cpu_request,
            1000
        );
    }

    #[test]
    fn the_summary_is_what_upstream_tells() {
        let resources = json!({ "limits": { "cpu": "300m", "memory": "64Mi" },
                                "requests": { "cpu": "150m", "memory": "32Mi" } });
        let pod = pod("resize").container_with("c", json!({ "resources": resources })).build();
        let want = r#"{"containers":[{"name":"c","resources":{"limits":{"cpu":"300m","memory":"64Mi"},"requests":{"cpu":"150m","memory":"32Mi"}}}],"generation":2}"#;
        assert_eq!(summary(&pod, Some(2), None), want);
        let told = summary(&pod, Some(2), Some("no \"room\""));
        assert!(told.ends_with(r#""generation":2,"error":"no \"room\""}"#), "{told}");
    }
}
