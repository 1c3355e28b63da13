//! When a report is worth a request.
//!
//! The lease says that the node lives, so the object is sent when it changed, and now and then so
//! that a lost or undone report mends itself. After a change the next routine report is shifted by
//! chance: many nodes change at the same moment, and should not report together ever after.

use std::time::Duration;

use crate::time::Mono;

#[derive(Clone, Copy, Debug)]
pub struct Reports {
    frequency: Duration,
    /// When the next routine report is due; `None` before the first one.
    due: Option<Mono>,
}

impl Reports {
    /// `frequency` is `nodeStatusReportFrequency`.
    pub fn every(frequency: Duration) -> Self {
        Self { frequency, due: None }
    }

    pub fn is_due(&self, changed: bool, now: Mono) -> bool {
        changed || self.due.is_none_or(|due| due <= now)
    }

    /// A report was taken. `chance` is anything from 0 to 1.
    pub fn sent(&mut self, changed: bool, now: Mono, chance: f64) {
        let wait = if changed {
            self.frequency.mul_f64(0.5 + chance.clamp(0.0, 1.0))
        } else {
            self.frequency
        };
        self.due = Some(now + wait);
    }
}
