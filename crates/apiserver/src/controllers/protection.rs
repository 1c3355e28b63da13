//! Protection of storage in use: a claim stays until no pod uses it, a volume until no claim does.
//!
//! The finalizer is set at creation. Objects that an earlier build stored without one get it when
//! the controller starts. A volume loses its finalizer where it is reclaimed ([`super::claims`]),
//! because its directory has to be removed first.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::access::Identity;
use crate::object::Object;
use crate::options::WriteOptions;
use crate::registry::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, Resource, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Key, Scope};
use crate::strategy::{CLAIM_PROTECTION, VOLUME_PROTECTION};

use super::namespaces::named;

/// Pods that count as users of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Users {
    /// All pods that name it.
    Any,
    /// Those that a node may run. Others are not bound while the claim is being deleted.
    Bound,
}

impl ApiServer {
    /// Gives claims and volumes their finalizers, and releases claims that are no longer used.
    pub(super) async fn protect_storage(&self) -> Result<(), ApiError> {
        let claims: BTreeMap<Key, Value> = self.all(&PERSISTENT_VOLUME_CLAIMS)?;
        for (key, claim) in claims {
            let Ok(claim) = Object::try_from(claim) else { continue };
            if !claim.is_being_deleted() {
                self.protect(&PERSISTENT_VOLUME_CLAIMS, &key, &claim, CLAIM_PROTECTION).await?;
            } else if is_protected(&claim, CLAIM_PROTECTION)
                && !self.in_use(key.namespace(), key.name(), Users::Bound)?
            {
                self.unprotect(&PERSISTENT_VOLUME_CLAIMS, &key, CLAIM_PROTECTION).await?;
            }
        }
        let volumes: BTreeMap<Key, Value> = self.all(&PERSISTENT_VOLUMES)?;
        for (key, volume) in volumes {
            let Ok(volume) = Object::try_from(volume) else { continue };
            if !volume.is_being_deleted() {
                self.protect(&PERSISTENT_VOLUMES, &key, &volume, VOLUME_PROTECTION).await?;
            }
        }
        Ok(())
    }

    async fn protect(
        &self,
        resource: &'static Resource,
        key: &Key,
        object: &Object,
        finalizer: &str,
    ) -> Result<(), ApiError> {
        if is_protected(object, finalizer) {
            return Ok(());
        }
        self.amend(resource, key, |found| {
            if !found.is_being_deleted() && found.uid() == object.uid() {
                add_finalizer(found, finalizer);
            }
        })
        .await?;
        Ok(())
    }

    /// Removes the finalizer of an object that is being deleted, and with the last one the object.
    pub(super) async fn unprotect(
        &self,
        resource: &'static Resource,
        key: &Key,
        finalizer: &str,
    ) -> Result<(), ApiError> {
        let Some(mut object) = self.read(resource, key)? else { return Ok(()) };
        if !object.is_being_deleted() || !is_protected(&object, finalizer) {
            return Ok(());
        }
        let kept = object.finalizers().into_iter().filter(|held| *held != finalizer);
        let kept: Vec<String> = kept.map(str::to_owned).collect();
        object.set_finalizers(&kept);
        let info =
            RequestInfo { verb: Verb::Update, ..named(resource, key.namespace(), key.name()) };
        let options = WriteOptions::of_server();
        match self.update(&Identity::admin(), &info, object, &options).await {
            // Gone, or changed meanwhile: the change starts another iteration.
            Err(error) if !matches!(error.code, 404 | 409) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Whether a pod uses the claim.
    pub(super) fn in_use(
        &self,
        namespace: &str,
        claim: &str,
        users: Users,
    ) -> Result<bool, ApiError> {
        let (pods, _) = self.store().list(&Scope::new(&PODS, Some(namespace)), None)?;
        for (_, document) in pods {
            let pod = document.object(&PODS)?;
            let counts = match users {
                Users::Any => true,
                Users::Bound => !pod.text("/spec/nodeName").is_empty(),
            };
            if counts && names_claim(&pod, claim) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

pub(super) fn is_protected(object: &Object, finalizer: &str) -> bool {
    object.finalizers().contains(&finalizer)
}

fn add_finalizer(object: &mut Object, finalizer: &str) {
    let mut finalizers: Vec<String> = object.finalizers().into_iter().map(str::to_owned).collect();
    finalizers.push(finalizer.to_owned());
    object.set_finalizers(&finalizers);
}

/// Whether a volume of the pod has this claim, or the claim was created for it from a template.
fn names_claim(pod: &Object, claim: &str) -> bool {
    let volumes = pod.value().pointer("/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().any(|volume| {
        let text = |path: &str| volume.pointer(path).and_then(Value::as_str).unwrap_or_default();
        !claim.is_empty() && text("/persistentVolumeClaim/claimName") == claim
            || volume.get("ephemeral").is_some_and(Value::is_object)
                && claim.strip_prefix(pod.name()).and_then(|rest| rest.strip_prefix('-'))
                    == Some(text("/name"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_names_its_claims_and_those_made_from_its_templates() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"volumes": [
            {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
            {"name": "c", "emptyDir": {}},
        ]}});
        let pod = Object::try_from(pod).unwrap_or_default();
        for (claim, want) in
            [("data", true), ("p-b", true), ("p-c", false), ("a", false), ("b", false), ("", false)]
        {
            assert_eq!(names_claim(&pod, claim), want, "{claim}");
        }
    }
}
