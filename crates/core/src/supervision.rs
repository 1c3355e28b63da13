//! Supervision of a container runtime that the agent started: when it counts as hanging, and when
//! it is started again.
//!
//! Restarts are cheap, because containers belong to their shims and survive. So the first start
//! follows at once, and only a runtime that does not stay up is started with a back-off.

use std::time::Duration;

use crate::backoff::Doubling;
use crate::time::Mono;

/// A runtime that was up for this long starts without a delay.
const STABLE: Duration = Duration::from_secs(60);
const DELAYS: Doubling = Doubling::new(Duration::from_secs(1), Duration::from_secs(60));
/// Interval of probes while it responds.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval until the first response after a start.
const START_INTERVAL: Duration = Duration::from_millis(250);
/// Failed probes in a row after which it counts as hanging. Probes and not time: a machine may have
/// been suspended.
const MAX_SILENT: u32 = 4;
/// The same for a runtime that is starting, which loads the state of all its containers: 3 minutes
/// of refused probes.
const MAX_SILENT_AT_START: u32 = 720;
/// Probes that time out, rather than being refused at once, take longer.
const START_LIMIT: Duration = Duration::from_secs(180);

/// What to do after a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    ProbeAfter(Duration),
    /// It does not respond any more: kill it.
    Hanging,
}

/// State of one supervised runtime.
#[derive(Clone, Debug)]
pub struct Supervision {
    /// When the running one was started or found.
    since: Mono,
    responded: bool,
    /// Failed probes in a row.
    silent: u32,
    /// Exits in a row, each soon after the start.
    failures: u32,
}

impl Supervision {
    pub const fn new(now: Mono) -> Self {
        Self { since: now, responded: false, silent: 0, failures: 0 }
    }

    /// It was started, or found running.
    pub fn started(&mut self, now: Mono) {
        *self = Self { failures: self.failures, ..Self::new(now) };
    }

    pub fn responded(&mut self) -> Verdict {
        self.responded = true;
        self.silent = 0;
        Verdict::ProbeAfter(PROBE_INTERVAL)
    }

    /// It did not respond to a probe.
    pub fn silent(&mut self, now: Mono) -> Verdict {
        self.silent = self.silent.saturating_add(1);
        let hanging = match self.responded {
            true => self.silent >= MAX_SILENT,
            false => self.silent >= MAX_SILENT_AT_START || now.since(self.since) >= START_LIMIT,
        };
        match (hanging, self.responded) {
            (true, _) => Verdict::Hanging,
            (false, true) => Verdict::ProbeAfter(PROBE_INTERVAL),
            (false, false) => Verdict::ProbeAfter(START_INTERVAL),
        }
    }

    /// It exited, or a start failed. Returns the delay before the next start.
    pub fn exited(&mut self, now: Mono) -> Duration {
        if self.responded && now.since(self.since) >= STABLE {
            self.failures = 0;
        }
        let delay = match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(earlier) => DELAYS.after(earlier),
        };
        self.failures = self.failures.saturating_add(1);
        self.responded = false;
        delay
    }

    /// Exits in a row, each soon after the start.
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// The reason for an exit in the end of containerd's log, if its last message is one. Its messages
/// are `key=value` lines, except the error that ends the program.
pub fn exit_reason(log: &str) -> Option<String> {
    // A panic is followed by the stacks of all goroutines.
    const PANICS: [&str; 2] = ["panic: ", "fatal error: "];
    let panic = log.lines().rev().find(|line| PANICS.iter().any(|start| line.starts_with(start)));
    let last = log.lines().rev().find(|line| !line.trim().is_empty())?;
    let reason = if let Some(panic) = panic {
        panic.to_owned()
    } else if let Some(error) = last.strip_prefix("containerd: ") {
        error.to_owned()
    } else {
        let level = value(last, "level")?;
        if !matches!(level.as_str(), "fatal" | "error" | "panic") {
            return None;
        }
        let message = value(last, "msg")?;
        match value(last, "error") {
            Some(error) => format!("{message}: {error}"),
            None => message,
        }
    };
    Some(shortened(&reason))
}

/// Why containerd runs without the plugin that serves pods, from its log.
pub fn plugin_failure(log: &str) -> Option<String> {
    let is_failure = |line: &&str| line.contains("failed to load plugin") && line.contains("cri");
    let error = value(log.lines().rev().find(is_failure)?, "error")?;
    Some(shortened(&error))
}

fn shortened(text: &str) -> String {
    const MAX: usize = 300;
    text.chars().filter(|c| !c.is_control()).take(MAX).collect()
}

/// The value of a key in a `key=value` line; values with spaces are quoted as in Go.
fn value(line: &str, key: &str) -> Option<String> {
    let mut rest = line;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (text, after) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (text, after) = after.split_once(' ').unwrap_or((after, ""));
                (text.to_owned(), after)
            }
        };
        if name.trim() == key {
            return Some(text);
        }
        rest = after;
    }
}

/// The text up to the closing quote, and what follows it.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((text, quoted.get(at + 1..).unwrap_or_default())),
            '\\' => match characters.next()?.1 {
                'n' | 't' => text.push(' '),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(Duration::from_secs(seconds))
    }

    #[test]
    fn delays_grow_until_it_stays_up() {
        // (seconds that it runs, whether it responds) and the delay before the next start
        let mut supervision = Supervision::new(at(0));
        let mut now = at(0);
        for (case, (runs, responds, want)) in [
            (3600, true, 0),
            (0, false, 1),
            (5, true, 2),
            (59, true, 4),
            (59, true, 8),
            (400, false, 16), // it hung at its start
            (0, false, 32),
            (0, false, 60),
            (0, false, 60),
            (60, true, 0),
            (1, true, 1),
        ]
        .into_iter()
        .enumerate()
        {
            supervision.started(now);
            if responds {
                assert_eq!(supervision.responded(), Verdict::ProbeAfter(PROBE_INTERVAL));
            }
            now = now + Duration::from_secs(runs);
            assert_eq!(supervision.exited(now).as_secs(), want, "case {case}");
        }
    }

    #[test]
    fn it_hangs_when_it_stops_responding_or_never_does() {
        let probes = |supervision: &mut Supervision, every: Duration| {
            let mut now = supervision.since;
            (1..10_000).find(|_| {
                now = now + every;
                supervision.silent(now) == Verdict::Hanging
            })
        };
        let mut running = Supervision::new(at(0));
        running.responded();
        assert_eq!(probes(&mut running, Duration::from_secs(20)), Some(MAX_SILENT));
        // A response in between counts.
        let mut slow = Supervision::new(at(0));
        for _ in 0..100 {
            slow.responded();
            assert_ne!(slow.silent(at(50_000)), Verdict::Hanging);
        }
        let mut refuses = Supervision::new(at(0));
        assert_eq!(probes(&mut refuses, START_INTERVAL), Some(MAX_SILENT_AT_START));
        let mut silent = Supervision::new(at(0));
        assert_eq!(probes(&mut silent, Duration::from_secs(10)), Some(18));
    }

    #[test]
    fn failure_of_the_plugin_for_pods_is_found_anywhere_in_the_log() {
        let log = "level=warning msg=\"failed to load plugin io.containerd.grpc.v1.cri\" \
                   error=\"invalid plugin config: no such snapshotter\"\nlevel=info msg=serving\n";
        let want = "invalid plugin config: no such snapshotter";
        assert_eq!(plugin_failure(log).as_deref(), Some(want));
        let other = "level=warning msg=\"failed to load plugin io.containerd.x.zfs\" error=no\n";
        assert_eq!(plugin_failure(other), None);
    }

    #[test]
    fn reason_is_the_last_message_if_that_is_an_error() {
        for (log, want) in [
            ("", None),
            ("time=\"2026-01-01T00:00:00Z\" level=info msg=\"starting containerd\"\n", None),
            (
                "time=\"…\" level=info msg=\"starting\"\ncontainerd: invalid plugin config\n\n",
                Some("invalid plugin config"),
            ),
            (
                "time=\"…\" level=fatal msg=\"failed to \\\"run\\\"\" error=\"no space\" x=1\n",
                Some("failed to \"run\": no space"),
            ),
            ("level=error msg=short\n", Some("short")),
            ("level=warning msg=\"a warning\" error=\"some error\"\n", None),
            (
                "panic: runtime error\n\ngoroutine 1 [running]:\nmain.main()\n",
                Some("panic: runtime error"),
            ),
            ("level=error msg=\"never closed", None),
            ("level=error msg=\"line\\nbreak \u{7}\"", Some("line break ")),
            ("no key or value", None),
        ] {
            assert_eq!(exit_reason(log).as_deref(), want, "{log:?}");
        }
        let long = format!("containerd: {}", "é".repeat(10_000));
        assert_eq!(exit_reason(&long).unwrap().chars().count(), 300);
    }
}
