//! Soak test: repeated pod lifecycles must not leave anything behind.
//!
//! A test binary of its own, with one test: the measured memory belongs to it alone.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use podwright_testkit::report::figure;
use podwright_testkit::sim::invariants::{assert_invariants, clean};
use podwright_testkit::sim::test_pod::{APP, INIT, test_pod};
use podwright_testkit::sim::{self, Options, Sim};

/// How many pods run at the same time.
const TOGETHER: usize = 20;

/// Kilobytes of anonymous memory, after free memory was returned to the kernel.
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
        sim.create(&test_pod(name).init("first", INIT).container("app", APP)).await;
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
    sim.record.drop_removed_pods();
    sim.fake.clear_calls();
    sim.api.clear_calls();
}

/// Events expire after an hour, and periodic clean-up happens in the next round.
async fn settle(sim: &Sim) {
    sim.pass(Duration::from_secs(2 * 3600)).await;
    sim.fake.clear_calls();
    sim.api.clear_calls();
}

#[test]
fn repeated_pod_lifecycles_do_not_grow_memory() {
    let total_pods = if std::env::var_os("PODWRIGHT_LONG").is_some() { 100_000 } else { 600 };
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let generations = total_pods / TOGETHER;
        // Buffers of the latest entries are full by then.
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
        assert_invariants(&sim);
        let late = anonymous();
        figure(&format!("{total_pods} pods: {early} kB after half of them, {late} kB in the end"));
        assert!(late < early + early / 10, "{early} kB grew to {late} kB");
        assert_eq!(entries("fd"), held, "descriptors");
    });
}
