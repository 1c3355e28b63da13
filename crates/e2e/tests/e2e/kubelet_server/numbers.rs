//! Metrics and statistics of the node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use podwright_e2e::bed::Bed;
use podwright_e2e::bench::usage;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::cluster::{Cluster, LIMIT, NAMESPACE, pod, ready};
use crate::privilege::{figure, needs_root};

/// A pod with two containers, a limit and a volume, on an agent with its own cgroup.
async fn with_sample() -> Cluster {
    let own_group =
        |bed: &Bed| json!({ "kubeletCgroups": bed.environment().cgroup().child("us").unwrap() });
    let cluster = Cluster::configured(Bed::builder().control_plane(), own_group).await;
    let mut sample = pod("sample", &["serve"]);
    let spec = &mut sample["spec"];
    let second = json!({
        "name": "second", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
    });
    spec["containers"].as_array_mut().unwrap().push(second);
    spec["containers"][0]["resources"] = json!({ "limits": { "memory": "64Mi" } });
    spec["containers"][0]["volumeMounts"] = json!([{ "name": "data", "mountPath": "/data" }]);
    spec["volumes"] = json!([{ "name": "data", "emptyDir": {} }]);
    cluster.create(sample).await;
    cluster.until("sample", "ready", ready).await;
    cluster
}

async fn page(cluster: &Cluster, path: &str) -> String {
    let response = cluster.request("GET", path, &cluster.admin()).await;
    assert!(response.status.is_success(), "{path}: {} {}", response.status, response.text());
    response.text()
}

#[tokio::test]
async fn summary_contains_node_pods_containers_and_volumes() {
    needs_root!();
    let cluster = with_sample().await;
    // Disks are measured after the first request, and a rate needs two samples.
    let whole = async || {
        let summary: Value = serde_json::from_str(&page(&cluster, "/stats/summary").await)?;
        let measured = summary["pods"][0]["volume"][0]["usedBytes"].is_u64()
            && summary["pods"][0]["containers"][0]["logs"]["usedBytes"].is_u64()
            && summary["pods"][0]["containers"][0]["rootfs"]["usedBytes"].is_u64()
            && summary["node"]["cpu"]["usageNanoCores"].is_u64();
        Ok(measured.then_some(summary))
    };
    let summary = wait::until("a complete summary", LIMIT, whole).await.unwrap();
    assert_eq!(summary["node"]["nodeName"], "node-1");
    for field in ["cpu", "memory", "network", "fs", "runtime", "rlimit", "swap"] {
        assert!(summary["node"][field].is_object(), "node.{field}: {summary:#}");
    }
    let system = summary["node"]["systemContainers"].as_array().unwrap();
    let names: Vec<&Value> = system.iter().map(|group| &group["name"]).collect();
    assert_eq!(names, ["kubelet", "pods"]);
    let agent = &system[0];
    for (part, field) in [
        ("cpu", "usageCoreNanoSeconds"),
        ("memory", "usageBytes"),
        ("memory", "workingSetBytes"),
        ("memory", "rssBytes"),
        ("memory", "pageFaults"),
    ] {
        assert!(agent[part][field].as_u64() > Some(0), "{part}.{field}: {agent:#}");
        assert!(agent[part]["psi"].is_object(), "{agent:#}");
    }
    assert!(agent["memory"]["availableBytes"].is_null(), "it has no limit: {agent:#}");
    assert!(agent["startTime"].is_string() && agent["rootfs"].is_null(), "{agent:#}");
    let pods = summary["pods"].as_array().unwrap();
    assert_eq!(pods.len(), 1);
    let pod = &pods[0];
    assert_eq!(pod["podRef"]["name"], "sample");
    assert_eq!(pod["podRef"]["namespace"], NAMESPACE);
    assert_eq!(pod["network"]["name"], "eth0");
    assert_eq!(pod["volume"][0]["name"], "data");
    let names: Vec<&Value> =
        pod["containers"].as_array().unwrap().iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["app", "second"]);
    let app = &pod["containers"][0];
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value}: {pod:#}"));
    assert!(number(&app["cpu"]["usageCoreNanoSeconds"]) > 0);
    let memory = &app["memory"];
    let limit = number(&memory["availableBytes"]) + number(&memory["workingSetBytes"]);
    assert_eq!(limit, 64 << 20);
    assert!(number(&pod["memory"]["workingSetBytes"]) >= number(&memory["workingSetBytes"]));
    assert!(number(&pod["ephemeral-storage"]["usedBytes"]) > 0);

    let few = page(&cluster, "/stats/summary?only_cpu_and_memory=true").await;
    let few: Value = serde_json::from_str(&few).unwrap();
    assert!(few["pods"][0]["volume"].is_null() && few["node"]["fs"].is_null());
    assert!(few["pods"][0]["cpu"].is_object());
    cluster.close();
}

/// Metric families of a page: type and label names.
fn families(page: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let mut families: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            families.insert(name.to_owned(), (kind.to_owned(), Vec::new()));
        } else if !line.starts_with('#') {
            let series = line.split(['{', ' ']).next().unwrap();
            let stems =
                ["_bucket", "_sum", "_count"].iter().filter_map(|end| series.strip_suffix(end));
            let name = stems.chain([series]).find(|name| families.contains_key(*name));
            let name = name.unwrap_or_else(|| panic!("{line} has no type"));
            let labels =
                line.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap());
            let names = labels.split("\",").filter_map(|label| label.split_once('=')).map(|l| l.0);
            let known = &mut families.get_mut(name).unwrap().1;
            known.extend(names.filter(|name| *name != "le").map(str::to_owned));
            known.sort();
            known.dedup();
        }
    }
    families
}

/// Metrics that the NodeConformance suite requires of `/metrics/cadvisor`, except those that the
/// kernel only counts for a container that used a disk.
const CONFORMANCE: [&str; 37] = [
    "container_cpu_system_seconds_total",
    "container_cpu_usage_seconds_total",
    "container_cpu_user_seconds_total",
    "container_file_descriptors",
    "container_fs_inodes_free",
    "container_fs_inodes_total",
    "container_fs_io_current",
    "container_fs_io_time_seconds_total",
    "container_fs_io_time_weighted_seconds_total",
    "container_fs_limit_bytes",
    "container_fs_read_seconds_total",
    "container_fs_reads_merged_total",
    "container_fs_reads_total",
    "container_fs_sector_reads_total",
    "container_fs_sector_writes_total",
    "container_fs_usage_bytes",
    "container_fs_write_seconds_total",
    "container_fs_writes_merged_total",
    "container_fs_writes_total",
    "container_last_seen",
    "container_memory_cache",
    "container_memory_failcnt",
    "container_memory_failures_total",
    "container_memory_rss",
    "container_memory_swap",
    "container_memory_working_set_bytes",
    "container_processes",
    "container_sockets",
    "container_spec_cpu_period",
    "container_spec_cpu_shares",
    "container_spec_memory_limit_bytes",
    "container_spec_memory_reservation_limit_bytes",
    "container_spec_memory_swap_limit_bytes",
    "container_start_time_seconds",
    "container_threads",
    "container_threads_max",
    "container_ulimits_soft",
];

#[tokio::test]
async fn every_series_has_upstream_name_type_and_labels() {
    needs_root!();
    let Some(golden) = podwright_testkit::report::recordings() else { return };
    let golden = std::path::Path::new(&golden).join("server");
    let recorded = std::fs::read_to_string(golden.join("metrics-series.json")).unwrap();
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    let cluster = with_sample().await;
    // Counted and measured once before it is read.
    for path in ["/metrics", "/stats/summary", "/metrics/cadvisor"] {
        page(&cluster, path).await;
    }
    for path in ["/metrics", "/metrics/cadvisor"] {
        let ours = families(&page(&cluster, path).await);
        assert!(ours.len() > 10, "{path} has only {}", ours.len());
        for (name, (kind, labels)) in &ours {
            let upstream = &recorded[path][name];
            // Upstream has more families than its recording, which lacks those without a value.
            if upstream.is_null() {
                continue;
            }
            assert_eq!(upstream["type"], kind.as_str(), "{path}: {name}");
            assert_eq!(upstream["labels"], json!(labels), "{path}: {name}");
        }
        for name in CONFORMANCE.iter().filter(|_| path == "/metrics/cadvisor") {
            assert!(ours.contains_key(*name), "{name} is missing");
        }
        let shared = ours.keys().filter(|name| !recorded[path][name.as_str()].is_null()).count();
        assert!(
            shared * 10 >= ours.len() * 8,
            "{path}: only {shared} of {} match upstream",
            ours.len()
        );
    }
    let resource = std::fs::read_to_string(golden.join("metrics-resource.txt")).unwrap();
    let (want, ours) = (families(&resource), families(&page(&cluster, "/metrics/resource").await));
    assert_eq!(ours, want);
    cluster.close();
}

/// Figures, with `PODWRIGHT_LONG` for the maximum number of pods. Set `PODWRIGHT_BIN` to measure a
/// release build.
#[tokio::test]
async fn scrape_cost_is_printed() {
    needs_root!();
    let many = if std::env::var_os("PODWRIGHT_LONG").is_some() { 110 } else { 4 };
    let cluster = Cluster::start().await;
    for number in 0..many {
        let name = format!("pod-{number}");
        let mut manifest = pod(&name, &["serve"]);
        manifest["metadata"]["namespace"] = json!(NAMESPACE);
        cluster.agent.add_manifest(&name, &manifest).unwrap();
    }
    let admin = cluster.admin();
    let counted = async |path: &str, line: &str| {
        let page = cluster.request("GET", path, &admin).await.text();
        page.lines().filter(|found| found.starts_with(line)).count()
    };
    let all = async || {
        let running = counted("/metrics/resource", "container_cpu_usage_seconds_total").await;
        anyhow::ensure!(running == many, "{running} of {many} run");
        Ok(true)
    };
    wait::until_true("all pods to run", 5 * LIMIT, all).await.unwrap();
    let agent = cluster.agent.daemon().pid();
    let pages = ["/metrics/resource", "/stats/summary", "/metrics/cadvisor", "/metrics", "/pods"];
    for path in pages {
        let (mut times, mut bytes) = (Vec::new(), 0);
        for _ in 0..5 {
            // Values are cached for a second; the next request must read again.
            tokio::time::sleep(Duration::from_millis(1100)).await;
            let (began, before) = (Instant::now(), usage::cpu(agent).unwrap());
            let response = cluster.request("GET", path, &admin).await;
            let cpu = usage::cpu(agent).unwrap().saturating_sub(before);
            assert!(response.status.is_success(), "{path}: {}", response.text());
            times.push((began.elapsed(), cpu));
            bytes = response.body.len();
        }
        times.sort_unstable();
        let (took, cpu) = times[2];
        let cost = format!("{took:.1?}, {cpu:.1?} of CPU, {bytes} bytes");
        figure(&format!("{many} pods, {path}: {cost}"));
    }
    cluster.close();
}

#[tokio::test]
async fn pods_and_configuration_are_served() {
    needs_root!();
    let cluster = with_sample().await;
    let pods: Value = serde_json::from_str(&page(&cluster, "/pods").await).unwrap();
    assert_eq!(pods["kind"], "PodList");
    let sample = &pods["items"][0];
    assert_eq!(sample["metadata"]["name"], "sample");
    assert_eq!(sample["status"]["phase"], "Running");
    assert!(sample["kind"].is_null(), "only the list has a kind");
    let running: Value = serde_json::from_str(&page(&cluster, "/runningpods/").await).unwrap();
    let containers = running["items"][0]["spec"]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 2);
    let settings: Value = serde_json::from_str(&page(&cluster, "/configz").await).unwrap();
    assert_eq!(settings["kubeletconfig"]["port"], 10250);
    assert_eq!(page(&cluster, "/healthz").await, "ok");
    let parts = page(&cluster, "/healthz?verbose").await;
    assert!(parts.contains("[+]syncloop ok"), "{parts}");
    cluster.close();
}
