//! Common operations on pods with stock `kubectl` of three releases against `podwright up`.

use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::process::InteractiveCommand;
use podwright_e2e::wait;
use serde_json::json;

use crate::privilege::needs_root;
use crate::standalone::Standalone;

const LIMIT: Duration = Duration::from_secs(180);
const IMAGE: &str = "--image=localhost/podwright/test:latest";
const LOCAL: &str = "--image-pull-policy=Never";

/// A pod that runs a shell command with open standard input.
fn shell(name: &str, script: &str) -> String {
    let container = json!({
        "name": "main", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
        "command": ["sh", "-c", script], "stdin": true, "stdinOnce": true,
    });
    let spec = json!({
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
    });
    let metadata = json!({"name": name, "labels": {"case": name}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).to_string()
}

/// The error output of a command.
async fn refused(kubectl: &Kubectl, arguments: &[&str]) -> String {
    format!("{:#}", kubectl.run(arguments).await.unwrap_err())
}

/// Creates, watches, attaches to and deletes a pod with common commands.
async fn pod_lifecycle(bed: &Bed, kubectl: &Kubectl, talk: &str) {
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    let watching = kubectl.command(&["get", "pods", "--watch", "--no-headers"]);
    let watching = bed.daemon(&format!("watching-{talk}"), watching).unwrap();
    let script = "echo one; read word; echo got $word; sleep 1; echo end";
    let created = kubectl.run_with(&["create", "-f", "-"], &shell(talk, script)).await.unwrap();
    assert!(created.contains(&format!("pod/{talk} created")), "{created}");
    let runs = |line: &str| line.starts_with(talk) && line.contains("Running");
    let seen = async || Ok(watching.log().lines().any(runs));
    wait::until_true("the watch to show the pod running", LIMIT, seen).await.unwrap();
    watching.kill().await.unwrap();
    let received = kubectl.run_with(&["attach", "-i", talk], "a-word\n").await.unwrap();
    assert!(received.contains("got a-word"), "{received}");
    let followed = run(&["logs", "--follow", talk]).await;
    assert_eq!(followed.lines().collect::<Vec<_>>(), ["one", "got a-word", "end"]);
    run(&["delete", "pod", talk]).await;

    let once = ["run", "once", "--rm", "-i", "--restart=Never", IMAGE, LOCAL, "--command", "--"];
    let received =
        kubectl.run_with(&[&once[..], &["cat"]].concat(), "through a pod\n").await.unwrap();
    assert!(received.contains("through a pod"), "{received}");
    let fails = ["sh", "-c", "read word; exit 4"];
    let failed = kubectl.run_with(&[&once[..], &fails].concat(), "word\n").await.unwrap_err();
    assert!(format!("{failed:#}").contains("terminated (Error)"), "{failed:#}");
    assert!(refused(kubectl, &["get", "pod", "once"]).await.contains("NotFound"));

    // by force, and by eviction, as a drain does it
    kubectl.run_with(&["create", "-f", "-"], &shell("stays", "sleep 1000")).await.unwrap();
    run(&["delete", "pod", "stays", "--force", "--grace-period=0"]).await;
    assert!(refused(kubectl, &["get", "pod", "stays"]).await.contains("NotFound"));
    kubectl.run_with(&["create", "-f", "-"], &shell("stays", "sleep 1000")).await.unwrap();
    run(&["wait", "--for=condition=Ready", "pod/stays", "--timeout=180s"]).await;
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": "stays", "namespace": "default"},
    });
    let path = "/api/v1/namespaces/default/pods/stays/eviction";
    kubectl.run_with(&["create", "--raw", path, "-f", "-"], &eviction.to_string()).await.unwrap();
    // `wait --for=delete` of 1.20 fails if the pod is already gone
    let gone = async || Ok(kubectl.run(&["get", "pod", "stays"]).await.is_err());
    wait::until_true("the evicted pod to be gone", LIMIT, gone).await.unwrap();
    assert!(refused(kubectl, &["get", "pod", "stays"]).await.contains("NotFound"));
}

/// Unsupported resources are rejected with a message that names an alternative.
async fn refusals(kubectl: &Kubectl) {
    for (command, words) in [
        (&["create", "deployment", "d", IMAGE][..], "Deployment is not served by podwright"),
        (&["create", "service", "clusterip", "s", "--tcp=80"], "services are read-only here"),
        (&["create", "quota", "q"], "ResourceQuota is not served by podwright"),
        (&["get", "deployments"], "Deployment is not served by podwright"),
        (&["run", "No_Name", IMAGE], "RFC 1123"),
    ] {
        let output = refused(kubectl, command).await;
        assert!(output.contains(words), "{command:?}: {output}");
    }
    let services = kubectl.run(&["get", "services", "--no-headers"]).await.unwrap();
    assert!(services.starts_with("kubernetes"), "{services}");
}

/// A debugging container that sees the processes of another container, and a session with it.
///
/// Nothing is printed at the beginning or the end of the attachment, because containerd can lose
/// that (`ContainerIO.Attach` of 1.6, 1.7 and 2): it forwards the input before it reads the output;
/// and with `stdinOnce` unset, as in `kubectl debug`, the end of standard error closes the input,
/// and the end of the input detaches the client from standard output, although the process's last
/// lines may not have been read yet. So input is only sent after output was received, and the
/// container exits on request.
async fn debug(kubectl: &Kubectl, pod: &str) {
    let beside = ["debug", pod, "-i", IMAGE, LOCAL, "--profile=general", "--target=main", "--"];
    let script = "until read -t 1 word; do echo waiting; done; ps; echo heard $word; read end";
    let command = kubectl.command(&[&beside[..], &["sh", "-c", script]].concat());
    let mut talk = InteractiveCommand::begin(command).unwrap();
    talk.until("waiting", LIMIT).await.unwrap();
    talk.send("me\n").unwrap();
    talk.until("heard me", LIMIT).await.unwrap();
    talk.send("end\n").unwrap();
    let (status, output) = talk.end(LIMIT).await.unwrap();
    assert!(status.success() && output.contains("sleep 1000"), "{status}: {output}");
}

/// Features newer than 1.20: events by pod, debugging containers, tokens, whoami.
async fn newer(kubectl: &Kubectl) {
    let run = async |arguments: &[&str]| kubectl.run(arguments).await.unwrap();
    kubectl.run_with(&["create", "-f", "-"], &shell("sick", "sleep 1000")).await.unwrap();
    run(&["wait", "--for=condition=Ready", "pod/sick", "--timeout=180s"]).await;
    let reported = async || {
        let events = kubectl.run(&["events", "--for", "pod/sick"]).await?;
        anyhow::ensure!(events.contains("Scheduled") && events.contains("Started"), "{events}");
        Ok(Some(events))
    };
    let events = wait::until("the events of a start", LIMIT, reported).await.unwrap();
    assert!(!events.contains("Warning"), "{events}");
    debug(kubectl, "sick").await;
    assert_eq!(run(&["create", "token", "default"]).await.split('.').count(), 3);
    assert!(run(&["auth", "whoami"]).await.contains("podwright-admin"));
    let rights = run(&["auth", "can-i", "--list"]).await;
    assert!(rights.contains("*.*"), "{rights}");
    run(&["delete", "pod", "sick", "--now"]).await;
}

#[tokio::test]
async fn every_kubectl_release_performs_common_pod_operations() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::up(&bed).await;
    for (release, talk) in [
        (Release::V1_20, "talk-old"),
        (Release::V1_32, "talk-middle"),
        (Release::V1_36, "talk-new"),
    ] {
        let kubectl = node.kubectl(release);
        pod_lifecycle(&bed, &kubectl, talk).await;
        refusals(&kubectl).await;
        if release != Release::V1_20 {
            newer(&kubectl).await;
        }
    }
    node.run(&["down"]).await.unwrap();
    bed.close().unwrap();
}
