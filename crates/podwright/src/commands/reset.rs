//! `podwright reset`: stops the node of `podwright up` and deletes its data.

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
        writeln!(out, "nothing to delete: {directory} does not exist")?;
        return Ok(ExitCode::SUCCESS);
    }
    if !state_dir::is_node(&layout)? {
        anyhow::bail!("{directory} was not created by podwright up; nothing deleted");
    }
    if !arguments.yes && !confirmed(&layout)? {
        writeln!(out, "nothing deleted")?;
        return Ok(ExitCode::FAILURE);
    }
    let say = |text: &str| {
        // Progress output is optional; a closed stdout is no error.
        let _ = writeln!(std::io::stdout(), "{text}");
    };
    let lock = NodeLock::take(&layout, "reset", &say)?;
    // Another reset may have finished in the meantime.
    if !state_dir::is_node(&layout)? {
        writeln!(out, "nothing to delete: {directory} is no longer the state directory of a node")?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop_mode = arguments.stop_mode.read();
    service::runtime()?.block_on(teardown::down(&layout, &lock, stop_mode, say))?;
    let leftovers = state_dir::remove_data(&layout)?;
    if !leftovers.failures.is_empty() {
        let failures: Vec<String> =
            leftovers.failures.iter().map(|error| format!("\n  {error:#}")).collect();
        anyhow::bail!(
            "cannot delete:{}\nFix: resolve these errors and run again: \
             podwright reset --state-dir {directory}",
            failures.concat()
        );
    }
    match leftovers.left.as_slice() {
        [] => writeln!(out, "{directory} deleted")?,
        left => writeln!(out, "data removed; left in place: {}", left.join(", "))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks for confirmation; anything but `yes` is a no.
fn confirmed(layout: &Layout) -> anyhow::Result<bool> {
    let mut out = std::io::stdout();
    let directory = layout.state().display();
    write!(out, "This stops all pods and deletes the data of the node in {directory}: objects, ")?;
    write!(out, "images, PersistentVolumeClaim data, logs. Manifests and other files are kept. ")?;
    write!(out, "Type yes to continue: ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
