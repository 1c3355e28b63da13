//! What wakes a pod's worker, what it then counts, and in which order reports are sent.

use http::Method;
use podwright_fake_runtime::{ExecReply, Fault, Rpc, Rule};
use podwright_testkit::sim::api::{ApiFault, ApiRule, Verb};
use podwright_testkit::sim::test_pod::{APP, APP_2, test_pod};
use podwright_testkit::sim::{self, Options, Sim, record};
use serde_json::json;

use super::server::{request_page, server};
use super::{assert_invariants, s};

/// A worker that rests in a back-off is woken by the recovery itself: the wake-up must not hide
/// the recovery from the decision.
#[test]
fn failed_start_is_repeated_as_soon_as_the_runtime_is_back() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Disconnect).first(1));
        sim.create(&test_pod("web").container("app", APP)).await;
        let tried = |times: u64| move |sim: &Sim| sim.fake.count(Rpc::RunPodSandbox) == times;
        sim.until("its sandbox failed", s(10), tried(1)).await;
        sim.fake.go_down();
        sim.pass(s(4)).await;
        sim.fake.come_up();
        // The back-off is at least ten seconds.
        sim.until("it is tried again", s(4), tried(2)).await;
        sim.until_ready("web").await;
        assert_invariants(&sim);
    });
}

async fn metric(sim: &Sim, series: &str) -> Option<String> {
    let (_, page) = request_page(&server(sim), Method::GET, "/metrics").await;
    let line = page.lines().find(|line| line.starts_with(series))?;
    line.rsplit_once(' ').map(|(_, value)| value.to_owned())
}

#[test]
fn first_sync_of_a_pod_is_measured_once_also_after_an_agent_restart() {
    const STARTS: &str = "kubelet_pod_worker_start_duration_seconds_count";
    const UPDATES: &str = "kubelet_pod_worker_duration_seconds_count{operation_type=\"update\"}";
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&test_pod("web").container("app", APP)).await;
        sim.until_ready("web").await;
        assert_eq!(metric(&sim, STARTS).await.as_deref(), Some("1"));
        sim.restart().await;
        sim.pass(s(5)).await;
        assert_eq!(metric(&sim, STARTS).await.as_deref(), Some("1"), "nothing was to be done");
        assert!(matches!(metric(&sim, UPDATES).await.as_deref(), None | Some("0")));
        assert!(sim.set_image("web", "app", APP_2).await);
        sim.until("it runs the new image", s(60), |sim| sim.fake.count(Rpc::StartContainer) == 2)
            .await;
        sim.pass(s(5)).await;
        let updates = metric(&sim, UPDATES).await;
        assert!(updates.as_deref().is_some_and(|count| count != "0"), "{updates:?}");
        assert_eq!(metric(&sim, STARTS).await.as_deref(), Some("1"));
    });
}

/// Requests in flight at the same time, at most.
const CONCURRENT: usize = 16;

#[test]
fn change_of_ready_is_sent_before_other_reports_that_wait() {
    sim::run(async {
        let sim = Sim::started(Options { cpus: 64, ..Options::default() }).await;
        sim.fake.handle_exec(|_| Some(ExecReply::exits(1)));
        let others: Vec<String> = (0..2 * CONCURRENT).map(|n| format!("other-{n}")).collect();
        let never_ready = json!({ "exec": { "command": ["fails"] }, "periodSeconds": 3600 });
        for name in &others {
            let pod = test_pod(name).container("app", APP).container("unready", APP);
            let pod = pod
                .edit(|pod| pod["spec"]["containers"][1]["readinessProbe"] = never_ready.clone());
            sim.create(&pod).await;
        }
        sim.create(&test_pod("web").restart("Never").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(60)).await;
        sim.api.clear_calls();
        sim.api.fail(ApiRule::on(Verb::Patch, "pods/status", ApiFault::Delay(s(5))));
        for name in &others {
            assert!(sim.fake.kill_container(name, "app", 1), "{name} runs");
        }
        sim.pass(s(3)).await;
        assert!(sim.fake.kill_container("web", "app", 1));
        sim.pass(s(60)).await;
        let calls = sim.api.calls();
        let patches = calls.iter().filter(|call| call.resource == "pods/status");
        let names: Vec<&str> = patches.map(|call| call.name.as_str()).collect();
        assert!(names.len() > 2 * CONCURRENT, "{names:?}");
        let place = names.iter().position(|name| *name == "web").unwrap();
        assert_eq!(place, CONCURRENT, "the first after those in flight: {names:?}");
        assert!(!record::is_ready(&sim.record.pod("web").unwrap()));
    });
}
