//! Eviction for the lack of memory. Pods of the simulation have no statistics, so their names decide.

use std::time::Duration;

use podwright_testkit::sim::test_pod::{APP, STUBBORN, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::json;

use crate::{assert_invariants, s};

/// Of 8 GiB.
const ENOUGH: u64 = 4096;
const TOO_MUCH: u64 = 8000;

fn pod(name: &str, image: &str) -> TestPod {
    test_pod(name).container("app", image)
}

fn critical(name: &str) -> TestPod {
    pod(name, APP).edit(|pod| pod["spec"]["priorityClassName"] = json!("system-cluster-critical"))
}

async fn node(pods: &[TestPod]) -> Sim {
    let options = Options { eviction: &[("memory.available", "1Gi")], ..Options::default() };
    let mut sim = Sim::new(options).await;
    sim.environment.use_memory(ENOUGH);
    sim.start().await;
    for pod in pods {
        sim.create(pod).await;
        sim.until_ready(pod.name()).await;
    }
    sim
}

fn is_evicted(sim: &Sim, name: &str) -> bool {
    let status = sim.record.pod(name).and_then(|pod| pod.status.clone());
    status.is_some_and(|status| status.reason.as_deref() == Some("Evicted"))
}

#[test]
fn one_pod_at_a_time_is_evicted_until_there_is_enough() {
    sim::run(async {
        let sim = node(&["a", "b", "c", "d"].map(|name| pod(name, STUBBORN))).await;
        sim.environment.use_memory(TOO_MUCH);
        sim.until("the first eviction", s(60), |sim| is_evicted(sim, "a")).await;
        assert!(!["b", "c", "d"].iter().any(|name| is_evicted(&sim, name)));
        sim.until("the second eviction", s(60), |sim| is_evicted(sim, "b")).await;
        assert!(!["c", "d"].iter().any(|name| is_evicted(&sim, name)));
        // The third is being stopped already.
        sim.environment.use_memory(ENOUGH);
        sim.pass(s(120)).await;
        assert!(!is_evicted(&sim, "d"), "{}", sim.history());
        let first = sim.record.pod("a").unwrap();
        assert_eq!(record::phase(&first).as_str(), "Failed");
        assert_eq!(record::condition(&first, "DisruptionTarget"), Some(true));
        let message = first.status.clone().unwrap().message.unwrap();
        let want =
            "The node was low on resource: memory. Threshold quantity: 1Gi, available: 192Mi. ";
        assert_eq!(message, want);
        let events = sim.events("a").await;
        assert!(events.iter().any(|event| event.contains("Evicted")), "{events:?}");
        assert_invariants(&sim);
    });
}

#[test]
fn new_pods_are_refused_under_pressure_and_admitted_after_it() {
    sim::run(async {
        let sim = node(&[critical("critical")]).await;
        sim.environment.use_memory(TOO_MUCH);
        sim.pass(s(11)).await;
        sim.create(&pod("refused", APP)).await;
        sim.until("the refusal", s(10), |sim| is_evicted(sim, "refused")).await;
        let refused = sim.record.pod("refused").and_then(|pod| pod.status.clone()).unwrap();
        let want = "Pod was rejected: The node had condition: [MemoryPressure]. ";
        assert_eq!(refused.message.as_deref(), Some(want));
        assert!(!is_evicted(&sim, "critical"), "it is exempt");
        // Reported for a minute after the pressure.
        sim.environment.use_memory(ENOUGH);
        sim.pass(s(45)).await;
        sim.create(&pod("early", APP)).await;
        sim.until("the second refusal", s(10), |sim| is_evicted(sim, "early")).await;
        sim.pass(s(30)).await;
        sim.create(&pod("late", APP)).await;
        sim.until_ready("late").await;
        assert_invariants(&sim);
    });
}

#[test]
fn victim_that_ignores_its_eviction_is_the_only_one_until_it_is_gone_or_half_a_minute_passed() {
    sim::run(async {
        let sim = node(&[pod("first", APP), pod("next", APP)]).await;
        let hang = podwright_fake_runtime::Fault::Hang;
        let rule =
            podwright_fake_runtime::Rule::on(podwright_fake_runtime::Rpc::StopContainer, hang);
        sim.fake.fail(rule.first(3));
        sim.environment.use_memory(TOO_MUCH);
        sim.pass(s(30)).await;
        assert!(!is_evicted(&sim, "next"), "{}", sim.history());
        sim.until("the next eviction", Duration::from_secs(120), |sim| is_evicted(sim, "next"))
            .await;
        assert_invariants(&sim);
    });
}
