//! Resolution of a PersistentVolumeClaim to its bound volume.
//!
//! A claim names a volume and the volume names a claim. The pod gets the volume only if both match:
//! a volume that is bound to another claim holds data of another user.

use k8s_openapi::api::core::v1;

use super::affinity::{self, NodeView};
use crate::pod::Pod;

/// Annotation of a volume with the name of what created it for a claim.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Creates the directories of claims on a standalone node.
pub const PROVISIONER: &str = "podwright";
const GROUP_ANNOTATION: &str = "pv.beta.kubernetes.io/gid";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    #[error("PVC is being deleted")]
    BeingDeleted,
    #[error("PVC is not bound")]
    NotBound,
    #[error("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwner { namespace: String, name: String, pod: String },
    #[error("PV {volume} has no claimRef: it is not bound to the claim yet")]
    NoClaimRef { volume: String },
    #[error("PV {volume} is bound to another claim, with UID {found:?} instead of {expected:?}")]
    BoundToAnother { volume: String, found: String, expected: String },
    #[error("volume {volume} has volumeMode Block, but is specified in volumeMounts")]
    BlockMounted { volume: String },
    #[error("volume {volume} has volumeMode Filesystem, but is specified in volumeDevices")]
    FilesystemAsDevice { volume: String },
    #[error("PV {volume} cannot be reached from this node: no matching NodeSelectorTerms")]
    OtherNode { volume: String },
    #[error("PV {volume}: no volume plugin matched; this node supports local and hostPath volumes")]
    Kind { volume: String },
}

/// Claim of a pod's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub name: String,
    pub read_only: bool,
    /// Created for this pod from a template in its spec.
    pub ephemeral: bool,
}

impl ClaimRef {
    /// `None`: the volume is of another type.
    pub fn of(pod: &Pod, volume: &v1::Volume) -> Option<Self> {
        if let Some(source) = &volume.persistent_volume_claim {
            let read_only = source.read_only.unwrap_or(false);
            return Some(Self { name: source.claim_name.clone(), read_only, ephemeral: false });
        }
        volume.ephemeral.as_ref()?;
        let name = format!("{}-{}", pod.name.name, volume.name);
        Some(Self { name, read_only: false, ephemeral: true })
    }
}

/// Location of a persistent volume's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeLocation {
    Local {
        path: String,
    },
    HostPath {
        path: String,
        kind: String,
    },
    /// A directory that this node created for the claim.
    ClaimDirectory {
        path: String,
    },
}

/// A persistent volume that the pod may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundVolume {
    /// Name of the PersistentVolume, which upstream uses for the directory and in messages.
    pub name: String,
    pub location: VolumeLocation,
    pub read_only: bool,
    /// Supplemental group that its users must have.
    pub group: Option<i64>,
}

const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// Name of the volume that the claim is bound to.
pub fn volume_of(
    pod: &Pod,
    wanted: &ClaimRef,
    claim: &v1::PersistentVolumeClaim,
) -> Result<String, ClaimError> {
    let meta = &claim.metadata;
    if wanted.ephemeral {
        let mut owners = meta.owner_references.iter().flatten();
        if !owners.any(|owner| owner.controller == Some(true) && owner.uid == pod.uid.as_str()) {
            return Err(ClaimError::NotOwner {
                namespace: pod.name.namespace.to_string(),
                name: wanted.name.clone(),
                pod: pod.name.name.to_string(),
            });
        }
    }
    // While the finalizer is present, pods that use the claim keep it: their containers restart, and
    // a restarted agent sets their volumes up again.
    let protected = meta.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    if meta.deletion_timestamp.is_some() && !protected {
        return Err(ClaimError::BeingDeleted);
    }
    let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    volume.filter(|name| bound && !name.is_empty()).ok_or(ClaimError::NotBound)
}

/// The volume of a claim, if both are bound to each other.
pub fn resolve(
    pod: &Pod,
    volume: &v1::Volume,
    wanted: &ClaimRef,
    claim: &v1::PersistentVolumeClaim,
    persistent: &v1::PersistentVolume,
    node: &NodeView,
) -> Result<BoundVolume, ClaimError> {
    let name = persistent.metadata.name.clone().unwrap_or_default();
    let nothing = v1::PersistentVolumeSpec::default();
    let spec = persistent.spec.as_ref().unwrap_or(&nothing);
    let reference = spec.claim_ref.as_ref();
    let reference = reference.ok_or_else(|| ClaimError::NoClaimRef { volume: name.clone() })?;
    if reference.uid != claim.metadata.uid || reference.uid.is_none() {
        return Err(ClaimError::BoundToAnother {
            volume: name,
            found: reference.uid.clone().unwrap_or_default(),
            expected: claim.metadata.uid.clone().unwrap_or_default(),
        });
    }
    check_mode(pod, volume, spec)?;
    let required = spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    if required.is_some_and(|selector| !affinity::fits(selector, node)) {
        return Err(ClaimError::OtherNode { volume: name });
    }
    let location = if let Some(local) = &spec.local {
        VolumeLocation::Local { path: local.path.clone() }
    } else if let Some(host) = &spec.host_path {
        let (path, kind) = (host.path.clone(), host.type_.clone().unwrap_or_default());
        match is_claim_directory(persistent, &path, &kind) {
            true => VolumeLocation::ClaimDirectory { path },
            false => VolumeLocation::HostPath { path, kind },
        }
    } else {
        return Err(ClaimError::Kind { volume: name });
    };
    let annotations = persistent.metadata.annotations.as_ref();
    let group = annotations.and_then(|all| all.get(GROUP_ANNOTATION));
    Ok(BoundVolume {
        name,
        location,
        read_only: wanted.read_only,
        group: group.and_then(|group| group.parse().ok()),
    })
}

/// Whether a volume, and its directory, has a name that a standalone node gives to claim volumes.
pub fn is_claim_volume(volume: &str) -> bool {
    let plain =
        |uid: &str| !uid.is_empty() && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    volume.strip_prefix("pvc-").is_some_and(plain)
}

/// Whether the directory is one that a standalone node made for this volume. Any other hostPath is
/// the user's: its owner and mode stay as they are.
fn is_claim_directory(volume: &v1::PersistentVolume, path: &str, kind: &str) -> bool {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let annotations = volume.metadata.annotations.as_ref();
    let provisioner = annotations.and_then(|all| all.get(PROVISIONED_BY));
    provisioner.is_some_and(|provisioner| provisioner == PROVISIONER)
        && kind == "DirectoryOrCreate"
        && is_claim_volume(name)
        && path.starts_with('/')
        && path.rsplit_once('/').is_some_and(|(_, last)| last == name)
}

fn check_mode(
    pod: &Pod,
    volume: &v1::Volume,
    spec: &v1::PersistentVolumeSpec,
) -> Result<(), ClaimError> {
    let name = &volume.name;
    let mounted = pod.containers.iter().any(|container| {
        container.spec.volume_mounts.iter().flatten().any(|mount| mount.name == *name)
    });
    let as_device = pod.containers.iter().any(|container| {
        container.spec.volume_devices.iter().flatten().any(|device| device.name == *name)
    });
    let block = spec.volume_mode.as_deref() == Some("Block");
    match (block, mounted, as_device) {
        (true, true, _) => Err(ClaimError::BlockMounted { volume: name.clone() }),
        (false, _, true) => Err(ClaimError::FilesystemAsDevice { volume: name.clone() }),
        (true, false, _) => Err(ClaimError::Kind { volume: name.clone() }),
        (false, _, false) => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;

    struct ClaimFixture {
        volume: Value,
        claim: Value,
        persistent: Value,
        mount: Value,
    }

    fn fixture() -> ClaimFixture {
        ClaimFixture {
            volume: json!({"name": "v", "persistentVolumeClaim": {"claimName": "data"}}),
            claim: json!({"metadata": {"name": "data", "uid": "c1"},
                "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}}),
            persistent: json!({"metadata": {"name": "pv1"},
                "spec": {"claimRef": {"uid": "c1"}, "local": {"path": "/mnt/d"}}}),
            mount: json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
        }
    }

    fn resolved(fixture: &ClaimFixture) -> Result<BoundVolume, String> {
        let parse = |value: &Value| value.clone();
        let pod = pod("p").container_with("c", fixture.mount.clone()).build();
        let volume: v1::Volume = serde_json::from_value(parse(&fixture.volume)).unwrap();
        let claim = serde_json::from_value(parse(&fixture.claim)).unwrap();
        let persistent = serde_json::from_value(parse(&fixture.persistent)).unwrap();
        let node = NodeView { name: "n1".into(), labels: Default::default() };
        let wanted = ClaimRef::of(&pod, &volume).unwrap();
        volume_of(&pod, &wanted, &claim)
            .and_then(|name| {
                assert_eq!(name, "pv1");
                resolve(&pod, &volume, &wanted, &claim, &persistent, &node)
            })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn bound_claim_resolves_to_its_volume() {
        let mut fixture = fixture();
        fixture.volume["persistentVolumeClaim"]["readOnly"] = json!(true);
        fixture.persistent["metadata"]["annotations"] = json!({GROUP_ANNOTATION: "44"});
        let want = BoundVolume {
            name: "pv1".into(),
            location: VolumeLocation::Local { path: "/mnt/d".into() },
            read_only: true,
            group: Some(44),
        };
        assert_eq!(resolved(&fixture), Ok(want));
    }

    #[test]
    fn only_directories_that_this_node_made_are_claim_directories() {
        let directory = |name: &str, provisioner: &str, path: &str, kind: &str| {
            let mut fixture = fixture();
            fixture.persistent = json!({
                "metadata": {"name": name, "annotations": {PROVISIONED_BY: provisioner}},
                "spec": {"claimRef": {"uid": "c1"}, "hostPath": {"path": path, "type": kind}},
            });
            let pod = pod("p").container_with("c", fixture.mount.clone()).build();
            let volume: v1::Volume = serde_json::from_value(fixture.volume).unwrap();
            let wanted = ClaimRef::of(&pod, &volume).unwrap();
            let node = NodeView { name: "n1".into(), labels: Default::default() };
            let claim = serde_json::from_value(fixture.claim).unwrap();
            let persistent = serde_json::from_value(fixture.persistent).unwrap();
            let bound = resolve(&pod, &volume, &wanted, &claim, &persistent, &node).unwrap();
            matches!(bound.location, VolumeLocation::ClaimDirectory { .. })
        };
        let made = "DirectoryOrCreate";
        for (case, is, want) in [
            ("ours", directory("pvc-1a-2", PROVISIONER, "/state/volumes/pvc-1a-2", made), true),
            ("of another provisioner", directory("pvc-1a", "rancher.io", "/v/pvc-1a", made), false),
            ("elsewhere", directory("pvc-1a", PROVISIONER, "/etc", made), false),
            (
                "a path that ends elsewhere",
                directory("pvc-1a", PROVISIONER, "/v/pvc-1a/..", made),
                false,
            ),
            ("a relative path", directory("pvc-1a", PROVISIONER, "v/pvc-1a", made), false),
            ("a volume of a user", directory("mine", PROVISIONER, "/v/mine", made), false),
            ("another type", directory("pvc-1a", PROVISIONER, "/v/pvc-1a", ""), false),
        ] {
            assert_eq!(is, want, "{case}");
        }
    }

    #[test]
    fn protected_claim_that_is_being_deleted_still_serves_its_pods() {
        let mut scene = fixture();
        scene.claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(resolved(&scene).unwrap_err(), "PVC is being deleted");
        scene.claim["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
        assert_eq!(resolved(&scene).map(|bound| bound.name), Ok("pv1".into()));
    }

    #[test]
    fn unusable_claim_is_refused() {
        type Change = fn(&mut ClaimFixture);
        let cases: [(Change, &str); 9] = [
            (|s| s.claim["status"]["phase"] = json!("Pending"), "PVC is not bound"),
            (|s| s.claim["spec"] = json!({}), "PVC is not bound"),
            (
                |s| s.claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
                "PVC is being deleted",
            ),
            (
                |s| s.persistent["spec"]["claimRef"]["uid"] = json!("c2"),
                "PV pv1 is bound to another claim, with UID \"c2\" instead of \"c1\"",
            ),
            (
                |s| s.persistent["spec"]["claimRef"] = Value::Null,
                "PV pv1 has no claimRef: it is not bound to the claim yet",
            ),
            (
                |s| s.persistent["spec"]["volumeMode"] = json!("Block"),
                "volume v has volumeMode Block, but is specified in volumeMounts",
            ),
            (
                |s| s.mount = json!({"volumeDevices": [{"name": "v", "devicePath": "/d"}]}),
                "volume v has volumeMode Filesystem, but is specified in volumeDevices",
            ),
            (
                |s| {
                    s.persistent["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms":
                        [{"matchFields": [{"key": "metadata.name", "operator": "In",
                            "values": ["n2"]}]}]}});
                },
                "PV pv1 cannot be reached from this node: no matching NodeSelectorTerms",
            ),
            (
                |s| s.volume = json!({"name": "v", "ephemeral": {}}),
                "PVC default/p-v was not created for pod default/p (pod is not owner)",
            ),
        ];
        for (change, want) in cases {
            let mut fixture = fixture();
            change(&mut fixture);
            assert_eq!(resolved(&fixture), Err(want.to_owned()));
        }
    }

    #[test]
    fn ephemeral_claim_of_the_pod_is_accepted() {
        let mut fixture = fixture();
        fixture.volume = json!({"name": "v", "ephemeral": {}});
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p",
            "controller": true});
        fixture.claim["metadata"]["ownerReferences"] = json!([owner]);
        assert_eq!(resolved(&fixture).unwrap().name, "pv1");
    }
}
