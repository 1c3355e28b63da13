//! The chores of the repository, as `cargo xtask …`.
//!
//! Why a program and not scripts: a chore that is checked in should be compiled and tested like
//! the rest, and need nothing that a machine with Rust does not have.

// It talks to the person who called it.
#![allow(clippy::print_stdout)]

mod cargo;
mod images;
mod journals;
mod papers;
mod picture;
mod suite;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use cargo::Workspace;

/// Chores of the repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the image archives of the sandbox and of the tests
    Images {
        /// Where to; the default is target/images
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
        /// The static busybox that goes into the test image
        #[arg(long, value_name = "FILE", default_value = "/bin/busybox")]
        busybox: PathBuf,
    },
    /// Write the man pages and shell completions, made from the command line itself
    Papers {
        /// Where to; the default is target/papers
        #[arg(long, value_name = "FOLDER")]
        out: Option<PathBuf>,
    },
    /// Run the commands of a session and draw the terminal as SVG
    Picture {
        /// One command a line; `@` before it: run, not shown
        session: PathBuf,
        /// Where to; the default is the session's name with .svg
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Read what the steps of ./test recorded
    Suite {
        #[command(subcommand)]
        question: suite::Question,
    },
    /// Compare what the simulated nodes of two commits do: runtime calls, API requests, Events
    Journals {
        /// The commit to compare with, or a directory of journals
        base: String,
        /// The other commit, or directory of journals; the default is the work tree
        head: Option<String>,
        /// Compare journals that were written before: both arguments are directories
        #[arg(long, requires = "head")]
        directories: bool,
    },
    /// Check the laws of the repository: dependencies, licences, sources, documents
    Tidy,
    /// List the licence of every package that we build with
    Licences,
}

fn main() -> anyhow::Result<ExitCode> {
    let chore = Arguments::parse().chore;
    let workspace = Workspace::here()?;
    match chore {
        Chore::Images { out, busybox } => {
            let out = out.unwrap_or_else(|| workspace.root.join("target/images"));
            images::build(&workspace, &out, &busybox)?;
        }
        Chore::Papers { out } => {
            let out = out.unwrap_or_else(|| workspace.root.join("target/papers"));
            papers::write(&workspace, &out)?;
        }
        Chore::Picture { session, out } => {
            picture::draw(&session, &out.unwrap_or_else(|| session.with_extension("svg")))?;
        }
        Chore::Suite { question } => return suite::answer(question, &workspace.root),
        Chore::Journals { base, head: Some(head), directories: true } => {
            return journals::compare(base.as_ref(), head.as_ref());
        }
        Chore::Journals { base, head, .. } => {
            return journals::run(&workspace, &base, head.as_deref());
        }
        Chore::Tidy => return tidy::run(&workspace),
        Chore::Licences => tidy::list_licences(&workspace)?,
    }
    Ok(ExitCode::SUCCESS)
}
