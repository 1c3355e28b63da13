//! Metrics of image pulls, access checks and image garbage collection.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::gc::RemovalReason;

use super::{Counter, Exposition, Histogram};

const PULL: &[f64] =
    &[1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 180.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0];

#[derive(Default)]
pub struct ImageMetrics {
    pulls: Mutex<BTreeMap<&'static str, Histogram>>,
    collected: Mutex<BTreeMap<RemovalReason, Counter>>,
    /// By pull policy, whether the image was present, and whether it had to be pulled.
    ensured: Mutex<BTreeMap<(&'static str, bool, bool), Counter>>,
    checked: Mutex<BTreeMap<&'static str, Counter>>,
    plugins: Mutex<BTreeMap<String, Plugin>>,
}

struct Plugin {
    duration: Histogram,
    errors: Counter,
}

impl Default for Plugin {
    fn default() -> Self {
        Self { duration: Histogram::new(super::DEFAULT), errors: Counter::default() }
    }
}

impl ImageMetrics {
    /// An image was pulled. Pulls of unknown size are counted separately.
    pub fn pulled(&self, size: Option<u64>, took: Duration) {
        let mut pulls = self.pulls.lock();
        pulls.entry(size_class(size)).or_insert_with(|| Histogram::new(PULL)).observe(took);
    }

    pub fn garbage_collected(&self, why: RemovalReason) {
        self.collected.lock().entry(why).or_default().inc();
    }

    /// An image was requested.
    pub fn ensured(&self, pull_policy: &'static str, present: bool, pull: bool) {
        self.ensured.lock().entry((pull_policy, present, pull)).or_default().inc();
    }

    /// Access to a present image was checked.
    pub fn checked(&self, result: &'static str) {
        self.checked.lock().entry(result).or_default().inc();
    }

    pub fn plugin_ran(&self, plugin: &str, took: Duration) {
        self.plugins.lock().entry(plugin.to_owned()).or_default().duration.observe(took);
    }

    pub fn plugin_failed(&self, plugin: &str) {
        self.plugins.lock().entry(plugin.to_owned()).or_default().errors.inc();
    }

    pub(super) fn write(&self, out: &mut Exposition) {
        let pulls = self.pulls.lock();
        out.histograms(
            "kubelet_image_pull_duration_seconds",
            "Duration in seconds to pull an image.",
            pulls.iter().map(|(size, h)| (vec![("image_size_in_bytes", *size)], h)),
        );
        let collected = self.collected.lock();
        out.counters(
            "kubelet_image_garbage_collected_total",
            "Total number of images garbage collected by the kubelet, by disk usage or image age.",
            collected.iter().map(|(why, count)| (vec![("reason", why.as_str())], count)),
        );
        self.write_requests(out);
        let plugins = self.plugins.lock();
        out.histograms(
            "kubelet_credential_provider_plugin_duration",
            "Duration of execution in seconds for credential provider plugins.",
            plugins.iter().map(|(name, p)| (vec![("plugin_name", name.as_str())], &p.duration)),
        );
        out.counters(
            "kubelet_credential_provider_plugin_errors_total",
            "Number of errors from credential provider plugins.",
            plugins.iter().map(|(name, p)| (vec![("plugin_name", name.as_str())], &p.errors)),
        );
    }

    fn write_requests(&self, out: &mut Exposition) {
        let ensured = self.ensured.lock();
        let yes = |value: bool| if value { "true" } else { "false" };
        out.counters(
            "kubelet_image_manager_ensure_image_requests_total",
            "Number of ensure-image requests, by pull policy and result.",
            ensured.iter().map(|((policy, present, pull), count)| {
                let labels = vec![
                    ("present_locally", yes(*present)),
                    ("pull_policy", policy),
                    ("pull_required", yes(*pull)),
                ];
                (labels, count)
            }),
        );
        let checked = self.checked.lock();
        out.counters(
            "kubelet_imagemanager_image_mustpull_checks_total",
            "Number of checks whether a present image must be pulled, by result.",
            checked.iter().map(|(result, count)| (vec![("result", *result)], count)),
        );
    }
}

fn size_class(size: Option<u64>) -> &'static str {
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    let Some(size) = size else { return "N/A" };
    let classes = [
        (10 * MIB, "0-10MB"),
        (100 * MIB, "10MB-100MB"),
        (500 * MIB, "100MB-500MB"),
        (GIB, "500MB-1GB"),
        (5 * GIB, "1GB-5GB"),
        (10 * GIB, "5GB-10GB"),
        (20 * GIB, "10GB-20GB"),
        (30 * GIB, "20GB-30GB"),
        (40 * GIB, "30GB-40GB"),
        (60 * GIB, "40GB-60GB"),
        (100 * GIB, "60GB-100GB"),
    ];
    classes.iter().find(|(below, _)| size < *below).map_or("GT100GB", |(_, class)| class)
}
