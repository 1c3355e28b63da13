//! Authorization: identities, and what each may do.
//!
//! The outer layer authenticates (by certificate or token) and attaches an [`Identity`] to the
//! request. The machine's owner may do everything, the node what a node needs ([`node`]), a service
//! account what its role allows ([`roles`]), which without a role is nothing.

pub(crate) mod impersonation;
pub mod node;
pub mod roles;
mod rules;

use std::collections::BTreeMap;

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

/// What is requested. Names are strings: reviews may ask about kinds that are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessRequest<'a> {
    Objects(Attributes<'a>),
    /// Discovery, health and the like.
    Path {
        verb: &'a str,
        path: &'a str,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    pub verb: &'a str,
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    /// Empty for the whole cluster.
    pub namespace: &'a str,
    /// Empty for all.
    pub name: &'a str,
}

impl<'a> From<&'a RequestInfo> for Attributes<'a> {
    fn from(info: &'a RequestInfo) -> Self {
        Self {
            verb: info.verb.as_str(),
            group: info.resource.group,
            resource: info.resource.plural,
            subresource: info.subresource.map_or("", |sub| sub.name),
            namespace: &info.namespace,
            name: &info.name,
        }
    }
}

impl ApiServer {
    /// `Err` has the reason, to be appended to the message of a refusal; it may be empty.
    pub(crate) fn authorize(
        &self,
        identity: &Identity,
        requested: &AccessRequest<'_>,
    ) -> Result<(), String> {
        if identity.is_in(MASTERS) {
            return Ok(());
        }
        match requested {
            AccessRequest::Path { path, .. } => allow_path(identity, path),
            // Every authenticated user may review its own identity and permissions.
            AccessRequest::Objects(Attributes { verb: "create", resource, .. })
                if identity.is_in(AUTHENTICATED) && rules::SELF_REVIEWS.contains(resource) =>
            {
                Ok(())
            }
            AccessRequest::Objects(requested) => match identity.kind() {
                IdentityKind::Node(name) => node::allow(name, requested),
                IdentityKind::ServiceAccount { namespace, name } => {
                    roles::allow(self.role_of(namespace, name), namespace, name, requested)
                }
                IdentityKind::Other => Err(String::new()),
            },
        }
    }
}

/// Health is public; discovery is for authenticated users.
fn allow_path(identity: &Identity, path: &str) -> Result<(), String> {
    let first = path.split('/').find(|part| !part.is_empty()).unwrap_or_default();
    if identity.is_in(AUTHENTICATED) || matches!(first, "healthz" | "livez" | "readyz" | "version")
    {
        return Ok(());
    }
    Err(String::new())
}

/// The refusal in kube-apiserver's wording, with the authorizer's reason at the end.
pub fn denied(identity: &Identity, info: &RequestInfo, why: &str) -> ApiError {
    let scope = match info.namespace_option() {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let end = if why.is_empty() { String::new() } else { format!(": {why}") };
    ApiError::forbidden(
        info.resource,
        &info.name,
        &format!(
            "User \"{}\" cannot {} resource \"{}\" in API group \"{}\" {scope}{end}",
            identity.user,
            info.verb,
            info.full_resource(),
            info.resource.group
        ),
    )
}
