//! Invariants of starts: which containers may start again, and in which order.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use podwright_fake_runtime::{InstanceChange, InstanceEvent};

use super::facts::{Facts, plain_init, sidecars};

/// A container with restartPolicy Never and no matching restart rule runs at most once: a regular
/// one once per pod, in whichever sandbox; a plain init container once per sandbox, because a new
/// sandbox is initialized again.
pub(super) fn restarts_in_spite_of_never(facts: &Facts) -> Vec<String> {
    let mut violations = Vec::new();
    for (uid, spec) in facts.specs() {
        if restarts_all(spec) {
            continue;
        }
        for container in plain_init(spec).chain(&spec.containers) {
            if !is_never(spec, container) {
                continue;
            }
            let key = (uid, container.name.as_str());
            // Upstream starts these again whatever the policy is.
            let excused = facts.losses(key) + facts.image_changes(key);
            let init = plain_init(spec).any(|init| init.name == container.name);
            // The whole pod counts as one sandbox for regular containers.
            let mut runs: BTreeMap<(usize, Option<&str>), (usize, usize)> = BTreeMap::new();
            for (life, change) in facts.changes_of(key) {
                let (started, may_restart) =
                    runs.entry((life, init.then_some(change.sandbox_id.as_str()))).or_default();
                match change.event {
                    InstanceEvent::Started => *started += 1,
                    InstanceEvent::Exited { code } if has_matching_rule(container, code) => {
                        *may_restart += 1;
                    }
                    InstanceEvent::Exited { .. }
                    | InstanceEvent::Adopted
                    | InstanceEvent::Created
                    | InstanceEvent::StartRequested
                    | InstanceEvent::StateLost
                    | InstanceEvent::RemovedExternally
                    | InstanceEvent::Removed => {}
                }
                let allowed = 1 + *may_restart + excused;
                if change.event == InstanceEvent::Started && *started > allowed {
                    violations.push(format!(
                        "{} of {} must not be restarted and started {started} times, at {:?}",
                        container.name, change.pod, change.at
                    ));
                }
            }
        }
    }
    violations
}

/// An ephemeral container starts at most once, whatever happens to its sandbox.
pub(super) fn repeated_ephemeral_starts(facts: &Facts) -> Vec<String> {
    let mut violations = Vec::new();
    for (uid, spec) in facts.specs() {
        for container in spec.ephemeral_containers.iter().flatten() {
            let key = (uid, container.name.as_str());
            let changes = facts.changes_of(key);
            let started = changes.filter(|(_, change)| change.event == InstanceEvent::Started);
            let started = started.count();
            // One that was lost before it was reported is unknown.
            if started > 1 + facts.losses(key) {
                let name = &container.name;
                violations
                    .push(format!("ephemeral container {name} of {uid} started {started} times"));
            }
        }
    }
    violations
}

fn is_never(spec: &v1::PodSpec, container: &v1::Container) -> bool {
    let own = container.restart_policy.as_deref();
    own.or(spec.restart_policy.as_deref()) == Some("Never")
        // A resize may ask for a restart.
        && container.resize_policy.iter().flatten().all(|p| p.restart_policy != "RestartContainer")
}

fn has_matching_rule(container: &v1::Container, code: i32) -> bool {
    container.restart_policy_rules.iter().flatten().any(|rule| {
        rule.exit_codes.as_ref().is_some_and(|on| {
            let listed = on.values.iter().flatten().any(|value| *value == code);
            listed == (on.operator == "In")
        })
    })
}

fn restarts_all(spec: &v1::PodSpec) -> bool {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut rules = all.flat_map(|container| container.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == "RestartAllContainers")
}

/// No regular container is started before every plain init container has exited with 0 in the same
/// sandbox, and every sidecar has started there.
pub(super) fn starts_before_initialization(facts: &Facts) -> Vec<String> {
    let specs = facts.specs();
    let mut violations = Vec::new();
    for (place, start) in facts.changes.iter().enumerate() {
        let Some(spec) = specs.get(start.pod.uid.as_str()) else { continue };
        let regular = spec.containers.iter().any(|container| container.name == start.container);
        if start.event != InstanceEvent::StartRequested || !regular {
            continue;
        }
        let in_sandbox = |name: &str, has: fn(InstanceEvent) -> bool| {
            facts.changes[..place].iter().any(|change: &InstanceChange| {
                change.sandbox_id == start.sandbox_id
                    && change.container == name
                    && has(change.event)
            })
        };
        let succeeded = |event| event == InstanceEvent::Exited { code: 0 };
        let open = plain_init(spec).filter(|init| !in_sandbox(&init.name, succeeded));
        let absent = sidecars(spec)
            .filter(|sidecar| !in_sandbox(&sidecar.name, |event| event == InstanceEvent::Started));
        let missing: Vec<&str> = open.chain(absent).map(|init| init.name.as_str()).collect();
        if !missing.is_empty() {
            violations.push(format!(
                "{} of {} was started at {:?} before {missing:?}",
                start.container, start.pod, start.at
            ));
        }
    }
    violations
}
