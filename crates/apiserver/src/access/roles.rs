//! What a service account may do.
//!
//! Pods get a token of their account whether they want one or not, so a token alone opens nothing.
//! A whole RBAC would be four more kinds to learn for one machine; here an account is given a role
//! by an annotation, and a refusal names the command that does it.

use super::Attributes;
use crate::registry;
use crate::server::ApiServer;
use crate::store::Key;

/// On a ServiceAccount, says what its pods may do.
pub const ROLE_ANNOTATION: &str = "podwright/role";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads everything but Secrets, in the account's own namespace.
    View,
    /// Reads and writes in the account's own namespace; accounts themselves are out of reach, or
    /// it could give itself the next role.
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

    fn allows(self, home: &str, asked: &Attributes<'_>) -> bool {
        let reading = matches!(asked.verb, "get" | "list" | "watch");
        let here = self == Self::Admin || asked.namespace == home;
        let reads = reading && self.reads(asked.resource, asked.subresource);
        here && (reads || self.writes(asked.resource))
    }

    /// Whether it reads what is within its reach.
    pub(super) fn reads(self, resource: &str, subresource: &str) -> bool {
        match self {
            // A GET of these is no reading: it runs commands.
            Self::View if matches!(subresource, "exec" | "attach" | "portforward") => false,
            Self::View => resource != "secrets",
            Self::Edit | Self::Admin => true,
        }
    }

    /// Whether it does everything with what is within its reach.
    pub(super) fn writes(self, resource: &str) -> bool {
        match self {
            Self::View => false,
            Self::Edit => resource != "serviceaccounts",
            Self::Admin => true,
        }
    }
}

impl ApiServer {
    /// The role of an account; none if it has no annotation, or one that nobody understands.
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
    asked: &Attributes<'_>,
) -> Result<(), String> {
    if role.is_some_and(|role| role.allows(namespace, asked)) {
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
    fn a_role_opens_what_it_says_and_nothing_else() {
        let asked = |verb, resource, subresource, namespace| Attributes {
            verb,
            resource,
            subresource,
            namespace,
            ..Attributes::default()
        };
        for (case, question, [none, view, edit, admin]) in [
            ("read pods", asked("list", "pods", "", "home"), [false, true, true, true]),
            ("elsewhere", asked("list", "pods", "", "other"), [false, false, false, true]),
            ("everywhere", asked("list", "pods", "", ""), [false, false, false, true]),
            ("read a log", asked("get", "pods", "log", "home"), [false, true, true, true]),
            ("run a command", asked("get", "pods", "exec", "home"), [false, false, true, true]),
            ("read secrets", asked("get", "secrets", "", "home"), [false, false, true, true]),
            ("make pods", asked("create", "pods", "", "home"), [false, false, true, true]),
            (
                "raise itself",
                asked("patch", "serviceaccounts", "", "home"),
                [false, false, false, true],
            ),
            (
                "another's token",
                asked("create", "serviceaccounts", "token", "home"),
                [false, false, false, true],
            ),
            ("read nodes", asked("get", "nodes", "", ""), [false, false, false, true]),
        ] {
            for (role, want) in [
                (None, none),
                (Some(Role::View), view),
                (Some(Role::Edit), edit),
                (Some(Role::Admin), admin),
            ] {
                let allowed = allow(role, "home", "default", &question).is_ok();
                assert_eq!(allowed, want, "{case}: {role:?}");
            }
        }
    }

    #[test]
    fn a_refusal_says_how_to_be_allowed() {
        let asked = Attributes { verb: "list", resource: "pods", ..Attributes::default() };
        let refusal = allow(None, "home", "robot", &asked).err().unwrap_or_default();
        let command = "kubectl annotate --overwrite serviceaccount --namespace home robot \
                       podwright/role=view";
        assert!(refusal.contains(command), "{refusal}");
    }
}
