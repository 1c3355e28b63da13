//! Removal of a bed, however its test ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::machine::{Difference, Kind, MachineSnapshot, Scope};
use podwright_e2e::wait;
use rustix::process::{Pid, Signal, kill_process};

use crate::privilege::{isolated, needs_root};

const LIMIT: Duration = Duration::from_secs(180);

/// Printed by a victim with the id of its bed, when it may be killed.
const STARTED: &str = "started ";

/// A bed with every component and a running sandbox.
async fn full_bed() -> Bed {
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let cri = bed.cri().await.unwrap();
    cri.run_sandbox(cri.sandbox("left")).await.unwrap();
    bed
}

fn snapshot() -> MachineSnapshot {
    MachineSnapshot::take(&Scope::new()).unwrap()
}

/// Changes since `before`; of the cgroups, only those of one bed count.
fn difference(before: &MachineSnapshot, id: &str) -> Difference {
    before.difference(&snapshot()).without_cgroups_of_others(&[id])
}

async fn nothing_differs_from(before: &MachineSnapshot, id: &str) {
    let same = async || {
        let difference = difference(before, id);
        anyhow::ensure!(difference.is_empty(), "{difference}");
        Ok(true)
    };
    wait::until_true("the machine to be unchanged", LIMIT, same).await.unwrap();
}

#[tokio::test]
async fn closed_bed_leaves_the_machine_unchanged() {
    needs_root!();
    isolated!();
    let before = snapshot();
    let bed = full_bed().await;
    let id = bed.id().to_owned();
    let during = difference(&before, &id);
    for (kind, text) in [
        (Kind::Mount, id.as_str()),
        (Kind::Cgroup, &id),
        (Kind::Process, "containerd-shim"),
        (Kind::File, "/run/containerd/s/"),
        (Kind::File, "/var/lib/cni/results/"),
    ] {
        assert!(during.names(kind, text), "no {kind} {text} of bed {id}:\n{during}");
    }
    bed.close().unwrap();
    // after close everything is already removed: no waiting
    assert_eq!(difference(&before, &id).to_string(), "");
}

#[tokio::test]
async fn killed_test_leaves_the_machine_unchanged() {
    needs_root!();
    isolated!();
    if Victim::is_me() {
        return Victim::live().await;
    }
    let before = snapshot();
    let (victim, id) = Victim::start();
    assert!(!difference(&before, &id).added.is_empty());

    victim.kill();
    nothing_differs_from(&before, &id).await;
}

#[tokio::test]
async fn bed_with_killed_cleanup_process_is_removed_by_the_next_bed() {
    needs_root!();
    isolated!();
    if Victim::is_me() {
        return Victim::live().await;
    }
    let before = snapshot();
    let (victim, id) = Victim::start();
    for pid in victim.cleanup_processes() {
        kill_process(pid, Signal::KILL).unwrap();
    }
    victim.kill();
    assert!(!difference(&before, &id).added.is_empty());

    // when another bed is started and closed
    Bed::builder().start().await.unwrap().close().unwrap();
    nothing_differs_from(&before, &id).await;
}

/// A process that holds a bed with a pod until it is killed: the same test with [`Victim::MARK`]
/// set.
struct Victim(Child);

impl Victim {
    const MARK: &str = "PODWRIGHT_E2E_VICTIM";

    /// Whether this process is the victim.
    fn is_me() -> bool {
        std::env::var_os(Self::MARK).is_some()
    }

    #[allow(clippy::print_stdout, reason = "tells the parent that it may kill this process")]
    async fn live() {
        let bed = full_bed().await;
        println!("\n{STARTED}{}", bed.id());
        std::future::pending::<()>().await;
        drop(bed);
    }

    /// Starts it; also returns the id of its bed.
    fn start() -> (Self, String) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg(std::thread::current().name().unwrap())
            .env(Self::MARK, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.lines().map_while(Result::ok);
        let id = lines.find_map(|line| line.strip_prefix(STARTED).map(str::to_owned));
        (Self(process), id.expect("the victim has no bed"))
    }

    /// Its cleanup processes: all children with that name.
    fn cleanup_processes(&self) -> Vec<Pid> {
        let parent = format!("PPid:\t{}\n", self.0.id());
        let pids: Vec<Pid> = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|proc| {
                let status = fs::read_to_string(proc.path().join("status")).unwrap_or_default();
                status.starts_with("Name:\tbed-cleanup\n") && status.contains(&parent)
            })
            .filter_map(|proc| Pid::from_raw(proc.file_name().to_str()?.parse().ok()?))
            .collect();
        assert!(!pids.is_empty(), "the victim has no cleanup process");
        pids
    }

    fn kill(mut self) {
        self.0.kill().unwrap(); // SIGKILL
        self.0.wait().unwrap();
    }
}
