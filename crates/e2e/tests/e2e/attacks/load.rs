//! Load: bodies that stall, responses that are not read, objects that take long to read, events.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::StatusCode;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use podwright_e2e::bed::Bed;
use podwright_e2e::http::connect_tls;
use podwright_e2e::wait;
use serde_json::json;

use super::{Attacked, PodClient};
use crate::privilege::needs_root;

/// The size of each attack: enough to take gigabytes from a server without limits.
const CONNECTIONS: usize = 12;
const STREAMS: usize = 100;
const BODY: usize = 3 << 20;
/// The size of a body that is accepted from every pod.
const REVIEW_BODY: usize = 60 << 10;
/// How long each attack is kept up.
const ATTACK: Duration = Duration::from_secs(15);

const REVIEW: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// A body of which only the last byte is missing.
struct Stalled {
    left: usize,
}

impl Body for Stalled {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        static BLANKS: [u8; 16 << 10] = [b' '; 16 << 10];
        let size = self.left.min(BLANKS.len());
        if size == 0 {
            return Poll::Pending; // and never wakes
        }
        self.left -= size;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&BLANKS[..size])))))
    }
}

/// What became of the streams of an attack.
#[derive(Debug, Default)]
struct Outcome {
    answered: usize,
    refused: usize,
    open: usize,
}

/// Opens as many streams as the server allows on several connections, sends a request on each, and
/// does not read what comes back.
///
/// It has a runtime of its own, with which its connections end.
async fn flood(
    attacker: &PodClient,
    method: &'static str,
    path: &'static str,
    body: usize,
) -> Outcome {
    let attacker = attacker.clone();
    let flooding = tokio::task::spawn_blocking(move || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        let outcome = runtime.block_on(open_streams(&attacker, method, path, body));
        runtime.shutdown_background();
        outcome
    });
    flooding.await.unwrap()
}

async fn open_streams(attacker: &PodClient, method: &str, path: &str, body: usize) -> Outcome {
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let stream =
            connect_tls(&attacker.netns, attacker.api, &attacker.tls(), "h2").await.unwrap();
        let handshake = http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(0)
            .handshake::<_, Stalled>(TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        for _ in 0..STREAMS {
            let mut sender = sender.clone();
            let mut request = attacker.request(method, path);
            if body > 0 {
                request = request.header("content-type", "application/json");
                request = request.header("content-length", body);
            }
            let request = request.body(Stalled { left: body.saturating_sub(1) }).unwrap();
            streams.push(tokio::spawn(async move {
                sender.ready().await?;
                sender.send_request(request).await
            }));
        }
    }
    tokio::time::sleep(ATTACK).await;
    let mut outcome = Outcome::default();
    let mut kept = Vec::new();
    for stream in streams {
        if !stream.is_finished() {
            outcome.open += 1;
            continue;
        }
        match stream.await.unwrap() {
            Ok(response) if response.status() == StatusCode::TOO_MANY_REQUESTS => {
                outcome.refused += 1;
                kept.push(response);
            }
            Ok(response) => {
                outcome.answered += 1;
                kept.push(response);
            }
            Err(_) => outcome.refused += 1,
        }
    }
    outcome
}

#[tokio::test]
async fn stalled_bodies_and_unread_responses_cost_little() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let attacked = Attacked::start(&bed, None).await;
    let attacker = attacked.attacker().await;
    // The first request of each kind is not part of the attack.
    let spec = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let review = async || attacker.send("POST", REVIEW, spec.clone()).await.unwrap().status;
    assert_eq!(review().await, StatusCode::CREATED);
    assert_eq!(attacker.send("GET", "/openapi/v2", json!(null)).await.unwrap().status, 200);

    let watch = attacked.watch_memory();
    let bodies = flood(&attacker, "POST", REVIEW, BODY).await;
    let small = flood(&attacker, "POST", REVIEW, REVIEW_BODY).await;
    let after = Instant::now();
    attacked.assert_healthy().await;
    assert!(after.elapsed() < Duration::from_secs(20), "{:?}", after.elapsed());
    watch.assert_small("stalled bodies").await;
    assert_eq!(bodies.open, 0, "larger than a review may be: {bodies:?}");
    assert!(small.open < STREAMS && small.refused > small.open, "{small:?}");

    let watch = attacked.watch_memory();
    let responses = flood(&attacker, "GET", "/openapi/v2", 0).await;
    attacked.assert_healthy().await;
    watch.assert_small("unread responses").await;
    assert!(responses.refused > responses.answered, "{responses:?}");

    // the pod may go on when it behaves
    let served = async || Ok(review().await == StatusCode::CREATED);
    wait::until_true("a review to be served again", ATTACK, served).await.unwrap();
    attacked.end().await;
    bed.close().unwrap();
}

#[tokio::test]
async fn account_with_a_role_cannot_stop_the_node_by_load() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let attacked = Attacked::start(&bed, Some("edit")).await;
    let attacker = attacked.attacker().await;
    let map = |name: &str| json!({"metadata": {"name": name}, "data": {"a": "b"}});
    let created = attacker.send("POST", CONFIG_MAPS, map("first")).await.unwrap();
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.text());

    // every key twice, and paths that repeat a long name
    let watch = attacked.watch_memory();
    let pairs: Vec<String> = (0..24_000).map(|number| format!("\"{number:040}\":\"\"")).collect();
    let pairs = format!("{0},{0}", pairs.join(","));
    let body = format!("{{\"metadata\":{{\"name\":\"twice\"}},\"data\":{{{pairs}}}}}");
    assert!(body.len() > 2 << 20 && body.len() < BODY, "{}", body.len());
    let long = "n".repeat(BODY - body.len() - 1024);
    let nested = format!("{{\"metadata\":{{\"name\":\"long\"}},\"{long}\":{{{pairs}}}}}");
    for body in [body, nested] {
        let began = Instant::now();
        let path = format!("{CONFIG_MAPS}?fieldValidation=Strict");
        let response = attacker.send_text("POST", &path, body).await.unwrap();
        assert_eq!(response.status, StatusCode::BAD_REQUEST);
        assert!(response.body.len() < BODY, "{}", response.body.len());
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }
    // a value of two bytes takes many times as much
    for text in ["[]", "{}", "0"] {
        let list = vec![text; 900_000].join(",");
        let body = format!("{{\"metadata\":{{\"name\":\"many\"}},\"binaryData\":[{list}]}}");
        let response = attacker.send_text("POST", CONFIG_MAPS, body).await.unwrap();
        let is_refused = response.status.is_client_error();
        assert!(is_refused, "{}: {}", response.status, response.text());
    }
    attacked.assert_healthy().await;
    watch.assert_small("large objects").await;

    // events are bounded by their bytes as well as by their number
    let watch = attacked.watch_memory();
    let filler = "x".repeat(1 << 20);
    for number in 0..120 {
        let event = json!({
            "metadata": {"name": format!("e{number}"), "namespace": "default"},
            "involvedObject": {"namespace": "default"}, "message": filler,
        });
        let created = attacker.send("POST", EVENTS, event).await.unwrap();
        assert_eq!(created.status, StatusCode::CREATED, "{}", created.text());
    }
    attacked.assert_healthy().await;
    watch.assert_small("120 MB of events").await;
    attacked.end().await;
    bed.close().unwrap();
}

/// Several requests at once, each with an object that takes long to read.
#[tokio::test]
async fn concurrent_large_objects_are_read_one_at_a_time() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let attacked = Attacked::start(&bed, Some("edit")).await;
    let attacker = attacked.attacker().await;
    let pairs: Vec<String> = (0..45_000).map(|number| format!("\"{number:015}\":\"\"")).collect();
    let data = pairs.join(",");
    let watch = attacked.watch_memory();
    let sending = (0..24).map(|number| {
        let body = format!("{{\"metadata\":{{\"name\":\"m{number}\"}},\"data\":{{{data}}}}}");
        attacker.send_text("POST", CONFIG_MAPS, body)
    });
    let responses = futures::future::join_all(sending).await;
    let codes: Vec<u16> =
        responses.into_iter().map(|response| response.unwrap().status.as_u16()).collect();
    assert!(codes.iter().all(|code| [201, 413, 422, 429].contains(code)), "{codes:?}");
    attacked.assert_healthy().await;
    watch.assert_small("large objects at the same time").await;
    attacked.end().await;
    bed.close().unwrap();
}
