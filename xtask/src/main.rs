//! Repository tasks, run as `cargo xtask …`.
//!
//! Why a program and not scripts: a checked-in task should be compiled and tested like the rest,
//! and need nothing beyond a Rust toolchain.

// This program prints for the developer who runs it.
#![allow(clippy::print_stdout)]

mod cargo;
mod images;
mod journals;
mod papers;
mod picture;
mod size;
mod suite;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cargo::Workspace;

/// Repository tasks
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the image archives of the sandbox and of the tests
    Images {
        /// Output directory; default: target/images
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Static busybox to put into the test image
        #[arg(long, value_name = "FILE", default_value = "/bin/busybox")]
        busybox: PathBuf,
    },
    /// Write man pages and shell completions, generated from the command line definition
    Papers {
        /// Output directory; default: target/papers
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Run the commands of a session and render the terminal as SVG
    Picture {
        /// File with one command per line; a leading `@` runs the command without showing it. A
        /// .txt file is a screen: docs/images/top.svg is that of
        /// crates/podwright/tests/snapshots/top-wide.txt
        session: PathBuf,
        /// Output file; default: the session's name with .svg
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Evaluate what the steps of ./test recorded
    Suite {
        #[command(subcommand)]
        command: suite::SuiteCommand,
    },
    /// Compare what the simulated nodes of two commits do: runtime calls, API requests, Events
    Journals {
        /// Commit to compare with, or a directory of journals
        base: String,
        /// Other commit, or directory of journals; default: the work tree
        head: Option<String>,
        /// Compare existing journals: both arguments are directories
        #[arg(long, requires = "head")]
        directories: bool,
    },
    /// Print what each section, crate and embedded file adds to the release binary
    Size {
        /// Program to measure; default: the release build with its symbols, built now
        #[arg(long, value_name = "FILE")]
        program: Option<PathBuf>,
        /// Number of crates to print
        #[arg(long, value_name = "NUMBER", default_value_t = 30)]
        crates: usize,
    },
    /// Run the repository checks: dependencies, licences, sources, documents
    Tidy,
    /// List the licence of every package used in the build
    Licences,
}

fn main() -> anyhow::Result<ExitCode> {
    let task = Arguments::parse().task;
    let workspace = Workspace::here()?;
    match task {
        Task::Images { out, busybox } => {
            let out = out.unwrap_or_else(|| workspace.root.join("target/images"));
            images::build(&workspace, &out, &busybox)?;
        }
        Task::Papers { out } => {
            let out = out.unwrap_or_else(|| workspace.root.join("target/papers"));
            papers::write(&workspace, &out)?;
        }
        Task::Picture { session, out } => {
            let out = out.unwrap_or_else(|| session.with_extension("svg"));
            match session.extension().is_some_and(|extension| extension == "txt") {
                true => picture::draw_screen(&session, &out)?,
                false => picture::draw(&session, &out)?,
            }
        }
        Task::Suite { command } => return suite::run(command, &workspace.root),
        Task::Journals { base, head: Some(head), directories: true } => {
            return journals::compare(base.as_ref(), head.as_ref());
        }
        Task::Journals { base, head, .. } => {
            return journals::run(&workspace, &base, head.as_deref());
        }
        Task::Size { program, crates } => return size::run(&workspace, program, crates),
        Task::Tidy => return tidy::run(&workspace),
        Task::Licences => tidy::list_licences(&workspace)?,
    }
    Ok(ExitCode::SUCCESS)
}
