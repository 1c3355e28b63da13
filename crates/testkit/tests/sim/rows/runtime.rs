//! What the runtime does, and what an agent that restarts makes of it.

use podwright_cri::fake::{Code, Condition, EventFault, Fault, Rpc, Rule};
use podwright_testkit::sim::wish::{APP, FAILS, JOB, STUBBORN, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;

use crate::{clean, lawful, phases, s};

#[test]
fn row_19_after_a_restart_a_pod_that_was_done_is_not_touched() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let uid = sim.create(&wish("job").restart("Never").container("app", JOB)).await;
        let done = |sim: &Sim| phases(&sim.record.of(&uid)).last() == Some(&"Succeeded");
        sim.until("the job succeeds", s(60), done).await;
        sim.pass(s(10)).await;
        let (shown, made) = (sim.record.of(&uid).len(), sim.fake.count(Rpc::RunPodSandbox));
        sim.restart().await;
        sim.pass(s(60)).await;
        assert_eq!((sim.record.of(&uid).len(), sim.fake.count(Rpc::RunPodSandbox)), (shown, made));
        sim.delete("job", None).await;
        sim.until_gone("job").await;
        // Its directory goes after it, in the next round of housekeeping.
        sim.pass(s(5)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn row_20_after_a_restart_what_runs_goes_on_and_stays_ready() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        let probed = wish("probed").container("app", APP).edit(|pod| {
            pod["spec"]["containers"][0]["readinessProbe"] =
                json!({ "exec": { "command": ["true"] } });
        });
        let plain = sim.create(&wish("web").sidecar("side", APP).container("app", APP)).await;
        sim.until_ready("web").await;
        let probed = sim.create(&probed).await;
        sim.until_ready("probed").await;
        sim.pass(s(30)).await;
        for _ in 0..3 {
            let asked = sim.fake.count(Rpc::ExecSync);
            sim.restart().await;
            sim.pass(s(20)).await;
            assert!(sim.fake.count(Rpc::ExecSync) > asked, "the new agent probes");
        }
        for uid in [plain, probed] {
            assert!(!sim.record.of(&uid).is_empty(), "nothing was seen of {uid:?}");
            assert_eq!(laws::disturbances(&sim, &uid), [""; 0]);
        }
        assert_eq!(sim.fake.count(Rpc::StartContainer), 3);
        lawful(&sim);
    });
}

#[test]
fn nothing_is_admitted_twice() {
    sim::run(async {
        let mut sim = Sim::started(Options { max_pods: 2, ..Options::default() }).await;
        let one = sim.create(&wish("one").container("app", APP)).await;
        let two = sim.create(&wish("two").container("app", APP)).await;
        sim.until_ready("one").await;
        sim.until_ready("two").await;
        // Whoever is listed first would have no room beside the others.
        sim.options.max_pods = 1;
        sim.restart().await;
        sim.pass(s(30)).await;
        for uid in [one, two] {
            assert_eq!(laws::disturbances(&sim, &uid), [""; 0]);
        }
        let three = sim.create(&wish("three").container("app", APP)).await;
        sim.pass(s(5)).await;
        assert_eq!(phases(&sim.record.of(&three)).last(), Some(&"Failed"), "no room for a new one");
    });
}

#[test]
fn row_21_runtime_down_for_40_s_pauses_and_kills_nothing() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.fake.go_down();
        sim.create(&wish("late").container("app", APP)).await;
        sim.pass(s(40)).await;
        let state = sim.node().tools.node.borrow().clone();
        assert_eq!(state.answering, Err("container runtime is down".to_owned()));
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.fake.come_up();
        let began = sim.age();
        sim.until_ready("late").await;
        assert!(sim.age() - began < s(4), "it goes on as soon as it can: {}", sim.story());
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
        assert_eq!(laws::disturbances(&sim, &uid), [""; 0]);
        lawful(&sim);
    });
}

#[test]
fn row_22_without_a_network_only_pods_of_the_hosts_network_start() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.set_network(Condition::not_ready("NetworkPluginNotReady", "no plugin"));
        sim.pass(s(10)).await;
        sim.create(&wish("own").container("app", APP)).await;
        sim.create(&wish("hosts").host_network().container("app", APP)).await;
        sim.until_ready("hosts").await;
        sim.pass(s(20)).await;
        assert!(sim.fake.snapshot().running("own").is_empty());
        assert!(sim.events("own").await.contains(&"NetworkNotReady".to_owned()));
        sim.fake.set_network(Condition::Ready);
        let began = sim.age();
        sim.until_ready("own").await;
        assert!(sim.age() - began <= s(2));
    });
}

#[test]
fn row_31_a_container_removed_behind_our_back_ended_with_137_and_starts_again() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(1)).await;
        assert!(sim.fake.forget_container("web", "app"));
        let again = |sim: &Sim| {
            let pod = sim.record.pod("web").unwrap();
            let status = record::containers(&pod)[0].clone();
            let last = status.last_state.and_then(|state| state.terminated);
            last.is_some_and(|end| end.exit_code == 137) && status.restart_count == 1
        };
        sim.until("it says so", s(60), again).await;
        sim.until_ready("web").await;
        lawful(&sim);
    });
}

#[test]
fn row_32_a_pod_the_api_calls_done_is_stopped_and_stays_done() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let uid = sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        assert!(sim.patch_status("web", json!({ "status": { "phase": "Succeeded" } })).await);
        sim.until("it stops", s(30), |sim| sim.fake.snapshot().running("web").is_empty()).await;
        sim.pass(s(30)).await;
        assert_eq!(phases(&sim.record.of(&uid)).last(), Some(&"Succeeded"));
        lawful(&sim);
    });
}

#[test]
fn row_41_when_no_event_arrives_the_list_finds_what_happened() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.pass(s(5)).await;
        sim.fake.disturb_events(Rule::on_events(EventFault::Drop));
        sim.fake.kill_container("web", "app", 1);
        let again =
            |sim: &Sim| record::containers(&sim.record.pod("web").unwrap())[0].restart_count == 1;
        sim.until("it runs again", s(15), again).await;
    });
}

#[test]
fn row_42_a_look_that_failed_is_made_again() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        let fault = Fault::Error(Code::Unknown, "not now".into());
        sim.fake.fail(Rule::on(Rpc::ContainerStatus, fault).first(1));
        sim.fake.kill_container("web", "app", 1);
        let again =
            |sim: &Sim| record::containers(&sim.record.pod("web").unwrap())[0].restart_count == 1;
        sim.until("it runs again", s(5), again).await;
    });
}

#[test]
fn row_43_what_started_and_died_between_two_looks_is_told_with_its_code() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.disturb_events(Rule::on_events(EventFault::Drop));
        sim.create(&wish("job").restart("Never").container("app", FAILS)).await;
        let failed = |sim: &Sim| {
            let Some(pod) = sim.record.pod("job") else { return false };
            record::containers(&pod).first().is_some_and(|c| {
                let end = c.state.as_ref().and_then(|state| state.terminated.as_ref());
                end.is_some_and(|end| end.exit_code == 1)
            })
        };
        sim.until("its exit is told", s(30), failed).await;
    });
}

#[test]
fn a_hung_pod_keeps_no_other_waiting() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.fake.fail(Rule::on(Rpc::RunPodSandbox, Fault::Hang).pod("hung"));
        sim.fake.fail(Rule::on(Rpc::StopContainer, Fault::Hang).pod("stuck"));
        sim.create(&wish("stuck").container("app", STUBBORN)).await;
        sim.until_ready("stuck").await;
        sim.delete("stuck", None).await;
        sim.create(&wish("hung").container("app", APP)).await;
        sim.pass(s(1)).await;
        for n in 0..5 {
            let name = format!("fine-{n}");
            let began = sim.age();
            sim.create(&wish(&name).container("app", APP)).await;
            sim.until_ready(&name).await;
            assert!(sim.age() - began < s(1), "{name}");
        }
    });
}
