//! Comparison of the simulator's journals between two commits.
//!
//! A change that rearranges or renames should change nothing that a runtime, an API server or a
//! reader of Events can see. Each side is run with `PODWRIGHT_SIM_JOURNAL`, which makes every
//! simulation write what its agent did (`crates/testkit/src/sim/journal.rs`); then the files are
//! compared. A commit older than the journals cannot be compared.

mod comparison;

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

use crate::cargo::Workspace;
use comparison::Comparison;

const VARIABLE: &str = "PODWRIGHT_SIM_JOURNAL";
/// File that writes the journals: a commit without it has none.
const WRITER: &str = "crates/testkit/src/sim/journal.rs";

/// Compares `head`, or the work tree, with `base`.
pub(crate) fn run(
    workspace: &Workspace,
    base: &str,
    head: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let target = workspace.root.join("target/journals");
    fs::create_dir_all(&target).with_context(|| format!("create {}", target.display()))?;
    // Simulations use the same directories on both sides, so only one comparison can run at a time.
    let lock = File::create(std::env::temp_dir().join("podwright-journals.lock"))?;
    if lock.try_lock().is_err() {
        println!("another comparison is running; waiting for it to finish");
        lock.lock()?;
    }
    let base = Side::of_commit(workspace, base)?;
    let head = match head {
        Some(head) => Side::of_commit(workspace, head)?,
        None => Side::WorkTree,
    };
    let (base_dir, head_dir) = (target.join("base"), target.join("head"));
    base.write(workspace, &base_dir)?;
    head.write(workspace, &head_dir)?;
    println!("base: {base}\nhead: {head}");
    let comparison = Comparison::of(&base_dir, &head_dir)?;
    if comparison.is_same() {
        return report(&comparison, &base_dir, &head_dir);
    }
    // Some simulations differ between two runs of one commit, because tokio picks a random order.
    // Running each side again finds them.
    println!(
        "journals differ; running each side again to find simulations that are not reproducible"
    );
    let (base_again, head_again) = (target.join("base-again"), target.join("head-again"));
    base.write(workspace, &base_again)?;
    head.write(workspace, &head_again)?;
    let again = [(base_dir.as_path(), base_again.as_path()), (&head_dir, &head_again)];
    report(&comparison.without_unstable(again), &base_dir, &head_dir)
}

/// Compares two directories of journals; fails if they differ.
pub(crate) fn compare(base: &Path, head: &Path) -> anyhow::Result<ExitCode> {
    report(&Comparison::of(base, head)?, base, head)
}

fn report(comparison: &Comparison, base: &Path, head: &Path) -> anyhow::Result<ExitCode> {
    ensure!(comparison.files > 0, "no journals in {}", base.display());
    print!("{comparison}");
    if comparison.is_same() {
        return Ok(ExitCode::SUCCESS);
    }
    println!("journals: {} and {}", base.display(), head.display());
    Ok(ExitCode::FAILURE)
}

/// One of the two compared trees.
enum Side {
    WorkTree,
    Commit { name: String, hash: String },
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkTree => f.write_str("the work tree"),
            Self::Commit { name, hash } => write!(f, "{name} ({hash})"),
        }
    }
}

impl Side {
    fn of_commit(workspace: &Workspace, name: &str) -> anyhow::Result<Self> {
        let commit = format!("{name}^{{commit}}");
        let hash = read(git(workspace, &["rev-parse", "--verify", "--quiet", &commit]));
        let hash = hash.with_context(|| {
            format!("{name} is not a commit of this repository (is it a shallow clone?)")
        })?;
        let hash = hash.trim().to_owned();
        if read(git(workspace, &["cat-file", "-e", &format!("{hash}:{WRITER}")])).is_err() {
            bail!(
                "{name} cannot write journals: it has no {WRITER}. The oldest commit that can \
                 be compared is the one that added that file"
            );
        }
        Ok(Self::Commit { name: name.to_owned(), hash })
    }

    /// Runs all simulations; afterwards `directory` holds their journals and nothing else.
    fn write(&self, workspace: &Workspace, directory: &Path) -> anyhow::Result<()> {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("clear {}", directory.display()));
            }
            Ok(()) | Err(_) => {}
        }
        fs::create_dir_all(directory)?;
        println!("simulating {self}");
        let mut cargo = workspace.cargo();
        // The whole workspace, as `./test` builds it, so that existing build artifacts are used.
        cargo.args(["test", "--quiet", "--workspace", "--all-features", "--no-fail-fast"]);
        cargo.args(["--test", "sim", "--test", "soak"]);
        cargo.env(VARIABLE, directory);
        // A test is identified by its thread, and a single test has no thread of its own.
        if std::env::var_os("RUST_TEST_THREADS").as_deref() == Some(OsStr::new("1")) {
            cargo.env("RUST_TEST_THREADS", "2");
        }
        let checkout = match self {
            Self::WorkTree => None,
            Self::Commit { hash, .. } => Some(check_out(workspace, hash)?),
        };
        if let Some(checkout) = &checkout {
            // Cargo gives our packages of two commits the same names; in a shared target directory
            // it would confuse them.
            let build = workspace.root.join("target/journals/build");
            cargo.current_dir(checkout.path());
            cargo.env("CARGO_TARGET_DIR", &build).env("CARGO_BUILD_BUILD_DIR", &build);
        }
        ensure!(cargo.status()?.success(), "simulations of {self} failed");
        Ok(())
    }
}

/// Files of a commit, outside the work tree. An archive and not a worktree: nothing is left in the
/// repository if this is killed. Their modification time is now, so that cargo does not reuse
/// artifacts built from another commit.
fn check_out(workspace: &Workspace, hash: &str) -> anyhow::Result<TempDir> {
    let checkout = tempfile::Builder::new().prefix("podwright-journals-").tempdir()?;
    let mut archive = git(workspace, &["archive", "--format=tar", hash]);
    let mut archive = archive.stdout(Stdio::piped()).spawn()?;
    let tar = archive.stdout.take().context("git archive has no output")?;
    let mut unpack = Command::new("tar");
    unpack.args(["-x", "-m"]).current_dir(checkout.path()).stdin(tar);
    ensure!(unpack.status()?.success(), "cannot unpack {hash}");
    ensure!(archive.wait()?.success(), "git archive {hash} failed");
    Ok(checkout)
}

fn git(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(&workspace.root).args(arguments);
    git
}

fn read(mut command: Command) -> anyhow::Result<String> {
    let output = command.stderr(Stdio::null()).output()?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
