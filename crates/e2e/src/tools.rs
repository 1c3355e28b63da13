//! Programs of a bed, from the cache that `testbed/provide` fills.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::process::{Stdin, run};

/// Time limit for fetching and building a program.
const LIMIT: Duration = Duration::from_secs(3600);

/// The root of the repository that this was built from.
pub fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The directory with the programs of `name`, obtained first if necessary. The first time can take
/// minutes (`kube-apiserver` is built from source).
pub fn provide(name: &str) -> Result<PathBuf> {
    let script = repository().join("testbed/provide");
    let mut command = Command::new(&script);
    command.arg(name);
    let output = run(&mut command, Stdin::Ends(b""), LIMIT)?;
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    anyhow::ensure!(
        output.status.success() && !directory.is_empty(),
        "{} {name} exited with {}:\n{}",
        script.display(),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(directory.into())
}

/// The agent under test: `PODWRIGHT_BIN`, or the newest build in `target`.
pub fn podwright() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PODWRIGHT_BIN") {
        return Ok(path.into());
    }
    let target = repository().join("target");
    let builds = ["debug", "release"].map(|profile| target.join(profile).join("podwright"));
    let newest = builds.into_iter().max_by_key(|path| built(path));
    newest.filter(|path| built(path).is_some()).with_context(|| {
        format!("no podwright below {}; run cargo build, or set PODWRIGHT_BIN", target.display())
    })
}

/// The program of an earlier commit, for upgrades: `PODWRIGHT_EARLIER`, or the one that
/// `testbed/provide` builds.
pub fn earlier() -> Result<PathBuf> {
    match std::env::var_os("PODWRIGHT_EARLIER") {
        Some(path) => Ok(path.into()),
        None => Ok(provide("podwright-earlier")?.join("podwright")),
    }
}

fn built(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|file| file.modified()).ok()
}

/// The upstream kubelet to compare with, if `PODWRIGHT_REFERENCE` is set.
pub fn reference() -> Option<PathBuf> {
    std::env::var_os("PODWRIGHT_REFERENCE").map(PathBuf::from)
}
