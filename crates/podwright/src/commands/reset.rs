//! `podwright reset`: `podwright down`, and the data goes too.

use std::io::{BufRead as _, Write as _};
use std::process::ExitCode;

use crate::cli::ResetArgs;
use crate::service;
use crate::standalone::lock::NodeLock;
use crate::standalone::{Layout, state_dir, teardown};

/// Stops what `podwright up` started and deletes what it made in its state directory.
pub fn run(arguments: &ResetArgs) -> anyhow::Result<ExitCode> {
    super::up::require_root("podwright reset")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let directory = layout.state().display();
    let mut out = std::io::stdout();
    if !layout.state().exists() {
        writeln!(out, "nothing to delete: there is no {directory}")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !state_dir::is_node(&layout)? {
        anyhow::bail!("{directory} was not made by podwright up; nothing deleted");
    }
    if !arguments.yes && !confirmed(&layout)? {
        writeln!(out, "nothing deleted")?;
        return Ok(ExitCode::FAILURE);
    }
    let say = |text: &str| {
        // If nobody reads it, nobody misses it.
        let _ = writeln!(std::io::stdout(), "{text}");
    };
    let lock = NodeLock::take(&layout, "reset", &say)?;
    // Another reset may have been quicker.
    if !state_dir::is_node(&layout)? {
        writeln!(out, "nothing to delete: {directory} is not a node's any more")?;
        return Ok(ExitCode::SUCCESS);
    }
    let haste = arguments.haste.read();
    service::runtime()?.block_on(teardown::down(&layout, &lock, haste, say))?;
    let leftovers = state_dir::remove_data(&layout)?;
    if !leftovers.failures.is_empty() {
        let told: Vec<String> =
            leftovers.failures.iter().map(|error| format!("\n  {error:#}")).collect();
        anyhow::bail!(
            "not everything could be deleted:{}\nfix it and try again: \
             podwright reset --state-dir {directory}",
            told.concat()
        );
    }
    match leftovers.left.as_slice() {
        [] => writeln!(out, "{directory} deleted")?,
        left => writeln!(out, "data removed; left in place: {}", left.join(", "))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks; no answer is no.
fn confirmed(layout: &Layout) -> anyhow::Result<bool> {
    let mut out = std::io::stdout();
    let directory = layout.state().display();
    write!(out, "This stops every pod and deletes what the node made in {directory}: objects, ")?;
    write!(out, "images, volumes of claims, logs. Manifests and other files of yours stay. ")?;
    write!(out, "Type yes to go on: ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
