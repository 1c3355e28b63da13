//! Tests of the pause program as a process: alone, and as process 1 of a namespace.

// Marks helpers without #[test] as test code for clippy.
#![cfg(test)]

use std::fs;
use std::io::Write as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = concat!(env!("OUT_DIR"), "/pause");
const TIMEOUT: Duration = Duration::from_secs(30);

#[test]
fn program_is_small() {
    let size = podwright_pause::PROGRAM.len();
    assert!(size < 16 << 10, "{size} bytes: does it still link without the C library?");
}

#[test]
fn program_runs_until_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut pause = Started::new(&mut Command::new(PROGRAM));
        await_that("it pauses", || pause.process().pauses());
        assert!(!pause.has_ended(), "it exited by itself");

        pause.process().send(signal);
        assert_eq!(pause.end().code(), Some(0), "after {signal:?}");
    }
}

#[test]
fn program_exits_even_if_started_with_signals_ignored() {
    let ignoring = ["-c", "trap '' TERM CHLD; exec \"$0\"", PROGRAM];
    let pause = Started::new(Command::new("sh").args(ignoring));
    await_that("it pauses", || pause.process().pauses());
    pause.process().send(Signal::TERM);
    assert_eq!(pause.end().code(), Some(0));
}

#[test]
fn process_1_reaps_orphans_and_exits_on_sigterm() {
    if !rustix::process::geteuid().is_root() {
        skip("process_1_reaps_orphans_and_exits_on_sigterm", "a pid namespace needs root");
        return;
    }
    // A shell becomes process 1, and then pause. Before that, a second shell starts three `cat` and
    // exits, which makes them orphans; they run until the pipe on descriptor 3 is closed.
    const ORPHANS: usize = 3;
    let script = "sh -c 'cat <&3 & cat <&3 & cat <&3 &' 3<&0; exec \"$0\"";
    let mut unshare = Started::new(
        Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", script, PROGRAM])
            .stdin(Stdio::piped()),
    );
    await_that("pause is process 1 of the namespace", || {
        unshare.process().children().first().is_some_and(Process::pauses)
    });
    let pause = unshare.process().children().remove(0);
    await_that("the orphans are its children", || pause.children().len() == ORPHANS);

    drop(unshare.0.stdin.take());
    // A zombie is still listed as a child: none is left only if each was waited for.
    await_that("the orphans are reaped", || pause.children().is_empty());
    assert!(!unshare.has_ended(), "it exited with its last child");

    pause.send(Signal::TERM);
    assert_eq!(unshare.end().code(), Some(0));
}

/// A child that is killed at the end of the test.
struct Started(Child);

impl Started {
    fn new(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    fn process(&self) -> Process {
        Process(self.0.id())
    }

    fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    fn end(mut self) -> ExitStatus {
        await_that(&format!("process {} ends", self.0.id()), || self.has_ended());
        self.0.wait().unwrap()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Process(u32);

impl Process {
    /// It sleeps; it only ever waits for its signals.
    fn pauses(&self) -> bool {
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.0)) else {
            return false;
        };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        field("Name:").trim() == "pause" && field("State:").trim().starts_with('S')
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// Its children, including zombies, in order of their ids.
    fn children(&self) -> Vec<Process> {
        let mut ids: Vec<u32> = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .filter(|id| parent(*id) == Some(self.0))
            .collect();
        ids.sort_unstable();
        ids.into_iter().map(Process).collect()
    }
}

/// The fourth field of `stat`; the second, a name in parentheses, may contain blanks.
fn parent(id: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {TIMEOUT:?} until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Written past the test harness, which captures the output of a passing test.
fn skip(test: &str, why: &str) {
    writeln!(std::io::stderr(), "{test}: skipped: {why}").unwrap();
}
