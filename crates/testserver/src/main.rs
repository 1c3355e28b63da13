//! Program of the test image: behaves in every way that a test of a node needs from a pod.
//!
//! One program with many commands: a test selects the behaviour in the pod's `args` (a server that
//! becomes ready late, a process that ignores SIGTERM, one that allocates memory), and one small
//! static file serves them all, on a machine without a registry.
//!
//! It may be process 1 of its container. The kernel then delivers only signals that have a handler,
//! so every command handles SIGTERM and SIGINT and exits with 0 on either, unless its purpose is
//! different.

// Its output is its purpose: tests read it as the container's log.
#![allow(clippy::print_stdout)]

mod exit;
mod lines;
mod load;
mod orphans;
mod serve;
mod signals;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

/// Servers, signals, exit codes and load on demand, for tests of a node
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve HTTP, gRPC health checks and plain TCP
    Serve(serve::Serve),
    /// Exit with a code, at once or later
    Exit(exit::Exit),
    /// Print each signal that arrives
    Signals(signals::Signals),
    /// Allocate memory and hold it
    Alloc(load::Alloc),
    /// Keep CPUs busy
    Burn(load::Burn),
    /// Write log lines
    Lines(lines::Lines),
    /// Leave zombie orphans to process 1
    Zombie(orphans::Zombie),
    /// Start an orphan and exit (part of zombie)
    #[command(hide = true)]
    OrphanParent,
    /// Run until standard input ends (part of zombie)
    #[command(hide = true)]
    Orphan,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let code = runtime.block_on(run(arguments.command))?;
    // Threads that burn CPU or read standard input do not end by themselves.
    runtime.shutdown_background();
    Ok(code.into())
}

async fn run(command: Command) -> anyhow::Result<u8> {
    let mut stop = signals::Stop::listen()?;
    match command {
        Command::Serve(serve) => serve.run(&mut stop).await,
        Command::Signals(signals) => signals.run().await,
        Command::Exit(exit) => stop.or(exit.run()).await,
        Command::Alloc(alloc) => stop.or(alloc.run()).await,
        Command::Burn(burn) => stop.or(burn.run()).await,
        Command::Lines(lines) => stop.or(lines.run()).await,
        Command::Zombie(zombie) => stop.or(zombie.run()).await,
        Command::OrphanParent => orphans::start_orphan(),
        Command::Orphan => orphans::be_orphan(),
    }
}

/// `1.5` is a second and a half.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds =
        text.parse().map_err(|_| format!("{text:?} is not a number of milliseconds"))?;
    Ok(Duration::from_millis(milliseconds))
}
