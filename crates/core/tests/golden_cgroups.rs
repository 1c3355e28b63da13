//! Pod cgroups compared with recordings of the upstream kubelet (cgroup v1).
//!
//! The recordings are not part of this repository: `PODWRIGHT_GOLDEN` names their directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test, and one that reads files"
)]

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use podwright_api::qos::PodResources;
use podwright_core::cgroup::{CgroupConfig, CgroupName, Driver, PodPolicy, PodTree};
use podwright_core::ids::PodUid;
use podwright_testkit::report;
use serde_json::{Value, json};

#[test]
fn pod_cgroups_have_the_recorded_names_and_values() {
    let Some(golden) = report::recordings() else { return };
    let mut compared = 0;
    for entry in std::fs::read_dir(golden.join("pods")).unwrap() {
        let path = entry.unwrap().path();
        let case: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        // A case without one was never admitted, or its pod was gone before the recording.
        if let Some(recorded) = recorded_group(&case) {
            assert_eq!(computed_group(&case), recorded, "{}", path.display());
            compared += 1;
        }
    }
    report::golden("cgroups", compared, compared);
}

/// Path and values of the cgroup `pod<uid>`.
fn recorded_group(case: &Value) -> Option<(String, Value)> {
    let groups = case["cgroups"].as_object()?;
    let (path, values) = groups.iter().find(|(path, _)| path.ends_with("/pod<uid>"))?;
    Some((path.replace("<uid>", "uid"), values.clone()))
}

fn computed_group(case: &Value) -> (String, Value) {
    let objects = case["objects"].as_array().unwrap();
    let pod = objects.iter().find(|object| object["kind"] == "Pod").unwrap();
    let mut pod: Pod = serde_json::from_value(pod.clone()).unwrap();
    let spec = pod.spec.as_mut().unwrap();
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        container.resources.iter_mut().for_each(default_requests);
    }
    let resources = PodResources::parse(spec).unwrap();
    let class = resources.class();
    let config = CgroupConfig::for_pod(&resources, class, PodPolicy::default());
    let tree = PodTree::below(&CgroupName::ROOT);
    let name = tree.pod(class, &PodUid::new("uid")).unwrap();
    let or = |value: Option<u64>, none: &str| value.map_or(none.to_owned(), |v| v.to_string());
    let values = json!({
        "cpu.shares": or(config.cpu_shares, "1024"),
        "cpu.cfs_quota_us": or(config.cpu_quota.and_then(|quota| quota.micros), "-1"),
        "cpu.cfs_period_us": or(config.cpu_quota.map(|quota| quota.period_micros), "100000"),
        "memory.limit_in_bytes": or(config.memory_limit, "9223372036854771712"),
        "pids.max": or(config.pids_limit, "max"),
    });
    (name.path(Driver::Cgroupfs).trim_start_matches('/').to_owned(), values)
}

/// The API server's defaulting of the posted pod.
fn default_requests(resources: &mut ResourceRequirements) {
    for (name, limit) in resources.limits.iter().flatten() {
        let requests = resources.requests.get_or_insert_default();
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}
