#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use serde_json::{Value, json};

use super::*;
use crate::server::reload::Reload;

/// An API server that only serves reviews.
#[derive(Clone, Default)]
struct Reviews {
    asked: Arc<AtomicUsize>,
    down: bool,
}

impl Reviews {
    fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let this = this.clone();
            async move {
                this.asked.fetch_add(1, Relaxed);
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                let mut response = Response::new(Full::new(Bytes::from(this.answer(review))));
                if this.down {
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
                Ok::<_, Infallible>(response)
            }
        });
        kube::Client::new(service, "default")
    }

    /// `good` is the token of `metrics-server`, which may only get metrics.
    fn answer(&self, mut review: Value) -> String {
        if review["kind"] == "TokenReview" {
            review["status"] = match review["spec"]["token"].as_str() {
                Some("good") => json!({
                    "authenticated": true,
                    "user": { "username": "metrics-server", "groups": ["system:serviceaccounts"] },
                }),
                _ => json!({ "authenticated": false, "error": "unknown" }),
            };
        } else {
            let spec = &review["spec"];
            let wanted = &spec["resourceAttributes"];
            assert_eq!((&wanted["name"], &wanted["resource"]), (&json!("n1"), &json!("nodes")));
            let allowed = match (spec["user"].as_str(), wanted["subresource"].as_str()) {
                (Some("admin"), _) => true,
                (Some("metrics-server"), Some("metrics")) => wanted["verb"] == "get",
                (Some("watcher"), Some("pods")) => true,
                (Some("system:anonymous"), Some("healthz")) => {
                    spec["groups"] == json!(["system:unauthenticated"])
                }
                _ => false,
            };
            review["status"] = json!({ "allowed": allowed });
        }
        review.to_string()
    }
}

struct Pki {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let this = Self { dir: tempfile::tempdir().unwrap(), issuer };
        std::fs::write(this.file(), this.issuer.pem()).unwrap();
        this
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    fn peer(&self, name: &str, groups: &[&str], usage: ExtendedKeyUsagePurpose) -> Peer {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Peer { certificates: [signed.der().clone()].into() }
    }

    fn client(&self, name: &str, groups: &[&str]) -> Peer {
        self.peer(name, groups, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

fn settings(pki: &Pki, reviews: &Reviews) -> AuthSettings {
    AuthSettings {
        client_ca: Some(pki.file()),
        client_ca_reload: Reload::OnChange,
        tokens: Some((reviews.client(), Duration::from_secs(120))),
        anonymous: false,
        access: AccessSettings::Webhook {
            client: reviews.client(),
            allowed_for: Duration::from_secs(300),
            denied_for: Duration::from_secs(30),
        },
    }
}

fn access_control(settings: AuthSettings) -> AccessControl {
    AccessControl::new(settings, "n1".into()).unwrap()
}

fn with_token(token: &str) -> HeaderMap {
    let value = format!("Bearer {token}").parse().unwrap();
    HeaderMap::from_iter([(http::header::AUTHORIZATION, value)])
}

async fn status(
    access_control: &AccessControl,
    method: Method,
    path: &str,
    headers: &HeaderMap,
    peer: &Peer,
) -> u16 {
    match access_control.admit(&method, path, headers, peer).await {
        Ok(_) => 200,
        Err(refusal) => refusal.answer().status().as_u16(),
    }
}

#[tokio::test]
async fn requests_are_authenticated_and_authorized() {
    let (pki, reviews) = (Pki::new(), Reviews::default());
    let (closed, open) = (settings(&pki, &reviews), {
        let settings = settings(&pki, &reviews);
        AuthSettings { anonymous: true, ..settings }
    });
    let (closed, open) = (access_control(closed), access_control(open));
    let none = (HeaderMap::new(), Peer::default());
    let bad_token = (with_token("bad"), Peer::default());
    let good_token = (with_token("good"), Peer::default());
    let admin = (HeaderMap::new(), pki.client("admin", &["system:masters"]));
    let watcher = (HeaderMap::new(), pki.client("watcher", &[]));
    let stranger = (HeaderMap::new(), Pki::new().client("admin", &[]));
    let server = (HeaderMap::new(), pki.peer("admin", &[], ExtendedKeyUsagePurpose::ServerAuth));
    let nameless = (HeaderMap::new(), pki.client("", &["system:masters"]));
    let rescued = (with_token("good"), Pki::new().client("admin", &[]));
    for (case, who, path, when_closed, when_open) in [
        ("anonymous, healthz", &none, "/healthz", 401, 200),
        ("anonymous, pods", &none, "/pods", 401, 403),
        (
            "an invalid token is rejected even if anonymous requests are allowed",
            &bad_token,
            "/healthz",
            401,
            401,
        ),
        ("metrics-server: metrics", &good_token, "/metrics/resource", 200, 200),
        ("metrics-server: stats", &good_token, "/stats/summary", 403, 403),
        ("metrics-server: exec", &good_token, "/exec/ns/web/app", 403, 403),
        ("a certificate", &admin, "/exec/ns/web/app", 200, 200),
        ("only pods: pods", &watcher, "/pods", 200, 200),
        ("only pods: logs", &watcher, "/containerLogs/ns/web/app", 403, 403),
        ("a certificate of another CA", &stranger, "/healthz", 401, 401),
        ("a server's certificate", &server, "/healthz", 401, 401),
        ("a certificate without a common name", &nameless, "/healthz", 401, 200),
        ("one valid credential is enough", &rescued, "/metrics", 200, 200),
    ] {
        let (headers, peer) = who;
        assert_eq!(status(&closed, Method::GET, path, headers, peer).await, when_closed, "{case}");
        assert_eq!(
            status(&open, Method::GET, path, headers, peer).await,
            when_open,
            "{case}, open"
        );
    }
    let (headers, peer) = &good_token;
    assert_eq!(status(&closed, Method::POST, "/metrics", headers, peer).await, 403, "other verb");
}

#[tokio::test]
async fn requests_are_rejected_while_reviews_fail() {
    let pki = Pki::new();
    let down = Reviews { down: true, ..Reviews::default() };
    let access_control = access_control(settings(&pki, &down));
    let admin = pki.client("admin", &[]);
    assert_eq!(status(&access_control, Method::GET, "/pods", &HeaderMap::new(), &admin).await, 500);
    let nobody = Peer::default();
    assert_eq!(
        status(&access_control, Method::GET, "/pods", &with_token("good"), &nobody).await,
        401
    );
}

#[tokio::test(start_paused = true)]
async fn review_results_are_cached_for_their_time_to_live() {
    let (pki, reviews) = (Pki::new(), Reviews::default());
    let access_control = access_control(settings(&pki, &reviews));
    let (good, bad, nobody) = (with_token("good"), with_token("bad"), Peer::default());
    for (case, headers, path, after, asked) in [
        ("the first request needs both reviews", &good, "/metrics", 0, 2),
        ("the second one none", &good, "/metrics", 0, 2),
        ("another path with the same attributes none", &good, "/metrics/resource", 0, 2),
        ("a denial is reviewed once", &good, "/stats/summary", 0, 3),
        ("and cached for less than half a minute", &good, "/stats/summary", 29, 3),
        ("then reviewed again", &good, "/stats/summary", 1, 4),
        ("a token expires after two minutes, its access does not", &good, "/metrics", 90, 5),
        ("an invalid token is reviewed every time", &bad, "/metrics", 0, 6),
        ("because it may become valid", &bad, "/metrics", 0, 7),
    ] {
        tokio::time::advance(Duration::from_secs(after)).await;
        status(&access_control, Method::GET, path, headers, &nobody).await;
        assert_eq!(reviews.asked.load(Relaxed), asked, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn new_client_ca_is_used_without_restart() {
    let (pki, other, reviews) = (Pki::new(), Pki::new(), Reviews::default());
    let access_control = access_control(settings(&pki, &reviews));
    let none = HeaderMap::new();
    assert_eq!(
        status(&access_control, Method::GET, "/pods", &none, &other.client("admin", &[])).await,
        401
    );
    let both = pki.issuer.pem() + &other.issuer.pem();
    std::fs::write(pki.file(), both).unwrap();
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(
        status(&access_control, Method::GET, "/pods", &none, &other.client("admin", &[])).await,
        200
    );
    assert_eq!(
        status(&access_control, Method::GET, "/pods", &none, &pki.client("admin", &[])).await,
        200
    );
}

#[tokio::test]
async fn rejections_have_upstreams_wording() {
    let (pki, reviews) = (Pki::new(), Reviews::default());
    let access_control = access_control(settings(&pki, &reviews));
    let peer = pki.client("eve", &[]);
    let refusal = access_control.admit(&Method::GET, "/configz", &HeaderMap::new(), &peer).await;
    let text = refusal.unwrap_err().answer().into_body().collect().await.unwrap().to_bytes();
    let want = "Forbidden (user=eve, verb=get, resource=nodes, subresource(s)=[configz proxy])\n";
    assert_eq!(text, want);
    let user = User { name: "a".into(), ..User::default() };
    assert_eq!(authenticated(user).groups, ["system:authenticated"]);
}

#[test]
fn only_bearer_tokens_are_accepted() {
    for (value, want) in [
        ("Bearer abc", Some("abc")),
        ("bearer  abc ", Some("abc")),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("", None),
    ] {
        let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(token::bearer(&headers), want, "{value:?}");
    }
}
