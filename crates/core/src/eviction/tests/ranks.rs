//! The order in which pods are evicted.

use serde_json::json;

use super::pods::{priority, requesting, running, storing, unmeasured, using};
use super::*;
use crate::builders::pod;
use crate::pod::Source;

fn order(pods: Vec<PodUsage>, signal: Signal, layout: DiskLayout) -> Vec<String> {
    let ranked = ranking::ranked(pods, signal, layout).into_iter();
    ranked.map(|pod| pod.pod.name.name.to_string()).collect()
}

#[test]
fn memory_goes_by_exceeded_request_then_priority_then_excess() {
    let of =
        |name, prio, used| using(priority(requesting(name, "memory", "100Mi"), prio), used * MI);
    let pods = vec![
        of("below-lowest", -10, 99),
        of("over-high", 100, 300),
        of("over-low-by-little", 1, 101),
        of("over-low-by-much", 1, 400),
        of("exactly", -20, 100),
        using(pod("no-request").container("c"), 10 * MI),
    ];
    for signal in [Signal::Memory, Signal::AllocatableMemory] {
        assert_eq!(
            order(pods.clone(), signal, DiskLayout::Single),
            [
                "no-request",
                "over-low-by-much",
                "over-low-by-little",
                "over-high",
                "exactly",
                "below-lowest"
            ]
        );
    }
}

#[test]
fn pod_without_statistics_is_first_for_memory_and_within_its_priority_for_processes() {
    let pods = |of: fn(_, u64) -> PodUsage| {
        vec![
            of(priority(pod("low").container("c"), 1), 1000),
            unmeasured(priority(pod("unknown").container("c"), 5)),
            of(priority(pod("same").container("c"), 5), 5000),
        ]
    };
    let first = ["unknown", "low", "same"];
    assert_eq!(order(pods(using), Signal::Memory, DiskLayout::Single), first);
    let within = ["low", "unknown", "same"];
    assert_eq!(order(pods(running), Signal::Pids, DiskLayout::Single), within);
}

#[test]
fn processes_go_by_priority_then_number() {
    let of = |name, prio, count| running(priority(pod(name).container("c"), prio), count);
    let pods = vec![of("few", 0, 3), of("many", 0, 30), of("low", -1, 1)];
    assert_eq!(order(pods, Signal::Pids, DiskLayout::Single), ["low", "many", "few"]);
}

#[test]
fn storage_request_is_subtracted_from_inodes_as_well() {
    let pods = vec![
        storing(requesting("a-requests", "ephemeral-storage", "1Gi"), 10, 0, 0),
        storing(pod("b-does-not").container("c"), 10, 0, 0),
    ];
    let want = ["b-does-not", "a-requests"];
    assert_eq!(order(pods, Signal::NodeFsInodes, DiskLayout::Single), want);
}

#[test]
fn only_what_is_on_the_file_system_counts() {
    let pods = vec![
        storing(pod("layer").container("c"), 100, 0, 0),
        storing(pod("logs").container("c"), 0, 80, 0),
        storing(pod("volume").container("c"), 0, 0, 90),
    ];
    for (layout, signal, want) in [
        (DiskLayout::Single, Signal::NodeFs, ["layer", "volume", "logs"]),
        (DiskLayout::Single, Signal::ImageFs, ["layer", "volume", "logs"]),
        (DiskLayout::Dedicated, Signal::NodeFs, ["volume", "logs", "layer"]),
        (DiskLayout::Dedicated, Signal::ImageFs, ["layer", "logs", "volume"]),
        (DiskLayout::Dedicated, Signal::ContainerFs, ["layer", "logs", "volume"]),
        (DiskLayout::Split, Signal::ContainerFs, ["layer", "volume", "logs"]),
        // No pod uses any of it; the tie is broken by name.
        (DiskLayout::Split, Signal::ImageFs, ["layer", "logs", "volume"]),
    ] {
        assert_eq!(order(pods.clone(), signal, layout), want, "{layout:?} {signal}");
    }
}

#[test]
fn resources_of_the_whole_pod_replace_those_of_its_containers() {
    let pod_level = requesting("pod-level", "memory", "500Mi")
        .spec("resources", json!({ "requests": { "memory": "100Mi" } }));
    let pods = vec![
        using(pod_level, 200 * MI),
        using(requesting("of-containers", "memory", "500Mi"), 400 * MI),
    ];
    let want = ["pod-level", "of-containers"];
    assert_eq!(order(pods, Signal::Memory, DiskLayout::Single), want);
}

#[test]
fn static_mirror_and_critical_pods_are_exempt() {
    let plain = pod("p").container("c");
    let mirror = plain.clone().annotation("kubernetes.io/config.mirror", "x");
    let as_usage = |pod| PodUsage { pod: std::sync::Arc::new(pod), used: None };
    for (case, pod, want) in [
        ("plain", plain.clone().build(), true),
        ("high priority", priority(plain.clone(), 1_999_999_999).build(), true),
        ("critical", priority(plain.clone(), 2_000_000_000).build(), false),
        ("static", plain.build_from(Source::File), false),
        ("mirror", mirror.build(), false),
    ] {
        assert_eq!(ranking::may_be_evicted(&as_usage(pod)), want, "{case}");
    }
}
