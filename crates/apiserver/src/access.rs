//! Authorization: identities, and what each may do.
//!
//! The outer layer authenticates (by certificate or token) and attaches an [`Identity`] to the
//! request. The machine's owner may do everything, the node what a node needs ([`node`]), and
//! everyone else what roles and bindings grant ([`policy`]).

mod grants;
pub(crate) mod impersonation;
pub mod node;
pub(crate) mod policy;
mod rules;

use std::collections::BTreeMap;

use podwright_api::rbac::{Decision, User};
pub use podwright_api::rbac::{ObjectRequest as Attributes, Request as AccessRequest};

use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;

/// The user of a request. Attached to it as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes: which credential was used, from which pod.
    pub extra: BTreeMap<&'static str, Vec<String>>,
}

/// Group that may do everything.
pub const MASTERS: &str = "system:masters";
/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Extra key that distinguishes the credentials of one user.
pub(crate) const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// Role of an identity on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityKind<'a> {
    Node(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
    Other,
}

impl Identity {
    /// The machine's owner, and this process itself.
    pub fn admin() -> Self {
        Self {
            user: "kubernetes-admin".to_owned(),
            uid: String::new(),
            groups: vec![MASTERS.to_owned(), AUTHENTICATED.to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// The node agent.
    pub fn node(name: &str) -> Self {
        Self {
            user: format!("{NODE_PREFIX}{name}"),
            uid: String::new(),
            groups: vec![NODES.to_owned(), AUTHENTICATED.to_owned()],
            extra: BTreeMap::new(),
        }
    }

    /// A request without credentials.
    pub fn anonymous() -> Self {
        Self {
            user: "system:anonymous".to_owned(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    pub fn kind(&self) -> IdentityKind<'_> {
        if let Some(name) = self.user.strip_prefix(NODE_PREFIX).filter(|_| self.is_in(NODES)) {
            return IdentityKind::Node(name);
        }
        match self.user.strip_prefix(ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':')) {
            Some((namespace, name)) => IdentityKind::ServiceAccount { namespace, name },
            None => IdentityKind::Other,
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }
}

impl<'a> From<&'a RequestInfo> for Attributes<'a> {
    fn from(info: &'a RequestInfo) -> Self {
        Self {
            verb: info.verb.as_str(),
            group: info.resource.group,
            resource: info.resource.plural,
            subresource: info.subresource.map_or("", |sub| sub.name),
            // A request for a namespace is a request in it.
            namespace: match info.resource.storage {
                "namespaces" => &info.name,
                _ => &info.namespace,
            },
            name: &info.name,
        }
    }
}

impl ApiServer {
    /// The reason in either case; it may be empty.
    pub(crate) fn authorize(
        &self,
        identity: &Identity,
        requested: &AccessRequest<'_>,
    ) -> Result<String, String> {
        if identity.is_in(MASTERS) {
            return Ok(String::new());
        }
        let mut reasons = Vec::new();
        if let (IdentityKind::Node(name), AccessRequest::Objects(requested)) =
            (identity.kind(), requested)
        {
            match node::allow(name, requested) {
                Ok(()) => return Ok(String::new()),
                Err(reason) => reasons.push(reason),
            }
        }
        let user = User { name: &identity.user, groups: &identity.groups };
        match self.policy().map(|policy| policy.decide(user, requested)) {
            Ok(Decision::Allowed(reason)) => return Ok(reason),
            Ok(Decision::Denied(reason)) => reasons.push(reason),
            Err(error) => reasons.push(error.to_string()),
        }
        if let (IdentityKind::ServiceAccount { namespace, name }, AccessRequest::Objects(_)) =
            (identity.kind(), requested)
        {
            reasons.push(format!(
                "to grant it a role: kubectl create rolebinding --namespace {namespace} {name} \
                 --clusterrole view --serviceaccount {namespace}:{name} (or edit, which also \
                 changes pods, runs commands in them and uses their service accounts; or admin, \
                 which also grants roles)"
            ));
        }
        reasons.retain(|reason| !reason.is_empty());
        Err(reasons.join("; "))
    }
}

/// The refusal in kube-apiserver's wording, with the authorizer's reason at the end.
pub fn denied(identity: &Identity, requested: &Attributes<'_>, why: &str) -> ApiError {
    let scope = match requested.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let resource = match requested.subresource {
        "" => requested.resource.to_owned(),
        part => format!("{}/{part}", requested.resource),
    };
    let end = if why.is_empty() { String::new() } else { format!(": {why}") };
    ApiError::access_forbidden(
        requested,
        &format!(
            "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" {scope}{end}",
            identity.user, requested.verb, requested.group
        ),
    )
}
