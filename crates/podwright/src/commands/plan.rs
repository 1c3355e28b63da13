//! `podwright plan`: replays a recorded decision.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use podwright_core::plan::{self, Case};

use crate::printable::printable;

/// Reads a case and prints the decision and its reason.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let case: Case = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a case recorded by podwright why --record"))?;
    let plan = plan::decide(&case.inputs());
    let mut out = std::io::stdout();
    let stage = case.lifecycle.stage();
    writeln!(out, "pod {} is {stage:?}: {}", case.pod.name, printable(&plan.why.text))?;
    if let Some(fix) = &plan.why.fix {
        writeln!(out, "fix: {}", printable(fix))?;
    }
    writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
    Ok(())
}
