//! Roles and bindings: what they allow, and that they cannot be used to get more.

use std::collections::BTreeMap;
use std::path::Path;

use axum::body::Body;
use http::Request;
use podwright_apiserver::{Clock, Identity, Limits, Store};
use serde_json::{Value, json};

use super::test_server::{NS, TestServer};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const LOCAL: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

fn user(name: &str) -> Identity {
    Identity {
        user: name.to_owned(),
        uid: String::new(),
        groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
        extra: BTreeMap::new(),
    }
}

fn named(server: &TestServer, name: &str) -> TestServer {
    TestServer { server: server.server.clone(), identity: user(name) }
}

#[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
fn role(name: &str, rules: Value) -> Value {
    json!({"metadata": {"name": name}, "rules": rules})
}

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": name}, "subjects": [{"kind": "User", "name": user}],
        "roleRef": {"kind": kind, "name": role}})
}

async fn bind(admin: &TestServer, role: &str, user: &str) {
    let body = binding(&format!("{role}-{user}"), "ClusterRole", role, user);
    admin.post(&format!("{LOCAL}/rolebindings"), body).await.ok();
}

#[tokio::test(start_paused = true)]
async fn binding_grants_its_role_in_its_namespace_until_it_is_deleted() {
    let admin = TestServer::new().await;
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.ok();
    bind(&admin, "view", "bob").await;
    let bob = named(&admin, "bob");
    for (case, path, code) in [
        ("pods", format!("{NS}/pods"), 200),
        ("its namespace", NS.to_owned(), 200),
        ("secrets", format!("{NS}/secrets"), 403),
        ("another namespace", "/api/v1/namespaces/other/pods".to_owned(), 403),
        ("all namespaces", "/api/v1/pods".to_owned(), 403),
        ("nodes", "/api/v1/nodes".to_owned(), 403),
    ] {
        assert_eq!(bob.get(&path).await.code, code, "{case}");
    }
    assert_eq!(bob.post(&format!("{NS}/configmaps"), json!({})).await.code, 403);
    admin.delete(&format!("{LOCAL}/rolebindings/view-bob")).await.ok();
    assert_eq!(bob.get(&format!("{NS}/pods")).await.code, 403, "revoked");
}

#[tokio::test(start_paused = true)]
async fn rule_of_pods_does_not_cover_their_logs() {
    let admin = TestServer::new().await;
    let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    admin.post(&format!("{LOCAL}/roles"), role("r", pods)).await.ok();
    admin.post(&format!("{LOCAL}/rolebindings"), binding("b", "Role", "r", "bob")).await.ok();
    let refused = named(&admin, "bob").get(&format!("{NS}/pods/x/log")).await;
    assert_eq!(
        refused.message(),
        "pods \"x\" is forbidden: User \"bob\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"default\""
    );
}

/// A WebSocket begins with GET, so a role that may only read would run commands.
#[tokio::test(start_paused = true)]
async fn command_over_a_websocket_needs_the_permission_to_create() {
    let admin = TestServer::new().await;
    let reader =
        json!([{"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["*"]}]);
    let both = json!([{"verbs": ["get", "create"], "apiGroups": [""],
        "resources": ["pods/exec", "pods/attach", "pods/portforward"]}]);
    for (name, rules) in [("reader", reader), ("both", both)] {
        admin.post(&format!("{LOCAL}/roles"), role(name, rules)).await.ok();
        let body = binding(name, "Role", name, name);
        admin.post(&format!("{LOCAL}/rolebindings"), body).await.ok();
    }
    let (reader, both) = (named(&admin, "reader"), named(&admin, "both"));
    for part in ["exec?command=id&stdout=true", "attach?stdout=true", "portforward?ports=80"] {
        let path = format!("{NS}/pods/x/{part}");
        let refused = reader.get(&path).await;
        let want = "pods \"x\" is forbidden: User \"reader\" cannot create resource \"pods/";
        assert_eq!(refused.code, 403, "{part}: {refused:?}");
        assert!(refused.message().starts_with(want), "{}", refused.message());
        assert_eq!(both.get(&path).await.code, 404, "{part}: there is no such pod");
    }
    assert_eq!(reader.get(&format!("{NS}/pods/x/log")).await.code, 404, "a log is read");
}

#[tokio::test(start_paused = true)]
async fn rule_with_a_name_allows_a_list_of_that_name_only() {
    let admin = TestServer::new().await;
    let one = json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["x"]}]);
    admin.post(&format!("{LOCAL}/roles"), role("r", one)).await.ok();
    admin.post(&format!("{LOCAL}/rolebindings"), binding("b", "Role", "r", "bob")).await.ok();
    let bob = named(&admin, "bob");
    for (selector, code) in [
        ("", 403),
        ("?fieldSelector=metadata.name%3Dx", 200),
        ("?fieldSelector=metadata.name%3Dy", 403),
        ("?fieldSelector=metadata.name%21%3Dx", 403),
        ("?labelSelector=metadata.name%3Dx", 403),
    ] {
        assert_eq!(bob.get(&format!("{NS}/secrets{selector}")).await.code, code, "{selector}");
    }
}

/// Ways around a rule with a name: a watch of another name, a deletion of all, a page of a list that
/// begins elsewhere, two selectors.
#[tokio::test(start_paused = true)]
async fn rule_with_a_name_covers_no_other_object() {
    let admin = TestServer::new().await;
    admin.post("/api/v1/namespaces", json!({"metadata": {"name": "other"}})).await.ok();
    for (namespace, name) in [("default", "x"), ("default", "y"), ("other", "x")] {
        let path = format!("/api/v1/namespaces/{namespace}/secrets");
        admin.post(&path, json!({"metadata": {"name": name}})).await.ok();
    }
    let verbs = json!(["get", "list", "watch", "delete", "deletecollection"]);
    let one = json!([{"verbs": verbs, "apiGroups": [""], "resources": ["secrets"],
        "resourceNames": ["x"]}]);
    admin.post(&format!("{LOCAL}/roles"), role("r", one)).await.ok();
    admin.post(&format!("{LOCAL}/rolebindings"), binding("b", "Role", "r", "bob")).await.ok();
    let bob = named(&admin, "bob");
    let mine = "fieldSelector=metadata.name%3Dx";
    for path in [
        format!("{NS}/secrets?watch=true"),
        format!("{NS}/secrets/y?watch=true"),
        format!("{NS}/secrets?watch=true&fieldSelector=metadata.name%3Dy"),
        format!("{NS}/secrets?fieldSelector=metadata.name%3Dx%2Cmetadata.name%3Dy"),
        format!("{NS}/secrets?fieldSelector=&{mine}"),
        format!("/api/v1/namespaces/other/secrets?{mine}"),
        format!("/api/v1/secrets?{mine}"),
    ] {
        assert_eq!(bob.get(&path).await.code, 403, "{path}");
    }
    assert_eq!(bob.delete(&format!("{NS}/secrets")).await.code, 403);
    // the second selector is not used, and neither does a page begin in another namespace
    let twice = format!("{NS}/secrets?{mine}&fieldSelector=metadata.name%3Dy");
    assert_eq!(bob.get(&twice).await.ok().names(), ["x"]);
    let watched = bob.watch(&format!("{NS}/secrets/x?watch=true&timeoutSeconds=1")).await;
    assert_eq!(watched.rest().await, ["ADDED x"]);
    assert_eq!(bob.delete(&format!("{NS}/secrets?{mine}")).await.ok().names(), ["x"]);
    assert_eq!(admin.get("/api/v1/secrets").await.ok().names(), ["y", "x"]);
}

#[tokio::test(start_paused = true)]
async fn permissions_that_a_user_lacks_cannot_be_granted() {
    let admin = TestServer::new().await;
    bind(&admin, "admin", "bob").await;
    let bob = named(&admin, "bob");
    let nodes = json!([{"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["nodes"]}]);
    let why = "is forbidden: user \"bob\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC \
               permissions not currently held:\n";
    let missing = "{APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\" \"delete\"]}";

    let refused = bob.post(&format!("{LOCAL}/roles"), role("e", nodes.clone())).await;
    let want = format!("roles.rbac.authorization.k8s.io \"e\" {why}{missing}");
    assert_eq!((refused.code, refused.message()), (403, want.as_str()), "new role");

    let pods = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    bob.post(&format!("{LOCAL}/roles"), role("e", pods)).await.ok();
    for (case, response) in [
        ("patch", bob.merge(&format!("{LOCAL}/roles/e"), json!({"rules": nodes})).await),
        ("update", bob.put(&format!("{LOCAL}/roles/e"), role("e", nodes.clone())).await),
        (
            "created by an update",
            bob.put(&format!("{LOCAL}/roles/f"), role("f", nodes.clone())).await,
        ),
    ] {
        assert_eq!(response.code, 403, "{case}: {response:?}");
    }
    let all = binding("b", "ClusterRole", "cluster-admin", "bob");
    for (case, response) in [
        ("binding", bob.post(&format!("{LOCAL}/rolebindings"), all.clone()).await),
        ("cluster binding", bob.post(&format!("{RBAC}/clusterrolebindings"), all.clone()).await),
        ("binding by an update", bob.put(&format!("{LOCAL}/rolebindings/b"), all.clone()).await),
        ("role that does not exist", {
            let body = binding("b", "Role", "nope", "bob");
            let response = bob.post(&format!("{LOCAL}/rolebindings"), body).await;
            assert_eq!(response.code, 404, "{response:?}");
            bob.post(&format!("{LOCAL}/rolebindings"), all).await
        }),
        ("own group", {
            let body = json!({"subjects": [{"kind": "Group", "name": "system:authenticated"}]});
            bob.merge(&format!("{RBAC}/clusterrolebindings/cluster-admin"), body).await
        }),
    ] {
        assert_eq!(response.code, 403, "{case}: {response:?}");
    }
    let held = binding("c", "ClusterRole", "edit", "eve");
    bob.post(&format!("{LOCAL}/rolebindings"), held).await.ok();
}

#[tokio::test(start_paused = true)]
async fn role_of_a_few_kilobytes_cannot_exhaust_the_server() {
    let admin = TestServer::new().await;
    bind(&admin, "admin", "bob").await;
    let bob = named(&admin, "bob");
    let values = |letter: &str| (0..10_000).map(|n| format!("{letter}{n}")).collect::<Vec<_>>();
    let rules = json!([{"verbs": values("v"), "apiGroups": values("g"), "resources": values("r"),
        "resourceNames": values("n")}]);
    let began = std::time::Instant::now();
    let refused = bob.post(&format!("{LOCAL}/roles"), role("huge", rules)).await;
    assert_eq!(refused.code, 403, "{refused:?}");
    assert!(refused.message().contains("than can be compared"), "{}", refused.message());
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn verb_bind_or_escalate_replaces_the_permissions() {
    let admin = TestServer::new().await;
    let group = "rbac.authorization.k8s.io";
    let rules = json!([
        {"verbs": ["create"], "apiGroups": [group], "resources": ["roles", "rolebindings", "clusterroles"]},
        {"verbs": ["bind"], "apiGroups": [group], "resources": ["clusterroles"], "resourceNames": ["edit"]},
        {"verbs": ["escalate"], "apiGroups": [group], "resources": ["roles"]},
    ]);
    admin.post(&format!("{RBAC}/clusterroles"), role("granter", rules)).await.ok();
    admin
        .post(
            &format!("{RBAC}/clusterrolebindings"),
            binding("granter", "ClusterRole", "granter", "bob"),
        )
        .await
        .ok();
    let bob = named(&admin, "bob");
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let aggregated = json!({"metadata": {"name": "g"}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{}]}});
    let edit = binding("x", "ClusterRole", "edit", "bob");
    let more = binding("y", "ClusterRole", "admin", "bob");
    for (case, path, body, code) in [
        ("bind", format!("{LOCAL}/rolebindings"), edit, 201),
        ("another role", format!("{LOCAL}/rolebindings"), more, 403),
        ("escalate", format!("{LOCAL}/roles"), role("z", all.clone()), 201),
        ("cluster role", format!("{RBAC}/clusterroles"), role("z", all), 403),
        ("aggregation", format!("{RBAC}/clusterroles"), aggregated, 403),
    ] {
        let response = bob.post(&path, body).await;
        assert_eq!(response.code, code, "{case}: {response:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn aggregated_role_follows_the_roles_that_it_selects() {
    let (admin, _controllers) = TestServer::with_controllers().await;
    bind(&admin, "view", "bob").await;
    let bob = named(&admin, "bob");
    assert_eq!(bob.get(&format!("{NS}/secrets")).await.code, 403);
    let more = json!({"metadata": {"name": "more", "labels": {
            "rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["secrets"]}]});
    admin.post(&format!("{RBAC}/clusterroles"), more).await.ok();
    for (case, code) in [("added", 200), ("removed", 403)] {
        let mut last = 0;
        for _ in 0..50 {
            last = bob.get(&format!("{NS}/secrets")).await.code;
            if last == code {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(last, code, "{case}");
        admin.delete(&format!("{RBAC}/clusterroles/more")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_roles_and_bindings_are_refused() {
    let admin = TestServer::new().await;
    let urls = json!([{"verbs": ["get"], "nonResourceURLs": ["/x"]}]);
    let empty = json!([{"verbs": []}]);
    let group = "rbac.authorization.k8s.io";
    let account = json!({"metadata": {"name": "b"}, "subjects": [{"kind": "ServiceAccount", "name": "a"}],
        "roleRef": {"kind": "ClusterRole", "name": "view"}});
    for (path, body, want) in [
        (
            format!("{LOCAL}/roles"),
            role("r", urls),
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs".to_owned(),
        ),
        (
            format!("{LOCAL}/roles"),
            role("r", empty),
            "[rules[0].verbs: Required value: verbs must contain at least one value, rules[0].apiGroups: Required \
             value: resource rules must supply at least one api group, rules[0].resources: Required value: resource \
             rules must supply at least one resource]"
                .to_owned(),
        ),
        (
            format!("{LOCAL}/rolebindings"),
            binding("b", "Job", "r", "bob"),
            "roleRef.kind: Unsupported value: \"Job\": supported values: \"Role\", \"ClusterRole\"".to_owned(),
        ),
        (
            format!("{RBAC}/clusterrolebindings"),
            account,
            "subjects[0].namespace: Required value".to_owned(),
        ),
    ] {
        let refused = admin.post(&path, body).await;
        assert_eq!(refused.code, 422, "{want}");
        assert!(refused.message().ends_with(&want), "{}", refused.message());
    }
    bind(&admin, "view", "bob").await;
    let path = format!("{LOCAL}/rolebindings/view-bob");
    let stored = admin.get(&path).await.ok().body;
    assert_eq!(stored["subjects"][0]["apiGroup"], group);
    let changed = admin.merge(&path, json!({"roleRef": {"name": "edit"}})).await;
    assert_eq!(changed.code, 422);
    assert!(changed.message().ends_with("cannot change roleRef"), "{}", changed.message());
}

/// What is accepted can be read: otherwise one odd role would refuse every request of everybody.
#[tokio::test(start_paused = true)]
async fn no_role_or_binding_stops_the_authorization_of_others() {
    let admin = TestServer::new().await;
    bind(&admin, "view", "bob").await;
    let bob = named(&admin, "bob");
    let (roles, bindings) = (format!("{LOCAL}/roles"), format!("{LOCAL}/rolebindings"));
    let cluster_roles = format!("{RBAC}/clusterroles");
    let reference = json!({"kind": "ClusterRole", "name": "view"});
    let rule = |field: &str, value: Value| {
        let mut rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        rule[field] = value;
        json!({"rules": [rule]})
    };
    let odd = [
        (&roles, json!({"rules": null})),
        (&roles, json!({"rules": [null]})),
        (&roles, rule("verbs", json!([null, "get"]))),
        (&roles, rule("resourceNames", Value::Null)),
        (&roles, rule("nonResourceURLs", Value::Null)),
        (&roles, rule("resources", json!([""]))),
        (&cluster_roles, json!({"rules": null, "aggregationRule": null})),
        (&cluster_roles, json!({"aggregationRule": {"clusterRoleSelectors": [null]}})),
        (
            &cluster_roles,
            json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": null}]}}),
        ),
        (&cluster_roles, json!({"rules": [], "metadata": {"labels": null}})),
        (&bindings, json!({"roleRef": reference, "subjects": null})),
        (&bindings, json!({"roleRef": reference, "subjects": [null]})),
        (&bindings, json!({"roleRef": reference, "subjects": [{"kind": "User", "name": null}]})),
        (&bindings, json!({"roleRef": {"kind": null, "name": "view"}})),
        (&bindings, json!({"roleRef": null})),
        (&bindings, json!({})),
    ];
    for (number, (path, mut body)) in odd.into_iter().enumerate() {
        let shown = body.to_string();
        body["metadata"]["name"] = json!(format!("odd{number}"));
        let stored = admin.post(path, body).await;
        assert!(stored.code < 500, "{shown}: {stored:?}");
        assert_eq!(bob.get(&format!("{NS}/pods")).await.code, 200, "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn user_can_ask_what_it_may_do() {
    let admin = TestServer::new().await;
    bind(&admin, "view", "bob").await;
    let bob = named(&admin, "bob");
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let question = |verb: &str| {
        json!({"spec": {"resourceAttributes":
            {"verb": verb, "resource": "pods", "namespace": "default"}}})
    };
    let why =
        "RBAC: allowed by RoleBinding \"view-bob/default\" of ClusterRole \"view\" to User \"bob\"";
    for (verb, want) in
        [("list", json!({"allowed": true, "reason": why})), ("delete", json!({"allowed": false}))]
    {
        let reviewed = bob.post(path, question(verb)).await.ok();
        assert_eq!(reviewed.body["status"], want, "{verb}");
    }
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    for (namespace, listed) in [("default", true), ("kube-system", false)] {
        let reviewed = bob.post(path, json!({"spec": {"namespace": namespace}})).await.ok();
        let rules = reviewed.body["status"]["resourceRules"].to_string();
        assert_eq!(rules.contains("\"pods/log\""), listed, "{rules}");
        assert!(rules.contains("selfsubjectaccessreviews"), "{rules}");
    }
}

#[tokio::test(start_paused = true)]
async fn impersonation_needs_permission_for_the_user_and_each_group() {
    let admin = TestServer::new().await;
    bind(&admin, "edit", "bob").await;
    let bob = named(&admin, "bob");
    let account = "system:serviceaccount:default:default";
    for (case, identity, headers, code) in [
        ("account of its namespace", &bob, vec![("Impersonate-User", account)], 201),
        (
            "account of another",
            &bob,
            vec![("Impersonate-User", "system:serviceaccount:kube-system:default")],
            403,
        ),
        ("user", &bob, vec![("Impersonate-User", "kubernetes-admin")], 403),
        (
            "group",
            &bob,
            vec![("Impersonate-User", account), ("Impersonate-Group", "system:masters")],
            403,
        ),
        (
            "administrator",
            &admin,
            vec![("Impersonate-User", "eve"), ("Impersonate-Group", "dev")],
            201,
        ),
    ] {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let mut request = Request::post(path).header("Content-Type", "application/json");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let response = identity.raw(request.body(Body::from("{}")).unwrap()).await;
        assert_eq!(response.status(), code, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn anonymous_user_sees_health_and_version_only() {
    let admin = TestServer::new().await;
    let stranger = TestServer { server: admin.server.clone(), identity: Identity::anonymous() };
    for (path, code) in [("/healthz", 200), ("/version", 200), ("/api", 403), ("/openapi/v2", 403)]
    {
        assert_eq!(stranger.get(path).await.code, code, "{path}");
    }
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert_eq!(stranger.post(path, json!({})).await.code, 403);
}

/// A server on the store in a file, as after a restart.
async fn started(path: &Path) -> TestServer {
    let store = Store::open(path, Limits::default(), Clock::system()).unwrap();
    TestServer::on(store, Clock::system()).await
}

#[tokio::test]
async fn annotation_roles_are_migrated_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    // given a store of an earlier build: annotated accounts, no roles
    let admin = started(&path).await;
    for (name, role) in [("viewer", "view"), ("boss", "admin"), ("odd", "king")] {
        let account = json!({"metadata": {"name": name, "annotations": {"podwright/role": role}}});
        admin.post(&format!("{NS}/serviceaccounts"), account).await.ok();
    }
    for kind in ["clusterroles", "clusterrolebindings"] {
        admin.delete(&format!("{RBAC}/{kind}")).await.ok();
    }
    drop(admin);
    // when the server starts
    let admin = started(&path).await;
    // then each account has what it had, and the annotation is gone
    for (name, pods, nodes) in [("viewer", 200, 403), ("boss", 200, 200), ("odd", 403, 403)] {
        let account = named(&admin, &format!("system:serviceaccount:default:{name}"));
        assert_eq!(account.get(&format!("{NS}/pods")).await.code, pods, "{name}");
        assert_eq!(account.get("/api/v1/nodes").await.code, nodes, "{name}");
        let stored = admin.get(&format!("{NS}/serviceaccounts/{name}")).await.ok();
        let annotation = &stored.body["metadata"]["annotations"]["podwright/role"];
        assert_eq!(annotation, &Value::Null, "{name}");
    }
    // and an annotation that is set later grants nothing, not even after a restart
    let later = json!({"metadata": {"annotations": {"podwright/role": "admin"}}});
    admin.merge(&format!("{NS}/serviceaccounts/viewer"), later).await.ok();
    drop(admin);
    let admin = started(&path).await;
    let viewer = named(&admin, "system:serviceaccount:default:viewer");
    assert_eq!(viewer.get("/api/v1/nodes").await.code, 403);
}
