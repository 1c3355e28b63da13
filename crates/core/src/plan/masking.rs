//! Masking of recorded cases: removes values that a user would not share with a bug report.
//!
//! Masked values never influence a decision, so a masked case replays to the same plan. Names of
//! variables, keys and objects stay: without them the report explains nothing.

use k8s_openapi::api::core::v1;
use podwright_api::annotations::{
    ANNOTATION_HASH, ANNOTATION_MIRROR, ANNOTATION_SEEN, ANNOTATION_SOURCE,
};

use super::Case;
use crate::attempts::StartError;
use crate::observed::State;
use crate::pod::{Pod, PodParseError, hold};

/// Replacement for a masked value.
pub const MASK: &str = "<masked>";

/// Annotations that never contain user data.
const OWN_ANNOTATIONS: [&str; 5] =
    [ANNOTATION_HASH, ANNOTATION_MIRROR, ANNOTATION_SEEN, ANNOTATION_SOURCE, hold::ANNOTATION_HOLD];

impl Case {
    /// Masks values of variables, command arguments, headers, queries, annotations, termination
    /// messages and the output of hooks.
    pub fn masked(mut self) -> Result<Self, PodParseError> {
        let mut object = v1::Pod::clone(&self.pod.object);
        mask_annotations(&mut object);
        if let Some(spec) = &mut object.spec {
            mask_spec(spec);
        }
        if let Some(status) = &mut object.status {
            mask_status(status);
        }
        self.pod = Pod::parse(object, self.pod.source)?;
        for instance in &mut self.observed.instances {
            if let State::Exited(exit) = &mut instance.state {
                mask_text(&mut exit.message);
            }
        }
        // The message contains the command and its output.
        self.attempts.mask_hooks(MASK);
        Ok(self)
    }
}

fn mask_text(text: &mut String) {
    if !text.is_empty() {
        MASK.clone_into(text);
    }
}

fn mask_annotations(pod: &mut v1::Pod) {
    for (key, value) in pod.metadata.annotations.iter_mut().flatten() {
        if !OWN_ANNOTATIONS.contains(&key.as_str()) {
            mask_text(value);
        }
    }
}

fn mask_spec(spec: &mut v1::PodSpec) {
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        mask_variables(&mut container.env);
        mask_command(&mut container.command, &mut container.args);
        let hooks = container.lifecycle.iter_mut();
        for hook in hooks.flat_map(|l| [&mut l.post_start, &mut l.pre_stop]).flatten() {
            mask_exec(&mut hook.exec);
            mask_get(&mut hook.http_get);
        }
        let probes = [
            &mut container.startup_probe,
            &mut container.readiness_probe,
            &mut container.liveness_probe,
        ];
        for probe in probes.into_iter().flatten() {
            mask_exec(&mut probe.exec);
            mask_get(&mut probe.http_get);
        }
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        mask_variables(&mut container.env);
        mask_command(&mut container.command, &mut container.args);
    }
}

fn mask_variables(variables: &mut Option<Vec<v1::EnvVar>>) {
    for variable in variables.iter_mut().flatten() {
        if let Some(value) = &mut variable.value {
            mask_text(value);
        }
    }
}

/// Keeps the program and masks its arguments. Without a command, the image provides the program.
fn mask_command(command: &mut Option<Vec<String>>, arguments: &mut Option<Vec<String>>) {
    let own_arguments = command.iter_mut().flat_map(|command| command.iter_mut().skip(1));
    own_arguments.chain(arguments.iter_mut().flatten()).for_each(mask_text);
}

fn mask_exec(exec: &mut Option<v1::ExecAction>) {
    if let Some(exec) = exec {
        mask_command(&mut exec.command, &mut None);
    }
}

fn mask_get(get: &mut Option<v1::HTTPGetAction>) {
    let Some(get) = get else { return };
    get.http_headers.iter_mut().flatten().for_each(|header| mask_text(&mut header.value));
    if let Some((path, _)) = get.path.as_deref().and_then(|path| path.split_once('?')) {
        get.path = Some(format!("{path}?{MASK}"));
    }
}

/// Termination messages and messages of failed hooks, as reported.
fn mask_status(status: &mut v1::PodStatus) {
    let lists = [
        &mut status.init_container_statuses,
        &mut status.container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    let containers = lists.into_iter().flat_map(|list| list.iter_mut().flatten());
    let states = containers.flat_map(|status| [&mut status.state, &mut status.last_state]);
    for state in states.flatten() {
        let ended = state.terminated.as_mut().and_then(|ended| ended.message.as_mut());
        let hook = StartError::PostStartHookError.as_str();
        let waits = state.waiting.as_mut().filter(|waits| waits.reason.as_deref() == Some(hook));
        let waits = waits.and_then(|waits| waits.message.as_mut());
        ended.into_iter().chain(waits).for_each(mask_text);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::builders::{case, observed, t};
    use crate::plan;
    use crate::pod::Source;

    fn pod() -> Pod {
        let hook = json!({ "exec": { "command": ["sh", "-c", "hunter2"] } });
        let probe = json!({ "httpGet": { "port": 80, "path": "/ready?token=hunter2",
            "httpHeaders": [{ "name": "Authorization", "value": "hunter2" }] } });
        let container = json!({
            "name": "c", "image": "registry.example/app:1",
            "command": ["/app", "--password=hunter2"], "args": ["hunter2"],
            "env": [{ "name": "TOKEN", "value": "hunter2" },
                { "name": "REF", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
            "lifecycle": { "postStart": hook, "preStop": hook }, "livenessProbe": probe,
            "resources": { "limits": { "cpu": "1" } },
        });
        let ended = json!({ "terminated": { "exitCode": 1, "message": "hunter2" } });
        let object = json!({
            "metadata": { "name": "web", "namespace": "default", "uid": "u",
                "annotations": { "note": "hunter2", "podwright/hold": "maintenance" } },
            "spec": { "containers": [container], "initContainers": [
                { "name": "i", "image": "x", "args": ["hunter2"] }] },
            "status": { "containerStatuses": [
                { "name": "c", "ready": false, "restartCount": 1, "image": "x", "imageID": "",
                    "state": ended },
                { "name": "d", "ready": false, "restartCount": 1, "image": "x", "imageID": "",
                    "state": { "waiting": { "reason": "PostStartHookError",
                        "message": "Exec lifecycle hook ([sh -c hunter2]) failed" } } }] },
        });
        Pod::parse(serde_json::from_value(object).unwrap(), Source::Api).unwrap()
    }

    #[test]
    fn masked_case_contains_no_secret_and_replays_to_the_same_plan() {
        let pod = pod();
        let (seen, key) = (observed(&pod).sandbox_ready().build(), pod.containers[0].backoff_key);
        let mut case = case(pod, seen, t(105));
        let (reason, wait) = (StartError::CreateContainerConfigError, Duration::from_secs(10));
        case.attempts.note_start_failure(&"i".into(), key, reason, "no key".into(), t(100), wait);
        let plan = plan::decide(&case.inputs());
        let (hook, output) = (StartError::PostStartHookError, "[sh -c hunter2] failed".to_owned());
        case.attempts.note_start_failure(&"d".into(), key, hook, output, t(100), wait);
        let text = serde_json::to_string(&case.masked().unwrap()).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        let kept = ["TOKEN", "Authorization", "/app", "/ready?", "registry.example/app:1"];
        for shown in kept.into_iter().chain(["maintenance"]) {
            assert!(text.contains(shown), "{shown} explains something: {text}");
        }
        let replayed: Case = serde_json::from_str(&text).unwrap();
        assert_eq!(plan::decide(&replayed.inputs()), plan);
    }
}
