//! The agent dies at every single step of a pod's life, and the pod's life goes on.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1;
use podwright_cri::fake::{Fault, Rpc};
use podwright_testkit::sim::tripwire::{Counted, Moment};
use podwright_testkit::sim::wish::{APP, INIT, JOB, NODE, Wish, wish};
use podwright_testkit::sim::{self, Options, Sim, laws, record};
use serde_json::json;

use crate::{clean, lawful, message, mounting, s, write_message};

/// A whole life with a death at step `k`, beside a pod that is only to be left in peace. Returns
/// how many steps were made until then.
async fn life(k: u64, moment: Moment, counted: Counted) -> u64 {
    let mut sim = Sim::started(Options::default()).await;
    sim.make::<v1::ConfigMap>("map", json!({ "data": { "key": "value" } })).await;
    let neighbour = sim.create(&wish("neighbour").container("app", APP)).await;
    sim.until_ready("neighbour").await;
    let wire = sim.trip(k, moment, counted);
    let mut web = web();
    if counted == Counted::Files && mounting() {
        sim.make::<v1::ServiceAccount>("robot", json!({})).await;
        web = web.with_token_of("robot");
    }
    let web = sim.create(&web).await;
    let mirror = format!("static-{NODE}");
    let mut names = vec!["web"];
    // A life for each look at a static pod would be many more, and tell nothing more.
    if counted != Counted::Everything {
        sim.write_manifest("static.json", &wish("static").container("app", APP).manifest());
        names.push(&mirror);
    }
    let ready = |sim: &Sim| {
        let of = |name: &&str| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
        names.iter().all(of)
    };
    carry_on(&mut sim, ready).await;
    // An agent that comes back has the time to change its mind.
    let later = sim.age() + s(6);
    carry_on(&mut sim, |sim| sim.age() >= later).await;
    sim.delete("web", None).await;
    sim.remove_manifest("static.json");
    carry_on(&mut sim, |sim| sim.record.pods().len() == 1).await;
    sim.pass(s(5)).await;
    let steps = wire.steps();
    if !sim.is_running() {
        sim.restart().await;
    }
    sim.pass(s(5)).await;
    let told = format!("died at step {k} ({moment:?})");
    lawful(&sim);
    clean(&sim, std::slice::from_ref(&neighbour));
    let containers = [("web", "first"), ("web", "side"), ("web", "a"), ("web", "b")];
    for (pod, name) in containers.into_iter().chain([(mirror.as_str(), "app")]) {
        let runs = runs(&sim, pod, name);
        assert!(runs <= 1, "{told}: {pod}/{name} ran {runs} times\n{}", sim.story());
    }
    for uid in [&neighbour, &web] {
        let disturbed = laws::disturbances(&sim, uid);
        assert!(disturbed.is_empty(), "{told}: {disturbed:?}\n{}", sim.story());
    }
    steps
}

/// A pod with all kinds of containers and two kinds of volumes.
fn web() -> Wish {
    let web = wish("web").init("first", INIT).sidecar("side", APP);
    web.container("a", APP).container("b", APP).edit(|pod| {
        let map = json!({ "name": "map", "configMap": { "name": "map" } });
        pod["spec"]["volumes"] = json!([map, { "name": "scratch", "emptyDir": {} }]);
        let mounts =
            ["map", "scratch"].map(|name| json!({ "name": name, "mountPath": format!("/{name}") }));
        pod["spec"]["containers"][0]["volumeMounts"] = json!(mounts);
    })
}

/// How many instances of a container were ever started; by now all of them are removed.
fn runs(sim: &Sim, pod: &str, container: &str) -> usize {
    let calls = sim.fake.calls();
    let starts = calls.iter().filter(|call| call.rpc == Rpc::StartContainer);
    let done = starts.filter(|call| call.fault != Some(Fault::Disconnect));
    let of = done.filter(|c| c.about.is_of(pod) && c.about.container.as_deref() == Some(container));
    of.filter_map(|call| call.about.container_id.clone()).collect::<BTreeSet<_>>().len()
}

/// Waits until it holds; starts the agent again if it died meanwhile.
async fn carry_on(sim: &mut Sim, holds: impl Fn(&Sim) -> bool) {
    loop {
        let came = sim.eventually(s(300), |sim| holds(sim) || !sim.is_running()).await;
        assert!(came, "never\n{}", sim.story());
        if holds(sim) {
            return;
        }
        sim.crash().await;
        sim.pass(s(1)).await;
        sim.start().await;
    }
}

/// A pod that ends by itself and leaves a message, with a death at step `k`.
async fn job(k: u64, counted: Counted) -> u64 {
    let mut sim = Sim::started(Options::default()).await;
    let wire = sim.trip(k, Moment::Before, counted);
    let wanted = wish("job").restart("Never").container("app", JOB).edit(|pod| {
        pod["spec"]["volumes"] = json!([{ "name": "scratch", "emptyDir": {} }]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    });
    let uid = sim.create(&wanted).await;
    let done = |sim: &Sim| {
        write_message(sim, &uid, "all is well");
        let pod = sim.record.pod("job");
        pod.is_some_and(|pod| record::phase(&pod).is_terminal())
    };
    carry_on(&mut sim, done).await;
    let later = sim.age() + s(6);
    carry_on(&mut sim, |sim| sim.age() >= later).await;
    let told = format!("died at step {k}");
    assert_eq!(message(&sim, "job").as_deref(), Some("all is well"), "{told}\n{}", sim.story());
    sim.delete("job", None).await;
    carry_on(&mut sim, |sim| sim.record.pods().is_empty()).await;
    sim.pass(s(5)).await;
    let steps = wire.steps();
    if !sim.is_running() {
        sim.restart().await;
    }
    sim.pass(s(5)).await;
    lawful(&sim);
    clean(&sim, &[]);
    steps
}

/// Every step of a life in turn is the agent's last.
fn every_step(moment: Moment, counted: Counted) {
    let all = sim::run(life(u64::MAX, moment, counted));
    assert!(all > 10, "a life has steps");
    for k in 1..=all {
        sim::run(life(k, moment, counted));
    }
}

#[test]
fn the_agent_dies_before_each_change_it_would_make() {
    every_step(Moment::Before, Counted::Changes);
}

#[test]
fn the_agent_dies_before_each_change_to_files_and_control_groups() {
    every_step(Moment::Before, Counted::Files);
}

#[test]
fn the_agent_dies_after_each_thing_it_asks_and_before_it_hears_the_answer() {
    every_step(Moment::After, Counted::Everything);
}

#[test]
fn message_of_a_finished_pod_survives_a_death_before_each_change() {
    for counted in [Counted::Changes, Counted::Files] {
        let all = sim::run(job(u64::MAX, counted));
        assert!(all > 5, "a life has steps");
        for k in 1..=all {
            sim::run(job(k, counted));
        }
    }
}
