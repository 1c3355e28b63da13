//! Prometheus text format, version 0.0.4, and the metric types for it.
//!
//! Not a client library, because upstream has counters without `_total`, which they forbid.

use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use jiff::Timestamp;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    pub fn inc(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Only after an [`Self::inc`].
    pub fn dec(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A time, in seconds since the epoch.
#[derive(Debug, Default)]
pub struct TimeGauge(AtomicI64);

impl TimeGauge {
    pub fn set(&self, time: Timestamp) {
        self.0.store(time.as_second(), Relaxed);
    }
}

#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One per bound, not cumulative; values above the last bound are only in `count`.
    buckets: Box<[AtomicU64]>,
    count: AtomicU64,
    sum_nanos: AtomicU64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, count: AtomicU64::new(0), sum_nanos: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: Duration) {
        let seconds = value.as_secs_f64();
        let place = self.bounds.iter().position(|bound| seconds <= *bound);
        if let Some(bucket) = place.and_then(|place| self.buckets.get(place)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(u64::try_from(value.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }
}

/// Description of a metric family.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub stability: Stability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
}

/// Upstream's stability level of a metric; the prefix of the help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    Alpha,
    Stable,
    /// Without a stability level, as in cAdvisor.
    Unspecified,
}

/// One value of a family.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    pub labels: Labels<'a>,
    pub value: f64,
    /// When it was read, if not just now.
    pub at: Option<Timestamp>,
}

impl<'a> Sample<'a> {
    pub fn now(labels: Labels<'a>, value: f64) -> Self {
        Self { labels, value, at: None }
    }
}

pub type Labels<'a> = Vec<(&'a str, &'a str)>;

/// The page being written.
#[derive(Debug, Default)]
pub struct Exposition {
    page: String,
}

impl Exposition {
    pub fn into_page(self) -> String {
        self.page
    }

    /// A family with values computed on scrape. Left out if it has none.
    pub fn family<'a>(&mut self, family: &Family, samples: impl IntoIterator<Item = Sample<'a>>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        let kind = match family.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let help = match family.stability {
            Stability::Alpha => format!("[ALPHA] {}", family.help),
            Stability::Stable => format!("[STABLE] {}", family.help),
            Stability::Unspecified => family.help.to_owned(),
        };
        self.title(family.name, &help, kind);
        for Sample { labels, value, at } in samples {
            match at {
                Some(at) => {
                    let value = format!("{value} {}", at.as_millisecond());
                    self.sample(family.name, &labels, value);
                }
                None => self.sample(family.name, &labels, value),
            }
        }
    }

    pub fn gauge(&mut self, name: &str, help: &str, series: &[(&[(&str, &str)], &Gauge)]) {
        self.head(name, help, "gauge");
        for (labels, gauge) in series {
            self.sample(name, labels, gauge.get());
        }
    }

    pub fn time(&mut self, name: &str, help: &str, gauge: &TimeGauge) {
        self.head(name, help, "gauge");
        self.sample(name, &[], gauge.0.load(Relaxed));
    }

    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl Iterator<Item = (Labels<'a>, &'a Counter)>,
    ) {
        let mut series = series.peekable();
        if series.peek().is_none() {
            return;
        }
        self.head(name, help, "counter");
        for (labels, counter) in series {
            self.sample(name, &labels, counter.get());
        }
    }

    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.histograms(name, help, [(vec![], histogram)].into_iter());
    }

    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        series: impl Iterator<Item = (Labels<'a>, &'a Histogram)>,
    ) {
        let mut series = series.peekable();
        if series.peek().is_none() {
            return;
        }
        self.head(name, help, "histogram");
        for (labels, histogram) in series {
            self.histogram_samples(name, &labels, histogram);
        }
    }

    fn histogram_samples(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        // Read once: a value observed in between must not make the buckets inconsistent.
        let count = histogram.count();
        let bucket = format!("{name}_bucket");
        let mut below = 0;
        for (bound, bucket_count) in histogram.bounds.iter().zip(&histogram.buckets) {
            below = (below + bucket_count.load(Relaxed)).min(count);
            let bound = bound.to_string();
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.sample(&bucket, &labels, below);
        }
        let mut all = labels.to_vec();
        all.push(("le", "+Inf"));
        self.sample(&bucket, &all, count);
        let sum = Duration::from_nanos(histogram.sum_nanos.load(Relaxed)).as_secs_f64();
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.title(name, &format!("[ALPHA] {help}"), kind);
    }

    fn title(&mut self, name: &str, help: &str, kind: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.page, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.page.push_str(name);
        for (place, (key, text)) in labels.iter().enumerate() {
            self.page.push(if place == 0 { '{' } else { ',' });
            let _ = write!(self.page, "{key}=\"{}\"", escaped(text));
        }
        if !labels.is_empty() {
            self.page.push('}');
        }
        let _ = writeln!(self.page, " {value}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_is_cumulative_and_ends_with_inf() {
        let histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 500, 5000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut out = Exposition::default();
        out.histogram("x_seconds", "Help.", &histogram);
        assert_eq!(
            out.into_page(),
            "# HELP x_seconds [ALPHA] Help.\n# TYPE x_seconds histogram\n\
             x_seconds_bucket{le=\"0.1\"} 1\nx_seconds_bucket{le=\"1\"} 2\n\
             x_seconds_bucket{le=\"+Inf\"} 3\nx_seconds_sum 5.55\nx_seconds_count 3\n"
        );
    }

    #[test]
    fn label_values_are_escaped() {
        let counter = Counter::default();
        counter.inc();
        let mut out = Exposition::default();
        out.counters("c", "h", [(vec![("l", "a\"b\\c\nd")], &counter)].into_iter());
        assert!(out.into_page().ends_with("c{l=\"a\\\"b\\\\c\\nd\"} 1\n"));
    }
}
