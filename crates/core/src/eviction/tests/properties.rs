//! Laws of eviction, on nodes with random pods under random pressure.

use proptest::collection::vec;
use proptest::prelude::*;

use super::pods::{priority, requesting, unmeasured, using};
use super::*;
use crate::eviction::usage::Requested;
use crate::eviction::victim::Eviction;

/// Memory of the simulated node, in MiB.
const NODE: u64 = 1000;

#[derive(Clone, Copy, Debug)]
struct Simulated {
    request: u64,
    used: u64,
    grows: u64,
    priority: i32,
    measured: bool,
}

fn simulated() -> impl Strategy<Value = Simulated> {
    let priority = prop_oneof![3 => -3..3i32, 1 => Just(2_000_000_000)];
    (0..200u64, 0..150u64, 0..40u64, priority, prop::bool::weighted(0.9)).prop_map(
        |(request, used, grows, priority, measured)| Simulated {
            request,
            used,
            grows,
            priority,
            measured,
        },
    )
}

fn usage(index: usize, pod: &Simulated) -> PodUsage {
    let request = format!("{}Mi", pod.request);
    let builder = priority(requesting(&format!("p{index}"), "memory", &request), pod.priority);
    match pod.measured {
        true => using(builder, pod.used * MI),
        false => unmeasured(builder),
    }
}

/// Whether a pod is above its request; `None`: it is exempt or not measured.
fn exceeds(pod: &PodUsage) -> Option<bool> {
    let used = pod.used.as_ref()?.memory?;
    let evictable = ranking::may_be_evicted(pod);
    evictable.then(|| used > Requested::of(&pod.resources()).memory)
}

proptest! {
    #[test]
    fn no_pod_within_its_request_is_evicted_while_one_exceeds_its_own(
        mut node in vec(simulated(), 1..12),
        reclaim in 0..200u64,
    ) {
        let limits = thresholds(&Sources {
            minimum_reclaim: map(&[("memory.available", &format!("{reclaim}Mi"))]),
            ..hard(&[("memory.available", "100Mi")])
        });
        let mut history = History::default();
        let mut was_low = false;
        for at in 0..60 {
            for pod in &mut node {
                pod.used += pod.grows;
            }
            let free = NODE.saturating_sub(node.iter().map(|pod| pod.used).sum());
            let verdict = history.pass(&limits, memory(free * MI, at), TRANSITION, second(at));
            prop_assert_eq!(verdict.first().is_some(), free < 100 || (was_low && free < 100 + reclaim));
            was_low = verdict.first().is_some();
            let Some(met) = verdict.first() else { continue };
            let pods: Vec<PodUsage> = node.iter().enumerate().map(|(i, p)| usage(i, p)).collect();
            let ranked = ranking::ranked(pods.clone(), met.threshold.signal, DiskLayout::Single);
            prop_assert_eq!(ranked.len(), pods.len(), "every pod is ranked once");
            let Some(victim) = ranked.into_iter().find(ranking::may_be_evicted) else {
                prop_assert!(node.iter().all(|pod| pod.priority >= 2_000_000_000));
                continue;
            };
            if exceeds(&victim) == Some(false) {
                prop_assert!(pods.iter().all(|pod| exceeds(pod) != Some(true)));
            }
            let eviction = Eviction::new(&victim, met, &verdict, 30);
            prop_assert!(eviction.message.starts_with("The node was low on resource: memory. "));
            prop_assert_eq!(eviction.annotations.is_empty(), victim.used.is_none());
            let gone = victim.pod.name.name.trim_start_matches('p').parse::<usize>().unwrap();
            node[gone] = Simulated { used: 0, grows: 0, priority: i32::MAX, ..node[gone] };
        }
    }

    #[test]
    fn any_texts_are_thresholds_or_an_error(
        value in "[-+0-9.eEinfNaKMG%]{0,8}",
        reclaim in "[-+0-9.eKM%]{0,6}",
        capacity in any::<u64>(),
        available in any::<u64>(),
    ) {
        let sources = Sources {
            minimum_reclaim: map(&[("nodefs.available", &reclaim)]),
            ..hard(&[("nodefs.available", &value)])
        };
        if let Ok(limits) = Thresholds::parse(&sources) {
            for limit in limits.iter() {
                let seen = seen(available, capacity, 0);
                prop_assert!(limit.amount(capacity) <= limit.resolved_at(capacity));
                prop_assert!(!limit.is_met(&seen) || limit.is_unresolved(&seen));
            }
        }
    }

    #[test]
    fn time_until_the_next_look_is_always_within_bounds(
        looks in vec((any::<u64>(), 0..1000u64), 1..20),
        capacity in any::<u64>(),
    ) {
        use crate::eviction::cadence::{FASTEST, SLOWEST};
        let limits = thresholds(&hard(&[("memory.available", "10%")]));
        let mut cadence = Cadence::default();
        for (available, at) in looks {
            let seen = Observations::from([(Signal::Memory, seen(available, capacity, at))]);
            let next = cadence.next(&limits, &seen, second(at));
            prop_assert!((FASTEST..=SLOWEST).contains(&next), "{next:?}");
        }
    }
}
