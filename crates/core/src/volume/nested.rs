//! Volumes mounted inside other volumes.
//!
//! Files from objects are mounted read-only, so the runtime could not make a folder in them for
//! another volume; we make it beforehand.

use crate::pod::Pod;

/// The folders, relative to the volume, that other volumes are mounted on.
pub fn mount_points(pod: &Pod, volume: &str) -> Vec<String> {
    let mut found = Vec::new();
    for container in &pod.containers {
        let mounts = container.spec.volume_mounts.as_deref().unwrap_or_default();
        let whole = |sub: &Option<String>| sub.as_deref().unwrap_or_default().is_empty();
        let outer = mounts
            .iter()
            .filter(|m| m.name == volume && whole(&m.sub_path) && whole(&m.sub_path_expr));
        for outer in outer {
            let mut inner: Vec<&str> = mounts
                .iter()
                .filter_map(|mount| below(&mount.mount_path, &outer.mount_path))
                .collect();
            inner.sort_unstable();
            for path in inner.iter().copied() {
                // What is deeper is inside the other volume, not in this one.
                let deeper = inner.iter().any(|other| below(path, other).is_some());
                let plain = path.split('/').all(|part| !part.starts_with(".."));
                if plain && !deeper && !found.iter().any(|known| known == path) {
                    found.push(path.to_owned());
                }
            }
        }
    }
    found
}

fn below<'a>(path: &'a str, folder: &str) -> Option<&'a str> {
    let rest = path.trim_end_matches('/').strip_prefix(folder.trim_end_matches('/'))?;
    rest.strip_prefix('/').map(|rest| rest.trim_start_matches('/')).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builders::pod;

    #[test]
    fn only_the_outermost_mounts_below_the_volume_need_a_folder() {
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        let pod = pod("p")
            .container_with("c", json!({"volumeMounts": [
                mount("outer", "/etc/app/"), mount("a", "/etc/app/a"), mount("b", "/etc/app/a/b"),
                mount("c", "/etc/apple"), mount("d", "/etc/app/x/y"), mount("e", "/etc/app/..up"),
            ]}))
            .container_with("other", json!({"volumeMounts": [mount("outer", "/o"),
                mount("a", "/o/a"), mount("f", "/o/z")]}))
            .build();
        assert_eq!(mount_points(&pod, "outer"), ["a", "x/y", "z"]);
        assert_eq!(mount_points(&pod, "a"), ["b"]);
        assert_eq!(mount_points(&pod, "f"), Vec::<String>::new());
    }
}
