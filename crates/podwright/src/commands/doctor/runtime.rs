//! Checks of the container runtime: connection, readiness, sandbox image.

use super::{Finding, Machine, Plan, RuntimeReport, WantedRuntime};

const CHECK: &str = "runtime";

pub(super) fn examine(machine: &dyn Machine, plan: &Plan) -> Vec<Finding> {
    let endpoint = &plan.configuration.container_runtime_endpoint;
    match machine.runtime(endpoint) {
        Ok(report) => report_findings(&report, endpoint),
        Err(error) => {
            vec![no_response(machine, plan, format!("no response at {endpoint}: {error}"))]
        }
    }
}

/// Finding if no runtime responds.
fn no_response(machine: &dyn Machine, plan: &Plan, message: String) -> Finding {
    let start = "start it (`systemctl start containerd`) or give another with \
                 --container-runtime-endpoint";
    match plan.runtime {
        WantedRuntime::Configured => Finding::failure(CHECK, message, start),
        WantedRuntime::Any if machine.program("containerd").is_none() => Finding::failure(
            CHECK,
            format!("{message}; containerd is not installed"),
            "install it, on Debian with `apt install containerd`",
        ),
        WantedRuntime::Any => {
            Finding::warning(CHECK, message, format!("{start}; `podwright up` starts its own"))
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
            "put a CNI configuration into /etc/cni/net.d; `podwright up` has its own",
        ));
    }
    findings.push(sandbox_image(images));
    findings
}

/// Checks for the pause image, which every sandbox needs.
fn sandbox_image(images: &[String]) -> Finding {
    let is_pause = |name: &&String| {
        let repository = name.rsplit_once(':').map_or(name.as_str(), |(repository, _)| repository);
        repository.rsplit('/').next() == Some("pause")
    };
    match images.iter().find(is_pause) {
        Some(name) => Finding::ok(CHECK, format!("sandbox image {name}")),
        None => Finding::warning(
            CHECK,
            "no sandbox (pause) image yet; the runtime pulls its configured image for the first pod",
            "check that its registry is reachable, or import the image",
        ),
    }
}
