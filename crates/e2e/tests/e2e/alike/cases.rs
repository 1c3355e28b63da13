//! What both servers are asked, in order: later cases find what earlier ones left.

use serde_json::{Value, json};

pub(super) const NAMESPACE: &str = "alike";

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const STEPS: &str = "application/json-patch+json";
/// Why most words differ.
const WORDS: &str = "the current release words it otherwise than 1.20";

pub(super) struct Case {
    pub(super) about: &'static str,
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) content_type: &'static str,
    pub(super) body: Value,
    /// Why the words are not compared, only code and reason.
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
    // A token comes to a pod in another way since 1.21.
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

/// A pod that is tried and never kept.
fn tried(about: &'static str, spec: Value) -> Case {
    Case::post(about, &here("pods?dryRun=All"), pod("tried", spec))
}

/// The same with something about its only container.
fn tried_container(about: &'static str, more: Value) -> Case {
    tried(about, json!({"containers": [container(more)]}))
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
        tried("a plain pod", json!({})),
        tried("no container", json!({"containers": []})),
        tried("two containers of a name", json!({"containers": [container(json!({})), container(json!({}))]})),
        tried("an unknown restart policy", json!({"restartPolicy": "Perhaps"})),
        tried("an unknown dns policy", json!({"dnsPolicy": "Perhaps"})),
        tried("too many name servers", json!({"dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"]}})).newer(WORDS),
        tried("a name server that is none", json!({"dnsConfig": {"nameservers": ["dns"]}})).newer(WORDS),
        tried("a nameless dns option", json!({"dnsConfig": {"options": [{"value": "1"}]}})),
        tried("a host name with a dot", json!({"hostname": "a.b"})).newer(WORDS),
        tried("a subdomain with a blank", json!({"subdomain": "a b"})),
        tried("a deadline of nothing", json!({"activeDeadlineSeconds": 0})),
        tried("a bad node name", json!({"nodeName": "A_b"})),
        tried("a bad service account", json!({"serviceAccountName": "A_b"})),
        tried("an unknown service account", json!({"serviceAccountName": "nobody"})),
        tried("an unknown priority class", json!({"priorityClassName": "nobody"})),
        tried("a known priority class", json!({"priorityClassName": "system-node-critical"})),
        tried("a priority that is not the class's", json!({"priority": 7})),
        tried("an unknown runtime class", json!({"runtimeClassName": "nobody"})),
        tried("a bad node selector", json!({"nodeSelector": {"a b": "c"}})),
        tried("a toleration of another effect", json!({"tolerations": [{"key": "a", "operator": "Exists", "effect": "Perhaps"}]})),
        tried("a toleration with seconds for another effect", json!({"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]})),
        tried("a toleration that exists with a value", json!({"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]})).newer(WORDS),
        tried("a host alias without an address", json!({"hostAliases": [{"ip": "here", "hostnames": ["a"]}]})).newer(WORDS),
        tried("a negative user", json!({"securityContext": {"runAsUser": -1}})),
        tried("an unknown sysctl name", json!({"securityContext": {"sysctls": [{"name": "A..b", "value": "1"}]}})).newer(WORDS),
        tried("a sysctl twice", json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}, {"name": "kernel.shm_rmid_forced", "value": "0"}]}})),
        tried("host network without its port", json!({"hostNetwork": true, "containers": [container(json!({"ports": [{"containerPort": 80, "hostPort": 81}]}))]})).newer(WORDS),
        tried("affinity for nothing", names(json!([]))),
        tried("affinity for one", names(json!(["x"]))),
        tried("anti-affinity without a topology", json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}})),
        tried("anti-affinity", json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})),
        tried("a spread without a skew", json!({"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 0}]})),
        tried("an unknown preemption policy", json!({"preemptionPolicy": "Perhaps"})),
        tried("a readiness gate with a bad name", json!({"readinessGates": [{"conditionType": "a b"}]})),
        tried("an image pull secret without a name", json!({"imagePullSecrets": [{}]})),
        tried("shared and host processes", json!({"shareProcessNamespace": true, "hostPID": true})),
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
        tried_container("a bad name", json!({"name": "A_b"})),
        tried_container("no name", json!({"name": ""})),
        tried_container("no image", json!({"image": ""})),
        tried_container("an image with blanks", json!({"image": " busybox "})),
        tried_container("an unknown pull policy", json!({"imagePullPolicy": "Perhaps"})),
        tried_container(
            "an unknown termination policy",
            json!({"terminationMessagePolicy": "Perhaps"}),
        )
        .newer(WORDS),
        tried_container("a port out of range", json!({"ports": [{"containerPort": 70000}]})),
        tried_container("no port", json!({"ports": [{"name": "a"}]})),
        tried_container(
            "a port of an unknown protocol",
            json!({"ports": [{"containerPort": 80, "protocol": "ICMP"}]}),
        ),
        tried_container(
            "a port with a long name",
            json!({"ports": [{"containerPort": 80, "name": "a-name-that-is-too-long"}]}),
        ),
        tried_container(
            "two ports of a name",
            json!({"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]}),
        ),
        tried_container(
            "one host port twice",
            json!({"ports": [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080}]}),
        ),
        tried_container("a variable without a name", json!({"env": [{"value": "1"}]})),
        tried_container(
            "a variable with two sources",
            json!({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        ),
        tried_container(
            "a variable of an unknown field",
            json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nothing"}}}]}),
        ),
        tried_container(
            "a variable of a key without a name",
            json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": ""}}}]}),
        ),
        tried_container(
            "a variable of an unknown resource",
            json!({"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.nothing"}}}]}),
        ),
        tried_container(
            "more asked for than allowed",
            json!({"resources": {"limits": {"memory": "1Mi"}, "requests": {"memory": "2Mi"}}}),
        )
        .newer(WORDS),
        tried_container("a negative request", json!({"resources": {"requests": {"cpu": "-1"}}})),
        tried_container(
            "a resource without a domain",
            json!({"resources": {"limits": {"gpu": "1"}}}),
        ),
        tried_container(
            "a resource of somebody's without a limit",
            json!({"resources": {"requests": {"example.com/gpu": "1"}}}),
        ),
        tried_container(
            "half a device",
            json!({"resources": {"limits": {"example.com/gpu": "500m"}}}),
        )
        .newer(WORDS),
        tried_container(
            "limits become requests",
            json!({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
        ),
        tried_container("a probe with its defaults", probe(json!({}))),
        tried_container(
            "a probe without a handler",
            json!({"livenessProbe": {"periodSeconds": 1}}),
        ),
        tried_container("a probe of a negative delay", probe(json!({"initialDelaySeconds": -1}))),
        tried_container(
            "a liveness probe that must succeed twice",
            probe(json!({"successThreshold": 2})),
        ),
        tried_container(
            "a probe of an unknown scheme",
            json!({"livenessProbe": http(json!({"scheme": "FTP"}))}),
        ),
        tried_container(
            "a probe without a path",
            json!({"livenessProbe": http(json!({"path": ""}))}),
        ),
        tried_container(
            "a probe of port nought",
            json!({"livenessProbe": http(json!({"port": 0}))}),
        ),
        tried_container("a hook without a handler", json!({"lifecycle": {"preStop": {}}})),
        tried_container(
            "a hook of no command",
            json!({"lifecycle": {"postStart": {"exec": {"command": []}}}}),
        ),
        tried_container(
            "capabilities",
            json!({"securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}}),
        ),
        tried_container(
            "standard input once",
            json!({"stdin": true, "stdinOnce": true, "tty": true}),
        ),
    ]
}

fn volumes() -> Vec<Case> {
    let with = |about: &'static str, volume: Value| tried(about, json!({"volumes": [volume]}));
    let mounted = |about: &'static str, mount: Value| {
        tried(
            about,
            json!({
                "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [container(json!({"volumeMounts": [mount]}))],
            }),
        )
    };
    vec![
        with("a volume of nothing is an empty folder", json!({"name": "v"})),
        with(
            "a volume of two things",
            json!({"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}),
        ),
        with("a volume with a bad name", json!({"name": "A_b", "emptyDir": {}})),
        with("a host path that goes up", json!({"name": "v", "hostPath": {"path": "/a/../b"}})),
        with(
            "a host path of an unknown type",
            json!({"name": "v", "hostPath": {"path": "/a", "type": "Perhaps"}}),
        ),
        with("a host path of nothing", json!({"name": "v", "hostPath": {"path": ""}})),
        with("a secret without a name", json!({"name": "v", "secret": {}})),
        with(
            "a secret with a bad mode",
            json!({"name": "v", "secret": {"secretName": "s", "defaultMode": 1000}}),
        ),
        with(
            "an item that goes up",
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
            "an unknown field in a folder",
            json!({"name": "v", "downwardAPI": {"items": [{"path": "a", "fieldRef": {"fieldPath": "spec.nothing"}}]}}),
        ),
        with(
            "a token that ends too soon",
            json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
        ),
        with(
            "two files of a path",
            json!({"name": "v", "projected": {"sources": [{"secret": {"name": "a", "items": [{"key": "k", "path": "p"}]}}, {"configMap": {"name": "b", "items": [{"key": "k", "path": "p"}]}}]}}),
        ),
        with(
            "an empty folder of a negative size",
            json!({"name": "v", "emptyDir": {"sizeLimit": "-1"}}),
        ),
        tried(
            "two volumes of a name",
            json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]}),
        ),
        mounted("a mount of nothing", json!({"name": "w", "mountPath": "/w"})),
        mounted("a mount without a path", json!({"name": "v", "mountPath": ""})),
        mounted(
            "a mount with a sub path that goes up",
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
        Case::post("a pod where config maps are", &here("configmaps"), pod("p", json!({}))),
        Case::post("no JSON", &here("configmaps"), json!("{nonsense"))
            .newer("the parser of the current release counts otherwise"),
        Case::post("a list where a map is", &here("configmaps"), map("l", json!(["a"])))
            .newer("1.20 puts a part of the body into the message"),
        Case::post(
            "in a namespace that is not there",
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
            "a docker secret that is no JSON",
            &here("secrets"),
            json!({"metadata": {"name": "d"}, "type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "bm8="}}),
        ),
        Case::post(
            "a service account",
            &here("serviceaccounts"),
            json!({"metadata": {"name": "robot"}}),
        )
        .newer("1.20 makes a secret for it a moment later"),
        Case::post(
            "a lease",
            "/apis/coordination.k8s.io/v1/namespaces/alike/leases",
            json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 10}}),
        ),
        Case::post(
            "a lease of a negative time",
            "/apis/coordination.k8s.io/v1/namespaces/alike/leases",
            json!({"metadata": {"name": "k"}, "spec": {"leaseDurationSeconds": -1}}),
        ),
        Case::post(
            "a priority class",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            json!({"metadata": {"name": "high"}, "value": 1000}),
        ),
        Case::post(
            "a priority class of the system's",
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
        Case::get("an unknown kind", &here("things")).newer("ours says what to do instead"),
        Case::get("an unknown group", "/apis/example.com/v1/things"),
    ]
}

fn changes() -> Vec<Case> {
    let stale = json!({"metadata": {"name": "m", "resourceVersion": "1"}, "data": {"a": "9"}});
    let p = here("pods/p");
    let m = here("configmaps/m");
    vec![
        Case::patch("merged", MERGE, &m, json!({"data": {"b": "2"}})),
        Case::patch("merged away", MERGE, &m, json!({"data": {"b": null}})),
        Case::patch(
            "steps",
            STEPS,
            &m,
            json!([{"op": "test", "path": "/data/a", "value": "1"}, {"op": "add", "path": "/data/c", "value": "3"}]),
        ),
        Case::patch(
            "a step that does not fit",
            STEPS,
            &m,
            json!([{"op": "test", "path": "/data/a", "value": "7"}]),
        )
        .newer(WORDS),
        Case::patch("steps that are no list", STEPS, &m, json!({})).newer(WORDS),
        Case::new("an update from the past", "PUT", &m, stale),
        Case::new("an update of another name", "PUT", &m, json!({"metadata": {"name": "n"}})),
        Case::new(
            "an update of nobody",
            "PUT",
            &here("configmaps/nobody"),
            json!({"metadata": {"name": "nobody", "resourceVersion": "1"}}),
        ),
        Case::patch("an unknown kind of patch", "application/xml", &m, json!({}))
            .newer("the current release also lists its newer kinds"),
        Case::patch("labels of a pod", STRATEGIC, &p, json!({"metadata": {"labels": {"a": "b"}}})),
        Case::patch("a bad label", STRATEGIC, &p, json!({"metadata": {"labels": {"a b": "b"}}})),
        Case::patch(
            "an image by its container's name",
            STRATEGIC,
            &p,
            json!({"spec": {"containers": [{"name": "c", "image": "other"}]}}),
        ),
        Case::patch(
            "a container more",
            STRATEGIC,
            &p,
            json!({"spec": {"containers": [{"name": "d", "image": "other"}]}}),
        ),
        Case::patch("what cannot change", MERGE, &p, json!({"spec": {"hostname": "other"}}))
            .newer("the message shows the fields of its release"),
        Case::patch("another name", MERGE, &p, json!({"metadata": {"name": "q"}})),
        Case::patch(
            "another uid",
            MERGE,
            &p,
            json!({"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}}),
        ),
        Case::patch(
            "a status by the front door",
            MERGE,
            &p,
            json!({"status": {"phase": "Failed"}}),
        ),
        Case::patch(
            "a status by its own",
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
            "a binding of what is bound",
            &here("pods/p/binding"),
            json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "x"}}),
        ),
        Case::post(
            "a token that ends too soon",
            &here("serviceaccounts/default/token"),
            json!({"spec": {"expirationSeconds": 5}}),
        ),
        Case::post(
            "a token for nobody",
            &here("serviceaccounts/nobody/token"),
            json!({"spec": {}}),
        ),
        Case::post(
            "may I",
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
        Case::get("pods of nobody", &pods("fieldSelector=spec.nodeName%3Dx")),
        Case::get("pods by label", &pods("labelSelector=a+in+(b,c),!d")),
        Case::get("an unknown field", &pods("fieldSelector=spec.nothing%3Dx")).newer(WORDS),
        Case::get("a bad label selector", &maps("labelSelector=a+in+b")).newer(WORDS),
        Case::get("a bad field selector", &maps("fieldSelector=a")),
        Case::get("a page that goes on nowhere", &maps("limit=1&continue=zzz")),
        Case::get("a version of the future", &maps("resourceVersion=999999999"))
            .newer("the message has the server's own version"),
    ]
}

fn endings() -> Vec<Case> {
    let gone = |about, path: &str, options: Value| Case::new(about, "DELETE", path, options);
    let uid = json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}});
    vec![
        gone("a uid that is not its own", &here("configmaps/m"), uid)
            .newer("the message has both uids"),
        gone(
            "an unknown propagation",
            &here("configmaps/m"),
            json!({"propagationPolicy": "Perhaps"}),
        ),
        gone(
            "both ways to say what follows",
            &here("configmaps/m"),
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
        ),
        gone("only tried", &here("configmaps/m?dryRun=All"), Value::Null),
        gone("tried by another word", &here("configmaps/m?dryRun=Some"), Value::Null).newer(WORDS),
        gone("a config map", &here("configmaps/m"), Value::Null),
        gone("the config map again", &here("configmaps/m"), Value::Null),
        gone("a pod, with its time", &here("pods/p"), json!({"gracePeriodSeconds": 20})),
        gone("the pod, with less", &here("pods/p"), json!({"gracePeriodSeconds": 5})),
        Case::get("the pod meanwhile", &here("pods/p")),
        gone("the pod, at once", &here("pods/p"), json!({"gracePeriodSeconds": 0})),
        Case::get("the pod no more", &here("pods/p")),
        Case::new(
            "a verb that is not served",
            "POST",
            "/api/v1/namespaces/alike/pods/p",
            json!({}),
        ),
        Case::post(
            "what holds its namespace",
            &here("configmaps"),
            json!({"metadata": {"name": "held", "finalizers": ["example.com/held"]}}),
        ),
        gone("the namespace", "/api/v1/namespaces/alike", Value::Null)
            .newer("a namespace has a label of its name since 1.21"),
        Case::post("late", &here("configmaps"), json!({"metadata": {"name": "late"}})),
    ]
}
