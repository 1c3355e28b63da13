//! Volumes mounted inside other volumes.
//!
//! Volumes with files from API objects are mounted read-only, so the runtime could not create a
//! mount point for another volume in them; we create it beforehand.

use crate::pod::Pod;

/// Mount points of other volumes inside a volume, relative to it.
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
                // Deeper mount points are inside the other volume, not in this one.
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

fn below<'a>(path: &'a str, directory: &str) -> Option<&'a str> {
    let rest = path.trim_end_matches('/').strip_prefix(directory.trim_end_matches('/'))?;
    rest.strip_prefix('/').map(|rest| rest.trim_start_matches('/')).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builders::pod;

    #[test]
    fn only_the_outermost_nested_mounts_need_a_directory() {
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
