//! API server of the simulation: the embedded one, with fault injection in between.
//!
//! The server is real. [`ApiRule`]s define the faults of the agent's requests; each request is
//! recorded with its result. The user of a simulation has a connection of their own that never
//! fails.

mod rewrite;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use podwright_apiserver::request::{self, Target};
use podwright_apiserver::store::Change;
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{ApiServer, Clock, Identity, Ids, Settings, Store};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

use rewrite::Rewrite;

use super::crash_point::{CrashPoint, Moment};
use super::journal::{Journal, RequestEntry};
use super::random::SeededRandom;

pub use podwright_apiserver::registry::Verb;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Fault of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiFault {
    /// Refused with this code; nothing happens.
    Error(u16),
    /// It is carried out, but the response is an error.
    DoneButError(u16),
    Delay(Duration),
    /// No response, and nothing happens.
    Hang,
    /// Carried out this much later; no response.
    Late(Duration),
    /// The connection breaks before anything happens.
    Disconnect,
    /// Carried out, then the connection breaks.
    DoneButDisconnect,
    /// Delivered twice, as through a proxy that retried; the second response is returned.
    Twice,
    /// Carried out, and its response is held back until a later request of the same kind was
    /// answered; at most this long, if there is none.
    Overtaken(Duration),
}

impl ApiFault {
    /// One of each kind, for a matrix.
    pub fn each() -> Vec<Self> {
        vec![
            Self::Error(500),
            Self::Error(409),
            Self::Error(429),
            Self::DoneButError(503),
            Self::Delay(Duration::from_secs(7)),
            Self::Hang,
            Self::Late(Duration::from_secs(20)),
            Self::Disconnect,
            Self::DoneButDisconnect,
            Self::Twice,
            Self::Overtaken(Duration::from_secs(5)),
        ]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Always,
    First(u64),
    Percent(u64),
}

/// Which requests fail, and how.
#[derive(Clone, Debug)]
pub struct ApiRule {
    fault: ApiFault,
    verbs: Option<Vec<Verb>>,
    /// `pods`, or `pods/status` for a subresource.
    resource: Option<String>,
    name: Option<String>,
    when: When,
    seen: u64,
}

impl ApiRule {
    pub fn on_every_request(fault: ApiFault) -> Self {
        Self { fault, verbs: None, resource: None, name: None, when: When::Always, seen: 0 }
    }

    pub fn on(verb: Verb, resource: &str, fault: ApiFault) -> Self {
        Self {
            verbs: Some(vec![verb]),
            resource: Some(resource.to_owned()),
            ..Self::on_every_request(fault)
        }
    }

    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    pub fn first(mut self, n: u64) -> Self {
        self.when = When::First(n);
        self
    }

    pub fn percent(mut self, percent: u64) -> Self {
        self.when = When::Percent(percent);
        self
    }

    fn applies(&mut self, call: &ApiCall, random: &mut SeededRandom) -> bool {
        let fits = self.verbs.as_ref().is_none_or(|verbs| verbs.contains(&call.verb))
            && self.resource.as_ref().is_none_or(|resource| *resource == call.resource)
            && self.name.as_ref().is_none_or(|name| *name == call.name);
        if !fits {
            return false;
        }
        self.seen += 1;
        match self.when {
            When::Always => true,
            When::First(n) => self.seen <= n,
            When::Percent(percent) => random.percent(percent),
        }
    }
}

/// One request of the agent.
#[derive(Clone, Debug)]
pub struct ApiCall {
    pub at: Duration,
    pub verb: Verb,
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub fault: Option<ApiFault>,
    /// Status code of the response; absent while there is none.
    pub code: Option<u16>,
}

impl ApiCall {
    /// Whether it changes more than Events.
    pub fn writes(&self) -> bool {
        let changes = match self.verb {
            Verb::Create | Verb::Delete | Verb::DeleteCollection | Verb::Patch | Verb::Update => {
                true
            }
            Verb::Get | Verb::List | Verb::Watch => false,
        };
        changes && self.resource != "events"
    }
}

impl fmt::Display for ApiCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {} {}", self.at, self.verb, self.resource, self.name)?;
        if let Some(fault) = &self.fault {
            write!(f, " [{fault:?}]")?;
        }
        match self.code {
            Some(code) => write!(f, ": {code}"),
            None => f.write_str(": no answer"),
        }
    }
}

/// The server and the faults on the way to it.
#[derive(Clone)]
pub struct Api {
    server: ApiServer,
    shared: Arc<Shared>,
}

struct Shared {
    began: Instant,
    state: Mutex<State>,
    /// Counts responses.
    answers: watch::Sender<u64>,
    journal: Journal,
}

struct State {
    rules: Vec<ApiRule>,
    random: SeededRandom,
    calls: Vec<ApiCall>,
    up: bool,
    /// Cancelled to break open watches.
    watches: CancellationToken,
    crash_point: Option<Arc<CrashPoint>>,
    /// Edit of the agent's view of pods.
    rewrite: Option<Rewrite>,
}

impl Api {
    /// Serves the content of the store, to which these objects are added first.
    pub async fn start(
        seed: u64,
        clock: podwright_host::clock::Clock,
        store: impl FnOnce(Clock) -> Store,
        objects: Vec<Change>,
        journal: Journal,
    ) -> Self {
        let wall = Clock::new(move || clock.now().wall);
        let store = store(wall.clone());
        for object in objects {
            store.commit(vec![object]).await.expect("an object in the store");
        }
        let mut settings = Settings::new(wall, Ids::seeded(seed));
        settings.token_key = Some(TokenKey::new(&[7; 32]));
        let server = ApiServer::start(store, settings).await.expect("an API server");
        let state = State {
            rules: Vec::new(),
            random: SeededRandom::new(seed, 11),
            calls: Vec::new(),
            up: true,
            watches: CancellationToken::new(),
            crash_point: None,
            rewrite: None,
        };
        let (began, state, answers) = (Instant::now(), Mutex::new(state), watch::Sender::default());
        let shared = Shared { began, state, answers, journal };
        Self { server, shared: Arc::new(shared) }
    }

    /// A client whose connection never fails.
    pub fn users_client(&self) -> kube::Client {
        kube::Client::new(self.server.service(Identity::admin()), "default")
    }

    /// The agent's client, valid until the agent's end.
    pub fn agents_client(&self, end: CancellationToken) -> kube::Client {
        let line = Line { api: self.clone(), end };
        kube::Client::new(line, "default")
    }

    pub fn fail(&self, rule: ApiRule) {
        self.shared.state.lock().rules.push(rule);
    }

    /// Removes all rules and makes the server reachable.
    pub fn heal(&self) {
        let mut state = self.shared.state.lock();
        state.rules.clear();
        state.up = true;
    }

    /// The server is unreachable, and open watches break.
    pub fn go_down(&self) {
        self.shared.state.lock().up = false;
        self.break_watches();
    }

    pub fn come_up(&self) {
        self.shared.state.lock().up = true;
    }

    /// Every open watch of the agent breaks.
    pub fn break_watches(&self) {
        let mut state = self.shared.state.lock();
        std::mem::take(&mut state.watches).cancel();
    }

    /// The agent sees every pod as `edit` leaves it, from the next list or watch on; open watches
    /// break.
    pub fn rewrite_pods(&self, edit: impl Fn(&mut Value) + Send + Sync + 'static) {
        self.shared.state.lock().rewrite = Some(Arc::new(edit));
        self.break_watches();
    }

    pub fn calls(&self) -> Vec<ApiCall> {
        self.shared.state.lock().calls.clone()
    }

    pub fn clear_calls(&self) {
        self.shared.state.lock().calls.clear();
    }

    pub(super) fn arm(&self, crash_point: Option<Arc<CrashPoint>>) {
        self.shared.state.lock().crash_point = crash_point;
    }

    /// Records a request and returns its fault.
    fn arrive(&self, mut call: ApiCall) -> Arrival {
        let mut state = self.shared.state.lock();
        let state = &mut *state;
        let mut fault = None;
        for rule in &mut state.rules {
            if rule.applies(&call, &mut state.random) {
                fault = fault.or_else(|| Some(rule.fault.clone()));
            }
        }
        if !state.up {
            fault = Some(ApiFault::Disconnect);
        }
        call.fault.clone_from(&fault);
        let crash_point = state.crash_point.clone().filter(|_| call.writes());
        let place = state.calls.len();
        state.calls.push(call);
        Arrival { place, fault, watches: state.watches.clone(), crash_point }
    }

    fn answered(&self, place: usize, code: u16) {
        if let Some(call) = self.shared.state.lock().calls.get_mut(place) {
            call.code = Some(code);
        }
        self.shared.answers.send_modify(|count| *count += 1);
    }

    /// Waits until a later request of the same kind was answered.
    async fn overtaken(&self, place: usize) {
        let later = |_: &u64| {
            let calls = &self.shared.state.lock().calls;
            let mut after = calls.iter().skip(place);
            let held = after.next();
            let same = |call: &ApiCall| {
                held.is_some_and(|h| h.verb == call.verb && h.resource == call.resource)
            };
            after.any(|call| call.code.is_some() && same(call))
        };
        // The sender exists as long as `self`.
        let _ = self.shared.answers.subscribe().wait_for(later).await;
    }
}

struct Arrival {
    place: usize,
    fault: Option<ApiFault>,
    watches: CancellationToken,
    crash_point: Option<Arc<CrashPoint>>,
}

/// The agent's connection to the server.
#[derive(Clone)]
struct Line {
    api: Api,
    end: CancellationToken,
}

impl Service<Request<kube::client::Body>> for Line {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if this.end.is_cancelled() {
                // The agent was killed; remaining requests of its tasks are ignored.
                return std::future::pending().await;
            }
            this.serve(request).await
        })
    }
}

impl Line {
    async fn serve(
        &self,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Body>, BoxError> {
        let call = describe(&request, self.api.shared.began.elapsed());
        let (verb, resource, at) = (call.verb, call.resource.clone(), call.at);
        let of_pods = resource.split('/').next() == Some("pods");
        let Arrival { place, fault, watches, crash_point } = self.api.arrive(call);
        let (parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let entry = RequestEntry {
            method: &parts.method,
            target: parts.uri.path_and_query().map_or("", |target| target.as_str()),
            verb,
            resource: &resource,
            body: &body,
            fault: fault.as_ref().map(|fault| format!("{fault:?}")),
        };
        let journal = &self.api.shared.journal;
        let request_line = journal.request(at, &entry);
        if crash_point.as_ref().is_some_and(|point| point.step(Moment::Before)) {
            return std::future::pending().await;
        }
        let send = || self.send(parts.clone(), body.clone());
        let answer = match fault {
            None => send().await,
            Some(ApiFault::Delay(by)) => {
                tokio::time::sleep(by).await;
                send().await
            }
            Some(ApiFault::Error(code)) => Ok(refusal(code)),
            Some(ApiFault::DoneButError(code)) => send().await.map(|_| refusal(code)),
            Some(ApiFault::Hang) => std::future::pending().await,
            Some(ApiFault::Late(by)) => {
                let late = send();
                tokio::spawn(async move {
                    tokio::time::sleep(by).await;
                    let _ = late.await;
                });
                std::future::pending().await
            }
            Some(ApiFault::Disconnect) => Err("the connection broke".into()),
            Some(ApiFault::DoneButDisconnect) => {
                send().await.and_then(|_| Err("the connection broke".into()))
            }
            Some(ApiFault::Twice) => {
                let _ = send().await;
                send().await
            }
            Some(ApiFault::Overtaken(most)) => {
                let answer = send().await;
                // Elapsed: no later request came.
                let _ = tokio::time::timeout(most, self.api.overtaken(place)).await;
                answer
            }
        };
        if crash_point.as_ref().is_some_and(|point| point.step(Moment::After)) {
            return std::future::pending().await;
        }
        let answer = answer?;
        self.api.answered(place, answer.status().as_u16());
        journal.answer(&request_line, self.api.shared.began.elapsed(), answer.status().as_u16());
        let rewrite = self.api.shared.state.lock().rewrite.clone().filter(|_| of_pods);
        Ok(match (verb, rewrite) {
            (Verb::Watch, None) => answer.map(|body| breakable(body, watches)),
            (Verb::Watch, Some(edit)) => {
                answer.map(|body| breakable(rewrite::watch(body, edit), watches))
            }
            (_, Some(edit)) => rewrite::answer(answer, &edit).await?,
            (_, None) => answer,
        })
    }

    fn send(
        &self,
        parts: http::request::Parts,
        body: Bytes,
    ) -> impl Future<Output = Result<Response<Body>, BoxError>> + Send + 'static {
        let router = self.api.server.service(Identity::admin());
        let request = Request::from_parts(parts, Body::from(body));
        async move { Ok(router.oneshot(request).await?) }
    }
}

/// A watch that breaks when it is cancelled.
fn breakable(body: Body, broken: CancellationToken) -> Body {
    let whole = body.into_data_stream().map(|chunk| chunk.map_err(BoxError::from));
    let end = futures::stream::once(async { Err(BoxError::from("the connection broke")) });
    let watched = whole.take_until(broken.cancelled_owned()).chain(end);
    Body::from_stream(watched)
}

fn describe(request: &Request<kube::client::Body>, at: Duration) -> ApiCall {
    let query = request.uri().query().unwrap_or_default();
    let watching = query.split('&').any(|pair| matches!(pair, "watch=true" | "watch=1"));
    let (verb, resource, namespace, name) =
        match request::parse(request.method(), request.uri().path(), watching) {
            Ok(Target::Resource(info)) => {
                (info.verb, info.full_resource(), info.namespace.clone(), info.name)
            }
            Ok(_) | Err(_) => (Verb::Get, String::new(), String::new(), String::new()),
        };
    ApiCall { at, verb, resource, namespace, name, fault: None, code: None }
}

fn refusal(code: u16) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "a fault of the simulation", "reason": "InternalError", "code": code,
    });
    let response = Response::builder().status(code).header("Content-Type", "application/json");
    response.body(Body::from(status.to_string())).expect("a response")
}
