//! Thresholds from the configuration.

use podwright_api::quantity::Quantity;

use super::*;
use crate::node_status::resources::Threshold as Amount;

#[test]
fn threshold_is_met_strictly_below_its_value() {
    let limits = thresholds(&hard(&[("memory.available", "1Gi")]));
    let limit = limits.iter().next().unwrap();
    assert!(!limit.is_met(&seen(GI, 8 * GI, 0)));
    assert!(limit.is_met(&seen(GI - 1, 8 * GI, 0)));
}

#[test]
fn percentages_are_held_in_single_precision() {
    let limits = thresholds(&hard(&[("nodefs.available", "10%")]));
    let value = limits.hard(Signal::NodeFs).unwrap();
    let capacity = Quantity::from_bytes(107_374_182_400);
    assert_eq!((capacity - value.of(capacity)).value(), 96_636_764_000);
}

#[test]
fn nought_and_whole_percentages_switch_a_threshold_off_by_their_exact_text() {
    let sources = Sources {
        enforce_pods: true,
        ..hard(&[("memory.available", "0%"), ("nodefs.available", "100%")])
    };
    assert!(thresholds(&sources).is_empty());
    let kept = thresholds(&hard(&[("memory.available", "0.0%"), ("pid.available", "100.0%")]));
    let met: Vec<bool> = kept.iter().map(|limit| limit.is_met(&seen(5, 10, 0))).collect();
    assert_eq!(met, [false, true], "the first is never met, the second always");
}

#[test]
fn senseless_thresholds_are_refused() {
    let soft = |value: &str| Sources { soft: map(&[("memory.available", value)]), ..hard(&[]) };
    let reclaim = |value: &str| Sources {
        minimum_reclaim: map(&[("memory.available", value)]),
        ..hard(&[("memory.available", "1Gi")])
    };
    let grace = Sources {
        soft_grace: BTreeMap::from([("memory.available".to_owned(), -5000)]),
        ..soft("1Gi")
    };
    for (sources, want) in [
        (hard(&[("memory", "1Gi")]), "unsupported eviction signal memory"),
        (
            hard(&[("memory.available", "0")]),
            "eviction threshold memory.available must be positive: 0",
        ),
        (
            hard(&[("memory.available", "-1Gi")]),
            "eviction threshold memory.available must be positive: -1Gi",
        ),
        (
            hard(&[("pid.available", "-3%")]),
            "eviction percentage threshold pid.available must be >= 0%: -3%",
        ),
        (
            hard(&[("pid.available", "101%")]),
            "eviction percentage threshold pid.available must be <= 100%: 101%",
        ),
        (
            hard(&[("pid.available", "NaN%")]),
            "eviction threshold pid.available: \"NaN%\" is not a percentage",
        ),
        (
            hard(&[("pid.available", "inf%")]),
            "eviction threshold pid.available: \"inf%\" is not a percentage",
        ),
        (hard(&[("pid.available", "lots")]), "eviction threshold pid.available"),
        (
            soft("1Gi"),
            "grace period must be specified for the soft eviction threshold memory.available",
        ),
        (grace, "invalid eviction grace period specified: -5000ms, must be a positive value"),
        (
            reclaim("0%"),
            "eviction percentage minimum reclaim memory.available must be positive: 0%",
        ),
        (reclaim("-1"), "negative eviction minimum reclaim specified for memory.available"),
    ] {
        assert_eq!(Thresholds::parse(&sources).unwrap_err().to_string(), want);
    }
}

#[test]
fn hard_memory_thresholds_also_apply_to_the_cgroup_of_all_pods_if_it_is_limited() {
    let sources = Sources {
        soft: map(&[("memory.available", "2Gi")]),
        soft_grace: BTreeMap::from([("memory.available".to_owned(), 1000)]),
        minimum_reclaim: map(&[("memory.available", "100Mi")]),
        ..hard(&[("memory.available", "1Gi")])
    };
    let signals = |sources: &Sources| -> Vec<(Signal, bool)> {
        thresholds(sources).iter().map(|limit| (limit.signal, limit.soft)).collect()
    };
    let own = [(Signal::Memory, false), (Signal::Memory, true)];
    assert_eq!(signals(&sources), own);
    let enforced = Sources { enforce_pods: true, ..sources };
    assert_eq!(signals(&enforced), [own[0], own[1], (Signal::AllocatableMemory, false)]);
    let copied = thresholds(&enforced);
    let copied = copied.iter().last().unwrap();
    let want = Amount::Amount(Quantity::from_bytes(100 * MI));
    assert_eq!(copied.minimum_reclaim, Some(want));
}

#[test]
fn thresholds_of_writable_layers_follow_from_the_layout_and_ignore_the_configuration() {
    let configured = thresholds(&hard(&[
        ("containerfs.available", "50%"),
        ("imagefs.available", "15%"),
        ("nodefs.available", "10%"),
    ]));
    assert_eq!(configured.ignored(), [Signal::ContainerFs]);
    assert!(!configured.has(Signal::ContainerFs));
    for (layout, want) in [
        (DiskLayout::Single, Signal::NodeFs),
        (DiskLayout::Split, Signal::NodeFs),
        (DiskLayout::Dedicated, Signal::ImageFs),
    ] {
        // Deriving again changes nothing.
        let derived = configured.with_layout(layout).with_layout(layout);
        assert_eq!(derived.hard(Signal::ContainerFs), derived.hard(want), "{layout:?}");
        assert_eq!(derived.iter().count(), 3);
    }
}

#[test]
fn layout_follows_from_the_devices() {
    assert_eq!(DiskLayout::of(1, 1, None), DiskLayout::Single);
    assert_eq!(DiskLayout::of(1, 2, None), DiskLayout::Dedicated);
    assert_eq!(DiskLayout::of(1, 2, Some(2)), DiskLayout::Dedicated);
    assert_eq!(DiskLayout::of(1, 2, Some(1)), DiskLayout::Split);
}

#[test]
fn nothing_is_reclaimed_for_the_root_directory_if_images_are_elsewhere() {
    use crate::eviction::layout::Reclaimable::{DeadContainers, UnusedImages};
    let both = &[DeadContainers, UnusedImages][..];
    for (layout, signal, want) in [
        (DiskLayout::Single, Signal::NodeFs, both),
        (DiskLayout::Single, Signal::ImageFsInodes, both),
        (DiskLayout::Dedicated, Signal::NodeFs, &[]),
        (DiskLayout::Dedicated, Signal::ImageFs, both),
        (DiskLayout::Dedicated, Signal::ContainerFs, both),
        (DiskLayout::Split, Signal::ImageFs, &[UnusedImages]),
        (DiskLayout::Split, Signal::NodeFsInodes, &[DeadContainers]),
        (DiskLayout::Split, Signal::ContainerFs, &[DeadContainers]),
        (DiskLayout::Single, Signal::Memory, &[]),
        (DiskLayout::Single, Signal::Pids, &[]),
    ] {
        assert_eq!(layout.reclaimable(signal), want, "{layout:?} {signal}");
    }
}

#[test]
fn values_that_cannot_be_true_are_no_observations() {
    let at = SampleTime::Measured(second(0));
    for (case, observation) in [
        ("no capacity", Observation::new(0, 0, at)),
        ("more than everything", Observation::new(11, 10, at)),
        ("more used than there is", Observation::of_used(u64::MAX, 8 * GI, at)),
        ("a limit of nothing", Observation::of_limited(5, 0, at)),
    ] {
        assert!(observation.is_err(), "{case}");
    }
    assert_eq!(Observation::of_used(3, 10, at).unwrap().available, 7);
    let over = Observation::of_limited(11, 10, at).unwrap();
    assert_eq!((over.available, over.capacity), (0, 10), "a limit was lowered below the use");
}
