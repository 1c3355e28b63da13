#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::error::Error;

use k8s_openapi::api::core::v1::PodStatus;

use super::*;

/// `list("cpu=1 memory=1Gi")`
fn list(text: &str) -> Option<BTreeMap<String, ApiQuantity>> {
    let pair = |pair: &str| {
        let (name, amount) = pair.split_once('=').unwrap();
        (name.to_owned(), ApiQuantity(amount.to_owned()))
    };
    (!text.is_empty()).then(|| text.split(' ').map(pair).collect())
}

fn requirements(requests: &str, limits: &str) -> Option<ResourceRequirements> {
    Some(ResourceRequirements { requests: list(requests), limits: list(limits), claims: None })
}

fn container(requests: &str, limits: &str) -> Container {
    Container { name: "c".into(), resources: requirements(requests, limits), ..Default::default() }
}

fn sidecar(requests: &str, limits: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..container(requests, limits) }
}

fn spec(init: Vec<Container>, containers: Vec<Container>) -> PodSpec {
    PodSpec { init_containers: Some(init), containers, ..Default::default() }
}

fn parse(spec: &PodSpec) -> PodResources {
    PodResources::parse(spec).unwrap()
}

/// The list as `cpu=1 memory=1Gi` again.
fn text(list: &ResourceList) -> String {
    list.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
}

#[test]
fn qos_class_follows_cpu_and_memory_of_every_container() {
    use QosClass::*;
    let full = || container("cpu=1 memory=1Gi", "cpu=1 memory=1Gi");
    let none = || container("", "");
    for (case, init, containers, want) in [
        ("no containers", vec![], vec![], BestEffort),
        ("nothing set", vec![], vec![none()], BestEffort),
        ("zeros set", vec![], vec![container("cpu=0", "memory=0")], BestEffort),
        ("other resources do not count", vec![], vec![container("a/b=1", "a/b=1")], BestEffort),
        ("request only", vec![], vec![container("cpu=1", "")], Burstable),
        ("limit only", vec![], vec![container("", "memory=1Gi")], Burstable),
        ("cpu alone equal", vec![], vec![container("cpu=1", "cpu=1")], Burstable),
        ("all equal", vec![], vec![full()], Guaranteed),
        (
            "equal amounts, other spelling",
            vec![],
            vec![container("cpu=1000m memory=1024Mi", "cpu=1 memory=1Gi")],
            Guaranteed,
        ),
        (
            "memory request lower",
            vec![],
            vec![container("cpu=1 memory=1Mi", "cpu=1 memory=1Gi")],
            Burstable,
        ),
        ("one of two has none", vec![], vec![full(), none()], Burstable),
        ("none of two has any", vec![], vec![none(), none()], BestEffort),
        (
            "two different, both equal",
            vec![],
            vec![full(), container("cpu=2 memory=1", "cpu=2 memory=1")],
            Guaranteed,
        ),
        ("an init container has none", vec![none()], vec![full()], Burstable),
        ("an init container has some", vec![container("cpu=1", "")], vec![none()], Burstable),
        ("a sidecar counts", vec![sidecar("cpu=1", "")], vec![none()], Burstable),
        ("init and regular equal", vec![full()], vec![full()], Guaranteed),
    ] {
        assert_eq!(parse(&spec(init, containers)).class(), want, "{case}");
    }
}

#[test]
fn pod_level_resources_alone_decide_the_class() {
    use QosClass::*;
    for (case, requests, limits, want) in [
        ("guaranteed", "cpu=1 memory=1Gi", "cpu=1 memory=1Gi", Guaranteed),
        ("burstable", "cpu=1", "cpu=2", Burstable),
        ("hugepages only", "hugepages-2Mi=2Mi", "hugepages-2Mi=2Mi", BestEffort),
        // Not a pod-level resource: the containers decide.
        ("unsupported", "a/b=1", "", Burstable),
        ("empty", "", "", Burstable),
    ] {
        let mut spec = spec(vec![], vec![container("cpu=1", "cpu=2")]);
        spec.resources = requirements(requests, limits);
        assert_eq!(parse(&spec).class(), want, "{case}");
    }
}

#[test]
fn class_in_the_status_is_kept() {
    let spec = spec(vec![], vec![container("cpu=1", "")]);
    let status = |class: &str| PodStatus { qos_class: Some(class.into()), ..Default::default() };
    for (status, want) in [
        (None, QosClass::Burstable),
        (Some(status("BestEffort")), QosClass::BestEffort),
        (Some(status("Guaranteed")), QosClass::Guaranteed),
        (Some(status("")), QosClass::Burstable),
        (Some(status("Best")), QosClass::Burstable),
    ] {
        let pod = Pod { spec: Some(spec.clone()), status, ..Default::default() };
        assert_eq!(QosClass::of(&pod).unwrap(), want);
    }
    assert_eq!(QosClass::of(&Pod::default()).unwrap(), QosClass::BestEffort);
}

#[test]
fn requests_are_the_peak_over_the_pods_lifetime() {
    let one = || vec![container("cpu=1 memory=1Gi", "")];
    for (case, init, containers, want) in [
        ("nothing", vec![], vec![container("", "")], ""),
        (
            "sum of the regular",
            vec![],
            vec![container("cpu=100m", ""), container("cpu=200m memory=1Gi", "")],
            "cpu=300m memory=1Gi",
        ),
        (
            "a smaller init changes nothing",
            vec![container("cpu=500m", "")],
            one(),
            "cpu=1 memory=1Gi",
        ),
        ("a larger init raises", vec![container("cpu=3", "")], one(), "cpu=3 memory=1Gi"),
        (
            "inits do not add up",
            vec![container("cpu=3", ""), container("cpu=2", "")],
            one(),
            "cpu=3 memory=1Gi",
        ),
        (
            "an init may bring a resource of its own",
            vec![container("a/b=2", "")],
            one(),
            "a/b=2 cpu=1 memory=1Gi",
        ),
        (
            "sidecars add up",
            vec![sidecar("cpu=1", ""), sidecar("cpu=2", "")],
            one(),
            "cpu=4 memory=1Gi",
        ),
        (
            "an init beside earlier sidecars",
            vec![sidecar("cpu=1", ""), container("cpu=3", "")],
            one(),
            "cpu=4 memory=1Gi",
        ),
        (
            "an init before the sidecar",
            vec![container("cpu=3", ""), sidecar("cpu=1", "")],
            one(),
            "cpu=3 memory=1Gi",
        ),
        (
            "init between sidecars",
            vec![sidecar("cpu=1", ""), container("cpu=5", ""), sidecar("cpu=4", "")],
            one(),
            "cpu=6 memory=1Gi",
        ),
    ] {
        let resources = parse(&spec(init, containers));
        assert_eq!(text(&resources.requests(Overhead::Included)), want, "{case}");
    }
}

#[test]
fn overhead_adds_to_requests_and_to_existing_limits() {
    let mut spec = spec(vec![], vec![container("cpu=1", "cpu=2 memory=0")]);
    spec.overhead = list("cpu=250m memory=120Mi");
    let resources = parse(&spec);
    assert_eq!(text(&resources.requests(Overhead::Included)), "cpu=1250m memory=120Mi");
    assert_eq!(text(&resources.limits(Overhead::Included)), "cpu=2250m memory=0");
    assert_eq!(text(&resources.requests(Overhead::Excluded)), "cpu=1");
    assert_eq!(text(&resources.limits(Overhead::Excluded)), "cpu=2 memory=0");
}

#[test]
fn pod_level_resources_override_the_sum_of_the_containers() {
    let mut spec =
        spec(vec![], vec![container("cpu=1 a/b=1", "memory=1Gi"), container("memory=1Mi", "")]);
    spec.resources = requirements("cpu=3 a/b=9", "memory=4Gi");
    spec.overhead = list("cpu=1");
    let resources = parse(&spec);
    assert_eq!(text(&resources.requests(Overhead::Included)), "a/b=1 cpu=4 memory=1Mi");
    assert_eq!(text(&resources.limits(Overhead::Included)), "memory=4Gi");
    assert_eq!(text(&resources.container_requests()), "a/b=1 cpu=1 memory=1Mi");
}

#[test]
fn pod_is_limited_if_all_containers_or_the_pod_are() {
    let limited = || container("", "memory=1Gi");
    let free = || container("", "");
    for (case, init, containers, pod, want) in [
        ("one", vec![], vec![limited()], None, true),
        ("one of two", vec![], vec![limited(), free()], None, false),
        ("init is free", vec![free()], vec![limited()], None, false),
        (
            "a sidecar after a limited one is",
            vec![sidecar("", "memory=1Gi"), sidecar("", "")],
            vec![limited()],
            None,
            false,
        ),
        ("zero is no limit", vec![], vec![container("", "memory=0")], None, false),
        ("the pod is", vec![free()], vec![free()], requirements("", "memory=1Gi"), true),
        ("the pod has another limit", vec![], vec![free()], requirements("", "cpu=1"), false),
        ("nothing but the pod", vec![], vec![limited()], requirements("", "cpu=1"), true),
    ] {
        let mut spec = spec(init, containers);
        spec.resources = pod;
        assert_eq!(parse(&spec).is_limited(MEMORY), want, "{case}");
    }
}

#[test]
fn invalid_quantity_error_names_container_and_resource() {
    let error = PodResources::parse(&spec(vec![], vec![container("", "memory=much")])).unwrap_err();
    assert_eq!(error.to_string(), r#"container "c": limit of memory"#);
    assert!(error.source().unwrap().to_string().starts_with(r#""much" is not a quantity"#));
}
