//! Comparison of the simulator's journals between two commits.
//!
//! A change that rearranges or renames should change nothing that a runtime, an API server or a
//! reader of Events can see. Each side is run with `PODWRIGHT_SIM_JOURNAL`, which has every
//! simulated world write what its agent did (`crates/testkit/src/sim/journal.rs`); then the files
//! are compared. A commit from before the journals has none to compare with.

mod comparison;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail, ensure};

use crate::cargo::Workspace;
use comparison::Comparison;

const VARIABLE: &str = "PODWRIGHT_SIM_JOURNAL";
/// What the writer of journals is in: a commit without it has none.
const WRITER: &str = "crates/testkit/src/sim/journal.rs";

/// Compares `head`, or the work tree as it is, with `base`.
pub(crate) fn run(
    workspace: &Workspace,
    base: &str,
    head: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let target = workspace.root.join("target/journals");
    fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    // Worlds stand at the same places on both sides, so no two comparisons can run at once.
    let lock = File::create(std::env::temp_dir().join("podwright-journals.lock"))?;
    if lock.try_lock().is_err() {
        println!("another comparison runs; waiting for its end");
        lock.lock()?;
    }
    let base = Side::of_commit(workspace, base)?;
    let head = match head {
        Some(head) => Side::of_commit(workspace, head)?,
        None => Side::of_work_tree(workspace)?,
    };
    let (base_dir, head_dir) = (target.join("base"), target.join("head"));
    base.write(workspace, &base_dir)?;
    head.write(workspace, &head_dir)?;
    println!("base: {}\nhead: {}", base.name, head.name);
    compare(&base_dir, &head_dir)
}

/// Compares two directories of journals; fails if they differ.
pub(crate) fn compare(base: &Path, head: &Path) -> anyhow::Result<ExitCode> {
    let comparison = Comparison::of(base, head)?;
    ensure!(comparison.files > 0, "there are no journals in {}", base.display());
    print!("{comparison}");
    if comparison.is_same() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("journals: {} and {}", base.display(), head.display());
    Ok(ExitCode::FAILURE)
}

/// One of the two trees that are compared.
struct Side {
    name: String,
    tree: PathBuf,
    /// Removed at the end, if it was made for this.
    _checkout: Option<tempfile::TempDir>,
}

impl Side {
    fn of_work_tree(workspace: &Workspace) -> anyhow::Result<Self> {
        let name = format!("the work tree at {}", workspace.root.display());
        Ok(Self { name, tree: workspace.root.clone(), _checkout: None })
    }

    /// A commit's files, outside the work tree. An archive and not a worktree: nothing is left in
    /// the repository if this is killed.
    fn of_commit(workspace: &Workspace, commit: &str) -> anyhow::Result<Self> {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(&workspace.root).args(arguments);
            git
        };
        let parsed = git(&["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")]);
        let hash = read(parsed).with_context(|| {
            format!("{commit} is no commit of this repository (a shallow clone lacks most)")
        })?;
        let hash = hash.trim();
        if read(git(&["cat-file", "-e", &format!("{hash}:{WRITER}")])).is_err() {
            bail!(
                "{commit} cannot write journals: it has no {WRITER}. The oldest commit that can \
                 be compared is the one that added that file"
            );
        }
        let checkout = tempfile::Builder::new().prefix("podwright-journals-").tempdir()?;
        let mut archive = git(&["archive", "--format=tar", hash]).stdout(Stdio::piped()).spawn()?;
        let tar = archive.stdout.take().context("git archive has no output")?;
        let mut unpack = Command::new("tar");
        unpack.arg("-x").current_dir(checkout.path()).stdin(tar);
        ensure!(unpack.status()?.success(), "cannot unpack {commit}");
        ensure!(archive.wait()?.success(), "git archive {commit} failed");
        let tree = checkout.path().to_owned();
        Ok(Self { name: format!("{commit} ({hash})"), tree, _checkout: Some(checkout) })
    }

    /// Runs all simulations; their journals are below `directory` afterwards, and nothing else.
    fn write(&self, workspace: &Workspace, directory: &Path) -> anyhow::Result<()> {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("clear {}", directory.display()));
            }
            Ok(()) | Err(_) => {}
        }
        fs::create_dir_all(directory)?;
        println!("simulating {}", self.name);
        let mut cargo = workspace.cargo();
        cargo.current_dir(&self.tree);
        // All of the workspace, as `./test` builds it: what is built already is used.
        cargo.args(["test", "--quiet", "--workspace", "--all-features", "--no-fail-fast"]);
        cargo.args(["--test", "sim", "--test", "soak"]);
        cargo.env(VARIABLE, directory);
        // A test is known by its thread, and a single one has none of its own.
        if std::env::var_os("RUST_TEST_THREADS").as_deref() == Some(OsStr::new("1")) {
            cargo.env("RUST_TEST_THREADS", "2");
        }
        if std::env::var_os("CARGO_BUILD_BUILD_DIR").is_none() {
            cargo.env("CARGO_BUILD_BUILD_DIR", workspace.root.join("target"));
        }
        cargo.env("CARGO_TARGET_DIR", self.tree.join("target"));
        ensure!(cargo.status()?.success(), "simulations of {} failed", self.name);
        Ok(())
    }
}

fn read(mut command: Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
