//! Selection of the mounts to unmount before a pod's volumes or its directory are removed.
//!
//! Our mounts are identified by their path: each is on a directory that was created for one volume
//! right before, in a layout in which no other program mounts. The kernel makes this record in the
//! same step as the mount, so a crash cannot separate the two, and it covers mounts of earlier
//! versions and of the upstream kubelet. An emptyDir is a mount or a plain directory, which its
//! path does not show, so its medium is recorded beside it ([`record`]). All other mounts below a
//! pod's directory are foreign: they are not unmounted, and nothing is deleted through them.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use super::medium::RecordedMedium;

/// What a volume plugin mounts on the directory of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// Its volumes are plain directories.
    Nothing,
    /// A memory-backed filesystem.
    Memory,
    /// A memory-backed filesystem, unless the volume's record says that it is on disk.
    ByMedium,
    /// A bind mount of any filesystem.
    Bind,
}

/// A volume plugin in the layout of a pod's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Directory below `volumes/`, with `~` instead of `/`.
    pub name: &'static str,
    pub mounts: Mounts,
}

/// A mount in a pod's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMount {
    /// Relative to the pod's directory.
    pub point: PathBuf,
    pub fs_type: String,
    /// Content of the [`record`] for this path.
    pub medium: RecordedMedium,
}

/// What is about to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The pod's volumes, when the pod has terminated.
    Volumes,
    /// The pod's directory, when the pod is no longer known.
    Directory,
}

/// Directories of a pod's volumes, in removal order: the marker that a volume is set up is removed
/// before the volume.
pub const VOLUME_DIRECTORIES: [&str; 3] = ["plugins", "volume-subpaths", "volumes"];

/// Other entries of a pod's directory; upstream's names.
const POD_ENTRIES: [&str; 3] = ["containers", "etc-hosts", "userns"];

/// Whether an agent created a directory among those of the pods, judged by its name and entries. A
/// disk that is mounted there, or a user, may have added other directories.
pub fn is_pod_directory(name: &str, entries: &[OsString]) -> bool {
    // fsck may move entries of a pod here, but the directory itself is not ours.
    if name == "lost+found" {
        return false;
    }
    let known = |entry: &OsString| {
        VOLUME_DIRECTORIES.iter().chain(&POD_ENTRIES).any(|known| entry == known)
    };
    // An agent that was killed early has created only the empty directory.
    entries.iter().any(known) || (entries.is_empty() && is_uid(name))
}

/// A UUID, or the hash that is the UID of a static pod.
fn is_uid(name: &str) -> bool {
    let digits = name.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = name.bytes().filter(|byte| *byte == b'-').count();
    digits == 32 && matches!(dashes, 0 | 4) && digits + dashes == name.len()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// Our mounts in unmount order; there are no foreign mounts.
    Unmount(Vec<PathBuf>),
    /// A foreign mount; nothing is changed while it exists.
    Foreign(PathBuf),
}

/// `seen` are all mounts at or below the pod's directory, the most recent first.
pub fn plan(seen: &[SeenMount], scope: Scope, plugins: &[Plugin]) -> Teardown {
    let mut own: Vec<PathBuf> = Vec::new();
    for mount in seen.iter().filter(|mount| is_own(mount, plugins)) {
        if !own.contains(&mount.point) {
            own.push(mount.point.clone());
        }
    }
    // Mounts on top of our mounts become inaccessible with them and need no unmount.
    let on_ours = |point: &Path| own.iter().any(|own| point.starts_with(own));
    let foreign =
        seen.iter().find(|mount| blocks_removal(&mount.point, scope) && !on_ours(&mount.point));
    match foreign {
        Some(mount) => Teardown::Foreign(mount.point.clone()),
        None => Teardown::Unmount(own),
    }
}

/// Marker file of a volume that is set up; also the record of an emptyDir's medium.
pub fn record(plugin: &str, volume: &str) -> PathBuf {
    ["plugins", plugin, volume, "ready"].iter().collect()
}

/// The [`record`] that decides whether a mount at this path is ours.
pub fn record_of(point: &Path, plugins: &[Plugin]) -> Option<PathBuf> {
    match parts(point)?.as_slice() {
        ["volumes", plugin, volume] => match mounts(plugin, plugins) {
            Mounts::ByMedium => Some(record(plugin, volume)),
            Mounts::Nothing | Mounts::Memory | Mounts::Bind => None,
        },
        _ => None,
    }
}

fn is_own(mount: &SeenMount, plugins: &[Plugin]) -> bool {
    let Some(parts) = parts(&mount.point) else { return false };
    match parts.as_slice() {
        ["volumes", plugin, _] => match mounts(plugin, plugins) {
            Mounts::Nothing => false,
            Mounts::Memory => RecordedMedium::Unrecorded.mounts(&mount.fs_type),
            Mounts::ByMedium => mount.medium.mounts(&mount.fs_type),
            Mounts::Bind => true,
        },
        ["volume-subpaths", _, _, _] => true,
        _ => false,
    }
}

/// `None` for a path that is not UTF-8; our names always are.
fn parts(point: &Path) -> Option<Vec<&str>> {
    let name = |part| match part {
        Component::Normal(name) => name.to_str(),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    };
    point.components().map(name).collect()
}

fn mounts(plugin: &str, plugins: &[Plugin]) -> Mounts {
    let known = plugins.iter().find(|known| known.name == plugin);
    known.map_or(Mounts::Nothing, |plugin| plugin.mounts)
}

fn blocks_removal(point: &Path, scope: Scope) -> bool {
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
        Plugin { name: "kubernetes.io~empty-dir", mounts: Mounts::ByMedium },
        Plugin { name: "kubernetes.io~configmap", mounts: Mounts::Nothing },
        Plugin { name: "kubernetes.io~local-volume", mounts: Mounts::Bind },
    ];

    fn seen(mounts: &[(&str, &str)]) -> Vec<SeenMount> {
        let seen = |(point, fs_type): &(&str, &str)| SeenMount {
            point: point.into(),
            fs_type: (*fs_type).to_owned(),
            medium: RecordedMedium::Unrecorded,
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
    fn mounts_at_volume_paths_are_ours() {
        let want = OURS.map(|(point, _)| PathBuf::from(point)).to_vec();
        for scope in [Scope::Volumes, Scope::Directory] {
            assert_eq!(plan(&seen(&OURS), scope, &PLUGINS), Teardown::Unmount(want.clone()));
        }
    }

    #[test]
    fn path_that_is_not_utf8_is_foreign() {
        use std::os::unix::ffi::OsStrExt;
        let inside = std::ffi::OsStr::from_bytes(b"volumes/kubernetes.io~secret/s/\xff");
        let [mut mount] = seen(&[("", "tmpfs")]).try_into().unwrap();
        mount.point = inside.into();
        let left = Teardown::Foreign(inside.into());
        assert_eq!(plan(&[mount], Scope::Volumes, &PLUGINS), left);
    }

    #[test]
    fn recorded_medium_of_an_empty_dir_decides_whether_a_mount_is_ours() {
        let point = "volumes/kubernetes.io~empty-dir/m";
        for (record, fs_type, is_ours) in [
            ("", "tmpfs", true),
            ("", "hugetlbfs", true),
            ("", "ext4", false),
            ("disk", "tmpfs", false),
            ("disk", "hugetlbfs", false),
            ("memory", "tmpfs", true),
            ("memory", "hugetlbfs", false),
            ("hugepages", "hugetlbfs", true),
            ("hugepages", "tmpfs", false),
            ("tape", "tmpfs", false),
        ] {
            let [mut mount] = seen(&[(point, fs_type)]).try_into().unwrap();
            mount.medium = RecordedMedium::parse(record.as_bytes());
            let want = match is_ours {
                true => Teardown::Unmount(vec![point.into()]),
                false => Teardown::Foreign(point.into()),
            };
            let planned = plan(&[mount], Scope::Volumes, &PLUGINS);
            assert_eq!(planned, want, "{record:?} {fs_type}");
        }
        let record = record_of(Path::new(point), &PLUGINS);
        assert_eq!(record, Some("plugins/kubernetes.io~empty-dir/m/ready".into()));
        for other in ["volumes/kubernetes.io~secret/s", "volumes/x/y/z", "volumes", ""] {
            assert_eq!(record_of(Path::new(other), &PLUGINS), None, "{other}");
        }
    }

    #[test]
    fn pod_directory_is_identified_by_its_entries() {
        const UUID: &str = "9a5b1c7e-8f7e-4c7b-9c52-3f0d9b6f1a2b";
        const HASH: &str = "0123456789abcdef0123456789abcdef";
        for (name, entries, is_pods) in [
            ("x", &["volumes"][..], true),
            ("x", &["notes", "plugins"], true),
            ("x", &["volume-subpaths"], true),
            ("x", &["containers"], true),
            ("x", &["etc-hosts"], true),
            ("x", &["userns"], true),
            ("x", &[], false),
            ("x", &["notes"], false),
            (UUID, &["notes"], false),
            (UUID, &[], true),
            (HASH, &[], true),
            ("0123456789abcdef", &[], false),
            ("0123456789abcdef-0123456789abcdef", &[], false),
            ("lost+found", &[], false),
            ("lost+found", &["volumes", "containers"], false),
        ] {
            let listed: Vec<OsString> = entries.iter().map(OsString::from).collect();
            assert_eq!(is_pod_directory(name, &listed), is_pods, "{name} {entries:?}");
        }
    }

    #[test]
    fn mounts_on_top_of_ours_are_not_foreign() {
        let on_ours = [("volume-subpaths/v/c/0/disk", "ext4"), ("volume-subpaths/v/c/0", "nfs")];
        let all: Vec<_> = on_ours.into_iter().chain(OURS).collect();
        let want = OURS.map(|(point, _)| PathBuf::from(point)).to_vec();
        assert_eq!(plan(&seen(&all), Scope::Volumes, &PLUGINS), Teardown::Unmount(want));
    }

    #[test]
    fn mounts_at_other_paths_are_foreign() {
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
