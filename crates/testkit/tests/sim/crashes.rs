//! The agent dies at every single step of a pod's life, and the pod's life goes on.

use podwright_cri::fake::ContainerState;
use podwright_testkit::sim::tripwire::{Counted, Moment};
use podwright_testkit::sim::wish::{APP, INIT, wish};
use podwright_testkit::sim::{self, Options, Sim, record};

use crate::{clean, lawful, s};

/// A whole life with a death at step `k`. Returns how many steps were made until then.
async fn life(k: u64, moment: Moment, counted: Counted) -> u64 {
    let mut sim = Sim::started(Options::default()).await;
    let wire = sim.trip(k, moment, counted);
    let pod = wish("web").init("first", INIT).sidecar("side", APP);
    sim.create(&pod.container("a", APP).container("b", APP)).await;
    carry_on(&mut sim, |sim| sim.record.pod("web").is_some_and(|pod| record::is_ready(&pod))).await;
    sim.delete("web", None).await;
    carry_on(&mut sim, |sim| sim.record.pod("web").is_none()).await;
    sim.pass(s(5)).await;
    let steps = wire.steps();
    if !sim.is_running() {
        sim.restart().await;
    }
    sim.pass(s(5)).await;
    let told = format!("died at step {k} ({moment:?})");
    lawful(&sim);
    clean(&sim, &[]);
    let snapshot = sim.fake.snapshot();
    for name in ["first", "side", "a", "b"] {
        let ran = |state| match state {
            ContainerState::Created => false,
            ContainerState::Running | ContainerState::Exited { .. } | ContainerState::Unknown => {
                true
            }
        };
        let runs = snapshot.containers.iter().filter(|c| c.name == name && ran(c.state)).count();
        assert!(runs <= 1, "{told}: {name} ran {runs} times\n{}", sim.story());
    }
    steps
}

/// Waits until it holds; starts the agent again if it died meanwhile.
async fn carry_on(sim: &mut Sim, holds: fn(&Sim) -> bool) {
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
fn the_agent_dies_after_each_thing_it_asks_and_before_it_hears_the_answer() {
    every_step(Moment::After, Counted::Everything);
}
