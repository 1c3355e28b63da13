//! Gives claims their volume: one that somebody made and that fits, or else a folder on this
//! machine.
//!
//! The folder is made by whoever mounts it first and removed here, once its claim is deleted and
//! no pod that uses it is left: a claim is what a person asked to keep, so nothing is removed that
//! something may still write to. A folder's path is derived from the name that this server gave
//! the volume; what stands in the object is never believed when it comes to deleting. How a tree
//! that containers filled is removed safely is not known here: see [`ReclaimDirectory`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;

use futures::future::BoxFuture;
use podwright_core::quantity::Quantity;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::document::Revision;
use crate::object::Object;
use crate::options::DeleteOptions;
use crate::registry::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};
use crate::tree;

use super::namespaces::named;
use super::next_look;

/// Pods matter only while a volume waits to be reclaimed, and then they are few.
const LOOKED_AT: [&Resource; 3] = [&PERSISTENT_VOLUME_CLAIMS, &PERSISTENT_VOLUMES, &PODS];
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: &str = "podwright";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

/// Where claims get their directories on this machine, and who removes them.
#[derive(Clone)]
pub struct ClaimDirectories {
    pub path: PathBuf,
    pub reclaim: Arc<dyn ReclaimDirectory>,
}

/// Removes what a claim kept.
pub trait ReclaimDirectory: Send + Sync {
    /// Removes a directory and all in it; it is no error if there is none.
    ///
    /// Containers filled it as they liked: links are not followed, mounts are not crossed, and
    /// neither its depth nor its size may end this process.
    fn reclaim(&self, directory: PathBuf) -> BoxFuture<'static, io::Result<()>>;
}

/// Whether volumes are left that could not be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reclaimed {
    All,
    NotAll,
}

impl ApiServer {
    pub(super) async fn tend_claims(&self, stop: CancellationToken) {
        let mut changes = self.store().changes();
        let mut seen: Option<Revision> = None;
        loop {
            let now = *changes.borrow_and_update();
            let mut failed = false;
            if seen.is_none_or(|seen| self.touched(&LOOKED_AT, seen)) {
                if let Err(error) = self.bind_claims().await {
                    tracing::warn!(%error, "bind claims failed, retrying shortly");
                    failed = true;
                }
                match self.reclaim_volumes().await {
                    Ok(Reclaimed::All) => {}
                    // What failed was reported volume by volume.
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
            if !next_look(&mut changes, failed, &stop).await {
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
            } else if let Some(volume) = self.folder_for(&claim) {
                let info = RequestInfo { verb: Verb::Create, ..named(&PERSISTENT_VOLUMES, "", "") };
                match self.create(&info, volume.clone(), false).await {
                    Ok(_) => {}
                    Err(error) if error.reason == "AlreadyExists" => {}
                    Err(error) => return Err(error),
                }
                self.bind_claim(&key, &claim, &volume).await?;
            }
        }
        Ok(())
    }

    /// Smallest first, so that a small claim does not take a large volume.
    fn volumes(&self) -> Result<Vec<Object>, ApiError> {
        let volumes: BTreeMap<Key, Value> = self.all(&PERSISTENT_VOLUMES)?;
        let mut volumes: Vec<Object> =
            volumes.into_values().filter_map(|volume| Object::try_from(volume).ok()).collect();
        volumes.sort_by_key(|volume| quantity(volume, "/spec/capacity/storage"));
        Ok(volumes)
    }

    /// A new volume for a claim that does not insist on one that is there.
    fn folder_for(&self, claim: &Object) -> Option<Object> {
        let folder = &self.settings().volumes.as_ref()?.path;
        let spec = claim.get("spec")?;
        let insists = !claim.text("/spec/volumeName").is_empty()
            || spec.get("storageClassName").is_some_and(|class| class == "")
            || spec.get("selector").is_some_and(Value::is_object)
            || claim.text("/spec/volumeMode") == "Block";
        if insists || claim.uid().is_empty() {
            return None;
        }
        let name = format!("pvc-{}", claim.uid());
        let path = folder.join(&name);
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
        tree::put(&mut volume, &["spec", "storageClassName"], class);
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
            return Ok(()); // gone, or somebody else's; the next look decides anew
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

    /// Volumes whose claim is gone, and volumes that nobody has claimed yet. One that cannot be
    /// reclaimed keeps no other waiting.
    async fn reclaim_volumes(&self) -> Result<Reclaimed, ApiError> {
        let mut reclaimed = Reclaimed::All;
        for volume in self.volumes()? {
            let key = Key::new(&PERSISTENT_VOLUMES, "", volume.name());
            if volume.is_being_deleted() {
                continue;
            }
            let claimed = volume.value().pointer("/spec/claimRef/uid").is_some();
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
            if !ours || self.in_use(namespace, name)? {
                self.set_phase(&key, "Released").await?;
                continue;
            }
            if let Err(error) = self.remove_folder(volume.name()).await {
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
        }
        Ok(reclaimed)
    }

    /// Whether this is news.
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

    /// Whether a pod is left that names the claim.
    fn in_use(&self, namespace: &str, claim: &str) -> Result<bool, ApiError> {
        let (pods, _) = self.store().list(&Scope::new(&PODS, Some(namespace)), None)?;
        for (_, document) in pods {
            let pod = document.object(&PODS)?;
            let volumes = pod.value().pointer("/spec/volumes").and_then(Value::as_array);
            let names = volumes.into_iter().flatten().filter_map(|volume| {
                volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str)
            });
            if names.into_iter().any(|name| name == claim) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn remove_folder(&self, volume: &str) -> io::Result<()> {
        let Some(directories) = &self.settings().volumes else { return Ok(()) };
        let Some(path) = folder_of(&directories.path, volume) else { return Ok(()) };
        directories.reclaim.reclaim(path).await
    }
}

/// The folder of a volume that we named; `None` for a name that is not of our making.
fn folder_of(folder: &Path, volume: &str) -> Option<PathBuf> {
    is_claim_volume(volume).then(|| folder.join(volume))
}

/// Whether a volume, and its directory, has a name that this server gives to those it makes for
/// claims.
pub fn is_claim_volume(volume: &str) -> bool {
    let plain =
        |uid: &str| !uid.is_empty() && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    volume.strip_prefix("pvc-").is_some_and(plain)
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

/// Whether a volume that is there can be the claim's.
fn suits(volume: &Object, claim: &Object) -> bool {
    if volume.is_being_deleted() {
        return false;
    }
    let kept_for = volume.value().pointer("/spec/claimRef");
    if let Some(kept_for) = kept_for.filter(|it| it.is_object()) {
        let text = |name: &str| kept_for.get(name).and_then(Value::as_str).unwrap_or_default();
        let meant = (text("namespace"), text("name")) == (claim.namespace(), claim.name());
        return meant && (text("uid").is_empty() || text("uid") == claim.uid());
    }
    let wanted = claim.text("/spec/volumeName");
    if !wanted.is_empty() && wanted != volume.name() {
        return false;
    }
    let modes = |object: &Object| -> Vec<String> {
        let list = object.value().pointer("/spec/accessModes").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (offered, asked) = (modes(volume), modes(claim));
    volume.text("/spec/storageClassName") == claim.text("/spec/storageClassName")
        && volume.text("/spec/volumeMode") == claim.text("/spec/volumeMode")
        && asked.iter().all(|mode| offered.contains(mode))
        && quantity(volume, "/spec/capacity/storage")
            >= quantity(claim, "/spec/resources/requests/storage")
        && selects(claim, volume)
}

/// The claim's label selector. Expressions that are not understood select nothing.
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
    fn a_volume_suits_a_claim_that_asks_for_no_more() {
        let claim = object(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
                     "resources": {"requests": {"storage": "1Gi"}}},
        }));
        let volume = |spec: Value| {
            let mut whole = json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "volumeMode": "Filesystem", "capacity": {"storage": "2Gi"}});
            for (key, value) in spec.as_object().into_iter().flatten() {
                tree::put(&mut whole, &[key], Some(value.clone()));
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
                "of a claim of that name that is gone",
                json!({"claimRef": {"namespace": "n", "name": "c", "uid": "old"}}),
                false,
            ),
        ] {
            assert_eq!(suits(&volume(spec), &claim), want, "{case}");
        }
    }

    #[test]
    fn only_folders_of_our_making_can_be_deleted() {
        let folder = Path::new("/volumes");
        for (volume, want) in [
            ("pvc-12ab-34", Some("/volumes/pvc-12ab-34")),
            ("pvc-../../etc", None),
            ("pvc-", None),
            ("mine", None),
        ] {
            let found = folder_of(folder, volume);
            assert_eq!(found.as_deref(), want.map(Path::new), "{volume}");
        }
    }
}
