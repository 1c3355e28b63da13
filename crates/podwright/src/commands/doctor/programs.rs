//! Programs that pods need and others bring.

use super::{Finding, Machine};

const CHECK: &str = "programs";

/// Programs, and the Debian package with them.
const NEEDED: [(&str, &str); 3] =
    [("iptables", "iptables"), ("mount", "mount"), ("nsenter", "util-linux")];

/// Any of these runs containers.
const RUNTIMES: [&str; 3] = ["runc", "crun", "youki"];

/// Folders network plugins are in.
const PLUGIN_FOLDERS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// What the network of `podwright up` is made of; every network needs the first.
const PLUGINS: [&str; 5] = ["loopback", "bridge", "host-local", "portmap", "bandwidth"];

pub(super) fn examine(machine: &dyn Machine) -> Vec<Finding> {
    let mut findings: Vec<Finding> = NEEDED
        .iter()
        .map(|(program, package)| match machine.program(program) {
            Some(path) => Finding::ok(CHECK, path.display().to_string()),
            None => Finding::failure(
                CHECK,
                format!("no {program}"),
                format!("install it, on Debian with `apt install {package}`"),
            ),
        })
        .collect();
    findings.push(match RUNTIMES.iter().find_map(|name| machine.program(name)) {
        Some(path) => Finding::ok(CHECK, path.display().to_string()),
        None => Finding::failure(
            CHECK,
            format!("none of {}, which start containers", RUNTIMES.join(", ")),
            "install one, on Debian with `apt install runc`",
        ),
    });
    findings.push(plugins(machine));
    findings
}

fn plugins(machine: &dyn Machine) -> Finding {
    let found: Vec<String> =
        PLUGIN_FOLDERS.iter().flat_map(|folder| machine.names_in(folder)).collect();
    let missing: Vec<&str> =
        PLUGINS.into_iter().filter(|plugin| !found.iter().any(|name| name == plugin)).collect();
    let fix = "install them, on Debian with `apt install containernetworking-plugins`";
    if missing.is_empty() {
        Finding::ok(CHECK, "CNI plugins")
    } else if missing.contains(&"loopback") {
        let says =
            format!("no CNI plugins {} in {}", missing.join(", "), PLUGIN_FOLDERS.join(" or "));
        Finding::failure(CHECK, says, fix)
    } else {
        let says = format!("no CNI plugins {}, which `podwright up` needs", missing.join(", "));
        Finding::warning(CHECK, says, fix)
    }
}
