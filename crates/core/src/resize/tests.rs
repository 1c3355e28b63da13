//! Tests of resize needs and of the order of resize steps.

use podwright_api::qos::{PodResources, QosClass, ResourceList};
use serde_json::{Value, json};

use super::actuation::{MemoryUse, ResizeStep, objection, sandbox_resources, stages};
use super::*;
use crate::builders::{observed, pod, t};
use crate::cgroup::{CgroupConfig, PodPolicy};

fn resources(cpu: [u32; 2], memory: [u32; 2]) -> Value {
    let list = |cpu: u32, memory: u32| {
        let mut list = serde_json::Map::new();
        if cpu > 0 {
            list.insert("cpu".into(), json!(format!("{cpu}m")));
        }
        if memory > 0 {
            list.insert("memory".into(), json!(format!("{memory}Mi")));
        }
        Value::Object(list)
    };
    json!({ "requests": list(cpu[0], memory[0]), "limits": list(cpu[1], memory[1]) })
}

/// A pod with containers `a` and `b` of these resources.
fn two(a: Value, b: Value) -> Pod {
    let of = |resources: Value| Value::from_iter([("resources", resources)]);
    pod("p").container_with("a", of(a)).container_with("b", of(b)).build()
}

fn applied(pod: &Pod) -> ActuatedResources {
    let amounts = |c: &Container| (c.name.clone(), Amounts::of_container(pod, c));
    ActuatedResources {
        containers: pod.containers.iter().map(amounts).collect(),
        pod: Some(Amounts::of_pod(pod)),
    }
}

fn group(pod: &Pod) -> CgroupConfig {
    let resources = PodResources::parse(pod.object.spec.as_ref().unwrap()).unwrap();
    CgroupConfig::for_pod(&resources, QosClass::Burstable, PodPolicy::default())
}

fn resize(from: &Pod, to: &Pod) -> Resize {
    let seen = observed(to).sandbox_ready().running("a", t(0)).running("b", t(0)).build();
    let mut resize = Resize::default();
    for container in &to.containers {
        let instance = seen.newest(&container.name).unwrap();
        match need(to, container, instance, &applied(from)) {
            ResizeNeed::Nothing => {}
            ResizeNeed::InPlace(update) => resize.updates.push(update),
            ResizeNeed::Restart => resize.whole = true,
        }
    }
    resize
}

/// The steps in short form.
fn steps(from: &Pod, to: &Pod) -> Vec<String> {
    let describe = |step: ResizeStep| match step {
        ResizeStep::Pod { set, .. } => match (set.memory_limit, set.cpu_quota, set.cpu_shares) {
            (Some(limit), _, _) => format!("pod memory {}", limit >> 20),
            (_, Some(quota), _) => format!("pod quota {}", quota.micros.unwrap()),
            (_, _, shares) => format!("pod shares {}", shares.unwrap()),
        },
        ResizeStep::Container { update, now } => {
            format!("{} {}m {}Mi", update.container, now.cpu_limit, now.memory_limit >> 20)
        }
    };
    let stages = stages(&resize(from, to), &group(from), &group(to));
    stages.into_iter().flat_map(|(_, steps)| steps).map(describe).collect()
}

#[test]
fn increases_go_from_pod_to_containers_and_decreases_the_other_way() {
    let base = || resources([100, 200], [32, 64]);
    for (case, a, b, want) in [
        ("nothing", base(), base(), vec![]),
        (
            "the recording: CPU grows",
            resources([150, 300], [32, 64]),
            base(),
            vec!["pod quota 50000", "pod shares 256", "a 300m 64Mi"],
        ),
        (
            "CPU shrinks",
            resources([50, 100], [32, 64]),
            base(),
            vec!["a 100m 64Mi", "pod shares 153", "pod quota 30000"],
        ),
        (
            "memory before CPU, each in its own direction",
            resources([150, 300], [16, 32]),
            base(),
            vec![
                "a 200m 32Mi",
                "pod memory 96",
                "pod quota 50000",
                "pod shares 256",
                "a 300m 32Mi",
            ],
        ),
        (
            "one grows, the other shrinks first",
            resources([100, 300], [32, 64]),
            resources([100, 100], [32, 64]),
            vec!["b 100m 64Mi", "a 300m 64Mi"],
        ),
        (
            "a memory request reaches no group, but the container",
            resources([100, 200], [48, 64]),
            base(),
            vec!["a 200m 64Mi"],
        ),
    ] {
        assert_eq!(steps(&two(base(), base()), &two(a, b)), want, "{case}");
    }
}

#[test]
fn limit_removed_from_the_spec_is_kept() {
    let (from, to) = (
        two(resources([100, 200], [32, 64]), resources([100, 200], [32, 64])),
        two(resources([100, 0], [32, 64]), resources([100, 200], [32, 64])),
    );
    assert_eq!(steps(&from, &to), ["a 0m 64Mi"], "the pod's own is not touched");
}

#[test]
fn resize_policy_can_require_a_restart() {
    let with = |resources: Value| {
        let policy = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
        pod("p")
            .container_with("a", json!({ "resources": resources, "resizePolicy": policy }))
            .build()
    };
    let before = with(resources([100, 200], [32, 64]));
    for (case, after, want) in [
        ("CPU in place", with(resources([150, 200], [32, 64])), "in place"),
        ("memory, with a restart", with(resources([100, 200], [32, 128])), "restart"),
        ("both, with a restart", with(resources([150, 200], [64, 128])), "restart"),
        ("neither", with(resources([100, 200], [32, 64])), "nothing"),
    ] {
        let seen = observed(&after).sandbox_ready().running("a", t(0)).build();
        let (container, instance) = (&after.containers[0], seen.newest("a").unwrap());
        let action = match need(&after, container, instance, &applied(&before)) {
            ResizeNeed::Nothing => "nothing",
            ResizeNeed::InPlace(_) => "in place",
            ResizeNeed::Restart => "restart",
        };
        assert_eq!(action, want, "{case}");
        let progress = is_in_progress(&after, &seen, &applied(&before));
        assert_eq!(progress, want != "nothing", "{case}");
    }
}

#[test]
fn only_running_and_recorded_containers_are_resized() {
    let (before, after) = (
        two(resources([100, 0], [0, 0]), resources([100, 0], [0, 0])),
        two(resources([200, 0], [0, 0]), resources([200, 0], [0, 0])),
    );
    let exited = observed(&after).sandbox_ready().exited("a", 0, t(0)).exited("b", 0, t(0)).build();
    assert!(!is_in_progress(&after, &exited, &applied(&before)));
    let running = observed(&after).sandbox_ready().running("a", t(0)).build();
    assert!(is_in_progress(&after, &running, &applied(&before)));
    let unknown = ActuatedResources::default();
    assert!(!is_in_progress(&after, &running, &unknown), "started by another agent");
}

#[test]
fn pod_level_limits_are_inherited() {
    let whole = |memory: &str| {
        let builder = pod("p").container("a").edit(|pod| {
            pod["spec"]["resources"] = json!({ "limits": { "memory": memory, "cpu": "1" } });
        });
        builder.build()
    };
    let (before, after) = (whole("64Mi"), whole("128Mi"));
    let amounts = Amounts::of_container(&after, &after.containers[0]);
    assert_eq!((amounts.memory_limit, amounts.cpu_limit), (128 << 20, 1000));
    assert!(whole_differs(&after, &applied(&before)));
    assert!(!whole_differs(&after, &applied(&after)));
}

#[test]
fn memory_limit_below_usage_is_refused() {
    let from = two(resources([100, 0], [0, 64]), resources([100, 0], [0, 64]));
    let to = two(resources([100, 0], [0, 32]), resources([100, 0], [0, 64]));
    let usage = |pod: Option<u64>, a: Option<u64>| MemoryUse {
        pod: pod.map(|pod| pod << 20),
        containers: [("a".into(), a.map(|a| a << 20))].into(),
    };
    let refusal =
        |usage: &MemoryUse| objection(&resize(&from, &to), &group(&from), &group(&to), usage);
    let want = |text: &str| Some(format!("cannot decrease memory limits: {text}"));
    assert_eq!(refusal(&usage(Some(40), Some(31))), None);
    assert_eq!(
        refusal(&usage(Some(40), Some(32))),
        want(
            "attempting to set container \"a\" memory limit (33554432) below current usage (33554432)"
        )
    );
    assert_eq!(
        refusal(&usage(Some(96), None)),
        want(
            "[attempting to set pod memory limit (100663296) below current usage (100663296), \
             missing container \"a\" memory usage]"
        )
    );
    let grows = resize(&to, &from);
    assert_eq!(objection(&grows, &group(&to), &group(&from), &MemoryUse::default()), None);
}

#[test]
fn sandbox_resources_exclude_the_overhead() {
    let one = pod("p").container_with("a", json!({ "resources": resources([150, 300], [32, 64]) }));
    let group = group(&one.build());
    let got = sandbox_resources(&group, &ResourceList::new());
    assert_eq!(
        (got.cpu_period, got.cpu_quota, got.cpu_shares, got.memory_limit_in_bytes),
        (100_000, 30_000, 153, 64 << 20)
    );
    let overhead = [("cpu".to_owned(), "100m".parse().unwrap())].into();
    let got = sandbox_resources(&group, &overhead);
    assert_eq!((got.cpu_quota, got.cpu_shares), (20_000, 51));
}

#[test]
fn resize_without_a_record_is_completed_unless_it_needs_a_restart() {
    let resources =
        |memory: &str| json!({ "requests": { "cpu": "100m" }, "limits": { "memory": memory } });
    let restart = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
    let reported = |name: &str, memory: &str, state: &str| {
        json!({ "name": name, "state": { state: {} }, "resources": resources(memory),
            "ready": true, "restartCount": 0, "image": "i", "imageID": "i" })
    };
    let of = |name: &str, memory: &str| json!({ "name": name, "image": "i", "resources": resources(memory) });
    let mut restarted = of("restarted", "2Gi");
    restarted["resizePolicy"] = restart;
    let pod = pod("web")
        .container_with("changed", of("changed", "2Gi"))
        .container_with("same", of("same", "1Gi"))
        .container_with("waiting", of("waiting", "2Gi"))
        .container_with("restarted", restarted)
        .edit(|pod| {
            pod["status"] = json!({ "containerStatuses": [
                reported("changed", "1Gi", "running"),
                reported("same", "1024Mi", "running"),
                reported("waiting", "1Gi", "waiting"),
                reported("restarted", "1Gi", "running"),
            ]});
        })
        .build();
    let found = reported_differences(&pod);
    let names: Vec<&str> = found.keys().map(|name| &**name).collect();
    assert_eq!(names, ["changed"]);
    assert_eq!((found["changed"].memory_limit, found["changed"].cpu_request), (1 << 30, 100));
}

#[test]
fn resize_is_completed_once_the_spec_that_includes_it_is_applied() {
    let (small, large) = (resources([100, 200], [64, 128]), resources([200, 400], [64, 128]));
    let before = two(small.clone(), small.clone());
    let of = |generation: i64| {
        let of = |resources: &Value| Value::from_iter([("resources", resources.clone())]);
        let pod = pod("p").container_with("a", of(&large)).container_with("b", of(&small));
        pod.edit(|pod| pod["metadata"]["generation"] = json!(generation)).build()
    };
    let progress =
        ResizeProgress { generation: Some(2), error: None, since: Timestamp::UNIX_EPOCH };
    let seen = observed(&before).running("a", t(1)).running("b", t(1)).build();
    let state = |on: &Pod, progress: Option<&ResizeProgress>| ResizeState {
        applied: applied(on),
        pending: None,
        progress: progress.cloned(),
    };
    let (unapplied, done) = (state(&before, Some(&progress)), state(&of(2), Some(&progress)));
    for (case, pod, state, stage, want) in [
        ("unapplied", of(2), &unapplied, Stage::Syncing, None),
        ("applied", of(2), &done, Stage::Syncing, Some(&progress)),
        ("a newer spec", of(3), &done, Stage::Syncing, Some(&progress)),
        ("an older spec", of(1), &done, Stage::Syncing, None),
        ("terminating", of(2), &done, Stage::Terminating, None),
        ("no resize", of(2), &state(&of(2), None), Stage::Syncing, None),
    ] {
        assert_eq!(completed(&pod, &seen, state, stage).as_ref(), want, "{case}");
    }
}
