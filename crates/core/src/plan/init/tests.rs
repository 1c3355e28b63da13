//! Init containers in sandboxes that are replaced, and sidecars that restart.

use std::time::Duration;

use serde_json::json;

use super::super::tests::{prepared, steps_of};
use super::super::{Step, decide};
use crate::attempts::PodStep;
use crate::builders::{case, observed, pod, t};
use crate::ids::ContainerId;
use crate::observed::State;
use crate::pod::{ProbeKind, RestartPolicy};
use crate::probe::ProbeVerdict;

#[test]
fn container_created_in_an_earlier_sandbox_does_not_skip_init_containers() {
    let pod = pod("web").init("i1").init("i2").container("main").build();
    let seen = observed(&pod)
        .sandbox("s0", 0, false)
        .instance("main", State::Created, t(2))
        .sandbox("s1", 1, true)
        .exited("i1", 0, t(10))
        .build();
    let steps = steps_of(&case(pod, seen, t(11)));
    assert_eq!(steps, prepared(&["start i2>0"]));
}

#[test]
fn init_containers_that_cannot_be_removed_do_not_keep_a_new_sandbox_from_being_made() {
    let pod = pod("web").init("first").container("app").build();
    let seen = observed(&pod)
        .sandbox("s0", 0, false)
        .exited("first", 0, t(1))
        .exited("app", 137, t(2))
        .build();
    let mut case = case(pod.clone(), seen, t(5));
    let plan = decide(&case.inputs());
    let removal = plan.steps.iter().find(|step| matches!(step, Step::RemoveInstances { .. }));
    assert!(removal.is_some_and(|step| step.continues_after_failure(&pod)), "{plan:?}");
    case.attempts.note_step_failure(PodStep::Removal, "no".into(), t(5), Duration::from_secs(10));
    let steps = steps_of(&case);
    assert!(steps.contains(&"sandbox 1".to_owned()), "{steps:?}");
    // In the new sandbox the init container that stayed counts for nothing.
    case.observed = observed(&pod)
        .sandbox("s0", 0, false)
        .exited("first", 0, t(1))
        .sandbox("s1", 1, true)
        .build();
    assert_eq!(steps_of(&case), prepared(&["start first#1"]));
}

#[test]
fn sidecar_that_restarts_is_back_before_the_next_init_container_starts() {
    let probe = json!({ "livenessProbe": { "exec": {} } });
    let pod = pod("web").sidecar_with("side", probe).init("next").container("app").build();
    let seen = observed(&pod).sandbox_ready().running("side", t(1)).build();
    let mut case = case(pod, seen, t(5));
    case.probed.set(&ContainerId::new("side-0"), ProbeKind::Liveness, ProbeVerdict::Failure);
    let mut want = vec!["stop side".to_owned()];
    want.extend(prepared(&["start side#1", "start next>0"]));
    assert_eq!(steps_of(&case), want);
}

#[test]
fn init_container_in_unknown_state_follows_its_policy_and_no_exit_code_rule() {
    let rules = json!([
        { "action": "Restart", "exitCodes": { "operator": "In", "values": [137] } },
    ]);
    for (policy, want) in [
        (RestartPolicy::Never, vec!["kill[]".to_owned()]),
        (RestartPolicy::OnFailure, {
            let mut steps = vec!["stop first".to_owned()];
            steps.extend(prepared(&["start first#1"]));
            steps
        }),
    ] {
        let pod = pod("web").restart(policy).init("first").container("app");
        let pod = pod.edit(|pod| {
            pod["spec"]["initContainers"][0]["restartPolicyRules"] = rules.clone();
        });
        let pod = pod.build();
        let seen = observed(&pod).sandbox_ready().instance("first", State::Unknown, t(1)).build();
        let steps = steps_of(&case(pod, seen, t(5)));
        match policy {
            RestartPolicy::Never => assert!(steps[0].starts_with("kill["), "{steps:?}"),
            RestartPolicy::Always | RestartPolicy::OnFailure => assert_eq!(steps, want),
        }
    }
}
