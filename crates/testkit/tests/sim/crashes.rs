//! Crash of the agent at every single step of a pod's lifecycle; the pod must not be affected.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1;
use podwright_fake_runtime::{Fault, Rpc};
use podwright_testkit::sim::crash_point::{Counted, Moment};
use podwright_testkit::sim::test_pod::{APP, INIT, JOB, NODE, TestPod, test_pod};
use podwright_testkit::sim::{self, Options, Sim, invariants, record};
use serde_json::json;

use crate::{assert_invariants, clean, message, mounting, s, write_message};

/// A whole pod lifecycle with a crash at step `k`, beside a pod that must not be affected. Returns
/// how many steps were made until then.
async fn lifecycle_with_crash(k: u64, moment: Moment, counted: Counted) -> u64 {
    let mut sim = Sim::started(Options::default()).await;
    sim.make::<v1::ConfigMap>("map", json!({ "data": { "key": "value" } })).await;
    let neighbour = sim.create(&test_pod("neighbour").container("app", APP)).await;
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
    // A run for each inspection of a static pod would take long and show nothing more.
    if counted != Counted::Everything {
        sim.write_manifest("static.json", &test_pod("static").container("app", APP).manifest());
        names.push(&mirror);
    }
    let ready = |sim: &Sim| {
        let of = |name: &&str| sim.record.pod(name).is_some_and(|pod| record::is_ready(&pod));
        names.iter().all(of)
    };
    carry_on(&mut sim, ready).await;
    // A restarted agent gets time to act.
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
    let context = format!("crashed at step {k} ({moment:?})");
    assert_invariants(&sim);
    clean(&sim, std::slice::from_ref(&neighbour));
    let containers = [("web", "first"), ("web", "side"), ("web", "a"), ("web", "b")];
    for (pod, name) in containers.into_iter().chain([(mirror.as_str(), "app")]) {
        let runs = runs(&sim, pod, name);
        assert!(runs <= 1, "{context}: {pod}/{name} ran {runs} times\n{}", sim.history());
    }
    for uid in [&neighbour, &web] {
        let disturbed = invariants::disturbances(&sim, uid);
        assert!(disturbed.is_empty(), "{context}: {disturbed:?}\n{}", sim.history());
    }
    steps
}

/// A pod with all kinds of containers and two kinds of volumes.
fn web() -> TestPod {
    let web = test_pod("web").init("first", INIT).sidecar("side", APP);
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

/// Waits until the condition holds; restarts the agent if it crashed meanwhile.
async fn carry_on(sim: &mut Sim, holds: impl Fn(&Sim) -> bool) {
    loop {
        let came = sim.eventually(s(300), |sim| holds(sim) || !sim.is_running()).await;
        assert!(came, "never\n{}", sim.history());
        if holds(sim) {
            return;
        }
        sim.crash().await;
        sim.pass(s(1)).await;
        sim.start().await;
    }
}

/// A pod that exits by itself and leaves a termination message, with a crash at step `k`.
async fn job(k: u64, counted: Counted) -> u64 {
    let mut sim = Sim::started(Options::default()).await;
    let wire = sim.trip(k, Moment::Before, counted);
    let wanted = test_pod("job").restart("Never").container("app", JOB).edit(|pod| {
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
    let context = format!("crashed at step {k}");
    assert_eq!(
        message(&sim, "job").as_deref(),
        Some("all is well"),
        "{context}\n{}",
        sim.history()
    );
    sim.delete("job", None).await;
    carry_on(&mut sim, |sim| sim.record.pods().is_empty()).await;
    sim.pass(s(5)).await;
    let steps = wire.steps();
    if !sim.is_running() {
        sim.restart().await;
    }
    sim.pass(s(5)).await;
    assert_invariants(&sim);
    clean(&sim, &[]);
    steps
}

/// Crashes the agent at every step of a lifecycle, one run each.
fn every_step(moment: Moment, counted: Counted) {
    let all = sim::run(lifecycle_with_crash(u64::MAX, moment, counted));
    assert!(all > 10, "a lifecycle has steps");
    for k in 1..=all {
        sim::run(lifecycle_with_crash(k, moment, counted));
    }
}

#[test]
fn agent_killed_before_each_change() {
    every_step(Moment::Before, Counted::Changes);
}

#[test]
fn agent_killed_before_each_change_to_files_and_cgroups() {
    every_step(Moment::Before, Counted::Files);
}

#[test]
fn agent_killed_after_each_request_before_the_response() {
    every_step(Moment::After, Counted::Everything);
}

#[test]
fn termination_message_survives_a_crash_before_each_change() {
    for counted in [Counted::Changes, Counted::Files] {
        let all = sim::run(job(u64::MAX, counted));
        assert!(all > 5, "a lifecycle has steps");
        for k in 1..=all {
            sim::run(job(k, counted));
        }
    }
}
