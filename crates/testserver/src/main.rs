//! The program inside the test image: it does to a node whatever a pod can do to one.
//!
//! Why one program with many faces: a test says in the pod's `args` what it needs (a server that
//! becomes ready late, a process that ignores SIGTERM, one that eats memory), and one small
//! static file serves them all, on a machine with no registry.
//!
//! It may be process 1 of its container. The kernel then gives it no signal that it does not
//! listen for, so every command listens for SIGTERM and SIGINT, and ends with 0 on either,
//! unless it is there to do otherwise.

// What it prints is what it is for: tests read it as the container's log.
#![allow(clippy::print_stdout)]

mod last_words;
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
    /// Answer HTTP, gRPC health checks and plain TCP
    Serve(serve::Serve),
    /// End with an exit code, at once or later
    Exit(last_words::Exit),
    /// Print each signal that arrives
    Signals(signals::Signals),
    /// Take memory and hold it
    Alloc(load::Alloc),
    /// Keep processors busy
    Burn(load::Burn),
    /// Write log lines
    Lines(lines::Lines),
    /// Leave dead orphans to process 1
    Zombie(orphans::Zombie),
    /// Start an orphan and end (part of zombie)
    #[command(hide = true)]
    OrphanParent,
    /// Live until standard input ends (part of zombie)
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
    // Threads that burn or wait on standard input do not end by themselves.
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

/// `1.5` as a second and a half.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let milliseconds =
        text.parse().map_err(|_| format!("{text:?} is no number of milliseconds"))?;
    Ok(Duration::from_millis(milliseconds))
}
