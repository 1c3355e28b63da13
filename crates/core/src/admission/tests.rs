#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use serde_json::{Value, json};

use super::*;
use crate::builders::{PodBuilder, pod};
use crate::pod::Source;

fn node() -> Node {
    let amounts = [("cpu", "2"), ("memory", "4Gi"), ("pods", "3"), ("example.com/dongle", "1")];
    Node {
        name: "node-1".into(),
        labels: [("disk", "ssd"), ("cores", "4"), ("kubernetes.io/os", "linux")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        taints: Vec::new(),
        allocatable: amounts.map(|(name, text)| (name.to_owned(), text.parse().unwrap())).into(),
        sysctls: Arc::new(AllowedSysctls::new("6.18.0", &["kernel.msg*".to_owned()])),
        apparmor: false,
        strict_groups: false,
        pressure: Pressure::default(),
        shutting_down: false,
    }
}

/// A pod with these requests.
fn requesting(name: &str, cpu: &str, memory: &str) -> PodBuilder {
    let list = json!({ "cpu": cpu, "memory": memory });
    pod(name).container_with("c", json!({ "resources": { "requests": list } }))
}

fn built(builder: PodBuilder) -> Arc<Pod> {
    Arc::new(builder.build())
}

fn set(builder: PodBuilder, field: &str, value: Value) -> PodBuilder {
    builder.edit(|pod| pod["spec"][field] = value)
}

fn reason(verdict: &AdmissionDecision) -> &str {
    match verdict {
        AdmissionDecision::Admitted => "",
        AdmissionDecision::AfterPreemption { .. } => "preempts",
        AdmissionDecision::Rejected(rejection) => &rejection.reason,
    }
}

#[test]
fn pod_that_does_not_fit_is_rejected_with_the_missing_resource() {
    let there = [built(requesting("a", "1500m", "1Gi"))];
    for (case, wanted, want) in [
        ("fits", requesting("p", "500m", "1Gi"), None),
        (
            "cpu",
            requesting("p", "501m", "1Gi"),
            Some(("OutOfcpu", "cpu, requested: 501, used: 1500, capacity: 2000")),
        ),
        (
            "memory",
            requesting("p", "0", "4Gi"),
            Some((
                "OutOfmemory",
                "memory, requested: 4294967296, used: 1073741824, capacity: 4294967296",
            )),
        ),
        (
            "a native resource the node lacks",
            requesting("p", "0", "0").container_with(
                "d",
                json!({ "resources": { "requests": { "hugepages-2Mi": "2Mi" } } }),
            ),
            Some(("OutOfhugepages-2Mi", "hugepages-2Mi, requested: 2097152, used: 0, capacity: 0")),
        ),
        (
            "a resource the node lists",
            pod("p").container_with(
                "d",
                json!({ "resources": { "requests": { "example.com/dongle": "2" } } }),
            ),
            Some((
                "OutOfexample.com/dongle",
                "example.com/dongle, requested: 2, used: 0, capacity: 1",
            )),
        ),
        (
            "a resource the node does not list",
            pod("p").container_with(
                "d",
                json!({ "resources": { "requests": { "example.com/other": "2" } } }),
            ),
            None,
        ),
    ] {
        let verdict = admit(&wanted.build(), &there, &node());
        match want {
            None => assert_eq!(verdict, AdmissionDecision::Admitted, "{case}"),
            Some((reason, numbers)) => {
                let message = format!("Node didn't have enough resource: {numbers}");
                let want = Rejection { reason: reason.into(), message };
                assert_eq!(verdict, AdmissionDecision::Rejected(want), "{case}");
            }
        }
    }
}

#[test]
fn pod_that_requests_nothing_is_admitted_to_an_overcommitted_node() {
    let there = [built(requesting("a", "3", "5Gi"))];
    let verdict = admit(&pod("p").container("c").build(), &there, &node());
    assert_eq!(verdict, AdmissionDecision::Admitted);
}

#[test]
fn pods_are_counted_and_a_pod_is_not_counted_twice() {
    let there: Vec<_> = ["a", "b", "c"].map(|name| built(pod(name).container("c"))).into();
    let again = admit(&there[0], &there, &node());
    assert_eq!(again, AdmissionDecision::Admitted);
    let one_more = admit(&pod("d").container("c").build(), &there, &node());
    let message = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
    assert_eq!(one_more, AdmissionDecision::Rejected(Rejection::new("OutOfpods", message)));
}

#[test]
fn node_must_match_selector_affinity_and_name() {
    let terms = |terms: Value| {
        json!({ "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        } })
    };
    let expression = |key: &str, operator: &str, values: &[&str]| {
        terms(
            json!([{ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }]),
        )
    };
    for (case, field, value, want) in [
        ("selected", "nodeSelector", json!({ "disk": "ssd" }), ""),
        ("not selected", "nodeSelector", json!({ "disk": "hdd" }), "NodeAffinity"),
        ("in", "affinity", expression("disk", "In", &["hdd", "ssd"]), ""),
        ("not in", "affinity", expression("disk", "NotIn", &["ssd"]), "NodeAffinity"),
        ("not in, and not there", "affinity", expression("no", "NotIn", &["x"]), ""),
        ("there", "affinity", expression("disk", "Exists", &[]), ""),
        ("absent", "affinity", expression("disk", "DoesNotExist", &[]), "NodeAffinity"),
        ("greater", "affinity", expression("cores", "Gt", &["3"]), ""),
        ("less", "affinity", expression("cores", "Lt", &["4"]), "NodeAffinity"),
        ("no number", "affinity", expression("disk", "Gt", &["3"]), "NodeAffinity"),
        ("an empty term matches no node", "affinity", terms(json!([{}])), "NodeAffinity"),
        ("no term at all", "affinity", terms(json!([])), "NodeAffinity"),
        (
            "by name",
            "affinity",
            terms(json!([{ "matchFields": [
                { "key": "metadata.name", "operator": "In", "values": ["node-1"] },
            ] }])),
            "",
        ),
        ("the wrong name", "nodeName", json!("node-2"), "NodeName"),
        ("our name", "nodeName", json!("node-1"), ""),
        ("another system", "os", json!({ "name": "windows" }), "PodOSNotSupported"),
    ] {
        let pod = set(pod("p").container("c"), field, value).build();
        assert_eq!(reason(&admit(&pod, &[], &node())), want, "{case}");
    }
}

#[test]
fn os_label_of_another_system_is_rejected() {
    let other = pod("p").container("c").edit(|pod| {
        pod["metadata"]["labels"] = json!({ "kubernetes.io/os": "windows" });
    });
    let verdict = admit(&other.build(), &[], &node());
    assert_eq!(reason(&verdict), "PodOSSelectorNodeLabelDoesNotMatch");
}

#[test]
fn two_pods_cannot_have_the_same_host_port() {
    let with = |name: &str, port: Value| pod(name).container_with("c", json!({ "ports": [port] }));
    let there = [built(with("a", json!({ "hostPort": 80, "hostIP": "10.0.0.1" })))];
    for (case, port, want) in [
        ("the same", json!({ "hostPort": 80, "hostIP": "10.0.0.1" }), "NodePorts"),
        ("every address", json!({ "hostPort": 80 }), "NodePorts"),
        ("another address", json!({ "hostPort": 80, "hostIP": "10.0.0.2" }), ""),
        ("another protocol", json!({ "hostPort": 80, "protocol": "UDP" }), ""),
        ("another port", json!({ "hostPort": 81 }), ""),
        ("not of the node", json!({ "containerPort": 80 }), ""),
    ] {
        let verdict = admit(&with("p", port).build(), &there, &node());
        assert_eq!(reason(&verdict), want, "{case}");
    }
}

#[test]
fn no_execute_taint_rejects_pods_except_static_ones() {
    let tainted = Node {
        taints: vec![
            v1::Taint { key: "soft".into(), effect: "NoSchedule".into(), ..Default::default() },
            v1::Taint {
                key: "dedicated".into(),
                value: Some("db".into()),
                effect: "NoExecute".into(),
                ..Default::default()
            },
        ],
        ..node()
    };
    for (case, toleration, want) in [
        ("none", json!([]), "TaintToleration"),
        ("everything", json!([{ "operator": "Exists" }]), ""),
        ("this one", json!([{ "key": "dedicated", "value": "db", "effect": "NoExecute" }]), ""),
        ("another value", json!([{ "key": "dedicated", "value": "x" }]), "TaintToleration"),
        (
            "another effect",
            json!([{ "key": "dedicated", "operator": "Exists", "effect": "NoSchedule" }]),
            "TaintToleration",
        ),
    ] {
        let pod = set(pod("p").container("c"), "tolerations", toleration);
        assert_eq!(reason(&admit(&pod.clone().build(), &[], &tainted)), want, "{case}");
        let fixed = pod.build_from(Source::File);
        assert_eq!(admit(&fixed, &[], &tainted), AdmissionDecision::Admitted, "{case}, static");
    }
}

#[test]
fn only_safe_or_allowed_sysctls_are_admitted() {
    let with = |name: &str| {
        let sysctls = json!({ "sysctls": [{ "name": name, "value": "1" }] });
        set(pod("p").container("c"), "securityContext", sysctls)
    };
    let port = "net.ipv4.ip_unprivileged_port_start";
    for (case, pod, want) in [
        ("safe", with(port), None),
        ("safe, in the other spelling", with("net/ipv4/ip_unprivileged_port_start"), None),
        (
            "safe, but the network is the node's",
            with(port).host_network(),
            Some("\"net.ipv4.ip_unprivileged_port_start\" not allowed with host net enabled"),
        ),
        ("allowed by the administrator", with("kernel.msgmax"), None),
        (
            "allowed, but it is the node's",
            set(with("kernel.msgmax"), "hostIPC", json!(true)),
            Some("\"kernel.msgmax\" not allowed with host ipc enabled"),
        ),
        ("neither", with("vm.swappiness"), Some("\"vm.swappiness\" not allowlisted")),
    ] {
        let want =
            want.map(|why| Rejection::new("SysctlForbidden", format!("forbidden sysctl: {why}")));
        let verdict = admit(&pod.build(), &[], &node());
        assert_eq!(
            verdict,
            want.map_or(AdmissionDecision::Admitted, AdmissionDecision::Rejected),
            "{case}"
        );
    }
    let old = AllowedSysctls::new("4.14.9", &[]);
    assert!(old.objection("net.ipv4.tcp_rmem", false, false).is_some(), "too new for the kernel");
    assert!(old.objection("net.ipv4.tcp_fin_timeout", false, false).is_none());
}

#[test]
fn pod_with_apparmor_is_rejected_without_apparmor() {
    let profile = |kind: &str| json!({ "appArmorProfile": { "type": kind } });
    for (case, pod, want) in [
        ("none", pod("p").container("c"), ""),
        (
            "asked for",
            set(pod("p").container("c"), "securityContext", profile("RuntimeDefault")),
            "AppArmor",
        ),
        ("not wanted", set(pod("p").container("c"), "securityContext", profile("Unconfined")), ""),
        (
            "by annotation",
            pod("p")
                .container("c")
                .edit(|pod| pod["metadata"]["annotations"] = json!({}))
                .annotation("container.apparmor.security.beta.kubernetes.io/c", "runtime/default"),
            "AppArmor",
        ),
        (
            "already running",
            set(pod("p").container("c"), "securityContext", profile("RuntimeDefault"))
                .phase("Running"),
            "",
        ),
    ] {
        let pod = pod.build();
        assert_eq!(reason(&admit(&pod, &[], &node())), want, "{case}");
        let able = Node { apparmor: true, ..node() };
        assert_eq!(
            admit(&pod, &[], &able),
            AdmissionDecision::Admitted,
            "{case}, on a host that can"
        );
    }
}

#[test]
fn node_under_pressure_admits_only_critical_or_tolerated_pods() {
    let under = |memory, disk| Node { pressure: Pressure { memory, disk, pids: false }, ..node() };
    let best_effort = || pod("p").container("c");
    let tolerant = set(
        best_effort(),
        "tolerations",
        json!([{ "key": "node.kubernetes.io/memory-pressure", "operator": "Exists" }]),
    );
    for (case, pod, node, want) in [
        ("memory, best effort", best_effort(), under(true, false), "Evicted"),
        ("memory, with a request", requesting("p", "1", "1Gi"), under(true, false), ""),
        ("memory, tolerated", tolerant, under(true, false), ""),
        ("disk", requesting("p", "1", "1Gi"), under(false, true), "Evicted"),
        (
            "disk, critical",
            set(best_effort(), "priority", json!(SYSTEM_CRITICAL)),
            under(false, true),
            "",
        ),
    ] {
        assert_eq!(reason(&admit(&pod.build(), &[], &node)), want, "{case}");
    }
    let AdmissionDecision::Rejected(both) = admit(&best_effort().build(), &[], &under(true, true))
    else {
        panic!("expected a rejection")
    };
    assert_eq!(both.message, "The node had condition: [MemoryPressure DiskPressure]. ");
}

#[test]
fn node_that_shuts_down_rejects_pods() {
    let node = Node { shutting_down: true, ..node() };
    assert_eq!(reason(&admit(&pod("p").container("c").build(), &[], &node)), "NodeShutdown");
}

#[test]
fn pods_are_preempted_for_a_critical_pod() {
    let guaranteed = |name: &str, cpu: &str| {
        let list = json!({ "cpu": cpu, "memory": "1Mi" });
        built(
            pod(name)
                .container_with("c", json!({ "resources": { "requests": list, "limits": list } })),
        )
    };
    let burstable = |name: &str, cpu: &str| built(requesting(name, cpu, "1Mi"));
    let critical =
        |cpu: &str| set(requesting("p", cpu, "1Mi"), "priority", json!(SYSTEM_CRITICAL)).build();
    let roomy = || {
        let mut node = node();
        node.allocatable.insert("pods".into(), "100".parse().unwrap());
        node
    };
    let victims = |pod: &Pod, there: &[Arc<Pod>], node: &Node| match admit(pod, there, node) {
        AdmissionDecision::AfterPreemption { victims, .. } => {
            victims.iter().map(ToString::to_string).collect()
        }
        other => vec![format!("{other:?}")],
    };
    let there = [guaranteed("g", "1"), burstable("b1", "300m"), burstable("b2", "600m")];
    for (case, cpu, want) in [
        ("the nearest of the cheaper class", "600m", vec!["uid-b2"]),
        ("a small lack is met by the smaller one", "300m", vec!["uid-b1"]),
        ("all of the cheaper class", "1", vec!["uid-b2", "uid-b1"]),
        ("and of the dearer one", "1900m", vec!["uid-b2", "uid-b1", "uid-g"]),
    ] {
        assert_eq!(victims(&critical(cpu), &there, &roomy()), want, "{case}");
    }
    // Too many pods: a best-effort one is preempted first.
    let full = [there[0].clone(), built(pod("be").container("c")), there[1].clone()];
    assert_eq!(victims(&critical("1m"), &full, &node()), ["uid-be"]);
    // No pod is preempted for a non-critical pod, nor a critical one for another critical one.
    assert_eq!(reason(&admit(&requesting("p", "600m", "0").build(), &there, &roomy())), "OutOfcpu");
    let equals = [built(set(requesting("c", "2", "1Mi"), "priority", json!(SYSTEM_CRITICAL)))];
    let AdmissionDecision::Rejected(stuck) = admit(&critical("1"), &equals, &roomy()) else {
        panic!("expected a rejection")
    };
    assert_eq!(stuck.reason, "UnexpectedAdmissionError");
    assert!(stuck.message.ends_with("[(res: cpu, q: 1000)]"), "{}", stuck.message);
}

#[test]
fn critical_pod_that_fails_another_predicate_preempts_no_pod() {
    let there = [built(requesting("a", "2", "1Gi"))];
    let critical = set(requesting("p", "1", "1Gi"), "priority", json!(SYSTEM_CRITICAL));
    let elsewhere = set(critical, "nodeSelector", json!({ "disk": "hdd" })).build();
    assert_eq!(reason(&admit(&elsewhere, &there, &node())), "NodeAffinity");
}

#[test]
fn active_pods_are_listed_only_to_preempt() {
    let there: Vec<_> = [requesting("a", "1", "1Gi"), requesting("b", "500m", "1Gi")]
        .map(|pod| {
            built(pod.edit(|pod| {
                let port = json!([{ "containerPort": 1, "hostPort": 80 }]);
                pod["spec"]["containers"][0]["ports"] = port;
            }))
        })
        .into();
    let mut usage = ActiveUsage::default();
    for pod in &there {
        usage.set(pod);
    }
    let with_port = |builder: PodBuilder| {
        let port = json!([{ "containerPort": 1, "hostPort": 80 }]);
        builder.edit(|pod| pod["spec"]["containers"][0]["ports"] = port)
    };
    let critical = |cpu: &str| set(requesting("p", cpu, "1Mi"), "priority", json!(SYSTEM_CRITICAL));
    for (case, pod, lists) in [
        ("fits", requesting("p", "500m", "1Mi"), 0),
        ("too large", requesting("p", "501m", "1Mi"), 0),
        ("taken port", with_port(requesting("p", "1m", "1Mi")), 0),
        ("next version of an active pod", requesting("a", "1500m", "1Mi"), 0),
        ("critical, fits", critical("500m"), 0),
        ("critical, preempts", critical("501m"), 1),
        ("critical, cannot preempt", critical("3"), 1),
    ] {
        let pod = pod.build();
        let listed = std::cell::Cell::new(0);
        let list = || {
            listed.set(listed.get() + 1);
            there.clone()
        };
        let active = ActivePods { usage: &usage, list: &list, more: &[] };
        let decision = admit_beside(&pod, active, &node());
        assert_eq!(decision, admit(&pod, &there, &node()), "{case}");
        assert_eq!(listed.get(), lists, "{case}");
        // One of them waits for preempted pods to end: it holds its resources too.
        let mut first = ActiveUsage::default();
        first.set(&there[0]);
        let list = || vec![there[0].clone()];
        let active = ActivePods { usage: &first, list: &list, more: &there[1..] };
        assert_eq!(admit_beside(&pod, active, &node()), decision, "{case}, partly waiting");
    }
}

#[test]
fn metric_reasons_are_a_fixed_set() {
    for (reason, counted) in [
        ("OutOfcpu", "OutOfcpu"),
        ("NodePorts", "NodePorts"),
        ("OutOfexample.com/anything", "OutOfExtendedResources"),
        ("SomethingElse", "Other"),
    ] {
        assert_eq!(Rejection::new(reason, "").counted_as(), counted);
    }
}

#[test]
fn unreadable_pod_is_rejected_with_the_reason() {
    let nameless = pod("p").container("").build();
    let AdmissionDecision::Rejected(rejection) = admit(&nameless, &[], &node()) else {
        panic!("unreadable pod was admitted");
    };
    assert_eq!((rejection.reason.as_str(), rejection.counted_as()), ("FailedValidation", "Other"));
    let want = "pod default/p: spec.containers has a container without a name; this version of \
                podwright cannot run this pod";
    assert_eq!(rejection.message, want);
}

#[test]
fn strict_supplemental_groups_are_admitted_only_where_the_runtime_supports_them() {
    let strict = json!({ "supplementalGroupsPolicy": "Strict" });
    let pod = built(set(requesting("p", "1", "1Gi"), "securityContext", strict));
    for (supported, want) in [(false, "SupplementalGroupsPolicyNotSupported"), (true, "")] {
        let node = Node { strict_groups: supported, ..node() };
        assert_eq!(reason(&admit(&pod, &[], &node)), want, "supported: {supported}");
    }
}
