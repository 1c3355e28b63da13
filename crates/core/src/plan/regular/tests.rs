//! Restarts of regular, ephemeral and edited containers.

use std::time::Duration;

use serde_json::json;

use super::super::tests::{prepared, steps_of};
use super::super::{Step, decide};
use crate::builders::{case, observed, pod, t};
use crate::ids::ContainerId;
use crate::pod::ProbeKind;
use crate::probe::ProbeVerdict;

#[test]
fn ephemeral_container_that_was_reported_to_run_is_not_run_again() {
    for (state, starts) in [
        (json!({ "waiting": { "reason": "ErrImagePull" } }), true),
        (json!({ "running": {} }), false),
        (json!({ "terminated": { "exitCode": 0 } }), false),
    ] {
        let status = json!([{
            "name": "debug", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]);
        let pod = pod("web").container("app").ephemeral("debug");
        let pod = pod.edit(|pod| pod["status"]["ephemeralContainerStatuses"] = status).build();
        let seen = observed(&pod).sandbox_ready().running("app", t(1)).build();
        let steps = steps_of(&case(pod, seen, t(5)));
        assert_eq!(steps.contains(&"start debug>0".to_owned()), starts, "{state}: {steps:?}");
    }
}

#[test]
fn back_off_counts_from_the_newest_of_many_dead_instances() {
    let pod = pod("web").container("app").build();
    let mut seen = observed(&pod).sandbox_ready();
    for second in 1..=6 {
        seen = seen.exited("app", 1, t(second));
    }
    let seen = seen.build();
    let mut case = case(pod.clone(), seen, t(7));
    let (name, key) = ("app".into(), case.pod.containers[0].backoff_key);
    // Decided twice: the second time nothing is new, and nothing is displaced.
    for _ in 0..2 {
        case.attempts.note_exits(&name, key, case.observed.instances_of("app"), t(7));
    }
    let newest = case.observed.newest("app").unwrap();
    assert_eq!(newest.attempt, 5);
    assert!(case.attempts.exit_seen(&name, &newest.id).is_some());
}

#[test]
fn failed_startup_probe_restarts_the_container_with_the_probes_own_grace_period() {
    let probe = json!({ "startupProbe": { "exec": {}, "terminationGracePeriodSeconds": 3 } });
    for (pod, kind) in [
        (pod("web").container_with("app", probe.clone()).build(), "Container"),
        (pod("web").sidecar_with("app", probe).container("other").build(), "Init container"),
    ] {
        let seen = observed(&pod).sandbox_ready().running("app", t(1));
        let mut case = case(pod.clone(), seen.build(), t(5));
        case.probed.set(&ContainerId::new("app-0"), ProbeKind::Startup, ProbeVerdict::Failure);
        let plan = decide(&case.inputs());
        let Some(Step::StopContainer(stop)) = plan.steps.first() else { panic!("{plan:?}") };
        assert_eq!((&*stop.container, stop.grace), ("app", Duration::from_secs(3)));
        assert!(stop.message.starts_with(&format!("{kind} app failed startup probe")), "{stop:?}");
        let starts: Vec<&str> =
            plan.steps.iter().filter_map(Step::start).map(|s| &*s.container).collect();
        assert_eq!(starts, ["app"]);
    }
}

#[test]
fn edited_image_of_a_sidecar_restarts_the_sidecar_alone() {
    let (before, after) = (json!({ "image": "i" }), json!({ "image": "j" }));
    let of = |image| pod("web").sidecar_with("side", image).container("app").build();
    let (old, new) = (of(before), of(after));
    let seen = observed(&old).sandbox_ready().running("side", t(1)).running("app", t(2)).build();
    let mut want = vec!["stop side".to_owned()];
    want.extend(prepared(&["start side#1"]));
    assert_eq!(steps_of(&case(new, seen, t(5))), want);
}
