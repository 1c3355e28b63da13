//! Probe results per probe. A series exists as long as its pod is probed.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::pod::{Pod, ProbeKind};

use super::{Counter, DEFAULT, Exposition, Histogram};

#[derive(Default)]
pub struct ProbeMetrics(Arc<Mutex<Registered>>);

#[derive(Default)]
struct Registered {
    series: BTreeMap<u64, Weak<ProbeSeries>>,
    next: u64,
}

/// The results of one probe.
pub struct ProbeSeries {
    pod: PodName,
    uid: PodUid,
    container: Arc<str>,
    kind: ProbeKind,
    pub successful: Counter,
    pub failed: Counter,
    /// Of successes only.
    pub duration: Histogram,
    number: u64,
    registered: Weak<Mutex<Registered>>,
}

impl Drop for ProbeSeries {
    fn drop(&mut self) {
        if let Some(registered) = self.registered.upgrade() {
            registered.lock().series.remove(&self.number);
        }
    }
}

impl ProbeSeries {
    fn key(&self) -> (&Arc<str>, &PodName, ProbeKind, &PodUid) {
        (&self.container, &self.pod, self.kind, &self.uid)
    }
}

impl ProbeMetrics {
    /// A new series. It is exported until it is dropped.
    pub fn series(&self, pod: &Pod, container: &Arc<str>, kind: ProbeKind) -> Arc<ProbeSeries> {
        let mut registered = self.0.lock();
        let number = registered.next;
        registered.next += 1;
        let series = Arc::new(ProbeSeries {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            container: container.clone(),
            kind,
            successful: Counter::default(),
            failed: Counter::default(),
            duration: Histogram::new(DEFAULT),
            number,
            registered: Arc::downgrade(&self.0),
        });
        registered.series.insert(number, Arc::downgrade(&series));
        series
    }

    pub fn write(&self, out: &mut Exposition) {
        let mut all: Vec<Arc<ProbeSeries>> =
            self.0.lock().series.values().filter_map(Weak::upgrade).collect();
        all.sort_by(|a, b| a.key().cmp(&b.key()));
        out.histograms(
            "prober_probe_duration_seconds",
            "Duration in seconds for a probe response.",
            all.iter().filter(|series| series.duration.count() > 0).map(|series| {
                let labels = vec![
                    ("container", &*series.container),
                    ("namespace", &*series.pod.namespace),
                    ("pod", &*series.pod.name),
                    ("probe_type", series.kind.as_str()),
                ];
                (labels, &series.duration)
            }),
        );
        let results = all.iter().flat_map(|series| {
            [("failed", &series.failed), ("successful", &series.successful)]
                .into_iter()
                .filter(|(_, counter)| counter.get() > 0)
                .map(|(result, counter)| {
                    let labels = vec![
                        ("container", &*series.container),
                        ("namespace", &*series.pod.namespace),
                        ("pod", &*series.pod.name),
                        ("pod_uid", series.uid.as_str()),
                        ("probe_type", series.kind.as_str()),
                        ("result", result),
                    ];
                    (labels, counter)
                })
        });
        out.counters(
            "prober_probe_total",
            "Cumulative number of a liveness, readiness or startup probe of a container, by result.",
            results,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn series_is_exported_while_its_pod_is_probed() {
        let object = serde_json::json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
            "spec": { "containers": [{ "name": "c" }] },
        });
        let pod =
            Pod::parse(serde_json::from_value(object).unwrap(), podwright_core::pod::Source::Api);
        let metrics = ProbeMetrics::default();
        let page = || {
            let mut out = Exposition::default();
            metrics.write(&mut out);
            out.into_page()
        };
        assert_eq!(page(), "");
        let series = metrics.series(&pod.unwrap(), &"c".into(), ProbeKind::Liveness);
        series.successful.inc();
        series.duration.observe(Duration::from_millis(7));
        let page_now = page();
        for line in [
            "prober_probe_total{container=\"c\",namespace=\"shop\",pod=\"web\",pod_uid=\"u1\",probe_type=\"Liveness\",result=\"successful\"} 1",
            "prober_probe_duration_seconds_bucket{container=\"c\",namespace=\"shop\",pod=\"web\",probe_type=\"Liveness\",le=\"0.01\"} 1",
        ] {
            assert!(page_now.contains(line), "{page_now}");
        }
        assert!(!page_now.contains("failed"), "zero counters are not exported");
        drop(series);
        assert_eq!(page(), "");
        assert!(metrics.0.lock().series.is_empty(), "a series is unregistered when it is dropped");
    }
}
