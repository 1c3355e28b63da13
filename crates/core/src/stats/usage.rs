//! Resource metrics: the usage of pods and of the node over a short period, for `kubectl top` and
//! autoscalers.
//!
//! CPU usage needs two readings of a counter. The node reads none unless it is asked, so the first
//! request has to wait for the second reading: [`UsageReport::complete`] says whether it has to.

use std::time::Duration;

use jiff::Timestamp;

use super::rate;
use crate::ids::{ContainerId, PodName};
use crate::time::Mono;

/// Shortest period of a report; below it, the jitter of the readings would show.
const MIN_PERIOD: Duration = Duration::from_millis(500);
/// Period from which a newer reading is not preferred to an older one.
const GOOD_PERIOD: Duration = Duration::from_secs(5);
/// Age from which a reading says nothing about the current usage.
pub const MAX_PERIOD: Duration = Duration::from_secs(60);

/// CPU time and memory of one cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    pub cpu_nanos: u64,
    pub working_set: u64,
}

/// The counters of everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageSample {
    pub read: Mono,
    pub at: Timestamp,
    pub node: Option<Counters>,
    pub pods: Vec<PodSample>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSample {
    pub name: PodName,
    pub containers: Vec<ContainerSample>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSample {
    pub name: String,
    pub id: ContainerId,
    /// `None`: they could not be read.
    pub counters: Option<Counters>,
}

/// Average CPU usage over a period, and memory at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredUsage {
    pub nano_cores: u64,
    pub memory_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUsage {
    pub window: Duration,
    pub usage: MeasuredUsage,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    pub name: PodName,
    pub window: Duration,
    /// Name and usage of each running container.
    pub containers: Vec<(String, MeasuredUsage)>,
}

/// The usage at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageReport {
    pub at: Timestamp,
    pub node: Option<NodeUsage>,
    /// Pods of which each running container was measured.
    pub pods: Vec<PodUsage>,
    /// Nothing would be added by a second reading.
    pub complete: bool,
}

impl UsageReport {
    /// The usage between earlier samples and the newest one.
    pub fn between(earlier: &[UsageSample], newest: &UsageSample) -> Self {
        let bases = bases(earlier, newest);
        let mut complete = true;
        let node = newest.node.and_then(|now| {
            let found = bases.iter().find_map(|(base, window)| {
                Some(NodeUsage { window: *window, usage: measured(base.node?, now, *window)? })
            });
            complete &= found.is_some();
            found
        });
        let mut pods = Vec::new();
        for pod in newest.pods.iter().filter(|pod| pod.can_be_measured()) {
            match bases.iter().find_map(|(base, window)| pod.since(base, *window)) {
                Some(usage) => pods.push(usage),
                None => complete = false,
            }
        }
        Self { at: newest.at, node, pods, complete }
    }
}

/// Samples to measure from, the best first: the newest that is old enough, then older ones, then
/// those with a short period.
fn bases<'s>(earlier: &'s [UsageSample], newest: &UsageSample) -> Vec<(&'s UsageSample, Duration)> {
    let mut bases: Vec<(&UsageSample, Duration)> = earlier
        .iter()
        .map(|sample| (sample, newest.read.since(sample.read)))
        .filter(|(_, window)| (MIN_PERIOD..=MAX_PERIOD).contains(window))
        .collect();
    bases.sort_by_key(|(_, window)| match *window >= GOOD_PERIOD {
        true => (false, *window),
        false => (true, MAX_PERIOD.saturating_sub(*window)),
    });
    bases
}

impl PodSample {
    /// A container that has not used any CPU time or memory has not begun to run; one that cannot
    /// be read will not become readable by waiting.
    fn can_be_measured(&self) -> bool {
        let begun = |counters: Counters| counters.cpu_nanos > 0 && counters.working_set > 0;
        !self.containers.is_empty()
            && self.containers.iter().all(|container| container.counters.is_some_and(begun))
    }

    /// `None`: one of its containers is not in the sample.
    fn since(&self, base: &UsageSample, window: Duration) -> Option<PodUsage> {
        let before = base.pods.iter().find(|pod| pod.name == self.name)?;
        let mut containers = Vec::with_capacity(self.containers.len());
        for now in &self.containers {
            let before = before.containers.iter().find(|container| container.id == now.id)?;
            let usage = measured(before.counters?, now.counters?, window)?;
            containers.push((now.name.clone(), usage));
        }
        Some(PodUsage { name: self.name.clone(), window, containers })
    }
}

fn measured(before: Counters, now: Counters, window: Duration) -> Option<MeasuredUsage> {
    let nano_cores = rate(before.cpu_nanos, now.cpu_nanos, window)?;
    Some(MeasuredUsage { nano_cores, memory_bytes: now.working_set })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn counters(cpu_millis: u64) -> Counters {
        Counters { cpu_nanos: cpu_millis * 1_000_000, working_set: 4096 }
    }

    /// A sample with one pod; its containers are given by id and CPU milliseconds.
    fn sample(at_millis: u64, node: u64, containers: &[(&str, Option<u64>)]) -> UsageSample {
        let container = |(id, cpu): &(&str, Option<u64>)| ContainerSample {
            name: id.trim_end_matches(char::is_numeric).to_owned(),
            id: ContainerId::new(*id),
            counters: cpu.map(counters),
        };
        UsageSample {
            read: Mono(Duration::from_millis(at_millis)),
            at: Timestamp::UNIX_EPOCH,
            node: Some(counters(node)),
            pods: vec![PodSample {
                name: PodName::new("default", "web"),
                containers: containers.iter().map(container).collect(),
            }],
        }
    }

    fn pods(report: &UsageReport) -> Vec<(u64, Vec<(&str, u64)>)> {
        let millis = |window: Duration| u64::try_from(window.as_millis()).unwrap();
        let usage = |pod: &PodUsage| -> Vec<(String, u64)> {
            let all = pod.containers.iter();
            all.map(|(name, usage)| (name.clone(), usage.nano_cores / 1_000_000)).collect()
        };
        report
            .pods
            .iter()
            .map(|pod| {
                let usage = usage(pod);
                let names = pod.containers.iter().map(|(name, _)| name.as_str());
                (millis(pod.window), names.zip(usage.into_iter().map(|(_, cpu)| cpu)).collect())
            })
            .collect()
    }

    #[test]
    fn usage_needs_two_readings_of_the_same_containers() {
        let newest = sample(10_000, 3000, &[("app1", Some(500)), ("log1", Some(20))]);
        for (case, earlier, want, complete) in [
            ("no earlier sample", vec![], vec![], false),
            (
                "a second ago",
                vec![sample(9_000, 1000, &[("app1", Some(300)), ("log1", Some(20))])],
                vec![(1000, vec![("app", 200), ("log", 0)])],
                true,
            ),
            (
                "one container was restarted",
                vec![sample(9_000, 1000, &[("app0", Some(300)), ("log1", Some(20))])],
                vec![],
                false,
            ),
            (
                "one container could not be read",
                vec![sample(9_000, 1000, &[("app1", None), ("log1", Some(20))])],
                vec![],
                false,
            ),
            (
                "a moment ago",
                vec![sample(9_900, 1000, &[("app1", Some(300)), ("log1", Some(20))])],
                vec![],
                false,
            ),
        ] {
            let report = UsageReport::between(&earlier, &newest);
            assert_eq!((pods(&report), report.complete), (want, complete), "{case}");
        }
    }

    #[test]
    fn newest_reading_that_is_old_enough_is_the_base() {
        let at = |seconds: u64| sample(seconds * 1000, 1, &[("app1", Some(seconds))]);
        for (case, earlier, want) in [
            ("several", vec![at(900), at(950), at(980), at(998)], 20),
            ("only short ones: the longest", vec![at(997), at(999)], 3),
            ("an old one and a short one", vec![at(800), at(999)], 1),
        ] {
            let report = UsageReport::between(&earlier, &at(1000));
            assert_eq!(pods(&report)[0].0, want * 1000, "{case}");
            assert_eq!(report.node.unwrap().window, Duration::from_secs(want), "{case}");
        }
        let stale = UsageReport::between(&[at(900)], &at(1000));
        assert!(stale.pods.is_empty() && stale.node.is_none() && !stale.complete);
    }

    #[test]
    fn pod_that_cannot_be_measured_is_not_waited_for() {
        let earlier = [sample(0, 1, &[])];
        for (case, containers) in [
            ("no container runs", vec![]),
            ("a container cannot be read", vec![("app1", None)]),
            ("a container has not begun to run", vec![("app1", Some(0))]),
        ] {
            let report = UsageReport::between(&earlier, &sample(10_000, 2, &containers));
            assert!(report.pods.is_empty() && report.complete, "{case}");
        }
    }
}
