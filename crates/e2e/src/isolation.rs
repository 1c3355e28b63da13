//! Isolated view of the machine for one test: its own processes, mounts, network, /run and
//! temporary directories.
//!
//! To detect leftovers, a test compares the whole machine, and a machine has other users, including
//! other beds. Only cgroups are shared: those of others are filtered out of a snapshot by name.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use podwright_testkit::report;

use crate::case;
use crate::process::{Stdin, everything, run};
use crate::tools::repository;

/// Set inside an isolated environment.
const MARK: &str = "PODWRIGHT_ISOLATED";

/// Difference between the limit of a case and that of its isolated part.
const MARGIN: Duration = Duration::from_secs(60);

/// Prepares the namespaces and runs the program as a child, so that the shell can reap orphans.
///
/// Mounts of other tests are unmounted, in this mount namespace only. Otherwise they would stay
/// busy; and when another test removes the directory that one of them is on, the kernel removes the
/// mount from every namespace, including this one, where it would look like damage by the node
/// under test. Tests mount below temporary directories and /run; mounts that hold the programs in
/// `KEEP` stay.
///
/// Temporary directories are private too, unless the program itself is below them. The other
/// directories are those that runtimes share regardless of their configuration; they exist as on a
/// machine on which a runtime has run before. Finally everything is made shared, in new peer
/// groups, as systemd does on a real machine, so that an unmount that propagates to the host's own
/// mounts is detected.
const SETUP: &str = r#"
set -e
tac /proc/self/mounts | while read -r _ point kind _; do
    for kept in $KEEP; do
        case $kept in "$point"/*) continue 2 ;; esac
    done
    case $kind:$point in
        overlay:* | nsfs:* | *:/run/* | *:/tmp/* | *:/var/tmp/*) umount -lq "$point" || : ;;
    esac
done
for directory in /run /var/lib/cni /var/log/containers /dev/shm; do
    mkdir -p "$directory"
    mount -t tmpfs tmpfs "$directory"
done
for directory in /tmp /var/tmp; do
    case " $KEEP" in *" $directory/"*) continue ;; esac
    mount -t tmpfs -o mode=1777 tmpfs "$directory"
done
chmod 1777 /dev/shm
mkdir -p /run/podwright-beds /run/netns /run/containerd /var/lib/cni/results
mkdir -m 711 /run/containerd/s
touch /run/xtables.lock && chmod 600 /run/xtables.lock
mount --make-rshared /
ip link set lo up
set +e
"$@"
exit $?
"#;

/// Whether this process is isolated.
pub fn inside() -> bool {
    std::env::var_os(MARK).is_some()
}

/// A command that runs isolated. Nothing can be installed or fetched there: its tools must be
/// [provided](crate::tools::provide) before.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation=private", "--net", "--pid", "--fork", "--mount-proc"])
        .args(["sh", "-c", SETUP, "isolated"])
        .arg(program)
        .env(MARK, "1")
        .env("KEEP", kept_paths())
        .env("PODWRIGHT_BEDS", "/run/podwright-beds");
    command
}

/// Paths whose mounts are kept in isolation, whatever they look like.
fn kept_paths() -> String {
    let programs =
        [std::env::current_exe().ok(), std::env::var_os("PODWRIGHT_BIN").map(Into::into)];
    let kept = programs.into_iter().flatten().chain([repository().join(".")]);
    kept.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Runs a test of this test binary again, isolated; its failure includes its output.
pub fn run_test(name: &str) -> Result<()> {
    let me = std::env::current_exe().context("finding this test binary")?;
    let mut command = command(me);
    // The limits inside expire first, so that only this case fails.
    let inside = case::limit().saturating_sub(MARGIN * 2).as_secs().to_string();
    command.args(["--exact", "--nocapture", name]).env(case::LIMIT, inside);
    let output = run(&mut command, Stdin::Ends(b""), case::limit().saturating_sub(MARGIN))?;
    let printed = everything(&output);
    anyhow::ensure!(
        output.status.success(),
        "{name}: isolated run ended with {}:\n{printed}",
        output.status
    );
    anyhow::ensure!(
        printed.contains("test result: ok. 1 passed"),
        "no test named {name}: {printed}"
    );
    report::repeat(&printed);
    Ok(())
}
