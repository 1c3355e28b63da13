//! Requests sent to both servers, in order: later cases depend on objects of earlier ones.

use serde_json::{Value, json};

pub(super) const NAMESPACE: &str = "alike";

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const STEPS: &str = "application/json-patch+json";
/// Reason why most messages differ.
const WORDS: &str = "the message of the current release differs from 1.20";

pub(super) struct Case {
    pub(super) about: &'static str,
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) content_type: &'static str,
    pub(super) body: Value,
    /// Why only code and reason are compared, not the message.
    pub(super) newer_words: Option<&'static str>,
}

impl Case {
    fn new(about: &'static str, method: &'static str, path: &str, body: Value) -> Self {
        let (path, content_type) = (path.to_owned(), JSON);
        Self { about, method, path, content_type, body, newer_words: None }
    }

    pub(super) fn get(about: &'static str, path: &str) -> Self {
        Self::new(about, "GET", path, Value::Null)
    }

    pub(super) fn post(about: &'static str, path: &str, body: Value) -> Self {
        Self::new(about, "POST", path, body)
    }

    fn patch(about: &'static str, kind: &'static str, path: &str, body: Value) -> Self {
        Self { content_type: kind, ..Self::new(about, "PATCH", path, body) }
    }

    fn newer(self, why: &'static str) -> Self {
        Self { newer_words: Some(why), ..self }
    }
}

fn here(below: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/{below}")
}

fn pod(name: &str, spec: Value) -> Value {
    // Since 1.21 a token reaches a pod in another way.
    let mut whole = json!({
        "schedulerName": "none", "automountServiceAccountToken": false,
        "containers": [container(json!({}))],
    });
    merge(&mut whole, spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole})
}

fn container(more: Value) -> Value {
    let mut whole = json!({"name": "c", "image": "busybox"});
    merge(&mut whole, more);
    whole
}

fn merge(into: &mut Value, more: Value) {
    let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) else { return };
    into.extend(more);
}

/// A pod that is only created with dryRun.
fn dry_run(about: &'static str, spec: Value) -> Case {
    Case::post(about, &here("pods?dryRun=All"), pod("dry-run", spec))
}

/// Like [`dry_run`], with changes to its only container.
fn dry_run_container(about: &'static str, more: Value) -> Case {
    dry_run(about, json!({"containers": [container(more)]}))
}

pub(super) fn cases() -> Vec<Case> {
    let parts = [specs(), containers(), volumes(), objects(), changes(), lists(), endings()];
    parts.into_iter().flatten().collect()
}

fn specs() -> Vec<Case> {
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}});
    let names = |values: Value| {
        let spec = json!({"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "a", "operator": "In", "values": values}]}]});
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": spec}}})
    };
    vec![
        dry_run("a plain pod", json!({})),
        dry_run("no container", json!({"containers": []})),
        dry_run("two containers with the same name", json!({"containers": [container(json!({})), container(json!({}))]})),
        dry_run("an unknown restart policy", json!({"restartPolicy": "Perhaps"})),
        dry_run("an unknown dns policy", json!({"dnsPolicy": "Perhaps"})),
        dry_run("too many name servers", json!({"dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}})).newer(WORDS),
        dry_run("an invalid name server", json!({"dnsConfig": {"nameservers": ["dns"]}})).newer(WORDS),
        dry_run("a nameless dns option", json!({"dnsConfig": {"options": [{"value": "1"}]}})),
        dry_run("a host name with a dot", json!({"hostname": "a.b"})).newer(WORDS),
        dry_run("a subdomain with a space", json!({"subdomain": "a b"})),
        dry_run("a deadline of zero", json!({"activeDeadlineSeconds": 0})),
        dry_run("a bad node name", json!({"nodeName": "A_b"})),
        dry_run("a bad service account", json!({"serviceAccountName": "A_b"})),
        dry_run("an unknown service account", json!({"serviceAccountName": "nobody"})),
        dry_run("an unknown priority class", json!({"priorityClassName": "nobody"})),
        dry_run("a known priority class", json!({"priorityClassName": "system-node-critical"})),
        dry_run("a priority that differs from the class", json!({"priority": 7})),
        dry_run("an unknown runtime class", json!({"runtimeClassName": "nobody"})),
        dry_run("a bad node selector", json!({"nodeSelector": {"a b": "c"}})),
        dry_run("a toleration with an unknown effect", json!({"tolerations": [{"key": "a", "operator": "Exists", "effect": "Perhaps"}]})),
        dry_run("a toleration with seconds for the wrong effect", json!({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]})),
        dry_run("a toleration that exists with a value", json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]})).newer(WORDS),
        dry_run("a host alias with an invalid address", json!({"hostAliases": [{"ip": "here", "hostnames": ["a"]}]})).newer(WORDS),
        dry_run("a negative user", json!({"securityContext": {"runAsUser": -1}})),
        dry_run("an unknown sysctl name", json!({"securityContext": {"sysctls": [{"name": "A..b", "value": "1"}]}})).newer(WORDS),
        dry_run("a duplicate sysctl", json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}, {"name": "kernel.shm_rmid_forced", "value": "0"}]}})),
        dry_run("host network with a different host port", json!({"hostNetwork": true, "containers": [container(json!({"ports": [{"containerPort": 80, "hostPort": 81}]}))]})).newer(WORDS),
        dry_run("affinity without values", names(json!([]))),
        dry_run("affinity with one value", names(json!(["x"]))),
        dry_run("anti-affinity without a topology", json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}})),
        dry_run("anti-affinity", json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})),
        dry_run("a spread with a zero skew", json!({"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 0}]})),
        dry_run("an unknown preemption policy", json!({"preemptionPolicy": "Perhaps"})),
        dry_run("a readiness gate with a bad name", json!({"readinessGates": [{"conditionType": "a b"}]})),
        dry_run("an image pull secret without a name", json!({"imagePullSecrets": [{}]})),
        dry_run("shared and host process namespace", json!({"shareProcessNamespace": true, "hostPID": true})),
    ]
}

fn containers() -> Vec<Case> {
    let http = |more: Value| {
        let mut get = json!({"path": "/", "port": 80});
        merge(&mut get, more);
        json!({"httpGet": get})
    };
    let probe = |more: Value| {
        let mut probe = http(json!({}));
        merge(&mut probe, more);
        json!({"livenessProbe": probe})
    };
    vec![
        dry_run_container("a bad name", json!({"name": "A_b"})),
        dry_run_container("no name", json!({"name": ""})),
        dry_run_container("no image", json!({"image": ""})),
        dry_run_container("an image with spaces", json!({"image": " busybox "})),
        dry_run_container("an unknown pull policy", json!({"imagePullPolicy": "Perhaps"})),
        dry_run_container(
            "an unknown termination policy",
            json!({"terminationMessagePolicy": "Perhaps"}),
        )
        .newer(WORDS),
        dry_run_container("a port out of range", json!({"ports": [{"containerPort": 70000}]})),
        dry_run_container("no port", json!({"ports": [{"name": "a"}]})),
        dry_run_container(
            "a port with an unknown protocol",
            json!({"ports": [{"containerPort": 80, "protocol": "ICMP"}]}),
        ),
        dry_run_container(
            "a port with a long name",
            json!({"ports": [{"containerPort": 80, "name": "a-name-that-is-too-long"}]}),
        ),
        dry_run_container(
            "two ports with the same name",
            json!({"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]}),
        ),
        dry_run_container(
            "a duplicate host port",
            json!({"ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080}]}),
        ),
        dry_run_container("a variable without a name", json!({"env": [{"value": "1"}]})),
        dry_run_container(
            "a variable with two sources",
            json!({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        ),
        dry_run_container(
            "a variable from an unknown field",
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nothing"}}}]}),
        ),
        dry_run_container(
            "a variable from a key without an object name",
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": ""}}}]}),
        ),
        dry_run_container(
            "a variable from an unknown resource",
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.nothing"}}}]}),
        ),
        dry_run_container(
            "a request above its limit",
            json!({"resources": {"limits": {"memory": "1Mi"}, "requests": {"memory": "2Mi"}}}),
        )
        .newer(WORDS),
        dry_run_container("a negative request", json!({"resources": {"requests": {"cpu": "-1"}}})),
        dry_run_container(
            "a resource without a domain",
            json!({"resources": {"limits": {"gpu": "1"}}}),
        ),
        dry_run_container(
            "an extended resource without a limit",
            json!({"resources": {"requests": {"example.com/gpu": "1"}}}),
        ),
        dry_run_container(
            "half a device",
            json!({"resources": {"limits": {"example.com/gpu": "500m"}}}),
        )
        .newer(WORDS),
        dry_run_container(
            "limits become requests",
            json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
        ),
        dry_run_container("a probe with its defaults", probe(json!({}))),
        dry_run_container(
            "a probe without a handler",
            json!({"livenessProbe": {"periodSeconds": 1}}),
        ),
        dry_run_container(
            "a probe with a negative delay",
            probe(json!({"initialDelaySeconds": -1})),
        ),
        dry_run_container(
            "a liveness probe that must succeed twice",
            probe(json!({"successThreshold": 2})),
        ),
        dry_run_container(
            "a probe with an unknown scheme",
            json!({"livenessProbe": http(json!({"scheme": "FTP"}))}),
        ),
        dry_run_container(
            "a probe without a path",
            json!({"livenessProbe": http(json!({"path": ""}))}),
        ),
        dry_run_container(
            "a probe of port zero",
            json!({"livenessProbe": http(json!({"port": 0}))}),
        ),
        dry_run_container("a hook without a handler", json!({"lifecycle": {"preStop": {}}})),
        dry_run_container(
            "a hook with an empty command",
            json!({"lifecycle": {"postStart": {"exec": {"command": []}}}}),
        ),
        dry_run_container(
            "capabilities",
            json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}}),
        ),
        dry_run_container(
            "standard input once",
            json!({"stdin": true, "stdinOnce": true, "tty": true}),
        ),
    ]
}

fn volumes() -> Vec<Case> {
    let with = |about: &'static str, volume: Value| dry_run(about, json!({"volumes": [volume]}));
    let mounted = |about: &'static str, mount: Value| {
        dry_run(
            about,
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [container(json!({"volumeMounts": [mount]}))],
            }),
        )
    };
    vec![
        with("a volume without a source is an emptyDir", json!({"name": "v"})),
        with(
            "a volume with two sources",
            json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}),
        ),
        with("a volume with a bad name", json!({"name": "A_b", "emptyDir": {}})),
        with("a host path with ..", json!({"name": "v", "hostPath": {"path": "/a/../b"}})),
        with(
            "a host path with an unknown type",
            json!({"name": "v", "hostPath": {"path": "/a", "type": "Perhaps"}}),
        ),
        with("an empty host path", json!({"name": "v", "hostPath": {"path": ""}})),
        with("a secret without a name", json!({"name": "v", "secret": {}})),
        with(
            "a secret with a bad mode",
            json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 1000}}),
        ),
        with(
            "an item with a path of ..",
            json!({"name": "v", "configMap": {"name": "m", "items": [{"key": "k", "path": "../k"}]}}),
        ),
        with(
            "an item without a key",
            json!({"name": "v", "configMap": {"name": "m", "items": [{"path": "k"}]}}),
        ),
        with(
            "a claim without a name",
            json!({"name": "v", "persistentVolumeClaim": {"claimName": ""}}),
        ),
        with(
            "an unknown field in an emptyDir",
            json!({"name": "v", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nothing"}}]}}),
        ),
        with(
            "a token that expires too soon",
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
        ),
        with(
            "two files with the same path",
            json!({"name": "v", "projected": {"sources": [{"secret": {"name": "a", "items": [{"key": "k", "path": "p"}]}}, {"configMap": {"name": "b", "items": [{"key": "k", "path": "p"}]}}]}}),
        ),
        with(
            "an emptyDir with a negative size",
            json!({"name": "v", "emptyDir": {"sizeLimit": "-1"}}),
        ),
        dry_run(
            "two volumes with the same name",
            json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}),
        ),
        mounted("a mount of an unknown volume", json!({"name": "w", "mountPath": "/w"})),
        mounted("a mount without a path", json!({"name": "v", "mountPath": ""})),
        mounted(
            "a mount with a sub path of ..",
            json!({"name": "v", "mountPath": "/v", "subPath": "../x"}),
        ),
        mounted(
            "a mount with two sub paths",
            json!({"name": "v", "mountPath": "/v", "subPath": "a", "subPathExpr": "b"}),
        ),
        mounted(
            "a mount that propagates without privilege",
            json!({"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}),
        ),
    ]
}

fn objects() -> Vec<Case> {
    let map = |name: &str, data: Value| json!({"metadata": {"name": name}, "data": data});
    vec![
        Case::post("a config map", &here("configmaps"), map("m", json!({"a": "1"}))),
        Case::post("the same again", &here("configmaps"), map("m", json!({}))),
        Case::post(
            "a config map with a bad key",
            &here("configmaps"),
            map("n", json!({"a b": "1"})),
        ),
        Case::post("a config map with a bad name", &here("configmaps"), map("N_n", json!({}))),
        Case::post("a config map without a name", &here("configmaps"), json!({"data": {}})),
        Case::post(
            "a config map of another namespace",
            &here("configmaps"),
            json!({"metadata": {"name": "o", "namespace": "other"}}),
        ),
        Case::post("a pod posted to config maps", &here("configmaps"), pod("p", json!({}))),
        Case::post("invalid JSON", &here("configmaps"), json!("{nonsense"))
            .newer("the parser of the current release reports another offset"),
        Case::post("a list instead of a map", &here("configmaps"), map("l", json!(["a"])))
            .newer("1.20 includes a part of the body in the message"),
        Case::post(
            "in a missing namespace",
            "/api/v1/namespaces/nowhere/configmaps",
            map("m", json!({})),
        ),
        Case::post(
            "a secret",
            &here("secrets"),
            json!({"metadata": {"name": "s"}, "stringData": {"a": "b"}}),
        ),
        Case::post(
            "a secret of a type that lacks its key",
            &here("secrets"),
            json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls"}),
        ),
        Case::post(
            "a docker secret with invalid JSON",
            &here("secrets"),
            json!({"metadata": {"name": "d"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "bm8="}}),
        ),
        Case::post(
            "a service account",
            &here("serviceaccounts"),
            json!({"metadata": {"name": "robot"}}),
        )
        .newer("1.20 creates a secret for it shortly afterwards"),
        Case::post(
            "a lease",
            "/apis/coordination.k8s.io/v1/namespaces/alike/leases",
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 10}}),
        ),
        Case::post(
            "a lease with a negative duration",
            "/apis/coordination.k8s.io/v1/namespaces/alike/leases",
            json!({"metadata": {"name": "k"}, "spec": {"leaseDurationSeconds": -1}}),
        ),
        Case::post(
            "a priority class",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"metadata": {"name": "high"}, "value": 1000}),
        ),
        Case::post(
            "a priority class with a system prefix",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"metadata": {"name": "system-mine"}, "value": 1000}),
        ),
        Case::post(
            "a runtime class",
            "/apis/node.k8s.io/v1/runtimeclasses",
            json!({"metadata": {"name": "fast"}, "handler": "fast"}),
        ),
        Case::post(
            "a runtime class without a handler",
            "/apis/node.k8s.io/v1/runtimeclasses",
            json!({"metadata": {"name": "slow"}, "handler": ""}),
        )
        .newer(WORDS),
        Case::post(
            "a node",
            "/api/v1/nodes",
            json!({"metadata": {"name": "elsewhere"}, "spec": {"unschedulable": true}}),
        )
        .newer("1.20 has an admission step that taints it"),
        Case::post("a pod", &here("pods"), pod("p", json!({"nodeName": "elsewhere"}))),
        Case::post("the pod again", &here("pods"), pod("p", json!({}))),
        Case::get("the pod", &here("pods/p")),
        Case::get("nobody", &here("pods/nobody")),
        Case::get("an unknown kind", &here("things"))
            .newer("the embedded server adds what to do instead"),
        Case::get("an unknown group", "/apis/example.com/v1/things"),
    ]
}

fn changes() -> Vec<Case> {
    let stale = json!({"metadata": {"name": "m", "resourceVersion": "1"}, "data": {"a": "9"}});
    let p = here("pods/p");
    let m = here("configmaps/m");
    vec![
        Case::patch("merged", MERGE, &m, json!({"data": {"b": "2"}})),
        Case::patch("a key removed by merge", MERGE, &m, json!({"data": {"b": null}})),
        Case::patch(
            "steps",
            STEPS,
            &m,
            json!([{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/c", "value": "3"}]),
        ),
        Case::patch(
            "a JSON patch operation that does not apply",
            STEPS,
            &m,
            json!([{"op": "test", "path": "/data/a", "value": "7"}]),
        )
        .newer(WORDS),
        Case::patch("a JSON patch that is not a list", STEPS, &m, json!({})).newer(WORDS),
        Case::new("an update with an old version", "PUT", &m, stale),
        Case::new("an update with another name", "PUT", &m, json!({"metadata": {"name": "n"}})),
        Case::new(
            "an update of a missing object",
            "PUT",
            &here("configmaps/nobody"),
            json!({"metadata": {"name": "nobody", "resourceVersion": "1"}}),
        ),
        Case::patch("an unknown patch type", "application/xml", &m, json!({}))
            .newer("the current release also lists its newer types"),
        Case::patch("labels of a pod", STRATEGIC, &p, json!({"metadata": {"labels": {"a": "b"}}})),
        Case::patch("a bad label", STRATEGIC, &p, json!({"metadata": {"labels": {"a b": "b"}}})),
        Case::patch(
            "an image by its container's name",
            STRATEGIC,
            &p,
            json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}),
        ),
        Case::patch(
            "an added container",
            STRATEGIC,
            &p,
            json!({"spec": {"containers": [{"name": "d", "image": "other"}]}}),
        ),
        Case::patch("an immutable field", MERGE, &p, json!({"spec": {"hostname": "other"}}))
            .newer("the message shows the fields of its release"),
        Case::patch("another name", MERGE, &p, json!({"metadata": {"name": "q"}})),
        Case::patch(
            "another uid",
            MERGE,
            &p,
            json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}}),
        ),
        Case::patch(
            "a status through the main resource",
            MERGE,
            &p,
            json!({"status": {"phase": "Failed"}}),
        ),
        Case::patch(
            "a status through its subresource",
            MERGE,
            &here("pods/p/status"),
            json!({"status": {"phase": "Running"}}),
        ),
        Case::patch(
            "a condition",
            STRATEGIC,
            &here("pods/p/status"),
            json!({"status": {"conditions": [{"type": "x/y", "status": "True"}]}}),
        ),
        Case::patch(
            "a status of an immutable secret",
            MERGE,
            &here("secrets/s"),
            json!({"immutable": true}),
        ),
        Case::patch(
            "an immutable secret",
            MERGE,
            &here("secrets/s"),
            json!({"data": {"a": "Yw=="}}),
        ),
        Case::post(
            "a binding of a bound pod",
            &here("pods/p/binding"),
            json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "x"}}),
        ),
        Case::post(
            "a token that expires too soon",
            &here("serviceaccounts/default/token"),
            json!({"spec": {"expirationSeconds": 5}}),
        ),
        Case::post(
            "a token for a missing service account",
            &here("serviceaccounts/nobody/token"),
            json!({"spec": {}}),
        ),
        Case::post(
            "an access review",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}),
        )
        .newer("each authorizer gives its reasons"),
    ]
}

fn lists() -> Vec<Case> {
    let maps = |query: &str| here(&format!("configmaps?{query}"));
    let pods = |query: &str| here(&format!("pods?{query}"));
    vec![
        Case::get("pods by field", &pods("fieldSelector=spec.nodeName%3Delsewhere")),
        Case::get("pods of an unknown node", &pods("fieldSelector=spec.nodeName%3Dx")),
        Case::get("pods by label", &pods("labelSelector=a+in+(b,c),!d")),
        Case::get("an unknown field", &pods("fieldSelector=spec.nothing%3Dx")).newer(WORDS),
        Case::get("a bad label selector", &maps("labelSelector=a+in+b")).newer(WORDS),
        Case::get("a bad field selector", &maps("fieldSelector=a")),
        Case::get("a page with an invalid continue token", &maps("limit=1&continue=zzz")),
        Case::get("a future version", &maps("resourceVersion=999999999"))
            .newer("the message has the server's own version"),
    ]
}

fn endings() -> Vec<Case> {
    let gone = |about, path: &str, options: Value| Case::new(about, "DELETE", path, options);
    let uid = json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}});
    vec![
        gone("a wrong uid precondition", &here("configmaps/m"), uid)
            .newer("the message has both uids"),
        gone(
            "an unknown propagation",
            &here("configmaps/m"),
            json!({"propagationPolicy": "Perhaps"}),
        ),
        gone(
            "both orphanDependents and propagationPolicy",
            &here("configmaps/m"),
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        ),
        gone("a dry run", &here("configmaps/m?dryRun=All"), Value::Null),
        gone("an unknown dry run value", &here("configmaps/m?dryRun=Some"), Value::Null)
            .newer(WORDS),
        gone("a config map", &here("configmaps/m"), Value::Null),
        gone("the config map again", &here("configmaps/m"), Value::Null),
        gone("a pod, with a grace period", &here("pods/p"), json!({"gracePeriodSeconds": 20})),
        gone(
            "the pod, with a shorter grace period",
            &here("pods/p"),
            json!({"gracePeriodSeconds": 5}),
        ),
        Case::get("the terminating pod", &here("pods/p")),
        gone("the pod, immediately", &here("pods/p"), json!({"gracePeriodSeconds": 0})),
        Case::get("the deleted pod", &here("pods/p")),
        Case::new(
            "a verb that is not served",
            "POST",
            "/api/v1/namespaces/alike/pods/p",
            json!({}),
        ),
        Case::post(
            "an object that keeps its namespace",
            &here("configmaps"),
            json!({"metadata": {"name": "held", "finalizers": ["example.com/held"]}}),
        ),
        gone("the namespace", "/api/v1/namespaces/alike", Value::Null)
            .newer("a namespace has a label with its name since 1.21"),
        Case::post("late", &here("configmaps"), json!({"metadata": {"name": "late"}})),
    ]
}
