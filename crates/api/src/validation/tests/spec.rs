//! Tests of spec validation.

use serde_json::{Value, json};

use super::{check, lines, of_container, of_spec, read};
use crate::validation::create;

#[test]
fn security() {
    check(
        &[
            (
                json!({"securityContext": {"runAsUser": -1, "procMount": "Unmasked"}}),
                &[
                    "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                    "spec.containers[0].securityContext.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`",
                ],
            ),
            (
                json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}),
                &[
                    "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
                ],
            ),
            (
                json!({"securityContext": {"seccompProfile": {"type": "RuntimeDefault", "localhostProfile": "x"}}}),
                &[
                    "spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: {\"Type\":\"RuntimeDefault\",\"LocalhostProfile\":\"x\"}: can only be set when seccomp type is Localhost",
                ],
            ),
            (
                json!({"securityContext": {"appArmorProfile": {"type": "x"}}}),
                &[
                    "spec.containers[0].securityContext.appArmorProfile.type: Unsupported value: \"x\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\"",
                ],
            ),
        ],
        of_container,
    );
    check(
        &[
            (
                json!({"securityContext": {"sysctls": [{"name": "a..b", "value": ""}, {"name": "kernel.sem", "value": "1"}, {"name": "kernel.sem", "value": "2"}]}}),
                &[
                    "spec.securityContext.sysctls[0].name: Invalid value: \"a..b\": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
                    "spec.securityContext.sysctls[2].name: Duplicate value: \"kernel.sem\"",
                ],
            ),
            (
                json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net/core/somaxconn", "value": "1"}]}}),
                &[
                    "spec.securityContext.sysctls[0].name: Invalid value: \"net/core/somaxconn\": may not be specified when 'hostNetwork' is true",
                ],
            ),
            (
                json!({"securityContext": {"fsGroupChangePolicy": "x", "supplementalGroups": [1, -1]}}),
                &[
                    "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 and 2147483647, inclusive",
                    "spec.securityContext.fsGroupChangePolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnRootMismatch\"",
                ],
            ),
            (
                json!({"hostPID": true, "shareProcessNamespace": true}),
                &[
                    "spec.securityContext.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled",
                ],
            ),
            (
                json!({"hostUsers": false, "hostPID": true}),
                &["spec.HostPID: Forbidden: when `hostUsers` is false"],
            ),
            (
                json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {"runAsUserName": "a\\b\\c"}}}),
                &[
                    "spec.securityContext.windowsOptions.runAsUserName: Invalid value: \"a\\\\b\\\\c\": runAsUserName cannot contain more than one backslash",
                    "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a linux pod",
                ],
            ),
            (
                json!({"os": {"name": "plan9"}}),
                &[
                    "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
                ],
            ),
        ],
        of_spec,
    );
}

#[test]
fn names_policies_and_deadlines() {
    check(
        &[
            (
                json!({"hostname": "a.b"}),
                &["spec.hostname: Invalid value: \"a.b\": must not contain dots"],
            ),
            (
                json!({"preemptionPolicy": "x"}),
                &[
                    "spec.preemptionPolicy: Unsupported value: \"x\": supported values: \"PreemptLowerPriority\", \"Never\"",
                ],
            ),
            (
                json!({"hostAliases": [{"ip": "1.2.3", "hostnames": ["ok", "Bad"]}]}),
                &[
                    "spec.hostAliases[0].ip: Invalid value: \"1.2.3\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                    "spec.hostAliases[0].hostnames[1]: Invalid value: \"Bad\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
                ],
            ),
            (
                json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["a"]}}),
                &[
                    "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
                ],
            ),
            (
                json!({"dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "x"], "options": [{}]}}),
                &[
                    "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"2.2.2.2\",\"3.3.3.3\",\"x\"]: must not have more than 3 nameservers",
                    "spec.dnsConfig.nameservers[3]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                    "spec.dnsConfig.options[0]: Required value: must not be empty",
                ],
            ),
            (
                json!({"tolerations": [{"operator": "Equal"}, {"key": "a", "operator": "Exists", "value": "b"}, {"key": "a", "effect": "Never", "tolerationSeconds": 1}]}),
                &[
                    "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
                    "spec.tolerations[1].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
                    "spec.tolerations[2].effect: Invalid value: \"Never\": effect must be 'NoExecute' when `tolerationSeconds` is set",
                    "spec.tolerations[2].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
                ],
            ),
            (
                json!({"readinessGates": [{"conditionType": "a/b/c"}], "schedulingGates": [{"name": "g"}, {"name": "g"}]}),
                &[
                    "spec.readinessGates[0].conditionType: Invalid value: \"a/b/c\": a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                    "spec.schedulingGates[1]: Duplicate value: \"g\"",
                ],
            ),
            (
                json!({"nodeName": "n", "schedulingGates": [{"name": "g"}]}),
                &[
                    "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
                ],
            ),
            (
                json!({"hostnameOverride": "x", "setHostnameAsFQDN": true}),
                &[
                    "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
                ],
            ),
        ],
        of_spec,
    );
}

#[test]
fn affinity_and_spread() {
    let node = |requirement: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}}});
    let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    for (requirement, want) in [
        (
            json!({"key": "a", "operator": "In"}),
            format!(
                "{at}[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            ),
        ),
        (
            json!({"key": "a", "operator": "Exists", "values": ["b"]}),
            format!(
                "{at}[0].matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            ),
        ),
        (
            json!({"key": "a", "operator": "Gt"}),
            format!(
                "{at}[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
            ),
        ),
        (
            json!({"key": "a", "operator": "Is"}),
            format!(
                "{at}[0].matchExpressions[0].operator: Invalid value: \"Is\": not a valid selector operator"
            ),
        ),
    ] {
        assert_eq!(of_spec(&node(requirement)), [want]);
    }
    check(
        &[
            (
                json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 101, "preference": {}}]}}}),
                &[
                    "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 101: must be in the range 1-100",
                ],
            ),
            (
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "", "matchLabelKeys": ["a"]}]}}}),
                &[
                    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
                    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty",
                    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must be non-empty",
                    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Invalid value: \"\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
                ],
            ),
            (
                json!({"topologySpreadConstraints": [
                    {"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1},
                    {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway", "nodeTaintsPolicy": "x"}]}),
                &[
                    "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                    "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{z, ScheduleAnyway}\"",
                    "spec.topologySpreadConstraints[0].minDomains: Invalid value: 1: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
                    "spec.topologySpreadConstraints[1].nodeTaintsPolicy: Unsupported value: \"x\": supported values: \"Honor\", \"Ignore\"",
                ],
            ),
        ],
        of_spec,
    );
}

#[test]
fn annotations_the_server_reads() {
    let annotated = |annotations: Value| {
        lines(&create(&read(
            &json!({"metadata": {"name": "p", "namespace": "n", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "a"}]}}),
        )))
    };
    check(
        &[
            (
                json!({"kubernetes.io/config.mirror": "x"}),
                &[
                    "metadata.annotations[kubernetes.io/config.mirror]: Invalid value: \"x\": must set spec.nodeName if mirror pod annotation is set",
                ],
            ),
            (
                json!({"controller.kubernetes.io/pod-deletion-cost": "+1"}),
                &[
                    "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit integer",
                ],
            ),
            (
                json!({"seccomp.security.alpha.kubernetes.io/pod": "x"}),
                &[
                    "metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: \"x\": must be a valid seccomp profile",
                ],
            ),
            (
                json!({"container.apparmor.security.beta.kubernetes.io/d": "x"}),
                &[
                    "metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: \"d\": container not found",
                    "metadata.annotations[container.apparmor.security.beta.kubernetes.io/d]: Invalid value: \"x\": invalid AppArmor profile name: \"x\"",
                ],
            ),
        ],
        |annotations| annotated(annotations.clone()),
    );
}
