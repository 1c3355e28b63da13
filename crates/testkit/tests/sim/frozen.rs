//! Interfaces that clients of a node rely on: metrics, Events, paths of the kubelet server, API
//! discovery.
//!
//! Each test compares with a file in `tests/snapshots`; see `podwright_testkit::snapshot`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use http::Method;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::api::ListParams;
use podwright_fake_runtime::{Code, Condition, ExecReply, Fault, Features, Rpc, Rule, Script};
use podwright_testkit::sim::test_pod::{APP, APP_2, FAILS, INIT, JOB, REMOTE, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim};
use podwright_testkit::snapshot;
use serde_json::{Value, json};

use crate::s;
use crate::server::{request_page, server};

fn check(name: &str, shown: &str) {
    snapshot::check(env!("CARGO_MANIFEST_DIR"), name, shown);
}

/// A pod of one container that runs, with these fields in the container.
fn app(name: &str, fields: Value) -> TestPod {
    test_pod(name).container("app", APP).edit(|pod| {
        let Value::Object(fields) = fields else { return };
        for (field, value) in fields {
            pod["spec"]["containers"][0][field] = value;
        }
    })
}

fn with_spec(test_pod: TestPod, fields: Value) -> TestPod {
    test_pod.edit(|pod| {
        let Value::Object(fields) = fields else { return };
        for (field, value) in fields {
            pod["spec"][field] = value;
        }
    })
}

fn exec(command: &str) -> Value {
    json!({ "exec": { "command": [command] } })
}

/// A probe that runs every second and fails after one failure.
fn probe(command: &str) -> Value {
    json!({ "exec": { "command": [command] }, "periodSeconds": 1, "failureThreshold": 1 })
}

async fn busy_node(features: Features) -> Sim {
    let sim = Sim::new(Options { chores: true, features, ..Options::default() }).await;
    let script = Script::forever()
        .exec(&["good"], ExecReply::exits(0))
        .exec(&["bad"], ExecReply::exits(1).printing("why it is bad"));
    sim.fake.script(APP, script);
    sim
}

/// The name, type and label names of each metric of a page.
fn metrics(page: &str) -> String {
    let mut types = BTreeMap::new();
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of.split_once(' ').expect("a type");
            types.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') && !line.is_empty() {
            let end = line.find(['{', ' ']).expect("a sample");
            let (sample, rest) = line.split_at(end);
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|part| sample.strip_suffix(part))
                .find(|name| types.get(*name).is_some_and(|kind| kind == "histogram"));
            let names = labels.entry(family.unwrap_or(sample).to_owned()).or_default();
            names.extend(label_names(rest));
        }
    }
    let mut shown = String::new();
    for (name, names) in labels {
        let kind = types.get(&name).map_or("untyped", String::as_str);
        let names: Vec<String> = names.into_iter().collect();
        writeln!(shown, "{name} {kind} {{{}}}", names.join(",")).unwrap();
    }
    shown
}

/// The label names of a sample: the text before `="` outside quotes.
fn label_names(labels: &str) -> Vec<String> {
    let Some(labels) = labels.strip_prefix('{') else { return Vec::new() };
    let (mut names, mut name, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false);
    for letter in labels.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '=' => names.push(std::mem::take(&mut name)),
            ',' => {}
            '}' => break,
            _ => name.push(letter),
        }
    }
    names
}

#[test]
fn metrics_keep_their_names_types_and_labels() {
    sim::run(async {
        let mut sim = busy_node(Features::containerd_2()).await;
        sim.make::<v1::ConfigMap>("map", json!({ "data": { "key": "value" } })).await;
        sim.start().await;
        let web = app(
            "web",
            json!({ "readinessProbe": probe("good"), "resources": { "requests": { "cpu": "100m" } },
            "lifecycle": {
            "postStart": exec("good"), "preStop": { "sleep": { "seconds": 1 } } } }),
        );
        let volumes = json!({ "volumes": [{ "name": "map", "configMap": { "name": "map" } }] });
        sim.create(&with_spec(web, volumes)).await;
        sim.create(&test_pod("pulls").init("first", INIT).container("app", REMOTE)).await;
        sim.create(&test_pod("crashes").container("app", FAILS)).await;
        sim.create(&with_spec(
            test_pod("big").container("app", APP),
            json!({ "nodeSelector": { "no": "where" } }),
        ))
        .await;
        sim.write_manifest("static.json", &test_pod("static").container("app", APP).manifest());
        sim.until_ready("web").await;
        sim.until_ready("pulls").await;
        assert!(sim.resize("web", "app", json!({ "cpu": "200m" })).await);
        sim.create(&app("goes", json!({ "lifecycle": { "preStop": exec("bad") } }))).await;
        sim.until_ready("goes").await;
        sim.delete("goes", None).await;
        sim.until_gone("goes").await;
        sim.pass(s(90)).await;
        let server = server(&sim);
        let mut shown = String::new();
        // Twice: rates and the server's own counters exist from the second time on.
        for _ in 0..2 {
            shown.clear();
            for page in ["/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes"] {
                let (status, text) = request_page(&server, Method::GET, page).await;
                assert_eq!(status, 200, "{page}: {text}");
                writeln!(shown, "== {page}\n{}", metrics(&text)).unwrap();
            }
            sim.pass(s(20)).await;
        }
        check("metrics", &shown);
    });
}

/// Every Event in the API, without what differs from pod to pod of one kind.
async fn events(sim: &Sim) -> BTreeSet<String> {
    let all: Api<v1::Event> = Api::all(sim.users_client());
    let all = all.list(&ListParams::default()).await.expect("events").items;
    let line = |event: v1::Event| {
        let object = event.involved_object;
        let of = |text: Option<String>| text.unwrap_or_default();
        let environment = sim.environment.path().display().to_string();
        let mut message = of(event.message).replace(&environment, "GROUND");
        // Objects named after the pod, with its UID.
        if let (Some(name), Some(uid)) = (&object.name, &object.uid) {
            message = message.replace(&format!("{name}_default({uid})"), "POD_default(UID)");
        }
        let kind = of(object.kind);
        format!("{} {} {kind}: {}", of(event.type_), of(event.reason), masked(&message))
    };
    all.into_iter().map(line).collect()
}

/// Ids of containers and sandboxes are random.
fn masked(message: &str) -> String {
    let is_id = |word: &str| word.len() == 64 && word.chars().all(|c| c.is_ascii_hexdigit());
    let mut text = String::new();
    let mut word = String::new();
    for letter in message.chars().chain(['\n']) {
        if letter.is_ascii_alphanumeric() {
            word.push(letter);
            continue;
        }
        text.push_str(if is_id(&word) { "ID" } else { &word });
        word.clear();
        text.push(letter);
    }
    text.pop();
    text
}

#[test]
fn events_keep_their_types_reasons_and_texts() {
    let mut shown = BTreeSet::new();
    for features in [Features::containerd_1_6(), Features::containerd_2()] {
        sim::run(async {
            let mut sim = busy_node(features).await;
            sim.start().await;
            provoke(&mut sim).await;
            shown.extend(events(&sim).await);
        });
    }
    let shown: String = shown.into_iter().map(|line| format!("{line}\n")).collect();
    check("events", &shown);
}

/// Causes the Events.
async fn provoke(sim: &mut Sim) {
    let never = json!({ "imagePullPolicy": "Never", "image": "localhost/podwright/absent:1" });
    let absent = json!({ "image": "localhost/podwright/absent:1" });
    let secret = json!({ "secretKeyRef": { "name": "absent", "key": "key" } });
    let huge = json!({ "resources": { "requests": { "cpu": "400" } } });
    let port = json!({ "ports": [{ "containerPort": 80, "hostPort": 8080 }] });
    let sysctl =
        json!({ "securityContext": { "sysctls": [{ "name": "kernel.shm", "value": "1" }] } });
    let map = json!([{ "name": "map", "configMap": { "name": "absent" } }]);
    let grpc = json!({ "postStart": { "httpGet": { "port": 1, "host": "127.0.0.1" } } });
    let pods = [
        test_pod("pulls").init("first", INIT).container("app", REMOTE),
        test_pod("job").restart("Never").container("job", JOB),
        test_pod("crashes").container("app", FAILS),
        test_pod("fails").restart("Never").init("first", FAILS).container("app", APP),
        app("absent", absent),
        app("never", never),
        app("nameless", json!({ "image": "NOT an image" })),
        app("ready", json!({ "readinessProbe": probe("bad") })),
        app("alive", json!({ "livenessProbe": probe("bad") })),
        app("starts", json!({ "startupProbe": probe("bad") })),
        app("hooked", json!({ "lifecycle": { "postStart": exec("bad") } })),
        app("asks", json!({ "lifecycle": grpc })),
        app("unhooked", json!({ "lifecycle": { "preStop": exec("bad") } })),
        app("secret", json!({ "env": [{ "name": "KEY", "valueFrom": secret }] })),
        app("root", json!({ "securityContext": { "runAsNonRoot": true, "runAsUser": 0 } })),
        app("huge", huge),
        app("port", port.clone()),
        app("port-taken", port),
        with_spec(
            test_pod("selects").container("app", APP),
            json!({ "nodeSelector": { "no": "where" } }),
        ),
        with_spec(test_pod("sysctl").container("app", APP), sysctl),
        with_spec(
            app("map", json!({ "volumeMounts": [{ "name": "map", "mountPath": "/map" }] })),
            json!({ "volumes": map }),
        ),
        with_spec(test_pod("late").container("app", APP), json!({ "activeDeadlineSeconds": 30 })),
        app("resized", json!({ "resources": { "requests": { "cpu": "100m" } } })),
        test_pod("sandboxless").container("app", APP),
        test_pod("uncreated").container("app", APP),
        test_pod("unstarted").container("app", APP),
        test_pod("unstopped").container("app", APP),
        test_pod("lost").container("app", APP),
        test_pod("edited").container("app", APP),
    ];
    let error = || Fault::Error(Code::Unknown, "a fault of the simulation".into());
    sim.fake.fail(Rule::on(Rpc::RunPodSandbox, error()).pod("sandboxless").first(2));
    sim.fake.fail(Rule::on(Rpc::CreateContainer, error()).pod("uncreated").first(2));
    sim.fake.fail(Rule::on(Rpc::StartContainer, error()).pod("unstarted").first(2));
    sim.fake.fail(Rule::on(Rpc::StopContainer, error()).pod("unstopped").first(2));
    for pod in &pods {
        sim.create(pod).await;
    }
    sim.write_manifest("bad.json", &test_pod("Bad_Name").container("app", APP).manifest());
    sim.write_manifest("static.json", &test_pod("static").container("app", APP).manifest());
    for name in ["unhooked", "resized", "lost", "edited", "unstopped", "pulls"] {
        sim.until_ready(name).await;
    }
    sim.resize("resized", "app", json!({ "cpu": "200m" })).await;
    sim.pass(s(5)).await;
    sim.resize("resized", "app", json!({ "cpu": "300" })).await;
    assert!(sim.fake.kill_sandbox("lost"));
    sim.set_image("edited", "app", APP_2).await;
    for name in ["unhooked", "unstopped", "crashes"] {
        sim.delete(name, None).await;
    }
    sim.pass(s(120)).await;
    sim.fake.set_network(Condition::not_ready("NetworkPluginNotReady", "no network yet"));
    sim.pass(s(10)).await;
    sim.create(&test_pod("networkless").container("app", APP)).await;
    sim.pass(s(30)).await;
    sim.fake.set_network(Condition::Ready);
    sim.reboot().await;
    sim.pass(s(60)).await;
}

#[test]
fn pages_of_the_kubelet_server_keep_their_methods() {
    let paths = [
        "/",
        "/healthz",
        "/healthz/ping",
        "/healthz/log",
        "/healthz/syncloop",
        "/healthz/none",
        "/pods",
        "/pods/",
        "/pods/x",
        "/runningpods",
        "/configz",
        "/metrics",
        "/metrics/cadvisor",
        "/metrics/resource",
        "/metrics/probes",
        "/metrics/none",
        "/stats",
        "/stats/summary",
        "/containerLogs/default/web/app",
        "/containerLogs/default/web/none",
        "/containerLogs/default/none/app",
        "/exec/default/web/app",
        "/exec/default/web/uid/app",
        "/attach/default/web/app",
        "/run/default/web/app",
        "/portForward/default/web",
        "/portForward/default/web/uid",
        "/logs",
        "/logs/",
        "/debug/pprof",
        "/checkpoint/default/web/app",
        "/spec",
        "/none",
    ];
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let server = server(&sim);
        let mut shown = String::new();
        for path in paths {
            write!(shown, "{path}:").unwrap();
            for method in [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE] {
                let (status, _) = request_page(&server, method.clone(), path).await;
                write!(shown, " {method} {status}").unwrap();
            }
            shown.push('\n');
        }
        check("kubelet-server", &shown);
    });
}

#[test]
fn api_discovery_is_unchanged() {
    sim::run(async {
        let sim = Sim::started(Options { api: true, ..Options::default() }).await;
        let client = sim.users_client();
        let mut lists = vec![client.list_core_api_resources("v1").await.expect("resources")];
        for group in client.list_api_groups().await.expect("groups").groups {
            for version in group.versions {
                let list = client.list_api_group_resources(&version.group_version).await;
                lists.push(list.expect("resources"));
            }
        }
        let mut shown = String::new();
        for list in lists {
            writeln!(shown, "== {}", list.group_version).unwrap();
            let mut resources = list.resources;
            resources.sort_by(|a, b| a.name.cmp(&b.name));
            for resource in resources {
                let scope = if resource.namespaced { "namespaced" } else { "cluster" };
                let short = resource.short_names.unwrap_or_default().join(",");
                let verbs = resource.verbs.join(",");
                let (name, kind) = (resource.name, resource.kind);
                writeln!(shown, "{name} {kind} {scope} [{short}] {verbs}").unwrap();
            }
        }
        check("api-discovery", &shown);
    });
}
