//! Access to `podwright up`: pods to the API, the machine to its pods, other users to secrets.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Request;
use hyper::body::Bytes;
use podwright_e2e::bed::Bed;
use podwright_e2e::http::{HttpResponse, Tls, Trust};
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::privilege::needs_root;
use crate::standalone::Standalone;
use crate::up_kubectl::agent;

const LIMIT: Duration = Duration::from_secs(180);
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The user that invoked sudo.
const PERSON: u32 = 4321;

fn web() -> String {
    let container = json!({
        "name": "web", "image": "localhost/podwright/test:latest", "imagePullPolicy": "Never",
        "args": ["serve", "--http", "8080"],
        "ports": [{"containerPort": 8080, "hostPort": 18080}],
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})
        .to_string()
}

/// Files below a directory that others than their owner can read, except the directory itself.
fn open_to_others(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let mode = match entry.metadata() {
            Ok(metadata) => metadata.permissions().mode(),
            // A temporary file may vanish during the walk.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => panic!("{}: {error}", entry.path().display()),
        };
        if mode & 0o077 != 0 {
            found.push(entry.path());
        }
    }
    found
}

/// The API as a pod sees it: its address, its CA, the pod's token.
struct PodsView {
    url: String,
    authority: String,
    token: String,
}

impl PodsView {
    async fn of(kubectl: &Kubectl) -> Self {
        let inside = async |command: &str| {
            kubectl.run(&["exec", "web", "--", "sh", "-c", command]).await.unwrap()
        };
        inside("nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null").await;
        let url = "echo https://$KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT";
        Self {
            url: inside(url).await.trim().to_owned(),
            authority: inside(&format!("cat {TOKEN_DIRECTORY}/ca.crt")).await,
            token: inside(&format!("cat {TOKEN_DIRECTORY}/token")).await,
        }
    }

    async fn list_pods(&self, bed: &Bed) -> anyhow::Result<HttpResponse> {
        let request = Request::get(format!("{}/api/v1/namespaces/default/pods", self.url))
            .header("Authorization", format!("Bearer {}", self.token))
            .body(Bytes::new())?;
        let tls = Tls { trust: Trust::Authority(self.authority.clone()), identity: None };
        bed.http_send(request, &tls).await
    }
}

#[tokio::test]
async fn network_conflict_is_reported_before_anything_is_created() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    let links = bed.exec(&["ip", "-o", "link"]).await.unwrap();
    let refused = node.run(&["up", "--pod-cidr", "10.99.0.0/16"]).await.unwrap_err();
    let output = format!("{refused:#}");
    assert!(output.contains("overlaps") && output.contains("--pod-cidr"), "{output}");
    let nonsense = node.run(&["up", "--pod-cidr", "ten"]).await.unwrap_err();
    assert!(format!("{nonsense:#}").contains("10.213.0.0/16"), "{nonsense:#}");
    assert!(!Path::new(&node.state).exists());
    assert_eq!(bed.exec(&["ip", "-o", "link"]).await.unwrap(), links);
    bed.close().unwrap();
}

#[tokio::test]
async fn pods_reach_the_api_with_their_token_and_secrets_stay_private() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let node = Standalone::new(&bed, "up");
    let home = bed.path("home");
    std::fs::create_dir_all(home.join(".kube")).unwrap();
    std::fs::write(home.join(".kube/config"), "mine").unwrap();
    let (home_variable, person) = (format!("HOME={}", home.display()), PERSON.to_string());
    let sudo = [format!("SUDO_UID={person}"), format!("SUDO_GID={person}"), home_variable];
    let program = podwright_e2e::tools::podwright().unwrap().to_string_lossy().into_owned();
    let mut command = vec!["env"];
    command.extend(sudo.iter().map(String::as_str));
    command.extend([program.as_str(), "up", "--state-dir", &node.state]);
    bed.exec(&command).await.unwrap();
    node.load_test_image().await;

    let state = PathBuf::from(&node.state);
    let kubeconfig = state.join("kubeconfig");
    let metadata = std::fs::metadata(&kubeconfig).unwrap();
    assert_eq!((metadata.mode() & 0o777, metadata.uid(), metadata.gid()), (0o600, PERSON, PERSON));
    assert_eq!(std::fs::read_to_string(home.join(".kube/config")).unwrap(), "mine");
    assert_eq!(open_to_others(&state), Vec::<PathBuf>::new());
    assert_eq!(open_to_others(&state.join("api")), Vec::<PathBuf>::new());

    let kubectl = bed.kubectl_with(Release::V1_32, kubeconfig).unwrap();
    kubectl.run_with(&["apply", "-f", "-"], &web()).await.unwrap();
    let ready = ["wait", "--for=condition=Ready", "pod/web", "--timeout=180s"];
    kubectl.run(&ready).await.unwrap();
    let page = async || Ok(bed.http_get("http://10.99.0.10:18080/").await.is_ok());
    wait::until_true("the page at the machine's port", LIMIT, page).await.unwrap();
    let servers = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("nameserver"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let inside = kubectl.run(&["exec", "web", "--", "cat", "/etc/resolv.conf"]).await.unwrap();
    assert_eq!(servers(&inside), servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap()));

    // a token has no rights until a user follows the hint in the error
    let view = PodsView::of(&kubectl).await;
    let refused = view.list_pods(&bed).await.unwrap();
    assert_eq!(refused.status, 403);
    let refused: Value = serde_json::from_str(&refused.text()).unwrap();
    let way_out = refused["message"].as_str().unwrap().split_once("kubectl ").unwrap().1;
    let way_out: Vec<&str> = way_out.split(" (or").next().unwrap().split(' ').collect();
    kubectl.run(&way_out).await.unwrap();
    assert_eq!(view.list_pods(&bed).await.unwrap().status, 200);

    // in the foreground, closed to pods; Ctrl-C stops the agent and no pod
    let background = agent(&bed, &node).await;
    bed.exec(&["kill", &background.to_string()]).await.unwrap();
    let gone = async || Ok(!Path::new(&format!("/proc/{background}")).exists());
    wait::until_true("the agent in the background to end", LIMIT, gone).await.unwrap();
    let mut command = bed.command(&program);
    command.args(["up", "--foreground", "--no-pod-api", "--state-dir", &node.state]);
    let foreground = bed.daemon("foreground", command).unwrap();
    let there = async || Ok(kubectl.run(&ready).await.is_ok());
    wait::until_true("the node to serve again", LIMIT, there).await.unwrap();
    assert!(view.list_pods(&bed).await.is_err(), "nothing listens at the address for pods");
    // a node in the foreground is only restarted by its user
    let refused = node.run(&["up", "--no-pod-api=false"]).await.unwrap_err();
    assert!(format!("{refused:#}").contains("in the foreground"), "{refused:#}");
    let second = node.run(&["up", "--foreground"]).await.unwrap_err();
    assert!(format!("{second:#}").contains("already running"), "{second:#}");
    foreground.signal(Signal::INT).unwrap();
    let ended = foreground.wait(LIMIT).await.unwrap();
    assert!(ended.success(), "{ended}: {}", foreground.log());
    let pods = node.pods().await;
    assert_eq!((&pods[0]["running"], &pods[0]["restarts"]), (&json!(1), &json!(0)), "{pods:?}");
    node.run(&["down"]).await.unwrap();
    drop(kubectl);
    bed.close().unwrap();
}
