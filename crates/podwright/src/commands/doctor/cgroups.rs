//! Checks of cgroups: version and controllers.

use super::{Finding, Machine, Plan};
use crate::config::host::CgroupVersion;
use crate::config::kubelet::CgroupDriver;

const CHECK: &str = "cgroups";
const MOUNT_POINT: &str = "/sys/fs/cgroup";

pub(super) fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let version = CgroupVersion::at(&machine.at(MOUNT_POINT));
    let mut findings = vec![match version {
        CgroupVersion::V2 => unified(machine),
        CgroupVersion::V1 => legacy(machine),
    }];
    if version == CgroupVersion::V1 && plan.configuration.fail_cgroup_v1 {
        findings.push(Finding::failure(
            CHECK,
            "the configuration forbids cgroup v1, which this machine uses",
            "set failCgroupV1: false, or boot with cgroup v2",
        ));
    }
    if plan.configuration.cgroup_driver == CgroupDriver::Systemd
        && !machine.exists("/run/systemd/system")
    {
        findings.push(Finding::failure(
            CHECK,
            "the configuration requires the systemd cgroup driver, and systemd is not running",
            "set cgroupDriver: cgroupfs",
        ));
    }
    findings
}

fn unified(machine: &dyn Machine) -> Finding {
    let listed = machine.read(format!("{MOUNT_POINT}/cgroup.controllers")).unwrap_or_default();
    let missing = missing(&["cpu", "cpuset", "memory", "pids"], listed.split_whitespace());
    if missing.is_empty() {
        return Finding::ok(CHECK, "cgroup v2 with cpu, cpuset, memory and pids");
    }
    Finding::failure(
        CHECK,
        format!("cgroup v2 without {}", missing.join(", ")),
        format!(
            "boot without cgroup_disable= and with cgroup_enable={}; inside a container, delegate \
             the controllers",
            missing.join(",")
        ),
    )
}

fn legacy(machine: &dyn Machine) -> Finding {
    let mounts = machine.read("/proc/mounts").unwrap_or_default();
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(2);
        (fields.next()? == "cgroup").then(|| fields.next()).flatten()
    });
    let needed = ["cpu", "cpuacct", "cpuset", "memory", "pids"];
    let missing = missing(&needed, mounted.flat_map(|options| options.split(',')));
    if missing.is_empty() {
        return Finding::ok(CHECK, "cgroup v1 with cpu, cpuacct, cpuset, memory and pids");
    }
    Finding::failure(
        CHECK,
        format!("no cgroup v2, and no cgroup v1 hierarchy for {}", missing.join(", ")),
        format!("mount cgroup v2 on {MOUNT_POINT}"),
    )
}

fn missing<'n, 'f>(needed: &[&'n str], found: impl Iterator<Item = &'f str>) -> Vec<&'n str> {
    let found: Vec<&str> = found.collect();
    needed.iter().copied().filter(|name| !found.contains(name)).collect()
}
