#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#![allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]

use super::*;
use crate::registry::{
    CONFIG_MAPS, EVENTS, EVENTS_V1, LEASES, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES, PODS, PRIORITY_CLASSES, RESOURCES, RUNTIME_CLASSES, SECRETS,
    SERVICE_ACCOUNTS, SERVICES, Verb,
};

fn now() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().unwrap()
}

fn cells(resource: &Resource, object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"]["name"] = json!("x");
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    rows(resource, &[object], now())["rows"][0]["cells"].clone()
}

#[test]
fn every_kind_has_its_cells() {
    for (resource, object, want) in [
        (
            &NODES,
            json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "db"}},
                "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1", "kernelVersion": "6", "architecture": "amd64"}}}),
            json!([
                "x",
                "NotReady,SchedulingDisabled",
                "db,worker",
                "60s",
                "v1",
                "10.0.0.1",
                "<none>",
                "<unknown>",
                "6 (amd64)",
                "<unknown>"
            ]),
        ),
        (&NAMESPACES, json!({"status": {"phase": "Active"}}), json!(["x", "Active", "60s"])),
        (
            &CONFIG_MAPS,
            json!({"data": {"a": "b"}, "binaryData": {"c": "", "d": ""}}),
            json!(["x", 3, "60s"]),
        ),
        (&SECRETS, json!({"type": "Opaque", "data": {"a": ""}}), json!(["x", "Opaque", 1, "60s"])),
        (&SERVICE_ACCOUNTS, json!({}), json!(["x", "60s"])),
        (&LEASES, json!({"spec": {"holderIdentity": "h"}}), json!(["x", "h", "60s"])),
        (&RUNTIME_CLASSES, json!({"handler": "runc"}), json!(["x", "runc", "60s"])),
        (
            &PRIORITY_CLASSES,
            json!({"value": 7, "preemptionPolicy": "Never"}),
            json!(["x", 7, false, "60s", "Never"]),
        ),
        (
            &PERSISTENT_VOLUMES,
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "n", "name": "c"}, "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}}),
            json!([
                "x",
                "1Gi",
                "RWO,RWX",
                "Retain",
                "Terminating",
                "n/c",
                "",
                "<unset>",
                "",
                "60s",
                "Filesystem"
            ]),
        ),
        (
            &PERSISTENT_VOLUME_CLAIMS,
            json!({"spec": {"volumeName": "v", "storageClassName": "s"}, "status": {"phase": "Bound",
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOncePod"]}}),
            json!(["x", "Bound", "v", "1Gi", "RWOP", "s", "<unset>", "60s", "<unset>"]),
        ),
        (
            &PERSISTENT_VOLUME_CLAIMS,
            json!({"spec": {}, "status": {"phase": "Pending"}}),
            json!(["x", "Pending", "", "", "", "", "<unset>", "60s", "<unset>"]),
        ),
        (
            &SERVICES,
            json!({"spec": {"type": "ClusterIP", "clusterIPs": ["10.0.0.1"], "ports": [{"port": 443, "protocol": "TCP"}], "selector": {"a": "b"}}}),
            json!(["x", "ClusterIP", "10.0.0.1", "<none>", "443/TCP", "60s", "a=b"]),
        ),
        (
            &EVENTS,
            json!({"involvedObject": {"kind": "Pod", "name": "p", "fieldPath": "spec.containers{c}"}, "type": "Normal",
                "reason": "Started", "message": " m \n", "source": {"component": "kubelet", "host": "h"},
                "firstTimestamp": "2026-01-01T00:00:30Z", "lastTimestamp": "2026-01-01T00:00:50Z", "count": 3}),
            json!([
                "10s",
                "Normal",
                "Started",
                "pod/p",
                "spec.containers{c}",
                "kubelet, h",
                "m",
                "30s",
                3,
                "x"
            ]),
        ),
        (
            &EVENTS_V1,
            json!({"regarding": {"kind": "Node"}, "note": "n", "eventTime": "2026-01-01T00:00:30.000000Z",
                "reportingController": "me", "series": {"count": 5, "lastObservedTime": "2026-01-01T00:00:59.000000Z"}}),
            json!(["1s", "", "", "node", "", "me", "n", "30s", 5, "x"]),
        ),
    ] {
        assert_eq!(cells(resource, &object), want, "{}", resource.qualified());
    }
}

#[test]
fn every_column_has_a_cell() {
    for resource in RESOURCES.iter().filter(|resource| resource.allows(Verb::List)) {
        let table = rows(resource, &[json!({"metadata": {"name": "x"}})], now());
        let columns = table["columnDefinitions"].as_array().unwrap().len();
        assert_eq!(
            table["rows"][0]["cells"].as_array().unwrap().len(),
            columns,
            "{}",
            resource.plural
        );
    }
}

fn status(state: Value, more: Value) -> Value {
    let mut status = json!({"name": "c", "state": state});
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    status
}

#[test]
fn pod_status_follows_its_containers() {
    let running = || status(json!({"running": {}}), json!({"ready": true}));
    let ended = |code: i64, reason: &str| {
        status(json!({"terminated": {"exitCode": code, "reason": reason}}), json!({}))
    };
    let init = |state: Value| json!({"spec": {"initContainers": [{"name": "c"}, {"name": "d"}]}, "status": {"phase": "Pending", "initContainerStatuses": [status(state, json!({}))]}});
    let sidecar = |started: bool| {
        json!({"spec": {"containers": [{}], "initContainers": [{"name": "c", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "initContainerStatuses": [status(json!({"running": {}}), json!({"started": started, "ready": true}))], "containerStatuses": [running()]}})
    };
    let ready = json!([{"type": "Ready", "status": "True"}]);
    for (case, pod, want) in [
        (
            "nothing yet",
            json!({"spec": {"containers": [{}]}, "status": {"phase": "Pending"}}),
            ["0/1", "Pending"],
        ),
        (
            "rejected",
            json!({"status": {"phase": "Failed", "reason": "Evicted"}}),
            ["0/0", "Evicted"],
        ),
        (
            "running",
            json!({"spec": {"containers": [{}]}, "status": {"phase": "Running", "containerStatuses": [running()]}}),
            ["1/1", "Running"],
        ),
        (
            "waiting",
            json!({"spec": {"containers": [{}]}, "status": {"phase": "Pending", "containerStatuses": [status(json!({"waiting": {"reason": "ErrImagePull"}}), json!({}))]}}),
            ["0/1", "ErrImagePull"],
        ),
        (
            "done",
            json!({"spec": {"containers": [{}]}, "status": {"phase": "Succeeded", "containerStatuses": [ended(0, "Completed")]}}),
            ["0/1", "Completed"],
        ),
        (
            "failed without a reason",
            json!({"status": {"phase": "Failed", "containerStatuses": [ended(3, "")]}}),
            ["0/0", "ExitCode:3"],
        ),
        (
            "killed",
            json!({"status": {"phase": "Failed", "containerStatuses": [status(json!({"terminated": {"exitCode": 137, "signal": 9}}), json!({}))]}}),
            ["0/0", "Signal:9"],
        ),
        (
            "one completed, one running, ready",
            json!({"spec": {"containers": [{}, {}]}, "status": {"conditions": ready, "containerStatuses": [ended(0, "Completed"), running()]}}),
            ["1/2", "Running"],
        ),
        (
            "one completed, one running, not ready",
            json!({"spec": {"containers": [{}, {}]}, "status": {"containerStatuses": [ended(0, "Completed"), running()]}}),
            ["1/2", "NotReady"],
        ),
        (
            "one completed, one failed",
            json!({"status": {"containerStatuses": [ended(0, "Completed"), ended(1, "Error")]}}),
            ["0/0", "Error"],
        ),
        (
            "init failed",
            init(json!({"terminated": {"exitCode": 1, "reason": "Error"}})),
            ["0/0", "Init:Error"],
        ),
        (
            "init waits",
            init(json!({"waiting": {"reason": "ImagePullBackOff"}})),
            ["0/0", "Init:ImagePullBackOff"],
        ),
        ("init running", init(json!({"running": {}})), ["0/0", "Init:0/2"]),
        (
            "init is next",
            init(json!({"waiting": {"reason": "PodInitializing"}})),
            ["0/0", "Init:0/2"],
        ),
        ("sidecar started", sidecar(true), ["2/2", "Running"]),
        ("sidecar not started", sidecar(false), ["0/2", "Init:0/1"]),
        (
            "deleted",
            json!({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Running"}}),
            ["0/0", "Terminating"],
        ),
        (
            "deleted after completion",
            json!({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Succeeded"}}),
            ["0/0", "Succeeded"],
        ),
        (
            "lost",
            json!({"metadata": {"deletionTimestamp": "t"}, "status": {"phase": "Running", "reason": "NodeLost"}}),
            ["0/0", "Unknown"],
        ),
        (
            "gated",
            json!({"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}}),
            ["0/0", "SchedulingGated"],
        ),
    ] {
        let got = cells(&PODS, &pod);
        assert_eq!([got[1].as_str().unwrap(), got[2].as_str().unwrap()], want, "{case}");
    }
}

#[test]
fn restarts_include_the_time_of_the_last_one() {
    let container = |restarts: i64, at: &str| {
        status(
            json!({"running": {}}),
            json!({"restartCount": restarts, "lastState": {"terminated": {"finishedAt": at}}}),
        )
    };
    let pod = json!({"spec": {"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}], "nodeName": "node1"},
        "status": {"podIPs": [{"ip": "10.0.0.7"}], "conditions": [{"type": "a", "status": "True"}],
        "containerStatuses": [container(2, "2026-01-01T00:00:30Z"), container(1, "2026-01-01T00:00:20Z")]}});
    let got = cells(&PODS, &pod);
    assert_eq!(got[3], "3 (30s ago)");
    assert_eq!(
        got.as_array().unwrap()[5..],
        [json!("10.0.0.7"), json!("node1"), json!("<none>"), json!("1/2")]
    );
}

#[test]
fn row_has_metadata_and_a_completed_condition() {
    let table =
        rows(&PODS, &[json!({"metadata": {"name": "x"}, "status": {"phase": "Failed"}})], now());
    assert_eq!(
        table["rows"][0]["object"],
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "x"}})
    );
    assert_eq!(
        table["rows"][0]["conditions"],
        json!([{"type": "Completed", "status": "True", "reason": "Failed", "message": "The pod failed."}])
    );
}

#[test]
fn columns_and_cells_match_the_recording() {
    let Some(golden) = podwright_testkit::report::recordings() else { return };
    let path = golden.join("api/list-watch.json");
    let cases: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let find =
        |about: &str| cases.iter().find(|case| case["about"] == about).unwrap()["answer"].clone();
    for (about, resource) in [
        ("table", &PODS),
        ("node table", &NODES),
        ("configmap table", &CONFIG_MAPS),
        ("event table", &EVENTS),
    ] {
        let table = rows(resource, &[], now());
        assert_eq!(table["columnDefinitions"], find(about)["columnDefinitions"], "{about}");
    }
    let listed =
        find("field selector")["items"][0].to_string().replace("<time>", "2026-01-01T00:00:59Z");
    let table = rows(&PODS, &[serde_json::from_str(&listed).unwrap()], now());
    let recorded = find("table")["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["cells"][0] == "small")
        .unwrap()
        .clone();
    assert_eq!(table["rows"][0]["cells"], recorded["cells"]);
}
