#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::time::Duration;

use podwright_api::quantity::Quantity;
use serde_json::{Value, json};

use super::registration::{initial, other_machine, reconciled};
use super::resources::{Threshold, is_extended};
use super::*;
use crate::builders::t;
use crate::time::Mono;

fn settings() -> Settings {
    Settings {
        name: "node-1".into(),
        hostname: "node-1".into(),
        labels: BTreeMap::new(),
        taints: Vec::new(),
        provider_id: String::new(),
        node_ips: Vec::new(),
        external_cloud: false,
        controller_attaches_volumes: true,
        port: 10250,
        max_pods: 110,
        max_images: Some(50),
        reservations: Reservations::default(),
        ignores_local_storage: false,
        kubelet_version: "v1.36.4+podwright.0".into(),
        architecture: "amd64",
        declared_features: vec!["A"],
    }
}

fn seen() -> NodeObservation {
    NodeObservation {
        amounts: MachineResources {
            cpus: 2,
            memory: 4 << 30,
            storage: Some(100 << 30),
            hugepages: [(2 << 20, 0)].into(),
            ..MachineResources::default()
        },
        identity: Some(Identity {
            machine_id: "m".into(),
            boot_id: "b".into(),
            ..Identity::default()
        }),
        addresses: vec![ip("10.0.0.1")],
        runtime_version: "containerd://2.1".into(),
        images: Some(Vec::new()),
        ..NodeObservation::default()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The object of a node that has registered and reported.
fn registered() -> v1::Node {
    let (mut node, _) = desired(&initial(&settings()), &settings(), &seen(), t(0).wall);
    node.metadata.uid = Some("u".into());
    node
}

fn condition<'a>(node: &'a v1::Node, kind: &str) -> &'a v1::NodeCondition {
    let conditions = node.status.as_ref().unwrap().conditions.as_ref().unwrap();
    conditions.iter().find(|condition| condition.type_ == kind).unwrap()
}

fn reasons(notices: &[NodeEvent]) -> Vec<&str> {
    notices.iter().map(|notice| notice.reason).collect()
}

fn sent(shown: &v1::Node, wanted: &v1::Node) -> Option<(Value, bool)> {
    patch(shown, wanted, &DroppedFields::default())
}

#[test]
fn registered_node_has_labels_and_conditions() {
    let node = registered();
    let labels = node.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/hostname"], "node-1");
    assert_eq!(labels["beta.kubernetes.io/arch"], "amd64");
    let status = node.status.clone().unwrap();
    let kinds: Vec<_> = status.conditions.unwrap().into_iter().map(|c| c.type_).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    assert_eq!(condition(&node, "Ready").status, "True");
    let spec = node.spec.unwrap();
    assert_eq!((spec.taints, spec.provider_id), (None, None));
}

#[test]
fn first_report_emits_pressure_events_but_no_ready_event() {
    let (_, notices) = desired(&initial(&settings()), &settings(), &seen(), t(0).wall);
    let want = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
    assert_eq!(reasons(&notices), want);
    assert_eq!(notices[0].message, "Node node-1 status is now: NodeHasSufficientMemory");
}

#[test]
fn local_storage_that_is_ignored_is_not_required_for_ready() {
    let mut unmeasured = seen();
    unmeasured.amounts.storage = None;
    for (ignores_local_storage, want) in [
        (false, "missing node capacity for resources: ephemeral-storage"),
        (true, "kubelet is posting ready status"),
    ] {
        let settings = Settings { ignores_local_storage, ..settings() };
        let (node, _) = desired(&initial(&settings), &settings, &unmeasured, t(0).wall);
        assert_eq!(condition(&node, "Ready").message.as_deref(), Some(want));
        let capacity = node.status.and_then(|status| status.capacity).unwrap();
        assert!(!capacity.contains_key("ephemeral-storage"));
    }
}

#[test]
fn not_ready_condition_lists_all_problems() {
    let silent = || Problem::Unresponsive("container runtime is down".into());
    let network = || Problem::Network("container runtime network not ready: x".into());
    for (case, problems, want) in [
        ("none", vec![], "kubelet is posting ready status"),
        ("one", vec![silent()], "container runtime is down"),
        (
            "several, in their order and once",
            vec![network(), Problem::Pleg("late".into()), silent(), network()],
            "[container runtime is down, PLEG is not healthy: late, container runtime network \
             not ready: x]",
        ),
        ("shutdown", vec![Problem::ShuttingDown], "node is shutting down"),
    ] {
        let ready = problems.is_empty();
        let seen = NodeObservation { problems, ..seen() };
        let (node, notices) = desired(&registered(), &settings(), &seen, t(60).wall);
        let condition = condition(&node, "Ready");
        assert_eq!(condition.message.as_deref(), Some(want), "{case}");
        assert_eq!(condition.status, if ready { "True" } else { "False" }, "{case}");
        let events: &[&str] = if ready { &[] } else { &["NodeNotReady"] };
        assert_eq!(reasons(&notices), events, "{case}");
        let since = condition.last_transition_time.clone().unwrap().0;
        assert_eq!(since, if ready { t(0).wall } else { t(60).wall }, "{case}");
    }
}

#[test]
fn node_is_not_ready_until_the_disk_was_read_once() {
    let mut blind = seen();
    blind.amounts.storage = None;
    let (node, _) = desired(&initial(&settings()), &settings(), &blind, t(0).wall);
    let want = "missing node capacity for resources: ephemeral-storage";
    assert_eq!(condition(&node, "Ready").message.as_deref(), Some(want));
    let (node, _) = desired(&registered(), &settings(), &blind, t(0).wall);
    assert_eq!(condition(&node, "Ready").status, "True", "the last reported value stays");
}

#[test]
fn reboot_is_reported_once() {
    let mut again = seen();
    again.identity.as_mut().unwrap().boot_id = "b2".into();
    let (node, notices) = desired(&registered(), &settings(), &again, t(1).wall);
    assert_eq!(reasons(&notices), ["Rebooted"]);
    assert!(notices[0].warning);
    let (_, notices) = desired(&node, &settings(), &again, t(2).wall);
    assert_eq!(reasons(&notices), Vec::<&str>::new());
}

#[test]
fn allocatable_is_capacity_less_reservations_thresholds_and_huge_pages() {
    let list = |cpu: &str, memory: &str| -> podwright_api::qos::ResourceList {
        [("cpu", cpu), ("memory", memory)].map(|(k, v)| (k.into(), v.parse().unwrap())).into()
    };
    let reservations = Reservations {
        system: list("250m", "1Gi"),
        kube: list("250m", "512Mi"),
        evict_memory: Some("100Mi".parse().unwrap()),
        evict_storage: Some("10%".parse().unwrap()),
    };
    let mut seen = seen();
    seen.amounts.hugepages = [(2 << 20, 128), (1 << 30, 0)].into();
    let settings = Settings { reservations, ..settings() };
    let (node, _) = desired(&initial(&settings), &settings, &seen, t(0).wall);
    let status = serde_json::to_value(node.status).unwrap();
    assert_eq!(
        status["capacity"],
        json!({
            "cpu": "2", "memory": "4Gi", "pods": "110", "ephemeral-storage": "100Gi",
            "hugepages-2Mi": "256Mi", "hugepages-1Gi": "0",
        })
    );
    // 4096 - 1024 - 512 - 100 - 256 MiB; ten percent of the disk in single precision.
    assert_eq!(
        status["allocatable"],
        json!({
            "cpu": "1500m", "memory": "2204Mi", "pods": "110",
            "ephemeral-storage": "96636764000",
            "hugepages-2Mi": "256Mi", "hugepages-1Gi": "0",
        })
    );
}

#[test]
fn reservation_above_capacity_is_an_error() {
    let capacity = seen().amounts.capacity(110);
    let reserve = |memory: &str| Reservations {
        system: [("memory".to_owned(), memory.parse().unwrap())].into(),
        evict_memory: Some(Threshold::Amount(Quantity::from_bytes(1 << 30))),
        ..Reservations::default()
    };
    assert_eq!(reserve("3Gi").check(&capacity), Ok(()));
    let text = reserve("3073Mi").check(&capacity).unwrap_err().to_string();
    assert!(text.starts_with("invalid Node Allocatable configuration: memory: 4097Mi"), "{text}");
}

#[test]
fn extended_resources_are_kept_and_allocatable() {
    let mut node = registered();
    let capacity = node.status.as_mut().unwrap().capacity.as_mut().unwrap();
    capacity.insert("example.com/dongle".into(), Quantity::from_milli(3000).into());
    capacity.insert("hugepages-16Gi".into(), Quantity::from_bytes(0).into());
    let (node, _) = desired(&node, &settings(), &seen(), t(1).wall);
    let status = serde_json::to_value(node.status).unwrap();
    for list in ["capacity", "allocatable"] {
        assert_eq!(status[list]["example.com/dongle"], "3", "{list}");
        assert_eq!(status[list].get("hugepages-16Gi"), None, "{list}");
    }
}

#[test]
fn extended_resources_are_recognised_by_name() {
    for (name, want) in [
        ("cpu", false),
        ("example.com/dongle", true),
        ("requests.example.com/dongle", false),
        ("kubernetes.io/batteries", false),
        ("hugepages-2Mi", false),
    ] {
        assert_eq!(is_extended(name), want, "{name}");
    }
}

#[test]
fn existing_node_gets_default_labels_only() {
    let mut configured = settings();
    configured.labels = [
        ("team".to_owned(), "red".to_owned()),
        ("topology.kubernetes.io/zone".to_owned(), "z1".to_owned()),
    ]
    .into();
    configured.taints =
        vec![v1::Taint { key: "k".into(), effect: "NoExecute".into(), ..Default::default() }];
    let mut existing = registered();
    let labels = existing.metadata.labels.as_mut().unwrap();
    labels.insert("kubernetes.io/hostname".into(), "stale".into());
    labels.insert("mine".into(), "kept".into());
    existing.metadata.annotations = Some([("other".to_owned(), "kept".to_owned())].into());
    let capacity = existing.status.as_mut().unwrap().capacity.as_mut().unwrap();
    capacity.insert("example.com/dongle".into(), Quantity::from_milli(3000).into());

    let (body, is_change) =
        sent(&existing, &reconciled(&existing, &configured, Some("new"))).unwrap();
    assert!(is_change);
    let labels = json!({ "kubernetes.io/hostname": "node-1", "topology.kubernetes.io/zone": "z1" });
    assert_eq!(body["metadata"]["labels"], labels);
    assert_eq!(
        body["metadata"].get("annotations"),
        Some(&json!({
            "volumes.kubernetes.io/controller-managed-attach-detach": "true"
        }))
    );
    assert_eq!(body["status"]["capacity"]["example.com/dongle"], "0");
    assert_eq!(body.get("spec"), None, "taints are not patched");
}

#[test]
fn object_reported_by_another_machine_is_detected() {
    let node = registered();
    assert_eq!(other_machine(&node, "m"), None);
    assert_eq!(other_machine(&node, "other"), Some("m"));
    assert_eq!(other_machine(&v1::Node::default(), "other"), None);
}

#[test]
fn new_node_in_a_cloud_has_the_uninitialized_taint() {
    let configured = Settings {
        external_cloud: true,
        taints: vec![v1::Taint {
            key: "k".into(),
            effect: "NoExecute".into(),
            ..Default::default()
        }],
        provider_id: "cloud://1".into(),
        ..settings()
    };
    let (node, _) = desired(&initial(&configured), &configured, &seen(), t(0).wall);
    let spec = node.spec.unwrap();
    let taints: Vec<_> = spec.taints.unwrap().into_iter().map(|taint| taint.key).collect();
    assert_eq!(taints, ["k", "node.cloudprovider.kubernetes.io/uninitialized"]);
    assert_eq!(spec.provider_id.as_deref(), Some("cloud://1"));
    let hostname = v1::NodeAddress { type_: "Hostname".into(), address: "node-1".into() };
    assert_eq!(node.status.unwrap().addresses, Some(vec![hostname]));

    let configured = Settings { node_ips: vec![ip("10.0.0.1")], ..configured };
    let (node, _) = desired(&initial(&configured), &configured, &seen(), t(0).wall);
    let annotations = node.metadata.annotations.unwrap();
    assert_eq!(annotations["alpha.kubernetes.io/provided-node-ip"], "10.0.0.1");
    assert_eq!(node.status.unwrap().addresses.unwrap().len(), 2);
}

#[test]
fn dual_stack_addresses_survive_a_patch() {
    let shown = registered();
    let seen = NodeObservation { addresses: vec![ip("10.0.0.2"), ip("fd00::2")], ..seen() };
    let (wanted, _) = desired(&shown, &settings(), &seen, t(10).wall);
    let (body, is_change) = sent(&shown, &wanted).unwrap();
    assert!(is_change);
    assert_eq!(
        body["status"]["addresses"],
        json!([
            { "$patch": "replace" },
            { "type": "InternalIP", "address": "10.0.0.2" },
            { "type": "InternalIP", "address": "fd00::2" },
            { "type": "Hostname", "address": "node-1" },
        ])
    );
}

#[test]
fn node_addresses_are_selected_by_configuration_name_and_route() {
    let machine = [ip("10.0.0.1"), ip("10.0.0.9"), ip("fd00::1"), ip("127.0.0.1")];
    let route = [ip("10.0.0.9"), ip("fd00::1")];
    let none: &[&str] = &[];
    for (case, given, name, by_name, want) in [
        ("given", vec!["10.0.0.1"], "n", none, Ok(vec!["10.0.0.1"])),
        (
            "one of each family",
            vec!["fd00::1", "10.0.0.1"],
            "n",
            none,
            Ok(vec!["fd00::1", "10.0.0.1"]),
        ),
        (
            "of another machine",
            vec!["10.0.0.7"],
            "n",
            none,
            Err("is not on any interface of this machine"),
        ),
        ("loopback", vec!["127.0.0.1"], "n", none, Err("is a loopback address")),
        ("the name is an address", vec![], "192.0.2.1", none, Ok(vec!["192.0.2.1"])),
        ("by name", vec![], "n", &["10.0.0.1"], Ok(vec!["10.0.0.1"])),
        ("by name, but only for itself", vec![], "n", &["127.0.0.1"], Ok(vec!["10.0.0.9"])),
        ("by route", vec![], "n", none, Ok(vec!["10.0.0.9"])),
        ("by route, of the other family", vec!["::"], "n", none, Ok(vec!["fd00::1"])),
    ] {
        let all = |texts: &[&str]| texts.iter().map(|text| ip(text)).collect::<Vec<_>>();
        let found = addresses::choose(&all(&given), name, &machine, &all(by_name), &route);
        match want {
            Ok(want) => assert_eq!(found, Ok(all(&want)), "{case}"),
            Err(why) => {
                assert!(found.as_ref().is_err_and(|text| text.contains(why)), "{case}: {found:?}");
            }
        }
    }
}

#[test]
fn largest_images_are_listed_with_digests_first() {
    let image = |name: &str, size| Image {
        tags: vec![format!("{name}:1")],
        digests: (0..5).map(|n| format!("{name}@{n}")).collect(),
        size,
    };
    let images = [image("small", 1), image("big", 9), image("middle", 5)];
    let listed = images::listed(&images, Some(2)).unwrap();
    let sizes: Vec<_> = listed.iter().map(|image| image.size_bytes.unwrap()).collect();
    assert_eq!(sizes, [9, 5]);
    assert_eq!(listed[0].names.as_ref().unwrap().len(), 5);
    assert_eq!(listed[0].names.as_ref().unwrap()[0], "big@0");
    assert_eq!(images::listed(&images, None).unwrap().len(), 3);
    assert_eq!(images::listed(&[], None), None);
}

#[test]
fn heartbeat_alone_is_not_a_change() {
    let shown = registered();
    let (wanted, notices) = desired(&shown, &settings(), &seen(), t(10).wall);
    let (body, is_change) = sent(&shown, &wanted).unwrap();
    assert!(!is_change);
    assert_eq!(reasons(&notices), Vec::<&str>::new());
    assert_eq!(body["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
    assert_eq!(body["metadata"], json!({ "uid": "u" }));
}

#[test]
fn condition_written_by_another_component_is_corrected() {
    let mut shown = registered();
    let conditions = shown.status.as_mut().unwrap().conditions.as_mut().unwrap();
    conditions.iter_mut().for_each(|condition| condition.status = "Unknown".into());
    let (wanted, notices) = desired(&shown, &settings(), &seen(), t(10).wall);
    assert!(sent(&shown, &wanted).unwrap().1);
    assert!(reasons(&notices).contains(&"NodeReady"));
}

#[test]
fn fields_dropped_by_an_old_server_are_sent_once() {
    let shown = registered();
    let mut configured = settings();
    configured.declared_features = vec!["A", "B"];
    let (wanted, _) = desired(&shown, &configured, &seen(), t(10).wall);
    let mut response = wanted.clone();
    response.status.as_mut().unwrap().declared_features = None;
    let mut dropped_fields = DroppedFields::default();
    assert!(patch(&shown, &wanted, &dropped_fields).unwrap().1);
    dropped_fields.learn(&wanted, &response);
    let (again, _) = desired(&response, &configured, &seen(), t(20).wall);
    assert!(!patch(&response, &again, &dropped_fields).unwrap().1, "nothing but the heartbeat");
    configured.declared_features.push("C");
    let (more, _) = desired(&response, &configured, &seen(), t(30).wall);
    assert!(patch(&response, &more, &dropped_fields).unwrap().1, "a change is sent again");
}

#[test]
fn reports_are_sent_on_change_and_periodically() {
    let minutes = |n: u64| Mono(Duration::from_secs(60 * n));
    let mut reports = ReportSchedule::every(Duration::from_secs(300));
    assert!(reports.is_due(false, minutes(0)), "the first one is always due");
    reports.sent(false, minutes(0), 0.5);
    assert!(!reports.is_due(false, minutes(4)));
    assert!(reports.is_due(true, minutes(4)));
    assert!(reports.is_due(false, minutes(5)));
    for (chance, early, late) in [(0.0, 2, 3), (1.0, 7, 8)] {
        reports.sent(true, minutes(0), chance);
        assert!(!reports.is_due(false, minutes(early)), "{chance}");
        assert!(reports.is_due(false, minutes(late)), "{chance}");
    }
}

#[test]
fn extended_resources_survive_a_restart_on_the_same_machine() {
    for (case, machine_id, want) in [
        ("same machine", Some("m"), "3"),
        ("another machine", Some("other"), "0"),
        ("machine cannot be read", None, "3"),
    ] {
        let mut existing = registered();
        let status = existing.status.as_mut().unwrap();
        for list in [&mut status.capacity, &mut status.allocatable] {
            let list = list.as_mut().unwrap();
            list.insert("example.com/dongle".into(), Quantity::from_milli(3000).into());
        }
        let status = reconciled(&existing, &settings(), machine_id).status.unwrap();
        for list in [status.capacity, status.allocatable] {
            assert_eq!(list.unwrap()["example.com/dongle"].0, want, "{case}");
        }
    }
}

#[test]
fn only_addresses_of_a_machine_are_announced_to_the_cloud() {
    let unspecified = ip("0.0.0.0");
    for (case, external_cloud, node_ips, want) in [
        ("none given", true, vec![], None),
        ("only a family", true, vec![unspecified], None),
        ("one", true, vec![ip("10.0.0.1")], Some("10.0.0.1")),
        ("two", true, vec![ip("10.0.0.1"), ip("fd00::1")], Some("10.0.0.1,fd00::1")),
        ("one and a family", true, vec![ip("10.0.0.1"), ip("::")], Some("10.0.0.1")),
        ("no cloud", false, vec![ip("10.0.0.1")], None),
    ] {
        let told = Settings { external_cloud, node_ips, ..settings() };
        let mut shown = registered();
        // Of an earlier start with other flags.
        let annotations = shown.metadata.annotations.get_or_insert_default();
        annotations.insert(addresses::ANNOTATION_PROVIDED.to_owned(), "192.0.2.1".to_owned());
        let (node, _) = desired(&shown, &told, &seen(), t(10).wall);
        let annotations = node.metadata.annotations.unwrap();
        let found = annotations.get(addresses::ANNOTATION_PROVIDED).map(String::as_str);
        assert_eq!(found, want, "{case}");
    }
}

#[test]
fn new_node_in_a_cloud_starts_with_the_route_address_if_only_a_family_was_given() {
    let told = Settings { external_cloud: true, node_ips: vec![ip("0.0.0.0")], ..settings() };
    let (node, _) = desired(&initial(&told), &told, &seen(), t(0).wall);
    let addresses = node.status.unwrap().addresses.unwrap();
    let found: Vec<_> = addresses.iter().map(|entry| entry.address.as_str()).collect();
    assert_eq!(found, ["10.0.0.1", "node-1"]);
}
