//! Metrics of the last graceful shutdown of the node.

use parking_lot::Mutex;
use podwright_core::shutdown::ShutdownRecord;

use super::exposition::{Exposition, Family, MetricKind, Sample, Stability};

const START: Family = Family {
    name: "kubelet_graceful_shutdown_start_time_seconds",
    help: "Start of the last graceful shutdown in seconds since unix epoch",
    kind: MetricKind::Gauge,
    stability: Stability::Alpha,
};
const END: Family = Family {
    name: "kubelet_graceful_shutdown_end_time_seconds",
    help: "End of the last graceful shutdown in seconds since unix epoch, 0 while it is going on",
    kind: MetricKind::Gauge,
    stability: Stability::Alpha,
};

/// Empty on a node without graceful shutdown.
#[derive(Default)]
pub struct ShutdownMetrics(Mutex<Option<ShutdownRecord>>);

impl ShutdownMetrics {
    pub fn set(&self, record: ShutdownRecord) {
        *self.0.lock() = Some(record);
    }

    pub(super) fn write(&self, out: &mut Exposition) {
        let Some(record) = *self.0.lock() else { return };
        for (family, time) in [(START, record.start), (END, record.end)] {
            out.family(&family, [Sample::now(vec![], ShutdownRecord::seconds(time))]);
        }
    }
}
