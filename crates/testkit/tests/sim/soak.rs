//! Lives without end: what one pod leaves behind, a hundred thousand would drown in.

use podwright_testkit::sim::wish::{APP, INIT, wish};
use podwright_testkit::sim::{self, Options, Sim, laws};

use super::{clean, lawful, s};

/// How many live at the same time.
const TOGETHER: usize = 20;

/// Kilobytes of memory that no file backs, of this whole process.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().split(' ').next().unwrap().parse().unwrap()
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

#[test]
fn lives_without_end_leave_nothing_behind() {
    let lives = if std::env::var_os("PODWRIGHT_LONG").is_some() { 100_000 } else { 200 };
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let generations = lives / TOGETHER;
        let mut early = 0;
        for number in 0..generations {
            generation(&sim, number).await;
            if number == generations / 4 {
                sim.pass(s(120)).await;
                early = anonymous();
            }
        }
        // Events live for an hour, and what is cleaned up in rounds goes with the next one.
        sim.pass(s(2 * 3600)).await;
        clean(&sim, &[]);
        lawful(&sim);
        let late = anonymous();
        println!("{lives} lives: {early} kB after a quarter of them, {late} kB in the end");
        // Only alone in its process is it only this test that is measured.
        if lives > 10_000 {
            assert!(late < early + early / 10, "{early} kB grew to {late} kB");
        }
    });
}

#[test]
fn an_api_server_that_is_away_for_ten_minutes_is_told_everything_when_it_is_back() {
    sim::run(async {
        let sim = Sim::started(Options::default()).await;
        let steady = sim.create(&wish("steady").container("app", APP)).await;
        sim.create(&wish("dies").container("app", APP)).await;
        sim.create(&wish("goes").container("app", APP)).await;
        for name in ["steady", "dies", "goes"] {
            sim.until_ready(name).await;
        }
        sim.delete("goes", None).await;
        sim.pass(s(1)).await;
        sim.api.go_down();
        assert!(sim.fake.kill_container("dies", "app", 3));
        sim.pass(s(600)).await;
        assert_eq!(sim.fake.snapshot().running("dies"), ["app"], "it was started again");
        assert!(sim.fake.snapshot().running("goes").is_empty());
        sim.api.come_up();
        sim.until_gone("goes").await;
        sim.pass(s(10)).await;
        let told = sim.record.pod("dies").unwrap();
        let container = &told.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        assert_eq!(container.restart_count, 1);
        assert_eq!(laws::disturbances(&sim, &steady), [""; 0]);
        lawful(&sim);
    });
}
