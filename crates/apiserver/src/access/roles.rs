//! Roles of service accounts.
//!
//! Pods get a token of their account by default, so a token alone grants nothing. Full RBAC would
//! be four more kinds for one machine; here an annotation gives an account a role, and a refusal
//! names the command for that.

use super::Attributes;
use crate::registry;
use crate::server::ApiServer;
use crate::store::Key;

/// Annotation of a ServiceAccount with the role of its pods.
pub const ROLE_ANNOTATION: &str = "podwright/role";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads everything but Secrets, in the account's own namespace.
    View,
    /// Reads and writes in the account's own namespace, except service accounts: it could give
    /// itself a higher role.
    Edit,
    /// Everything, everywhere.
    Admin,
}

impl Role {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "view" => Some(Self::View),
            "edit" => Some(Self::Edit),
            "admin" => Some(Self::Admin),
            _ => None,
        }
    }

    fn allows(self, own_namespace: &str, requested: &Attributes<'_>) -> bool {
        let reading = matches!(requested.verb, "get" | "list" | "watch");
        let in_scope = self == Self::Admin || requested.namespace == own_namespace;
        let reads = reading && self.reads(requested.resource, requested.subresource);
        in_scope && (reads || self.writes(requested.resource))
    }

    /// Whether it may read this resource, within its scope.
    pub(super) fn reads(self, resource: &str, subresource: &str) -> bool {
        match self {
            // A GET of these runs commands.
            Self::View if matches!(subresource, "exec" | "attach" | "portforward") => false,
            Self::View => resource != "secrets",
            Self::Edit | Self::Admin => true,
        }
    }

    /// Whether it may write this resource, within its scope.
    pub(super) fn writes(self, resource: &str) -> bool {
        match self {
            Self::View => false,
            Self::Edit => resource != "serviceaccounts",
            Self::Admin => true,
        }
    }
}

impl ApiServer {
    /// The role of an account; `None` without an annotation or with an unknown value.
    pub(super) fn role_of(&self, namespace: &str, name: &str) -> Option<Role> {
        let key = Key::new(&registry::SERVICE_ACCOUNTS, namespace, name);
        let account = self.read(&registry::SERVICE_ACCOUNTS, &key).ok().flatten()?;
        Role::parse(account.annotation(ROLE_ANNOTATION)?)
    }
}

pub(super) fn allow(
    role: Option<Role>,
    namespace: &str,
    name: &str,
    requested: &Attributes<'_>,
) -> Result<(), String> {
    if role.is_some_and(|role| role.allows(namespace, requested)) {
        return Ok(());
    }
    let has = match role {
        None => "this account has no role",
        Some(Role::View) => "this account may only view its own namespace, and no Secrets",
        Some(Role::Edit) => "this account may only edit its own namespace, and no accounts",
        Some(Role::Admin) => "",
    };
    Err(format!(
        "{has}; to give it one: kubectl annotate --overwrite serviceaccount --namespace {namespace} {name} \
         {ROLE_ANNOTATION}=view (or edit, or admin)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_allows_only_what_it_states() {
        let requested = |verb, resource, subresource, namespace| Attributes {
            verb,
            resource,
            subresource,
            namespace,
            ..Attributes::default()
        };
        for (case, attributes, [none, view, edit, admin]) in [
            ("read pods", requested("list", "pods", "", "home"), [false, true, true, true]),
            ("elsewhere", requested("list", "pods", "", "other"), [false, false, false, true]),
            ("everywhere", requested("list", "pods", "", ""), [false, false, false, true]),
            ("read a log", requested("get", "pods", "log", "home"), [false, true, true, true]),
            ("run a command", requested("get", "pods", "exec", "home"), [false, false, true, true]),
            ("read secrets", requested("get", "secrets", "", "home"), [false, false, true, true]),
            ("create pods", requested("create", "pods", "", "home"), [false, false, true, true]),
            (
                "raise itself",
                requested("patch", "serviceaccounts", "", "home"),
                [false, false, false, true],
            ),
            (
                "another's token",
                requested("create", "serviceaccounts", "token", "home"),
                [false, false, false, true],
            ),
            ("read nodes", requested("get", "nodes", "", ""), [false, false, false, true]),
        ] {
            for (role, want) in [
                (None, none),
                (Some(Role::View), view),
                (Some(Role::Edit), edit),
                (Some(Role::Admin), admin),
            ] {
                let allowed = allow(role, "home", "default", &attributes).is_ok();
                assert_eq!(allowed, want, "{case}: {role:?}");
            }
        }
    }

    #[test]
    fn refusal_names_the_command_that_grants_access() {
        let requested = Attributes { verb: "list", resource: "pods", ..Attributes::default() };
        let refusal = allow(None, "home", "robot", &requested).err().unwrap_or_default();
        let command = "kubectl annotate --overwrite serviceaccount --namespace home robot \
                       podwright/role=view";
        assert!(refusal.contains(command), "{refusal}");
    }
}
