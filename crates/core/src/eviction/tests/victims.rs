//! What a victim is told.

use serde_json::json;

use super::pods::{requesting, running, storing, unmeasured, using};
use super::*;
use crate::builders::{PodBuilder, pod};
use crate::eviction::victim::{Eviction, kill_for_limit, threshold_met};

fn evict(victim: &PodUsage, sources: &Sources, observed: Observations) -> Eviction {
    let verdict = History::default().pass(&thresholds(sources), observed, TRANSITION, second(1000));
    Eviction::new(victim, verdict.first().unwrap(), &verdict, 30)
}

fn hard_memory(victim: &PodUsage) -> Eviction {
    evict(victim, &hard(&[("memory.available", "10%")]), memory(100 * MI, 0))
}

#[test]
fn containers_over_their_request_are_named_in_message_and_annotations() {
    let victim = using(requesting("p", "memory", "100Mi"), 250 * MI);
    let eviction = hard_memory(&victim);
    assert_eq!(
        eviction.message,
        "The node was low on resource: memory. Threshold quantity: 858993472, available: 100Mi. \
         Container c was using 250Mi, request is 100Mi, has larger consumption of memory. "
    );
    let want = [
        ("offending_containers", "c"),
        ("offending_containers_usage", "250Mi"),
        ("starved_resource", "memory"),
    ];
    assert_eq!(eviction.annotations, want.map(|(key, value)| (key, value.to_owned())));
    let kill = eviction.kill();
    assert_eq!(kill.grace, Some(Duration::from_secs(1)));
    let reason = kill.termination_reason.unwrap();
    assert_eq!((&*reason.reason, &reason.message), ("Evicted", &eviction.message));
    assert_eq!(reason.disruption.as_ref(), Some(&eviction.message));
}

#[test]
fn ephemeral_containers_are_never_named() {
    let mut victim = using(requesting("p", "memory", "1Gi").ephemeral("debug"), 100 * MI);
    if let Some(used) = &mut victim.used {
        used.containers.push(ContainerUsage {
            name: "debug".into(),
            memory: Some(7 * GI),
            ..Default::default()
        });
    }
    let eviction = hard_memory(&victim);
    assert!(!eviction.message.contains("Container"), "{}", eviction.message);
    assert_eq!(eviction.annotations[0], ("offending_containers", String::new()));
}

#[test]
fn pod_over_its_own_request_is_named_too() {
    let builder = requesting("p", "memory", "50Mi")
        .spec("resources", json!({ "requests": { "memory": "100Mi" } }));
    let eviction = hard_memory(&using(builder, 250 * MI));
    let want = "Pod p was using 250Mi, request is 100Mi, has larger consumption of memory. \
                Container c was using 250Mi, request is 50Mi, has larger consumption of memory. ";
    assert!(eviction.message.ends_with(want), "{}", eviction.message);
    assert_eq!(eviction.annotations[0], ("offending_pod", "p".to_owned()));
    assert_eq!(eviction.annotations[1], ("offending_pod_usage", "250Mi".to_owned()));
}

#[test]
fn pod_without_statistics_gets_no_annotations() {
    let eviction = hard_memory(&unmeasured(pod("p").container("c")));
    assert!(eviction.annotations.is_empty());
    assert!(eviction.message.starts_with("The node was low on resource: memory. Threshold"));
}

#[test]
fn amounts_of_inodes_and_processes_are_decimal() {
    let low = |signal| Observations::from([(signal, seen(3, 200, 0))]);
    let inodes = evict(
        &storing(pod("p").container("c"), 100, 0, 0),
        &hard(&[("nodefs.inodesFree", "64")]),
        low(Signal::NodeFsInodes),
    );
    let want = "The node was low on resource: inodes. Threshold quantity: 64, available: 3. ";
    assert_eq!(inodes.message, want);
    let pids = evict(
        &running(pod("p").container("c"), 7),
        &hard(&[("pid.available", "5")]),
        low(Signal::Pids),
    );
    let want = "The node was low on resource: pids. Threshold quantity: 5, available: 3. ";
    assert_eq!(pids.message, want);
}

#[test]
fn storage_of_layer_and_logs_is_compared_with_the_request() {
    let victim = storing(requesting("p", "ephemeral-storage", "1Mi"), MI, MI, 0);
    let low = Observations::from([(Signal::NodeFs, seen(3, 200, 0))]);
    let eviction = evict(&victim, &hard(&[("nodefs.available", "64")]), low);
    let want =
        "Container c was using 2Mi, request is 1Mi, has larger consumption of ephemeral-storage. ";
    assert!(eviction.message.ends_with(want), "{}", eviction.message);
}

#[test]
fn soft_grace_is_the_shorter_of_both_and_at_least_a_second() {
    let sources = Sources {
        soft: map(&[("memory.available", "2Gi")]),
        soft_grace: BTreeMap::from([("memory.available".to_owned(), 1)]),
        ..hard(&[])
    };
    let mut history = History::default();
    let limits = thresholds(&sources);
    history.pass(&limits, memory(GI, 0), TRANSITION, second(0));
    let verdict = history.pass(&limits, memory(GI, 10), TRANSITION, second(10));
    let plain = |name: &str| pod(name).container("c");
    let of = |builder: PodBuilder, most: i64| {
        let victim = unmeasured(builder);
        Eviction::new(&victim, verdict.first().unwrap(), &verdict, most).grace.as_secs()
    };
    for (case, builder, most, want) in [
        ("zero", plain("p").grace(30), 0, 1),
        ("negative", plain("p").grace(30), -1, 1),
        ("the pod's is longer", plain("p").grace(120), 30, 30),
        ("the pod's is shorter", plain("p").grace(5), 30, 5),
        ("the pod has none", plain("p"), 30, 30),
    ] {
        assert_eq!(of(builder, most), want, "{case}");
    }
}

#[test]
fn pod_over_its_own_limit_is_no_disruption() {
    let kill = kill_for_limit("too much");
    assert!(kill.evict);
    assert_eq!(kill.grace, Some(Duration::from_secs(1)));
    assert_eq!(kill.termination_reason.unwrap().disruption, None);
}

#[test]
fn event_of_the_node_names_the_resource() {
    assert_eq!(threshold_met(Signal::ImageFs), "Attempting to reclaim ephemeral-storage");
    assert_eq!(threshold_met(Signal::AllocatableMemory), "Attempting to reclaim memory");
}
