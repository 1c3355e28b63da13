//! Lives without end: what one pod leaves behind, a hundred thousand would drown in.
//!
//! A program of its own, with one test: the memory that is measured is nobody else's.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use podwright_testkit::report::figure;
use podwright_testkit::sim::laws::{clean, lawful};
use podwright_testkit::sim::wish::{APP, INIT, wish};
use podwright_testkit::sim::{self, Options, Sim};

/// How many live at the same time.
const TOGETHER: usize = 20;

/// Kilobytes of memory that no file backs, once what is free was given back.
fn anonymous() -> u64 {
    podwright_host::process::trim_heap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
}

/// What the kernel counts of this process.
fn entries(of: &str) -> usize {
    std::fs::read_dir(format!("/proc/self/{of}")).unwrap().count()
}

async fn generation(sim: &Sim, number: usize) {
    let names: Vec<String> = (0..TOGETHER).map(|at| format!("pod-{number}-{at}")).collect();
    for name in &names {
        sim.create(&wish(name).init("first", INIT).container("app", APP)).await;
    }
    for name in &names {
        sim.until_ready(name).await;
    }
    for name in &names {
        sim.delete(name, None).await;
    }
    for name in &names {
        sim.until_gone(name).await;
    }
    sim.record.forget_the_gone();
    sim.fake.forget_calls();
    sim.api.forget_calls();
}

/// Events live for an hour, and what is cleaned up in rounds goes with the next one.
async fn settle(sim: &Sim) {
    sim.pass(Duration::from_secs(2 * 3600)).await;
    sim.fake.forget_calls();
    sim.api.forget_calls();
}

#[test]
fn lives_without_end_leave_nothing_behind() {
    let lives = if std::env::var_os("PODWRIGHT_LONG").is_some() { 100_000 } else { 600 };
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let generations = lives / TOGETHER;
        // What is kept of the latest so and so many is full by then.
        let first = generations / 2;
        for number in 0..first {
            generation(&sim, number).await;
        }
        settle(&sim).await;
        let (early, held) = (anonymous(), entries("fd"));
        for number in first..generations {
            generation(&sim, number).await;
        }
        settle(&sim).await;
        clean(&sim, &[]);
        lawful(&sim);
        let late = anonymous();
        figure(&format!("{lives} lives: {early} kB after half of them, {late} kB in the end"));
        assert!(late < early + early / 10, "{early} kB grew to {late} kB");
        assert_eq!(entries("fd"), held, "descriptors");
    });
}
