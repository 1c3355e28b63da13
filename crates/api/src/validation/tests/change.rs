//! Tests of changes to an existing pod.

use serde_json::{Value, json};

use super::{lines, merge, pod, read};
use crate::annotations::ANNOTATION_MIRROR;
use crate::validation::{resize, update, update_ephemeral_containers, update_status};

/// Validation errors of this change to an existing pod.
fn of_change(before: &Value, change: &Value) -> Vec<String> {
    let stored = |spec: &Value| {
        let mut pod = pod(spec);
        pod.metadata.resource_version = Some("1".to_owned());
        pod
    };
    let mut after = before.clone();
    merge(&mut after, change);
    lines(&update(&stored(&after), &stored(before)))
}

#[test]
fn only_mutable_fields_may_change() {
    let keys = |lines: Vec<String>| -> Vec<String> {
        lines.iter().map(|line| line.lines().next().unwrap().to_owned()).collect()
    };
    let immutable = format!(
        "spec: Forbidden: pod updates may not change fields other than {}",
        "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
    );
    let toleration = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let in_zone = |extra: &[&str]| {
        let expression = |key: &&str| json!({"key": key, "operator": "Exists"});
        let expressions: Vec<Value> = ["zone"].iter().chain(extra).map(expression).collect();
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}}})
    };
    let gated = |extra: Value| {
        let mut spec = json!({"schedulingGates": [{"name": "g"}]});
        merge(&mut spec, &extra);
        spec
    };
    for (case, before, change, want) in [
        ("nothing", json!({}), json!({}), vec![]),
        ("an image", json!({}), json!({"containers": [{"name": "c", "image": "a:2", "imagePullPolicy": "IfNotPresent"}]}), vec![]),
        ("another spelling", json!({"overhead": {"cpu": "1"}}), json!({"overhead": {"cpu": "1000m"}}), vec![]),
        ("a deadline comes", json!({}), json!({"activeDeadlineSeconds": 5}), vec![]),
        ("a deadline grows", json!({"activeDeadlineSeconds": 5}), json!({"activeDeadlineSeconds": 6}), vec!["spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value".to_owned()]),
        ("a deadline goes", json!({"activeDeadlineSeconds": 5}), json!({"activeDeadlineSeconds": null}), vec!["spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value".to_owned()]),
        ("a toleration comes", json!({"tolerations": [toleration("a", 1)]}), json!({"tolerations": [toleration("a", 2), toleration("b", 1)]}), vec![]),
        ("a toleration goes", json!({"tolerations": [toleration("a", 1)]}), json!({"tolerations": []}), vec!["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds".to_owned()]),
        ("the node", json!({}), json!({"nodeName": "n"}), vec![immutable.clone()]),
        ("the selector", json!({}), json!({"nodeSelector": {"a": "b"}}), vec![immutable]),
        ("the selector of a gated pod", gated(json!({})), json!({"nodeSelector": {"a": "b"}}), vec![]),
        ("a selector of a gated pod goes", gated(json!({"nodeSelector": {"a": "b"}})), json!({"nodeSelector": null}), vec!["spec.nodeSelector: Invalid value: {}: only additions to spec.nodeSelector are allowed (no mutations or deletions)".to_owned()]),
        ("affinity of a gated pod comes", gated(json!({})), in_zone(&[]), vec![]),
        ("affinity of a gated pod narrows", gated(in_zone(&[])), in_zone(&["disk"]), vec![]),
        ("affinity of a gated pod widens", gated(in_zone(&["disk"])), in_zone(&[]), vec!["spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]: Invalid value: {\"MatchExpressions\":[{\"Key\":\"zone\",\"Operator\":\"Exists\",\"Values\":null}],\"MatchFields\":null}: only additions are allowed (no mutations or deletions)".to_owned()]),
        ("a gate is removed", gated(json!({})), json!({"schedulingGates": []}), vec![]),
        ("a gate is added", json!({}), json!({"schedulingGates": [{"name": "g"}]}), vec!["spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'".to_owned()]),
    ] {
        assert_eq!(keys(of_change(&before, &change)), want, "{case}");
    }
}

#[test]
fn refused_change_is_shown_as_a_diff() {
    let shown = of_change(&json!({}), &json!({"schedulerName": "mine"}));
    let (_, diff) = shown[0].split_once(" @@\n").unwrap();
    assert_eq!(
        diff,
        "  \"Subdomain\": \"\",\n  \"SetHostnameAsFQDN\": null,\n  \"Affinity\": null,\n- \
         \"SchedulerName\": \"default-scheduler\",\n+ \"SchedulerName\": \"mine\",\n  \
         \"Tolerations\": null,\n  \"HostAliases\": null,\n  \"PriorityClassName\": \"\",\n"
    );
}

#[test]
fn finished_container_stays_terminated() {
    let state = |policy: &str, code: i32, running: bool| {
        let state = if running {
            json!({"running": {}})
        } else {
            json!({"terminated": {"exitCode": code}})
        };
        read(&json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "a"}]},
            "status": {"containerStatuses": [{"name": "c", "state": state}]}}))
    };
    for (policy, code, may) in
        [("Always", 0, true), ("OnFailure", 0, false), ("OnFailure", 1, true), ("Never", 1, false)]
    {
        let errors = update_status(&state(policy, code, true), &state(policy, code, false));
        let want: &[&str] = if may {
            &[]
        } else {
            &[
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state",
            ]
        };
        assert_eq!(lines(&errors), want, "{policy} {code}");
    }
}

#[test]
fn addresses_in_a_status() {
    let with = |status: Value| {
        read(&json!({"metadata": {"name": "p", "namespace": "n", "resourceVersion": "1"},
            "spec": {"containers": []}, "status": status}))
    };
    for (status, want) in [
        (json!({"podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}), vec![]),
        (
            json!({"podIP": "x"}),
            vec![
                "status.podIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ],
        ),
        (
            json!({"podIPs": [{"ip": "1.1.1.1"}, {"ip": "2.2.2.2"}]}),
            vec![
                "status.podIPs: Invalid value: [{\"IP\":\"1.1.1.1\"},{\"IP\":\"2.2.2.2\"}]: may specify no more than one IP for each IP family",
            ],
        ),
        (
            json!({"hostIP": "1.1.1.1", "hostIPs": [{"ip": "2.2.2.2"}]}),
            vec!["status.hostIPs[0].ip: Invalid value: \"2.2.2.2\": must be equal to `hostIP`"],
        ),
        (
            json!({"conditions": [{"type": "a b", "status": "True"}]}),
            vec![
                "status.conditions[0].Type: Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ],
        ),
        (
            json!({"qosClass": "Guaranteed"}),
            vec!["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"],
        ),
    ] {
        assert_eq!(
            lines(&update_status(&with(status.clone()), &with(json!({})))),
            want,
            "{status}"
        );
    }
}

#[test]
fn ephemeral_containers_may_only_be_added() {
    let with = |containers: Value| {
        let mut pod = pod(&json!({"ephemeralContainers": containers}));
        pod.metadata.resource_version = Some("1".to_owned());
        pod
    };
    for (containers, want) in [
        (json!([{"name": "d", "image": "a", "targetContainerName": "c"}]), vec![]),
        (
            json!([{"name": "c", "image": "a", "targetContainerName": "x"}]),
            vec![
                "spec.ephemeralContainers[0].name: Duplicate value: \"c\"",
                "spec.ephemeralContainers[0].targetContainerName: Not found: \"x\"",
            ],
        ),
        (
            json!([{"name": "d", "image": "a", "ports": [{"containerPort": 1}], "livenessProbe": {"exec": {"command": ["x"]}}, "resources": {"limits": {"cpu": "1"}}}]),
            vec![
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers[0].resources: Forbidden: cannot be set for an Ephemeral Container",
                "spec.ephemeralContainers[0].livenessProbe: Forbidden: cannot be set for an Ephemeral Container",
            ],
        ),
    ] {
        let errors = update_ephemeral_containers(&with(containers.clone()), &with(json!([])));
        assert_eq!(lines(&errors), want, "{containers}");
    }
    let changed = update_ephemeral_containers(
        &with(json!([{"name": "d", "image": "b"}])),
        &with(json!([{"name": "d", "image": "a"}])),
    );
    assert!(changed[0].message.starts_with("Forbidden: existing ephemeral containers \"d\" may not be changed\n@@ -1,6 +1,6 @@\n {\n  \"Name\": \"d\",\n- \"Image\": \"a\",\n+ \"Image\": \"b\",\n"), "{}", changed[0].message);
}

#[test]
fn resize_changes_only_cpu_and_memory() {
    let with = |container: Value| {
        let mut given = json!({"name": "c", "image": "a:1"});
        merge(&mut given, &container);
        let mut pod = pod(&json!({"containers": [given]}));
        pod.metadata.resource_version = Some("1".to_owned());
        pod
    };
    let old = with(json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}));
    for (case, container, want) in [
        ("more", json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3"}}}), vec![]),
        (
            "fewer kinds",
            json!({"resources": {"requests": {"cpu": "1"}}}),
            vec![
                "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
            ],
        ),
        (
            "another class",
            json!({}),
            vec![
                "spec: Invalid value: \"\": Pod QOS Class may not change as a result of resizing",
                "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
                "spec.containers[0].resources.limits: Forbidden: resource limits cannot be removed",
            ],
        ),
        (
            "another resource",
            json!({"resources": {"requests": {"cpu": "1", "ephemeral-storage": "1"}, "limits": {"cpu": "2"}}}),
            vec!["spec: Forbidden: only cpu and memory resources are mutable"],
        ),
        (
            "another name",
            json!({"name": "d", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}),
            vec![
                "spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize",
            ],
        ),
    ] {
        assert_eq!(lines(&resize(&with(container), &old)), want, "{case}");
    }
    let mut mirror = old;
    mirror.metadata.annotations = Some([(ANNOTATION_MIRROR.to_owned(), "x".to_owned())].into());
    assert_eq!(lines(&resize(&mirror, &mirror)), ["[]: Forbidden: static pods cannot be resized"]);
}
