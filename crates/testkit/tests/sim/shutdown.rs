//! Graceful shutdown of the node: what ends when, and what the API shows.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1;
use kube::Api;
use podwright_fake_runtime::Rpc;
use podwright_testkit::sim::random::SeededRandom;
use podwright_testkit::sim::test_pod::{APP, NODE, STUBBORN, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;

use crate::{assert_invariants, phases, s};

const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

fn options(whole: u64, critical: u64) -> Options {
    Options { shutdown: Some((whole, critical)), chores: true, ..Options::default() }
}

fn critical(name: &str, image: &str, grace: u64) -> TestPod {
    let pod = test_pod(name).grace(grace).container("app", image);
    pod.edit(|pod| pod["spec"]["priorityClassName"] = json!("system-cluster-critical"))
}

fn normal(name: &str, image: &str, grace: u64) -> TestPod {
    test_pod(name).grace(grace).container("app", image)
}

/// When the pod's container stopped, after `since`.
fn ended(sim: &Sim, pod: &str, since: Duration) -> Option<Duration> {
    let recorded = sim.record.recorded_pods();
    let end = recorded.iter().find(|r| r.name() == pod && record::phase(&r.pod).is_terminal())?;
    end.at.checked_sub(since)
}

async fn ready(sim: &Sim) -> (String, String) {
    let nodes: Api<v1::Node> = Api::all(sim.users_client());
    let status = nodes.get(NODE).await.unwrap().status.unwrap();
    let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    (ready.status, ready.message.unwrap())
}

async fn metrics(sim: &Sim) -> BTreeMap<String, f64> {
    let text = std::fs::read(sim.environment.root().join("graceful_node_shutdown_state"));
    let record: serde_json::Value = serde_json::from_slice(&text.unwrap()).unwrap();
    let of = |key: &str| {
        let time: jiff::Timestamp = record[key].as_str().unwrap().parse().unwrap();
        (key.to_owned(), time.as_second() as f64)
    };
    [of("startTime"), of("endTime")].into()
}

// The reference, rows 34 and 35.
#[test]
fn critical_pods_end_after_the_others_and_none_gets_more_than_its_group() {
    sim::run(async {
        let sim = Sim::started(options(20, 10)).await;
        for pod in [
            normal("long", STUBBORN, 120),
            normal("short", STUBBORN, 5),
            critical("long-critical", STUBBORN, 120),
            critical("short-critical", STUBBORN, 5),
        ] {
            sim.create(&pod).await;
            sim.until_ready(pod.name()).await;
        }
        let since = sim.age();
        sim.announce_shutdown(true);
        sim.pass(s(3)).await;
        let not_ready = ("False".to_owned(), "node is shutting down".to_owned());
        assert_eq!(ready(&sim).await, not_ready);
        sim.pass(s(40)).await;
        let seconds = |pod: &str| ended(&sim, pod, since).map(|at| at.as_secs());
        let found = ["short", "long", "short-critical", "long-critical"].map(seconds);
        assert!(matches!(found[0], Some(5..=6)), "{found:?}\n{}", sim.history());
        assert!(matches!(found[1], Some(10..=11)), "{found:?}\n{}", sim.history());
        assert!(matches!(found[2], Some(15..=17)), "{found:?}\n{}", sim.history());
        assert!(matches!(found[3], Some(20..=22)), "{found:?}\n{}", sim.history());
        for name in ["long", "short-critical"] {
            let pod = sim.record.pod(name).unwrap();
            let status = pod.status.as_ref().unwrap();
            assert_eq!(status.phase.as_deref(), Some("Failed"));
            assert_eq!(status.reason.as_deref(), Some("Terminated"));
            assert_eq!(status.message.as_deref(), Some(MESSAGE));
            assert_eq!(record::condition(&pod, "DisruptionTarget"), Some(true));
            let shown = sim.record.recorded_pods();
            let bad = shown
                .iter()
                .any(|r| record::phase(&r.pod).is_terminal() && record::is_ready(&r.pod));
            assert!(!bad, "Failed and Ready");
        }
        assert_invariants(&sim);
    });
}

// The reference, row 36.
#[test]
fn pods_that_arrive_during_a_shutdown_are_refused() {
    sim::run(async {
        let sim = Sim::started(options(20, 10)).await;
        sim.create(&normal("old", STUBBORN, 10)).await;
        sim.until_ready("old").await;
        sim.announce_shutdown(true);
        sim.pass(s(2)).await;
        sim.create(&critical("new", APP, 10)).await;
        sim.write_manifest(
            "static.yaml",
            &format!("{{apiVersion: v1, kind: Pod, metadata: {{name: static}}, spec: {{containers: [{{name: app, image: '{APP}'}}]}}}}"),
        );
        sim.pass(s(40)).await;
        let pod = sim.record.pod("new").unwrap();
        let status = pod.status.clone().unwrap_or_default();
        assert_eq!(status.reason.as_deref(), Some("NodeShutdown"), "{status:?}");
        let want = "Pod was rejected: Pod was rejected as the node is shutting down.";
        assert_eq!(status.message.as_deref(), Some(want));
        let name = format!("static-{NODE}");
        for name in ["new", name.as_str()] {
            assert_eq!(sim.fake.snapshot().running(name), [""; 0], "{name}");
        }
        assert_invariants(&sim);
    });
}

// The reference, row 40.
#[test]
fn node_is_ready_again_after_a_cancelled_shutdown_and_ended_pods_stay_failed() {
    sim::run(async {
        let sim = Sim::started(options(20, 10)).await;
        let uid = sim.create(&normal("web", APP, 5)).await;
        sim.until_ready("web").await;
        sim.announce_shutdown(true);
        sim.pass(s(2)).await;
        sim.announce_shutdown(false);
        sim.pass(s(15)).await;
        assert_eq!(ready(&sim).await.0, "True");
        assert_eq!(phases(&sim.record.of(&uid)).last(), Some(&"Failed"));
        sim.create(&normal("next", APP, 5)).await;
        sim.until_ready("next").await;
        // The next shutdown ends what runs by then.
        sim.announce_shutdown(true);
        sim.pass(s(30)).await;
        assert_eq!(record::phase(&sim.record.pod("next").unwrap()).as_str(), "Failed");
        assert_invariants(&sim);
    });
}

// The reference, row 41.
#[test]
fn record_of_a_shutdown_survives_the_agent() {
    sim::run(async {
        let mut sim = Sim::started(options(20, 10)).await;
        sim.create(&normal("web", STUBBORN, 5)).await;
        sim.until_ready("web").await;
        sim.announce_shutdown(true);
        sim.pass(s(2)).await;
        let running = metrics(&sim).await;
        assert!(running["startTime"] > 1e9 && running["endTime"] < 0.0, "{running:?}");
        sim.pass(s(30)).await;
        let over = metrics(&sim).await;
        assert!((running["startTime"] - over["startTime"]).abs() < 0.5, "{over:?}");
        assert!(over["endTime"] >= over["startTime"] + 4.0, "{over:?}");
        sim.reboot().await;
        sim.pass(s(10)).await;
        let kept = metrics(&sim).await;
        assert!((kept["endTime"] - over["endTime"]).abs() < 0.5);
        assert_invariants(&sim);
    });
}

#[test]
fn agent_that_starts_during_a_shutdown_ends_the_running_pods() {
    sim::run(async {
        let mut sim = Sim::started(options(20, 10)).await;
        sim.create(&normal("web", STUBBORN, 8)).await;
        sim.until_ready("web").await;
        sim.announce_shutdown(true);
        sim.pass(s(1)).await;
        sim.restart().await;
        sim.pass(s(30)).await;
        let pod = sim.record.pod("web").unwrap();
        assert_eq!(record::phase(&pod).as_str(), "Failed", "{}", sim.history());
        assert_eq!(sim.fake.snapshot().running("web"), [""; 0]);
        assert_invariants(&sim);
    });
}

#[test]
fn node_without_grace_periods_ends_no_pod() {
    sim::run(async {
        let sim = Sim::started(Options { chores: true, ..Options::default() }).await;
        let uid = sim.create(&normal("web", APP, 5)).await;
        sim.until_ready("web").await;
        sim.announce_shutdown(true);
        sim.pass(s(60)).await;
        assert_eq!(invariants::disturbances(&sim, &uid), [""; 0]);
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
    });
}

/// Law: of two pods with different groups, the one of higher priority is stopped only after the
/// other has ended or the time of its group is over.
#[test]
fn groups_end_one_after_the_other_whatever_the_pods_do() {
    for seed in 0..12 {
        sim::run(async {
            let mut random = SeededRandom::new(seed, 24);
            let (whole, critical_part) = (random.below(40) + 2, random.below(20));
            let critical_part = critical_part.min(whole);
            let sim = Sim::started(Options { seed, ..options(whole, critical_part) }).await;
            let mut pods = Vec::new();
            for number in 0..6 {
                let image = if random.below(2) == 0 { APP } else { STUBBORN };
                let (name, grace) = (format!("p{number}"), random.below(40));
                let is_critical = random.below(3) == 0;
                let pod = match is_critical {
                    true => critical(&name, image, grace),
                    false => normal(&name, image, grace),
                };
                pods.push((name, sim.create(&pod).await, is_critical));
            }
            sim.pass(s(random.below(20))).await;
            let since = sim.age();
            sim.announce_shutdown(true);
            sim.pass(s(120)).await;
            let stop = |uid: &str| {
                let calls = sim.fake.calls();
                let mut stops = calls.iter().filter(|call| {
                    let pod = call.about.pod.as_ref();
                    call.rpc == Rpc::StopContainer && pod.is_some_and(|pod| pod.uid.as_str() == uid)
                });
                stops.next().map(|call| call.at)
            };
            let end_of_normal = since + s(whole - critical_part);
            let last_normal = pods.iter().filter(|(_, _, critical)| !critical);
            let last_normal =
                last_normal.filter_map(|(name, _, _)| ended(&sim, name, Duration::ZERO)).max();
            for (name, uid, _) in pods.iter().filter(|(_, _, critical)| *critical) {
                let Some(at) = stop(uid) else { continue };
                let others_ended = last_normal.is_none_or(|last| last <= at + s(1));
                assert!(
                    others_ended || at + s(1) >= end_of_normal,
                    "seed {seed}: {name} stopped at {at:?}\n{}",
                    sim.history()
                );
            }
            let running = pods.iter().map(|(name, _, _)| sim.fake.snapshot().running(name).len());
            assert_eq!(running.sum::<usize>(), 0, "seed {seed}\n{}", sim.history());
            assert_invariants(&sim);
        });
    }
}
