//! Joining an API server: bootstrap, certificate renewal, connections.

use std::path::Path;
use std::time::{Duration, Instant};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use podwright_e2e::agent::Agent;
use podwright_e2e::bed::Bed;
use podwright_e2e::wait;
use serde_json::json;

use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(150);
const NODE: &str = "node-1";

async fn until_ready(bed: &Bed, agent: &Agent) -> Node {
    let nodes: Api<Node> = Api::all(bed.client().await.unwrap());
    let ready = async || {
        let node = nodes.get_opt(NODE).await?;
        let ready = |node: &Node| {
            let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
        };
        Ok(node.filter(ready))
    };
    agent.daemon().until("the node to be ready", LIMIT, ready).await.unwrap()
}

/// Number of connections from the agent to the API server, by local port.
fn connections(agent: &Agent) -> usize {
    let sockets = std::fs::read_to_string(format!("/proc/{}/net/tcp", agent.daemon().pid()));
    let inodes: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", agent.daemon().pid()))
        .unwrap()
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    // local, remote, state, …, inode: 01 is established, 192B is port 6443
    let ours = |line: &&str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.len() > 9
            && fields[2].ends_with(":192B")
            && fields[3] == "01"
            && inodes.iter().any(|inode| inode == fields[9])
    };
    sockets.unwrap().lines().filter(ours).count()
}

fn requests_of(bed: &Bed, user: &str, verb: &str, resource: &str) -> usize {
    let audit = bed.control_plane().unwrap().audit().unwrap();
    audit.iter().filter(|a| a.user == user && a.verb == verb && a.resource == resource).count()
}

fn certificates(directory: &Path) -> usize {
    let files = std::fs::read_dir(directory).unwrap().flatten();
    let name = |file: std::fs::DirEntry| file.file_name().to_string_lossy().into_owned();
    files.map(name).filter(|name| name.starts_with("kubelet-client-2")).count()
}

#[tokio::test]
async fn new_node_requests_its_certificate_and_renews_it_without_losing_a_watch() {
    needs_root!();
    // The controller backdates certificates by five minutes: of seven minutes, two are left, and
    // renewal is due within 80 s.
    let bed = Bed::builder().certificates_for(Duration::from_secs(120)).start().await.unwrap();
    let rotate = json!({ "rotateCertificates": true });
    let builder = bed.agent(NODE).bootstrapped().unwrap().configure(rotate);
    let agent = builder.start().unwrap();
    agent.healthy().await.unwrap();
    until_ready(&bed, &agent).await;
    let directory = agent.certificates();
    let current = directory.join("kubelet-client-current.pem");
    let pem = std::fs::read_to_string(&current).unwrap();
    assert!(pem.find("CERTIFICATE") < pem.find("PRIVATE KEY"), "the certificate, then its key");
    let kubeconfig = agent.root_dir().parent().unwrap().join("kubeconfig");
    let written = std::fs::read_to_string(kubeconfig).unwrap();
    assert!(written.contains("default-context") && written.contains("kubelet-client-current.pem"));
    let requests: Api<CertificateSigningRequest> = Api::all(bed.client().await.unwrap());
    let first = requests.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(first[0].spec.signer_name, "kubernetes.io/kube-apiserver-client-kubelet");

    let user = format!("system:node:{NODE}");
    // The server writes its audit log after it has responded; some versions log a watch at its
    // start and some at its end. Either way a lost watch is one more line.
    let quiet = async || {
        let watches = requests_of(&bed, &user, "watch", "pods");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let listed = requests_of(&bed, &user, "list", "pods") > 0;
        let same = requests_of(&bed, &user, "watch", "pods") == watches;
        Ok((listed && same).then_some(watches))
    };
    let watches = wait::until("the pods to be watched", LIMIT, quiet).await.unwrap();
    // The file is written first, then the link that makes it the current one.
    let renewed = async || Ok(std::fs::read_to_string(&current)? != pem);
    wait::until_true("a renewed certificate", LIMIT, renewed).await.unwrap();
    assert!(certificates(&directory) > 1, "the previous one is kept");
    let before = requests_of(&bed, &user, "update", "leases");
    let alive = async || Ok(requests_of(&bed, &user, "update", "leases") > before);
    wait::until_true("the lease with the new certificate", LIMIT, alive).await.unwrap();
    assert_eq!(requests_of(&bed, &user, "watch", "pods"), watches, "no watch was restarted");
    assert!(connections(&agent) <= 6, "{} connections", connections(&agent));
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn working_kubeconfig_requests_no_certificate() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let plane = bed.control_plane().unwrap();
    let bootstrap = plane.bootstrap_kubeconfig().unwrap();
    let mut flag = std::ffi::OsString::from("--bootstrap-kubeconfig=");
    flag.push(bootstrap);
    let agent = bed.agent(NODE).joined().unwrap().argument(flag).start().unwrap();
    agent.healthy().await.unwrap();
    until_ready(&bed, &agent).await;
    let requests: Api<CertificateSigningRequest> = Api::all(bed.client().await.unwrap());
    assert_eq!(requests.list(&ListParams::default()).await.unwrap().items.len(), 0);
    // Two clients, one connection each, for longer than it takes to open another.
    let mut since = Instant::now();
    let two = async || {
        let count = connections(&agent);
        if count != 2 {
            since = Instant::now();
        }
        anyhow::ensure!(since.elapsed() >= Duration::from_secs(3), "{count} connections");
        Ok(true)
    };
    wait::until_true("two connections", LIMIT, two).await.unwrap();
    drop(agent);
    bed.close().unwrap();
}

/// The upstream kubelet would exit; Podwright runs its pods, reports the problem and resumes when
/// it is fixed.
#[tokio::test]
async fn expired_certificate_is_reported_and_can_be_replaced_at_runtime() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let plane = bed.control_plane().unwrap();
    let (user, groups) = (format!("system:node:{NODE}"), ["system:nodes"]);
    let expired = plane.authority().expired_client(&user, &groups).unwrap();
    let files = plane.authority().save("node", &expired).unwrap();
    let kubeconfig = plane.node_kubeconfig(NODE).unwrap();
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
    document["users"][0]["user"] =
        json!({ "client-certificate": files.certificate, "client-key": files.key });
    std::fs::write(&kubeconfig, document.to_string()).unwrap();
    let agent = bed.agent(NODE).kubeconfig(&kubeconfig).start().unwrap();
    agent.healthy().await.unwrap();
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "alone" },
        "spec": { "containers": [{
            "name": "app", "image": "localhost/podwright/test:latest",
            "imagePullPolicy": "Never", "args": ["serve"],
        }] },
    });
    agent.add_manifest("alone", &manifest).unwrap();
    let cri = bed.cri().await.unwrap();
    let runs = async || Ok(cri.containers().await?.iter().any(|c| c.state == 1));
    wait::until_true("the static pod to run", LIMIT, runs).await.unwrap();
    let log = agent.daemon().log();
    for reported in ["certificate has expired", "--bootstrap-kubeconfig"] {
        assert_eq!(log.matches(reported).count(), 1, "{reported:?} in {log}");
    }

    let good = plane.authority().client(&user, &groups).unwrap();
    plane.authority().save("node", &good).unwrap();
    until_ready(&bed, &agent).await;
    drop(agent);
    bed.close().unwrap();
}

#[tokio::test]
async fn token_from_a_file_or_a_program_authenticates_like_a_certificate() {
    needs_root!();
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let plane = bed.control_plane().unwrap();
    // The server authenticates a bootstrap token, although it does not authorize it as a node.
    let by_token = plane.bootstrap_kubeconfig().unwrap();
    let text = std::fs::read_to_string(&by_token).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let token = document["users"][0]["user"]["token"].as_str().unwrap().to_owned();
    let file = bed.path("token");
    std::fs::write(&file, &token).unwrap();
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": { "token": token },
    });
    for (case, user) in [
        ("file", json!({ "tokenFile": file })),
        (
            "program",
            json!({ "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": "echo", "args": [credential.to_string()], "interactiveMode": "Never",
            } }),
        ),
    ] {
        let mut changed = document.clone();
        changed["users"][0]["user"] = user;
        let path = bed.path(&format!("{case}.kubeconfig"));
        std::fs::write(&path, changed.to_string()).unwrap();
        let before = bootstrap_requests(&bed);
        let agent = bed.agent(NODE).kubeconfig(path).start().unwrap();
        agent.healthy().await.unwrap();
        let asked = async || Ok(bootstrap_requests(&bed) > before);
        wait::until_true(format!("requests with a token from a {case}"), LIMIT, asked)
            .await
            .unwrap();
        drop(agent);
    }
    bed.close().unwrap();
}

/// Requests of the bootstrap token's user.
fn bootstrap_requests(bed: &Bed) -> usize {
    let audit = bed.control_plane().unwrap().audit().unwrap();
    audit.iter().filter(|a| a.user.starts_with("system:bootstrap:") && a.verb == "create").count()
}
