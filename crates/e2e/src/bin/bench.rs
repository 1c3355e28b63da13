//! `./bench`: measures a kubelet next to the floor of the runtime, and optionally another kubelet.

// A command-line tool prints to its user.
#![allow(clippy::print_stdout)]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use podwright_e2e::bench::{self, Options};

/// Measure pods on the test bed
#[derive(Parser)]
#[command(name = "bench")]
struct Arguments {
    /// Batch sizes
    #[arg(long, value_delimiter = ',', default_value = "10,110")]
    pods: Vec<usize>,
    /// How many times a single pod is measured
    #[arg(long, default_value_t = 20)]
    singles: usize,
    /// How long an idle agent is measured, in seconds
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Numbers of pods on the fake runtime, to show how the agent scales
    #[arg(long, value_delimiter = ',')]
    growth: Vec<usize>,
    /// Another kubelet to measure in the same run: a program, or a command line in quotes
    #[arg(long, value_name = "COMMAND")]
    reference: Option<String>,
    /// Also write the figures as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write plots into this directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let reference = arguments.reference.unwrap_or_default();
    let options = Options {
        pods: arguments.pods,
        singles: arguments.singles,
        idle: Duration::from_secs(arguments.idle),
        growth: arguments.growth,
        reference: reference.split_whitespace().map(Into::into).collect(),
    };
    let report = bench::run(&options, |what| println!("measuring: {what}")).await?;
    println!("\n{report}");
    if let Some(file) = arguments.json {
        std::fs::write(file, serde_json::to_vec_pretty(&report)?)?;
    }
    if let Some(directory) = arguments.plots {
        std::fs::create_dir_all(&directory)?;
        for (name, plot) in report.plots() {
            std::fs::write(directory.join(name), plot.svg())?;
        }
    }
    anyhow::ensure!(report.failures.is_empty(), "some measurements failed; see above");
    Ok(())
}
