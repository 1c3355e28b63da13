//! What may be unmounted when a pod's folder goes.
//!
//! A pod that ended under our eyes leaves nothing that anybody needs. The folder of a pod that
//! nobody knows may hold anything, mounted by anyone: there we take down what we would have put
//! up, and leave the whole alone if there is something else.

use std::path::{Component, Path, PathBuf};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Its worker saw its containers end.
    Worker,
    /// Nobody knows the pod any more.
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Teardown {
    /// In this order.
    Unmount(Vec<PathBuf>),
    /// This is not ours.
    Leave(PathBuf),
}

/// `points` are relative to the pod's folder, those mounted last first.
pub fn plan(points: Vec<PathBuf>, owner: Owner, plugins: &[&str]) -> Teardown {
    let foreign = match owner {
        Owner::Worker => None,
        Owner::Nobody => points.iter().find(|point| !is_ours(point, plugins)),
    };
    match foreign {
        Some(point) => Teardown::Leave(point.clone()),
        None => Teardown::Unmount(points),
    }
}

fn is_ours(point: &Path, plugins: &[&str]) -> bool {
    let parts: Vec<&str> = point
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => name.to_str(),
            _ => None,
        })
        .collect();
    match parts.as_slice() {
        ["volumes", plugin, _] => plugins.contains(plugin),
        ["volume-subpaths", _, _, _] => true,
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn row_44_a_foreign_mount_keeps_an_orphans_folder_and_only_an_orphans() {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let ours = paths(&["volume-subpaths/v/c/0", "volumes/kubernetes.io~secret/s"]);
        let plugins = ["kubernetes.io~secret"];
        let plan = |points: &[PathBuf], owner| plan(points.to_vec(), owner, &plugins);
        assert_eq!(plan(&ours, Owner::Nobody), Teardown::Unmount(ours.clone()));
        for foreign in ["volumes/kubernetes.io~nfs/n", "volumes/kubernetes.io~secret/s/x", "x", ""]
        {
            let mut points = ours.clone();
            points.push(foreign.into());
            assert_eq!(plan(&points, Owner::Nobody), Teardown::Leave(foreign.into()));
            assert_eq!(plan(&points, Owner::Worker), Teardown::Unmount(points));
        }
    }
}
