//! `zombie` command: orphans that only process 1 of their namespace can reap.
//!
//! If pods share a process namespace, that is the pause program. If a container has its own, it is
//! this program, which does not reap them: the zombies stay, and a test can see the difference.

use std::io;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use clap::Args;

#[derive(Args)]
pub(crate) struct Zombie {
    /// Number of orphans
    #[arg(default_value_t = 1)]
    count: u32,
}

impl Zombie {
    /// Creates them, and keeps running.
    pub(crate) async fn run(self) -> anyhow::Result<u8> {
        for _ in 0..self.count {
            make_orphan()?;
        }
        println!("left {} orphans", self.count);
        std::future::pending().await
    }
}

/// The orphan runs until its standard input ends. It is closed only after its parent has exited: so
/// the orphan is reparented first and exits second, without a race.
fn make_orphan() -> anyhow::Result<()> {
    let mut parent = this_program("orphan-parent").stdin(Stdio::piped()).spawn().context("fork")?;
    let life = parent.stdin.take();
    let status = parent.wait().context("cannot wait for the orphan's parent")?;
    ensure!(status.success(), "the orphan's parent exited with {status}");
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
