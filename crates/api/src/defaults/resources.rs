//! Defaults of requests and limits that follow from other amounts.
//!
//! A container's requests default to its limits. The requests of a pod with pod-level limits
//! default to the sum of its containers' requests, then to its own limits.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource;

use crate::qos::{Overhead, PodResources};
use crate::validation::resource_name::{is_huge_page, is_overcommittable, is_pod_level};

pub(super) fn requests_from_limits(container: &mut Container) {
    let Some(resources) = &mut container.resources else { return };
    let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

pub(super) fn apply_to_pod(spec: &mut PodSpec) {
    huge_page_limits(spec);
    requests(spec);
}

/// Huge pages cannot be overcommitted: the pod's limit is the sum of its containers' limits.
fn huge_page_limits(spec: &mut PodSpec) {
    let Some(from_containers) = of_containers(spec) else { return };
    let from_containers = from_containers.limits(Overhead::Excluded);
    let Some(resources) = &mut spec.resources else { return };
    if is_empty(resources.limits.as_ref()) && is_empty(resources.requests.as_ref()) {
        return;
    }
    let limits = resources.limits.get_or_insert_default();
    let requested = resources.requests.as_ref();
    for (name, total) in from_containers.into_iter().filter(|(name, _)| is_huge_page(name)) {
        if requested.is_none_or(|requests| !requests.contains_key(&name)) {
            limits.entry(name).or_insert_with(|| total.into());
        }
    }
    if limits.is_empty() {
        resources.limits = None;
    }
}

fn requests(spec: &mut PodSpec) {
    let Some(from_containers) = of_containers(spec) else { return };
    let from_containers = from_containers.container_requests();
    let Some(resources) = &mut spec.resources else { return };
    let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let requests = resources.requests.get_or_insert_default();
    for (name, total) in from_containers {
        if is_pod_level(&name) && is_overcommittable(&name) {
            requests.entry(name).or_insert_with(|| total.into());
        }
    }
    for (name, limit) in limits.iter().filter(|(name, _)| is_pod_level(name)) {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
    if requests.is_empty() {
        resources.requests = None;
    }
}

/// The totals without pod-level resources. `None` if an amount is invalid, which validation
/// refuses.
fn of_containers(spec: &PodSpec) -> Option<PodResources> {
    let mut resources = PodResources::parse(spec).ok()?;
    resources.pod = None;
    Some(resources)
}

fn is_empty(list: Option<&BTreeMap<String, resource::Quantity>>) -> bool {
    list.is_none_or(BTreeMap::is_empty)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#[allow(clippy::needless_pass_by_value, reason = "json literals are given as they stand")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(pod: Value, containers: &[Value]) -> PodSpec {
        let containers: Vec<Value> =
            containers.iter().map(|r| json!({"name": "c", "resources": r})).collect();
        serde_json::from_value(json!({"resources": pod, "containers": containers})).unwrap()
    }

    #[test]
    fn container_requests_default_to_its_limits() {
        for (given, want) in [
            (
                json!({"limits": {"cpu": "1"}}),
                json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}),
            ),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}}),
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}}),
            ),
            (json!({"requests": {"cpu": "1"}}), json!({"requests": {"cpu": "1"}})),
        ] {
            let mut container = spec(json!(null), &[given]).containers.remove(0);
            requests_from_limits(&mut container);
            assert_eq!(serde_json::to_value(container.resources).unwrap(), want);
        }
    }

    #[test]
    fn pod_requests_default_to_its_containers_then_to_its_limits() {
        let mut pod = spec(
            json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
            &[json!({"requests": {"cpu": "200m"}}), json!({"requests": {"cpu": "300m"}})],
        );
        apply_to_pod(&mut pod);
        assert_eq!(
            serde_json::to_value(pod.resources).unwrap(),
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}})
        );
    }

    #[test]
    fn pod_huge_page_limits_are_the_sum_of_its_containers() {
        let mut pod = spec(
            json!({"requests": {"cpu": "1"}}),
            &[
                json!({"limits": {"hugepages-2Mi": "4Mi"}}),
                json!({"limits": {"hugepages-2Mi": "2Mi"}}),
            ],
        );
        apply_to_pod(&mut pod);
        assert_eq!(
            serde_json::to_value(pod.resources).unwrap(),
            json!({"limits": {"hugepages-2Mi": "6Mi"}, "requests": {"cpu": "1", "hugepages-2Mi": "6Mi"}})
        );
    }

    #[test]
    fn pod_without_pod_level_resources_gets_none() {
        let mut pod = spec(json!(null), &[json!({"requests": {"cpu": "1"}})]);
        apply_to_pod(&mut pod);
        assert_eq!(pod.resources, None);
    }
}
