//! A bed leaves nothing behind, however its test ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::machine::{Difference, Kind, MachineSnapshot, Scope};
use podwright_e2e::wait;
use rustix::process::{Pid, Signal, kill_process};

use crate::privilege::{in_a_cell, needs_root};

const LIMIT: Duration = Duration::from_secs(180);

/// What a victim says, with the id of its bed, when it may be killed.
const FURNISHED: &str = "furnished ";

/// Makes a bed of every part, with a running sandbox in it.
async fn furnished() -> Bed {
    let bed = Bed::builder().control_plane().start().await.unwrap();
    let cri = bed.cri().await.unwrap();
    cri.run_sandbox(cri.sandbox("left")).await.unwrap();
    bed
}

fn snapshot() -> MachineSnapshot {
    MachineSnapshot::take(&Scope::new()).unwrap()
}

/// What changed since; of the cgroups, only those of one bed count.
fn difference(before: &MachineSnapshot, id: &str) -> Difference {
    before.difference(&snapshot()).without_cgroups_of_others(&[id])
}

async fn nothing_differs_from(before: &MachineSnapshot, id: &str) {
    let same = async || {
        let difference = difference(before, id);
        anyhow::ensure!(difference.is_empty(), "{difference}");
        Ok(true)
    };
    wait::until_true("the machine as it was", LIMIT, same).await.unwrap();
}

#[tokio::test]
async fn bed_that_is_closed_leaves_the_machine_as_it_was() {
    needs_root!();
    in_a_cell!();
    let before = snapshot();
    let bed = furnished().await;
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
    // when it is closed all is gone already: nothing to wait for
    assert_eq!(difference(&before, &id).to_string(), "");
}

#[tokio::test]
async fn test_that_is_killed_leaves_the_machine_as_it_was() {
    needs_root!();
    in_a_cell!();
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
async fn bed_whose_guardian_was_killed_too_is_cleared_away_by_the_next() {
    needs_root!();
    in_a_cell!();
    if Victim::is_me() {
        return Victim::live().await;
    }
    let before = snapshot();
    let (victim, id) = Victim::start();
    for pid in victim.guardians() {
        kill_process(pid, Signal::KILL).unwrap();
    }
    victim.kill();
    assert!(!difference(&before, &id).added.is_empty());

    // when another bed comes and goes
    Bed::builder().start().await.unwrap().close().unwrap();
    nothing_differs_from(&before, &id).await;
}

/// A process that has a bed with a pod in it, until it is killed: the same test, told to be it.
struct Victim(Child);

impl Victim {
    const MARK: &str = "PODWRIGHT_E2E_VICTIM";

    /// Whether this process is to be killed.
    fn is_me() -> bool {
        std::env::var_os(Self::MARK).is_some()
    }

    #[allow(clippy::print_stdout, reason = "how the killer learns that it may kill")]
    async fn live() {
        let bed = furnished().await;
        println!("\n{FURNISHED}{}", bed.id());
        std::future::pending::<()>().await;
        drop(bed);
    }

    /// Starts it, and returns the id of its bed too.
    fn start() -> (Self, String) {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg(std::thread::current().name().unwrap())
            .env(Self::MARK, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        let mut lines = said.lines().map_while(Result::ok);
        let id = lines.find_map(|line| line.strip_prefix(FURNISHED).map(str::to_owned));
        (Self(process), id.expect("the victim never had a bed"))
    }

    /// Its guardians: all children of that name.
    fn guardians(&self) -> Vec<Pid> {
        let parent = format!("PPid:\t{}\n", self.0.id());
        let pids: Vec<Pid> = fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|proc| {
                let status = fs::read_to_string(proc.path().join("status")).unwrap_or_default();
                status.starts_with("Name:\tbed-guardian\n") && status.contains(&parent)
            })
            .filter_map(|proc| Pid::from_raw(proc.file_name().to_str()?.parse().ok()?))
            .collect();
        assert!(!pids.is_empty(), "the victim has no guardian");
        pids
    }

    fn kill(mut self) {
        self.0.kill().unwrap(); // SIGKILL
        self.0.wait().unwrap();
    }
}
