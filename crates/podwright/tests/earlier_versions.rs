//! Upgrade tests: files of earlier versions are read without loss, and none is treated as corrupt.
//!
//! The fixtures were written by the named commit on a real containerd (see
//! `crates/e2e/src/bin/fixtures.rs`). Here the current agent starts on them in the simulator, with
//! the recorded state of runtime and API server. When a format changes intentionally, a migration
//! is added, and these fixtures are kept.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use podwright::standalone::agent::Note;
use podwright::standalone::{Layout, Record, state_dir};
use podwright_core::ids::PodUid;
use podwright_core::plan::{self, Case};
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::{Source, manifest};
use podwright_core::users::{BLOCK, UserRange};
use podwright_fake_runtime::{Features, Rpc};
use podwright_host::files::Root;
use podwright_host::process::ProcessIdentity;
use podwright_node::resources::users::Users;
use podwright_node::server::debug_socket::Explanation;
use podwright_testkit::fixture::{Content, Fixture};
use podwright_testkit::sim::test_pod::{NODE, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const COMMIT: &str = "87c89a6";
const CHECKPOINTS: [&str; 2] = ["admitted_pods_state", "granted_resources_state"];

fn fixture(name: &str) -> Fixture {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Fixture::read(&here.join("tests/fixtures").join(COMMIT).join(format!("{name}.json")))
}

/// Files of a fixture, the module that reads each of them, and the test. A `*` is one component.
/// For files that are not read, the reason.
const JOINED: &[(&str, &str)] = &[
    ("admitted_pods_state", "node::admission: agent_started_on"),
    ("granted_resources_state", "node::allocations: agent_started_on"),
    ("image_manager", "node::images::records: agent_started_on"),
    ("image_manager/pulled", "node::images::records: agent_started_on"),
    ("image_manager/pulled/*", "node::images::records: agent_started_on"),
    ("image_manager/pulling", "node::images::records: empty, no pull was cut short"),
    ("pods", "node::volumes: agent_started_on"),
    ("pods/*", "node::volumes: agent_started_on"),
    ("pods/*/containers", "node::last_words: agent_started_on"),
    ("pods/*/containers/*", "node::last_words: agent_started_on"),
    ("pods/*/containers/*/*", "node::last_words: agent_started_on"),
    ("pods/*/etc-hosts", "not read: written again for each start of a container"),
    ("pods/*/plugins", "node::volumes: agent_started_on"),
    ("pods/*/plugins/**", "node::volumes, which volumes are ready: agent_started_on"),
    ("pods/*/userns", "node::users: user_namespaces_keep_their_ranges"),
    ("pods/*/volumes", "node::volumes: agent_started_on"),
    ("pods/*/volumes/*", "node::volumes: agent_started_on"),
    ("pods/*/volumes/*/*", "node::volumes: agent_started_on"),
    ("pods/*/volumes/*/*/**", "node::volumes: agent_started_on"),
];

const UP: &[(&str, &str)] = &[
    ("api", "podwright::standalone::api: standalone_node_is_resumed"),
    ("api/objects.redb", "apiserver::store: standalone_node_is_resumed"),
    ("api/port", "podwright::standalone::api: covered by its own test"),
    ("cni", "not read: written again by each start"),
    ("cni/**", "not read: written again by each start, or the plugins' own"),
    ("kubelet", "as of a joined node"),
    ("made.json", "podwright::standalone: standalone_node_is_resumed"),
    ("manifests", "node::sources: static_pods_keep_their_uids"),
    ("manifests/*", "node::sources: static_pods_keep_their_uids"),
    ("volumes", "apiserver::controllers::claims: empty, there was no claim"),
];

fn fits(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern.split('/'), path.split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (None, None) | (Some("**"), Some(_)) => return true,
            (Some("*"), Some(_)) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[test]
fn every_file_is_read_or_known_to_be_unread() {
    for (name, known) in [("joined", JOINED), ("up", UP)] {
        let mut unused: BTreeSet<&str> = known.iter().map(|(pattern, _)| *pattern).collect();
        for entry in fixture(name).entries() {
            let path = entry.path.to_str().unwrap();
            // The agent's root directory is the same in both.
            let (known, path) = match path.strip_prefix("kubelet/").filter(|_| name == "up") {
                Some(below) => (JOINED, below),
                None => (known, path),
            };
            let found = known.iter().find(|(pattern, _)| fits(pattern, path));
            let (pattern, _) = found.unwrap_or_else(|| panic!("{name}: what reads {path}?"));
            unused.remove(pattern);
        }
        assert!(unused.is_empty(), "{name}: no file fits {unused:?}");
    }
}

#[test]
fn joined_node_is_resumed() {
    let fixture = fixture("joined");
    sim::run(async {
        let sim = agent_started_on(&fixture, "").await;
        assert!(!sim.state().join("api").exists());
    });
}

#[test]
fn standalone_node_is_resumed() {
    let fixture = fixture("up");
    sim::run(async {
        // The pods come from the database that the other version wrote.
        assert_eq!(fixture.list("/objects"), [] as [Value; 0]);
        let sim = agent_started_on(&fixture, "kubelet").await;
        let layout = Layout::new(&sim.state());
        assert!(state_dir::is_node(&layout).unwrap(), "an earlier build wrote no marker");
        let made: Record = serde_json::from_slice(&fixture.file("made.json")).unwrap();
        assert_eq!(made.cgroup_root, Layout::new(Path::new("/var/lib/podwright")).cgroup_root());
        let maps: Api<v1::ConfigMap> = Api::namespaced(sim.users_client(), "default");
        let map = maps.get("settings").await.unwrap();
        assert_eq!(map.data.unwrap()["colour"], "blue");
        let nodes: Api<v1::Node> = Api::all(sim.users_client());
        nodes.get(NODE).await.expect("the node's object");
    });
}

/// Starts the current agent on the fixture and checks every pod after a while.
async fn agent_started_on(fixture: &Fixture, root: &str) -> Sim {
    let cpus = u32::try_from(fixture.value("/cpus").as_u64().unwrap()).unwrap();
    let options = Options { features: Features::containerd_2(), cpus, ..Options::default() };
    let mut sim = Sim::resume(options, fixture, root).await;
    write_static_pods(&sim, fixture);
    let pods: Api<v1::Pod> = Api::namespaced(sim.users_client(), "default");
    let before = pods.list(&Default::default()).await.unwrap().items;
    assert_eq!(before.len(), 9, "{before:#?}");
    let files_before = tree(&sim.environment.root());
    let checkpoints_before = CHECKPOINTS.map(|name| checkpoint(&sim, name));
    let running_before = running(&sim);
    assert_eq!(running_before.len(), 6);

    sim.start().await;
    sim.pass(Duration::from_secs(300)).await;

    let corrupt: Vec<_> =
        tree(&sim.environment.root()).into_keys().filter(|path| is_aside(path)).collect();
    assert_eq!(corrupt, [] as [PathBuf; 0], "moved aside");
    for (name, before) in CHECKPOINTS.iter().zip(checkpoints_before) {
        let now = checkpoint(&sim, name);
        for (key, before) in before.as_object().unwrap() {
            assert_eq!(&now[key], before, "{name}: {key}");
        }
    }
    assert_eq!(running(&sim), running_before, "{}", sim.history());
    let changes =
        [Rpc::RunPodSandbox, Rpc::CreateContainer, Rpc::StartContainer, Rpc::StopContainer];
    for rpc in changes.into_iter().chain([Rpc::UpdateContainerResources, Rpc::PullImage]) {
        let made = sim.fake.calls().iter().filter(|call| call.rpc == rpc).count();
        assert_eq!(made, 0, "{rpc:?}\n{}", sim.history());
    }
    let files = tree(&sim.environment.root());
    for (path, content) in files_before.iter().filter(|(path, _)| is_kept(path)) {
        let now = files.get(path);
        let is_migrated = is_empty_dir_record(path) && now == Some(&Some(b"disk".to_vec()));
        assert!(now == Some(content) || is_migrated, "{}: {now:?}", path.display());
    }
    for pod in &before {
        let name = pod.metadata.name.as_deref().unwrap();
        let now = pods.get(name).await.unwrap();
        assert_eq!(remembered(&now), remembered(pod), "{name}\n{}", sim.history());
    }
    assert_expected(&pods).await;
    assert_private_image_is_private(&sim).await;
    sim::invariants::assert_invariants(&sim);
    sim
}

/// Writes the manifests with their original UIDs: the path is part of the UID.
fn write_static_pods(sim: &Sim, fixture: &Fixture) {
    for (file, mut pod, uid) in static_pods(fixture) {
        pod["metadata"]["uid"] = json!(uid);
        sim.write_manifest(&file, &pod.to_string());
    }
}

/// File name, manifest and UID of each static pod, as this version reads the manifest.
fn static_pods(fixture: &Fixture) -> Vec<(String, Value, String)> {
    let beside = fixture.list("/staticPods").iter().map(|entry| {
        let text = |field: &str| entry[field].as_str().unwrap().to_owned();
        (text("path"), text("text"))
    });
    let inside = fixture.entries().into_iter().filter_map(|entry| {
        let name = entry.path.strip_prefix("manifests").ok()?.to_str()?.to_owned();
        let Content::File { bytes, .. } = entry.content else { return None };
        Some((name, String::from_utf8(bytes).unwrap()))
    });
    let pods = beside.chain(inside).map(|(name, text)| {
        let location = format!("{}/{name}", fixture.text("/manifests"));
        let node = fixture.text("/node");
        let origin = manifest::Origin {
            source: Source::File,
            location: &location,
            node,
            features: PodFeatures::DEFAULT,
        };
        let pod = manifest::pod(&text, origin).unwrap();
        (name, serde_json::from_str(&text).unwrap(), pod.metadata.uid.unwrap())
    });
    pods.collect()
}

#[test]
fn static_pods_keep_their_uids() {
    for name in ["joined", "up"] {
        let fixture = fixture(name);
        let pods = static_pods(&fixture);
        assert_eq!(pods.len(), 1, "{name}");
        let sandboxes = fixture.list("/runtime/sandboxes");
        let sandbox = sandboxes.iter().find(|sandbox| sandbox["name"] == "static-node-a").unwrap();
        assert_eq!(sandbox["uid"], pods[0].2, "{name}");
    }
}

#[test]
fn user_namespaces_keep_their_ranges() {
    for (name, below) in [("joined", "pods"), ("up", "kubelet/pods")] {
        let directory = tempfile::tempdir().unwrap();
        fixture(name).unpack(&directory.path().join("copy")).unwrap();
        let pods = Root::open(directory.path().join("copy").join(below)).unwrap();
        let kept: Vec<String> = pods
            .list("")
            .unwrap()
            .into_iter()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|uid| pods.read(format!("{uid}/userns"), 4096).is_ok())
            .collect();
        assert_eq!(kept.len(), 1, "{name}");
        let users = Users::new(UserRange::for_pods(110, BLOCK));
        let first = |uid: &str| {
            let mappings = users.of_pod(&pods, &PodUid::new(uid)).unwrap();
            mappings.uids[0].host_id
        };
        assert_eq!(first(&kept[0]), BLOCK, "{name}: the range it was given");
        pods.create_dir("another", 0o750).unwrap();
        assert_eq!(first("another"), 2 * BLOCK, "{name}: a range that is free");
    }
}

/// The part of an unchanged pod that must be the same before and after. Not the termination
/// message: 87c89a6 removed the file of a finished pod, and a restart reads it again.
fn remembered(pod: &v1::Pod) -> Value {
    let status = pod.status.clone().unwrap_or_default();
    let containers: Vec<Value> = record::containers(pod)
        .into_iter()
        // A container that never ran has no such state.
        .filter(|container| container.container_id.is_some())
        .map(|container| {
            let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
            json!({
                "id": container.container_id,
                "restarts": container.restart_count,
                "ready": container.ready,
                "exit code": ended.map(|ended| ended.exit_code),
                "granted": container.allocated_resources,
                "in force": container.resources,
            })
        })
        .collect();
    let reason = |kind: &str| {
        let mut all = status.conditions.iter().flatten();
        all.find(|condition| condition.type_ == kind).map(|condition| condition.reason.clone())
    };
    json!({
        "uid": pod.metadata.uid,
        "phase": status.phase,
        "reason": status.reason,
        "message": status.message,
        "qos": status.qos_class,
        "start": status.start_time,
        "resize pending": reason("PodResizePending"),
        "resize in progress": reason("PodResizeInProgress"),
        "containers": containers,
    })
}

async fn assert_expected(pods: &Api<v1::Pod>) {
    let status = async |name: &str| {
        let pod = pods.get(name).await.unwrap();
        serde_json::to_value(pod.status).unwrap()
    };
    let rejected = status("rejected").await;
    assert_eq!((&rejected["phase"], &rejected["reason"]), (&json!("Failed"), &json!("OutOfcpu")));
    let resized = status("resized").await;
    assert_eq!(resized["containerStatuses"][0]["allocatedResources"]["cpu"], "75m");
    let deferred = status("deferred").await;
    assert_eq!(deferred["containerStatuses"][0]["allocatedResources"]["cpu"], "50m");
    for (name, phase) in [("finished", "Succeeded"), ("failed", "Failed")] {
        assert_eq!(status(name).await["phase"], phase, "{name}");
    }
}

/// A pod with the credentials may use the image without a pull; a pod without may not.
async fn assert_private_image_is_private(sim: &Sim) {
    let private = sim.record.pod("private").unwrap();
    let image = private.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
    let with = |name: &str, secret: Option<&str>| {
        test_pod(name).container("app", &image).edit(|pod| {
            pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
            if let Some(secret) = secret {
                pod["spec"]["imagePullSecrets"] = json!([{ "name": secret }]);
            }
        })
    };
    sim.create(&with("allowed", Some("registry"))).await;
    sim.create(&with("refused", None)).await;
    sim.until_ready("allowed").await;
    let waits = |sim: &Sim| {
        let pod = sim.record.pod("refused").unwrap();
        let container = record::containers(&pod).into_iter().next().cloned();
        let state = container.and_then(|container| container.state?.waiting?.reason);
        state.as_deref() == Some("ErrImageNeverPull")
    };
    sim.until("refused is refused", Duration::from_secs(60), waits).await;
}

fn running(sim: &Sim) -> BTreeMap<String, Vec<String>> {
    let seen = sim.fake.snapshot();
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sandbox in seen.sandboxes.iter().filter(|sandbox| sandbox.ready) {
        let uid = sandbox.pod.uid.to_string();
        let names = seen.running(&uid).into_iter().map(str::to_owned).collect();
        all.insert(uid, names);
    }
    all
}

/// The content of a checkpoint, without its checksum: the order of writing is free.
fn checkpoint(sim: &Sim, name: &str) -> Value {
    let text = std::fs::read_to_string(sim.environment.root().join(name)).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["data"].take()
}

/// Paths below a directory, with the content of files.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(below) = directories.pop() {
        for entry in std::fs::read_dir(directory.join(&below)).unwrap().flatten() {
            let path = below.join(entry.file_name());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(path.clone());
            }
            let content = kind.is_file().then(|| std::fs::read(entry.path()).unwrap());
            found.insert(path, content);
        }
    }
    found
}

fn is_aside(path: &Path) -> bool {
    path.to_string_lossy().contains(".corrupt-")
}

/// Everything but the checkpoints, which are compared by content.
fn is_kept(path: &Path) -> bool {
    !CHECKPOINTS.iter().any(|name| path == Path::new(name))
}

/// The record of an emptyDir, to which its medium is added when the volume is set up again.
fn is_empty_dir_record(path: &Path) -> bool {
    path.parent().and_then(Path::parent).is_some_and(|plugin| {
        path.ends_with("ready") && plugin.ends_with("plugins/kubernetes.io~empty-dir")
    })
}

/// Serializing the parsed text gives the same bytes.
fn written_again<T: DeserializeOwned + Serialize>(text: &str, write: fn(&T) -> String) {
    let read: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(write(&read), text);
}

fn compact<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap()
}

fn pretty<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap()
}

#[test]
fn debug_socket_responses_and_cases_are_compatible() {
    let fixture = fixture("joined");
    let answers = fixture.value("/answers").as_object().unwrap();
    assert_eq!(answers.len(), 7);
    for (pod, answer) in answers {
        written_again::<Explanation>(answer["why"].as_str().unwrap().trim_end(), pretty);
        let Some(text) = answer["case"].as_str() else { continue };
        written_again::<Case>(text.trim_end(), pretty);
        let case: Case = serde_json::from_str(text).unwrap();
        let explanation: Explanation =
            serde_json::from_str(answer["why"].as_str().unwrap()).unwrap();
        assert_eq!(case.lifecycle.stage(), explanation.stage, "{pod}");
        plan::decide(&case.inputs());
    }
}

#[test]
fn state_directory_without_a_marker_is_recognised_up_or_down() {
    let directory = tempfile::tempdir().unwrap();
    fixture("up").unpack(directory.path()).unwrap();
    let layout = Layout::new(directory.path());
    assert!(state_dir::is_node(&layout).unwrap());
    // `down` removes the record and keeps the data.
    std::fs::remove_file(directory.path().join("made.json")).unwrap();
    assert!(state_dir::is_node(&layout).unwrap());
}

#[test]
fn state_of_a_standalone_node_is_compatible() {
    let fixture = fixture("up");
    written_again::<Record>(&String::from_utf8(fixture.file("made.json")).unwrap(), pretty);
    let volatile: BTreeMap<&str, &str> = fixture
        .list("/volatile")
        .iter()
        .filter_map(|entry| Some((entry["path"].as_str()?, entry["text"].as_str()?)))
        .collect();
    let instance = Layout::new(Path::new("/var/lib/podwright")).instance();
    for daemon in ["agent", "containerd"] {
        let text = volatile[format!("{instance}/{daemon}.pid").as_str()];
        written_again::<ProcessIdentity>(text, compact);
    }
    written_again::<Note>(volatile[format!("{instance}/agent.json").as_str()], compact);
}
