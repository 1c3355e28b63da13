//! `podwright plan`: replays a recorded decision.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use podwright_core::plan::{self, Case};

/// Reads a case and prints the decision and its reason.
pub fn run(path: &Path) -> anyhow::Result<()> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let case: Case = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not a case recorded by podwright why --record"))?;
    let plan = plan::decide(&case.inputs());
    let mut out = std::io::stdout();
    writeln!(out, "pod {} is {:?}: {}", case.pod.name, case.lifecycle.stage(), plan.why.text)?;
    if let Some(fix) = &plan.why.fix {
        writeln!(out, "fix: {fix}")?;
    }
    writeln!(out, "{}", serde_json::to_string_pretty(&plan)?)?;
    Ok(())
}
