#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use serde_json::json;

use super::*;
use crate::defaults;
use crate::registry::{
    CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES,
    PODS, PRIORITY_CLASSES, RUNTIME_CLASSES, SECRETS, SERVICE_ACCOUNTS,
};

/// An object as the server stores it.
fn held(resource: &Resource, fields: &Value) -> Value {
    let mut object = json!({"metadata": {"name": "x", "resourceVersion": "1"}});
    if resource.namespaced {
        object["metadata"]["namespace"] = json!("n");
    }
    for (name, value) in fields.as_object().unwrap() {
        match (name.as_str(), value) {
            ("metadata", Value::Object(more)) => {
                object["metadata"].as_object_mut().unwrap().extend(more.clone());
            }
            _ => object[name] = value.clone(),
        }
    }
    defaults::apply(resource, &mut object);
    object
}

fn lines(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn created(resource: &Resource, fields: &Value) -> Vec<String> {
    lines(&create(resource, &held(resource, fields)))
}

fn changed(resource: &Resource, part: Option<&str>, old: &Value, new: &Value) -> Vec<String> {
    lines(&update(resource, part, &held(resource, new), &held(resource, old)))
}

#[test]
fn config_maps() {
    let large = "x".repeat(1024 * 1024 + 1);
    for (given, want) in [
        (json!({"data": {"a.b_C-1": "x"}, "binaryData": {"b": "eA=="}}), vec![]),
        (json!({"data": {"..": "x"}}), vec!["data[..]: Invalid value: \"..\": must not be '..'"]),
        (
            json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}}),
            vec!["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"],
        ),
        (json!({"data": {"a": large}}), vec!["[]: Too long: may not be more than 1048576 bytes"]),
    ] {
        assert_eq!(created(&CONFIG_MAPS, &given), want);
    }
    assert_eq!(
        changed(
            &CONFIG_MAPS,
            None,
            &json!({"immutable": true, "data": {"a": "1"}}),
            &json!({"data": {"a": "2"}})
        ),
        [
            "immutable: Forbidden: field is immutable when `immutable` is set",
            "data: Forbidden: field is immutable when `immutable` is set"
        ]
    );
}

#[test]
fn secrets() {
    for (given, want) in [
        (
            json!({"type": "kubernetes.io/tls"}),
            vec!["data[tls.crt]: Required value", "data[tls.key]: Required value"],
        ),
        (json!({"type": "kubernetes.io/basic-auth", "stringData": {"username": "x"}}), vec![]),
        (json!({"type": "kubernetes.io/ssh-auth"}), vec!["data[ssh-privatekey]: Required value"]),
        (
            json!({"type": "kubernetes.io/dockerconfigjson"}),
            vec!["data[.dockerconfigjson]: Required value"],
        ),
        (
            json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{}"}}),
            vec![],
        ),
        (
            json!({"type": "kubernetes.io/service-account-token"}),
            vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
        ),
        (json!({"type": "mine"}), vec![]),
    ] {
        assert_eq!(created(&SECRETS, &given), want, "{given}");
    }
    let errors = created(
        &SECRETS,
        &json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "hunter2"}}),
    );
    assert!(!errors[0].contains("hunter2"), "{errors:?}");
    assert_eq!(
        changed(&SECRETS, None, &json!({"type": "a"}), &json!({"type": "b"})),
        ["type: Invalid value: \"b\": field is immutable"]
    );
}

#[test]
fn metadata_is_checked_for_every_kind() {
    let bad = json!({"metadata": {"labels": {"a b": ""}}});
    let label = "metadata.labels: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    for resource in [&CONFIG_MAPS, &SERVICE_ACCOUNTS, &NAMESPACES, &NODES, &LEASES] {
        assert_eq!(created(resource, &bad), [label], "{}", resource.kind);
    }
    assert_eq!(
        created(&SERVICE_ACCOUNTS, &json!({"metadata": {"name": "a/b"}}))[0]
            .split(" (e.g.")
            .next()
            .unwrap(),
        "metadata.name: Invalid value: \"a/b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
    );
    assert_eq!(
        created(&NAMESPACES, &json!({"metadata": {"name": "a.b"}})),
        ["metadata.name: Invalid value: \"a.b\": must not contain dots"]
    );
    assert_eq!(
        created(&NODES, &json!({"metadata": {"namespace": "n"}}))[0],
        "metadata.namespace: Forbidden: not allowed on this type"
    );
    // once from the common rules, and as often as the kind's own rules report it
    assert_eq!(changed(&SERVICE_ACCOUNTS, None, &json!({}), &bad), [label; 4]);
}

#[test]
fn nodes() {
    let taint = |effect: &str| json!({"key": "k", "value": "v", "effect": effect});
    for (given, want) in [
        (
            json!({"spec": {"taints": [taint("NoSchedule"), taint("NoExecute")], "podCIDRs": ["10.0.0.0/24", "fd00::/64"]}}),
            vec![],
        ),
        (
            json!({"spec": {"taints": [taint("NoSchedule"), taint("NoSchedule"), {"key": "k"}]}}),
            vec![
                "metadata.taints[1]: Duplicate value: {\"Key\":\"k\",\"Value\":\"v\",\"Effect\":\"NoSchedule\",\"TimeAdded\":null}: taints must be unique by key and effect pair",
                "metadata.taints[2].effect: Required value",
            ],
        ),
        (
            json!({"spec": {"podCIDRs": ["10.0.0.1/24", "x"]}}),
            vec![
                "spec.podCIDRs[0]: Invalid value: \"10.0.0.1/24\": must not have bits set beyond the prefix length",
                "spec.podCIDRs[1]: Invalid value: \"x\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                "spec.podCIDRs: Invalid value: [\"10.0.0.1/24\",\"x\"]: may specify no more than one CIDR for each IP family",
            ],
        ),
        (
            json!({"status": {"capacity": {"cpu": "-1", "pods": "1500m"}, "allocatable": {"cpu": "1"}}}),
            vec![
                "status.capacity.cpu: Invalid value: \"-1\": must be greater than or equal to 0",
                "status.capacity.pods: Invalid value: \"1500m\": must be an integer",
            ],
        ),
    ] {
        assert_eq!(created(&NODES, &given), want, "{given}");
    }
    assert_eq!(
        changed(
            &NODES,
            Some("status"),
            &json!({"spec": {"podCIDRs": ["10.0.0.0/24"], "providerID": "a"}}),
            &json!({"spec": {"podCIDRs": ["10.0.1.0/24"], "providerID": "b"}, "status": {"addresses":
                [{"type": "Hostname", "address": "h"}, {"type": "Hostname", "address": "h"}]}})
        ),
        [
            "status.addresses[1]: Duplicate value: {\"Type\":\"Hostname\",\"Address\":\"h\"}",
            "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
            "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
        ]
    );
}

#[test]
fn leases_and_classes() {
    for (resource, given, want) in [
        (
            &LEASES,
            json!({"spec": {"leaseDurationSeconds": 0, "leaseTransitions": -1, "preferredHolder": "h"}}),
            vec![
                "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
                "spec.leaseTransitions: Invalid value: -1: must be greater than or equal to 0",
                "spec.preferredHolder: Forbidden: may only be specified if `strategy` is defined",
            ],
        ),
        (&RUNTIME_CLASSES, json!({}), vec!["handler: Required value"]),
        (
            &RUNTIME_CLASSES,
            json!({"handler": "a.b"}),
            vec!["handler: Invalid value: \"a.b\": must not contain dots"],
        ),
        (
            &RUNTIME_CLASSES,
            json!({"handler": "h", "overhead": {"podFixed": {"cpu": "-1"}}, "scheduling": {"tolerations": [{"operator": "Exists"}, {"operator": "Exists"}]}}),
            vec![
                "overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                "scheduling.tolerations[1]: Duplicate value: {\"Key\":\"\",\"Operator\":\"Exists\",\"Value\":\"\",\"Effect\":\"\",\"TolerationSeconds\":null}",
            ],
        ),
        (&PRIORITY_CLASSES, json!({"value": 1_000_000_000}), vec![]),
        (
            &PRIORITY_CLASSES,
            json!({"value": 1_000_000_001}),
            vec![
                "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
            ],
        ),
        (
            &PRIORITY_CLASSES,
            json!({"metadata": {"name": "system-mine"}}),
            vec![
                "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-mine is not a known system priority class",
            ],
        ),
        (
            &PRIORITY_CLASSES,
            json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}),
            vec![],
        ),
    ] {
        assert_eq!(created(resource, &given), want, "{given}");
    }
    assert_eq!(
        changed(
            &PRIORITY_CLASSES,
            None,
            &json!({"value": 1}),
            &json!({"value": 2, "preemptionPolicy": "Never"})
        ),
        [
            "value: Forbidden: may not be changed in an update.",
            "preemptionPolicy: Invalid value: \"Never\": field is immutable"
        ]
    );
    assert_eq!(
        changed(&RUNTIME_CLASSES, None, &json!({"handler": "a"}), &json!({"handler": "b"})),
        ["handler: Invalid value: \"b\": field is immutable"]
    );
}

#[test]
fn namespaces_and_events() {
    assert_eq!(
        created(&NAMESPACES, &json!({"spec": {"finalizers": ["mine"]}})),
        [
            "spec.finalizers: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
        ]
    );
    assert_eq!(
        changed(
            &NAMESPACES,
            Some("status"),
            &json!({}),
            &json!({"status": {"phase": "Terminating"}})
        ),
        [
            "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
        ]
    );
    for (given, want) in [
        (json!({"involvedObject": {"namespace": "n"}}), vec![]),
        (
            json!({"involvedObject": {}}),
            vec!["involvedObject.namespace: Invalid value: \"\": does not match event.namespace"],
        ),
        (
            json!({"involvedObject": {"namespace": "n"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "a", "reportingInstance": "b"}),
            vec!["action: Required value", "reason: Required value"],
        ),
    ] {
        assert_eq!(created(&EVENTS, &given), want, "{given}");
    }
    assert_eq!(
        created(
            &EVENTS,
            &json!({"metadata": {"name": "a%b"}, "involvedObject": {"namespace": "n"}})
        ),
        ["metadata.name: Invalid value: \"a%b\": may not contain '%'"]
    );
}

#[test]
fn volumes_and_claims() {
    let volume = |more: Value| {
        let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"spec": spec})
    };
    for (given, want) in [
        (volume(json!({"hostPath": {"path": "/x"}})), vec![]),
        (volume(json!({})), vec!["spec: Required value: must specify a volume type"]),
        (
            json!({"spec": {"hostPath": {"path": "/"}, "persistentVolumeReclaimPolicy": "Recycle"}}),
            vec![
                "spec.accessModes: Required value",
                "spec.capacity: Required value",
                "spec.capacity: Unsupported value: {}: supported values: \"storage\"",
                "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
            ],
        ),
        (
            volume(json!({"local": {"path": "/x"}})),
            vec!["spec.nodeAffinity: Required value: Local volume requires node affinity"],
        ),
        (
            volume(
                json!({"hostPath": {"path": "/x"}, "nfs": {}, "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
            ),
            vec![
                "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
                "spec.nfs: Forbidden: may not specify more than 1 volume type",
            ],
        ),
        (volume(json!({"csi": {"driver": "d.io"}})), vec!["spec.csi.volumeHandle: Required value"]),
    ] {
        assert_eq!(created(&PERSISTENT_VOLUMES, &given), want, "{given}");
    }
    let errors = changed(
        &PERSISTENT_VOLUMES,
        None,
        &volume(json!({"hostPath": {"path": "/x"}})),
        &volume(json!({"hostPath": {"path": "/y"}})),
    );
    assert_eq!(
        errors,
        [
            "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n\
          @@ -2,7 +2,7 @@\n  \"GCEPersistentDisk\": null,\n  \"AWSElasticBlockStore\": null,\n  \"HostPath\": {\n\
          -  \"Path\": \"/x\",\n+  \"Path\": \"/y\",\n   \"Type\": \"\"\n  },\n  \"Glusterfs\": null,\n"
        ]
    );

    let claim = |size: &str, phase: &str| {
        json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
        "status": {"phase": phase, "capacity": {"storage": "1Gi"}}})
    };
    assert_eq!(created(&PERSISTENT_VOLUME_CLAIMS, &claim("1Gi", "Pending")), [""; 0]);
    assert_eq!(
        created(
            &PERSISTENT_VOLUME_CLAIMS,
            &json!({"spec": {"accessModes": ["x"], "resources": {"requests": {"storage": "0"}}}})
        ),
        [
            "spec.accessModes: Unsupported value: \"x\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
            "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
        ]
    );
    for (case, old, new, want) in [
        ("a bound claim grows", claim("1Gi", "Bound"), claim("2Gi", "Bound"), vec![]),
        ("a bound claim shrinks below what it has", claim("2Gi", "Bound"), claim("1Gi", "Bound"), vec!["spec.resources.requests.storage: Forbidden: field can not be less than status.capacity".to_owned()]),
        ("an unbound claim changes", claim("1Gi", "Pending"), claim("2Gi", "Pending"), vec!["spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims".to_owned()]),
    ] {
        let got: Vec<String> = changed(&PERSISTENT_VOLUME_CLAIMS, None, &old, &new)
            .iter()
            .map(|line| line.lines().next().unwrap().to_owned())
            .collect();
        assert_eq!(got, want, "{case}");
    }
}

#[test]
fn pods_are_validated_by_subresource() {
    let pod = |image: &str, phase: &str| json!({"spec": {"containers": [{"name": "c", "image": image}]}, "status": {"phase": phase, "qosClass": "BestEffort"}});
    assert_eq!(created(&PODS, &pod("", "")), ["spec.containers[0].image: Required value"]);
    assert_eq!(
        changed(&PODS, None, &pod("a", ""), &pod(" b", ""))[0],
        "spec.containers[0].image: Invalid value: \" b\": must not have leading or trailing whitespace"
    );
    assert_eq!(changed(&PODS, Some("status"), &pod("a", "Pending"), &pod("a", "Running")), [""; 0]);
    assert_eq!(changed(&PODS, Some("resize"), &pod("a", ""), &pod("a", "")), [""; 0]);
    assert_eq!(changed(&PODS, Some("ephemeralcontainers"), &pod("a", ""), &pod("a", "")), [""; 0]);
}

#[test]
fn object_that_cannot_be_parsed_is_refused() {
    let good = held(&PODS, &json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}));
    let mut bad = good.clone();
    bad["spec"]["containers"][0]["securityContext"] = json!({"privileged": "maybe"});
    for (case, errors) in [
        ("created", create(&PODS, &bad)),
        ("changed", update(&PODS, None, &bad, &good)),
        ("its status", update(&PODS, Some("status"), &bad, &good)),
        ("changed from what cannot be read", update(&PODS, None, &good, &bad)),
    ] {
        let lines = lines(&errors);
        assert!(lines.iter().any(|line| line.contains("cannot be read")), "{case}: {lines:?}");
    }
    let volume = json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": ["/"]}}});
    let volume = lines(&create(&PERSISTENT_VOLUMES, &held(&PERSISTENT_VOLUMES, &volume)));
    assert!(volume.iter().any(|line| line.contains("cannot be read")), "{volume:?}");
}
