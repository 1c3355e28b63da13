//! The server over TLS, as people and pods meet it.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use podwright_apiserver::authority::{Authority, Pair};
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Settings, Store};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::world::{NS, World};

struct Served {
    url: String,
    authority: Authority,
    /// The same server, in-process and with every right.
    world: World,
    _stop: tokio_util::sync::DropGuard,
}

/// What a client shows.
enum Shown<'a> {
    Nothing,
    Certificate(&'a Pair),
    Token(&'a str),
}

async fn served() -> Served {
    let authority = Authority::create().unwrap();
    let clock = Clock::system();
    let store = Store::in_memory(Limits::default(), clock.clone()).unwrap();
    let mut settings = Settings::new(clock, Ids::system());
    settings.token_key = Some(TokenKey::new(&[7; 32]));
    let server = ApiServer::start(store, settings).await.unwrap();
    let pair = authority.server(&[], &[IpAddr::V4(Ipv4Addr::LOCALHOST)]).unwrap();
    let tls = authority.tls(&pair).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let (serving, token) = (server.clone(), stop.clone());
    tokio::spawn(async move { serving.serve(listener, tls, token).await });
    let world = World { server, who: Identity::admin() };
    Served { url, authority, world, _stop: stop.drop_guard() }
}

impl Served {
    async fn client(&self, shown: Shown<'_>) -> kube::Client {
        let text = |text: &str| BASE64_STANDARD.encode(text);
        let user = match shown {
            Shown::Nothing => json!({}),
            Shown::Token(token) => json!({"token": token}),
            Shown::Certificate(pair) => json!({
                "client-certificate-data": text(&pair.certificate),
                "client-key-data": text(&pair.key),
            }),
        };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": self.url,
                "certificate-authority-data": text(self.authority.certificate()),
            }}],
            "users": [{"name": "u", "user": user}],
        });
        let config: Kubeconfig = serde_json::from_value(config).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(config, &options).await.unwrap();
        kube::Client::try_from(config).unwrap()
    }

    /// The code of the answer, and its message if it is a refusal.
    async fn ask(&self, shown: Shown<'_>, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Vec::new()).unwrap();
        match self.client(shown).await.request_text(request).await {
            Ok(_) => (200, String::new()),
            Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
            Err(other) => panic!("{path}: {other}"),
        }
    }
}

#[tokio::test]
async fn a_certificate_of_the_authority_says_who_asks() {
    let served = served().await;
    let admin = served.authority.client("me", &["system:masters"]).unwrap();
    assert_eq!(served.ask(Shown::Certificate(&admin), "/api/v1/pods").await.0, 200);
    let guest = served.authority.client("guest", &[]).unwrap();
    let (code, message) = served.ask(Shown::Certificate(&guest), "/api/v1/pods").await;
    assert_eq!(code, 403);
    assert!(message.contains("User \"guest\" cannot list resource \"pods\""), "{message}");
}

#[tokio::test]
async fn a_certificate_of_somebody_elses_authority_is_worth_nothing() {
    let served = served().await;
    let other = Authority::create().unwrap();
    let forged = other.client("me", &["system:masters"]).unwrap();
    let request = Request::get("/api/v1/pods").body(Vec::new()).unwrap();
    let client = served.client(Shown::Certificate(&forged)).await;
    assert!(client.request_text(request).await.is_err());
}

#[tokio::test]
async fn who_shows_nothing_learns_that_it_lives_and_no_more() {
    let served = served().await;
    for (path, code) in [("/healthz", 200), ("/version", 200), ("/api", 403), ("/api/v1/pods", 403)]
    {
        assert_eq!(served.ask(Shown::Nothing, path).await.0, code, "{path}");
    }
    assert_eq!(served.ask(Shown::Token("nonsense"), "/healthz").await.0, 401);
}

#[tokio::test]
async fn a_pods_token_opens_what_its_account_was_given_until_the_pod_is_gone() {
    let served = served().await;
    let world = &served.world;
    let pod = world.pod("robot", "n1").await;
    let request = json!({"spec": {"boundObjectRef": {
        "kind": "Pod", "name": "robot", "uid": pod.body["metadata"]["uid"],
    }}});
    let path = format!("{NS}/serviceaccounts/default/token");
    let answer = world.post(&path, request).await.ok();
    let token = answer.body["status"]["token"].as_str().unwrap().to_owned();
    let pods = format!("{NS}/pods");

    let (code, message) = served.ask(Shown::Token(&token), &pods).await;
    assert_eq!(code, 403);
    let way_out = "kubectl annotate --overwrite serviceaccount --namespace default default \
                   podwright/role=view";
    assert!(message.contains(way_out), "{message}");

    let role = json!({"metadata": {"annotations": {"podwright/role": "view"}}});
    world.merge(&format!("{NS}/serviceaccounts/default"), role).await.ok();
    assert_eq!(served.ask(Shown::Token(&token), &pods).await.0, 200);
    assert_eq!(served.ask(Shown::Token(&token), &format!("{NS}/secrets")).await.0, 403);

    world.delete_with(&format!("{NS}/pods/robot"), json!({"gracePeriodSeconds": 0})).await.ok();
    assert_eq!(served.ask(Shown::Token(&token), &pods).await.0, 401);
}

#[tokio::test]
async fn a_node_is_held_to_its_own_pods() {
    let served = served().await;
    served.world.pod("mine", "n1").await;
    served.world.pod("theirs", "n2").await;
    let node = World { server: served.world.server.clone(), who: Identity::node("n1") };
    let running: Value = json!({"status": {"phase": "Running"}});
    assert_eq!(node.merge(&format!("{NS}/pods/mine/status"), running.clone()).await.code, 200);
    assert_eq!(node.merge(&format!("{NS}/pods/theirs/status"), running).await.code, 403);
    assert_eq!(node.delete(&format!("{NS}/pods/theirs")).await.code, 403);
    let other = json!({"metadata": {"name": "n2"}});
    assert_eq!(node.post("/api/v1/nodes", other).await.code, 403);
    let own = json!({"metadata": {"name": "n1"}});
    assert_eq!(node.post("/api/v1/nodes", own).await.code, 201);
    let plain = super::world::pod("plain", "n1");
    assert_eq!(node.post(&format!("{NS}/pods"), plain).await.code, 403);
    let token = json!({"spec": {}});
    assert_eq!(node.post(&format!("{NS}/serviceaccounts/default/token"), token).await.code, 403);
}
