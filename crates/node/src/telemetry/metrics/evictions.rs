//! Metrics of evictions.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Counter, Exposition, Histogram};

#[derive(Default)]
pub struct EvictionMetrics {
    /// By signal, or by kind of limit.
    evicted: Mutex<BTreeMap<&'static str, Counter>>,
    ages: Mutex<BTreeMap<&'static str, Histogram>>,
}

impl EvictionMetrics {
    pub fn evicted(&self, signal: &'static str) {
        self.evicted.lock().entry(signal).or_default().inc();
    }

    /// A threshold was acted on by a sample of this age.
    pub fn aged(&self, signal: &'static str, age: Duration) {
        let mut ages = self.ages.lock();
        ages.entry(signal).or_insert_with(|| Histogram::new(super::DEFAULT)).observe(age);
    }

    pub(super) fn write(&self, out: &mut Exposition) {
        let evicted = self.evicted.lock();
        out.counters(
            "kubelet_evictions",
            "Cumulative number of pod evictions by eviction signal",
            evicted.iter().map(|(signal, count)| (vec![("eviction_signal", *signal)], count)),
        );
        drop(evicted);
        let ages = self.ages.lock();
        out.histograms(
            "kubelet_eviction_stats_age_seconds",
            "Time between when stats are collected, and when pod is evicted based on those stats \
             by eviction signal",
            ages.iter().map(|(signal, age)| (vec![("eviction_signal", *signal)], age)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evictions_are_counted_by_signal() {
        let metrics = EvictionMetrics::default();
        metrics.evicted("memory.available");
        metrics.evicted("memory.available");
        metrics.aged("memory.available", Duration::from_millis(20));
        let mut out = Exposition::default();
        metrics.write(&mut out);
        let page = out.into_page();
        for line in [
            "kubelet_evictions{eviction_signal=\"memory.available\"} 2",
            "kubelet_eviction_stats_age_seconds_count{eviction_signal=\"memory.available\"} 1",
        ] {
            assert!(page.contains(line), "{page}");
        }
    }
}
