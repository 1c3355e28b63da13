//! `podwright reset`: `podwright down`, and the data goes too.

use std::io::{BufRead as _, Write as _};

use anyhow::Context as _;

use crate::cli::ResetArgs;
use crate::service;
use crate::standalone::{Layout, teardown};

/// Stops what `podwright up` started and deletes its state folder.
pub fn run(arguments: &ResetArgs) -> anyhow::Result<()> {
    super::up::require_root("podwright reset")?;
    let layout = Layout::new(&std::path::absolute(&arguments.state_dir)?);
    let folder = layout.state();
    let mut out = std::io::stdout();
    if !folder.exists() {
        writeln!(out, "nothing to delete: there is no {}", folder.display())?;
        return Ok(());
    }
    // A folder that is not ours would be deleted just as thoroughly.
    if !layout.is_ours() {
        anyhow::bail!("{} was not made by podwright up; nothing is deleted", folder.display());
    }
    if !arguments.yes && !confirmed(&layout)? {
        writeln!(out, "nothing is deleted")?;
        return Ok(());
    }
    let say = |text: &str| {
        // If nobody reads it, nobody misses it.
        let _ = writeln!(std::io::stdout(), "{text}");
    };
    service::runtime()?.block_on(teardown::down(&layout, say))?;
    std::fs::remove_dir_all(folder)
        .with_context(|| format!("cannot delete {}", folder.display()))?;
    writeln!(out, "{} is deleted", folder.display())?;
    Ok(())
}

/// Asks; no answer is no.
fn confirmed(layout: &Layout) -> anyhow::Result<bool> {
    let mut out = std::io::stdout();
    let folder = layout.state().display();
    write!(out, "This stops every pod and deletes {folder}: objects, images, volumes, logs. ")?;
    write!(out, "Type yes to go on: ")?;
    out.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
