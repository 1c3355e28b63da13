//! Simulation that continues from the recorded state of a real node: its files, its runtime, its
//! API objects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use podwright_apiserver::document::Document;
use podwright_apiserver::object::Object;
use podwright_apiserver::registry::RESOURCES;
use podwright_apiserver::store::{Change, Key, Precondition, WriteOp};
use podwright_apiserver::{Limits, Store};
use podwright_core::ids::SandboxId;
use podwright_core::labels;
use podwright_fake_runtime::{ContainerState, FakeImage, Script};
use podwright_host::clock::Clock;
use podwright_proto::cri;
use serde_json::Value;

use super::environment::Environment;
use super::{Options, Sim, test_pod};
use crate::fixture::Fixture;

/// Time between the end of the recorded agent and the start of the one under test.
const PAUSE: Duration = Duration::from_secs(60);
/// Path of the API server's database in the state directory of a standalone node.
const DATABASE: &str = "api/objects.redb";

impl Sim {
    /// A simulation without an agent, in the state that the fixture describes. `root` is the
    /// agent's root directory among the fixture's files; the rest is in [`Sim::state`].
    pub async fn resume(options: Options, fixture: &Fixture, root: &str) -> Self {
        let taken: Timestamp = fixture.text("/takenAt").parse().expect("a time");
        let clock = Clock::simulated(taken + PAUSE);
        let environment = Environment::new();
        let state = environment.path().join("state");
        fixture.unpack(&state).expect("the files of the fixture");
        std::fs::remove_dir(environment.root()).expect("an empty root directory");
        std::fs::rename(state.join(root), environment.root()).expect("the root directory");
        let database = state.join(DATABASE);
        let open = |clock: podwright_apiserver::Clock| match database.exists() {
            true => Store::open(&database, Limits::default(), clock),
            false => Store::in_memory(Limits::default(), clock),
        };
        let open = |clock| open(clock).expect("the store of the fixture");
        let objects = objects(fixture);
        let this = Self::around(options, clock, environment, open, objects).await;
        this.adopt(fixture).await;
        this
    }

    /// The fixture's files beside the agent's root directory.
    pub fn state(&self) -> PathBuf {
        self.environment.path().join("state")
    }

    /// Puts the recorded sandboxes and containers into the runtime, under their own ids.
    async fn adopt(&self, fixture: &Fixture) {
        for image in fixture.list("/runtime/images") {
            let named = FakeImage::new(string(image, "name")).id(string(image, "id"));
            self.fake.images().add(named).expect("an image name");
        }
        let ends: BTreeMap<(String, String), i32> = fixture
            .list("/runtime/containers")
            .iter()
            .filter(|container| container["state"] == "exited")
            .map(|container| {
                let code = container["exitCode"].as_i64().expect("an exit code");
                (identity(&map(&container["labels"])), i32::try_from(code).expect("an exit code"))
            })
            .collect();
        let expected = ends.len();
        self.fake.choose_scripts(move |config| {
            let code = ends.get(&identity(&config.labels))?;
            Some(Script::exits(*code, Duration::ZERO))
        });
        let client = self.fake.client();
        let mut made: BTreeMap<String, (SandboxId, cri::PodSandboxConfig)> = BTreeMap::new();
        for sandbox in fixture.list("/runtime/sandboxes") {
            let config = sandbox_config(sandbox);
            self.fake.name_next([string(sandbox, "id")]);
            let run = client.run_sandbox(config.clone(), &string(sandbox, "handler")).await;
            made.insert(string(sandbox, "id"), (run.expect("a sandbox"), config));
        }
        for container in fixture.list("/runtime/containers") {
            let (sandbox, config) = &made[&string(container, "sandbox")];
            self.fake.name_next([string(container, "id")]);
            let create = client.create_container(
                sandbox,
                container_config(container, fixture.text("/root"), &self.environment.root()),
                config.clone(),
            );
            let id = create.await.expect("a container");
            client.start_container(&id).await.expect("a container that starts");
            if container["state"] == "running" {
                let (uid, _) = identity(&map(&container["labels"]));
                self.environment.make_pod_cgroup(class(container), &uid);
            }
        }
        let exited = |state: &ContainerState| matches!(state, ContainerState::Exited { .. });
        self.fake
            .wait_for(|seen| {
                seen.containers.iter().filter(|it| exited(&it.state)).count() == expected
            })
            .await;
        for sandbox in fixture.list("/runtime/sandboxes") {
            if sandbox["ready"] != true {
                let (id, _) = &made[&string(sandbox, "id")];
                client.stop_sandbox(id).await.expect("a sandbox that stops");
            }
        }
        self.fake.choose_scripts(|_| None);
        test_pod::stock(&self.fake);
        self.fake.mark_adopted();
        self.fake.clear_calls();
    }
}

/// The recorded API objects, as changes of an empty store.
fn objects(fixture: &Fixture) -> Vec<Change> {
    let change = |value: &Value| {
        let kind = string(value, "kind");
        let resource = RESOURCES.iter().find(|resource| resource.kind == kind);
        let resource = resource.unwrap_or_else(|| panic!("{kind} is not a supported kind"));
        let metadata = &value["metadata"];
        let namespace = metadata["namespace"].as_str().unwrap_or_default();
        let key = Key::new(resource, namespace, &string(metadata, "name"));
        let object = Object::try_from(value.clone()).expect("an object");
        let op = WriteOp::Put { text: Document::text(object), previous: None };
        Change { key, expect: Precondition::Absent, op }
    };
    fixture.list("/objects").iter().map(change).collect()
}

fn string(value: &Value, field: &str) -> String {
    let text = value[field].as_str();
    text.unwrap_or_else(|| panic!("no {field} in {value}")).to_owned()
}

fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn map(value: &Value) -> BTreeMap<String, String> {
    let fields = value.as_object().into_iter().flatten();
    fields.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().into())).collect()
}

/// Pod and container, by the labels of a container.
fn identity(labels: &BTreeMap<String, String>) -> (String, String) {
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    (label(labels::POD_UID), label(labels::CONTAINER_NAME))
}

/// Cgroup of a pod's QoS class, derived from the OOM score of its containers.
fn class(container: &Value) -> &'static str {
    match number(&container["resources"], "oomScoreAdj") {
        1000 => "besteffort",
        -997 => "",
        _ => "burstable",
    }
}

fn attempt(value: &Value) -> u32 {
    u32::try_from(number(value, "attempt")).expect("an attempt")
}

fn sandbox_config(sandbox: &Value) -> cri::PodSandboxConfig {
    let metadata = cri::PodSandboxMetadata {
        name: string(sandbox, "name"),
        namespace: string(sandbox, "namespace"),
        uid: string(sandbox, "uid"),
        attempt: attempt(sandbox),
    };
    cri::PodSandboxConfig {
        metadata: Some(metadata),
        labels: map(&sandbox["labels"]),
        annotations: map(&sandbox["annotations"]),
        ..Default::default()
    }
}

/// Maps paths below the recorded root directory to the current one.
fn container_config(container: &Value, recorded: &str, root: &Path) -> cri::ContainerConfig {
    let mounts = container["mounts"].as_array().into_iter().flatten().map(|mount| {
        let host_path = string(mount, "hostPath");
        let below = host_path.strip_prefix(recorded);
        let moved = below.map(|below| format!("{}{below}", root.display()));
        cri::Mount {
            container_path: string(mount, "containerPath"),
            host_path: moved.unwrap_or(host_path),
            readonly: mount["readonly"] == true,
            ..Default::default()
        }
    });
    let resources = &container["resources"];
    let resources = cri::LinuxContainerResources {
        cpu_period: number(resources, "cpuPeriod"),
        cpu_quota: number(resources, "cpuQuota"),
        cpu_shares: number(resources, "cpuShares"),
        memory_limit_in_bytes: number(resources, "memoryLimit"),
        oom_score_adj: number(resources, "oomScoreAdj"),
        ..Default::default()
    };
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: string(container, "name"),
            attempt: attempt(container),
        }),
        image: Some(cri::ImageSpec { image: string(container, "imageId"), ..Default::default() }),
        labels: map(&container["labels"]),
        annotations: map(&container["annotations"]),
        mounts: mounts.collect(),
        linux: Some(cri::LinuxContainerConfig { resources: Some(resources), ..Default::default() }),
        ..Default::default()
    }
}
