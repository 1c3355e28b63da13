//! Chaos seeds: user actions, faults and agent crashes; in the end the node must converge.

use std::time::{SystemTime, UNIX_EPOCH};

use podwright_testkit::report;
use podwright_testkit::sim::{self, chaos, journal};

/// How many seeds each test runs; `PODWRIGHT_LONG` runs many more.
fn seeds(share: u64) -> impl Iterator<Item = u64> {
    let each = if std::env::var_os("PODWRIGHT_LONG").is_some() { 1_000 } else { 26 };
    share * 1_000_000..share * 1_000_000 + each
}

fn play_all(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        if let Err(history) = sim::run(chaos::play(seed)) {
            panic!("{history}");
        }
    }
}

#[test]
fn node_converges_after_chaos_1() {
    play_all(seeds(1));
}

#[test]
fn node_converges_after_chaos_2() {
    play_all(seeds(2));
}

#[test]
fn node_converges_after_chaos_3() {
    play_all(seeds(3));
}

#[test]
fn node_converges_after_chaos_4() {
    play_all(seeds(4));
}

/// A seed that no run had before. It is not recorded: two journals of it could not be compared.
#[test]
fn node_converges_after_chaos_of_a_fresh_seed() {
    if std::env::var_os(journal::DIRECTORY).is_some() {
        return report::skipped("a fresh seed cannot be compared");
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = u64::try_from(now.as_millis()).unwrap();
    // A failure prints how to replay it; this line remains if the process is killed.
    println!("fresh seed: PODWRIGHT_SIM_SEED={seed}");
    play_all(std::iter::once(seed));
}

#[test]
fn one_seed() {
    let seed = std::env::var("PODWRIGHT_SIM_SEED").ok().and_then(|seed| seed.parse().ok());
    play_all(seed.into_iter());
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in [8, 9] {
        let (one, two) = (sim::run(chaos::play(seed)), sim::run(chaos::play(seed)));
        let (one, two) = (one.unwrap(), two.unwrap());
        let differs = one.iter().zip(&two).position(|(a, b)| a != b);
        let differs = differs.map(|place| (&one[place], &two[place]));
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), two.len(), "seed {seed}");
    }
}
