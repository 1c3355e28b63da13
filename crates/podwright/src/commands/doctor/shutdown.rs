//! Check of what a graceful shutdown of the node needs.

use super::{Finding, Machine, Plan};
use crate::config::duration::GoDuration;

const CHECK: &str = "shutdown";
const BUS: &str = "/run/dbus/system_bus_socket";
/// Exists while systemd-logind runs, or has run.
const LOGIND: &str = "/run/systemd/seats";

/// Nothing if no grace periods are configured.
pub(super) fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let configuration = &plan.configuration;
    if configuration.shutdown_grace_period == GoDuration::ZERO
        && configuration.shutdown_grace_period_by_pod_priority.is_empty()
    {
        return Vec::new();
    }
    let missing = |what: &str, fix: &str| {
        let message = format!("{what}: pods are not ended before this machine shuts down");
        vec![Finding::warning(CHECK, message, fix)]
    };
    if !machine.exists(BUS) {
        return missing(
            "there is no D-Bus system bus",
            "install and start dbus and systemd-logind",
        );
    }
    if !machine.exists(LOGIND) {
        return missing("systemd-logind does not run", "systemctl start systemd-logind");
    }
    vec![Finding::ok(CHECK, "systemd-logind can delay a shutdown until pods have ended")]
}
