//! The server over TLS, as used by people and pods.

use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Request;
use jiff::{SignedDuration, Timestamp};
use kube::config::{KubeConfigOptions, Kubeconfig};
use podwright_apiserver::authority::{Authority, AuthorityUse, CertificatePair};
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Limits, Peers, Settings, Store};
use podwright_core::certificate::CertificateValidity;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::test_server::{NS, TestServer, grant_view};

struct Served {
    url: String,
    authority: Authority,
    /// The same server, in-process and with all permissions.
    test_server: TestServer,
    _stop: tokio_util::sync::DropGuard,
}

/// Credentials of a client.
enum Credentials<'a> {
    Nothing,
    Certificate(&'a CertificatePair),
    Token(&'a str),
}

async fn served() -> Served {
    let authority = Authority::create(AuthorityUse::Clients).unwrap();
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
    tokio::spawn(async move { serving.serve(listener, Peers::Loopback, tls, token).await });
    let test_server = TestServer { server, identity: Identity::admin() };
    Served { url, authority, test_server, _stop: stop.drop_guard() }
}

impl Served {
    async fn client(&self, credentials: Credentials<'_>) -> kube::Client {
        let text = |text: &str| BASE64_STANDARD.encode(text);
        let user = match credentials {
            Credentials::Nothing => json!({}),
            Credentials::Token(token) => json!({"token": token}),
            Credentials::Certificate(pair) => json!({
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

    /// The status code, and the message of an error.
    async fn ask(&self, credentials: Credentials<'_>, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Vec::new()).unwrap();
        match self.client(credentials).await.request_text(request).await {
            Ok(_) => (200, String::new()),
            Err(kube::Error::Api(status)) => (status.code, status.message.clone()),
            Err(other) => panic!("{path}: {other}"),
        }
    }
}

#[tokio::test]
async fn client_certificate_identifies_the_user() {
    let served = served().await;
    let admin = served.authority.client("me", &["system:masters"], hours(-1, 1)).unwrap();
    assert_eq!(served.ask(Credentials::Certificate(&admin), "/api/v1/pods").await.0, 200);
    let guest = served.authority.client("guest", &[], hours(-1, 1)).unwrap();
    let (code, message) = served.ask(Credentials::Certificate(&guest), "/api/v1/pods").await;
    assert_eq!(code, 403);
    assert!(message.contains("User \"guest\" cannot list resource \"pods\""), "{message}");
}

fn hours(from: i64, until: i64) -> CertificateValidity {
    let at = |hours| Timestamp::now() + SignedDuration::from_hours(hours);
    CertificateValidity { from: at(from), until: at(until) }
}

#[tokio::test]
async fn expired_certificate_is_refused() {
    let served = served().await;
    for validity in [hours(-2, -1), hours(1, 2)] {
        let old = served.authority.client("me", &["system:masters"], validity).unwrap();
        let request = Request::get("/api/v1/pods").body(Vec::new()).unwrap();
        let client = served.client(Credentials::Certificate(&old)).await;
        assert!(client.request_text(request).await.is_err(), "{validity:?}");
    }
}

#[tokio::test]
async fn open_connection_ends_with_the_certificate() {
    let served = served().await;
    let until = Timestamp::now() + SignedDuration::from_secs(3);
    let validity = CertificateValidity { until, ..hours(-1, 1) };
    let short = served.authority.client("me", &["system:masters"], validity).unwrap();
    let client = served.client(Credentials::Certificate(&short)).await;
    let ask = async || {
        let request = Request::get("/api/v1/pods").body(Vec::new()).unwrap();
        client.request_text(request).await
    };
    assert!(ask().await.is_ok());
    let refused = async {
        loop {
            match ask().await {
                Ok(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
                Err(kube::Error::Api(status)) => return status.code,
                // The connection was opened again, and the handshake refused.
                Err(_) => return 401,
            }
        }
    };
    let code = tokio::time::timeout(std::time::Duration::from_secs(20), refused).await.unwrap();
    assert_eq!(code, 401);
}

#[tokio::test]
async fn certificate_of_another_authority_is_refused() {
    let served = served().await;
    let other = Authority::create(AuthorityUse::Clients).unwrap();
    let forged = other.client("me", &["system:masters"], hours(-1, 1)).unwrap();
    let request = Request::get("/api/v1/pods").body(Vec::new()).unwrap();
    let client = served.client(Credentials::Certificate(&forged)).await;
    assert!(client.request_text(request).await.is_err());
}

#[tokio::test]
async fn anonymous_client_gets_health_and_version_only() {
    let served = served().await;
    for (path, code) in [("/healthz", 200), ("/version", 200), ("/api", 403), ("/api/v1/pods", 403)]
    {
        assert_eq!(served.ask(Credentials::Nothing, path).await.0, code, "{path}");
    }
    assert_eq!(served.ask(Credentials::Token("nonsense"), "/healthz").await.0, 401);
}

#[tokio::test]
async fn pod_token_has_the_role_of_its_account_until_the_pod_is_gone() {
    let served = served().await;
    let test_server = &served.test_server;
    let pod = test_server.pod("robot", "n1").await;
    let request = json!({"spec": {"boundObjectRef": {
        "kind": "Pod", "name": "robot", "uid": pod.body["metadata"]["uid"],
    }}});
    let path = format!("{NS}/serviceaccounts/default/token");
    let response = test_server.post(&path, request).await.ok();
    let token = response.body["status"]["token"].as_str().unwrap().to_owned();
    let pods = format!("{NS}/pods");

    let (code, message) = served.ask(Credentials::Token(&token), &pods).await;
    assert_eq!(code, 403);
    let fix = "kubectl create rolebinding --namespace default default --clusterrole view \
               --serviceaccount default:default";
    assert!(message.contains(fix), "{message}");

    grant_view(test_server).await;
    assert_eq!(served.ask(Credentials::Token(&token), &pods).await.0, 200);
    assert_eq!(served.ask(Credentials::Token(&token), &format!("{NS}/secrets")).await.0, 403);

    test_server
        .delete_with(&format!("{NS}/pods/robot"), json!({"gracePeriodSeconds": 0}))
        .await
        .ok();
    assert_eq!(served.ask(Credentials::Token(&token), &pods).await.0, 401);
}

#[tokio::test]
async fn node_is_restricted_to_its_own_pods() {
    let served = served().await;
    served.test_server.pod("mine", "n1").await;
    served.test_server.pod("theirs", "n2").await;
    let node =
        TestServer { server: served.test_server.server.clone(), identity: Identity::node("n1") };
    let running: Value = json!({"status": {"phase": "Running"}});
    assert_eq!(node.merge(&format!("{NS}/pods/mine/status"), running.clone()).await.code, 200);
    assert_eq!(node.merge(&format!("{NS}/pods/theirs/status"), running).await.code, 403);
    assert_eq!(node.delete(&format!("{NS}/pods/theirs")).await.code, 403);
    let other = json!({"metadata": {"name": "n2"}});
    assert_eq!(node.post("/api/v1/nodes", other).await.code, 403);
    let own = json!({"metadata": {"name": "n1"}});
    assert_eq!(node.post("/api/v1/nodes", own).await.code, 201);
    let plain = super::test_server::pod("plain", "n1");
    assert_eq!(node.post(&format!("{NS}/pods"), plain).await.code, 403);
    let token = json!({"spec": {}});
    assert_eq!(node.post(&format!("{NS}/serviceaccounts/default/token"), token).await.code, 403);
}
