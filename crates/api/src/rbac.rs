//! Role-based access control: which request a set of roles and bindings allows, and whether a user
//! may grant a role.
//!
//! As in Kubernetes: bindings only add permissions, nothing denies; a RoleBinding grants within its
//! namespace, a ClusterRoleBinding everywhere; a user grants only permissions that it has, unless it
//! has the verb `escalate` or `bind`.

pub mod aggregation;
pub mod defaults;
mod rule;

use std::collections::BTreeMap;

use rule::{MAX_PARTS, is_comparable};
pub use rule::{ObjectRequest, PolicyRule, missing, union};

/// API group of roles and bindings.
pub const GROUP: &str = "rbac.authorization.k8s.io";

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Objects(ObjectRequest<'a>),
    /// A path that is not an object's.
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

impl Request<'_> {
    /// Empty for the whole cluster.
    fn namespace(&self) -> &str {
        match self {
            Self::Objects(request) => request.namespace,
            Self::Path { .. } => "",
        }
    }
}

/// A user with its groups.
#[derive(Clone, Copy, Debug)]
pub struct User<'a> {
    pub name: &'a str,
    pub groups: &'a [String],
}

/// Kind of the role that a binding refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    Role,
    ClusterRole,
}

impl RoleKind {
    pub fn parse(kind: &str) -> Option<Self> {
        match kind {
            "Role" => Some(Self::Role),
            "ClusterRole" => Some(Self::ClusterRole),
            _ => None,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Role => "Role",
            Self::ClusterRole => "ClusterRole",
        }
    }
}

/// One subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

impl Subject {
    fn covers(&self, user: User<'_>, binding_namespace: &str) -> bool {
        match self {
            Self::User(name) => user.name == name,
            Self::Group(name) => user.groups.contains(name),
            Self::ServiceAccount { namespace, name } => {
                let namespace = if namespace.is_empty() { binding_namespace } else { namespace };
                let account = user.name.strip_prefix("system:serviceaccount:");
                !namespace.is_empty()
                    && account.and_then(|rest| rest.split_once(':')) == Some((namespace, name))
            }
        }
    }

    fn describe(&self, binding_namespace: &str) -> String {
        match self {
            Self::User(name) => format!("User \"{name}\""),
            Self::Group(name) => format!("Group \"{name}\""),
            Self::ServiceAccount { namespace, name } => {
                let namespace = if namespace.is_empty() { binding_namespace } else { namespace };
                format!("ServiceAccount \"{name}/{namespace}\"")
            }
        }
    }
}

/// A RoleBinding, or a ClusterRoleBinding if its namespace is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub namespace: String,
    pub name: String,
    pub subjects: Vec<Subject>,
    pub role_kind: RoleKind,
    pub role_name: String,
}

impl Binding {
    fn describe(&self, subject: &Subject) -> String {
        let subject = subject.describe(&self.namespace);
        let role = format!("{} \"{}\"", self.role_kind.as_str(), self.role_name);
        if self.namespace.is_empty() {
            return format!("ClusterRoleBinding \"{}\" of {role} to {subject}", self.name);
        }
        format!("RoleBinding \"{}/{}\" of {role} to {subject}", self.name, self.namespace)
    }
}

/// All roles and bindings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// By namespace and name.
    pub roles: BTreeMap<(String, String), Vec<PolicyRule>>,
    pub cluster_roles: BTreeMap<String, Vec<PolicyRule>>,
    pub bindings: Vec<Binding>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With the binding that allows it.
    Allowed(String),
    /// With the bindings of the user whose role does not exist, if any.
    Denied(String),
}

/// A role that a binding refers to and that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{resource}.{GROUP} \"{name}\" not found")]
pub struct UnknownRole {
    pub kind: RoleKind,
    resource: &'static str,
    pub name: String,
}

impl Policy {
    /// Whether the bindings allow the request.
    pub fn decide(&self, user: User<'_>, request: &Request<'_>) -> Decision {
        let mut unknown = Vec::new();
        for (binding, subject) in self.bindings_of(user, request.namespace()) {
            let namespace = &binding.namespace;
            match self.referenced(binding.role_kind, &binding.role_name, namespace) {
                // A path is not in a namespace, so only cluster-wide bindings reach here.
                Ok(rules) if rules.iter().any(|rule| rule.allows(request)) => {
                    let by = binding.describe(subject);
                    return Decision::Allowed(format!("RBAC: allowed by {by}"));
                }
                Ok(_) => {}
                Err(error) => unknown.push(error.to_string()),
            }
        }
        Decision::Denied(match unknown.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        })
    }

    /// All rules that apply to a user in a namespace; cluster-wide ones only, if it is empty.
    pub fn rules_of(&self, user: User<'_>, namespace: &str) -> Vec<PolicyRule> {
        let mut rules = Vec::new();
        for (binding, _) in self.bindings_of(user, namespace) {
            let found = self.referenced(binding.role_kind, &binding.role_name, &binding.namespace);
            rules.extend(found.unwrap_or_default().iter().cloned());
        }
        rules
    }

    /// Rules of a role, as a binding in `namespace` refers to it.
    pub fn referenced(
        &self,
        kind: RoleKind,
        name: &str,
        namespace: &str,
    ) -> Result<&[PolicyRule], UnknownRole> {
        let (found, resource) = match kind {
            RoleKind::Role => (self.roles.get(&(namespace.to_owned(), name.to_owned())), "role"),
            RoleKind::ClusterRole => (self.cluster_roles.get(name), "clusterrole"),
        };
        found.map(Vec::as_slice).ok_or_else(|| UnknownRole {
            kind,
            resource,
            name: name.to_owned(),
        })
    }

    /// Cluster-wide bindings first, then those of the namespace.
    fn bindings_of<'p>(
        &'p self,
        user: User<'p>,
        namespace: &'p str,
    ) -> impl Iterator<Item = (&'p Binding, &'p Subject)> {
        let within = move |place: &'p str| {
            let bindings = self.bindings.iter().filter(move |binding| binding.namespace == place);
            bindings.filter_map(move |binding| {
                let mut subjects = binding.subjects.iter();
                let subject = subjects.find(|subject| subject.covers(user, place))?;
                Some((binding, subject))
            })
        };
        let local = Some(namespace).filter(|namespace| !namespace.is_empty());
        within("").chain(local.into_iter().flat_map(within))
    }
}

/// The refusal of a grant, in kube-apiserver's wording; `None` if the user holds all rules.
pub fn escalation(user: User<'_>, held: &[PolicyRule], granted: &[PolicyRule]) -> Option<String> {
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let who = format!("user {:?} (groups=[{}])", user.name, groups.join(" "));
    if !is_comparable(held, granted) {
        return Some(format!(
            "{who} is attempting to grant more RBAC permissions at once than can be compared with \
             those held. Fix: use several roles, of less than {MAX_PARTS} combinations of group, \
             resource, name and verb each"
        ));
    }
    let missing = missing(held, granted);
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "{who} is attempting to grant RBAC permissions not currently held:\n{}",
        missing.join("\n")
    ))
}

#[cfg(test)]
mod tests;
