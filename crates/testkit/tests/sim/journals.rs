//! Journals of simulations: the same for the same seed, and only for it.

use std::fs;
use std::path::Path;

use podwright_fake_runtime::Features;
use podwright_testkit::sim::journal::recorded;
use podwright_testkit::sim::test_pod::{APP, INIT, test_pod};
use podwright_testkit::sim::{self, Options, Sim, chaos};
use serde_json::json;

use crate::s;

/// What one simulation writes. `environment` is the directory of its files.
fn journal(environment: &Path, simulate: impl FnOnce()) -> String {
    let directory = tempfile::tempdir().unwrap();
    recorded(directory.path(), environment, simulate);
    let files: Vec<_> = fs::read_dir(directory.path()).unwrap().map(Result::unwrap).collect();
    assert_eq!(files.len(), 1, "one simulation writes one journal");
    fs::read_to_string(files[0].path()).unwrap()
}

/// Where two texts begin to differ.
fn difference<'a>(one: &'a str, two: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let mut lines = one.lines().zip(two.lines()).enumerate();
    let found = lines.find(|(_, (one, two))| one != two).map(|(at, (one, two))| (at, one, two));
    found.or_else(|| (one != two).then_some((one.lines().count().min(two.lines().count()), "", "")))
}

fn chaos(environment: &Path, seed: u64) -> String {
    journal(environment, || {
        sim::run(chaos::play(seed)).unwrap();
    })
}

#[test]
fn same_seed_writes_the_same_journal_and_another_seed_another() {
    let environment = tempfile::tempdir().unwrap();
    let first = chaos(environment.path(), 7);
    assert_eq!(difference(&first, &chaos(environment.path(), 7)), None);
    assert!(difference(&first, &chaos(environment.path(), 8)).is_some());
}

#[test]
fn node_with_chores_writes_the_same_journal_each_time() {
    let environment = tempfile::tempdir().unwrap();
    let life = || {
        journal(environment.path(), || {
            sim::run(async {
                let features = Features::containerd_2();
                let options = Options { chores: true, features, ..Options::default() };
                let sim = Sim::started(options).await;
                sim.create(&test_pod("web").init("first", INIT).container("app", APP)).await;
                sim.until_ready("web").await;
                sim.pass(s(400)).await;
                sim.delete("web", None).await;
                sim.until_gone("web").await;
            });
        })
    };
    let first = life();
    assert!(first.contains("/leases"), "the periodic tasks are part of it");
    assert_eq!(difference(&first, &life()), None);
}

#[test]
fn journal_contains_requests_responses_and_events() {
    let environment = tempfile::tempdir().unwrap();
    let text = journal(environment.path(), || {
        sim::run(async {
            let sim = Sim::started(Options::default()).await;
            let pod = test_pod("web").container("app", APP).edit(|pod| {
                pod["spec"]["containers"][0]["env"] = json!([{ "name": "KEY", "value": "seen" }]);
            });
            sim.create(&pod).await;
            sim.until_ready("web").await;
            sim.pass(s(5)).await;
        });
    });
    let line = |parts: &[&str]| {
        let found = text.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line with {parts:?} in\n{text}");
    };
    line(&[" cri web > CreateContainer {", r#"{"key":"KEY","value":"#]);
    line(&[" cri web < CreateContainer OK"]);
    line(&[" api > PATCH /api/v1/namespaces/default/pods/web/status", r#""Running""#]);
    line(&[" api < PATCH /api/v1/namespaces/default/pods/web/status", " 200"]);
    line(&[" event Normal Started Pod default/web spec.containers{app}: "]);
    let path = environment.path().display().to_string();
    assert!(!text.contains(&path), "paths of the machine are masked");
}
