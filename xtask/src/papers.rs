//! Man pages and completions for packagers.
//!
//! The program writes them itself, so they cannot differ from it. Linking it in here instead would
//! make every xtask command wait for it to compile.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::cargo::Workspace;

/// Shell, and the file name its completions are loaded from.
const SHELLS: [(&str, &str); 3] =
    [("bash", "podwright.bash"), ("zsh", "_podwright"), ("fish", "podwright.fish")];

pub(crate) fn write(workspace: &Workspace, out: &Path) -> anyhow::Result<()> {
    let (man, completions) = (out.join("man1"), out.join("completions"));
    fs::create_dir_all(&man)?;
    fs::create_dir_all(&completions)?;
    podwright(workspace, &["man", &man.to_string_lossy()])?;
    for (shell, file) in SHELLS {
        let script = podwright(workspace, &["completion", shell])?;
        fs::write(completions.join(file), script)?;
    }
    println!("{} and {}", man.display(), completions.display());
    Ok(())
}

fn podwright(workspace: &Workspace, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["run", "--quiet", "--package", "podwright", "--"])
        .args(arguments)
        .current_dir(&workspace.root)
        .output()
        .context("cannot run cargo")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "podwright {}: {stderr}", arguments.join(" "));
    Ok(output.stdout)
}
