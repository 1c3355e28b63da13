//! Checks of programs that are needed to run pods.

use super::{Finding, Machine};

const CHECK: &str = "programs";

/// Needed programs with their Debian packages.
const NEEDED: [(&str, &str); 3] =
    [("iptables", "iptables"), ("mount", "mount"), ("nsenter", "util-linux")];

/// OCI runtimes; one of them is needed.
const RUNTIMES: [&str; 3] = ["runc", "crun", "youki"];

/// Directories of CNI plugins.
const PLUGIN_DIRECTORIES: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// CNI plugins of the network of `podwright up`; every network needs the first.
const PLUGINS: [&str; 5] = ["loopback", "bridge", "host-local", "portmap", "bandwidth"];

pub(super) fn examine(machine: &dyn Machine) -> Vec<Finding> {
    let mut findings: Vec<Finding> = NEEDED
        .iter()
        .map(|(program, package)| match machine.program(program) {
            Some(path) => Finding::ok(CHECK, path.display().to_string()),
            None => Finding::failure(
                CHECK,
                format!("{program} not found"),
                format!("install it, on Debian with `apt install {package}`"),
            ),
        })
        .collect();
    findings.push(match RUNTIMES.iter().find_map(|name| machine.program(name)) {
        Some(path) => Finding::ok(CHECK, path.display().to_string()),
        None => Finding::failure(
            CHECK,
            format!("no OCI runtime found ({})", RUNTIMES.join(", ")),
            "install one, on Debian with `apt install runc`",
        ),
    });
    findings.push(plugins(machine));
    findings
}

fn plugins(machine: &dyn Machine) -> Finding {
    let found: Vec<String> =
        PLUGIN_DIRECTORIES.iter().flat_map(|directory| machine.names_in(directory)).collect();
    let missing: Vec<&str> =
        PLUGINS.into_iter().filter(|plugin| !found.iter().any(|name| name == plugin)).collect();
    let fix = "install them, on Debian with `apt install containernetworking-plugins`";
    if missing.is_empty() {
        Finding::ok(CHECK, "CNI plugins")
    } else if missing.contains(&"loopback") {
        let message =
            format!("no CNI plugins {} in {}", missing.join(", "), PLUGIN_DIRECTORIES.join(" or "));
        Finding::failure(CHECK, message, fix)
    } else {
        let message = format!("no CNI plugins {}, which `podwright up` needs", missing.join(", "));
        Finding::warning(CHECK, message, fix)
    }
}
