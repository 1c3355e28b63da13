//! Pods that exceed their own limits of local storage.

use serde_json::json;

use super::pods::{empty_dirs, limited, storing, unmeasured};
use super::*;
use crate::builders::pod;
use crate::eviction::local_storage::{excess, is_limited};

fn of(pod: &PodUsage, layout: DiskLayout) -> Option<(String, &'static str)> {
    excess(pod, layout).map(|excess| (excess.message, excess.kind))
}

#[test]
fn empty_dir_over_its_size_is_found_whatever_its_medium() {
    let want = "Usage of EmptyDir volume \"v\" exceeds the limit \"1Gi\". ";
    let builder = || empty_dirs(pod("p").container("c"), &[("v", json!("1Gi"))]);
    let single = DiskLayout::Single;
    let found = of(&storing(builder(), 0, 0, GI + 1), single);
    assert_eq!(found, Some((want.to_owned(), "emptydirfs.limit")));
    assert_eq!(of(&storing(builder(), 0, 0, GI), single), None, "exactly the limit");
    let none = empty_dirs(pod("p").container("c"), &[("v", json!("0"))]);
    assert_eq!(of(&storing(none, 0, 0, GI), single), None, "zero is no limit");
    assert_eq!(of(&unmeasured(builder()), single), None);
}

#[test]
fn limits_of_all_containers_are_the_limit_of_the_pod_and_its_volumes_count() {
    let want = "Pod ephemeral local storage usage exceeds the total limit of containers 100Mi. ";
    let found = of(&storing(limited("p", "100Mi"), 0, 0, 101 * MI), DiskLayout::Single);
    assert_eq!(found, Some((want.to_owned(), "ephemeralpodfs.limit")));
    assert_eq!(of(&storing(limited("p", "100Mi"), 0, 0, 100 * MI), DiskLayout::Single), None);
    // A neighbour without a limit counts as well.
    let mut both = storing(limited("p", "100Mi").container("greedy"), MI, 0, 0);
    let greedy = crate::stats::Used { bytes: 100 * MI, inodes: 1 };
    both.used.as_mut().unwrap().containers.push(ContainerUsage {
        name: "greedy".into(),
        logs: Some(greedy),
        ..ContainerUsage::default()
    });
    assert_eq!(of(&both, DiskLayout::Single).unwrap().1, "ephemeralpodfs.limit");
}

#[test]
fn container_over_its_limit_is_found_but_a_sidecar_is_not() {
    // The other container's limit keeps the pod below its own.
    let wide = json!({ "resources": { "limits": { "ephemeral-storage": "1Gi" } } });
    let two = || limited("p", "100Mi").container_with("wide", wide.clone());
    let want = "Container c exceeded its local ephemeral storage limit \"100Mi\". ";
    let found = of(&storing(two(), 60 * MI, 60 * MI, 0), DiskLayout::Single);
    assert_eq!(found, Some((want.to_owned(), "ephemeralcontainerfs.limit")));
    let found = of(&storing(two(), 60 * MI, 60 * MI, 0), DiskLayout::Dedicated);
    assert_eq!(found, None, "layers are on another file system");
    let small = json!({ "resources": { "limits": { "ephemeral-storage": "1Mi" } } });
    let sidecar = pod("p").sidecar_with("c", small).container_with("wide", wide);
    assert_eq!(of(&storing(sidecar, 60 * MI, 0, 0), DiskLayout::Single), None);
}

#[test]
fn only_pods_with_limits_are_measured_for_them() {
    assert!(is_limited(&limited("p", "1Mi").build()));
    assert!(is_limited(&empty_dirs(pod("p").container("c"), &[("v", json!("1Mi"))]).build()));
    assert!(!is_limited(&empty_dirs(pod("p").container("c"), &[("v", json!("0"))]).build()));
    assert!(!is_limited(&pod("p").container("c").build()));
}
