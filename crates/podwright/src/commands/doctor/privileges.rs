//! Checks of user and capabilities.

use super::{Finding, Machine};

const CHECK: &str = "privileges";

/// Capabilities: bit, name, whether pods can run without it, and its purpose.
const CAPABILITIES: [(u32, &str, Requirement, &str); 3] = [
    (12, "CAP_NET_ADMIN", Requirement::Must, "pod networks"),
    (21, "CAP_SYS_ADMIN", Requirement::Must, "mounts and namespaces"),
    (
        24,
        "CAP_SYS_RESOURCE",
        Requirement::Should,
        "protecting the agent and critical pods from the OOM killer",
    ),
];

#[derive(Clone, Copy)]
enum Requirement {
    Must,
    Should,
}

pub(super) fn examine(machine: &dyn Machine) -> Vec<Finding> {
    let status = machine.read("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next())
    };
    let capabilities = field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let (Some(user), Some(capabilities)) = (field("Uid:"), capabilities) else {
        return vec![Finding::failure(
            CHECK,
            "cannot read user and capabilities from /proc/self/status",
            "mount /proc",
        )];
    };
    let mut findings = Vec::new();
    if user == "0" {
        findings.push(Finding::ok(CHECK, "running as root"));
    } else {
        findings.push(Finding::failure(CHECK, format!("running as user {user}"), "run with sudo"));
    }
    for (bit, name, requirement, purpose) in CAPABILITIES {
        if capabilities & (1 << bit) != 0 {
            continue;
        }
        let message = format!("{name} is missing, needed for {purpose}");
        let fix = format!("grant {name} (in a container: --cap-add or privileged)");
        findings.push(match requirement {
            Requirement::Must => Finding::failure(CHECK, message, fix),
            Requirement::Should => Finding::warning(CHECK, message, fix),
        });
    }
    findings
}
