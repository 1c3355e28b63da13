//! Served resources, as one static table.
//!
//! Why a table and not a trait per kind: everything generic (routing, discovery, storage, list,
//! watch, patch) needs the same dozen facts about a kind, and the table shows on one page what is
//! served. What is *specific* to a kind is in the module for that aspect (defaults, validation,
//! deletion, admission).

use std::fmt;

/// An operation on a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
}

impl Verb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::List => "list",
            Self::Patch => "patch",
            Self::Update => "update",
            Self::Watch => "watch",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the objects of a resource are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// On disk: an acknowledged write survives power loss.
    Disk,
    /// On disk, except in this namespace, where they are in memory only: a node's heartbeat,
    /// written every few seconds, is worthless after a restart and would wear the disk out.
    DiskExceptIn(&'static str),
    /// In memory, limited in number, and dropped after the server's event lifetime.
    Expiring,
}

/// Part of an object with its own path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subresource {
    pub name: &'static str,
    /// Kind of the body; group and version only where they differ from the parent's.
    pub kind: &'static str,
    pub group_version: Option<(&'static str, &'static str)>,
    pub verbs: &'static [Verb],
}

/// One served resource. `group` is empty for the core group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    pub short_names: &'static [&'static str],
    pub categories: &'static [&'static str],
    pub verbs: &'static [Verb],
    pub subresources: &'static [Subresource],
    /// Name of the storage: both event groups share one set of objects.
    pub storage: &'static str,
    pub durability: Durability,
}

impl Resource {
    /// `v1` or `coordination.k8s.io/v1`, as in `apiVersion`.
    pub fn api_version(&self) -> String {
        group_version(self.group, self.version)
    }

    /// `pods` or `leases.coordination.k8s.io`, as in messages about the resource.
    pub fn qualified(&self) -> String {
        qualify(self.plural, self.group)
    }

    /// `Pod` or `Lease.coordination.k8s.io`, as in messages about an invalid object.
    pub fn qualified_kind(&self) -> String {
        qualify(self.kind, self.group)
    }

    /// Whether there are objects of it in the store, or they are computed for each request.
    pub fn is_stored(&self) -> bool {
        !self.storage.is_empty()
    }

    pub fn allows(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|sub| sub.name == name)
    }
}

/// `group/version`, or the version alone for the core group.
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn qualify(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// The served resource at this path, if any.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES
        .iter()
        .copied()
        .find(|r| r.group == group && r.version == version && r.plural == plural)
}

/// The served resource of this kind, if any.
pub fn find_kind(group: &str, version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES.iter().copied().find(|r| r.group == group && r.version == version && r.kind == kind)
}

const ALL: &[Verb] = &[
    Verb::Create,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Get,
    Verb::List,
    Verb::Patch,
    Verb::Update,
    Verb::Watch,
];
/// Namespaces cannot be deleted as a collection.
const ALL_BUT_COLLECTION: &[Verb] =
    &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch];
const GET_LIST: &[Verb] = &[Verb::Get, Verb::List];
const READ: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch];
const CREATE: &[Verb] = &[Verb::Create];
const UPDATE: &[Verb] = &[Verb::Update];
const READ_WRITE_PART: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
const STREAM: &[Verb] = &[Verb::Create, Verb::Get];
const PROXY: &[Verb] = &[Verb::Create, Verb::Delete, Verb::Get, Verb::Patch, Verb::Update];

const fn subresource_of(
    name: &'static str,
    kind: &'static str,
    verbs: &'static [Verb],
) -> Subresource {
    Subresource { name, kind, group_version: None, verbs }
}

const fn status_of(kind: &'static str) -> Subresource {
    subresource_of("status", kind, READ_WRITE_PART)
}

/// Defaults of most kinds: core/v1, namespaced, every verb, on disk.
const COMMON: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    namespaced: true,
    short_names: &[],
    categories: &[],
    verbs: ALL,
    subresources: &[],
    storage: "",
    durability: Durability::Disk,
};

pub static CONFIG_MAPS: Resource = Resource {
    plural: "configmaps",
    singular: "configmap",
    kind: "ConfigMap",
    short_names: &["cm"],
    storage: "configmaps",
    ..COMMON
};

pub static EVENTS: Resource = Resource {
    plural: "events",
    singular: "event",
    kind: "Event",
    short_names: &["ev"],
    storage: "events",
    durability: Durability::Expiring,
    ..COMMON
};

/// The newer form of the same stored events.
pub static EVENTS_V1: Resource = Resource { group: "events.k8s.io", ..EVENTS };

pub static NAMESPACES: Resource = Resource {
    plural: "namespaces",
    singular: "namespace",
    kind: "Namespace",
    namespaced: false,
    short_names: &["ns"],
    verbs: ALL_BUT_COLLECTION,
    subresources: &[subresource_of("finalize", "Namespace", UPDATE), status_of("Namespace")],
    storage: "namespaces",
    ..COMMON
};

pub static NODES: Resource = Resource {
    plural: "nodes",
    singular: "node",
    kind: "Node",
    namespaced: false,
    short_names: &["no"],
    subresources: &[subresource_of("proxy", "NodeProxyOptions", PROXY), status_of("Node")],
    storage: "nodes",
    ..COMMON
};

pub static PERSISTENT_VOLUME_CLAIMS: Resource = Resource {
    plural: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    kind: "PersistentVolumeClaim",
    short_names: &["pvc"],
    subresources: &[status_of("PersistentVolumeClaim")],
    storage: "persistentvolumeclaims",
    ..COMMON
};

pub static PERSISTENT_VOLUMES: Resource = Resource {
    plural: "persistentvolumes",
    singular: "persistentvolume",
    kind: "PersistentVolume",
    namespaced: false,
    short_names: &["pv"],
    subresources: &[status_of("PersistentVolume")],
    storage: "persistentvolumes",
    ..COMMON
};

pub static PODS: Resource = Resource {
    plural: "pods",
    singular: "pod",
    kind: "Pod",
    short_names: &["po"],
    categories: &["all"],
    subresources: &[
        subresource_of("attach", "PodAttachOptions", STREAM),
        subresource_of("binding", "Binding", CREATE),
        subresource_of("ephemeralcontainers", "Pod", READ_WRITE_PART),
        Subresource {
            name: "eviction",
            kind: "Eviction",
            group_version: Some(("policy", "v1")),
            verbs: CREATE,
        },
        subresource_of("exec", "PodExecOptions", STREAM),
        subresource_of("log", "Pod", &[Verb::Get]),
        subresource_of("portforward", "PodPortForwardOptions", STREAM),
        subresource_of("resize", "Pod", READ_WRITE_PART),
        status_of("Pod"),
    ],
    storage: "pods",
    ..COMMON
};

pub static SECRETS: Resource = Resource {
    plural: "secrets",
    singular: "secret",
    kind: "Secret",
    storage: "secrets",
    ..COMMON
};

pub static SERVICE_ACCOUNTS: Resource = Resource {
    plural: "serviceaccounts",
    singular: "serviceaccount",
    kind: "ServiceAccount",
    short_names: &["sa"],
    subresources: &[Subresource {
        name: "token",
        kind: "TokenRequest",
        group_version: Some(("authentication.k8s.io", "v1")),
        verbs: CREATE,
    }],
    storage: "serviceaccounts",
    ..COMMON
};

/// Read only: a service needs a proxy on every node and a DNS server, and a single machine has
/// neither.
pub static SERVICES: Resource = Resource {
    plural: "services",
    singular: "service",
    kind: "Service",
    short_names: &["svc"],
    categories: &["all"],
    verbs: READ,
    storage: "services",
    ..COMMON
};

pub static LEASES: Resource = Resource {
    group: "coordination.k8s.io",
    plural: "leases",
    singular: "lease",
    kind: "Lease",
    storage: "leases",
    durability: Durability::DiskExceptIn("kube-node-lease"),
    ..COMMON
};

pub static RUNTIME_CLASSES: Resource = Resource {
    group: "node.k8s.io",
    plural: "runtimeclasses",
    singular: "runtimeclass",
    kind: "RuntimeClass",
    namespaced: false,
    storage: "runtimeclasses",
    ..COMMON
};

pub static PRIORITY_CLASSES: Resource = Resource {
    group: "scheduling.k8s.io",
    plural: "priorityclasses",
    singular: "priorityclass",
    kind: "PriorityClass",
    namespaced: false,
    short_names: &["pc"],
    storage: "priorityclasses",
    ..COMMON
};

const RBAC: Resource = Resource { group: "rbac.authorization.k8s.io", ..COMMON };

pub static CLUSTER_ROLE_BINDINGS: Resource = Resource {
    plural: "clusterrolebindings",
    singular: "clusterrolebinding",
    kind: "ClusterRoleBinding",
    namespaced: false,
    storage: "clusterrolebindings",
    ..RBAC
};

pub static CLUSTER_ROLES: Resource = Resource {
    plural: "clusterroles",
    singular: "clusterrole",
    kind: "ClusterRole",
    namespaced: false,
    storage: "clusterroles",
    ..RBAC
};

pub static ROLE_BINDINGS: Resource = Resource {
    plural: "rolebindings",
    singular: "rolebinding",
    kind: "RoleBinding",
    storage: "rolebindings",
    ..RBAC
};

pub static ROLES: Resource =
    Resource { plural: "roles", singular: "role", kind: "Role", storage: "roles", ..RBAC };

/// A review is computed and not stored, hence the empty `storage`.
const REVIEW: Resource =
    Resource { namespaced: false, verbs: CREATE, group: "authorization.k8s.io", ..COMMON };

pub static TOKEN_REVIEWS: Resource = Resource {
    group: "authentication.k8s.io",
    plural: "tokenreviews",
    singular: "tokenreview",
    kind: "TokenReview",
    ..REVIEW
};

/// The caller's own identity.
pub static SELF_SUBJECT_REVIEWS: Resource = Resource {
    group: "authentication.k8s.io",
    plural: "selfsubjectreviews",
    singular: "selfsubjectreview",
    kind: "SelfSubjectReview",
    ..REVIEW
};

pub static SELF_SUBJECT_ACCESS_REVIEWS: Resource = Resource {
    plural: "selfsubjectaccessreviews",
    singular: "selfsubjectaccessreview",
    kind: "SelfSubjectAccessReview",
    ..REVIEW
};

/// The caller's own permissions.
pub static SELF_SUBJECT_RULES_REVIEWS: Resource = Resource {
    plural: "selfsubjectrulesreviews",
    singular: "selfsubjectrulesreview",
    kind: "SelfSubjectRulesReview",
    ..REVIEW
};

pub static SUBJECT_ACCESS_REVIEWS: Resource = Resource {
    plural: "subjectaccessreviews",
    singular: "subjectaccessreview",
    kind: "SubjectAccessReview",
    ..REVIEW
};

/// Measured on request and not stored, hence the empty `storage`.
const MEASURED: Resource =
    Resource { group: "metrics.k8s.io", version: "v1beta1", verbs: GET_LIST, ..COMMON };

pub static NODE_METRICS: Resource =
    Resource { plural: "nodes", kind: "NodeMetrics", namespaced: false, ..MEASURED };

pub static POD_METRICS: Resource = Resource { plural: "pods", kind: "PodMetrics", ..MEASURED };

/// All served resources, in the order of discovery.
pub static RESOURCES: &[&Resource] = &[
    &CONFIG_MAPS,
    &EVENTS,
    &NAMESPACES,
    &NODES,
    &PERSISTENT_VOLUME_CLAIMS,
    &PERSISTENT_VOLUMES,
    &PODS,
    &SECRETS,
    &SERVICE_ACCOUNTS,
    &SERVICES,
    &EVENTS_V1,
    &SELF_SUBJECT_REVIEWS,
    &TOKEN_REVIEWS,
    &SELF_SUBJECT_ACCESS_REVIEWS,
    &SELF_SUBJECT_RULES_REVIEWS,
    &SUBJECT_ACCESS_REVIEWS,
    &CLUSTER_ROLE_BINDINGS,
    &CLUSTER_ROLES,
    &ROLE_BINDINGS,
    &ROLES,
    &PRIORITY_CLASSES,
    &LEASES,
    &RUNTIME_CLASSES,
    &NODE_METRICS,
    &POD_METRICS,
];
