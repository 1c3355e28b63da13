//! Time limit of a case: a hanging case is reported with its name and what it waits for, and the
//! test process exits.
//!
//! The whole process exits because libtest has no limit, a thread cannot be stopped from outside,
//! and cases share a process because they share control planes. Every wait, request and command of
//! this crate has its own limit that fails only its case; this limit is for what none of them
//! covers. The cleanup processes remove the beds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use podwright_testkit::report;

/// Overrides the limit, in seconds.
pub(crate) const LIMIT: &str = "PODWRIGHT_CASE_LIMIT";

static CASES: Mutex<BTreeMap<u64, Case>> = Mutex::new(BTreeMap::new());
static WAITS: Mutex<BTreeMap<u64, Wait>> = Mutex::new(BTreeMap::new());
static NEXT: AtomicU64 = AtomicU64::new(0);
static WATCHDOG: Once = Once::new();

struct Case {
    name: String,
    limit: Duration,
    deadline: Instant,
}

struct Wait {
    thread: String,
    what: String,
    since: Instant,
}

/// Guard: the time limit of the case on this thread, until dropped.
pub struct Limited(u64);

/// Guard: what the current thread waits for, until dropped.
pub struct Waiting(u64);

/// Default limit of a case: longer than any takes on a busy machine, and so much shorter than the
/// suite's (45 minutes in `./test`) that it expires first.
const USUAL: Duration = Duration::from_secs(15 * 60);

/// For the full figures of `PODWRIGHT_LONG`.
const LONG: Duration = Duration::from_secs(6 * 3600);

/// The limit of a case without its own.
pub fn limit() -> Duration {
    limit_or(USUAL)
}

fn limit_or(usual: Duration) -> Duration {
    let long = std::env::var_os("PODWRIGHT_LONG").is_some();
    let named = std::env::var(LIMIT).ok().and_then(|text| text.parse().ok());
    named.map_or(if long { LONG } else { usual }, Duration::from_secs)
}

/// Starts the time limit of the case on this thread.
#[must_use = "the limit ends when this is dropped"]
pub fn limited() -> Limited {
    limited_to(USUAL)
}

/// Like [`limited`], for a case that may take longer.
#[must_use = "the limit ends when this is dropped"]
pub fn limited_to(usual: Duration) -> Limited {
    WATCHDOG.call_once(|| {
        thread::spawn(watch);
    });
    let (id, limit) = (NEXT.fetch_add(1, Ordering::Relaxed), limit_or(usual));
    let case = Case { name: thread_name(), limit, deadline: Instant::now() + limit };
    locked(&CASES).insert(id, case);
    Limited(id)
}

/// Records what the current thread waits for, for the report of a hanging case.
#[must_use = "the wait ends when this is dropped"]
pub fn waiting_for(what: String) -> Waiting {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    locked(&WAITS).insert(id, Wait { thread: thread_name(), what, since: Instant::now() });
    Waiting(id)
}

impl Drop for Limited {
    fn drop(&mut self) {
        locked(&CASES).remove(&self.0);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        locked(&WAITS).remove(&self.0);
    }
}

fn watch() {
    loop {
        thread::sleep(Duration::from_millis(200));
        let now = Instant::now();
        let cases = locked(&CASES);
        let mut late = cases.values().filter(|case| case.deadline <= now).peekable();
        if late.peek().is_none() {
            continue;
        }
        for case in late {
            let text = format!(
                "exceeded its limit of {} s; {}",
                case.limit.as_secs(),
                waits(&case.name, now)
            );
            report::exceeded(&case.name, &text);
        }
        std::process::abort();
    }
}

/// What the case waits for, and what threads outside of any case wait for.
fn waits(case: &str, now: Instant) -> String {
    let waits = locked(&WAITS);
    let mut text = String::new();
    for own in [true, false] {
        for wait in waits.values().filter(|wait| (wait.thread == case) == own) {
            if text.is_empty() {
                text += "waiting for ";
            } else {
                text += ", ";
            }
            let seconds = now.duration_since(wait.since).as_secs();
            let _ = write!(text, "{} since {seconds} s", wait.what);
            if !own {
                let _ = write!(text, " (thread {})", wait.thread);
            }
        }
    }
    if text.is_empty() { "waiting for nothing known".to_owned() } else { text }
}

fn thread_name() -> String {
    thread::current().name().unwrap_or("unnamed").to_owned()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::process::{Stdin, everything, run};

    const HANGS: &str = "PODWRIGHT_TEST_HANGS";

    #[test]
    fn hanging_case_is_reported_with_its_name_and_wait() {
        let name = thread_name();
        if std::env::var_os(HANGS).is_some() {
            let _limited = limited();
            let _waiting = waiting_for("a response that never comes".to_owned());
            loop {
                thread::park();
            }
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", &name, "--nocapture"]).env(HANGS, "1").env(LIMIT, "1");
        let output = run(&mut again, Stdin::Ends(b""), Duration::from_secs(120)).unwrap();
        assert!(!output.status.success(), "{output:?}");
        let printed = everything(&output);
        let wanted = format!(
            "{name}: limit: exceeded its limit of 1 s; waiting for a response that never comes"
        );
        assert!(printed.contains(&wanted), "{printed}");
        assert!(!printed.contains("test result:"), "{printed}");
    }

    #[test]
    fn case_limit_is_much_shorter_than_suite_limit() {
        let script = std::fs::read_to_string(crate::tools::repository().join("test")).unwrap();
        let suite = script.split("e2e_minutes=").nth(1).unwrap();
        let suite: u64 = suite.split_whitespace().next().unwrap().parse().unwrap();
        assert!(USUAL * 2 < Duration::from_secs(suite * 60), "{USUAL:?} of {suite} min");
    }

    #[test]
    fn finished_case_has_no_limit() {
        let limited = limited();
        let id = limited.0;
        drop(limited);
        assert!(!locked(&CASES).contains_key(&id));
    }
}
