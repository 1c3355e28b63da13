//! Validation of settings that this machine must support.

use super::super::field::FieldPath;
use super::super::host::CgroupVersion;
use super::super::kubelet::SwapBehavior;
use super::super::problem::{Problem, Source};
use super::Validator;

pub(super) fn examine(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    let host = validator.host;
    if c.fail_swap_on && !host.swap.is_empty() {
        validator.problems.push(Problem::with_field(
            Source::Machine,
            FieldPath::of("failSwapOn"),
            None,
            format!(
                "running with swap on is not supported, please disable swap or set --fail-swap-on \
                 flag to false; active: {}",
                host.swap.join(", ")
            ),
        ));
    }
    if c.protect_kernel_defaults && !host.kernel.is_empty() {
        validator.problems.push(Problem::with_field(
            Source::Machine,
            FieldPath::of("protectKernelDefaults"),
            None,
            format!(
                "kernel settings differ from the required values: {}; set them in /etc/sysctl.d, or \
                 disable protectKernelDefaults",
                host.kernel.join(", ")
            ),
        ));
    }
    if let Some(why) = &host.stays_down
        && validator.options.kubeconfig.is_some()
    {
        validator.warnings.push(format!(
            "{why}: after an error of the kernel this machine hangs or runs on damaged, and its pods \
             stay on it. Fix: set kernel.panic=10 and kernel.panic_on_oops=1 in /etc/sysctl.d"
        ));
    }
    match host.cgroups {
        CgroupVersion::V2 => {}
        CgroupVersion::V1 => {
            validator.require(
                !c.fail_cgroup_v1,
                "failCgroupV1",
                "forbids this machine, which has cgroup v1; boot it with cgroup v2 or set it to false",
            );
            validator.require(
                c.single_process_oom_kill != Some(false),
                "singleProcessOOMKill",
                "must not be false on this machine: cgroup v1 cannot kill a group",
            );
            validator.require(
                c.memory_swap.swap_behavior != Some(SwapBehavior::LimitedSwap),
                "memorySwap.swapBehavior",
                "needs cgroup v2, which this machine does not have",
            );
        }
    }
}
