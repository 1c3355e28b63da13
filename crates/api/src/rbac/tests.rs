use super::*;

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|&text| text.to_owned()).collect()
}

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> PolicyRule {
    PolicyRule {
        verbs: texts(verbs),
        api_groups: texts(groups),
        resources: texts(resources),
        resource_names: texts(names),
        non_resource_urls: Vec::new(),
    }
}

fn urls(verbs: &[&str], urls: &[&str]) -> PolicyRule {
    PolicyRule { verbs: texts(verbs), non_resource_urls: texts(urls), ..PolicyRule::default() }
}

fn object<'a>(
    verb: &'a str,
    resource: &'a str,
    subresource: &'a str,
    name: &'a str,
) -> Request<'a> {
    Request::Objects(ObjectRequest {
        verb,
        resource,
        subresource,
        name,
        namespace: "d",
        ..ObjectRequest::default()
    })
}

#[test]
fn rule_allows_what_all_its_parts_name() {
    let path = |path| Request::Path { verb: "get", path };
    for (case, rule, request, want) in [
        ("verb", rule(&["get"], &[""], &["pods"], &[]), object("get", "pods", "", "x"), true),
        (
            "other verb",
            rule(&["get"], &[""], &["pods"], &[]),
            object("list", "pods", "", ""),
            false,
        ),
        ("all verbs", rule(&["*"], &[""], &["pods"], &[]), object("bind", "pods", "", ""), true),
        (
            "other group",
            rule(&["get"], &["x"], &["pods"], &[]),
            object("get", "pods", "", ""),
            false,
        ),
        ("all groups", rule(&["get"], &["*"], &["pods"], &[]), object("get", "pods", "", ""), true),
        (
            "no subresource",
            rule(&["get"], &[""], &["pods"], &[]),
            object("get", "pods", "log", "x"),
            false,
        ),
        (
            "subresource",
            rule(&["get"], &[""], &["pods/log"], &[]),
            object("get", "pods", "log", "x"),
            true,
        ),
        (
            "its parent",
            rule(&["get"], &[""], &["pods/log"], &[]),
            object("get", "pods", "", "x"),
            false,
        ),
        ("of all", rule(&["get"], &[""], &["*/log"], &[]), object("get", "pods", "log", "x"), true),
        (
            "other of all",
            rule(&["get"], &[""], &["*/log"], &[]),
            object("get", "pods", "exec", "x"),
            false,
        ),
        (
            "everything",
            rule(&["get"], &[""], &["*"], &[]),
            object("get", "pods", "exec", "x"),
            true,
        ),
        ("name", rule(&["get"], &[""], &["pods"], &["x"]), object("get", "pods", "", "x"), true),
        (
            "other name",
            rule(&["get"], &[""], &["pods"], &["x"]),
            object("get", "pods", "", "y"),
            false,
        ),
        (
            "names and a list",
            rule(&["list"], &[""], &["pods"], &["x"]),
            object("list", "pods", "", ""),
            false,
        ),
        (
            "names and a create",
            rule(&["create"], &[""], &["pods"], &["x"]),
            object("create", "pods", "", ""),
            false,
        ),
        ("object of a path rule", urls(&["*"], &["*"]), object("get", "pods", "", "x"), false),
        ("path", urls(&["get"], &["/version"]), path("/version"), true),
        ("path below", urls(&["get"], &["/version"]), path("/version/x"), false),
        ("prefix", urls(&["get"], &["/api/*"]), path("/api/v1"), true),
        ("prefix itself", urls(&["get"], &["/api/*"]), path("/api"), false),
        ("all paths", urls(&["get"], &["*"]), path("/x"), true),
        ("path of an object rule", rule(&["*"], &["*"], &["*"], &[]), path("/x"), false),
    ] {
        assert_eq!(rule.allows(&request), want, "{case}");
    }
}

fn policy(bindings: Vec<Binding>) -> Policy {
    let pods = vec![rule(&["get"], &[""], &["pods"], &[])];
    Policy {
        roles: BTreeMap::from([(("d".to_owned(), "reader".to_owned()), pods.clone())]),
        cluster_roles: BTreeMap::from([("reader".to_owned(), pods)]),
        bindings,
    }
}

fn binding(namespace: &str, role_kind: RoleKind, role: &str, subject: Subject) -> Binding {
    Binding {
        namespace: namespace.to_owned(),
        name: "b".to_owned(),
        subjects: vec![subject],
        role_kind,
        role_name: role.to_owned(),
    }
}

fn user(name: &str) -> Subject {
    Subject::User(name.to_owned())
}

fn account(namespace: &str, name: &str) -> Subject {
    Subject::ServiceAccount { namespace: namespace.to_owned(), name: name.to_owned() }
}

#[test]
fn binding_grants_to_its_subjects_within_its_scope() {
    use RoleKind::{ClusterRole, Role};
    let bob = User { name: "bob", groups: &texts(&["dev"]) };
    let robot = User { name: "system:serviceaccount:d:robot", groups: &[] };
    let at = |namespace| {
        Request::Objects(ObjectRequest {
            verb: "get",
            resource: "pods",
            namespace,
            ..Default::default()
        })
    };
    let group = Subject::Group("dev".to_owned());
    for (case, binding, who, request, want) in [
        (
            "role",
            binding("d", Role, "reader", user("bob")),
            bob,
            at("d"),
            Decision::Allowed("RBAC: allowed by RoleBinding \"b/d\" of Role \"reader\" to User \"bob\"".to_owned()),
        ),
        (
            "cluster role in a namespace",
            binding("d", ClusterRole, "reader", group.clone()),
            bob,
            at("d"),
            Decision::Allowed(
                "RBAC: allowed by RoleBinding \"b/d\" of ClusterRole \"reader\" to Group \"dev\"".to_owned(),
            ),
        ),
        (
            "elsewhere",
            binding("d", ClusterRole, "reader", group.clone()),
            bob,
            at("e"),
            Decision::Denied(String::new()),
        ),
        (
            "everywhere",
            binding("d", ClusterRole, "reader", group.clone()),
            bob,
            at(""),
            Decision::Denied(String::new()),
        ),
        (
            "cluster binding",
            binding("", ClusterRole, "reader", group),
            bob,
            at(""),
            Decision::Allowed(
                "RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"reader\" to Group \"dev\"".to_owned(),
            ),
        ),
        (
            "account without a namespace",
            binding("d", Role, "reader", account("", "robot")),
            robot,
            at("d"),
            Decision::Allowed(
                "RBAC: allowed by RoleBinding \"b/d\" of Role \"reader\" to ServiceAccount \"robot/d\"".to_owned(),
            ),
        ),
        (
            "account without a namespace in the whole cluster",
            binding("", ClusterRole, "reader", account("", "robot")),
            robot,
            at("d"),
            Decision::Denied(String::new()),
        ),
        (
            "account of another namespace",
            binding("d", Role, "reader", account("e", "robot")),
            robot,
            at("d"),
            Decision::Denied(String::new()),
        ),
        (
            "user with the name of the account",
            binding("d", Role, "reader", user("system:serviceaccount:d:robot")),
            robot,
            at("d"),
            Decision::Allowed(
                "RBAC: allowed by RoleBinding \"b/d\" of Role \"reader\" to User \"system:serviceaccount:d:robot\""
                    .to_owned(),
            ),
        ),
        (
            "role that does not exist",
            binding("d", Role, "nope", user("bob")),
            bob,
            at("d"),
            Decision::Denied("RBAC: role.rbac.authorization.k8s.io \"nope\" not found".to_owned()),
        ),
    ] {
        assert_eq!(policy(vec![binding]).decide(who, &request), want, "{case}");
    }
}

#[test]
fn only_held_permissions_can_be_granted() {
    let all = rule(&["*"], &["*"], &["*"], &[]);
    for (case, held, granted, want) in [
        (
            "equal",
            vec![rule(&["get"], &[""], &["pods"], &[])],
            rule(&["get"], &[""], &["pods"], &[]),
            vec![],
        ),
        ("everything", vec![all.clone(), urls(&["*"], &["*"])], all.clone(), vec![]),
        (
            "paths are no objects",
            vec![all],
            urls(&["get"], &["/x"]),
            vec!["{NonResourceURLs:[\"/x\"], Verbs:[\"get\"]}"],
        ),
        (
            "verbs of one resource",
            vec![rule(&["list"], &[""], &["secrets"], &[])],
            rule(&["get", "list", "delete"], &[""], &["secrets"], &[]),
            vec!["{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"delete\"]}"],
        ),
        (
            "all names from one",
            vec![rule(&["get"], &[""], &["pods"], &["x"])],
            rule(&["get"], &[""], &["pods"], &[]),
            vec!["{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}"],
        ),
        (
            "one name from all",
            vec![rule(&["get"], &[""], &["pods"], &[])],
            rule(&["get"], &[""], &["pods"], &["x"]),
            vec![],
        ),
        (
            "subresource of all",
            vec![rule(&["get"], &[""], &["*/log"], &[])],
            rule(&["get"], &[""], &["pods/log"], &[]),
            vec![],
        ),
        (
            "sorted",
            vec![],
            rule(&["get"], &[""], &["secrets", "pods"], &[]),
            vec![
                "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"get\"]}",
                "{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}",
            ],
        ),
    ] {
        assert_eq!(missing(&held, &[granted]), want, "{case}");
    }
}

#[test]
fn refused_grant_names_user_groups_and_permissions() {
    let bob = User { name: "bob", groups: &texts(&["dev", "system:authenticated"]) };
    let granted = [rule(&["get", "delete"], &[""], &["secrets"], &[])];
    assert_eq!(
        escalation(bob, &[], &granted).as_deref(),
        Some(
            "user \"bob\" (groups=[\"dev\" \"system:authenticated\"]) is attempting to grant RBAC \
             permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"delete\"]}"
        )
    );
}

/// Four lists of 12,000 values are 2e16 permissions in a body of a few hundred kilobytes.
#[test]
fn role_with_more_permissions_than_can_be_compared_is_refused_at_once() {
    let values: Vec<String> = (0..12_000).map(|number| format!("{number}")).collect();
    let huge = PolicyRule {
        verbs: values.clone(),
        api_groups: values.clone(),
        resources: values.clone(),
        resource_names: values.clone(),
        ..PolicyRule::default()
    };
    let bob = User { name: "bob", groups: &[] };
    let all = [rule(&["*"], &["*"], &["*"], &[])];
    let names = PolicyRule { resource_names: values, ..rule(&["get"], &[""], &["pods"], &[]) };
    for (case, held, granted, want) in [
        ("holds all", &all[..], huge.clone(), "more RBAC permissions at once than can be compared"),
        ("holds none", &[], huge, "more RBAC permissions at once than can be compared"),
        ("missing names", &[], names.clone(), "not currently held:\n"),
    ] {
        let refused = escalation(bob, held, &[granted]).unwrap_or_default();
        assert!(refused.contains(want), "{case}: {refused}");
        assert!(refused.len() < 200_000, "{case}: {}", refused.len());
    }
    assert_eq!(escalation(bob, &all, std::slice::from_ref(&names)), None);
    // names that are held are compared with each of those that are granted
    let held: Vec<PolicyRule> = (0..20).map(|_| names.clone()).collect();
    assert!(escalation(bob, &held, &[names]).is_some());
    // the same verb over and over is one
    let twice = PolicyRule { verbs: texts(&["get"; 50_000]), ..rule(&[], &[""], &["pods"], &[]) };
    assert_eq!(escalation(bob, &[rule(&["get"], &[""], &["pods"], &[])], &[twice]), None);
}

#[test]
fn default_roles_aggregate_from_view_to_admin() {
    let roles: BTreeMap<&str, Vec<PolicyRule>> =
        defaults::cluster_roles().into_iter().map(|role| (role.name, role.rules)).collect();
    let get = |name: &str| roles.get(name).cloned().unwrap_or_default();
    let view = get("system:aggregate-to-view");
    let edit = union([&*get("system:aggregate-to-edit"), &*view]);
    let allowed = |rules: &[PolicyRule], request| rules.iter().any(|rule| rule.allows(&request));
    for (case, request, in_view, in_edit) in [
        ("read pods", object("list", "pods", "", ""), true, true),
        ("read a log", object("get", "pods", "log", "x"), true, true),
        ("run a command", object("get", "pods", "exec", "x"), false, true),
        ("read secrets", object("get", "secrets", "", "x"), false, true),
        ("create pods", object("create", "pods", "", ""), false, true),
        ("write the status of a pod", object("patch", "pods", "status", "x"), false, false),
        ("read nodes", object("get", "nodes", "", "x"), false, false),
        ("create volumes", object("create", "persistentvolumes", "", ""), false, false),
    ] {
        assert_eq!(allowed(&view, request), in_view, "view: {case}");
        assert_eq!(allowed(&edit, request), in_edit, "edit: {case}");
    }
}
