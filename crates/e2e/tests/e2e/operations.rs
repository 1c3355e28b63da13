//! Everyday operations of `podwright up`: images, backup and restore, kubeconfigs, installation.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use podwright_e2e::bed::Bed;
use podwright_e2e::images;
use podwright_e2e::kubectl::Release;
use podwright_e2e::registry::Registry;
use podwright_e2e::wait;
use serde_json::{Value, json};

use crate::privilege::{isolated, needs_root};
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);
const IMAGE: &str = "localhost/podwright/test:latest";

fn archive() -> PathBuf {
    let archives = images::archives().unwrap();
    archives.iter().find(|it| it.path.ends_with("test.tar")).unwrap().path.clone()
}

#[allow(clippy::needless_pass_by_value, reason = "tests pass json literals by value")]
fn pod(name: &str, extra: Value) -> String {
    let mut spec = json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "web", "image": IMAGE, "imagePullPolicy": "Never",
            "args": ["serve", "--http", "8080"],
        }],
    });
    for (key, value) in extra.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}).to_string()
}

/// Runs a command of the program in the bed with an input.
fn with_input(bed: &Bed, node: &Standalone<'_>, arguments: &[&str], input: &[u8]) -> Output {
    let mut command = bed.command(&node.program);
    command.args(arguments).args(["--state-dir", &node.state]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    let writing = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    // A command that refuses its input does not read all of it.
    let _ = writing.join().unwrap();
    output
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

async fn ready(node: &Standalone<'_>, name: &str) {
    let wait = ["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"];
    node.kubectl(Release::V1_32).run(&wait).await.unwrap();
}

async fn apply(node: &Standalone<'_>, object: &str) {
    node.kubectl(Release::V1_32).run_with(&["apply", "-f", "-"], object).await.unwrap();
}

#[tokio::test]
async fn images_are_loaded_pulled_listed_and_pruned() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    node.run(&["up"]).await.unwrap();
    let plain = fs::read(archive()).unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();

    // From the standard input and from a file, compressed and not.
    let loaded = with_input(&bed, &node, &["images", "load", "-"], &gzip);
    assert!(loaded.status.success(), "{}", text(&loaded));
    let first = text(&loaded);
    assert!(first.starts_with(&format!("loaded {IMAGE} (")), "{first}");
    assert!(first.contains("imagePullPolicy"), "{first}");
    let file = bed.path("image.tar.gz");
    fs::write(&file, &gzip).unwrap();
    let again = node.run(&["images", "load", &file.to_string_lossy()]).await.unwrap();
    assert!(again.contains(IMAGE), "{again}");
    for (input, want) in [
        (&gzip[..gzip.len() / 2], "cannot read the archive from the standard input"),
        (&b"no archive"[..], "cannot read the archive from the standard input"),
        (&plain[..plain.len() / 2], "the archive from the standard input"),
    ] {
        let refused = with_input(&bed, &node, &["images", "load", "-"], input);
        assert!(!refused.status.success() && text(&refused).contains(want), "{}", text(&refused));
    }

    // Docker's own command line, as a program that prints the archive.
    let directory = bed.path("bin");
    fs::create_dir(&directory).unwrap();
    let script =
        format!("#!/bin/sh\n[ \"$1 $2\" = 'save app:1' ] && exec cat {}\nexit 1\n", file.display());
    fs::write(directory.join("docker"), script).unwrap();
    fs::set_permissions(directory.join("docker"), fs::Permissions::from_mode(0o755)).unwrap();
    let import = |image: &str| {
        let mut command = bed.command(&node.program);
        let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path).args(["images", "import", "--from", "docker", image]);
        command.args(["--state-dir", &node.state]).output().unwrap()
    };
    let imported = text(&import("app:1"));
    assert!(imported.contains(&format!("loaded {IMAGE}")), "{imported}");
    let missing = import("app:2");
    assert!(!missing.status.success() && text(&missing).contains("docker cannot save app:2"));

    // From a registry.
    let registry = Registry::start(&bed, None).await.unwrap();
    let pulled = registry.image("team/app:1");
    let mut command = bed.command(&node.program);
    command.args(["images", "pull", &pulled, "--state-dir", &node.state]);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(text(&output).contains(&format!("pulled {pulled} (")), "{}", text(&output));
    let unused = registry.image("team/unused:1");
    node.run(&["images", "pull", &unused]).await.unwrap();
    let failed = node.run(&["images", "pull", "127.0.0.1:1/none:1"]).await.unwrap_err();
    assert!(format!("{failed:#}").contains("cannot pull 127.0.0.1:1/none:1"), "{failed:#}");

    let list = node.run(&["images", "list"]).await.unwrap();
    assert!(list.starts_with("IMAGE "), "{list}");
    let json = node.run(&["images", "list", "--output", "json"]).await.unwrap();
    let json: Value = serde_json::from_str(&json).unwrap();
    let names =
        |value: &Value| serde_json::from_value::<Vec<String>>(value["names"].clone()).unwrap();
    let found = json.as_array().unwrap().iter().find(|it| names(it).contains(&IMAGE.to_owned()));
    let found = found.unwrap();
    assert_eq!(found["loaded"], true);
    assert!(found["bytes"].as_u64().unwrap() > 1000);

    // What was pulled and is not used goes; what was loaded by hand stays.
    let pruned = node.run(&["images", "prune"]).await.unwrap();
    assert!(pruned.contains(&format!("removed {pulled}")), "{pruned}");
    let list = node.run(&["images", "list"]).await.unwrap();
    assert!(list.contains(IMAGE) && !list.contains("team/"), "{list}");
    let kept = node.run(&["images", "prune"]).await.unwrap();
    assert!(kept.starts_with("freed 0 B"), "{kept}");
    let dry = node.run(&["images", "prune", "--loaded", "--dry-run"]).await.unwrap();
    assert!(dry.contains("would remove") && dry.contains("would free"), "{dry}");
    apply(&node, &pod("web", json!({}))).await;
    ready(&node, "web").await;
    let pruned = node.run(&["images", "prune", "--loaded"]).await.unwrap();
    assert!(!pruned.contains(&format!("removed {IMAGE} ")), "it is in use: {pruned}");
    let kubectl = node.kubectl(Release::V1_32);
    kubectl.run(&["delete", "pod", "web"]).await.unwrap();
    let gone = async || {
        let printed = node.run(&["images", "prune", "--loaded"]).await?;
        Ok(printed.contains("removed "))
    };
    wait::until_true("the image to be unused", LIMIT, gone).await.unwrap();
    let list = node.run(&["images", "list"]).await.unwrap();
    assert!(!list.contains(IMAGE) && list.contains("pause"), "{list}");
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn node_is_restored_from_a_backup_that_was_written_while_it_ran() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::without_bystanders(&bed, "up");
    node.run(&["up"]).await.unwrap();
    node.load_test_image().await;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    });
    apply(&node, &claim.to_string()).await;
    let script = "echo kept >/data/file; chmod 640 /data/file; while :; do sleep 1; done";
    let extra = json!({
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [{
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
            "command": ["sh", "-c", script], "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }],
    });
    apply(&node, &pod("db", extra)).await;
    ready(&node, "db").await;
    let kubectl = node.kubectl(Release::V1_32);
    let secret = ["create", "secret", "generic", "login", "--from-literal=password=hunter2"];
    kubectl.run(&secret).await.unwrap();
    let uid = async || {
        let path = ["get", "pod", "db", "-o", "jsonpath={.metadata.uid}"];
        kubectl.run(&path).await
    };
    let before = uid().await.unwrap();
    let (agent, containerd) = (node.pid("agent"), node.pid("containerd"));

    let file = bed.path("node.backup");
    let shown = file.to_string_lossy().into_owned();
    node.run(&["backup", &shown, "--volumes"]).await.unwrap();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
    let refused = node.run(&["backup", &shown]).await.unwrap_err();
    assert!(format!("{refused:#}").contains("exists"), "{refused:#}");
    assert_eq!((node.pid("agent"), node.pid("containerd")), (agent, containerd));
    assert_eq!(uid().await.unwrap(), before);
    // What came after the backup is gone after the restore.
    kubectl.run(&["create", "configmap", "later"]).await.unwrap();
    let running = node.run(&["restore", &shown, "--overwrite"]).await.unwrap_err();
    assert!(format!("{running:#}").contains("podwright down"), "{running:#}");

    node.run(&["down"]).await.unwrap();
    let refused = node.run(&["restore", &shown]).await.unwrap_err();
    assert!(format!("{refused:#}").contains("--overwrite"), "{refused:#}");
    node.run(&["reset", "--yes"]).await.unwrap();
    assert!(!Path::new(&node.state).exists());
    node.run(&["restore", &shown]).await.unwrap();
    node.run(&["up"]).await.unwrap();
    node.load_test_image().await;
    ready(&node, "db").await;
    assert_eq!(uid().await.unwrap(), before, "the same pod");
    let read = ["exec", "db", "--", "cat", "/data/file"];
    assert_eq!(kubectl.run(&read).await.unwrap(), "kept\n");
    let password = ["get", "secret", "login", "-o", "jsonpath={.data.password}"];
    assert_eq!(kubectl.run(&password).await.unwrap(), "aHVudGVyMg==");
    assert!(kubectl.run(&["get", "configmap", "later"]).await.is_err());
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn kubeconfigs_of_two_nodes_are_merged_into_the_users_own() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let (one, other) = (Standalone::new(&bed, "one"), Standalone::new(&bed, "other"));
    let config = bed.path("home/.kube/config");
    let merge = async |node: &Standalone<'_>, arguments: &[&str]| {
        let mut command = bed.command(&node.program);
        command.args(["kubeconfig", "--merge", "--state-dir", &node.state]).args(arguments);
        command.env_remove("SUDO_UID").env_remove("KUBECONFIG").env("HOME", bed.path("home"));
        bed.environment().run(command).await
    };
    for node in [&one, &other] {
        node.run(&["up"]).await.unwrap();
    }
    assert!(!config.exists(), "only on request");
    for node in [&one, &other] {
        let printed = merge(node, &[]).await.unwrap();
        assert!(printed.contains("merged into"), "{printed}");
    }
    let printed = merge(&one, &["--user", "bob"]).await.unwrap();
    let (first, second) =
        (format!("podwright-{}", one.instance()), format!("podwright-{}", other.instance()));
    assert!(printed.contains(&format!("kubectl --context bob@{first}")), "{printed}");
    assert_eq!(fs::metadata(&config).unwrap().mode() & 0o7777, 0o600);
    let kubectl = bed.kubectl_with(Release::V1_32, config.clone()).unwrap();
    let contexts = kubectl.run(&["config", "get-contexts", "-o", "name"]).await.unwrap();
    let bob = format!("bob@{first}");
    let mut want = vec![bob.as_str(), &first, &second];
    want.sort_unstable();
    assert_eq!(contexts.lines().collect::<Vec<_>>(), want);
    let current = kubectl.run(&["config", "current-context"]).await.unwrap();
    assert_eq!(current.trim(), first, "set by the first merge only");
    for (context, node) in [(&first, &one), (&second, &other)] {
        let create = ["--context", context, "create", "configmap", "mine"];
        kubectl.run(&create).await.unwrap();
        let map = node.kubectl(Release::V1_32).run(&["get", "configmap", "mine"]).await;
        assert!(map.is_ok(), "{context} leads to its node");
    }
    assert!(kubectl.run(&["--context", &bob, "get", "pods"]).await.is_ok());
    assert!(kubectl.run(&["--context", &bob, "get", "secrets"]).await.is_err());
    // Another cluster of this name is not overwritten.
    let path = format!("clusters.{first}.certificate-authority-data");
    kubectl.run(&["config", "set", &path, "b3RoZXI="]).await.unwrap();
    let refused = merge(&one, &[]).await.unwrap_err();
    assert!(format!("{refused:#}").contains("--replace"), "{refused:#}");
    merge(&one, &["--replace"]).await.unwrap();
    kubectl.run(&["--context", &first, "get", "nodes"]).await.unwrap();
    for node in [&one, &other] {
        node.run(&["down"]).await.unwrap();
    }
    drop(kubectl);
    bed.close().unwrap();
}

#[tokio::test]
async fn merge_under_sudo_writes_as_the_user_and_follows_no_link_that_the_user_could_not() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    node.run(&["up"]).await.unwrap();
    // An unprivileged user that exists on every machine, with a home of its own.
    const NOBODY: u32 = 65534;
    let home = tempfile::Builder::new().prefix("podwright-home").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let config = home.path().join("config");
    let merge = || {
        let mut command: Command = bed.command(&node.program);
        command.args(["kubeconfig", "--merge", "--state-dir", &node.state]);
        command.env("SUDO_UID", NOBODY.to_string()).env("SUDO_GID", NOBODY.to_string());
        command.env("KUBECONFIG", &config).output().unwrap()
    };
    let merged = merge();
    assert!(merged.status.success(), "{}", text(&merged));
    let found = fs::metadata(&config).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (NOBODY, NOBODY, 0o600));
    // A file of root, which the user cannot change, is not changed through a link either.
    let secret = bed.path("secret");
    fs::write(&secret, "root's").unwrap();
    fs::remove_file(&config).unwrap();
    std::os::unix::fs::symlink(&secret, &config).unwrap();
    let refused = merge();
    assert!(!refused.status.success(), "{}", text(&refused));
    assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}

#[tokio::test]
async fn installed_program_is_complete_and_uninstall_leaves_nothing() {
    needs_root!();
    isolated!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    let root = bed.path("root");
    fs::create_dir(&root).unwrap();
    let root = root.to_string_lossy().into_owned();
    let run = async |arguments: &[&str]| {
        let mut command = vec![node.program.as_str()];
        command.extend(arguments);
        command.extend(["--root", &root]);
        bed.exec(&command).await
    };
    let dry = run(&["install", "--dry-run"]).await.unwrap();
    assert!(dry.contains("would install /usr/local/bin/podwright"), "{dry}");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    let printed = run(&["install"]).await.unwrap();
    assert!(printed.contains("systemctl --root="), "{printed}");
    let at = |path: &str| Path::new(&root).join(path);
    for path in [
        "etc/systemd/system/podwright-up.service",
        "usr/local/share/bash-completion/completions/podwright",
        "usr/local/share/zsh/site-functions/_podwright",
        "usr/local/share/fish/vendor_completions.d/podwright.fish",
        "usr/local/share/man/man1/podwright.1",
        "usr/local/share/man/man1/podwright-up.1",
        "usr/local/share/man/man1/podwright-install.1",
    ] {
        assert_eq!(fs::metadata(at(path)).unwrap().mode() & 0o7777, 0o644, "{path}");
    }
    // The installed program runs a node, and installs itself.
    let program = at("usr/local/bin/podwright").to_string_lossy().into_owned();
    bed.exec(&[&program, "up", "--state-dir", &node.state]).await.unwrap();
    let again = bed.exec(&[&program, "install", "--root", &root]).await.unwrap();
    assert!(again.contains("is already installed"), "{again}");
    let removed = run(&["uninstall"]).await.unwrap();
    assert!(removed.contains("removed /usr/local/bin/podwright"), "{removed}");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0, "nothing is left");
    assert!(run(&["uninstall"]).await.unwrap().contains("nothing is installed"));
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}
