//! An explanation as a page for people.

use std::fmt::Write;

use jiff::Timestamp;
use podwright_core::lifecycle::Stage;
use podwright_node::inquiry::{Explanation, Failed};

/// What happened lately, as much as fits beside the rest.
const LINES: usize = 8;

pub(super) fn text(told: &Explanation) -> String {
    let mut page = String::new();
    let Explanation { namespace, name, uid, source, .. } = told;
    // Writing into a text cannot fail.
    let _ = writeln!(page, "{namespace}/{name} ({uid}, from {source}): {}", life(told.stage));
    let now = told.asked;
    let since = told.since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    line(&mut page, "why", &format!("{}{since}", told.why));
    if let Some(call) = &told.underway {
        let text = format!("{}, for {}", call.what, age(call.since, now));
        line(&mut page, "under way", &text);
    }
    for failed in &told.failed {
        line(&mut page, "failed", &failure(failed, now));
    }
    if let Some(next) = told.next {
        line(&mut page, "next", &format!("in {}", age(now, next)));
    }
    if let Some(way_out) = &told.way_out {
        line(&mut page, "way out", way_out);
    }
    for container in &told.containers {
        let restarts = match container.restarts {
            0 => String::new(),
            1 => ", restarted once".into(),
            times => format!(", restarted {times} times"),
        };
        line(&mut page, "container", &format!("{}: {}{restarts}", container.name, container.state));
    }
    let older = told.lately.len().saturating_sub(LINES);
    for entry in told.lately.iter().skip(older) {
        let times =
            if entry.times > 1 { format!(" ({} times)", entry.times) } else { String::new() };
        let text = format!("{} ago: {}{times}", age(entry.at, now), entry.text);
        line(&mut page, "lately", &text);
    }
    page
}

fn line(page: &mut String, name: &str, text: &str) {
    let _ = writeln!(page, "  {name:10} {text}");
}

fn life(stage: Stage) -> &'static str {
    match stage {
        Stage::Syncing => "it is to run",
        Stage::Terminating => "it is being stopped",
        Stage::Terminated => "it has stopped, what it held is released",
        Stage::Finished => "it is over",
    }
}

fn failure(failed: &Failed, now: Timestamp) -> String {
    let Failed { what, error, times, since, retry } = failed;
    let times = match times {
        1 => format!("once, {} ago", age(*since, now)),
        times => format!("{times} times in {}", age(*since, now)),
    };
    let again = match *retry > now {
        true => format!("in {}", age(now, *retry)),
        false => "now".to_owned(),
    };
    format!("{what}: {times}, tried again {again}; last error: {error}")
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
    use podwright_node::inquiry::ContainerLine;
    use podwright_node::journal::{Entry, Underway};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_page_tells_everything_there_is_to_tell() {
        let told = Explanation {
            namespace: "default".into(),
            name: "web".into(),
            uid: "u1".into(),
            source: "api".into(),
            stage: Stage::Syncing,
            why: "c waits: no such image (ErrImagePull)".into(),
            since: Some(at(900)),
            way_out: Some("check the image name and the registry".into()),
            underway: Some(Underway { since: at(998), what: "getting the image of c".into() }),
            failed: vec![Failed {
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
            lately: vec![Entry { at: at(940), text: "sandbox created".into(), times: 2 }],
            asked: at(1000),
        };
        assert_eq!(
            text(&told),
            "default/web (u1, from api): it is to run\n  \
             why        c waits: no such image (ErrImagePull), for 1m40s\n  \
             under way  getting the image of c, for 2s\n  \
             failed     starting c (ErrImagePull): 3 times in 1m40s, tried again in 10s; \
             last error: no such image\n  \
             next       in 10s\n  \
             way out    check the image name and the registry\n  \
             container  c: waits: ErrImagePull, restarted 2 times\n  \
             lately     1m0s ago: sandbox created (2 times)\n"
        );
    }
}
