//! What probes say of a container instance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::ContainerId;
use crate::pod::ProbeKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Success,
    Failure,
    /// Probed without a settled answer yet.
    Unknown,
}

/// Settled verdicts, by instance: a restarted container starts with none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    verdicts: BTreeMap<ContainerId, BTreeMap<ProbeKind, Verdict>>,
}

impl Probed {
    pub fn verdict(&self, instance: &ContainerId, kind: ProbeKind) -> Option<Verdict> {
        self.verdicts.get(instance)?.get(&kind).copied()
    }

    pub fn failed(&self, instance: &ContainerId, kind: ProbeKind) -> bool {
        self.verdict(instance, kind) == Some(Verdict::Failure)
    }

    /// Returns whether this changed anything.
    pub fn set(&mut self, instance: &ContainerId, kind: ProbeKind, verdict: Verdict) -> bool {
        let old = self.verdicts.entry(instance.clone()).or_default().insert(kind, verdict);
        old != Some(verdict)
    }

    /// Forgets instances that are no longer there.
    pub fn retain(&mut self, keep: impl Fn(&ContainerId) -> bool) {
        self.verdicts.retain(|id, _| keep(id));
    }
}
