//! What may be unmounted when a pod's volumes or its directory go.
//!
//! What we mount is recorded by its place: each mount of ours is on a directory that was made for
//! one volume right before, in a layout in which no one else mounts. The kernel writes this record
//! in the same step as it mounts, so no crash can separate the two, and it covers what an earlier
//! version or the upstream kubelet mounted there. Everything else below a pod's directory is
//! foreign: it is neither unmounted nor deleted through.

use std::path::{Component, Path, PathBuf};

/// What a volume plugin mounts on the directory of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// Its volumes are plain directories.
    Nothing,
    /// A file system in memory.
    Memory,
    /// A bind of any file system.
    Bind,
}

/// A volume plugin as the layout of a pod's directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// The directory below `volumes/`, with `/` as `~`.
    pub name: &'static str,
    pub mounts: Mounts,
}

/// Something mounted in a pod's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMount {
    /// Relative to the pod's directory.
    pub point: PathBuf,
    pub fs_type: String,
}

/// What is about to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The pod's volumes, at the end of its life.
    Volumes,
    /// The pod's directory, when the pod is no longer wanted.
    Directory,
}

/// The directories that a pod's volumes are in. In this order they are removed: what says that a
/// volume is set up goes before the volume.
pub const VOLUME_DIRECTORIES: [&str; 3] = ["plugins", "volume-subpaths", "volumes"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Ours, in the order to unmount them; nothing else is in the way.
    Unmount(Vec<PathBuf>),
    /// This is not ours, and nothing is touched while it is there.
    Foreign(PathBuf),
}

/// `seen` is all that is mounted at or below the pod's directory, those mounted last first.
pub fn plan(seen: &[SeenMount], scope: Scope, plugins: &[Plugin]) -> Teardown {
    let mut own: Vec<PathBuf> = Vec::new();
    for mount in seen.iter().filter(|mount| is_own(mount, plugins)) {
        if !own.contains(&mount.point) {
            own.push(mount.point.clone());
        }
    }
    // What is mounted on a mount of ours only goes out of sight with it.
    let on_ours = |point: &Path| own.iter().any(|own| point.starts_with(own));
    let foreign =
        seen.iter().find(|mount| is_in_the_way(&mount.point, scope) && !on_ours(&mount.point));
    match foreign {
        Some(mount) => Teardown::Foreign(mount.point.clone()),
        None => Teardown::Unmount(own),
    }
}

fn is_own(mount: &SeenMount, plugins: &[Plugin]) -> bool {
    let parts: Vec<&str> = mount
        .point
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    let in_memory = matches!(mount.fs_type.as_str(), "tmpfs" | "hugetlbfs");
    match parts.as_slice() {
        ["volumes", plugin, _] => {
            let plugin = plugins.iter().find(|known| known.name == *plugin);
            match plugin.map_or(Mounts::Nothing, |plugin| plugin.mounts) {
                Mounts::Nothing => false,
                Mounts::Memory => in_memory,
                Mounts::Bind => true,
            }
        }
        ["volume-subpaths", _, _, _] => true,
        _ => false,
    }
}

fn is_in_the_way(point: &Path, scope: Scope) -> bool {
    match scope {
        Scope::Directory => true,
        Scope::Volumes => VOLUME_DIRECTORIES
            .iter()
            .any(|dir| point.starts_with(dir) || Path::new(dir).starts_with(point)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    const PLUGINS: [Plugin; 4] = [
        Plugin { name: "kubernetes.io~secret", mounts: Mounts::Memory },
        Plugin { name: "kubernetes.io~empty-dir", mounts: Mounts::Memory },
        Plugin { name: "kubernetes.io~configmap", mounts: Mounts::Nothing },
        Plugin { name: "kubernetes.io~local-volume", mounts: Mounts::Bind },
    ];

    fn seen(mounts: &[(&str, &str)]) -> Vec<SeenMount> {
        let seen = |(point, fs_type): &(&str, &str)| SeenMount {
            point: point.into(),
            fs_type: (*fs_type).to_owned(),
        };
        mounts.iter().map(seen).collect()
    }

    const OURS: [(&str, &str); 4] = [
        ("volume-subpaths/v/c/0", "ext4"),
        ("volumes/kubernetes.io~empty-dir/m", "hugetlbfs"),
        ("volumes/kubernetes.io~local-volume/pv", "xfs"),
        ("volumes/kubernetes.io~secret/s", "tmpfs"),
    ];

    #[test]
    fn mounts_at_the_places_of_volumes_are_ours() {
        let want = OURS.map(|(point, _)| PathBuf::from(point)).to_vec();
        for scope in [Scope::Volumes, Scope::Directory] {
            assert_eq!(plan(&seen(&OURS), scope, &PLUGINS), Teardown::Unmount(want.clone()));
        }
    }

    #[test]
    fn mounts_on_top_of_ours_go_out_of_sight_with_it() {
        let on_ours = [("volume-subpaths/v/c/0/disk", "ext4"), ("volume-subpaths/v/c/0", "nfs")];
        let all: Vec<_> = on_ours.into_iter().chain(OURS).collect();
        let want = OURS.map(|(point, _)| PathBuf::from(point)).to_vec();
        assert_eq!(plan(&seen(&all), Scope::Volumes, &PLUGINS), Teardown::Unmount(want));
    }

    #[test]
    fn row_44_mounts_at_other_places_are_foreign() {
        for (foreign, fs_type, blocks_volumes) in [
            ("volumes/kubernetes.io~nfs/n", "nfs", true),
            ("volumes/kubernetes.io~empty-dir/disk/inside", "tmpfs", true),
            ("volumes/kubernetes.io~empty-dir/disk", "ext4", true),
            ("volumes/kubernetes.io~configmap/m", "tmpfs", true),
            ("volumes", "tmpfs", true),
            ("plugins/x", "tmpfs", true),
            ("", "tmpfs", true),
            ("containers/c/message", "tmpfs", false),
            ("x", "tmpfs", false),
        ] {
            let mut all = OURS.to_vec();
            all.push((foreign, fs_type));
            let all = seen(&all);
            let left = Teardown::Foreign(foreign.into());
            assert_eq!(plan(&all, Scope::Directory, &PLUGINS), left);
            assert_eq!(plan(&all, Scope::Volumes, &PLUGINS) == left, blocks_volumes, "{foreign}");
        }
    }
}
