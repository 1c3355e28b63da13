//! What this process may do.

use super::{Finding, Machine};

const CHECK: &str = "privileges";

/// Capabilities by their bit, whether pods can run without, and what they are needed for.
const CAPABILITIES: [(u32, &str, Need, &str); 3] = [
    (12, "CAP_NET_ADMIN", Need::Must, "pod networks"),
    (21, "CAP_SYS_ADMIN", Need::Must, "mounts and namespaces"),
    (
        24,
        "CAP_SYS_RESOURCE",
        Need::Should,
        "protecting the agent and critical pods from the OOM killer",
    ),
];

#[derive(Clone, Copy)]
enum Need {
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
            "/proc/self/status does not tell what this process may do",
            "mount /proc",
        )];
    };
    let mut findings = Vec::new();
    if user == "0" {
        findings.push(Finding::ok(CHECK, "running as root"));
    } else {
        findings.push(Finding::failure(CHECK, format!("running as user {user}"), "run it as root"));
    }
    for (bit, name, need, purpose) in CAPABILITIES {
        if capabilities & (1 << bit) != 0 {
            continue;
        }
        let says = format!("{name} is missing, needed for {purpose}");
        let fix = format!("give this process {name} (in a container: --cap-add or privileged)");
        findings.push(match need {
            Need::Must => Finding::failure(CHECK, says, fix),
            Need::Should => Finding::warning(CHECK, says, fix),
        });
    }
    findings
}
