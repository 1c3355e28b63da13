//! Fit check of a requested resize.
//!
//! Other pods count with their allocated resources, not with requested ones. Only increases have to
//! fit, so that a decrease is possible even on an overcommitted node.

use std::cmp::Reverse;

use jiff::Timestamp;
use podwright_api::qos::{CPU, MEMORY, QosClass, ResourceList, amount};

use super::{Amounts, PendingReason, Resource, restarts_for};
use crate::admission::{is_critical, pressure_on};
use crate::config::{CgroupVersion, NodeFacts, SwapBehaviour};
use crate::node_status::Pressure;
use crate::pod::features::PodFeatures;
use crate::pod::{Container, ContainerKind, Pod};

/// Node resources for the check.
#[derive(Clone, Copy, Debug)]
pub struct ResizeCapacity<'a> {
    pub allocatable: &'a ResourceList,
    /// Containers of burstable pods may use swap, in proportion to their memory request.
    pub swap: bool,
    pub features: PodFeatures,
    pub pressure: Pressure,
}

impl<'a> ResizeCapacity<'a> {
    pub fn of(facts: &'a NodeFacts, features: PodFeatures) -> Self {
        let machine = &facts.machine;
        let swap = machine.swap.is_some_and(|swap| match (swap.behaviour, machine.cgroups) {
            (SwapBehaviour::LimitedSwap, CgroupVersion::V2) => true,
            (SwapBehaviour::LimitedSwap, CgroupVersion::V1) | (SwapBehaviour::NoSwap, _) => false,
        });
        Self { allocatable: &facts.allocatable, swap, features, pressure: Pressure::default() }
    }
}

/// Whether `requested_pod` can be allocated instead of `allocated`, beside the allocated resources of
/// the `others`. On refusal, whether a retry can help, and the message.
pub fn check_fit<'a>(
    requested_pod: &Pod,
    allocated: &Pod,
    others: impl Iterator<Item = &'a Pod>,
    room: ResizeCapacity<'_>,
) -> Result<(), (PendingReason, String)> {
    if let Some(gate) = disabled_resize(requested_pod, allocated, room.features) {
        return Err((PendingReason::Infeasible, format!("{gate} is disabled")));
    }
    if room.swap && changes_swapped_memory(requested_pod, allocated) {
        let text = "In-place resize of containers with swap is not supported.";
        return Err((PendingReason::Infeasible, text.into()));
    }
    if let Some(text) = pressure_on(requested_pod, room.pressure) {
        return Err((PendingReason::Deferred, text));
    }
    let others: Vec<&ResourceList> = others
        .filter(|other| other.uid != requested_pod.uid)
        .map(|other| &other.requests)
        .collect();
    for resource in [Resource::Cpu, Resource::Memory] {
        let count = |list: &ResourceList| match resource {
            Resource::Cpu => amount(list, CPU).milli_value(),
            Resource::Memory => amount(list, MEMORY).value(),
        };
        let (requested, capacity) = (count(&requested_pod.requests), count(room.allocatable));
        let used = others.iter().fold(0i64, |sum, list| sum.saturating_add(count(list)));
        if requested > count(&allocated.requests) && requested.saturating_add(used) > capacity {
            let name = resource.as_str();
            let text = format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
                 capacity: {capacity}"
            );
            return Err((PendingReason::Deferred, text));
        }
    }
    Ok(())
}

/// Sort key of pending resizes: decreases first, then by priority, then guaranteed pods, then the
/// longest pending.
pub fn rank(requested_pod: &Pod, allocated: &Pod, since: Option<Timestamp>) -> impl Ord + use<> {
    let grows = [CPU, MEMORY]
        .iter()
        .any(|name| amount(&requested_pod.requests, name) > amount(&allocated.requests, name));
    let priority =
        requested_pod.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
    let guaranteed = QosClass::of(&requested_pod.object) == Ok(QosClass::Guaranteed);
    (grows, Reverse(priority), !guaranteed, since.unwrap_or(Timestamp::MAX))
}

/// The feature gate without which this resize is not possible.
fn disabled_resize(
    requested_pod: &Pod,
    allocated: &Pod,
    features: PodFeatures,
) -> Option<&'static str> {
    let of_pod = |pod: &Pod| {
        let resources = pod.object.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        resources.map(|resources| Amounts::of(Some(resources)))
    };
    if !features.in_place_pod_level_resources_vertical_scaling
        && of_pod(requested_pod) != of_pod(allocated)
    {
        return Some("InPlacePodLevelResourcesVerticalScaling");
    }
    let changes = |container: &Container| {
        let before = allocated.container(&container.name);
        before.is_some_and(|before| {
            Amounts::of_container(requested_pod, container)
                != Amounts::of_container(allocated, before)
        })
    };
    let mut init = requested_pod.containers.iter().filter(|c| c.kind == ContainerKind::Init);
    (!features.in_place_pod_vertical_scaling_init_containers && init.any(changes))
        .then_some("InPlacePodVerticalScalingInitContainers")
}

fn changes_swapped_memory(requested_pod: &Pod, allocated: &Pod) -> bool {
    requested_pod.containers.iter().any(|container| {
        let Some(before) = allocated.container(&container.name) else { return false };
        let memory = |pod: &Pod, c| Amounts::of_container(pod, c).memory_request;
        memory(allocated, before) != memory(requested_pod, container)
            && !restarts_for(container, Resource::Memory)
            && (may_swap(requested_pod, container) || may_swap(allocated, before))
    })
}

/// Whether a container may use swap on a node that has some. A container whose memory limit equals
/// its request may not.
fn may_swap(pod: &Pod, container: &Container) -> bool {
    let own = Amounts::of(container.spec.resources.as_ref());
    !is_critical(pod)
        && QosClass::of(&pod.object) == Ok(QosClass::Burstable)
        && own.memory_request != own.memory_limit
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;

    fn requesting(name: &str, cpu: &str, memory: &str) -> Pod {
        requesting_with(name, json!({ "requests": { "cpu": cpu, "memory": memory } }), json!([]))
    }

    fn requesting_with(name: &str, resources: Value, policy: Value) -> Pod {
        let fields = Value::from_iter([("resources", resources), ("resizePolicy", policy)]);
        pod(name).container_with("c", fields).build()
    }

    #[test]
    fn pending_resizes_are_retried_in_upstreams_order() {
        let at = |second| Timestamp::from_second(second).ok();
        let allocated = requesting("p", "500m", "1Gi");
        let sized = |name: &str, cpu: &str| requesting(name, cpu, "1Gi");
        let important = pod("important")
            .edit(|pod| pod["spec"]["priority"] = json!(10))
            .container_with("c", json!({ "resources": { "requests": { "cpu": "2" } } }))
            .build();
        let same = json!({ "cpu": "2", "memory": "1Gi" });
        let guaranteed =
            requesting_with("guaranteed", json!({ "requests": same, "limits": same }), json!([]));
        let mut waiting = [
            (sized("late", "2"), at(9)),
            (sized("undecided", "2"), None),
            (guaranteed, at(8)),
            (sized("early", "2"), at(1)),
            (important, at(7)),
            (sized("gives-back", "100m"), at(99)),
        ];
        waiting.sort_by_key(|(requested_pod, since)| rank(requested_pod, &allocated, *since));
        let order: Vec<_> =
            waiting.iter().map(|(requested_pod, _)| requested_pod.name.name.to_string()).collect();
        let want = ["gives-back", "important", "guaranteed", "early", "late", "undecided"];
        assert_eq!(order, want);
    }

    fn room(allocatable: &ResourceList) -> ResizeCapacity<'_> {
        let pressure = Pressure::default();
        ResizeCapacity { allocatable, swap: false, features: PodFeatures::DEFAULT, pressure }
    }

    #[test]
    fn resize_on_a_node_under_pressure_is_deferred() {
        let node = node();
        let pressure = Pressure { disk: true, ..Pressure::default() };
        let room = ResizeCapacity { pressure, ..room(&node) };
        let (to, from) = (requesting("p", "100m", "64Mi"), requesting("p", "200m", "64Mi"));
        let want =
            Err((PendingReason::Deferred, "The node had condition: [DiskPressure]. ".into()));
        assert_eq!(check_fit(&to, &from, [].iter(), room), want);
        let pressure = Pressure { memory: true, ..Pressure::default() };
        let room = ResizeCapacity { pressure, ..room };
        assert_eq!(check_fit(&to, &from, [].iter(), room), Ok(()), "it requests memory");
    }

    fn node() -> ResourceList {
        [("cpu", "2"), ("memory", "1Gi")]
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.parse().unwrap()))
            .collect()
    }

    #[test]
    fn resize_whose_feature_gate_is_off_is_infeasible() {
        let node = node();
        let of_pod = |cpu: &str| {
            let resources = json!({ "requests": { "cpu": cpu } });
            pod("p").edit(|pod| pod["spec"]["resources"] = resources).container("c").build()
        };
        let of_init = |cpu: &str| {
            let init = json!([{ "name": "i", "image": "x",
                "resources": { "requests": { "cpu": cpu } } }]);
            pod("p").edit(|pod| pod["spec"]["initContainers"] = init).container("c").build()
        };
        type Off = fn(&mut PodFeatures);
        let cases: [(&str, Pod, Pod, Off); 2] = [
            ("InPlacePodLevelResourcesVerticalScaling", of_pod("200m"), of_pod("100m"), |f| {
                f.in_place_pod_level_resources_vertical_scaling = false;
            }),
            ("InPlacePodVerticalScalingInitContainers", of_init("200m"), of_init("100m"), |f| {
                f.in_place_pod_vertical_scaling_init_containers = false;
            }),
        ];
        for (gate, to, from, off) in cases {
            let mut room = room(&node);
            assert_eq!(check_fit(&to, &from, [].iter(), room), Ok(()), "{gate}");
            off(&mut room.features);
            let want = Err((PendingReason::Infeasible, format!("{gate} is disabled")));
            assert_eq!(check_fit(&to, &from, [].iter(), room), want, "{gate}");
            let plain = |cpu: &str| requesting("p", cpu, "64Mi");
            assert_eq!(check_fit(&plain("2"), &plain("1"), [].iter(), room), Ok(()), "{gate}");
        }
    }

    #[test]
    fn increase_must_fit_beside_other_pods() {
        let node = node();
        let others = [requesting("other", "1500m", "512Mi")];
        let too_much = |text: &str| Err((PendingReason::Deferred, text.to_owned()));
        for (case, cpu, memory, want) in [
            ("an exact fit", "500m", "512Mi", Ok(())),
            (
                "more CPU than available",
                "501m",
                "64Mi",
                too_much(
                    "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000",
                ),
            ),
            (
                "larger than the node is deferred",
                "100m",
                "2Gi",
                too_much(
                    "Node didn't have enough resource: memory, requested: 2147483648, used: 536870912, capacity: 1073741824",
                ),
            ),
            ("less of one and as much of the other", "50m", "100Mi", Ok(())),
        ] {
            let allocated = requesting("p", "100m", "100Mi");
            let requested_pod = requesting("p", cpu, memory);
            assert_eq!(
                check_fit(&requested_pod, &allocated, others.iter(), room(&node)),
                want,
                "{case}"
            );
        }
    }

    #[test]
    fn decrease_fits_on_a_full_node() {
        let node = node();
        let others = [requesting("other", "10", "10Gi"), requesting("p", "1", "1Gi")];
        let (allocated, requested_pod) =
            (requesting("p", "1", "1Gi"), requesting("p", "500m", "1Gi"));
        assert_eq!(check_fit(&requested_pod, &allocated, others.iter(), room(&node)), Ok(()));
    }

    #[test]
    fn memory_of_a_container_with_swap_changes_only_with_a_restart() {
        let node = node();
        let room = ResizeCapacity { swap: true, ..room(&node) };
        let restart = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
        let of = |memory: &str, policy: &Value| {
            requesting_with("p", json!({ "requests": { "memory": memory } }), policy.clone())
        };
        for (case, to, policy, fits) in [
            ("in place", "64Mi", json!([]), false),
            ("with a restart", "64Mi", restart, true),
            ("unchanged", "32Mi", json!([]), true),
        ] {
            let decision = check_fit(&of(to, &policy), &of("32Mi", &policy), [].iter(), room);
            assert_eq!(decision.is_ok(), fits, "{case}: {decision:?}");
            if let Err((why, _)) = decision {
                assert_eq!(why, PendingReason::Infeasible);
            }
        }
    }

    #[test]
    fn memory_of_a_container_without_swap_changes_in_place() {
        let node = node();
        let room = ResizeCapacity { swap: true, ..room(&node) };
        let sized = |request: &str, limit: &str, priority: i32| {
            let memory = json!({
                "requests": { "cpu": "1m", "memory": request }, "limits": { "memory": limit },
            });
            let edit = move |pod: &mut Value| pod["spec"]["priority"] = json!(priority);
            pod("p").edit(edit).container_with("c", json!({ "resources": memory })).build()
        };
        for (case, from, to, fits) in [
            ("limited to its request", sized("32Mi", "32Mi", 0), sized("64Mi", "64Mi", 0), true),
            ("may swap after it", sized("32Mi", "32Mi", 0), sized("16Mi", "32Mi", 0), false),
            ("may swap before it", sized("32Mi", "64Mi", 0), sized("64Mi", "64Mi", 0), false),
            (
                "critical",
                sized("32Mi", "64Mi", 2_000_001_000),
                sized("48Mi", "64Mi", 2_000_001_000),
                true,
            ),
        ] {
            let judged = check_fit(&to, &from, [].iter(), room);
            assert_eq!(judged.is_ok(), fits, "{case}: {judged:?}");
        }
    }
}
