//! The container runtime: whether it is there, ready, and able to make a sandbox.

use super::{Finding, Machine, Plan, RuntimeReport, WantedRuntime};

const CHECK: &str = "runtime";

pub(super) fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let endpoint = &plan.configuration.container_runtime_endpoint;
    match machine.runtime(endpoint) {
        Ok(report) => report_findings(&report, endpoint),
        Err(error) => vec![silence(machine, plan, format!("no answer at {endpoint}: {error}"))],
    }
}

/// No runtime answers.
fn silence(machine: &dyn Machine, plan: &Plan, says: String) -> Finding {
    let start = "start it (`systemctl start containerd`) or name another with \
                 --container-runtime-endpoint";
    match plan.runtime {
        WantedRuntime::Configured => Finding::failure(CHECK, says, start),
        WantedRuntime::Any if machine.program("containerd").is_none() => Finding::failure(
            CHECK,
            format!("{says}; and there is no containerd to start"),
            "install one, on Debian with `apt install containerd`",
        ),
        WantedRuntime::Any => {
            Finding::warning(CHECK, says, format!("{start}; `podwright up` starts one of its own"))
        }
    }
}

fn report_findings(report: &RuntimeReport, endpoint: &str) -> Vec<Finding> {
    let RuntimeReport { version, runtime_ready, network_ready, images } = report;
    let mut findings = vec![match runtime_ready {
        Ok(()) => Finding::ok(CHECK, format!("{version} at {endpoint}")),
        Err(why) => Finding::failure(
            CHECK,
            format!("{version} at {endpoint} is not ready: {why}"),
            "see its log (`journalctl -u containerd`)",
        ),
    }];
    if let Err(why) = network_ready {
        findings.push(Finding::warning(
            CHECK,
            format!("its network is not ready: {why}"),
            "put a CNI configuration into /etc/cni/net.d; `podwright up` brings one of its own",
        ));
    }
    findings.push(sandbox_image(images));
    findings
}

/// A pod begins with the image that holds its sandbox open.
fn sandbox_image(images: &[String]) -> Finding {
    let is_pause = |name: &&String| {
        let repository = name.rsplit_once(':').map_or(name.as_str(), |(repository, _)| repository);
        repository.rsplit('/').next() == Some("pause")
    };
    match images.iter().find(is_pause) {
        Some(name) => Finding::ok(CHECK, format!("sandbox image {name}")),
        None => Finding::warning(
            CHECK,
            "no sandbox (pause) image yet; the runtime pulls the one it is configured for with the \
             first pod",
            "see that its registry can be reached, or import the image",
        ),
    }
}
