//! Roles and bindings in the store, as the policy that authorizes requests.
//!
//! Parsing all of them for each request would be slow, so the policy is kept until one of them
//! changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_api::rbac::{Binding, Policy, PolicyRule, RoleKind, Subject};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::document::Revision;
use crate::registry::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES, Resource};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};

/// Kinds that the policy is made of.
pub(crate) const KINDS: [&Resource; 4] =
    [&ROLES, &CLUSTER_ROLES, &ROLE_BINDINGS, &CLUSTER_ROLE_BINDINGS];

/// The policy at a revision of the store.
#[derive(Debug, Default)]
pub(crate) struct PolicyCache(Mutex<Option<(Revision, Arc<Policy>)>>);

#[derive(Deserialize)]
struct StoredRole {
    #[serde(rename = "rules", default)]
    rules: Option<Vec<PolicyRule>>,
}

#[derive(Deserialize)]
struct StoredBinding {
    #[serde(rename = "subjects", default)]
    subjects: Option<Vec<StoredSubject>>,
    #[serde(rename = "roleRef")]
    role_ref: StoredReference,
}

#[derive(Deserialize)]
struct StoredSubject {
    #[serde(rename = "kind", default)]
    kind: String,
    #[serde(rename = "name", default)]
    name: String,
    #[serde(rename = "namespace", default)]
    namespace: String,
}

#[derive(Deserialize)]
struct StoredReference {
    #[serde(rename = "kind", default)]
    kind: String,
    #[serde(rename = "name", default)]
    name: String,
}

impl ApiServer {
    /// The current policy. An error refuses every request that depends on it.
    pub(crate) fn policy(&self) -> Result<Arc<Policy>, ApiError> {
        let mut cached = self.policy_cache().0.lock();
        // Read before the objects: a change meanwhile is then seen the next time.
        let now = self.store().revision();
        if let Some((at, policy)) = cached.as_ref()
            && (*at == now || !self.any_changed(&KINDS, *at))
        {
            let policy = policy.clone();
            *cached = Some((now, policy.clone()));
            return Ok(policy);
        }
        let policy = Arc::new(self.read_policy()?);
        *cached = Some((now, policy.clone()));
        Ok(policy)
    }

    fn read_policy(&self) -> Result<Policy, ApiError> {
        let mut bindings = Vec::new();
        for resource in [&CLUSTER_ROLE_BINDINGS, &ROLE_BINDINGS] {
            let stored = self.extract_all::<StoredBinding>(resource)?;
            bindings.extend(stored.into_iter().filter_map(|(key, stored)| binding(&key, stored)));
        }
        let rules = |stored: StoredRole| stored.rules.unwrap_or_default();
        let roles = self.extract_all::<StoredRole>(&ROLES)?.into_iter();
        let roles = roles.map(|(key, stored)| {
            ((key.namespace().to_owned(), key.name().to_owned()), rules(stored))
        });
        let cluster_roles = self.extract_all::<StoredRole>(&CLUSTER_ROLES)?.into_iter();
        let cluster_roles =
            cluster_roles.map(|(key, stored)| (key.name().to_owned(), rules(stored)));
        let roles: BTreeMap<_, _> = roles.collect();
        Ok(Policy { roles, cluster_roles: cluster_roles.collect(), bindings })
    }

    pub(crate) fn extract_all<T: DeserializeOwned>(
        &self,
        resource: &Resource,
    ) -> Result<Vec<(Key, T)>, ApiError> {
        let (documents, _) = self.store().list(&Scope::new(resource, None), None)?;
        let mut all = Vec::with_capacity(documents.len());
        for (key, document) in documents {
            all.push((key, document.extract::<T>()?));
        }
        Ok(all)
    }
}

/// `None` if it refers to a kind that does not exist: it grants nothing.
fn binding(key: &Key, stored: StoredBinding) -> Option<Binding> {
    let subject = |stored: StoredSubject| match stored.kind.as_str() {
        "User" => Some(Subject::User(stored.name)),
        "Group" => Some(Subject::Group(stored.name)),
        "ServiceAccount" => {
            Some(Subject::ServiceAccount { namespace: stored.namespace, name: stored.name })
        }
        _ => None,
    };
    Some(Binding {
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
        subjects: stored.subjects.into_iter().flatten().filter_map(subject).collect(),
        role_kind: RoleKind::parse(&stored.role_ref.kind)?,
        role_name: stored.role_ref.name,
    })
}
