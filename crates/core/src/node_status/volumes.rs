//! Attachable volumes that are in use on the node.
//!
//! This agent mounts none. A kubelet that ran here before may have, and its volumes are reported as in
//! use until they are unmounted: the control plane detaches what is not in use, and a file system
//! that is detached while it is mounted is damaged.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1;

/// The volumes to report. `None`: those that the Node object lists.
pub fn in_use<'a>(
    shown: &v1::Node,
    root_dir: &Path,
    mut mount_points: impl Iterator<Item = &'a Path>,
) -> Option<BTreeSet<String>> {
    let keeps = lists_any(shown) && mount_points.any(|point| is_attachable(root_dir, point));
    (!keeps).then(BTreeSet::new)
}

/// Whether the Node object lists volumes as in use.
pub fn lists_any(shown: &v1::Node) -> bool {
    let listed = shown.status.as_ref().and_then(|status| status.volumes_in_use.as_deref());
    listed.is_some_and(|listed| !listed.is_empty())
}

/// Whether this is where a kubelet mounts volumes that were attached to the node.
fn is_attachable(root_dir: &Path, point: &Path) -> bool {
    let Ok(below) = point.strip_prefix(root_dir) else { return false };
    let mut parts = below.iter().filter_map(|part| part.to_str());
    match (parts.next(), parts.nth(1), parts.next()) {
        (Some("plugins"), _, _) => true,
        (Some("pods"), Some("volumes" | "volumeDevices"), Some(plugin)) => {
            let attachable = ["kubernetes.io~csi", "kubernetes.io~fc", "kubernetes.io~iscsi"];
            // Those of other names are flexVolume drivers.
            attachable.contains(&plugin) || !plugin.starts_with("kubernetes.io~")
        }
        (_, _, _) => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes_of_an_earlier_kubelet_are_in_use_while_they_are_mounted() {
        let root = Path::new("/var/lib/kubelet");
        let node = |volumes: &[&str]| -> v1::Node {
            serde_json::from_value(json!({ "status": { "volumesInUse": volumes } })).unwrap()
        };
        let (listed, none) = (node(&["kubernetes.io/csi/d^v"]), node(&[]));
        let nothing = Some(BTreeSet::new());
        for (case, shown, points, want) in [
            ("nothing was", &none, vec!["/var/lib/kubelet/plugins/x"], nothing.clone()),
            ("gone", &listed, vec!["/", "/var/lib/kubelet"], nothing.clone()),
            (
                "ours",
                &listed,
                vec!["/var/lib/kubelet/pods/u/volumes/kubernetes.io~secret/s"],
                nothing,
            ),
            (
                "on the node",
                &listed,
                vec!["/var/lib/kubelet/plugins/kubernetes.io/csi/d/1/globalmount"],
                None,
            ),
            (
                "in a pod",
                &listed,
                vec!["/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/v/mount"],
                None,
            ),
            ("by flexVolume", &listed, vec!["/var/lib/kubelet/pods/u/volumes/acme~disk/v"], None),
        ] {
            let points = points.into_iter().map(Path::new);
            assert_eq!(in_use(shown, root, points), want, "{case}");
        }
    }
}
