#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use super::*;
use crate::registry::{
    CONFIG_MAPS, EVENTS, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS,
    PRIORITY_CLASSES, RESOURCES, SECRETS, SERVICES,
};

fn defaulted(resource: &Resource, object: &Value) -> Value {
    let mut object = object.clone();
    apply(resource, &mut object);
    object
}

#[test]
fn each_kind_gets_its_defaults() {
    for (resource, given, want) in [
        (
            &SECRETS,
            json!({"metadata": {}, "data": {"a": "YQ==", "b": "Yg=="}, "stringData": {"a": "x"}}),
            json!({"metadata": {}, "type": "Opaque", "data": {"a": "eA==", "b": "Yg=="}}),
        ),
        (&CONFIG_MAPS, json!({"data": {}}), json!({"metadata": {}})),
        (
            &NAMESPACES,
            json!({"metadata": {"name": "n", "labels": {"a": "b"}}}),
            json!({"metadata": {"name": "n", "labels": {"a": "b", "kubernetes.io/metadata.name": "n"}},
                   "spec": {}, "status": {"phase": "Active"}}),
        ),
        (
            &NAMESPACES,
            json!({"metadata": {"generateName": "n-"}}),
            json!({"metadata": {"generateName": "n-"}, "spec": {}, "status": {"phase": "Active"}}),
        ),
        (
            &PRIORITY_CLASSES,
            json!({"value": 0}),
            json!({"metadata": {}, "value": 0, "preemptionPolicy": "PreemptLowerPriority"}),
        ),
        (
            &PERSISTENT_VOLUMES,
            json!({"spec": {"capacity": {"storage": "1024Mi"}, "hostPath": {"path": "/x"}}}),
            json!({"metadata": {}, "spec": {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x", "type": ""},
                   "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"}, "status": {"phase": "Pending"}}),
        ),
        (
            &PERSISTENT_VOLUME_CLAIMS,
            json!({"spec": {"dataSource": {"apiGroup": "g.io", "kind": "K", "name": "n"}}}),
            json!({"metadata": {}, "spec": {"resources": {}, "volumeMode": "Filesystem",
                   "dataSource": {"apiGroup": "g.io", "kind": "K", "name": "n"},
                   "dataSourceRef": {"apiGroup": "g.io", "kind": "K", "name": "n"}}, "status": {"phase": "Pending"}}),
        ),
        (
            &EVENTS,
            json!({"involvedObject": {"kind": "Pod"}}),
            json!({"metadata": {}, "involvedObject": {"kind": "Pod"}, "source": {}, "firstTimestamp": null,
                   "lastTimestamp": null, "eventTime": null, "reportingComponent": "", "reportingInstance": ""}),
        ),
        (
            &SERVICES,
            json!({"spec": {"ports": [{"port": 80}]}}),
            json!({"metadata": {}, "spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
                   "type": "ClusterIP", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"},
                   "status": {"loadBalancer": {}}}),
        ),
    ] {
        assert_eq!(defaulted(resource, &given), want, "{}", resource.kind);
    }
}

#[test]
fn allocatable_defaults_to_capacity() {
    let node = defaulted(
        &NODES,
        &json!({"spec": {"podCIDR": "10.0.0.0/24"}, "status": {"capacity": {"cpu": "2"}}}),
    );
    assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
    assert_eq!(node["spec"], json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}));
}

#[test]
fn defaulting_twice_changes_nothing() {
    for resource in RESOURCES {
        let given = json!({"apiVersion": resource.api_version(), "kind": resource.kind,
            "metadata": {"name": "n"}, "spec": {}, "stringData": {"a": "b"}});
        let once = defaulted(resource, &given);
        assert_eq!(defaulted(resource, &once), once, "{}", resource.qualified());
    }
}

#[test]
fn object_of_the_wrong_type_is_left_alone() {
    for given in [json!(null), json!([]), json!({"spec": "x"}), json!({"metadata": 5})] {
        assert_eq!(defaulted(&PODS, &given), given);
    }
}

#[test]
fn fields_of_disabled_features_are_dropped() {
    let pod = defaulted(
        &PODS,
        &json!({"spec": {"schedulingGroup": {"podGroupName": "g"}, "containers": [
            {"name": "c", "image": "a", "lifecycle": {"stopSignal": "SIGINT", "preStop": {"sleep": {"seconds": 1}}}}]}}),
    );
    assert_eq!(pod["spec"].get("schedulingGroup"), None);
    assert_eq!(
        pod["spec"]["containers"][0]["lifecycle"],
        json!({"preStop": {"sleep": {"seconds": 1}}})
    );
}

#[test]
fn new_pod_selects_by_its_own_labels_and_waits_for_its_scheduling_gates() {
    let mut pod = json!({"metadata": {"labels": {"app": "web"}, "annotations":
            {"container.apparmor.security.beta.kubernetes.io/c": "localhost/mine"}},
        "spec": {"containers": [{"name": "c", "image": "a"}], "schedulingGates": [{"name": "g"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {}, "matchLabelKeys": ["app", "other"]}]}});
    on_create(&PODS, &mut pod);
    assert_eq!(
        pod["spec"]["topologySpreadConstraints"][0]["labelSelector"],
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]})
    );
    assert_eq!(
        pod["spec"]["containers"][0]["securityContext"],
        json!({"appArmorProfile": {"type": "Localhost", "localhostProfile": "mine"}})
    );
    assert_eq!(
        pod["status"]["conditions"],
        json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null, "lastTransitionTime": null}])
    );
}
