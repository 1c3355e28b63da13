//! Each call and each request goes wrong in each way there is, once and again, in a pod's life.

use std::time::Duration;

use podwright_cri::fake::{Code, Fault, Rpc, Rule};
use podwright_testkit::sim::api::{ApiFault, ApiRule};
use podwright_testkit::sim::chaos::{REQUESTS, RPCS};
use podwright_testkit::sim::wish::{APP, INIT, NODE, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;

use crate::{clean, lawful, s};

/// An API pod and a static pod live and end beside a pod that nobody touches.
async fn lives(told: &str, spoil: impl Fn(&Sim)) {
    let mut sim = Sim::new(Options::default()).await;
    sim.start().await;
    let neighbour = sim.create(&wish("neighbour").container("app", APP)).await;
    sim.until_ready("neighbour").await;
    sim.crash().await;
    spoil(&sim);
    sim.start().await;
    sim.create(&wish("web").init("first", INIT).container("app", APP)).await;
    sim.write_manifest("static.json", &wish("static").container("app", APP).manifest());
    let mirror = format!("static-{NODE}");
    let ready =
        |sim: &Sim, name: &str| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
    let both = |sim: &Sim| ready(sim, "web") && ready(sim, &mirror);
    sim.until(&format!("{told}: both pods are ready"), s(300), both).await;
    sim.delete("web", None).await;
    sim.remove_manifest("static.json");
    let gone = |sim: &Sim| sim.record.pods().len() == 1;
    sim.until(&format!("{told}: both pods are gone"), s(300), gone).await;
    let nothing = |sim: &Sim| laws::leftovers(sim, std::slice::from_ref(&neighbour)).is_empty();
    sim.until(&format!("{told}: nothing is left"), s(300), nothing).await;
    clean(&sim, std::slice::from_ref(&neighbour));
    lawful(&sim);
    let disturbed = laws::disturbances(&sim, &neighbour);
    assert!(disturbed.is_empty(), "{told}: {disturbed:?}\n{}", sim.story());
}

fn runtime_faults() -> Vec<Fault> {
    let text = || "a fault of the simulation".to_owned();
    vec![
        Fault::Error(Code::Unknown, text()),
        Fault::DoneButError(Code::Unavailable, text()),
        Fault::Delay(Duration::from_secs(4)),
        Fault::Hang,
        Fault::Late(Duration::from_secs(25)),
        Fault::Disconnect,
        Fault::DoneButDisconnect,
    ]
}

fn every_fault_of(rpcs: &[Rpc]) {
    for rpc in rpcs {
        for fault in runtime_faults() {
            let told = format!("{rpc} {fault:?}");
            sim::run(lives(&told, |sim| sim.fake.fail(Rule::on(*rpc, fault.clone()).first(2))));
        }
    }
}

#[test]
fn every_runtime_call_may_fail_in_every_way_1() {
    every_fault_of(&RPCS[..8]);
}

#[test]
fn every_runtime_call_may_fail_in_every_way_2() {
    every_fault_of(&RPCS[8..]);
}

#[test]
fn every_api_request_may_fail_in_every_way() {
    for (verb, resource) in REQUESTS {
        for fault in ApiFault::each() {
            let told = format!("{verb} {resource} {fault:?}");
            let rule = ApiRule::on(verb, resource, fault).first(2);
            sim::run(lives(&told, |sim| sim.api.fail(rule.clone())));
        }
    }
}

#[test]
fn a_cgroup_that_cannot_be_looked_at_costs_no_container() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        sim.create(&wish("web").container("app", APP)).await;
        sim.until_ready("web").await;
        sim.ground.hide_cgroups();
        // Something that makes its worker look.
        assert!(sim.patch("web", json!({ "metadata": { "labels": { "a": "b" } } })).await);
        sim.pass(s(120)).await;
        assert_eq!(sim.fake.count(Rpc::StopContainer), 0);
        sim.ground.show_cgroups();
        sim.pass(s(10)).await;
        assert_eq!(sim.fake.snapshot().running("web"), ["app"]);
        sim.delete("web", None).await;
        sim.until_gone("web").await;
        sim.pass(s(10)).await;
        clean(&sim, &[]);
    });
}

#[test]
fn a_pod_is_heard_of_while_the_runtime_does_not_answer_housekeeping() {
    sim::run(async {
        let mut sim = Sim::started(Options::default()).await;
        sim.create(&wish("left").container("app", APP)).await;
        sim.until_ready("left").await;
        sim.crash().await;
        sim.delete("left", Some(0)).await;
        sim.api.go_down();
        sim.start().await;
        sim.pass(s(5)).await;
        // The orphan is known; whoever lists from now on waits.
        sim.fake.fail(Rule::on(Rpc::ListPodSandbox, Fault::Hang));
        sim.api.come_up();
        sim.until("all sources are heard", s(60), |sim| sim.node().directory.sources_ready()).await;
        sim.pass(s(4)).await;
        let heard = |name: &str| {
            sim.node().directory.pods().iter().any(|pod| pod.name.name.as_ref() == name)
        };
        sim.create(&wish("new").container("app", APP)).await;
        sim.until("the new pod is known", s(10), |_| heard("new")).await;
        sim.fake.heal();
        sim.until_ready("new").await;
        let stopped = |sim: &Sim| sim.fake.snapshot().running("left").is_empty();
        sim.until("the orphan is ended", s(300), stopped).await;
    });
}
