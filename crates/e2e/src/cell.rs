//! A view of the machine that one test has to itself: its own processes, mounts, network, /run and
//! temporary directories.
//!
//! Why: to see that nothing is left behind one has to compare the whole machine, and a machine has
//! other users, other beds among them. Only the cgroups are everyone's: those of others must be
//! left out of a snapshot by their names.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use podwright_testkit::report;

use crate::case;
use crate::process::{Stdin, everything, run};
use crate::tools::repository;

/// Set inside a cell.
const MARK: &str = "PODWRIGHT_CELL";

/// Between the limit of a case and that of its part in a cell.
const MARGIN: Duration = Duration::from_secs(60);

/// Gets the cell ready and runs the program as a child, so that the shell is there to take the exit
/// codes of orphans.
///
/// Mounts of other tests are unmounted, in this view only. It would keep them from going; and when
/// another test removes the directory that one of them is on, the kernel takes the mount out of
/// every namespace, here too, where it would look like harm done by the node under test. Tests
/// mount below temporary directories and /run; what holds the programs in `KEEP` stays.
///
/// Temporary directories are the cell's own too, unless what it runs is below them. The others are those that runtimes share whatever they are told, as a machine has them on
/// which a runtime has run before. At last everything is made
/// shared, in peer groups of the cell's own, as systemd does it on a real machine: an unmount that
/// spreads to the host's own mounts has to be seen.
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

/// Whether this process is in a cell.
pub fn inside() -> bool {
    std::env::var_os(MARK).is_some()
}

/// A command that runs in a cell of its own. Nothing can be installed or fetched there: what it
/// needs must be [provided](crate::tools::provide) before.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation=private", "--net", "--pid", "--fork", "--mount-proc"])
        .args(["sh", "-c", SETUP, "cell"])
        .arg(program)
        .env(MARK, "1")
        .env("KEEP", kept_paths())
        .env("PODWRIGHT_BEDS", "/run/podwright-beds");
    command
}

/// Paths whose mounts a cell needs, whatever else they look like.
fn kept_paths() -> String {
    let programs =
        [std::env::current_exe().ok(), std::env::var_os("PODWRIGHT_BIN").map(Into::into)];
    let kept = programs.into_iter().flatten().chain([repository().join(".")]);
    kept.map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
}

/// Runs a test of this test binary again, in a cell; its failure carries what it printed.
pub fn run_test(name: &str) -> Result<()> {
    let me = std::env::current_exe().context("finding this test binary")?;
    let mut command = command(me);
    // The limits inside strike first, so that only this case fails.
    let inside = case::limit().saturating_sub(MARGIN * 2).as_secs().to_string();
    command.args(["--exact", "--nocapture", name]).env(case::LIMIT, inside);
    let output = run(&mut command, Stdin::Ends(b""), case::limit().saturating_sub(MARGIN))?;
    let said = everything(&output);
    anyhow::ensure!(
        output.status.success(),
        "{name} in a cell ended with {}:\n{said}",
        output.status
    );
    anyhow::ensure!(said.contains("test result: ok. 1 passed"), "no test is called {name}: {said}");
    report::repeat(&said);
    Ok(())
}
