//! Runs every fuzz target on mutated seeds for a short time.
//!
//! First the seeds themselves, then mutated copies: once with a fixed random seed, which finds what
//! it found before, and once with a new one, which is printed. `PODWRIGHT_FUZZ_SEED` repeats a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use podwright_fuzz::{TARGETS, Target};
use podwright_testkit::mutation::mutated;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Time for each of the two runs of a target.
const TIME: Duration = Duration::from_millis(1000);
/// Factor with `PODWRIGHT_LONG`.
const LONG: u32 = 120;
/// Cases between looks at the clock.
const BATCH: u32 = 20;
const FIXED_SEED: u64 = 1;

fn runs(target: &Target, seed: u64, time: Duration) -> u64 {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config =
        Config { cases: BATCH, failure_persistence: None, source_file: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let inputs = mutated((target.seeds)());
    let (began, mut runs) = (Instant::now(), 0);
    while began.elapsed() < time {
        let outcome = runner.run(&inputs, |input| {
            (target.run)(&input);
            Ok(())
        });
        if let Err(failed) = outcome {
            panic!("{} with PODWRIGHT_FUZZ_SEED={seed}: {failed}", target.name);
        }
        runs += u64::from(BATCH);
    }
    runs
}

fn test(name: &str) {
    let target = podwright_fuzz::find(name).expect("a target of that name");
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty());
    for input in seeds.iter().map(Vec::as_slice).chain([&[][..]]) {
        (target.run)(input);
    }
    let given = std::env::var("PODWRIGHT_FUZZ_SEED").ok().map(|seed| seed.parse().unwrap());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let fresh = given.unwrap_or_else(|| u64::try_from(now.as_nanos()).unwrap_or(FIXED_SEED));
    let long = std::env::var_os("PODWRIGHT_LONG").is_some();
    let time = if long { TIME * LONG } else { TIME };
    let runs = [FIXED_SEED, fresh].map(|seed| runs(target, seed, time));
    println!("{name}: {} and {} inputs, PODWRIGHT_FUZZ_SEED={fresh}", runs[0], runs[1]);
}

/// A test for each target, and one that none is missing.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                test(stringify!($name));
            }
        )*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.name), tested);
        }
    };
}

targets! {
    manifests,
    pods,
    configuration,
    quantities,
    logs,
    redirects,
    image_names,
    docker_configs,
    credential_plugins,
    runtime_replies,
    checkpoints,
    records,
    mountinfo,
    cgroup_files,
    kernel_files,
    network_tables,
    kubelet_requests,
    api_requests,
    api_objects,
    api_patches,
    api_queries,
}
