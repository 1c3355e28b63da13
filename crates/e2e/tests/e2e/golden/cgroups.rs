//! cgroup v1 values of a pod, as in the recordings: four controllers, five files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

const MOUNTED: &str = "/sys/fs/cgroup";

const FILES: [(&str, &str); 5] = [
    ("cpu", "cpu.shares"),
    ("cpu", "cpu.cfs_quota_us"),
    ("cpu", "cpu.cfs_period_us"),
    ("memory", "memory.limit_in_bytes"),
    ("pids", "pids.max"),
];

/// Whether this machine has the hierarchies of the recordings.
pub(super) fn are_as_recorded() -> bool {
    FILES.iter().all(|(controller, _)| Path::new(MOUNTED).join(controller).is_dir())
}

/// The values of every cgroup of the pod, by path below `root`.
pub(super) fn of_pod(root: &str, uid: &str) -> BTreeMap<String, Value> {
    let top = Path::new(MOUNTED).join("cpu").join(root.trim_start_matches('/'));
    let mut groups = BTreeSet::new();
    find(&top, &top, &format!("pod{uid}"), &mut groups);
    let values = |group: &String| {
        let value = |&(controller, file): &(&str, &str)| {
            let place = Path::new(MOUNTED).join(controller).join(root.trim_start_matches('/'));
            let text = fs::read_to_string(place.join(group).join(file)).ok()?;
            Some((file.to_owned(), Value::String(text.trim().to_owned())))
        };
        let values: Map<String, Value> = FILES.iter().filter_map(value).collect();
        (group.clone(), Value::Object(values))
    };
    groups.iter().map(values).collect()
}

fn find(top: &Path, directory: &Path, pod: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if let Ok(below) = path.strip_prefix(top)
            && below.iter().any(|part| part == pod)
        {
            found.insert(below.display().to_string());
        }
        find(top, &path, pod, found);
    }
}
