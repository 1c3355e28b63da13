//! Measures a kubelet on the test bed, and beside it what the runtime itself needs.
//!
//! Absolute figures move with the machine, so everything is measured in one run and told as a
//! ratio: to the **raw floor**, the same pods made by bare CRI calls with no agent at all, and to
//! the **loaded floor**, the same calls while the API server gets the requests that any kubelet
//! would send it.

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
    /// Sizes of the batches.
    pub pods: Vec<usize>,
    /// How often a single pod is started, ended and deleted.
    pub singles: usize,
    /// How long an idle agent is watched.
    pub idle: Duration,
    /// Numbers of pods on a runtime that does nothing.
    pub growth: Vec<usize>,
    /// Another kubelet to measure in the same run: a program and its first arguments.
    pub reference: Vec<OsString>,
}

/// Measures everything, one thing after the other: two at once would measure each other.
pub async fn run(options: &Options, say: impl Fn(&str)) -> Result<Report> {
    say("floor of single pods");
    let singles = Singles::measure(options.singles).await?;
    let mut floors = Vec::new();
    for &pods in &options.pods {
        for load in [Load::None, Load::Api] {
            say(&format!("floor of {pods} pods, {load}"));
            floors.push(Floor::measure(pods, load, &say).await?);
        }
    }
    say("podwright");
    let mut kubelets = vec![Figures::measure("podwright", &[], options, &say).await?];
    let mut growth = Vec::new();
    let mut failures = Vec::new();
    if !options.reference.is_empty() {
        say("the reference");
        let figures = Figures::measure("reference", &options.reference, options, &say).await;
        kubelets.extend(kept(figures, "the reference", &mut failures));
    }
    for &pods in &options.growth {
        let what = format!("{pods} pods on a fake runtime");
        say(&what);
        growth.extend(kept(Growth::measure(pods, options.idle).await, &what, &mut failures));
    }
    let decision = Decision::measure()?;
    Ok(Report { singles, floors, kubelets, growth, decision, failures })
}

/// What failed is told of, and does not lose what was measured before it.
fn kept<T>(measured: Result<T>, what: &str, failures: &mut Vec<String>) -> Option<T> {
    measured.map_err(|error| failures.push(format!("{what}: {error:#}"))).ok()
}
