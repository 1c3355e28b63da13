//! Files that packages own, as dpkg and rpm know them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail};

use crate::standalone::containerd::find;

/// The package managers of a root directory.
pub struct Packages {
    managers: Vec<Manager>,
}

struct Manager {
    program: PathBuf,
    arguments: Vec<String>,
    /// Exit code and text of its answer for a file of no package.
    unowned: (i32, &'static str),
}

impl Packages {
    /// Those that have a database there.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let mut managers = Vec::new();
        let database = root.join("var/lib/dpkg");
        if database.join("status").exists() {
            let admin = format!("--admindir={}", database.display());
            let arguments = vec![admin, "--search".to_owned(), "--".to_owned()];
            let program = find("dpkg-query")?.context("dpkg-query is not installed")?;
            managers.push(Manager { program, arguments, unowned: (1, "no path found") });
        }
        let rpm = ["var/lib/rpm", "usr/lib/sysimage/rpm"].map(|path| root.join(path));
        if rpm.iter().any(|path| path.exists())
            && let Some(program) = find("rpm")?
        {
            let arguments = ["--root", &root.display().to_string(), "-qf"].map(str::to_owned);
            let arguments = arguments.to_vec();
            managers.push(Manager { program, arguments, unowned: (1, "not owned") });
        }
        Ok(Self { managers })
    }

    /// The package that owns the file, if any. A package manager that cannot tell is an error.
    pub fn owner(&self, path: &Path) -> anyhow::Result<Option<String>> {
        for manager in &self.managers {
            if let Some(package) = manager.owner(path)? {
                return Ok(Some(package));
            }
        }
        Ok(None)
    }
}

impl Manager {
    fn owner(&self, path: &Path) -> anyhow::Result<Option<String>> {
        let program = self.program.display();
        let output = Command::new(&self.program)
            .args(&self.arguments)
            .arg(path)
            .env("LC_ALL", "C")
            .output()
            .with_context(|| format!("cannot run {program}"))?;
        let Output { status, stdout, stderr } = output;
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        if status.success() {
            let line = stdout.lines().next().unwrap_or_default();
            // dpkg prints `PACKAGE: PATH`, rpm the package.
            return Ok(Some(line.split(": ").next().unwrap_or(line).to_owned()));
        }
        let (code, text) = self.unowned;
        let missing = stderr.contains("No such file") || stdout.contains("No such file");
        let unowned = stderr.contains(text) || stdout.contains(text) || missing;
        if status.code() == Some(code) && unowned {
            return Ok(None);
        }
        bail!("{program} cannot tell whether a package owns {}: {}", path.display(), stderr.trim())
    }
}
