//! Requests to the embedded API server.

use std::sync::OnceLock;
use std::time::Duration;

use axum::body::Body;
use http::{Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use podwright_apiserver::decode::{self, Encoded};
use podwright_apiserver::options::{FieldValidation, ListOptions, Query};
use podwright_apiserver::patch::{self, PatchType};
use podwright_apiserver::registry::{self, RESOURCES, Resource};
use podwright_apiserver::request::{self, Target};
use podwright_apiserver::selector::Selector;
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{
    ApiServer, Clock, Identity, Ids, Limits, Settings, Store, protobuf, validation,
};
use serde_json::Value;
use tokio::time::Instant;
use tower::ServiceExt as _;

/// Separates the requests of an input.
const SEPARATOR: &str = "\n====\n";
const MAX_REQUESTS: usize = 12;
const MAX_RESPONSE: usize = 64 << 20;
/// Watches last as long as their client wants.
const WATCH: Duration = Duration::from_secs(2);

/// Requests: a line with method, path and content type, then the body.
pub(crate) fn requests(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let requests: Vec<&str> = text.split(SEPARATOR).take(MAX_REQUESTS).collect();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap_or_else(|error| panic!("{error}")).block_on(async {
        let server = server().await;
        for text in requests {
            let Some(request) = parse(text) else { continue };
            let (code, body) = send(&server, request).await;
            // kube-apiserver has a few refusals with 500 too; our own internal errors are marked.
            assert!(code < 500 || !body.contains("InternalError"), "{text}: {body}");
        }
        let request = parse("GET /api/v1/namespaces/default/pods application/json\n");
        let Some(request) = request else { panic!("not a request") };
        assert_eq!(send(&server, request).await.0, 200, "the server is broken afterwards");
    });
}

async fn server() -> ApiServer {
    let start = Instant::now();
    let clock = Clock::new(move || {
        Timestamp::from_second(1_700_000_000).unwrap_or_default()
            + jiff::SignedDuration::try_from(start.elapsed()).unwrap_or_default()
    });
    let store = Store::in_memory(Limits::default(), clock.clone());
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    let mut settings = Settings::new(clock, Ids::seeded(1));
    settings.token_key = Some(TokenKey::new(&[7; 32]));
    let server = ApiServer::start(store, settings).await;
    server.unwrap_or_else(|error| panic!("{error:?}"))
}

fn parse(text: &str) -> Option<Request<Body>> {
    let (line, body) = text.split_once('\n').unwrap_or((text, ""));
    let mut words = line.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let kind = words.next().unwrap_or("application/json");
    let accept = words.next().unwrap_or("*/*");
    let request = Request::builder().method(method).uri(path);
    let request = request.header(header::CONTENT_TYPE, kind).header(header::ACCEPT, accept);
    request.body(Body::from(body.to_owned())).ok()
}

async fn send(server: &ApiServer, request: Request<Body>) -> (u16, String) {
    let response = server.service(Identity::admin()).oneshot(request).await;
    let response = response.unwrap_or_else(|never| match never {});
    let code = response.status().as_u16();
    let body = Limited::new(response.into_body(), MAX_RESPONSE).collect();
    let body = match tokio::time::timeout(WATCH, body).await {
        Ok(Ok(body)) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Ok(Err(_)) | Err(_) => String::new(),
    };
    (code, body)
}

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"default",
"labels":{"a":"b"},"finalizers":["x.y/z"]},"spec":{"containers":[{"name":"c","image":"i",
"resources":{"limits":{"cpu":"1"}},"env":[{"name":"A","value":"b"}]}],"tolerations":[{"operator":"Exists"}]}}"#;

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let pods = "/api/v1/namespaces/default/pods";
    let many = |requests: &[String]| requests.join(SEPARATOR).into_bytes();
    let post = format!("POST {pods}?fieldValidation=Strict application/json\n{POD}");
    vec![
        many(&[
            post.clone(),
            format!("PATCH {pods}/a application/strategic-merge-patch+json\n{{\"metadata\":{{\"labels\":{{\"a\":null}}}},\"spec\":{{\"$setElementOrder/containers\":[{{\"name\":\"c\"}}],\"containers\":[{{\"name\":\"c\",\"image\":\"j\"}}]}}}}"),
            format!("PATCH {pods}/a application/json-patch+json\n[{{\"op\":\"test\",\"path\":\"/metadata/labels/a\",\"value\":\"b\"}},{{\"op\":\"copy\",\"from\":\"/metadata/labels/a\",\"path\":\"/metadata/labels/c\"}}]"),
            format!("PATCH {pods}/a/status application/merge-patch+json\n{{\"status\":{{\"phase\":\"Running\"}}}}"),
            format!("PATCH {pods}/a?fieldManager=m&force=true application/apply-patch+yaml\napiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    x: y\n"),
            format!("PATCH {pods}/a?fieldManager=n application/apply-patch+yaml\n{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"a\",\"labels\":{{\"x\":\"z\"}}}},\"spec\":{{\"containers\":[{{\"name\":\"c\",\"ports\":[{{\"containerPort\":80}}]}}]}}}}"),
            format!("PATCH {pods}/a application/merge-patch+json\n{{\"metadata\":{{\"managedFields\":[{{\"manager\":\"m\",\"operation\":\"Apply\",\"apiVersion\":\"v1\",\"fieldsType\":\"FieldsV1\",\"fieldsV1\":{{\"f:spec\":{{\"f:containers\":{{\"k:{{\\\"name\\\":\\\"c\\\"}}\":{{\".\":{{}}}}}}}}}}}}]}}}}"),
            format!("GET {pods}/a application/json application/vnd.kubernetes.protobuf"),
            format!("GET {pods} application/json application/yaml"),
            format!("DELETE {pods}/a?gracePeriodSeconds=5 application/json\n{{\"preconditions\":{{\"uid\":\"u\"}}}}"),
        ]),
        many(&[
            post,
            format!("GET {pods}?labelSelector=a%20in%20(b),!c&fieldSelector=spec.nodeName!%3Dx&limit=1 application/json"),
            format!("GET {pods}?watch=1&timeoutSeconds=1&resourceVersion=0&allowWatchBookmarks=true application/json"),
            format!("GET {pods}/a application/json application/json;as=Table;v=v1;g=meta.k8s.io"),
            format!("POST {pods}/a/binding application/json\n{{\"target\":{{\"kind\":\"Node\",\"name\":\"n\"}}}}"),
            format!("POST {pods}/a/eviction application/json\n{{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{{\"name\":\"a\"}}}}"),
            format!("PATCH {pods}/a/resize application/merge-patch+json\n{{\"spec\":{{\"containers\":[]}}}}"),
            format!("PATCH {pods}/a/ephemeralcontainers application/strategic-merge-patch+json\n{{\"spec\":{{\"ephemeralContainers\":[{{\"name\":\"d\",\"image\":\"i\"}}]}}}}"),
            "DELETE /api/v1/namespaces/default/pods application/json".to_owned(),
        ]),
        many(&[
            "POST /api/v1/namespaces/default/configmaps application/json\n{\"metadata\":{\"generateName\":\"a-\"},\"data\":{\"k\":\"v\"},\"immutable\":true}".to_owned(),
            "POST /api/v1/namespaces/default/secrets application/json\n{\"metadata\":{\"name\":\"s\"},\"type\":\"kubernetes.io/tls\",\"stringData\":{\"tls.crt\":\"x\",\"tls.key\":\"y\"}}".to_owned(),
            "POST /api/v1/namespaces/default/serviceaccounts/default/token application/json\n{\"spec\":{\"audiences\":[\"a\"],\"expirationSeconds\":600}}".to_owned(),
            "POST /apis/authentication.k8s.io/v1/tokenreviews application/json\n{\"spec\":{\"token\":\"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.e30.AAAA\",\"audiences\":[\"a\"]}}".to_owned(),
            "POST /apis/authorization.k8s.io/v1/subjectaccessreviews application/json\n{\"spec\":{\"user\":\"u\",\"groups\":[\"g\"],\"resourceAttributes\":{\"verb\":\"get\",\"resource\":\"pods\",\"namespace\":\"default\"}}}".to_owned(),
            "POST /apis/rbac.authorization.k8s.io/v1/namespaces/default/roles application/json\n{\"metadata\":{\"name\":\"r\"},\"rules\":[{\"apiGroups\":[\"\"],\"resources\":[\"pods/log\"],\"verbs\":[\"get\"],\"resourceNames\":[\"a\"]}]}".to_owned(),
            "POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings application/json\n{\"metadata\":{\"name\":\"b\"},\"roleRef\":{\"apiGroup\":\"rbac.authorization.k8s.io\",\"kind\":\"ClusterRole\",\"name\":\"view\"},\"subjects\":[{\"kind\":\"User\",\"name\":\"u\",\"apiGroup\":\"rbac.authorization.k8s.io\"}]}".to_owned(),
        ]),
        many(&[
            "POST /api/v1/namespaces application/json\n{\"metadata\":{\"name\":\"n\",\"labels\":{\"pod-security.kubernetes.io/enforce\":\"restricted\",\"pod-security.kubernetes.io/enforce-version\":\"v1.30\"}}}".to_owned(),
            "POST /api/v1/nodes application/json\n{\"metadata\":{\"name\":\"n\"},\"spec\":{\"podCIDR\":\"10.0.0.0/24\",\"taints\":[{\"key\":\"k\",\"effect\":\"NoSchedule\"}]}}".to_owned(),
            "POST /api/v1/persistentvolumes application/json\n{\"metadata\":{\"name\":\"v\"},\"spec\":{\"capacity\":{\"storage\":\"1Gi\"},\"accessModes\":[\"ReadWriteOnce\"],\"hostPath\":{\"path\":\"/x\"}}}".to_owned(),
            "POST /api/v1/namespaces/default/persistentvolumeclaims application/json\n{\"metadata\":{\"name\":\"c\"},\"spec\":{\"accessModes\":[\"ReadWriteOnce\"],\"resources\":{\"requests\":{\"storage\":\"1Gi\"}}}}".to_owned(),
            "POST /apis/events.k8s.io/v1/namespaces/default/events application/json\n{\"metadata\":{\"name\":\"e\"},\"eventTime\":\"2026-01-02T03:04:05.000006Z\",\"reason\":\"r\",\"action\":\"a\",\"type\":\"Normal\",\"reportingController\":\"c\",\"reportingInstance\":\"i\",\"regarding\":{\"kind\":\"Pod\",\"namespace\":\"default\"}}".to_owned(),
            "POST /apis/coordination.k8s.io/v1/namespaces/default/leases application/json\n{\"metadata\":{\"name\":\"l\"},\"spec\":{\"holderIdentity\":\"h\",\"leaseDurationSeconds\":40,\"renewTime\":\"2026-01-02T03:04:05.000006Z\"}}".to_owned(),
            "GET /openapi/v3 application/json".to_owned(),
            "GET /apis application/json application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList".to_owned(),
            "DELETE /api/v1/namespaces/n application/json\n{\"propagationPolicy\":\"Foreground\"}".to_owned(),
        ]),
    ]
}

/// The kind that the first byte chooses, and the rest.
fn of_kind(bytes: &[u8]) -> Option<(&'static Resource, &[u8])> {
    let (first, rest) = bytes.split_first()?;
    let resource = RESOURCES.get(usize::from(*first) % RESOURCES.len())?;
    Some((resource, rest))
}

/// The body of a request in each form, through decoding, validation and encoding.
pub(crate) fn objects(bytes: &[u8]) {
    let Some((resource, body)) = of_kind(bytes) else { return };
    for encoded in [Encoded::Json(body), Encoded::Yaml(body), Encoded::Protobuf(body)] {
        if let Ok(decoded) = decode::object(resource, encoded, FieldValidation::Warn) {
            let object = decoded.object.into_value();
            let _ = validation::create(resource, &object);
            let _ = validation::update(resource, None, &object, &object);
            for subresource in ["status", "resize", "ephemeralcontainers"] {
                let _ = validation::update(resource, Some(subresource), &object, &object);
            }
            if let Some(encoded) = protobuf::encode::object(&object) {
                assert!(protobuf::read(&encoded).is_ok(), "{object}");
            }
        }
        let _ = decode::unstored("TokenReview", encoded);
    }
    let _ = decode::json_fault(body);
}

pub(crate) fn object_seeds() -> Vec<Vec<u8>> {
    let position = |resource: &Resource| {
        let at = RESOURCES.iter().position(|known| known.storage == resource.storage);
        u8::try_from(at.unwrap_or_default()).unwrap_or_default()
    };
    let of = |resource: &Resource, body: &[u8]| [&[position(resource)], body].concat();
    // A Pod in protobuf: metadata.name, and spec.containers with name and image.
    let field = |number: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).unwrap_or_default();
        [&[number << 3 | 2, length], content].concat()
    };
    let container = [field(1, b"c"), field(2, b"i")].concat();
    let pod = [field(1, &field(1, b"a")), field(2, &field(2, &container))].concat();
    let types = [field(1, b"v1"), field(2, b"Pod")].concat();
    let protobuf = [b"k8s\0".to_vec(), field(1, &types), field(2, &pod)].concat();
    let node = br#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"podCIDRs":["10.0.0.0/24"]},
        "status":{"capacity":{"cpu":"1"},"conditions":[{"type":"Ready","status":"True"}],"addresses":[{"type":"InternalIP","address":"10.0.0.1"}]}}"#;
    let role = br#"{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r"},
        "rules":[{"nonResourceURLs":["/metrics/*"],"verbs":["get"]}],"aggregationRule":{"clusterRoleSelectors":[{"matchLabels":{"a":"b"}}]}}"#;
    let event = br#"{"apiVersion":"v1","kind":"Event","metadata":{"name":"e","namespace":"default"},"involvedObject":{"namespace":"default"},
        "firstTimestamp":"2026-01-02T03:04:05Z","count":1,"series":{"count":2,"lastObservedTime":"2026-01-02T03:04:05.000006Z"}}"#;
    vec![
        of(&registry::PODS, POD.as_bytes()),
        of(&registry::PODS, &protobuf),
        of(&registry::NODES, node),
        of(&registry::CLUSTER_ROLES, role),
        of(&registry::EVENTS, event),
    ]
}

fn original() -> &'static Value {
    static ORIGINAL: OnceLock<Value> = OnceLock::new();
    ORIGINAL.get_or_init(|| serde_json::from_str(POD).unwrap_or_default())
}

/// A patch of a pod, in each of the three forms.
pub(crate) fn patches(bytes: &[u8]) {
    let Ok(text) = decode::patch(bytes) else { return };
    for kind in [PatchType::Json, PatchType::Merge, PatchType::Strategic] {
        let Ok(patched) = patch::apply(kind, &registry::PODS, original(), &text.value) else {
            continue;
        };
        let shown = || patched.to_string();
        let _ = decode::patched(&registry::PODS, &patched, &text, shown, FieldValidation::Strict);
        let _ = validation::update(&registry::PODS, None, &patched, original());
    }
}

pub(crate) fn patch_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        r#"{"metadata":{"labels":{"a":null,"c":"d"}},"spec":{"containers":[{"name":"c","image":"j","$retainKeys":["name","image"]},{"name":"d","$patch":"delete"}],"$setElementOrder/containers":[{"name":"c"},{"name":"d"}],"tolerations":[{"key":"k"}]}}"#,
        r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["x.y/z"],"$setElementOrder/finalizers":["a/b"],"finalizers":["a/b"]},"spec":{"$patch":"replace","containers":[]}}"#,
        r#"[{"op":"add","path":"/spec/containers/-","value":{"name":"d"}},{"op":"move","from":"/spec/containers/0","path":"/spec/containers/1"},{"op":"test","path":"/metadata/labels/a","value":"b"},{"op":"replace","path":"/metadata/labels/a","value":1},{"op":"remove","path":"/spec/tolerations/0"},{"op":"copy","from":"/spec","path":"/spec/x~1y~0"}]"#,
    ])
}

/// A path with a query, label and field selectors, and a token.
pub(crate) fn queries(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let (path, labels) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let fields = lines.next().unwrap_or_default();
    for resource in [&registry::PODS, &registry::EVENTS, &registry::SECRETS] {
        let _ = Selector::parse(resource, labels, fields);
    }
    let Ok(uri) = path.parse::<Uri>() else { return };
    let query = Query::of(&uri);
    for (method, watching) in [(Method::GET, false), (Method::GET, true), (Method::PATCH, false)] {
        let target = request::parse(&method, uri.path(), watching);
        if let (Ok(Target::Resource(info)), Ok(query)) = (target, &query) {
            let _ = ListOptions::parse(&info, query);
        }
    }
}

pub(crate) fn query_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "/api/v1/namespaces/default/pods?limit=5&continue=e30&resourceVersion=7&resourceVersionMatch=NotOlderThan&timeoutSeconds=3\na=b,c!=d,e in (f,g),h notin (i),j,!k\nspec.nodeName=n,status.phase!=Running",
        "/apis/events.k8s.io/v1/namespaces/%61/events/x%2fy?watch=true&sendInitialEvents=true&labelSelector=a%3Db&fieldSelector=metadata.name%3Dx\nx.y/z==1\ninvolvedObject.name=a\\,b\\=c",
        "/api/v1/namespaces/default/pods/a/portforward?ports=80\n()\nmetadata.namespace=",
    ])
}
