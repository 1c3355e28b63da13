//! Default roles and bindings, aggregated roles, and the migration of annotation roles.

use std::collections::BTreeMap;

use podwright_api::rbac::aggregation::{AggregatedRole, Selector, aggregate};
use podwright_api::rbac::defaults::{self, DefaultBinding, DefaultRole};
use podwright_api::rbac::{GROUP, PolicyRule, missing};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::document::Document;
use crate::object::Object;
use crate::registry::{
    CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, Resource, SERVICE_ACCOUNTS,
};
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Change, CommitError, Key, Precondition, Scope, WriteOp};

use super::bootstrap::{built_in, creation};
use super::wait_for_change;

/// Annotation of a ServiceAccount that gave it a role before there were bindings.
const ROLE_ANNOTATION: &str = "podwright/role";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

#[derive(Deserialize)]
struct StoredClusterRole {
    #[serde(rename = "metadata")]
    metadata: StoredMetadata,
    #[serde(rename = "rules", default)]
    rules: Option<Vec<PolicyRule>>,
    #[serde(rename = "aggregationRule", default)]
    aggregation_rule: Option<StoredAggregation>,
}

#[derive(Deserialize)]
struct StoredMetadata {
    #[serde(rename = "labels", default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct StoredAggregation {
    #[serde(rename = "clusterRoleSelectors", default)]
    cluster_role_selectors: Option<Vec<Selector>>,
}

impl ApiServer {
    /// Creates or completes the default roles and bindings.
    pub(super) async fn bootstrap_roles(&self) -> Result<(), ApiError> {
        let roles = defaults::cluster_roles();
        // An annotation that is set later must not become a binding at the next start, also if a
        // client deleted the default roles.
        if !self.is_migrated()? {
            self.migrate_annotations().await?;
        }
        for role in &roles {
            self.ensure_role(role).await?;
        }
        for binding in &defaults::BINDINGS {
            self.ensure_binding(binding).await?;
        }
        self.aggregate_roles().await
    }

    /// Whether any role or default binding exists. They are created after the migration, so one that
    /// was interrupted is repeated.
    fn is_migrated(&self) -> Result<bool, ApiError> {
        let (roles, _) = self.store().list(&Scope::new(&CLUSTER_ROLES, None), None)?;
        if !roles.is_empty() {
            return Ok(true);
        }
        for binding in &defaults::BINDINGS {
            let key = Key::new(&CLUSTER_ROLE_BINDINGS, "", binding.name);
            if self.store().get(&key)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn ensure_role(&self, role: &DefaultRole) -> Result<(), ApiError> {
        let key = Key::new(&CLUSTER_ROLES, "", role.name);
        if self.store().get(&key)?.is_none() {
            let object = built_in(self, role_object(role));
            return self.insert_built_in(&CLUSTER_ROLES, object).await;
        }
        let complete = |object: &mut Object| {
            if object.annotation(AUTO_UPDATE) != Some("true") {
                return;
            }
            let rules = object.get("rules").cloned().unwrap_or_default();
            let held: Option<Vec<PolicyRule>> = serde_json::from_value(rules).ok().flatten();
            let mut held = held.unwrap_or_default();
            if !missing(&held, &role.rules).is_empty() {
                held.extend(role.rules.iter().cloned());
                object.set("rules", Some(json!(held)));
            }
        };
        self.amend(&CLUSTER_ROLES, &key, complete).await.map(drop)
    }

    async fn ensure_binding(&self, binding: &DefaultBinding) -> Result<(), ApiError> {
        let key = Key::new(&CLUSTER_ROLE_BINDINGS, "", binding.name);
        if self.store().get(&key)?.is_none() {
            let object = built_in(self, binding_object(binding));
            return self.insert_built_in(&CLUSTER_ROLE_BINDINGS, object).await;
        }
        let complete = |object: &mut Object| {
            if object.annotation(AUTO_UPDATE) != Some("true") {
                return;
            }
            object.edit(|value| {
                let subjects = crate::json_edit::list_at(value, &["subjects"]);
                for wanted in group_subjects(binding.groups) {
                    if !subjects.contains(&wanted) {
                        subjects.push(wanted);
                    }
                }
            });
        };
        self.amend(&CLUSTER_ROLE_BINDINGS, &key, complete).await.map(drop)
    }

    /// Gives each annotated account a binding with the same permissions, and removes the
    /// annotation.
    async fn migrate_annotations(&self) -> Result<(), ApiError> {
        let scope = Scope::new(&SERVICE_ACCOUNTS, None);
        let (accounts, _) = self.store().list(&scope, None)?;
        for (key, document) in accounts {
            let account = document.object(&SERVICE_ACCOUNTS)?;
            let Some(role) = account.annotation(ROLE_ANNOTATION).map(str::to_owned) else {
                continue;
            };
            let mut changed = account.clone();
            changed.put(&["metadata", "annotations", ROLE_ANNOTATION], None);
            let text = Document::text(changed);
            let mut changes = vec![Change {
                key,
                expect: Precondition::At(document.revision),
                op: WriteOp::Put { text, previous: None },
            }];
            changes.extend(migrated_binding(self, &role, &account));
            match self.store().commit(changes).await {
                Ok(_) => tracing::info!(
                    account = account.name(),
                    namespace = account.namespace(),
                    role,
                    "service account: annotation replaced by a binding"
                ),
                // Nothing is served yet, so this is an account whose binding exists already.
                Err(CommitError::Conflict { .. }) => {}
                Err(CommitError::Store(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) async fn run_aggregation_controller(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut seen = None;
        loop {
            let now = *changes.borrow_and_update();
            let mut failed = false;
            if seen.is_none_or(|seen| self.any_changed(&[&CLUSTER_ROLES], seen))
                && let Err(error) = self.aggregate_roles().await
            {
                tracing::warn!(%error, "aggregate cluster roles failed, retrying shortly");
                failed = true;
            }
            seen = (!failed).then_some(now);
            if !wait_for_change(&mut changes, failed, &stop).await {
                return;
            }
        }
    }

    async fn aggregate_roles(&self) -> Result<(), ApiError> {
        let stored = self.extract_all::<StoredClusterRole>(&CLUSTER_ROLES)?;
        let role = |(key, stored): (Key, StoredClusterRole)| AggregatedRole {
            name: key.name().to_owned(),
            labels: stored.metadata.labels.unwrap_or_default(),
            rules: stored.rules.unwrap_or_default(),
            selectors: stored
                .aggregation_rule
                .map(|rule| rule.cluster_role_selectors.unwrap_or_default()),
        };
        let roles: Vec<AggregatedRole> = stored.into_iter().map(role).collect();
        for (name, rules) in aggregate(&roles) {
            let key = Key::new(&CLUSTER_ROLES, "", &name);
            let rules = json!(rules);
            let write = |object: &mut Object| object.set("rules", Some(rules.clone()));
            self.amend(&CLUSTER_ROLES, &key, write).await?;
        }
        Ok(())
    }
}

/// The binding that replaces an annotation; none for a value that meant nothing.
fn migrated_binding(server: &ApiServer, role: &str, account: &Object) -> Option<Change> {
    let (resource, cluster_role): (&'static Resource, &str) = match role {
        "view" | "edit" => (&ROLE_BINDINGS, role),
        "admin" => (&CLUSTER_ROLE_BINDINGS, "cluster-admin"),
        _ => return None,
    };
    let name = match role {
        "admin" => format!("podwright:{}:{}", account.namespace(), account.name()),
        _ => format!("podwright:{}", account.name()),
    };
    let mut object = built_in(
        server,
        json!({
            "metadata": {"name": name},
            "subjects": [{
                "kind": "ServiceAccount",
                "name": account.name(),
                "namespace": account.namespace(),
            }],
            "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": cluster_role},
        }),
    );
    if resource.namespaced {
        object.set_meta("namespace", Some(account.namespace().into()));
    }
    Some(creation(resource, object))
}

fn metadata(name: &str) -> Value {
    json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTO_UPDATE: "true"},
    })
}

fn role_object(role: &DefaultRole) -> Value {
    let mut metadata = metadata(role.name);
    if let Some(label) = &role.aggregates_to {
        crate::json_edit::put(&mut metadata, &["labels", label], Some("true".into()));
    }
    let mut object = json!({"metadata": metadata, "rules": role.rules});
    if let Some(label) = &role.aggregates_from {
        let selectors = json!([{"matchLabels": {label: "true"}}]);
        let rule = json!({"clusterRoleSelectors": selectors});
        crate::json_edit::put(&mut object, &["aggregationRule"], Some(rule));
    }
    object
}

fn group_subjects(groups: &[&str]) -> impl Iterator<Item = Value> {
    groups.iter().map(|group| json!({"kind": "Group", "apiGroup": GROUP, "name": group}))
}

fn binding_object(binding: &DefaultBinding) -> Value {
    json!({
        "metadata": metadata(binding.name),
        "subjects": group_subjects(binding.groups).collect::<Vec<_>>(),
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": binding.name},
    })
}
