//! Benchmark of a kubelet on the test bed, next to what the runtime itself needs.
//!
//! Absolute figures vary with the machine, so everything is measured in one run and reported as a
//! ratio: to the **raw floor**, the same pods created by bare CRI calls without an agent, and to
//! the **loaded floor**, the same calls while the API server receives the requests that any kubelet
//! would send.

pub mod decision;
pub mod floor;
pub mod growth;
pub mod kubelet;
pub mod plot;
mod pods;
pub mod quantiles;
pub mod report;
pub mod stopwatch;
pub mod usage;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;

use decision::Decision;
use floor::{Floor, Load, Singles};
use growth::Growth;
use kubelet::Figures;
use report::Report;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// Batch sizes.
    pub pods: Vec<usize>,
    /// How many times a single pod is started, stopped and deleted.
    pub singles: usize,
    /// How long an idle agent is measured.
    pub idle: Duration,
    /// Numbers of pods on the fake runtime.
    pub growth: Vec<usize>,
    /// Another kubelet to measure in the same run: a program and its first arguments.
    pub reference: Vec<OsString>,
}

/// Runs all measurements in sequence: concurrent ones would distort each other.
pub async fn run(options: &Options, report_progress: impl Fn(&str)) -> Result<Report> {
    report_progress("floor of single pods");
    let singles = Singles::measure(options.singles).await?;
    let mut floors = Vec::new();
    for &pods in &options.pods {
        for load in [Load::None, Load::Api] {
            report_progress(&format!("floor of {pods} pods, {load}"));
            floors.push(Floor::measure(pods, load, &report_progress).await?);
        }
    }
    report_progress("podwright");
    let mut kubelets = vec![Figures::measure("podwright", &[], options, &report_progress).await?];
    let mut growth = Vec::new();
    let mut failures = Vec::new();
    if !options.reference.is_empty() {
        report_progress("the reference");
        let figures =
            Figures::measure("reference", &options.reference, options, &report_progress).await;
        kubelets.extend(kept(figures, "the reference", &mut failures));
    }
    for &pods in &options.growth {
        let what = format!("{pods} pods on a fake runtime");
        report_progress(&what);
        growth.extend(kept(Growth::measure(pods, options.idle).await, &what, &mut failures));
    }
    let decision = Decision::measure()?;
    Ok(Report { singles, floors, kubelets, growth, decision, failures })
}

/// Records a failed measurement and keeps the results so far.
fn kept<T>(measured: Result<T>, what: &str, failures: &mut Vec<String>) -> Option<T> {
    measured.map_err(|error| failures.push(format!("{what}: {error:#}"))).ok()
}
