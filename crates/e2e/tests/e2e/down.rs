//! `podwright up`, `down` and `reset` next to a user's mounts and files, and how pods are stopped.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::{tools, wait};
use serde_json::{Value, json};

use crate::machine_unchanged::Before;
use crate::privilege::{isolated, needs_root};
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);
const IMAGE: &str = "localhost/podwright/test:latest";

/// A container that runs a script, with the case's evidence directory at /evidence.
fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        "volumeMounts": [
            {"name": "evidence", "mountPath": "/evidence"}, {"name": "cache", "mountPath": "/cache"},
        ],
    })
}

fn pod(name: &str, evidence: &Path, spec: Value) -> Value {
    let mut spec = spec;
    spec["volumes"] = json!([
        {"name": "evidence", "hostPath": {"path": evidence}}, {"name": "cache", "emptyDir": {}},
    ]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

/// A shell that on SIGTERM waits, writes a line and exits with 0.
fn slow(who: &str, seconds: u32) -> String {
    format!(
        "echo {who} started >>/evidence/log; \
         trap 'sleep {seconds}; echo {who} closed >>/evidence/log; exit 0' TERM; \
         while :; do sleep 0.1; done"
    )
}

async fn apply(kubectl: &Kubectl, object: &Value) {
    kubectl.run_with(&["apply", "-f", "-"], &object.to_string()).await.unwrap();
}

async fn field(kubectl: &Kubectl, pod: &str, path: &str) -> String {
    kubectl.run(&["get", "pod", pod, "-o", &format!("jsonpath={{{path}}}")]).await.unwrap()
}

async fn ready(kubectl: &Kubectl, pod: &str) {
    let wait = ["wait", "--for=condition=Ready", &format!("pod/{pod}"), "--timeout=180s"];
    kubectl.run(&wait).await.unwrap();
}

fn lines(evidence: &Path) -> Vec<String> {
    let text = fs::read_to_string(evidence.join("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn started(evidence: &Path, line: &str) {
    let seen = async || Ok(lines(evidence).iter().any(|seen| seen == line));
    wait::until_true(format!("the line {line:?}"), LIMIT, seen).await.unwrap();
}

/// Mount table lines at or below a directory, with propagation.
fn mounts_below(directory: &str) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = |line: &str| line.split(' ').nth(4).unwrap_or_default().to_owned();
    let below = |line: &&str| Path::new(&point(line)).starts_with(directory);
    let mut lines: Vec<String> = table.lines().filter(below).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Processes with an argument that begins with a path.
fn processes_of(path: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|it| fs::read(it.path().join("cmdline")).ok());
    let words = |line: Vec<u8>| String::from_utf8_lossy(&line).replace('\0', " ");
    lines.map(words).filter(|line| line.split(' ').any(|word| word.starts_with(path))).collect()
}

#[tokio::test]
async fn user_mounts_and_their_files_survive_down_and_reset() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "state");
    let state = Path::new(&node.state).to_owned();
    let shell = async |script: String| bed.exec(&["sh", "-ec", &script]).await.unwrap();
    // A shared mount for the whole directory with a peer elsewhere, a directory for the volumes, a
    // mount in it, and one where containerd keeps its images.
    let (elsewhere, peer) = (bed.path("elsewhere"), bed.path("peer"));
    shell(format!(
        "mkdir -p {state} {elsewhere} {peer}; \
         mount -t tmpfs tmpfs {state}; mount --make-shared {state}; mount --bind {state} {peer}; \
         mkdir -p {state}/volumes {state}/containerd; \
         mount --bind {elsewhere} {state}/volumes; mkdir {state}/volumes/disk; \
         mount -t tmpfs tmpfs {state}/volumes/disk; mount -t tmpfs tmpfs {state}/containerd; \
         touch {elsewhere}/notes {state}/volumes/disk/notes {state}/containerd/notes",
        state = state.display(),
        elsewhere = elsewhere.display(),
        peer = peer.display(),
    ))
    .await;
    let files = [
        elsewhere.join("notes"),
        state.join("volumes/disk/notes"),
        state.join("containerd/notes"),
        peer.join("volumes/disk/notes"),
    ];
    let base = bed.path("").to_string_lossy().trim_end_matches('/').to_owned();
    let before = mounts_below(&base);
    assert!(before.iter().filter(|line| line.contains("shared:")).count() >= 2, "{before:#?}");

    for round in 0..2 {
        node.run(&["up"]).await.unwrap();
        if round == 0 {
            node.load_test_image().await;
            let kubectl = node.kubectl(Release::V1_32);
            // Its token volume and its container's root are mounts of the node.
            let spec = json!({"containers": [container("main", "sleep 1000")]});
            let spec =
                json!({"terminationGracePeriodSeconds": 1, "containers": spec["containers"]});
            apply(&kubectl, &pod("web", &elsewhere, spec)).await;
        }
        ready(&node.kubectl(Release::V1_32), "web").await;
        assert!(mounts_below(&base).len() > before.len(), "the pod has mounts");
        let printed = node.run(&["down"]).await.unwrap();
        assert!(printed.contains(&format!("stopped; data kept in {}", node.state)), "{printed}");
        assert_eq!(mounts_below(&base), before, "round {round}");
        for file in &files {
            assert!(file.exists(), "{} is gone", file.display());
        }
    }
    let printed = node.run(&["reset", "--yes"]).await.unwrap();
    for part in ["left in place: ", "/volumes (a mount)", "/containerd (a mount)"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert!(!printed.contains("deleted"), "{printed}");
    assert_eq!(mounts_below(&base), before);
    for file in &files {
        assert!(file.exists(), "{} is gone", file.display());
    }
    let left: Vec<_> = fs::read_dir(&state).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the mount points of the user's mounts: {left:?}");
    // A prepared state directory is no reason to refuse.
    node.run(&["up"]).await.unwrap();
    node.run(&["reset", "--yes", "--now"]).await.unwrap();
    shell(format!(
        "umount {s}/volumes/disk {s}/volumes {s}/containerd; umount {p} {s}",
        s = state.display(),
        p = peer.display()
    ))
    .await;
    bed.close().unwrap();
}

fn run_with_input(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses before it prompts does not read the input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[tokio::test]
async fn directories_with_foreign_files_are_refused_by_up_and_kept_by_reset() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "state");
    let state = Path::new(&node.state);
    fs::create_dir(state).unwrap();
    fs::write(state.join("notes.txt"), "mine").unwrap();
    let refused = format!("{:#}", node.run(&["up"]).await.unwrap_err());
    for part in [node.state.as_str(), "notes.txt", "Fix: "] {
        assert!(refused.contains(part), "no {part:?} in {refused}");
    }
    assert_eq!(fs::read_dir(state).unwrap().count(), 1, "nothing was made there");
    assert!(node.run(&["reset", "--yes"]).await.is_err());

    fs::remove_file(state.join("notes.txt")).unwrap();
    fs::remove_dir(state).unwrap();
    node.run(&["up"]).await.unwrap();
    fs::write(state.join("notes.txt"), "mine").unwrap();
    fs::create_dir(state.join("photos")).unwrap();
    let mut reset = bed.command(&node.program);
    let output = run_with_input(reset.args(["reset", "--state-dir", &node.state]), "n\n");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        (output.status.code(), printed.contains("nothing deleted")),
        (Some(1), true),
        "{printed}"
    );
    assert!(state.join("made.json").exists());

    let printed = node.run(&["reset", "--yes"]).await.unwrap();
    for part in ["left in place", "/notes.txt (not made by podwright)", "/photos"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert!(!printed.contains("deleted"), "{printed}");
    let mut left: Vec<_> = fs::read_dir(state).unwrap().map(|it| it.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["notes.txt", "photos"]);
    bed.close().unwrap();
}

#[tokio::test]
async fn down_stops_pods_like_a_deletion_and_up_restarts_them() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let at = |name: &str| {
        let path = bed.path(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (database, by_manifest, finished) = (at("database"), at("static"), at("finished"));
    let mut main = container("main", &slow("main", 3));
    let hook = "sleep 1; echo hook >>/evidence/log";
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", hook]}}});
    let mut sidecar = container("proxy", &slow("proxy", 0));
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({
        "terminationGracePeriodSeconds": 60, "initContainers": [sidecar], "containers": [main],
    });
    apply(&kubectl, &pod("database", &database, spec)).await;
    let spec = json!({"restartPolicy": "Never", "containers": [container("main", "echo once >>/evidence/log")]});
    apply(&kubectl, &pod("finished", &finished, spec)).await;
    let spec = json!({
        "terminationGracePeriodSeconds": 60, "containers": [container("main", &slow("static", 2))],
    });
    node.put_manifest(&pod("static", &by_manifest, spec));
    ready(&kubectl, "database").await;
    started(&database, "main started").await;
    started(&by_manifest, "static started").await;
    let over = ["wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/finished"];
    kubectl.run(&[&over[..], &["--timeout=180s"]].concat()).await.unwrap();
    kubectl.run(&["exec", "database", "-c", "main", "--", "touch", "/cache/kept"]).await.unwrap();
    let uid = field(&kubectl, "database", ".metadata.uid").await;

    let printed = node.run(&["down"]).await.unwrap();
    for part in ["stopping default/database (grace period 60 s)", "2 pods stopped", "data kept in"]
    {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let want = ["proxy started", "main started", "hook", "main closed", "proxy closed"];
    assert_eq!(lines(&database), want, "{printed}");
    assert_eq!(lines(&by_manifest), ["static started", "static closed"], "{printed}");
    assert_eq!(processes_of(&node.state), [] as [&str; 0]);

    node.run(&["up"]).await.unwrap();
    ready(&kubectl, "database").await;
    let again = async |evidence: &Path, who: &str| {
        let twice = async || {
            let line = format!("{who} started");
            Ok(lines(evidence).iter().filter(|seen| **seen == line).count() == 2)
        };
        wait::until_true(format!("{who} to run again"), LIMIT, twice).await.unwrap();
    };
    again(&database, "main").await;
    again(&by_manifest, "static").await;
    assert_eq!(field(&kubectl, "database", ".metadata.uid").await, uid);
    assert_eq!(field(&kubectl, "database", ".status.phase").await, "Running");
    kubectl.run(&["exec", "database", "-c", "main", "--", "ls", "/cache/kept"]).await.unwrap();
    assert_eq!(field(&kubectl, "finished", ".status.phase").await, "Succeeded");
    assert_eq!(lines(&finished), ["once"]);
    node.run(&["down", "--now"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn pods_that_do_not_stop_are_killed_after_the_timeout_or_immediately() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let evidence = bed.path("evidence");
    fs::create_dir(&evidence).unwrap();
    let mut main = container(
        "main",
        "echo started >>/evidence/log; \
         trap 'echo asked >>/evidence/log' TERM; while :; do sleep 0.1; done",
    );
    let hook = "echo hook >>/evidence/log";
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", hook]}}});
    let spec = json!({"terminationGracePeriodSeconds": 3000, "containers": [main]});
    apply(&kubectl, &pod("stubborn", &evidence, spec)).await;
    started(&evidence, "started").await;
    let printed = node.run(&["down", "--timeout", "2s"]).await.unwrap();
    let killed = "not stopped in time, killing: default/stubborn";
    for part in [killed, "1 pod stopped", "data kept in"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert_eq!(lines(&evidence), ["started", "hook", "asked"]);

    fs::remove_file(evidence.join("log")).unwrap();
    node.run(&["up"]).await.unwrap();
    started(&evidence, "started").await;
    let printed = node.run(&["down", "--now"]).await.unwrap();
    assert!(printed.contains("1 pod stopped"), "{printed}");
    assert!(!lines(&evidence).contains(&"hook".to_owned()), "{:?}", lines(&evidence));
    assert_eq!(processes_of(&node.state), [] as [&str; 0]);
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn down_without_an_agent_starts_one_or_grants_the_grace_period() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let evidence = bed.path("evidence");
    fs::create_dir(&evidence).unwrap();
    let mut main = container("main", &slow("main", 12));
    let hook = "echo hook >>/evidence/log";
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", hook]}}});
    let spec = json!({"terminationGracePeriodSeconds": 60, "containers": [main]});
    apply(&kubectl, &pod("database", &evidence, spec)).await;
    started(&evidence, "main started").await;
    bed.exec(&["kill", "-9", &node.pid("agent")]).await.unwrap();
    let printed = node.run(&["down"]).await.unwrap();
    for part in ["starting it to stop the pods", "1 pod stopped"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert_eq!(lines(&evidence), ["main started", "hook", "main closed"]);

    fs::remove_file(evidence.join("log")).unwrap();
    node.run(&["up"]).await.unwrap();
    started(&evidence, "main started").await;
    bed.exec(&["kill", "-STOP", &node.pid("agent")]).await.unwrap();
    let printed = node.run(&["down"]).await.unwrap();
    for part in ["the agent does not respond; replacing it to stop the pods", "1 pod stopped"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert_eq!(lines(&evidence), ["main started", "hook", "main closed"], "{printed}");

    fs::remove_file(evidence.join("log")).unwrap();
    node.run(&["up"]).await.unwrap();
    started(&evidence, "main started").await;
    bed.exec(&["kill", "-9", &node.pid("agent")]).await.unwrap();
    // No agent can start while its port is in use.
    let port = fs::read_to_string(Path::new(&node.state).join("api/port")).unwrap();
    let port: u16 = port.trim().parse().unwrap();
    let listen = move || std::net::TcpListener::bind(("127.0.0.1", port));
    // The port of a killed process stays in use for a moment.
    let take = async || Ok(bed.netns().within(listen).await.ok());
    let taken = wait::until("the agent's port to be free", LIMIT, take).await.unwrap();
    let printed = node.run(&["down"]).await.unwrap();
    for part in ["stopped without the agent", "preStop hooks were not run: default/database"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    assert_eq!(lines(&evidence), ["main started", "main closed"]);
    drop((taken, kubectl));
    bed.close().unwrap();
}

#[tokio::test]
async fn down_of_an_earlier_build_runs_hooks_and_stops_sidecars_last() {
    needs_root!();
    isolated!();
    let earlier = tools::earlier().unwrap().to_string_lossy().into_owned();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "state");
    let before = mounts_below(&bed.path("").to_string_lossy());
    bed.exec(&[&earlier, "up", "--state-dir", &node.state]).await.unwrap();
    node.load_test_image().await;
    let kubectl = node.kubectl(Release::V1_32);
    let evidence = bed.path("evidence");
    fs::create_dir(&evidence).unwrap();
    let mut main = container("main", &slow("main", 2));
    let hook = "sleep 1; echo hook >>/evidence/log";
    main["lifecycle"] = json!({"preStop": {"exec": {"command": ["sh", "-c", hook]}}});
    let mut sidecar = container("proxy", &slow("proxy", 0));
    sidecar["restartPolicy"] = "Always".into();
    let spec = json!({
        "terminationGracePeriodSeconds": 60, "initContainers": [sidecar], "containers": [main],
    });
    apply(&kubectl, &pod("database", &evidence, spec)).await;
    started(&evidence, "main started").await;
    let printed = node.run(&["down"]).await.unwrap();
    for part in ["the agent is of another build; replacing it", "1 pod stopped"] {
        assert!(printed.contains(part), "no {part:?} in {printed}");
    }
    let want = ["proxy started", "main started", "hook", "main closed", "proxy closed"];
    assert_eq!(lines(&evidence), want, "{printed}");
    assert_eq!(processes_of(&node.state), [] as [&str; 0]);
    assert_eq!(mounts_below(&bed.path("").to_string_lossy()), before);
    node.run(&["reset", "--yes"]).await.unwrap();
    assert!(!Path::new(&node.state).exists());
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn interrupted_down_can_be_completed_or_reverted() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let kubectl = node.kubectl(Release::V1_32);
    let evidence = bed.path("evidence");
    fs::create_dir(&evidence).unwrap();
    let main = container("main", &slow("main", 2));
    let spec = json!({"terminationGracePeriodSeconds": 60, "containers": [main]});
    apply(&kubectl, &pod("database", &evidence, spec)).await;
    started(&evidence, "main started").await;
    let interrupted = async || {
        let mut down = bed.command(&node.program);
        down.args(["down", "--state-dir", &node.state]);
        let down = bed.daemon("down", down).unwrap();
        let begun = async || Ok(down.log().contains("stopping default/database"));
        wait::until_true("down to wait for the pod", LIMIT, begun).await.unwrap();
        down.kill().await.unwrap();
    };
    interrupted().await;
    let printed = node.run(&["up"]).await.unwrap();
    assert!(printed.contains("is Ready"), "{printed}");
    let twice = async || {
        let starts = lines(&evidence).iter().filter(|line| *line == "main started").count();
        Ok(starts == 2)
    };
    wait::until_true("the pod to run again", LIMIT, twice).await.unwrap();
    ready(&kubectl, "database").await;
    interrupted().await;
    node.run(&["down"]).await.unwrap();
    let closed = lines(&evidence).iter().filter(|line| *line == "main closed").count();
    assert_eq!(closed, 2, "{:?}", lines(&evidence));
    assert_eq!(processes_of(&node.state), [] as [&str; 0]);
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn commands_on_one_node_are_serialized() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "state");
    let before = Before::take(&bed).await;
    let begin = |command: &str| -> Child {
        let mut begun = bed.command(&node.program);
        begun.args([command, "--state-dir", &node.state]);
        begun.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for commands in [["up", "up", "up"], ["down", "up", "down"], ["up", "down", "up"]] {
        let begun: Vec<Child> = commands.iter().map(|command| begin(command)).collect();
        for (child, command) in begun.into_iter().zip(commands) {
            let output = child.wait_with_output().unwrap();
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            // A command that does not get the lock in time names its holder.
            assert!(
                output.status.success() || printed.contains("is working on"),
                "{command}: {printed}"
            );
        }
        let runtimes = processes_of(&format!("{}/containerd/config.toml", node.state));
        assert!(runtimes.len() <= 1, "{commands:?}: {runtimes:?}");
    }
    node.run(&["up"]).await.unwrap();
    let instance = node.instance();
    node.run(&["down"]).await.unwrap();
    assert_eq!(processes_of(&node.state), [] as [&str; 0]);
    before.assert_same(&bed, &[bed.id(), &instance]).await;
    bed.close().unwrap();
}

#[tokio::test]
async fn down_removes_everything_of_an_up_killed_at_any_moment() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "state");
    node.run(&["up"]).await.unwrap();
    let instance = node.instance();
    node.run(&["reset", "--yes"]).await.unwrap();
    let before = Before::take(&bed).await;
    let state = Path::new(&node.state);
    let config = format!("{}/containerd/config.toml", node.state);
    let runs = || fs::read_dir("/run/podwright").into_iter().flatten().flatten();
    let in_run = |name: &str| runs().any(|it| it.path().join(name).exists());
    let moments: [(&str, &dyn Fn() -> bool); 11] = [
        ("it started", &|| true),
        ("it holds the lock", &|| runs().next().is_some()),
        ("the directory exists", &|| state.exists()),
        ("the directory is marked", &|| state.join("node.json").exists()),
        ("the record exists", &|| state.join("made.json").exists()),
        ("the run directory exists", &|| in_run("state-dir")),
        ("containerd is configured", &|| Path::new(&config).exists()),
        ("a containerd process exists", &|| !processes_of(&config).is_empty()),
        ("containerd has a pid file", &|| in_run("containerd.pid")),
        ("containerd listens", &|| in_run("containerd.sock")),
        ("the agent has a pid file", &|| in_run("agent.pid")),
    ];
    for (moment, has_come) in moments {
        let mut up = bed.command(&node.program);
        up.args(["up", "--state-dir", &node.state]);
        let mut up = up.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = std::time::Instant::now();
        while !has_come() {
            assert!(begun.elapsed() < LIMIT, "{moment}: it was never reached");
            assert!(up.try_wait().unwrap().is_none(), "{moment}: up ended earlier");
            std::thread::yield_now();
        }
        up.kill().unwrap();
        up.wait().unwrap();
        node.run(&["down"]).await.unwrap();
        assert_eq!(processes_of(&node.state), [] as [&str; 0], "{moment}");
        before.assert_same(&bed, &[bed.id(), &instance]).await;
        if state.join("node.json").exists() {
            node.run(&["reset", "--yes"]).await.unwrap();
            assert!(!state.exists(), "{moment}");
        } else if state.exists() {
            // Killed before the directory was marked: it counts as empty.
            fs::remove_dir_all(state).unwrap();
        }
    }
    bed.close().unwrap();
}

#[tokio::test]
async fn port_in_use_is_refused_before_anything_is_changed() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "state");
    node.run(&["up"]).await.unwrap();
    let agent = node.pid("agent");
    let listen = || std::net::TcpListener::bind(("127.0.0.1", 0));
    let taken = bed.netns().within(listen).await.unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = format!("{:#}", node.run(&["up", "--api-port", &port]).await.unwrap_err());
    assert!(refused.contains(&port) && refused.contains("nothing was changed"), "{refused}");
    assert_eq!(node.pid("agent"), agent);
    let printed = node.run(&["up"]).await.unwrap();
    assert!(printed.contains("agent: already running"), "{printed}");
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

/// A neighbour with the same paths in its own mount and network namespaces.
#[tokio::test]
async fn node_in_a_container_with_the_same_paths_is_not_touched() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    let socket = node.run_directory().join("containerd.sock");
    let shim = bed.path("containerd-shim-runc-v2");
    // Like a shim in its own container, seen from outside: the same arguments, another /run.
    let inside = "mount -t tmpfs tmpfs /run; echo ready; read -r line";
    let mut neighbour = bed.command("unshare");
    neighbour.args(["--mount", "bash", "-c"]);
    neighbour.arg(format!(
        "exec -a {} bash -c '{inside}' shim {}",
        shim.display(),
        socket.display()
    ));
    neighbour.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut neighbour = neighbour.spawn().unwrap();
    let mut line = String::new();
    let out = neighbour.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    node.run(&["down"]).await.unwrap();
    assert!(neighbour.try_wait().unwrap().is_none(), "the neighbour was killed");
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    bed.close().unwrap();
}
