//! Events of the node for processes that the kernel killed because the machine ran out of memory.

use std::path::PathBuf;
use std::sync::Arc;

use podwright_core::oom::{self, OomReader};
use podwright_host::kernel_log::KernelLog;

use super::events::{Recorder, Severity};

/// Follows the kernel's log. Without it the node works, but has no such events.
pub(crate) async fn follow(log: PathBuf, events: Recorder, node: Arc<str>) {
    let mut reader = OomReader::default();
    let opened = KernelLog::open(&log);
    let error = match opened {
        Ok(mut records) => loop {
            match records.next().await {
                Ok(record) => {
                    if let Some(oom) = reader.read(&record) {
                        events.node(&node, Severity::Warning, oom::EVENT, oom.message());
                    }
                }
                Err(error) => break error,
            }
        },
        Err(error) => error,
    };
    tracing::warn!(%error, log = %log.display(), "cannot read the kernel's log: the node has no SystemOOM events");
}
