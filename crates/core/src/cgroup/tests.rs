#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use podwright_api::qos::{ContainerResources, InitResources, Requirements};
use proptest::prelude::*;

use super::*;
use crate::ids::PodUid;

/// `list("cpu=1 memory=1Gi")`
fn list(text: &str) -> ResourceList {
    let pair = |pair: &str| {
        let (name, amount) = pair.split_once('=').unwrap();
        (name.to_owned(), amount.parse().unwrap())
    };
    text.split_whitespace().map(pair).collect()
}

fn requirements(requests: &str, limits: &str) -> Requirements {
    Requirements { requests: list(requests), limits: list(limits) }
}

fn container(name: &str, requests: &str, limits: &str) -> ContainerResources {
    ContainerResources { name: name.into(), resources: requirements(requests, limits) }
}

fn pod(containers: &[(&str, &str)]) -> PodResources {
    let containers = containers.iter().map(|(requests, limits)| container("c", requests, limits));
    PodResources { containers: containers.collect(), ..Default::default() }
}

fn quota(micros: u64) -> Option<CpuQuota> {
    Some(CpuQuota { micros: Some(micros), period_micros: 100_000 })
}

fn config(resources: &PodResources, policy: PodPolicy) -> CgroupConfig {
    CgroupConfig::for_pod(resources, resources.class(), policy)
}

#[test]
fn shares_and_weights_follow_upstreams_formulas() {
    for (milli, shares, weight) in [
        (-5, 2, 1),
        (0, 2, 1),
        (1, 2, 1),
        (2, 2, 1),
        (100, 102, 4),
        (250, 256, 10),
        (1000, 1024, 39),
        (2000, 2048, 79),
        (256_000, 262_144, 10_000),
        (i64::MAX, 262_144, 10_000),
    ] {
        assert_eq!(shares_from_milli_cpu(milli), shares, "{milli}m");
        assert_eq!(weight_from_shares(shares), weight, "{milli}m");
    }
    assert_eq!((weight_from_shares(0), weight_from_shares(u64::MAX)), (1, 10_000));
    assert_eq!((shares_from_weight(1), shares_from_weight(39)), (2, 998));
    assert_eq!((shares_from_weight(0), shares_from_weight(u64::MAX)), (2, 262_144));
}

#[test]
fn quotas_follow_the_period_and_never_fall_below_a_millisecond() {
    for (milli, period, want) in [
        (0, 100_000, None),
        (1, 100_000, Some(1000)),
        (9, 100_000, Some(1000)),
        (200, 100_000, Some(20_000)),
        (1000, 100_000, Some(100_000)),
        (1500, 5_000, Some(7_500)),
        (-1, 100_000, Some(1000)),
        (i64::MAX, 1_000_000, Some(u64::MAX)),
    ] {
        assert_eq!(quota_from_milli_cpu(milli, period), want, "{milli}m per {period}");
    }
}

#[test]
fn kernel_values_convert_back_to_millicores() {
    assert_eq!(milli_cpu_from_shares(256), 250);
    assert_eq!(milli_cpu_from_shares(102), 100);
    assert_eq!(milli_cpu_from_shares(2), 2);
    assert_eq!(milli_cpu_from_shares(0), 0);
    assert_eq!(milli_cpu_from_quota(quota(25_000).unwrap()), 250);
    assert_eq!(milli_cpu_from_quota(CpuQuota { micros: None, period_micros: 100_000 }), 0);
    assert_eq!(milli_cpu_from_quota(CpuQuota { micros: Some(1), period_micros: 0 }), 0);
}

#[test]
fn pod_cgroup_limits_follow_the_qos_class() {
    const MIB: u64 = 1 << 20;
    for (case, pod, shares, cpu_quota, memory) in [
        ("best effort", pod(&[("", "")]), 2, None, None),
        (
            "guaranteed",
            pod(&[("cpu=250m memory=64Mi", "cpu=250m memory=64Mi")]),
            256,
            quota(25_000),
            Some(64 * MIB),
        ),
        (
            "guaranteed, a whole processor",
            pod(&[("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")]),
            1024, // a weight of 39
            quota(100_000),
            Some(1024 * MIB),
        ),
        (
            "burstable, all limited",
            pod(&[("cpu=100m memory=32Mi", "cpu=200m memory=64Mi"), ("", "cpu=100m memory=1Mi")]),
            102,
            quota(30_000),
            Some(65 * MIB),
        ),
        (
            "burstable, one without a memory limit",
            pod(&[("cpu=100m", "cpu=200m memory=64Mi"), ("", "cpu=100m")]),
            102,
            quota(30_000),
            None,
        ),
        ("burstable, no limits", pod(&[("memory=1Mi", "")]), 2, None, None),
    ] {
        let got = config(&pod, PodPolicy::default());
        assert_eq!(
            (got.cpu_shares, got.cpu_quota, got.memory_limit),
            (Some(shares), cpu_quota, memory),
            "{case}"
        );
        assert_eq!((got.pids_limit, got.cpus), (None, None), "{case}");
    }
}

#[test]
fn pod_level_limit_is_sufficient() {
    let mut pod = pod(&[("", "")]);
    pod.pod = Some(requirements("cpu=1", "cpu=2 memory=1Gi"));
    let got = config(&pod, PodPolicy::default());
    assert_eq!((got.cpu_quota, got.memory_limit), (quota(200_000), Some(1 << 30)));
}

#[test]
fn overhead_is_included_in_the_pod_cgroup() {
    let mut pod = pod(&[("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")]);
    pod.overhead = list("cpu=1 memory=1Gi");
    let got = config(&pod, PodPolicy::default());
    let want = (Some(2048), quota(200_000), Some(2 << 30));
    assert_eq!((got.cpu_shares, got.cpu_quota, got.memory_limit), want);
}

#[test]
fn node_policy_sets_period_pids_limit_and_quota_enforcement() {
    let pod = pod(&[("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")]);
    let policy = PodPolicy { enforce_cpu_quota: false, period_micros: 5000, pids_limit: Some(99) };
    let got = config(&pod, policy);
    assert_eq!(got.cpu_quota, Some(CpuQuota { micros: None, period_micros: 5000 }));
    assert_eq!(got.pids_limit, Some(99));
}

#[test]
fn huge_pages_are_limited_to_what_is_requested() {
    let pod = pod(&[("hugepages-2Mi=4Mi hugepages-1Gi=1Gi", ""), ("hugepages-2048Ki=2Mi", "")]);
    let want = BTreeMap::from([(2 << 20, 6 << 20), (1 << 30, 1 << 30)]);
    assert_eq!(config(&pod, PodPolicy::default()).hugepages, Hugepages::Only(want));
    for (bytes, name) in
        [(64 << 10, "64KB"), (2 << 20, "2MB"), (1 << 30, "1GB"), (16 << 30, "16GB")]
    {
        assert_eq!(hugepage_size_name(bytes), name);
    }
}

#[test]
fn qos_cgroup_weight_is_the_sum_of_its_pods_requests() {
    let pods = [pod(&[("cpu=500m", "")]), pod(&[("cpu=1", ""), ("cpu=500m", "")])];
    let mut sum = CpuRequests::default();
    for pod in &pods {
        sum.add(CpuRequests::of_pod(pod));
    }
    assert_eq!(CgroupConfig::for_burstable(sum).cpu_shares, Some(2048));
    assert_eq!(CgroupConfig::for_burstable(sum).hugepages, Hugepages::Unlimited);
    sum.remove(CpuRequests::of_pod(&pods[1]));
    assert_eq!(CgroupConfig::for_burstable(sum).cpu_shares, Some(512));
    sum.remove(CpuRequests::of_pod(&pods[0]));
    assert_eq!(sum, CpuRequests::default());
    assert_eq!(CgroupConfig::for_burstable(sum).cpu_shares, Some(2));
    assert_eq!(CgroupConfig::for_best_effort().cpu_shares, Some(2));
    assert_eq!(CgroupConfig::least_cpu().hugepages, Hugepages::Leave);
}

#[test]
fn cgroup_of_all_pods_is_limited_to_capacity_less_reservations() {
    let capacity = list("cpu=4 memory=8Gi pid=32768 hugepages-2Mi=0");
    let reserved = list("cpu=500m memory=1Gi pid=1000");
    let limits = less_reserved(&capacity, &[&reserved, &reserved]);
    let got = CgroupConfig::for_all_pods(&limits, Some("0-3".into()));
    assert_eq!(
        got,
        CgroupConfig {
            cpu_shares: Some(3072),
            cpu_quota: None,
            memory_limit: Some(6 << 30),
            pids_limit: Some(30_768),
            cpus: Some("0-3".into()),
            hugepages: Hugepages::Only(BTreeMap::from([(2 << 20, 0)])),
        }
    );
}

#[test]
fn excessive_reservation_leaves_zero_and_sets_no_limit() {
    let limits = less_reserved(&list("cpu=1 memory=1Gi"), &[&list("cpu=2 memory=2Gi")]);
    assert_eq!(limits, list("cpu=0 memory=0"));
    let got = CgroupConfig::for_reserved(&limits, Reserved::Everything);
    assert_eq!((got.cpu_shares, got.memory_limit), (Some(2), None));
}

#[test]
fn reservation_of_compressible_resources_sets_cpu_only() {
    let got = CgroupConfig::for_reserved(&list("cpu=1 memory=1Gi pid=5"), Reserved::OnlyCpu);
    assert_eq!(got, CgroupConfig { cpu_shares: Some(1024), ..Default::default() });
}

#[test]
fn oom_score_follows_the_class_and_the_request() {
    const CAPACITY: u64 = 10 << 30;
    let burstable = |memory: &str| pod(&[(memory, "")]);
    for (case, pod, critical, want) in [
        ("best effort", pod(&[("", "")]), false, 1000),
        ("guaranteed", pod(&[("cpu=1 memory=1", "cpu=1 memory=1")]), false, -997),
        ("node critical", pod(&[("", "")]), true, -997),
        ("a tenth", burstable("memory=1Gi"), false, 900),
        ("nothing", burstable("cpu=1"), false, 999),
        ("tiny", burstable("memory=1Ki"), false, 999),
        ("everything", burstable("memory=10Gi"), false, 3),
        ("more than everything", burstable("memory=10Ti"), false, 3),
        ("absurd", burstable("memory=1e30"), false, 3),
    ] {
        let got = oom_score_adj(&pod, pod.class(), critical, "c", CAPACITY);
        assert_eq!(got, want, "{case}");
    }
    let none = oom_score_adj(&burstable("memory=1Gi"), QosClass::Burstable, false, "c", 0);
    assert_eq!(none, 999, "a capacity of zero does not divide");
}

#[test]
fn sidecar_has_at_most_the_oom_score_of_the_smallest_regular_container() {
    let mut pod = pod(&[("memory=2Gi", ""), ("memory=1Gi", "")]);
    pod.init = vec![
        InitResources {
            name: "side".into(),
            resources: requirements("memory=1Mi", ""),
            sidecar: true,
        },
        InitResources {
            name: "init".into(),
            resources: requirements("memory=1Mi", ""),
            sidecar: false,
        },
    ];
    let score = |name| oom_score_adj(&pod, QosClass::Burstable, false, name, 10 << 30);
    assert_eq!(score("side"), 900);
    assert_eq!(score("init"), 999);
    assert_eq!(score("no such"), 999, "such as an ephemeral container");
}

#[test]
fn pod_level_request_beyond_containers_is_shared_equally() {
    let mut pod = pod(&[("memory=1Gi", ""), ("", "")]);
    pod.containers[1].name = "d".into();
    pod.pod = Some(requirements("memory=3Gi", ""));
    let score = |name| oom_score_adj(&pod, QosClass::Burstable, false, name, 10 << 30);
    assert_eq!((score("c"), score("d")), (800, 900));
}

fn tree(root: &str) -> PodTree {
    PodTree::below(&CgroupName::parse(root).unwrap())
}

#[test]
fn pod_cgroups_have_upstreams_paths_under_both_drivers() {
    use QosClass::*;
    let uid = PodUid::new("1234-abcd");
    for (root, class, cgroupfs, systemd) in [
        ("/", Guaranteed, "/kubepods/pod1234-abcd", "/kubepods.slice/kubepods-pod1234_abcd.slice"),
        (
            "",
            Burstable,
            "/kubepods/burstable/pod1234-abcd",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_abcd.slice",
        ),
        (
            "/my-node/",
            BestEffort,
            "/my-node/kubepods/besteffort/pod1234-abcd",
            "/my_node.slice/my_node-kubepods.slice/my_node-kubepods-besteffort.slice\
             /my_node-kubepods-besteffort-pod1234_abcd.slice",
        ),
    ] {
        let name = tree(root).pod(class, &uid).unwrap();
        assert_eq!(name.path(Driver::Cgroupfs), cgroupfs);
        assert_eq!(name.path(Driver::Systemd), systemd);
        assert_eq!(name.slice(), systemd.rsplit('/').next().unwrap());
        assert_eq!(name.parent().unwrap(), tree(root).class(class));
    }
    assert_eq!(CgroupName::ROOT.path(Driver::Cgroupfs), "/");
    assert_eq!(CgroupName::ROOT.path(Driver::Systemd), "/");
    assert_eq!(CgroupName::ROOT.slice(), "-.slice");
}

#[test]
fn names_that_would_leave_the_parent_are_refused() {
    for component in [
        "",
        ".",
        "..",
        "a/b",
        "a_b",
        "a b",
        "a\n",
        "pod\0",
        "ü",
        "../../etc",
        "\\x2d",
        &"a".repeat(129),
    ] {
        CgroupName::ROOT.child(component).expect_err(component);
        let uid = PodUid::new(component);
        // The prefix "pod" makes a valid component of a lone dot or of an empty UID.
        if !matches!(component, "" | "." | "..") {
            tree("/").pod(QosClass::Burstable, &uid).expect_err(component);
        }
    }
    for path in ["/a/../b", "///", "/a//b", "./a", "/a/.", "/a\0"] {
        CgroupName::parse(path).expect_err(path);
    }
}

#[test]
fn other_directories_are_not_pod_cgroups() {
    use Driver::*;
    for (driver, class, entry) in [
        (Cgroupfs, QosClass::Guaranteed, "burstable"),
        (Cgroupfs, QosClass::Guaranteed, "pod"),
        (Cgroupfs, QosClass::Guaranteed, "podA_b"),
        (Cgroupfs, QosClass::Guaranteed, "xpod1"),
        (Systemd, QosClass::Guaranteed, "kubepods-burstable.slice"),
        (Systemd, QosClass::Guaranteed, "kubepods-pod1"),
        (Systemd, QosClass::Guaranteed, "kubepods-pod.slice"),
        (Systemd, QosClass::Guaranteed, "other-pod1.slice"),
        (Systemd, QosClass::Guaranteed, "kubepodsx-pod1.slice"),
        (Systemd, QosClass::Guaranteed, "kubepods-burstable-pod1.slice"),
        (Systemd, QosClass::Guaranteed, "cri-containerd-pod1.scope"),
        (Systemd, QosClass::Burstable, "kubepods-pod1.slice"),
        (Systemd, QosClass::Burstable, "pod1"),
    ] {
        assert_eq!(tree("/").pod_of_entry(class, entry, driver), None, "{entry}");
    }
}

proptest! {
    #[test]
    fn uid_round_trips_through_the_cgroup_directory(
        uid in "[0-9a-zA-Z.:-]{1,100}",
        root in prop_oneof![Just("/"), Just("/a-b/c"), Just("/x_y")],
        class in prop_oneof![
            Just(QosClass::Guaranteed), Just(QosClass::Burstable), Just(QosClass::BestEffort)
        ],
    ) {
        let uid = PodUid::new(uid);
        let tree = tree(root);
        for driver in [Driver::Cgroupfs, Driver::Systemd] {
            let path = tree.pod(class, &uid).unwrap().path(driver);
            let entry = path.rsplit('/').next().unwrap();
            prop_assert_eq!(tree.pod_of_entry(class, entry, driver), Some(uid.clone()));
        }
    }

    #[test]
    fn weights_increase_with_shares_and_convert_back_approximately(shares in MIN_SHARES..MAX_SHARES) {
        prop_assert!(weight_from_shares(shares) <= weight_from_shares(shares + 1));
        let back = shares_from_weight(weight_from_shares(shares));
        prop_assert!(back <= shares && shares - back <= 27, "{} {}", shares, back);
    }

    #[test]
    fn arbitrary_resources_do_not_panic(requests in any::<(i64, i64)>(), limits in any::<(i64, i64)>()) {
        let spell = |(cpu, memory): (i64, i64)| format!("cpu={cpu} memory={memory}");
        let pod = pod(&[(&spell(requests), &spell(limits))]);
        let got = config(&pod, PodPolicy::default());
        prop_assert!((MIN_SHARES..=MAX_SHARES).contains(&got.cpu_shares.unwrap()));
        let score = oom_score_adj(&pod, pod.class(), false, "c", 1 << 34);
        prop_assert!((-997..=1000).contains(&score));
    }
}

#[test]
fn reserved_cgroup_is_parsed_in_the_format_of_its_driver() {
    for (path, driver, want) in [
        ("/system.slice", Driver::Systemd, "/system.slice"),
        ("system.slice", Driver::Systemd, "/system.slice"),
        ("/a.slice/a-b.slice", Driver::Systemd, "/a.slice/a-b.slice"),
        ("/a.slice/a-b_c.slice", Driver::Systemd, "/a.slice/a-b_c.slice"),
        ("/kube", Driver::Systemd, "/kube.slice"),
        ("/system.slice", Driver::Cgroupfs, "/system.slice"),
        ("/kube/daemons", Driver::Cgroupfs, "/kube/daemons"),
    ] {
        let name = CgroupName::parse_reserved(path, driver).unwrap();
        assert_eq!(name.path(driver), want, "{path} {driver:?}");
    }
    CgroupName::parse_reserved("/a/../b", Driver::Systemd).expect_err("it leaves its place");
}

#[test]
fn lower_classes_leave_a_part_of_the_requests_free() {
    const GIB: u64 = 1 << 30;
    let requests = |gib: &str| {
        let spec = serde_json::json!({ "containers": [
            { "name": "c", "resources": { "requests": { "memory": gib } } }
        ]});
        let spec = serde_json::from_value(spec).unwrap();
        MemoryRequests::of_pod(&PodResources::parse(&spec).unwrap())
    };
    let limits = |percent, guaranteed: &str, burstable: &str| {
        let reserve = MemoryReserve { percent, allocatable: 10 * GIB };
        reserve.limits(requests(guaranteed), requests(burstable))
    };
    assert_eq!(limits(100, "4Gi", "2Gi"), (Some(6 * GIB), Some(4 * GIB)));
    assert_eq!(limits(50, "4Gi", "2Gi"), (Some(8 * GIB), Some(7 * GIB)));
    assert_eq!(limits(0, "4Gi", "2Gi"), (Some(10 * GIB), Some(10 * GIB)));
    assert_eq!(limits(100, "8Gi", "2Gi"), (Some(2 * GIB), None), "nothing is left");
    assert_eq!(limits(100, "11Gi", "0"), (None, None));
    assert_eq!(limits(100, "8E", "8E"), (None, None));
    let mut sum = requests("1Gi");
    sum.add(requests("2Gi"));
    sum.remove(requests("1Gi"));
    assert_eq!(sum, requests("2Gi"));
}
