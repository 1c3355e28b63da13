//! Benchmark in its shortest form: checks that it measures, not the figures.

use std::time::Duration;

use podwright_e2e::bench::{self, Options};

use crate::privilege::needs_root;

#[tokio::test]
async fn benchmark_measures_floors_and_the_agent() {
    needs_root!();
    let idle = Duration::from_secs(1);
    let options =
        Options { pods: vec![3], singles: 1, idle, growth: vec![50], reference: Vec::new() };
    let report = bench::run(&options, |_| {}).await.unwrap();
    println!("{report}");
    assert_eq!(report.failures, Vec::<String>::new());
    assert_eq!((report.floors.len(), report.kubelets.len()), (2, 1));
    let agent = &report.kubelets[0];
    assert!(agent.idle.memory.resident > agent.idle.memory.anonymous);
    let patches: Vec<_> = agent.batches.iter().map(|b| &b.start_requests).collect();
    assert!(patches.iter().all(|asked| asked.contains_key("patch pods/status")), "{patches:?}");
    assert_eq!(report.growth.iter().map(|growth| growth.pods).collect::<Vec<_>>(), [50]);
    let names: Vec<_> = report.plots().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["starts.svg", "ends.svg", "memory.svg", "growth.svg", "rest.svg"]);
}
