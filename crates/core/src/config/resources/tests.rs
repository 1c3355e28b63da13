use serde_json::{Value, json};

use super::super::sample;
use super::*;
use crate::pod::Source;

fn linux(pod: &Pod, facts: &NodeFacts) -> cri::LinuxContainerResources {
    of_container(pod, &pod.containers[0], facts, &Placement::default()).unwrap()
}

fn limited(resources: &Value) -> Pod {
    sample::pod_of(json!({"resources": resources}))
}

fn machine(change: impl FnOnce(&mut Machine)) -> NodeFacts {
    let mut facts = sample::facts();
    change(&mut facts.machine);
    facts
}

#[test]
fn cpu_and_memory_follow_requests_and_limits() {
    for (case, resources, shares, quota, memory) in [
        ("nothing", json!({}), 2, 0, 0),
        ("a request", json!({"requests": {"cpu": "100m"}}), 102, 0, 0),
        (
            "a request of zero",
            json!({"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}),
            2,
            100_000,
            0,
        ),
        ("a limit stands in for a request", json!({"limits": {"cpu": "1500m"}}), 1536, 150_000, 0),
        ("the least quota", json!({"limits": {"cpu": "1m"}}), 2, 1000, 0),
        (
            "memory",
            json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "64Mi"}}),
            2,
            0,
            67_108_864,
        ),
    ] {
        let got = linux(&limited(&resources), &sample::facts());
        let all = (got.cpu_shares, got.cpu_quota, got.cpu_period, got.memory_limit_in_bytes);
        assert_eq!(all, (shares, quota, 100_000, memory), "{case}");
    }
}

#[test]
fn without_cpu_quota_neither_quota_nor_period_is_set() {
    let facts = machine(|machine| machine.cpu_quota_period = None);
    let got = linux(&limited(&json!({"limits": {"cpu": "1"}})), &facts);
    assert_eq!((got.cpu_shares, got.cpu_quota, got.cpu_period), (1024, 0, 0));
}

#[test]
fn quota_period_is_configurable() {
    let facts = machine(|machine| machine.cpu_quota_period = Some(10_000));
    let got = linux(&limited(&json!({"limits": {"cpu": "500m"}})), &facts);
    assert_eq!((got.cpu_quota, got.cpu_period), (5000, 10_000));
}

#[test]
fn exclusive_cpus_have_no_quota() {
    let pod = limited(&json!({"limits": {"cpu": "2"}}));
    let placement =
        Placement { cpus: "2-3".to_owned(), memory_nodes: "0".to_owned(), exclusive: true };
    let got = of_container(&pod, &pod.containers[0], &sample::facts(), &placement).unwrap();
    assert_eq!(
        (got.cpu_quota, got.cpuset_cpus.as_str(), got.cpuset_mems.as_str()),
        (-1, "2-3", "0")
    );
    let (sandbox, _) = of_sandbox(&pod, &sample::facts(), true).unwrap();
    assert_eq!(sandbox.cpu_quota, -1);
}

#[test]
fn pod_level_limits_apply_to_containers_without_limits() {
    let pod = sample::pod(
        json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}},
        "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "2Mi"}}}]}),
    );
    let facts = sample::facts();
    for (at, quota, memory, pages) in
        [(0, 200_000, 1 << 30, 4 << 20), (1, 100_000, 1 << 30, 2 << 20)]
    {
        let got = of_container(&pod, &pod.containers[at], &facts, &Placement::default()).unwrap();
        assert_eq!((got.cpu_quota, got.memory_limit_in_bytes), (quota, memory));
        assert_eq!(
            got.hugepage_limits[0],
            cri::HugepageLimit { page_size: "2MB".into(), limit: pages }
        );
    }
}

#[test]
fn every_huge_page_size_is_listed_and_none_allowed_unless_limited() {
    let pod = limited(&json!({"limits": {"hugepages-1Gi": "2Gi", "hugepages-64Ki": "64Ki"}}));
    let limits: Vec<_> = linux(&pod, &sample::facts())
        .hugepage_limits
        .into_iter()
        .map(|limit| (limit.page_size, limit.limit))
        .collect();
    assert_eq!(limits, [("2MB".to_owned(), 0), ("1GB".to_owned(), 2 << 30)]);
}

#[test]
fn oom_score_follows_the_qos_class() {
    let critical = json!({"priority": 2_000_001_000, "priorityClassName": "system-node-critical"});
    let request = |memory: &str| json!({"containers": [{"name": "c", "resources": {"requests": {"memory": memory}}}]});
    let equal = json!({"cpu": "1", "memory": "1Gi"});
    let guaranteed =
        json!({"containers": [{"name": "c", "resources": {"requests": equal, "limits": equal}}]});
    for (case, spec, want) in [
        ("best effort", json!({}), 1000),
        ("guaranteed", guaranteed, -997),
        ("critical for the node", critical, -997),
        ("critical in name only", json!({"priorityClassName": "system-node-critical"}), 1000),
        ("a tiny request", request("1"), 999),
        ("all the memory", request("10Gi"), 3),
        ("half of it", request("5Gi"), 500),
    ] {
        assert_eq!(linux(&sample::pod(spec), &sample::facts()).oom_score_adj, want, "{case}");
    }
}

#[test]
fn oom_kill_ends_the_whole_container_with_cgroup_v2() {
    let with = |cgroups, whole| {
        let facts = machine(|machine| {
            machine.cgroups = cgroups;
            machine.whole_container_oom = whole;
        });
        let (sandbox, overhead) = of_sandbox(&sample::pod(json!({})), &facts, false).unwrap();
        assert_eq!(overhead, cri::LinuxContainerResources::default());
        let container = linux(&sample::pod(json!({})), &facts).unified;
        assert_eq!(sandbox.unified, container);
        container
    };
    let group = BTreeMap::from([("memory.oom.group".to_owned(), "1".to_owned())]);
    assert_eq!(with(CgroupVersion::V2, true), group);
    assert_eq!(with(CgroupVersion::V2, false), BTreeMap::new());
    assert_eq!(with(CgroupVersion::V1, true), BTreeMap::new());
}

#[test]
fn swap_is_zero_unless_a_burstable_container_gets_its_share() {
    use SwapBehaviour::{LimitedSwap, NoSwap};
    let burstable = json!({"requests": {"memory": "1Gi"}});
    let equal = json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}});
    let swap_max = |pod: &Pod, behaviour| {
        let facts = machine(|machine| machine.swap = Some(Swap { behaviour, total: 5 << 30 }));
        linux(pod, &facts).unified.get(SWAP_MAX).unwrap().clone()
    };
    // 1Gi of 10Gi, so a tenth of 5Gi.
    let tenth = (512_u64 << 20).to_string();
    let critical = sample::pod(json!({"priority": 2_000_000_000,
        "containers": [{"name": "c", "resources": burstable}]}));
    let static_pod = sample::parsed(
        json!({"name": "web"}),
        json!({"containers": [{"name": "c", "resources": burstable}]}),
        Source::File,
    );
    for (case, pod, behaviour, want) in [
        ("its share", limited(&burstable), LimitedSwap, tenth.as_str()),
        ("none is given", limited(&burstable), NoSwap, "0"),
        ("best effort", limited(&json!({})), LimitedSwap, "0"),
        ("nothing requested", limited(&json!({"requests": {"cpu": "1"}})), LimitedSwap, "0"),
        ("request equals limit", limited(&equal), LimitedSwap, "0"),
        ("critical", critical, LimitedSwap, "0"),
        ("static, so critical", static_pod, LimitedSwap, "0"),
        ("more than there is", limited(&json!({"requests": {"memory": "11Gi"}})), LimitedSwap, "0"),
    ] {
        assert_eq!(swap_max(&pod, behaviour), want, "{case}");
    }
}

#[test]
fn with_cgroup_v1_the_swap_limit_equals_the_memory_limit() {
    let facts = machine(|machine| {
        machine.cgroups = CgroupVersion::V1;
        machine.swap = Some(Swap { behaviour: SwapBehaviour::LimitedSwap, total: 1 << 30 });
    });
    for (resources, want) in [(json!({}), 0), (json!({"limits": {"memory": "64Mi"}}), 64 << 20)] {
        assert_eq!(linux(&limited(&resources), &facts).memory_swap_limit_in_bytes, want);
    }
}

#[test]
fn without_a_swap_controller_swap_is_not_set() {
    let got = linux(&limited(&json!({"limits": {"memory": "64Mi"}})), &sample::facts());
    assert_eq!((got.memory_swap_limit_in_bytes, got.unified.get(SWAP_MAX)), (0, None));
}

#[test]
fn sandbox_has_the_sum_without_overhead_and_the_overhead_separately() {
    let of = |cpu: &str, memory: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu, "memory": memory}});
    let pod = sample::pod(json!({"overhead": {"cpu": "250m", "memory": "100Mi"}, "containers": [
        {"name": "a", "resources": of("100m", "64Mi")}, {"name": "b", "resources": of("200m", "64Mi")}]}));
    let (sum, overhead) = of_sandbox(&pod, &sample::facts(), false).unwrap();
    let numbers =
        |r: cri::LinuxContainerResources| (r.cpu_shares, r.cpu_quota, r.memory_limit_in_bytes);
    assert_eq!(numbers(sum), (307, 30_000, 128 << 20));
    assert_eq!(numbers(overhead), (256, 25_000, 100 << 20));
}

#[test]
fn invalid_quantity_is_an_error() {
    let pod = limited(&json!({"limits": {"cpu": "lots"}}));
    let got = of_container(&pod, &pod.containers[0], &sample::facts(), &Placement::default());
    assert!(got.unwrap_err().to_string().contains("container \"c\""));
}

// The reference, row 51.
#[test]
fn memory_is_throttled_on_the_way_from_the_request_to_the_limit() {
    const HIGH: &str = "memory.high";
    let qos = MemoryQos { factor: 900_000, allocatable: 10 << 30, page: 4096 };
    let throttled = |pod: &Pod, qos: MemoryQos, cgroups: CgroupVersion| {
        let facts = machine(|machine| {
            machine.memory_qos = Some(qos);
            machine.cgroups = cgroups;
        });
        linux(pod, &facts).unified
    };
    let (v1, v2) = (CgroupVersion::V1, CgroupVersion::V2);
    let sized = |request: &str, limit: &str| {
        limited(&json!({ "requests": { "memory": request }, "limits": { "memory": limit } }))
    };
    let unlimited = limited(&json!({ "requests": { "memory": "1Gi" } }));
    let nine_and_one_tenth = ((1u64 << 30) + (9u64 << 30) / 10 * 9) / 4096 * 4096;
    for (case, pod, factor, want) in [
        ("between them", sized("128Mi", "256Mi"), 900_000, Some("255012864".to_owned())),
        ("the limit itself", sized("128Mi", "256Mi"), 1_000_000, Some((256 << 20).to_string())),
        ("less than a page above", sized("4096", "8191"), 900_000, None),
        ("no limit", unlimited, 900_000, Some(nine_and_one_tenth.to_string())),
        (
            "guaranteed",
            limited(&json!({
                "requests": { "cpu": "1", "memory": "1Gi" }, "limits": { "cpu": "1", "memory": "1Gi" }
            })),
            900_000,
            None,
        ),
        ("best effort", limited(&json!({})), 900_000, None),
        ("no memory requested", limited(&json!({ "requests": { "cpu": "1" } })), 900_000, None),
    ] {
        let found = throttled(&pod, MemoryQos { factor, ..qos }, v2);
        assert_eq!(found.get(HIGH), want.as_ref(), "{case}");
        assert_eq!(found.get("memory.min").map(String::as_str), Some("0"), "{case}");
        assert_eq!(found.get("memory.low").map(String::as_str), Some("0"), "{case}");
    }
    let pod = sized("128Mi", "256Mi");
    assert_eq!(throttled(&pod, qos, v1).get(HIGH), None);
    assert_eq!(linux(&pod, &sample::facts()).unified.get(HIGH), None, "the gate is off");
    let (_, overhead) = of_sandbox(&pod, &machine(|m| m.memory_qos = Some(qos)), false).unwrap();
    assert_eq!(overhead.unified.get(HIGH), None, "never on the pod");
}
