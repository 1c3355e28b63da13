//! The kubelet server of a simulated node.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use podwright_node::server::{Server, ServerSettings};
use podwright_node::telemetry::stats::Stats;
use podwright_testkit::sim::random::SeededRandom;
use podwright_testkit::sim::test_pod::{APP, test_pod};
use podwright_testkit::sim::{self, Options, Sim};
use tokio_util::sync::CancellationToken;

use crate::{assert_invariants, s};

const SYNC_TIMEOUT: u64 = 300;

pub(crate) fn server(sim: &Sim) -> Arc<Server> {
    let settings = ServerSettings {
        split_log_streams: false,
        debugging: true,
        stream_idle: None,
        configuration: Bytes::from_static(b"{}"),
        sync_timeout: s(SYNC_TIMEOUT),
        version: "v1",
        commit: "",
    };
    let stats = Stats::new(sim.node(), Default::default());
    Server::new(sim.node(), stats, settings, CancellationToken::new())
}

/// A status, and the part of the body that arrives within a second.
pub(crate) async fn request_page(server: &Server, method: Method, path: &str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).body(()).unwrap();
    let answer = server.handle(request).await;
    let status = answer.status().as_u16();
    let body = tokio::time::timeout(s(1), answer.into_body().collect()).await;
    let body = body.map_or(Bytes::new(), |body| body.unwrap().to_bytes());
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[test]
fn hung_sync_loop_is_unhealthy_after_five_minutes() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let server = server(&sim);
        sim.pass(s(2 * SYNC_TIMEOUT)).await;
        let get = async |path: &str| request_page(&server, Method::GET, path).await;
        assert_eq!(get("/healthz/syncloop").await, (200, "ok".into()));
        // The loop no longer runs; the server still responds.
        sim.crash().await;
        sim.pass(s(SYNC_TIMEOUT - 5)).await;
        assert_eq!(get("/healthz/syncloop").await.0, 200);
        sim.pass(s(10)).await;
        let (status, text) = get("/healthz/syncloop").await;
        assert_eq!(status, 500);
        assert!(text.contains("sync Loop took longer than expected"), "{text}");
        let (status, text) = get("/healthz").await;
        assert_eq!(status, 500);
        assert!(text.contains("[-]syncloop failed") && text.contains("[+]ping ok"), "{text}");
        assert_eq!(get("/healthz/ping").await, (200, "ok".into()));
        assert_eq!(get("/healthz?exclude=syncloop").await.0, 200);
    });
}

/// Requests that clients make, could make, and should not make.
const FIRST: [&str; 16] = [
    "pods",
    "runningpods",
    "healthz",
    "configz",
    "metrics",
    "stats",
    "containerLogs",
    "exec",
    "attach",
    "run",
    "portForward",
    "logs",
    "debug",
    "checkpoint",
    "..",
    "",
];
const PARTS: [&str; 14] = [
    "default",
    "web",
    "app",
    "none",
    "cadvisor",
    "resource",
    "probes",
    "summary",
    "syncloop",
    "%2e%2e",
    "..%2f..%2fetc",
    "%00",
    "%ff",
    "a%20b",
];
const QUERIES: [&str; 14] = [
    "",
    "?",
    "?follow=true",
    "?follow=true&tailLines=1",
    "?tailLines=-1",
    "?limitBytes=x",
    "?sinceTime=never",
    "?command=id&output=1",
    "?command=%ff&input=1",
    "?cmd=ls",
    "?port=8080",
    "?only_cpu_and_memory=true",
    "?&&=&%",
    "?container=app&stdout=1",
];

#[test]
fn any_request_gets_a_fitting_status() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let server = server(&sim);
        let mut random = SeededRandom::new(7, 1);
        let methods = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::HEAD];
        for _ in 0..3000 {
            let method = random.of(&methods).clone();
            let mut path = format!("/{}", random.of(&FIRST));
            for _ in 0..random.below(5) {
                path = format!("{path}/{}", random.of(&PARTS));
            }
            let query = *random.of(&QUERIES);
            path.push_str(query);
            let (status, text) = request_page(&server, method.clone(), &path).await;
            // 500 where the runtime is needed: it has no streams here.
            let streams = ["/exec", "/attach", "/run", "/portForward"];
            let streams = streams.iter().any(|page| path.starts_with(page));
            let known = [200, 400, 404, 405, 422].contains(&status) || (status == 500 && streams);
            assert!(known, "{method} {path}: {status} {text}");
            let tricks = ["..", "%2e", "%00", "%ff"];
            let (page, _) = path.split_once('?').unwrap_or((&path, ""));
            if tricks.iter().any(|trick| page.contains(trick)) {
                assert!([404, 405].contains(&status), "{method} {path}: {status} {text}");
            }
        }
        assert_invariants(&sim);
    });
}

#[test]
fn containers_are_measured_under_the_image_name_with_its_tag() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let server = server(&sim);
        let (_, page) = request_page(&server, Method::GET, "/metrics/cadvisor").await;
        let mut lines = page.lines();
        let found =
            lines.find(|line| line.starts_with("container_start_time_seconds{container=\"app\""));
        let image = format!("image=\"{APP}\"");
        assert!(found.is_some_and(|line| line.contains(&image)), "{found:?}");
    });
}
