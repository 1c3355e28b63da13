//! Who asks, and whether they may.
//!
//! The outer layer finds out *who* (a certificate, a token) and attaches an [`Identity`] to the
//! request; an [`Authorizer`] decides. Nothing behind this module asks again.

use crate::request::RequestInfo;
use crate::status::ApiError;

/// The asker. Rides on a request as an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
}

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";

impl Identity {
    /// The machine's owner, and the parts of this very process.
    pub fn admin() -> Self {
        Self {
            user: "kubernetes-admin".to_owned(),
            uid: String::new(),
            groups: vec![MASTERS.to_owned(), "system:authenticated".to_owned()],
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

/// Decides.
pub trait Authorizer: Send + Sync + std::fmt::Debug {
    /// `Err` says why not, in words that end the sentence of a refusal; they may be empty.
    fn authorize(&self, who: &Identity, asked: &Asked<'_>) -> Result<(), String>;
}

/// Everything for [`MASTERS`], discovery for everybody, nothing else for anybody.
#[derive(Clone, Copy, Debug, Default)]
pub struct MastersOnly;

impl Authorizer for MastersOnly {
    fn authorize(&self, who: &Identity, asked: &Asked<'_>) -> Result<(), String> {
        match asked {
            Asked::Objects(_) if !who.is_in(MASTERS) => Err(String::new()),
            Asked::Path { .. } | Asked::Objects(_) => Ok(()),
        }
    }
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
