//! `podwright down`: stops the node of `podwright up` and keeps its data.

use std::io::Write;

use crate::cli::DownArgs;
use crate::service;
use crate::standalone::Layout;
use crate::standalone::lock::NodeLock;
use crate::standalone::teardown::{self, Outcome};

/// Stops what `podwright up` started.
pub fn run(arguments: &DownArgs) -> anyhow::Result<()> {
    super::up::require_root("podwright down")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let say = |text: &str| {
        // Progress output is optional; a closed stdout is no error.
        let _ = writeln!(std::io::stdout(), "{text}");
    };
    let lock = NodeLock::take(&layout, "down", &say)?;
    let stop_mode = arguments.stop_mode.read();
    match service::runtime()?.block_on(teardown::down(&layout, &lock, stop_mode, say))? {
        Outcome::Stopped => say(&format!("stopped; data kept in {}", layout.state().display())),
        Outcome::NothingHere => {}
    }
    Ok(())
}
