//! Metrics of admission, sandbox and container starts, and container exits.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::attempts::StartError;
use podwright_core::pod::ContainerKind;

use super::exposition::{Counter, Exposition, Histogram, Labels};

/// Buckets for the number of containers of a pod.
const CONTAINER_COUNT_BUCKETS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

pub struct StartMetrics {
    containers_per_pod: Histogram,
    sandboxes: Mutex<BTreeMap<String, Sandboxes>>,
    started: Mutex<BTreeMap<&'static str, Counter>>,
    failed: Mutex<BTreeMap<(&'static str, &'static str), Counter>>,
    rejected: Mutex<BTreeMap<&'static str, Counter>>,
    /// By kind, exit code and the runtime's reason.
    ended: Mutex<BTreeMap<(&'static str, i32, String), Counter>>,
    /// Pods with user namespaces: sandboxes attempted and failed.
    namespaced: (Counter, Counter),
}

/// Of one runtime handler.
struct Sandboxes {
    duration: Histogram,
    errors: Counter,
}

impl Default for StartMetrics {
    fn default() -> Self {
        Self {
            containers_per_pod: Histogram::new(CONTAINER_COUNT_BUCKETS),
            sandboxes: Mutex::default(),
            started: Mutex::default(),
            failed: Mutex::default(),
            rejected: Mutex::default(),
            ended: Mutex::default(),
            namespaced: Default::default(),
        }
    }
}

impl StartMetrics {
    pub fn pod_admitted(&self, containers: usize) {
        // The histogram measures durations: one container counts as one second.
        let count = u64::try_from(containers).unwrap_or(u64::MAX);
        self.containers_per_pod.observe(Duration::from_secs(count));
    }

    pub fn pod_rejected(&self, reason: &'static str) {
        self.rejected.lock().entry(reason).or_default().inc();
    }

    pub fn sandbox(&self, handler: &str, took: Duration, ok: bool) {
        let mut all = self.sandboxes.lock();
        let sandboxes = all.entry(handler.to_owned()).or_insert_with(|| Sandboxes {
            duration: Histogram::new(super::DEFAULT),
            errors: Counter::default(),
        });
        sandboxes.duration.observe(took);
        if !ok {
            sandboxes.errors.inc();
        }
    }

    /// The sandbox of a pod with a user namespace was created, or failed.
    pub fn user_namespaced(&self, ok: bool) {
        let (tried, failed) = &self.namespaced;
        tried.inc();
        if !ok {
            failed.inc();
        }
    }

    /// A container exited.
    pub fn ended(&self, kind: ContainerKind, exit_code: i32, reason: &str) {
        let key = (kind_name(kind), exit_code, reason.to_owned());
        self.ended.lock().entry(key).or_default().inc();
    }

    /// A container start was attempted; `Err`: it failed.
    pub fn container(&self, kind: ContainerKind, outcome: Result<(), StartError>) {
        let kind = kind_name(kind);
        self.started.lock().entry(kind).or_default().inc();
        if let Err(error) = outcome {
            self.failed.lock().entry((kind, error.as_str())).or_default().inc();
        }
    }

    pub(super) fn write(&self, out: &mut Exposition) {
        out.histogram(
            "kubelet_containers_per_pod_count",
            "The number of containers per pod.",
            &self.containers_per_pod,
        );
        let rejected = self.rejected.lock();
        out.counters(
            "kubelet_admission_rejections_total",
            "Cumulative number pod admission rejections by the Kubelet.",
            rejected.iter().map(|(reason, count)| (vec![("reason", *reason)], count)),
        );
        drop(rejected);
        self.write_sandboxes(out);
        let started = self.started.lock();
        out.counters(
            "kubelet_started_containers_total",
            "Cumulative number of containers started",
            started.iter().map(|(kind, count)| (vec![("container_type", *kind)], count)),
        );
        let failed = self.failed.lock();
        out.counters(
            "kubelet_started_containers_errors_total",
            "Cumulative number of errors when starting containers",
            failed.iter().map(|((kind, code), count)| {
                (vec![("code", *code), ("container_type", *kind)], count)
            }),
        );
        self.write_ended(out);
    }

    fn write_ended(&self, out: &mut Exposition) {
        let ended = self.ended.lock();
        let ended: Vec<_> = ended
            .iter()
            .map(|((kind, code, reason), n)| (kind, code.to_string(), reason, n))
            .collect();
        out.counters(
            "kubelet_terminated_containers_total",
            "Number of terminated containers, by exit code and the runtime's reason.",
            ended.iter().map(|(kind, code, reason, count)| {
                let labels =
                    vec![("container_type", **kind), ("exit_code", code), ("reason", reason)];
                (labels, *count)
            }),
        );
    }

    fn write_sandboxes(&self, out: &mut Exposition) {
        let all = self.sandboxes.lock();
        out.histograms(
            "kubelet_run_podsandbox_duration_seconds",
            "Duration in seconds of the run_podsandbox operations, by runtime handler.",
            all.iter().map(|(handler, sandboxes)| (of_handler(handler), &sandboxes.duration)),
        );
        out.counters(
            "kubelet_run_podsandbox_errors_total",
            "Cumulative number of the run_podsandbox operation errors, by runtime handler.",
            all.iter()
                .filter(|(_, sandboxes)| sandboxes.errors.get() > 0)
                .map(|(handler, sandboxes)| (of_handler(handler), &sandboxes.errors)),
        );
        let (tried, failed) = (Counter::default(), Counter::default());
        for sandboxes in all.values() {
            tried.add(sandboxes.duration.count());
            failed.add(sandboxes.errors.get());
        }
        let help = "Cumulative number of pods started";
        out.counters("kubelet_started_pods_total", help, [(vec![], &tried)].into_iter());
        let help = "Cumulative number of errors when starting pods";
        out.counters("kubelet_started_pods_errors_total", help, [(vec![], &failed)].into_iter());
        let (tried, failed) = &self.namespaced;
        let help = "Cumulative number of pods with user namespaces started";
        let name = "kubelet_started_user_namespaced_pods_total";
        out.counters(name, help, [(vec![], tried)].into_iter());
        let help = "Cumulative number of errors when starting pods with user namespaces";
        let name = "kubelet_started_user_namespaced_pods_errors_total";
        out.counters(name, help, [(vec![], failed)].into_iter());
    }
}

fn of_handler(handler: &str) -> Labels<'_> {
    vec![("runtime_handler", handler)]
}

fn kind_name(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Regular => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_and_failures_are_counted_by_type() {
        let metrics = StartMetrics::default();
        metrics.pod_admitted(2);
        metrics.pod_rejected("OutOfpods");
        metrics.sandbox("", Duration::from_millis(20), true);
        metrics.sandbox("kata", Duration::from_millis(20), false);
        metrics.container(ContainerKind::Regular, Ok(()));
        metrics.container(ContainerKind::Sidecar, Err(StartError::RunContainerError));
        metrics.user_namespaced(true);
        metrics.ended(ContainerKind::Init, 0, "Completed");
        metrics.ended(ContainerKind::Regular, 137, "OOMKilled");
        metrics.ended(ContainerKind::Regular, 137, "OOMKilled");
        let mut out = Exposition::default();
        metrics.write(&mut out);
        let page = out.into_page();
        for line in [
            r#"kubelet_containers_per_pod_count_bucket{le="2"} 1"#,
            "kubelet_containers_per_pod_count_sum 2",
            r#"kubelet_admission_rejections_total{reason="OutOfpods"} 1"#,
            r#"kubelet_run_podsandbox_errors_total{runtime_handler="kata"} 1"#,
            "kubelet_started_pods_total 2",
            "kubelet_started_user_namespaced_pods_total 1",
            "kubelet_started_user_namespaced_pods_errors_total 0",
            r#"kubelet_terminated_containers_total{container_type="container",exit_code="137",reason="OOMKilled"} 2"#,
            r#"kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="Completed"} 1"#,
            "kubelet_started_pods_errors_total 1",
            r#"kubelet_started_containers_total{container_type="container"} 1"#,
            r#"kubelet_started_containers_errors_total{code="RunContainerError",container_type="init_container"} 1"#,
        ] {
            assert!(page.lines().any(|written| written == line), "{line}\n{page}");
        }
    }
}
