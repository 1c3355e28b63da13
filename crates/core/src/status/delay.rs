//! Delay of reports: several small changes become one request to the API server.

use std::time::Duration;

use super::manager::ReportTrigger;
use crate::time::Mono;

/// Delay of the first report: often the next one follows soon and replaces it.
const FIRST_REPORT: Duration = Duration::from_millis(100);
/// Delay of changes that no controller acts on, such as a ready sandbox.
const MINOR_CHANGE: Duration = Duration::from_secs(1);
/// Delay of a sandbox without containers: they follow soon, and one report covers both.
const SANDBOX_READY: Duration = Duration::from_secs(5);

/// Whether users or controllers may act on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    Urgent,
    Minor,
}

/// How far the reports of a pod are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Nothing was reported before.
    First,
    /// An earlier report waits until then.
    Pending { not_before: Mono },
    /// All earlier reports are sent.
    Sent,
    /// The last request failed; the next attempt waits until then.
    Failed { not_before: Mono },
}

/// The time from which a new report may be sent.
pub fn not_before(urgency: Urgency, trigger: ReportTrigger, sending: Sending, now: Mono) -> Mono {
    match (sending, urgency) {
        // The back-off applies even to urgent reports.
        (Sending::Failed { not_before }, Urgency::Urgent | Urgency::Minor) => not_before,
        (Sending::First | Sending::Pending { .. } | Sending::Sent, Urgency::Urgent) => now,
        (Sending::First, Urgency::Minor) => now + FIRST_REPORT,
        (Sending::Pending { not_before }, Urgency::Minor) => not_before,
        (Sending::Sent, Urgency::Minor) => now + of_minor(trigger),
    }
}

fn of_minor(trigger: ReportTrigger) -> Duration {
    match trigger {
        ReportTrigger::SandboxReady => SANDBOX_READY,
        ReportTrigger::Sync | ReportTrigger::Probe | ReportTrigger::End => MINOR_CHANGE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_reports_are_sent_at_once_and_minor_ones_are_collected() {
        let ms = |ms| Mono(Duration::from_millis(ms));
        let now = ms(60_000);
        let waits = Sending::Pending { not_before: ms(60_700) };
        let failed = Sending::Failed { not_before: ms(64_000) };
        let (urgent, minor) = (Urgency::Urgent, Urgency::Minor);
        let (sync, sandbox) = (ReportTrigger::Sync, ReportTrigger::SandboxReady);
        for (case, urgency, trigger, sending, want) in [
            ("first", minor, sync, Sending::First, 60_100),
            ("first and urgent", urgent, sync, Sending::First, 60_000),
            ("later", minor, sync, Sending::Sent, 61_000),
            ("probe", minor, ReportTrigger::Probe, Sending::Sent, 61_000),
            ("sandbox", minor, sandbox, Sending::Sent, 65_000),
            ("first of a sandbox", minor, sandbox, Sending::First, 60_100),
            ("urgent", urgent, sync, Sending::Sent, 60_000),
            ("one waits", minor, sandbox, waits, 60_700),
            ("one waits, this is urgent", urgent, sync, waits, 60_000),
            ("after a failure", minor, sync, failed, 64_000),
            ("urgent after a failure", urgent, ReportTrigger::End, failed, 64_000),
        ] {
            assert_eq!(not_before(urgency, trigger, sending, now), ms(want), "{case}");
        }
    }
}
