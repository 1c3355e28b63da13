//! Whether a wish can be granted.
//!
//! What others were granted counts, not what they wish for. Only what grows has to fit: a node
//! that is full, for whatever reason, must not refuse to get some of it back.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::{Amounts, NotGranted, Resource, restarts_for};
use crate::pod::Pod;
use crate::qos::{CPU, MEMORY, QosClass, ResourceList, amount};

/// The node, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    pub allocatable: &'a ResourceList,
    /// Containers of burstable pods may use swap; how much depends on their memory request.
    pub swap: bool,
}

/// Whether `wish` can be granted in place of `granted`, beside what the `others` were granted.
/// On refusal, whether it is worth asking again, and the reason.
pub fn judge<'a>(
    wish: &Pod,
    granted: &Pod,
    others: impl Iterator<Item = &'a Pod>,
    room: Room<'_>,
) -> Result<(), (NotGranted, String)> {
    if room.swap && changes_swapped_memory(wish, granted) {
        let text = "In-place resize of containers with swap is not supported.";
        return Err((NotGranted::Infeasible, text.into()));
    }
    let others: Vec<&ResourceList> =
        others.filter(|other| other.uid != wish.uid).map(|other| &other.requests).collect();
    for resource in [Resource::Cpu, Resource::Memory] {
        let count = |list: &ResourceList| match resource {
            Resource::Cpu => amount(list, CPU).milli_value(),
            Resource::Memory => amount(list, MEMORY).value(),
        };
        let (requested, capacity) = (count(&wish.requests), count(room.allocatable));
        let used = others.iter().fold(0i64, |sum, list| sum.saturating_add(count(list)));
        if requested > count(&granted.requests) && requested.saturating_add(used) > capacity {
            let name = resource.as_str();
            let text = format!(
                "Node didn't have enough resource: {name}, requested: {requested}, used: {used}, \
                 capacity: {capacity}"
            );
            return Err((NotGranted::Deferred, text));
        }
    }
    Ok(())
}

/// The place of a wish among those that wait: whoever gives something back goes first, then the
/// higher priority, then guaranteed pods, then whoever waits longest.
pub fn rank(wish: &Pod, granted: &Pod, since: Option<Timestamp>) -> impl Ord + use<> {
    let grows = [CPU, MEMORY]
        .iter()
        .any(|name| amount(&wish.requests, name) > amount(&granted.requests, name));
    let priority = wish.object.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
    let guaranteed = QosClass::of(&wish.object) == Ok(QosClass::Guaranteed);
    (grows, Reverse(priority), !guaranteed, since.unwrap_or(Timestamp::MAX))
}

fn changes_swapped_memory(wish: &Pod, granted: &Pod) -> bool {
    wish.containers.iter().any(|container| {
        let before = granted.container(&container.name);
        let memory = |pod: &Pod, c| Amounts::of_container(pod, c).memory_request;
        let changes =
            before.is_some_and(|before| memory(granted, before) != memory(wish, container));
        changes && !restarts_for(container, Resource::Memory)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;

    fn asking(name: &str, cpu: &str, memory: &str) -> Pod {
        asking_with(name, json!({ "requests": { "cpu": cpu, "memory": memory } }), json!([]))
    }

    fn asking_with(name: &str, resources: Value, policy: Value) -> Pod {
        let fields = Value::from_iter([("resources", resources), ("resizePolicy", policy)]);
        pod(name).container_with("c", fields).build()
    }

    #[test]
    fn those_who_wait_are_asked_in_upstreams_order() {
        let at = |second| Timestamp::from_second(second).ok();
        let granted = asking("p", "500m", "1Gi");
        let sized = |name: &str, cpu: &str| asking(name, cpu, "1Gi");
        let important = pod("important")
            .edit(|pod| pod["spec"]["priority"] = json!(10))
            .container_with("c", json!({ "resources": { "requests": { "cpu": "2" } } }))
            .build();
        let same = json!({ "cpu": "2", "memory": "1Gi" });
        let guaranteed =
            asking_with("guaranteed", json!({ "requests": same, "limits": same }), json!([]));
        let mut waiting = [
            (sized("late", "2"), at(9)),
            (sized("undecided", "2"), None),
            (guaranteed, at(8)),
            (sized("early", "2"), at(1)),
            (important, at(7)),
            (sized("gives-back", "100m"), at(99)),
        ];
        waiting.sort_by_key(|(wish, since)| rank(wish, &granted, *since));
        let order: Vec<_> = waiting.iter().map(|(wish, _)| wish.name.name.to_string()).collect();
        let want = ["gives-back", "important", "guaranteed", "early", "late", "undecided"];
        assert_eq!(order, want);
    }

    fn room(allocatable: &ResourceList) -> Room<'_> {
        Room { allocatable, swap: false }
    }

    fn node() -> ResourceList {
        [("cpu", "2"), ("memory", "1Gi")]
            .into_iter()
            .map(|(name, text)| (name.to_owned(), text.parse().unwrap()))
            .collect()
    }

    #[test]
    fn what_grows_must_fit_beside_the_others() {
        let node = node();
        let others = [asking("other", "1500m", "512Mi")];
        let too_much = |text: &str| Err((NotGranted::Deferred, text.to_owned()));
        for (case, cpu, memory, want) in [
            ("it fits to the last bit", "500m", "512Mi", Ok(())),
            (
                "row 26: more CPU than is left",
                "501m",
                "64Mi",
                too_much(
                    "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000",
                ),
            ),
            (
                "larger than the node is deferred, too",
                "100m",
                "2Gi",
                too_much(
                    "Node didn't have enough resource: memory, requested: 2147483648, used: 536870912, capacity: 1073741824",
                ),
            ),
            ("less of one and as much of the other", "50m", "100Mi", Ok(())),
        ] {
            let granted = asking("p", "100m", "100Mi");
            let wish = asking("p", cpu, memory);
            assert_eq!(judge(&wish, &granted, others.iter(), room(&node)), want, "{case}");
        }
    }

    #[test]
    fn what_shrinks_fits_on_a_full_node() {
        let node = node();
        let others = [asking("other", "10", "10Gi"), asking("p", "1", "1Gi")];
        let (granted, wish) = (asking("p", "1", "1Gi"), asking("p", "500m", "1Gi"));
        assert_eq!(judge(&wish, &granted, others.iter(), room(&node)), Ok(()));
    }

    #[test]
    fn memory_of_a_container_that_may_swap_changes_only_with_a_restart() {
        let node = node();
        let room = Room { swap: true, ..room(&node) };
        let restart = json!([{ "resourceName": "memory", "restartPolicy": "RestartContainer" }]);
        let of = |memory: &str, policy: &Value| {
            asking_with("p", json!({ "requests": { "memory": memory } }), policy.clone())
        };
        for (case, to, policy, fits) in [
            ("in place", "64Mi", json!([]), false),
            ("with a restart", "64Mi", restart, true),
            ("unchanged", "32Mi", json!([]), true),
        ] {
            let judged = judge(&of(to, &policy), &of("32Mi", &policy), [].iter(), room);
            assert_eq!(judged.is_ok(), fits, "{case}: {judged:?}");
            if let Err((why, _)) = judged {
                assert_eq!(why, NotGranted::Infeasible);
            }
        }
    }
}
