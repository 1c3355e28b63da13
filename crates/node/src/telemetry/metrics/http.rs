//! Metrics of the kubelet server.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::exposition::{Counter, Exposition, Gauge, Histogram, Labels};

/// Labels of a request. All come from fixed lists, so that clients cannot create new series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HttpKey {
    pub method: &'static str,
    pub path: &'static str,
    /// `readwrite`, `readonly`.
    pub server: &'static str,
    pub long_running: bool,
}

impl HttpKey {
    fn labels(&self) -> Labels<'static> {
        vec![
            ("long_running", if self.long_running { "true" } else { "false" }),
            ("method", self.method),
            ("path", self.path),
            ("server_type", self.server),
        ]
    }
}

#[derive(Default)]
pub struct HttpMetrics {
    series: Mutex<BTreeMap<HttpKey, Series>>,
}

struct Series {
    total: Counter,
    inflight: Gauge,
    duration: Histogram,
}

impl HttpMetrics {
    pub fn began(&self, key: HttpKey) {
        let mut all = self.series.lock();
        let series = all.entry(key).or_insert_with(|| Series {
            total: Counter::default(),
            inflight: Gauge::default(),
            duration: Histogram::new(super::DEFAULT),
        });
        series.total.inc();
        series.inflight.inc();
    }

    pub fn ended(&self, key: HttpKey, took: Duration) {
        if let Some(series) = self.series.lock().get(&key) {
            series.inflight.dec();
            series.duration.observe(took);
        }
    }

    pub(super) fn write(&self, out: &mut Exposition) {
        let all = self.series.lock();
        out.counters(
            "kubelet_http_requests_total",
            "Number of the http requests received since the server started",
            all.iter().map(|(key, series)| (key.labels(), &series.total)),
        );
        out.histograms(
            "kubelet_http_requests_duration_seconds",
            "Duration in seconds to serve http requests",
            all.iter().map(|(key, series)| (key.labels(), &series.duration)),
        );
        let labels: Vec<_> =
            all.iter().map(|(key, series)| (key.labels(), &series.inflight)).collect();
        let series: Vec<_> =
            labels.iter().map(|(labels, inflight)| (labels.as_slice(), *inflight)).collect();
        out.gauge(
            "kubelet_http_inflight_requests",
            "Number of the inflight http requests",
            &series,
        );
    }
}
