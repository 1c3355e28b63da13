//! Dead orphans: processes that only process 1 of their namespace can bury.
//!
//! Where pods share a process namespace that is the pause program. Where a container has its own
//! it is this very program, which does not bury them: the zombies stay, and a test can see the
//! difference.

use std::io;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;

#[derive(Args)]
pub(crate) struct Zombie {
    /// How many orphans
    #[arg(default_value_t = 1)]
    count: u32,
}

impl Zombie {
    /// Makes them, and stays.
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        for _ in 0..self.count {
            make_orphan()?;
        }
        println!("left {} orphans", self.count);
        std::future::pending().await
    }
}

/// The orphan lives as long as its standard input. We close that only when its parent is gone:
/// so it is an orphan first and dies second, with no race.
fn make_orphan() -> anyhow::Result<()> {
    let mut parent = this_program("orphan-parent").stdin(Stdio::piped()).spawn().context("fork")?;
    let life = parent.stdin.take();
    let status = parent.wait().context("cannot wait for the orphan's parent")?;
    ensure!(status.success(), "the orphan's parent ended with {status}");
    drop(life);
    Ok(())
}

pub(crate) fn start_orphan() -> anyhow::Result<u8> {
    let orphan = this_program("orphan").spawn().context("cannot start the orphan")?;
    println!("orphan {}", orphan.id());
    Ok(0)
}

pub(crate) fn be_orphan() -> anyhow::Result<u8> {
    io::copy(&mut io::stdin(), &mut io::sink()).context("cannot wait for the end of input")?;
    Ok(0)
}

fn this_program(command: &str) -> Command {
    let mut program = Command::new("/proc/self/exe");
    program.arg(command);
    program
}
