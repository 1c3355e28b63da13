//! `podwright plan`: replays a recorded decision.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use podwright_core::plan::{self, Case};

/// Reads a case and prints what is decided on it, and why.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let case: Case = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a case that podwright recorded"))?;
    let plan = plan::decide(&case.inputs());
    let mut out = std::io::stdout();
    writeln!(out, "pod {} is {:?}: {}", case.pod.name, case.life.stage(), plan.why.text)?;
    if let Some(way_out) = &plan.why.way_out {
        writeln!(out, "way out: {way_out}")?;
    }
    writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
    Ok(())
}
