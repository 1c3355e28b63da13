//! Metrics computed on scrape: pods by lifecycle, and information about the agent.

use std::collections::BTreeMap;

use podwright_core::lifecycle::Stage;

use super::exposition::{Exposition, Family, MetricKind, Sample, Stability};

/// A pod that has a worker.
#[derive(Clone, Copy, Debug)]
pub struct TrackedPod {
    pub stage: Stage,
    /// A source still names it.
    pub wanted: bool,
    pub is_static: bool,
    /// Of the spec.
    pub ephemeral_containers: usize,
}

/// Properties that do not change while the agent runs.
pub struct Agent<'a> {
    pub node: &'a str,
    pub cgroup_version: u32,
    /// `v1.36.4+podwright.0.1.0`.
    pub version: &'a str,
    pub commit: &'a str,
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricKind::Gauge, stability: Stability::Alpha }
}

const STAGES: [&str; 3] = ["sync", "terminating", "terminated"];

/// Writes every combination, also those that are zero, because a series that disappears looks like a
/// fault. `orphans` are pods that only the runtime has; whether they were static is unknown, and they
/// are always terminating.
pub fn write_pods(pods: &[TrackedPod], orphans: u64, out: &mut Exposition) {
    let mut active: BTreeMap<&str, usize> = [("", 0), ("true", 0)].into();
    let mut working = BTreeMap::new();
    for stage in STAGES {
        for config in ["desired", "orphan"] {
            for of in ["", "true"] {
                working.insert((config, stage, of), 0);
            }
        }
        let ending = if stage == "terminating" { orphans } else { 0 };
        working.insert(("runtime_only", stage, "unknown"), ending);
    }
    for pod in pods {
        let of = if pod.is_static { "true" } else { "" };
        let config = if pod.wanted { "desired" } else { "orphan" };
        *working.entry((config, stage(pod.stage), of)).or_default() += 1;
        if pod.wanted && pod.stage < Stage::Terminated {
            *active.entry(of).or_default() += 1;
        }
    }
    out.family(
        &gauge("kubelet_active_pods", "The number of pods the kubelet considers active."),
        active.into_iter().map(|(of, count)| Sample::now(vec![("static", of)], count as f64)),
    );
    out.family(
        &gauge("kubelet_working_pods", "The number of pods by lifecycle stage."),
        working.into_iter().map(|((config, stage, of), count)| {
            let labels = vec![("config", config), ("lifecycle", stage), ("static", of)];
            Sample::now(labels, count as f64)
        }),
    );
    let ephemeral: usize = pods.iter().map(|pod| pod.ephemeral_containers).sum();
    out.family(
        &gauge("kubelet_managed_ephemeral_containers", "The number of ephemeral containers."),
        [Sample::now(vec![], ephemeral as f64)],
    );
}

pub fn write_agent(agent: &Agent<'_>, out: &mut Exposition) {
    out.family(
        &gauge("kubelet_node_name", "The node's name. The count is always 1."),
        [Sample::now(vec![("node", agent.node)], 1.0)],
    );
    out.family(
        &gauge("kubelet_cgroup_version", "The version of cgroups, 1 or 2."),
        [Sample::now(vec![], f64::from(agent.cgroup_version))],
    );
    let mut numbers = agent.version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let platform = format!("linux/{}", podwright_host::machine::architecture());
    let labels = vec![
        ("build_date", ""),
        ("compiler", "rustc"),
        ("git_commit", agent.commit),
        ("git_tree_state", ""),
        ("git_version", agent.version),
        ("go_version", ""),
        ("major", major),
        ("minor", minor),
        ("platform", &platform),
    ];
    let family = gauge("kubernetes_build_info", "Build information. The count is always 1.");
    out.family(&family, [Sample::now(labels, 1.0)]);
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Syncing => "sync",
        Stage::Terminating => "terminating",
        Stage::Terminated | Stage::Finished => "terminated",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_counted_by_lifecycle_including_zeros() {
        let pod = TrackedPod {
            stage: Stage::Syncing,
            wanted: true,
            is_static: false,
            ephemeral_containers: 1,
        };
        let mut out = Exposition::default();
        write_pods(
            &[
                pod,
                TrackedPod { is_static: true, ..pod },
                TrackedPod { wanted: false, stage: Stage::Terminating, ..pod },
                TrackedPod { stage: Stage::Finished, ..pod },
            ],
            2,
            &mut out,
        );
        let page = out.into_page();
        for line in [
            r#"kubelet_active_pods{static=""} 1"#,
            r#"kubelet_active_pods{static="true"} 1"#,
            r#"kubelet_working_pods{config="desired",lifecycle="sync",static=""} 1"#,
            r#"kubelet_working_pods{config="orphan",lifecycle="terminating",static=""} 1"#,
            r#"kubelet_working_pods{config="desired",lifecycle="terminated",static=""} 1"#,
            r#"kubelet_working_pods{config="orphan",lifecycle="sync",static="true"} 0"#,
            r#"kubelet_working_pods{config="runtime_only",lifecycle="sync",static="unknown"} 0"#,
            r#"kubelet_working_pods{config="runtime_only",lifecycle="terminating",static="unknown"} 2"#,
            "kubelet_managed_ephemeral_containers 4",
        ] {
            assert!(page.lines().any(|written| written == line), "{line}\n{page}");
        }
        let working = page.lines().filter(|line| line.starts_with("kubelet_working_pods{"));
        assert_eq!(working.count(), 15, "{page}");
    }
}
