//! Invariant of unmounts: only a pod's recorded mount points are unmounted.

use std::path::{Component, Path};

/// Unmounted paths that are neither `volumes/<plugin>/<volume>` nor
/// `volume-subpaths/<volume>/<container>/<index>` in a pod's directory.
pub(super) fn outside_of_volumes<'a>(
    pods: &Path,
    unmounted: impl Iterator<Item = &'a Path>,
) -> Vec<String> {
    let outside = unmounted.filter(|path| !is_mount_point(pods, path));
    outside.map(|path| format!("unmounted what is no volume: {}", path.display())).collect()
}

fn is_mount_point(pods: &Path, path: &Path) -> bool {
    let Ok(rest) = path.strip_prefix(pods) else { return false };
    let parts: Option<Vec<&str>> = rest
        .components()
        .map(|part| match part {
            Component::Normal(name) => name.to_str(),
            Component::Prefix(_)
            | Component::RootDir
            | Component::CurDir
            | Component::ParentDir => None,
        })
        .collect();
    match parts.as_deref() {
        Some([_, "volumes", _, _]) => true,
        Some([_, "volume-subpaths", _, _, index]) => index.parse::<u32>().is_ok(),
        Some(_) | None => false,
    }
}
