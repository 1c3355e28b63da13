//! Metrics of the agent.
//!
//! Names, types and labels are upstream's, because dashboards depend on them. [`exposition`] writes
//! the text format; a metric is a few atomics and costs nothing while it is not scraped.

pub mod cadvisor;
pub mod census;
mod evictions;
pub mod exposition;
mod http;
mod images;
mod probes;
mod process;
mod requests;
pub mod resource;
mod shutdown;
mod starts;
pub mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

pub use evictions::EvictionMetrics;
pub use exposition::{Counter, Exposition, Gauge, Histogram, TimeGauge};
pub use http::{HttpKey, HttpMetrics};
pub use images::ImageMetrics;
pub use probes::{ProbeMetrics, ProbeSeries};
pub use process::write as write_process;
pub use requests::RequestMetrics;
pub use shutdown::ShutdownMetrics;
pub use starts::StartMetrics;

/// From this release on upstream requires a runtime that reports its cgroup driver.
const NEWER_RUNTIMES_FROM: &str = "1.37.0";
/// Upstream's default buckets, in seconds.
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// From 5 ms, each 2.5 times the one before.
const RUNTIME: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
const POD_START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const RESIZE_MILLIS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 30000.0, 60000.0, 120000.0,
    300000.0, 600000.0,
];
const STATUS_SYNC: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

#[derive(Default)]
pub struct Metrics {
    pub pleg: PlegMetrics,
    pub worker: WorkerMetrics,
    pub status: StatusMetrics,
    pub runtime: RuntimeMetrics,
    pub pods: PodMetrics,
    pub hooks: HookMetrics,
    pub resizes: ResizeMetrics,
    /// On a separate page, because there are many series.
    pub probes: ProbeMetrics,
    pub images: ImageMetrics,
    pub http: HttpMetrics,
    pub starts: StartMetrics,
    pub shutdown: ShutdownMetrics,
    pub evictions: EvictionMetrics,
    /// Shared with the connections, which exist before the node.
    pub requests: Arc<RequestMetrics>,
}

impl Metrics {
    pub fn write(&self, out: &mut Exposition) {
        self.pleg.write(out);
        self.worker.write(out);
        self.status.write(out);
        self.runtime.write(out);
        self.pods.write(out);
        self.hooks.write(out);
        self.resizes.write(out);
        self.images.write(out);
        self.http.write(out);
        self.starts.write(out);
        self.shutdown.write(out);
        self.evictions.write(out);
        self.requests.write(out);
    }

    /// The page of probes, which has series for each container.
    pub fn write_probes(&self, out: &mut Exposition) {
        self.probes.write(out);
        let started = podwright_host::self_usage::read("/proc".as_ref()).started_seconds;
        process::write_start(started, out);
    }
}

/// Metrics of the pod lifecycle event generator.
pub struct PlegMetrics {
    pub duration: Histogram,
    pub interval: Histogram,
    pub last_seen: TimeGauge,
    pub running_pods: Gauge,
    pub containers: ContainerStates,
}

#[derive(Default)]
pub struct ContainerStates {
    pub created: Gauge,
    pub running: Gauge,
    pub exited: Gauge,
    pub unknown: Gauge,
}

impl Default for PlegMetrics {
    fn default() -> Self {
        Self {
            duration: Histogram::new(DEFAULT),
            interval: Histogram::new(DEFAULT),
            last_seen: TimeGauge::default(),
            running_pods: Gauge::default(),
            containers: ContainerStates::default(),
        }
    }
}

impl PlegMetrics {
    fn write(&self, out: &mut Exposition) {
        out.histogram(
            "kubelet_pleg_relist_duration_seconds",
            "Duration in seconds for relisting pods in PLEG.",
            &self.duration,
        );
        out.histogram(
            "kubelet_pleg_relist_interval_seconds",
            "Interval in seconds between relisting in PLEG.",
            &self.interval,
        );
        out.time("kubelet_pleg_last_seen_seconds", "When PLEG was last active.", &self.last_seen);
        let help = "Number of pods that have a running pod sandbox";
        out.gauge("kubelet_running_pods", help, &[(&[], &self.running_pods)]);
        let states = &self.containers;
        out.gauge(
            "kubelet_running_containers",
            "Number of containers by their state",
            &[
                (&[("container_state", "created")], &states.created),
                (&[("container_state", "exited")], &states.exited),
                (&[("container_state", "running")], &states.running),
                (&[("container_state", "unknown")], &states.unknown),
            ],
        );
    }
}

/// What a worker was notified for, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Create,
    Update,
    Sync,
    Kill,
    Terminated,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Sync => "sync",
            Self::Kill => "kill",
            Self::Terminated => "terminated",
        }
    }
}

/// Metrics of the pod workers.
pub struct WorkerMetrics {
    durations: Mutex<BTreeMap<Operation, Histogram>>,
    pub start: Histogram,
    pub pod_start: Histogram,
    pub pod_start_total: Histogram,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self {
            durations: Mutex::default(),
            start: Histogram::new(DEFAULT),
            pod_start: Histogram::new(POD_START),
            pod_start_total: Histogram::new(POD_START),
        }
    }
}

impl WorkerMetrics {
    pub fn dispatched(&self, operation: Operation, took: std::time::Duration) {
        let mut durations = self.durations.lock();
        durations.entry(operation).or_insert_with(|| Histogram::new(DEFAULT)).observe(took);
    }

    fn write(&self, out: &mut Exposition) {
        let durations = self.durations.lock();
        out.histograms(
            "kubelet_pod_worker_duration_seconds",
            "Duration in seconds to sync a single pod, by operation.",
            durations.iter().map(|(op, h)| (vec![("operation_type", op.as_str())], h)),
        );
        out.histogram(
            "kubelet_pod_worker_start_duration_seconds",
            "Duration in seconds from the node seeing a pod to starting to work on it.",
            &self.start,
        );
        out.histogram(
            "kubelet_pod_start_duration_seconds",
            "Duration in seconds from the node seeing a pod for the first time to the pod running",
            &self.pod_start,
        );
        out.histogram(
            "kubelet_pod_start_total_duration_seconds",
            "Duration in seconds from a pod's creation in the API to the pod running",
            &self.pod_start_total,
        );
    }
}

/// Metrics of the status manager.
pub struct StatusMetrics {
    pub sync: Histogram,
}

impl Default for StatusMetrics {
    fn default() -> Self {
        Self { sync: Histogram::new(STATUS_SYNC) }
    }
}

impl StatusMetrics {
    fn write(&self, out: &mut Exposition) {
        out.histogram(
            "kubelet_pod_status_sync_duration_seconds",
            "Duration in seconds to sync a pod status update to the API server.",
            &self.sync,
        );
    }
}

/// Metrics of CRI calls.
#[derive(Default)]
pub struct RuntimeMetrics {
    operations: Mutex<BTreeMap<&'static str, RuntimeOperation>>,
    /// A runtime that upstream will stop supporting.
    outdated: bool,
}

struct RuntimeOperation {
    total: Counter,
    errors: Counter,
    duration: Histogram,
}

impl RuntimeMetrics {
    /// `reports_cgroup_driver`: whether the runtime reports its cgroup driver.
    pub fn of(reports_cgroup_driver: bool) -> Self {
        Self { outdated: !reports_cgroup_driver, ..Self::default() }
    }

    pub fn called(&self, operation: &'static str, took: std::time::Duration, ok: bool) {
        let mut operations = self.operations.lock();
        let entry = operations.entry(operation).or_insert_with(|| RuntimeOperation {
            total: Counter::default(),
            errors: Counter::default(),
            duration: Histogram::new(RUNTIME),
        });
        entry.total.inc();
        if !ok {
            entry.errors.inc();
        }
        entry.duration.observe(took);
    }

    fn write(&self, out: &mut Exposition) {
        if self.outdated {
            let gauge = Gauge::default();
            gauge.set(1);
            let help = "The Kubernetes version that stops supporting this runtime.";
            let series: &[(&str, &str)] = &[("version", NEWER_RUNTIMES_FROM)];
            out.gauge("kubelet_cri_losing_support", help, &[(series, &gauge)]);
        }
        let operations = self.operations.lock();
        let label = |name: &'static str| vec![("operation_type", name)];
        out.counters(
            "kubelet_runtime_operations_total",
            "Cumulative number of runtime operations by operation type.",
            operations.iter().map(|(name, op)| (label(name), &op.total)),
        );
        out.counters(
            "kubelet_runtime_operations_errors_total",
            "Cumulative number of runtime operation errors by operation type.",
            operations
                .iter()
                .filter(|(_, op)| op.errors.get() > 0)
                .map(|(name, op)| (label(name), &op.errors)),
        );
        out.histograms(
            "kubelet_runtime_operations_duration_seconds",
            "Duration in seconds of runtime operations, by operation type.",
            operations.iter().map(|(name, op)| (label(name), &op.duration)),
        );
    }
}

/// Metrics of the pod manager and housekeeping.
#[derive(Default)]
pub struct PodMetrics {
    pub desired: Gauge,
    pub desired_static: Gauge,
    pub mirrors: Gauge,
    pub restarted: Counter,
    pub restarted_static: Counter,
    pub orphaned_runtime_pods: Counter,
    /// Pods that only the runtime has and that are being terminated.
    pub ending_orphans: Gauge,
    /// Preempted pods, by the insufficient resource.
    preemptions: Mutex<BTreeMap<String, Counter>>,
}

impl PodMetrics {
    pub fn preempted(&self, lacking: &str) {
        self.preemptions.lock().entry(lacking.to_owned()).or_default().inc();
    }

    fn write(&self, out: &mut Exposition) {
        out.gauge(
            "kubelet_desired_pods",
            "The number of pods the kubelet is being instructed to run.",
            &[(&[("static", "")], &self.desired), (&[("static", "true")], &self.desired_static)],
        );
        let help = "The number of mirror pods the node tries to create (one per static pod).";
        out.gauge("kubelet_mirror_pods", help, &[(&[], &self.mirrors)]);
        out.counters(
            "kubelet_orphaned_runtime_pods_total",
            "Number of pods found running in the runtime without being known to the pod workers.",
            [(vec![], &self.orphaned_runtime_pods)].into_iter(),
        );
        out.counters(
            "kubelet_preemptions",
            "Cumulative number of pod preemptions by preemption resource",
            self.preemptions
                .lock()
                .iter()
                .map(|(lacking, count)| (vec![("preemption_signal", lacking.as_str())], count)),
        );
        out.counters(
            "kubelet_restarted_pods_total",
            "Number of pods restarted because they were deleted and recreated under the same UID.",
            [
                (vec![("static", "")], &self.restarted),
                (vec![("static", "true")], &self.restarted_static),
            ]
            .into_iter(),
        );
    }
}

/// Metrics of lifecycle hooks.
#[derive(Default)]
pub struct HookMetrics {
    pub http_fallbacks: Counter,
    pub sleeps_cut_short: Counter,
}

impl HookMetrics {
    fn write(&self, out: &mut Exposition) {
        out.counters(
            "kubelet_lifecycle_handler_http_fallbacks_total",
            "Number of HTTPS lifecycle hooks that fell back to plain HTTP.",
            [(vec![], &self.http_fallbacks)].into_iter(),
        );
        out.counters(
            "kubelet_sleep_action_terminated_early_total",
            "Number of sleep hooks that were terminated early.",
            [(vec![], &self.sleeps_cut_short)].into_iter(),
        );
    }
}

/// Metrics of actuated resizes. In milliseconds, as upstream.
pub struct ResizeMetrics {
    done: Histogram,
    failed: Histogram,
}

impl Default for ResizeMetrics {
    fn default() -> Self {
        Self { done: Histogram::new(RESIZE_MILLIS), failed: Histogram::new(RESIZE_MILLIS) }
    }
}

impl ResizeMetrics {
    pub fn done(&self, well: bool, took: std::time::Duration) {
        let histogram = if well { &self.done } else { &self.failed };
        histogram.observe(took * 1000);
    }

    fn write(&self, out: &mut Exposition) {
        let all = [("true", &self.done), ("false", &self.failed)];
        out.histograms(
            "kubelet_pod_resize_duration_milliseconds",
            "Duration in milliseconds to actuate a pod resize",
            all.into_iter()
                .filter(|(_, histogram)| histogram.count() > 0)
                .map(|(success, histogram)| (vec![("success", success)], histogram)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runtime_without_driver_report_is_losing_support() {
        let page = |reports_cgroup_driver| {
            let mut out = Exposition::default();
            RuntimeMetrics::of(reports_cgroup_driver).write(&mut out);
            out.into_page()
        };
        let line = "kubelet_cri_losing_support{version=\"1.37.0\"} 1\n";
        assert!(page(false).contains(line), "{}", page(false));
        assert!(!page(true).contains("losing_support"));
    }

    #[test]
    fn runtime_operations_have_the_buckets_of_the_reference() {
        let metrics = RuntimeMetrics::default();
        metrics.called("stop_container", std::time::Duration::from_secs(30), true);
        let mut out = Exposition::default();
        metrics.write(&mut out);
        let page = out.into_page();
        let buckets = page.lines().filter(|line| line.contains("duration_seconds_bucket"));
        let buckets: Vec<_> = buckets.collect();
        assert_eq!(buckets.len(), 15, "{page}");
        for (bound, count) in [("19.073486328125", 0), ("47.6837158203125", 1), ("+Inf", 1)] {
            let want = (format!("le=\"{bound}\""), format!(" {count}"));
            let found =
                buckets.iter().any(|line| line.contains(&want.0) && line.ends_with(&want.1));
            assert!(found, "{bound}: {page}");
        }
    }
}
