//! Who asks, and whether they may.
//!
//! The outer layer finds out *who* (a certificate, a token) and attaches an [`Identity`] to the
//! request. The machine's owner may do everything, the node what a node needs ([`node`]), a
//! service account what its role says ([`roles`]), which without a role is nothing.

pub(crate) mod impersonation;
pub mod node;
pub mod roles;
mod rules;

use std::collections::BTreeMap;

use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;

/// The asker. Rides on a request as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// What else is known of them: which credential they showed, which pod speaks.
    pub extra: BTreeMap<&'static str, Vec<String>>,
}

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of everybody who is known.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The extra that tells credentials of one user apart.
pub(crate) const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

/// What an identity is to this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    Node(&'a str),
    ServiceAccount { namespace: &'a str, name: &'a str },
    Other,
}

impl Identity {
    /// The machine's owner, and the parts of this very process.
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

    /// Somebody who shows nothing.
    pub fn anonymous() -> Self {
        Self {
            user: "system:anonymous".to_owned(),
            uid: String::new(),
            groups: vec!["system:unauthenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }

    pub fn part(&self) -> Part<'_> {
        if let Some(name) = self.user.strip_prefix(NODE_PREFIX).filter(|_| self.is_in(NODES)) {
            return Part::Node(name);
        }
        match self.user.strip_prefix(ACCOUNT_PREFIX).and_then(|rest| rest.split_once(':')) {
            Some((namespace, name)) => Part::ServiceAccount { namespace, name },
            None => Part::Other,
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }
}

/// What is asked for. Names are text: somebody may ask about kinds that are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
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
    /// `Err` says why not, in words that end the sentence of a refusal; they may be empty.
    pub(crate) fn authorize(&self, who: &Identity, asked: &Asked<'_>) -> Result<(), String> {
        if who.is_in(MASTERS) {
            return Ok(());
        }
        match asked {
            Asked::Path { path, .. } => allow_path(who, path),
            // Everybody may ask who they are and what they may.
            Asked::Objects(Attributes { verb: "create", resource, .. })
                if who.is_in(AUTHENTICATED) && rules::ABOUT_ONESELF.contains(resource) =>
            {
                Ok(())
            }
            Asked::Objects(asked) => match who.part() {
                Part::Node(name) => node::allow(name, asked),
                Part::ServiceAccount { namespace, name } => {
                    roles::allow(self.role_of(namespace, name), namespace, name, asked)
                }
                Part::Other => Err(String::new()),
            },
        }
    }
}

/// Whether it lives is for everybody to know, what it serves for everybody it knows.
fn allow_path(who: &Identity, path: &str) -> Result<(), String> {
    let first = path.split('/').find(|part| !part.is_empty()).unwrap_or_default();
    if who.is_in(AUTHENTICATED) || matches!(first, "healthz" | "livez" | "readyz" | "version") {
        return Ok(());
    }
    Err(String::new())
}

/// The refusal in kube-apiserver's words, with the authorizer's own at the end.
pub fn denied(who: &Identity, info: &RequestInfo, why: &str) -> ApiError {
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
            who.user,
            info.verb,
            info.full_resource(),
            info.resource.group
        ),
    )
}
