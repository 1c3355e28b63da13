//! Claims controller: binds each claim to a matching volume, or to a new directory on this machine.
//!
//! The first mount creates the directory. This controller removes it once the claim is deleted and
//! no pod uses it: a claim is data that a user wants to keep, so nothing is removed that a pod may
//! still write to. The path is derived from the volume name that this server assigned; the path in
//! the object is not trusted for deletion. For the safe removal of what containers wrote,
//! see [`ReclaimDirectory`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;

use futures::future::BoxFuture;
use podwright_api::quantity::Quantity;
use podwright_core::volume::claim::{PROVISIONED_BY, PROVISIONER, is_claim_volume};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::document::Revision;
use crate::json_edit;
use crate::object::Object;
use crate::options::{DeleteOptions, WriteOptions};
use crate::registry::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::Key;
use crate::strategy::VOLUME_PROTECTION;

use super::namespaces::named;
use super::protection::Users;
use super::wait_for_change;

/// Pods matter only while a volume is to be reclaimed, which is rare.
const WATCHED: [&Resource; 3] = [&PERSISTENT_VOLUME_CLAIMS, &PERSISTENT_VOLUMES, &PODS];
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Base directory for claims on this machine, and what removes directories in it.
#[derive(Clone)]
pub struct ClaimDirectories {
    pub path: PathBuf,
    pub reclaim: Arc<dyn ReclaimDirectory>,
}

/// Removes the directory of a claim.
pub trait ReclaimDirectory: Send + Sync {
    /// Removes a directory and everything in it; a missing directory is not an error.
    ///
    /// The content comes from containers: links are not followed, mounts are not crossed, and
    /// neither depth nor size may make this process fail.
    fn reclaim(&self, directory: PathBuf) -> BoxFuture<'static, io::Result<()>>;
}

/// Whether all volumes could be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reclaimed {
    All,
    NotAll,
}

impl ApiServer {
    pub(super) async fn run_claims_controller(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut seen: Option<Revision> = None;
        loop {
            let now = *changes.borrow_and_update();
            let mut failed = false;
            if seen.is_none_or(|seen| self.any_changed(&WATCHED, seen)) {
                if let Err(error) = self.protect_storage().await {
                    tracing::warn!(%error, "protect claims in use failed, retrying shortly");
                    failed = true;
                }
                if let Err(error) = self.bind_claims().await {
                    tracing::warn!(%error, "bind claims failed, retrying shortly");
                    failed = true;
                }
                match self.reclaim_volumes().await {
                    Ok(Reclaimed::All) => {}
                    // Failures were logged for each volume.
                    Ok(Reclaimed::NotAll) => failed = true,
                    Err(error) => {
                        tracing::warn!(%error, "reclaim volumes failed, retrying shortly");
                        failed = true;
                    }
                }
            }
            if !failed {
                seen = Some(now);
            }
            if !wait_for_change(&mut changes, failed, &stop).await {
                return;
            }
        }
    }

    async fn bind_claims(&self) -> Result<(), ApiError> {
        let claims: BTreeMap<Key, Value> = self.all(&PERSISTENT_VOLUME_CLAIMS)?;
        for (key, claim) in claims {
            let Ok(claim) = Object::try_from(claim) else { continue };
            if claim.is_being_deleted() || claim.text("/status/phase") != "Pending" {
                continue;
            }
            let volumes = self.volumes()?;
            if let Some(volume) = volumes.iter().find(|volume| suits(volume, &claim)) {
                self.bind_claim(&key, &claim, volume).await?;
            } else if let Some(volume) = self.new_volume_for(&claim) {
                let info = RequestInfo { verb: Verb::Create, ..named(&PERSISTENT_VOLUMES, "", "") };
                match self.create(&info, volume.clone(), &WriteOptions::of_server()).await {
                    Ok(_) => {}
                    Err(error) if error.reason == "AlreadyExists" => {}
                    Err(error) => return Err(error),
                }
                self.bind_claim(&key, &claim, &volume).await?;
            }
        }
        Ok(())
    }

    /// Smallest first, so that a small claim does not bind a large volume.
    fn volumes(&self) -> Result<Vec<Object>, ApiError> {
        let volumes: BTreeMap<Key, Value> = self.all(&PERSISTENT_VOLUMES)?;
        let mut volumes: Vec<Object> =
            volumes.into_values().filter_map(|volume| Object::try_from(volume).ok()).collect();
        volumes.sort_by_key(|volume| quantity(volume, "/spec/capacity/storage"));
        Ok(volumes)
    }

    /// A new volume for a claim, unless the claim requires an existing one.
    fn new_volume_for(&self, claim: &Object) -> Option<Object> {
        let base = &self.settings().volumes.as_ref()?.path;
        let spec = claim.get("spec")?;
        let needs_existing = !claim.text("/spec/volumeName").is_empty()
            || spec.get("storageClassName").is_some_and(|class| class == "")
            || spec.get("selector").is_some_and(Value::is_object)
            || claim.text("/spec/volumeMode") == "Block";
        if needs_existing || claim.uid().is_empty() {
            return None;
        }
        let name = format!("pvc-{}", claim.uid());
        let path = base.join(&name);
        let mut volume = json!({
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
            "spec": {
                "capacity": {"storage": claim.value().pointer("/spec/resources/requests/storage")},
                "accessModes": spec.get("accessModes"),
                "persistentVolumeReclaimPolicy": "Delete",
                "volumeMode": "Filesystem",
                "hostPath": {"path": path, "type": "DirectoryOrCreate"},
                "claimRef": reference(claim),
            },
        });
        let class = spec.get("storageClassName").cloned();
        json_edit::put(&mut volume, &["spec", "storageClassName"], class);
        Object::try_from(volume).ok()
    }

    async fn bind_claim(&self, key: &Key, claim: &Object, volume: &Object) -> Result<(), ApiError> {
        let of_volume = Key::new(&PERSISTENT_VOLUMES, "", volume.name());
        self.amend(&PERSISTENT_VOLUMES, &of_volume, |volume| {
            volume.put(&["spec", "claimRef"], Some(reference(claim)));
            volume.put(&["status", "phase"], Some("Bound".into()));
        })
        .await?;
        let taken = self.read(&PERSISTENT_VOLUMES, &of_volume)?;
        if taken.is_none_or(|volume| volume.text("/spec/claimRef/uid") != claim.uid()) {
            return Ok(()); // gone, or claimed by another; the next iteration decides
        }
        let capacity = volume.value().pointer("/spec/capacity").cloned();
        let modes = volume.value().pointer("/spec/accessModes").cloned();
        self.amend(&PERSISTENT_VOLUME_CLAIMS, key, |found| {
            if found.uid() != claim.uid() {
                return;
            }
            found.put(&["metadata", "annotations", BIND_COMPLETED], Some("yes".into()));
            found.put(&["spec", "volumeName"], Some(volume.name().into()));
            found.put(&["status", "phase"], Some("Bound".into()));
            found.put(&["status", "capacity"], capacity.clone());
            found.put(&["status", "accessModes"], modes.clone());
        })
        .await?;
        Ok(())
    }

    /// Updates the phase of released and of unclaimed volumes. A failure does not delay other
    /// volumes.
    async fn reclaim_volumes(&self) -> Result<Reclaimed, ApiError> {
        let mut reclaimed = Reclaimed::All;
        for volume in self.volumes()? {
            let key = Key::new(&PERSISTENT_VOLUMES, "", volume.name());
            let claimed = volume.value().pointer("/spec/claimRef/uid").is_some();
            if !claimed && volume.is_being_deleted() {
                self.unprotect(&PERSISTENT_VOLUMES, &key, VOLUME_PROTECTION).await?;
                continue;
            }
            if !claimed {
                self.set_phase(&key, "Available").await?;
                continue;
            }
            let namespace = volume.text("/spec/claimRef/namespace");
            let name = volume.text("/spec/claimRef/name");
            let of_claim = Key::new(&PERSISTENT_VOLUME_CLAIMS, namespace, name);
            let claim = self.read(&PERSISTENT_VOLUME_CLAIMS, &of_claim)?;
            if claim.is_some_and(|claim| claim.uid() == volume.text("/spec/claimRef/uid")) {
                continue;
            }
            let ours = volume.annotation(PROVISIONED_BY) == Some(PROVISIONER)
                && volume.text("/spec/persistentVolumeReclaimPolicy") == "Delete";
            if self.in_use(namespace, name, Users::Any)? {
                self.set_phase(&key, "Released").await?;
                continue;
            }
            if !ours {
                self.set_phase(&key, "Released").await?;
                self.unprotect(&PERSISTENT_VOLUMES, &key, VOLUME_PROTECTION).await?;
                continue;
            }
            if let Err(error) = self.remove_directory(volume.name()).await {
                reclaimed = Reclaimed::NotAll;
                let error = error.to_string();
                if self.set_failed(&key, &error).await? {
                    let name = volume.name();
                    tracing::warn!(
                        volume = name,
                        error,
                        "reclaim volume failed, retrying; other volumes are not affected"
                    );
                }
                continue;
            }
            let info = named(&PERSISTENT_VOLUMES, "", volume.name());
            match self.delete(&info, &DeleteOptions::default()).await {
                Err(error) if error.code != 404 => return Err(error),
                Ok(_) | Err(_) => {}
            }
            self.unprotect(&PERSISTENT_VOLUMES, &key, VOLUME_PROTECTION).await?;
        }
        Ok(reclaimed)
    }

    /// Returns whether the message has changed.
    async fn set_failed(&self, key: &Key, message: &str) -> Result<bool, ApiError> {
        self.amend(&PERSISTENT_VOLUMES, key, |volume| {
            volume.put(&["status", "phase"], Some("Failed".into()));
            volume.put(&["status", "reason"], Some("VolumeFailedDelete".into()));
            volume.put(&["status", "message"], Some(message.into()));
        })
        .await
    }

    async fn set_phase(&self, key: &Key, phase: &str) -> Result<(), ApiError> {
        self.amend(&PERSISTENT_VOLUMES, key, |volume| {
            volume.put(&["status", "phase"], Some(phase.into()));
        })
        .await?;
        Ok(())
    }

    async fn remove_directory(&self, volume: &str) -> io::Result<()> {
        let Some(directories) = &self.settings().volumes else { return Ok(()) };
        let Some(path) = directory_of(&directories.path, volume) else { return Ok(()) };
        directories.reclaim.reclaim(path).await
    }
}

/// Directory of a volume that this server named; `None` for any other name.
fn directory_of(base: &Path, volume: &str) -> Option<PathBuf> {
    is_claim_volume(volume).then(|| base.join(volume))
}

fn reference(claim: &Object) -> Value {
    json!({
        "kind": "PersistentVolumeClaim",
        "apiVersion": "v1",
        "namespace": claim.namespace(),
        "name": claim.name(),
        "uid": claim.uid(),
    })
}

/// Whether an existing volume satisfies the claim.
fn suits(volume: &Object, claim: &Object) -> bool {
    if volume.is_being_deleted() {
        return false;
    }
    let kept_for = volume.value().pointer("/spec/claimRef");
    if let Some(kept_for) = kept_for.filter(|it| it.is_object()) {
        let text = |name: &str| kept_for.get(name).and_then(Value::as_str).unwrap_or_default();
        let is_named = (text("namespace"), text("name")) == (claim.namespace(), claim.name());
        return is_named && (text("uid").is_empty() || text("uid") == claim.uid());
    }
    let wanted = claim.text("/spec/volumeName");
    if !wanted.is_empty() && wanted != volume.name() {
        return false;
    }
    let modes = |object: &Object| -> Vec<String> {
        let list = object.value().pointer("/spec/accessModes").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (offered, requested) = (modes(volume), modes(claim));
    volume.text("/spec/storageClassName") == claim.text("/spec/storageClassName")
        && volume.text("/spec/volumeMode") == claim.text("/spec/volumeMode")
        && requested.iter().all(|mode| offered.contains(mode))
        && quantity(volume, "/spec/capacity/storage")
            >= quantity(claim, "/spec/resources/requests/storage")
        && selects(claim, volume)
}

/// Whether the claim's label selector matches. Unknown operators match nothing.
fn selects(claim: &Object, volume: &Object) -> bool {
    let labels = claim.value().pointer("/spec/selector/matchLabels").and_then(Value::as_object);
    let same = labels.into_iter().flatten().all(|(key, value)| volume.label(key) == value.as_str());
    let expressions = claim.value().pointer("/spec/selector/matchExpressions");
    let holds = |expression: &Value| {
        let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
        let found = volume.label(text("key"));
        let values = expression.get("values").and_then(Value::as_array);
        let among =
            values.into_iter().flatten().any(|value| found.is_some() && value.as_str() == found);
        match text("operator") {
            "In" => among,
            "NotIn" => !among,
            "Exists" => found.is_some(),
            "DoesNotExist" => found.is_none(),
            _ => false,
        }
    };
    same && expressions.and_then(Value::as_array).into_iter().flatten().all(holds)
}

fn quantity(object: &Object, path: &str) -> Quantity {
    Quantity::from_str(object.text(path)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        Object::try_from(value).unwrap_or_default()
    }

    #[test]
    fn volume_suits_a_claim_that_requests_no_more() {
        let claim = object(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                     "resources": {"requests": {"storage": "1Gi"}}},
        }));
        let volume = |spec: Value| {
            let mut whole = json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "volumeMode": "Filesystem", "capacity": {"storage": "2Gi"}});
            for (key, value) in spec.as_object().into_iter().flatten() {
                json_edit::put(&mut whole, &[key], Some(value.clone()));
            }
            object(json!({"metadata": {"name": "v"}, "spec": whole}))
        };
        for (case, spec, want) in [
            ("larger", json!({}), true),
            ("smaller", json!({"capacity": {"storage": "512Mi"}}), false),
            ("another mode", json!({"accessModes": ["ReadOnlyMany"]}), false),
            ("another class", json!({"storageClassName": "fast"}), false),
            ("kept for it", json!({"claimRef": {"namespace": "n", "name": "c"}}), true),
            ("kept for another", json!({"claimRef": {"namespace": "n", "name": "d"}}), false),
            (
                "kept for a deleted claim of the same name",
                json!({"claimRef": {"namespace": "n", "name": "c", "uid": "old"}}),
                false,
            ),
        ] {
            assert_eq!(suits(&volume(spec), &claim), want, "{case}");
        }
    }

    #[test]
    fn only_directories_of_claim_volumes_can_be_deleted() {
        let base = Path::new("/volumes");
        for (volume, want) in [
            ("pvc-12ab-34", Some("/volumes/pvc-12ab-34")),
            ("pvc-../../etc", None),
            ("pvc-", None),
            ("mine", None),
        ] {
            let found = directory_of(base, volume);
            assert_eq!(found.as_deref(), want.map(Path::new), "{volume}");
        }
    }
}
