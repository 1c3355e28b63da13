#![allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
#![allow(clippy::indexing_slicing)]

use serde_json::json;

use super::*;

fn shown(level: Level, pod: &Value) -> String {
    details(&violations(LevelVersion::latest(level), pod))
}

fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

fn with_context(context: Value) -> Value {
    pod(json!({"containers": [{"name": "c", "securityContext": context}]}))
}

#[test]
fn baseline_refuses_what_reaches_the_host() {
    for (spec, want) in [
        (json!({"containers": [{"name": "c"}]}), ""),
        (
            json!({"hostNetwork": true, "hostPID": true}),
            "host namespaces (hostNetwork=true, hostPID=true)",
        ),
        (
            json!({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}),
            "hostPath volumes (volume \"h\")",
        ),
        (
            json!({"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
            "hostPort (container \"c\" uses hostPort 80)",
        ),
        (
            json!({"containers": [{"name": "c", "livenessProbe": {"httpGet": {"host": "127.0.0.1"}}}]}),
            "probe or lifecycle host (container \"c\" uses probe or lifecycle host \"127.0.0.1\")",
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
            "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            json!({"initContainers": [{"name": "i", "securityContext": {"privileged": true}}],
                "ephemeralContainers": [{"name": "e", "securityContext": {"privileged": true}}]}),
            "privileged (containers \"i\", \"e\" must not set securityContext.privileged=true)",
        ),
    ] {
        assert_eq!(shown(Level::Baseline, &pod(spec.clone())), want, "{spec}");
        assert_eq!(shown(Level::Privileged, &pod(spec)), "");
    }
    for (context, want) in [
        (
            json!({"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}),
            "non-default capabilities (container \"c\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            json!({"procMount": "Unmasked"}),
            "procMount (container \"c\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            json!({"seLinuxOptions": {"type": "spc_t", "user": "u", "role": "r"}}),
            "seLinuxOptions (container \"c\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may \
             not be set; role may not be set)",
        ),
    ] {
        assert_eq!(shown(Level::Baseline, &with_context(context)), want);
    }
}

#[test]
fn restricted_names_four_reasons_for_a_plain_pod() {
    let plain = pod(json!({"containers": [{"name": "c"}]}));
    assert_eq!(
        shown(Level::Restricted, &plain),
        "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false), \
         unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot \
         != true (pod or container \"c\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \
         \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
    let safe = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(shown(Level::Restricted, &with_context(safe.clone())), "");
    let mut own_users = with_context(safe);
    own_users["spec"]["containers"][0]["securityContext"]["runAsNonRoot"] = Value::Null;
    own_users["spec"]["hostUsers"] = json!(false);
    assert_eq!(shown(Level::Restricted, &own_users), "");
}

#[test]
fn restricted_replaces_checks_of_baseline() {
    let volume = pod(json!({"volumes": [{"name": "h", "hostPath": {}}, {"name": "n", "nfs": {}},
        {"name": "e", "emptyDir": {}}]}));
    assert_eq!(
        shown(Level::Restricted, &volume),
        "restricted volume types (volumes \"h\", \"n\" use restricted volume types \"hostPath\", \"nfs\")"
    );
}

#[test]
fn labels_of_a_namespace_choose_levels() {
    let policy = |labels: &[(&str, &str)]| {
        let labels: BTreeMap<String, &str> =
            labels.iter().map(|(key, value)| (format!("{PREFIX}{key}"), *value)).collect();
        let (policy, errors) = namespace_policy(|key| labels.get(key).copied(), Level::Privileged);
        let problems: Vec<String> = errors
            .into_iter()
            .map(|it| format!("{}={} {}", it.key, it.value, it.problem))
            .collect();
        (policy.enforce.to_string(), policy.warn.to_string(), problems.join("; "))
    };
    for (labels, enforce, warn, problems) in [
        (&[][..], "privileged:latest", "privileged:latest", ""),
        (&[("enforce", "baseline")], "baseline:latest", "baseline:latest", ""),
        (
            &[("enforce", "restricted"), ("enforce-version", "v1.30"), ("warn", "privileged")],
            "restricted:v1.30",
            "privileged:latest",
            "",
        ),
        (
            &[("enforce", "nope")],
            "restricted:latest",
            "privileged:latest",
            "pod-security.kubernetes.io/enforce=nope must be one of privileged, baseline, restricted",
        ),
        (
            &[("audit-version", "1.30")],
            "privileged:latest",
            "privileged:latest",
            "pod-security.kubernetes.io/audit-version=1.30 must be \"latest\" or \"v1.x\"",
        ),
    ] {
        let want = (enforce.to_owned(), warn.to_owned(), problems.to_owned());
        assert_eq!(policy(labels), want, "{labels:?}");
    }
}

#[test]
fn existing_pods_are_grouped_by_reason() {
    let host = pod(json!({"hostNetwork": true}));
    let plain = pod(json!({}));
    let level = LevelVersion::latest(Level::Baseline);
    let pods = [("b", &host), ("a", &host), ("fine", &plain)];
    assert_eq!(
        existing_pods("n", level, pods),
        [
            "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"",
            "a (and 1 other pod): host namespaces",
        ]
    );
    assert!(existing_pods("n", level, [("fine", &plain)]).is_empty());
}

#[test]
fn only_images_and_new_containers_are_significant() {
    let old = pod(json!({"containers": [{"name": "c", "image": "a"}]}));
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let mut image = old.clone();
    image["spec"]["containers"][0]["image"] = json!("b");
    let mut debugged = old.clone();
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "e", "image": "x"}]);
    for (new, want) in [(&labelled, false), (&image, true), (&debugged, true)] {
        assert_eq!(is_significant(new, &old), want, "{new}");
    }
    assert!(!is_significant(&debugged, &debugged));
}
