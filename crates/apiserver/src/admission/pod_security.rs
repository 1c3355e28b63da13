//! Pod Security admission: refuses pods below the level of their namespace.
//!
//! A namespace without a level has `baseline` for everyone but the owner of the machine, who is root
//! already, and the node, which only reports static pods. The exemption is that of the caller. No
//! controller of this server makes pods, so there is none whose author has to be found.

use podwright_api::pod_security::{
    Level, details, existing_pods, is_significant, namespace_policy, violations,
};
use serde_json::Value;

use crate::access::{Identity, IdentityKind, MASTERS};
use crate::events;
use crate::object::Object;
use crate::registry::{NAMESPACES, PODS};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::{ApiError, FieldError};
use crate::store::{Key, Scope};

/// Number of pods that are checked when a namespace gets a stricter level.
const MAX_PODS: usize = 3000;

/// Whether objects of this kind are checked.
pub(crate) fn concerns(info: &RequestInfo) -> bool {
    info.resource == &PODS || info.resource == &NAMESPACES
}

impl ApiServer {
    /// Checks a new pod or namespace (`old` is `None`), or a change. Returns warnings.
    pub(crate) fn check_pod_security(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        old: Option<&Object>,
        new: &Object,
    ) -> Result<Vec<String>, ApiError> {
        let part = info.subresource.map(|sub| sub.name);
        match part {
            None if info.resource == &NAMESPACES => self.check_namespace_levels(info, old, new),
            None | Some("ephemeralcontainers") if info.resource == &PODS => {
                let unchanged = old.is_some_and(|old| !is_significant(new.value(), old.value()));
                if unchanged { Ok(Vec::new()) } else { self.check_pod_level(identity, info, new) }
            }
            None | Some(_) => Ok(Vec::new()),
        }
    }

    fn check_pod_level(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        pod: &Object,
    ) -> Result<Vec<String>, ApiError> {
        let is_exempt = identity.is_in(MASTERS) || matches!(identity.kind(), IdentityKind::Node(_));
        let default = if is_exempt { Level::Privileged } else { Level::Baseline };
        let key = Key::new(&NAMESPACES, "", &info.namespace);
        let Some(namespace) = self.read(&NAMESPACES, &key)? else {
            return Ok(Vec::new()); // refused because the namespace does not exist
        };
        let (policy, _) = namespace_policy(|key| namespace.label(key), default);
        let found = violations(policy.enforce, pod.value());
        if !found.is_empty() {
            let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, details(&found));
            return Err(ApiError::forbidden(&PODS, pod.shown_name(), &why));
        }
        let found = violations(policy.warn, pod.value());
        let warning = format!("would violate PodSecurity \"{}\": {}", policy.warn, details(&found));
        Ok(if found.is_empty() { Vec::new() } else { vec![warning] })
    }

    fn check_namespace_levels(
        &self,
        info: &RequestInfo,
        old: Option<&Object>,
        new: &Object,
    ) -> Result<Vec<String>, ApiError> {
        let policy = |object: &Object| namespace_policy(|key| object.label(key), Level::Privileged);
        let (wanted, errors) = policy(new);
        let before = old.map(policy);
        let known = before.as_ref().is_some_and(|(_, earlier)| *earlier == errors);
        if !errors.is_empty() && !known {
            let errors: Vec<FieldError> = errors
                .into_iter()
                .map(|error| FieldError {
                    reason: "FieldValueInvalid",
                    field: format!("metadata.labels[{}]", error.key),
                    message: format!(
                        "Invalid value: {}: {}",
                        Value::from(error.value),
                        error.problem
                    ),
                })
                .collect();
            return Err(ApiError::invalid(NAMESPACES.kind, "", new.name(), &errors));
        }
        let (enforce, Some((before, _))) = (wanted.enforce, before) else { return Ok(Vec::new()) };
        let is_relaxed =
            enforce.version == before.enforce.version && enforce.level <= before.enforce.level;
        if enforce == before.enforce || enforce.level == Level::Privileged || is_relaxed {
            return Ok(Vec::new());
        }
        let (documents, _) = self.store().list(&Scope::new(&PODS, Some(&info.name)), None)?;
        let total = documents.len();
        let mut pods = Vec::new();
        for (_, document) in documents.into_iter().take(MAX_PODS) {
            pods.push(document.object(events::stored_as(&PODS))?);
        }
        let mut warnings = Vec::new();
        if pods.len() < total {
            warnings.push(format!(
                "new PodSecurity enforce level only checked against the first {} of {total} existing pods",
                pods.len()
            ));
        }
        let named = pods.iter().map(|pod| (pod.name(), pod.value()));
        warnings.extend(existing_pods(&info.name, enforce, named));
        Ok(warnings)
    }
}
