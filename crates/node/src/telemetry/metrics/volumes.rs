//! Usage metrics of volumes with claims.

use podwright_core::stats::{ClaimReference, FsStats};

use super::exposition::{Exposition, Family, MetricKind, Sample, Stability};

type Read = fn(&FsStats) -> Option<u64>;

const FAMILIES: [(&str, &str, Read); 6] = [
    ("kubelet_volume_stats_available_bytes", "Number of available bytes in the volume", |fs| {
        fs.available_bytes
    }),
    ("kubelet_volume_stats_capacity_bytes", "Capacity in bytes of the volume", |fs| {
        fs.capacity_bytes
    }),
    ("kubelet_volume_stats_inodes", "Maximum number of inodes in the volume", |fs| fs.inodes),
    ("kubelet_volume_stats_inodes_free", "Number of free inodes in the volume", |fs| {
        fs.inodes_free
    }),
    ("kubelet_volume_stats_inodes_used", "Number of used inodes in the volume", |fs| {
        fs.inodes_used
    }),
    ("kubelet_volume_stats_used_bytes", "Number of used bytes in the volume", |fs| fs.used_bytes),
];

/// Each claim once, even if several pods use it.
pub fn write(claims: &[(ClaimReference, FsStats)], out: &mut Exposition) {
    for (name, help, read) in FAMILIES {
        let family = Family { name, help, kind: MetricKind::Gauge, stability: Stability::Alpha };
        let samples = claims.iter().filter_map(|(claim, fs)| {
            let labels = vec![
                ("namespace", claim.namespace.as_str()),
                ("persistentvolumeclaim", claim.name.as_str()),
            ];
            Some(Sample::now(labels, read(fs)? as f64))
        });
        out.family(&family, samples);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use podwright_core::stats::Moment;

    use super::*;

    #[test]
    fn unknown_volume_stats_are_left_out() {
        let fs = FsStats {
            time: Moment(jiff::Timestamp::UNIX_EPOCH),
            available_bytes: Some(1),
            capacity_bytes: Some(2),
            used_bytes: None,
            inodes_free: None,
            inodes: Some(3),
            inodes_used: None,
        };
        let claim = ClaimReference { name: "data".into(), namespace: "shop".into() };
        let mut out = Exposition::default();
        write(&[(claim, fs)], &mut out);
        let page = out.into_page();
        let of = |name: &str, value: u64| {
            format!("{name}{{namespace=\"shop\",persistentvolumeclaim=\"data\"}} {value}")
        };
        let lines: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        let want = [
            of("kubelet_volume_stats_available_bytes", 1),
            of("kubelet_volume_stats_capacity_bytes", 2),
            of("kubelet_volume_stats_inodes", 3),
        ];
        assert_eq!(lines, want);
    }
}
