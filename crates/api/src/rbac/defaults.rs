//! Default roles and bindings of a cluster, as in Kubernetes v1.36.
//!
//! Only those that people and workloads use: the roles of control plane components that do not run
//! on a single machine are left out.

use super::PolicyRule;

const READ: &str = "get list watch";
const WRITE: &str = "create delete deletecollection patch update";
const READ_WRITE: &str = "create delete deletecollection get list patch update watch";

/// Label prefix by which a role adds its rules to `view`, `edit` or `admin`.
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// A ClusterRole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRole {
    pub name: &'static str,
    pub rules: Vec<PolicyRule>,
    /// Label (with the value `true`) that it has.
    pub aggregates_to: Option<String>,
    /// Label (with the value `true`) of the roles whose rules it has.
    pub aggregates_from: Option<String>,
}

/// A ClusterRoleBinding, of the same name as its role, to groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultBinding {
    pub name: &'static str,
    pub groups: &'static [&'static str],
}

pub const BINDINGS: [DefaultBinding; 5] = [
    DefaultBinding { name: "cluster-admin", groups: &["system:masters"] },
    DefaultBinding { name: "system:monitoring", groups: &["system:monitoring"] },
    DefaultBinding { name: "system:discovery", groups: &["system:authenticated"] },
    DefaultBinding { name: "system:basic-user", groups: &["system:authenticated"] },
    DefaultBinding {
        name: "system:public-info-viewer",
        groups: &["system:authenticated", "system:unauthenticated"],
    },
];

/// Verbs, groups (`core` for the core group) and resources, each separated by spaces.
type Row = (&'static str, &'static str, &'static str);

const BASIC_USER: [Row; 2] = [
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
    ("create", "authentication.k8s.io", "selfsubjectreviews"),
];

const VIEW: [Row; 12] = [
    (
        READ,
        "core",
        "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods \
         replicationcontrollers replicationcontrollers/scale serviceaccounts services services/status",
    ),
    (
        READ,
        "core",
        "bindings limitranges namespaces/status pods/log pods/status replicationcontrollers/status \
         resourcequotas resourcequotas/status",
    ),
    (READ, "core", "namespaces"),
    (READ, "core events.k8s.io", "events"),
    (READ, "discovery.k8s.io", "endpointslices"),
    (
        READ,
        "apps",
        "controllerrevisions daemonsets daemonsets/status deployments deployments/scale \
         deployments/status replicasets replicasets/scale replicasets/status statefulsets \
         statefulsets/scale statefulsets/status",
    ),
    (READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
    (READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
    (
        READ,
        "extensions",
        "daemonsets daemonsets/status deployments deployments/scale deployments/status ingresses \
         ingresses/status networkpolicies replicasets replicasets/scale replicasets/status \
         replicationcontrollers/scale",
    ),
    (READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
    (READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    (READ, "resource.k8s.io", "resourceclaims resourceclaims/status resourceclaimtemplates"),
];

const EDIT: [Row; 15] = [
    (READ, "core", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
    ("impersonate", "core", "serviceaccounts"),
    (WRITE, "core", "pods pods/attach pods/exec pods/portforward pods/proxy"),
    ("create", "core", "pods/eviction"),
    (
        WRITE,
        "core",
        "configmaps persistentvolumeclaims replicationcontrollers replicationcontrollers/scale \
         secrets serviceaccounts services services/proxy",
    ),
    ("create", "core", "serviceaccounts/token"),
    (WRITE, "core events.k8s.io", "events"),
    (
        WRITE,
        "apps",
        "daemonsets deployments deployments/rollback deployments/scale replicasets \
         replicasets/scale statefulsets statefulsets/scale",
    ),
    (WRITE, "autoscaling", "horizontalpodautoscalers"),
    (WRITE, "batch", "cronjobs jobs"),
    (
        WRITE,
        "extensions",
        "daemonsets deployments deployments/rollback deployments/scale ingresses networkpolicies \
         replicasets replicasets/scale replicationcontrollers/scale",
    ),
    (WRITE, "policy", "poddisruptionbudgets"),
    (WRITE, "networking.k8s.io", "ingresses networkpolicies"),
    (READ_WRITE, "coordination.k8s.io", "leases"),
    (WRITE, "resource.k8s.io", "resourceclaims resourceclaimtemplates"),
];

const ADMIN: [Row; 2] = [
    ("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    (READ_WRITE, "rbac.authorization.k8s.io", "rolebindings roles"),
];

/// As in the manifest of metrics-server.
const METRICS_READER: [Row; 1] = [(READ, "metrics.k8s.io", "nodes pods")];

/// Default ClusterRoles; those that aggregate have no rules of their own.
pub fn cluster_roles() -> Vec<DefaultRole> {
    let plain =
        |name, rules| DefaultRole { name, rules, aggregates_to: None, aggregates_from: None };
    let label = |role: &str| Some(format!("{AGGREGATE}{role}"));
    let source = |name, rows: &[Row], to| DefaultRole {
        aggregates_to: label(to),
        ..plain(name, objects(rows))
    };
    let mut monitoring = objects(&[("get", "core", "nodes/metrics")]);
    monitoring.insert(
        0,
        paths(
            "get",
            "/healthz /healthz/* /livez /livez/* /metrics /metrics/slis /readyz /readyz/*",
        ),
    );
    let mut all = objects(&[("*", "*", "*")]);
    all.push(paths("*", "*"));
    let discovery =
        "/api /api/* /apis /apis/* /healthz /livez /openapi /openapi/* /readyz /version /version/";
    let public = "/healthz /livez /readyz /version /version/";
    vec![
        plain("cluster-admin", all),
        plain("system:discovery", vec![paths("get", discovery)]),
        plain("system:monitoring", monitoring),
        plain("system:basic-user", objects(&BASIC_USER)),
        plain("system:public-info-viewer", vec![paths("get", public)]),
        DefaultRole { aggregates_from: label("admin"), ..plain("admin", Vec::new()) },
        DefaultRole {
            aggregates_from: label("edit"),
            aggregates_to: label("admin"),
            ..plain("edit", Vec::new())
        },
        DefaultRole {
            aggregates_from: label("view"),
            aggregates_to: label("edit"),
            ..plain("view", Vec::new())
        },
        source("system:aggregate-to-admin", &ADMIN, "admin"),
        source("system:aggregate-to-edit", &EDIT, "edit"),
        source("system:aggregate-to-view", &VIEW, "view"),
        source("system:aggregated-metrics-reader", &METRICS_READER, "view"),
    ]
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn objects(rows: &[Row]) -> Vec<PolicyRule> {
    let core = |group: String| if group == "core" { String::new() } else { group };
    let rule = |(verbs, groups, resources): &Row| PolicyRule {
        verbs: words(verbs),
        api_groups: words(groups).into_iter().map(core).collect(),
        resources: words(resources),
        ..PolicyRule::default()
    };
    rows.iter().map(rule).collect()
}

fn paths(verbs: &str, urls: &str) -> PolicyRule {
    PolicyRule { verbs: words(verbs), non_resource_urls: words(urls), ..PolicyRule::default() }
}
