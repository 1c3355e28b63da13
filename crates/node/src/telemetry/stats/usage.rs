//! Resource metrics of the embedded API: measured on request, by the samples of earlier requests or
//! by a second one a second later.

use std::time::Duration;

use podwright_core::stats::usage::{
    ContainerSample, Counters, MAX_PERIOD, PodSample, UsageReport, UsageSample,
};

use super::{CgroupUsage, SNAPSHOT_TTL, Snapshot, Stats};

/// Delay between two samples if there was none before.
const BETWEEN_SAMPLES: Duration = Duration::from_secs(1);
/// Kept samples. They are at least a second apart, so that a client that asks every second does not
/// displace those with a good period.
const MAX_SAMPLES: usize = 8;

impl Stats {
    /// The current usage of the node and of its pods. Takes a second if nothing asked during the
    /// last minute, or if a container was started since.
    ///
    /// Several requests at once wait for one measurement.
    pub async fn usage(&self) -> UsageReport {
        let mut samples = self.samples.lock().await;
        let newest = sample(&*self.snapshot_within(SNAPSHOT_TTL).await);
        let report = UsageReport::between(&samples, &newest);
        if report.complete {
            keep(&mut samples, newest);
            return report;
        }
        // It has what the last one lacks.
        samples.pop_if(|last| newest.read.since(last.read) < SNAPSHOT_TTL);
        keep(&mut samples, newest);
        // Dropping the wait loses nothing: the first sample is kept.
        tokio::time::sleep(BETWEEN_SAMPLES).await;
        let newest = sample(&*self.snapshot_within(Duration::ZERO).await);
        let report = UsageReport::between(&samples, &newest);
        keep(&mut samples, newest);
        report
    }
}

fn keep(samples: &mut Vec<UsageSample>, newest: UsageSample) {
    samples.retain(|sample| newest.read.since(sample.read) <= MAX_PERIOD);
    if samples.last().is_some_and(|last| newest.read.since(last.read) < SNAPSHOT_TTL) {
        return; // the same snapshot
    }
    if samples.len() >= MAX_SAMPLES {
        // The oldest one stays: the others are dropped before it is too old.
        samples.remove(1);
    }
    samples.push(newest);
}

fn sample(snapshot: &Snapshot) -> UsageSample {
    let pods = snapshot.pods.iter().map(|pod| PodSample {
        name: pod.name().clone(),
        containers: pod
            .containers
            .iter()
            .map(|container| ContainerSample {
                name: container.name.to_string(),
                id: container.id.clone(),
                counters: counters(&container.group),
            })
            .collect(),
    });
    UsageSample {
        read: snapshot.read,
        at: snapshot.at,
        node: counters(&snapshot.node),
        pods: pods.collect(),
    }
}

fn counters(group: &CgroupUsage) -> Option<Counters> {
    let working_set = group.usage.memory.as_ref()?.working_set;
    Some(Counters { cpu_nanos: group.usage.cpu_nanos?, working_set })
}
