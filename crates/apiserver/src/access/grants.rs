//! Escalation checks: a user that writes a role or a binding needs the permissions that it grants.
//!
//! As in kube-apiserver: the verb `escalate` on the role, or `bind` on the role that a binding
//! refers to, replaces the permissions themselves; `system:masters` needs neither.

use podwright_api::rbac::{self, PolicyRule, RoleKind, User};
use serde_json::Value;

use super::{AccessRequest, Attributes, Identity, MASTERS};
use crate::object::Object;
use crate::registry::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;

impl ApiServer {
    /// Checks a new role or binding (`old` is `None`), or the change of one.
    pub(crate) fn check_grant(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        old: Option<&Object>,
        new: &Object,
    ) -> Result<(), ApiError> {
        let is_role = info.resource == &ROLES || info.resource == &CLUSTER_ROLES;
        let is_binding = info.resource == &ROLE_BINDINGS || info.resource == &CLUSTER_ROLE_BINDINGS;
        if !(is_role || is_binding)
            || identity.is_in(MASTERS)
            || old.is_some_and(|old| differ_only_in_references(old, new))
        {
            return Ok(());
        }
        if is_role {
            return self.check_role(identity, info, old, new);
        }
        self.check_binding(identity, info, new)
    }

    fn check_role(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        old: Option<&Object>,
        new: &Object,
    ) -> Result<(), ApiError> {
        if self.may(identity, "escalate", info.resource.plural, &info.namespace, &info.name) {
            return Ok(());
        }
        let rules = rules_in(new)
            .map_err(|error| ApiError::bad_request(format!("the rules cannot be read: {error}")))?;
        self.check_held(identity, info, new, &rules)?;
        let aggregates = |role: &Object| {
            let selectors = role.value().pointer("/aggregationRule/clusterRoleSelectors");
            selectors.and_then(Value::as_array).is_some_and(|list| !list.is_empty())
        };
        if aggregates(new) || old.is_some_and(aggregates) {
            let all = rbac::defaults::cluster_roles();
            let all = all.into_iter().find(|role| role.name == "cluster-admin");
            let all = all.map(|role| role.rules).unwrap_or_default();
            self.check_held(identity, info, new, &all).map_err(|_| {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                ApiError::forbidden(info.resource, new.name(), why)
            })?;
        }
        Ok(())
    }

    fn check_binding(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        new: &Object,
    ) -> Result<(), ApiError> {
        let name = new.text("/roleRef/name");
        let Some(kind) = RoleKind::parse(new.text("/roleRef/kind")) else {
            return Ok(()); // refused by validation
        };
        let role = match kind {
            RoleKind::Role => &ROLES,
            RoleKind::ClusterRole => &CLUSTER_ROLES,
        };
        if self.may(identity, "bind", role.plural, &info.namespace, name) {
            return Ok(());
        }
        let policy = self.policy()?;
        match policy.referenced(kind, name, &info.namespace) {
            Ok(rules) => self.check_held(identity, info, new, rules),
            Err(_) => Err(ApiError::not_found(role, name)),
        }
    }

    fn check_held(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        new: &Object,
        rules: &[PolicyRule],
    ) -> Result<(), ApiError> {
        let user = User { name: &identity.user, groups: &identity.groups };
        let held = self.policy()?.rules_of(user, &info.namespace);
        match rbac::escalation(user, &held, rules) {
            Some(why) => Err(ApiError::forbidden(info.resource, new.name(), &why)),
            None => Ok(()),
        }
    }

    fn may(
        &self,
        identity: &Identity,
        verb: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> bool {
        let requested =
            Attributes { verb, group: rbac::GROUP, resource, subresource: "", namespace, name };
        self.authorize(identity, &AccessRequest::Objects(requested)).is_ok()
    }
}

fn rules_in(role: &Object) -> serde_json::Result<Vec<PolicyRule>> {
    let rules = role.get("rules").cloned().unwrap_or_default();
    Ok(serde_json::from_value::<Option<Vec<PolicyRule>>>(rules)?.unwrap_or_default())
}

/// Whether a change only concerns what the garbage collector needs.
fn differ_only_in_references(old: &Object, new: &Object) -> bool {
    let without = |object: &Object| {
        let mut object = object.clone();
        for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
            object.set_meta(field, None);
        }
        object
    };
    without(old) == without(new)
}
