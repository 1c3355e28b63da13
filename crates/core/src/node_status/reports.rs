//! Schedule of node status reports.
//!
//! The lease is the heartbeat, so the object is sent only on a change, and periodically to repair a
//! lost or overwritten report. After a change the next periodic report has a random offset: many
//! nodes may change at the same moment and should not keep reporting together.

use std::time::Duration;

use crate::time::Mono;

#[derive(Clone, Copy, Debug)]
pub struct ReportSchedule {
    frequency: Duration,
    /// Time of the next periodic report; `None` before the first one.
    due: Option<Mono>,
}

impl ReportSchedule {
    /// `frequency` is `nodeStatusReportFrequency`.
    pub fn every(frequency: Duration) -> Self {
        Self { frequency, due: None }
    }

    pub fn is_due(&self, changed: bool, now: Mono) -> bool {
        changed || self.due.is_none_or(|due| due <= now)
    }

    /// Records a successful report. `chance` is from 0 to 1.
    pub fn sent(&mut self, changed: bool, now: Mono, chance: f64) {
        let wait = if changed {
            self.frequency.mul_f64(0.5 + chance.clamp(0.0, 1.0))
        } else {
            self.frequency
        };
        self.due = Some(now + wait);
    }
}
