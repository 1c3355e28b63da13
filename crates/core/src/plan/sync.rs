//! Plan for a pod that should be running.
//!
//! Checks in order: soft-admission hold, network readiness, cgroup, sandbox, then the containers.
//! Back-off comes last: it only delays a start that was already decided.

use std::sync::Arc;
use std::time::Duration;

use super::regular::{Actions, Restart, restart};
use super::{
    Hold, Inputs, Logs, OnRemovalFailure, Plan, Step, Topic, WaitReason, Waiting, Why, init, kill,
    regular, sandbox,
};
use crate::attempts::{PodStep, PullBackoff, StartError};
use crate::explain::exit;
use crate::ids::ContainerId;
use crate::observed::{Instance, State};
use crate::pod::{AfterExit, ContainerKind, RestartPolicy};
use crate::resize::whole_differs;
use crate::time::{Mono, go_duration};

/// Fallback interval for checking network readiness; usually a notification comes first.
const NETWORK_RETRY: Duration = Duration::from_secs(1);
/// How long a failed pull, an exit or a failed hook is reported before it is replaced by the
/// back-off that follows, so that a watcher sees the cause before the consequence.
const SHOW_CAUSE_FOR: Duration = Duration::from_secs(2);

pub(super) fn plan(inputs: &Inputs<'_>) -> Plan {
    if let Some(why) = &inputs.pod.unreadable {
        return unreadable(why);
    }
    let mut plan = match (&inputs.local_state.hold, &inputs.local_state.network) {
        (Some(hold), _) => held(inputs, hold),
        (None, Err(error)) if !inputs.pod.host_network => without_network(inputs, error),
        (None, Ok(()) | Err(_)) => sync(inputs),
    };
    if let Some(at) = deadline(inputs) {
        plan.wake(at);
    }
    plan
}

/// The plan for a pod that is neither held nor waiting for the network.
fn sync(inputs: &Inputs<'_>) -> Plan {
    let mut plan = if cgroup_is_missing(inputs) {
        let why = "the pod cgroup is missing; its containers are stopped and recreated";
        kill_only(inputs, why)
    } else if let Some(trigger) = restart_all_trigger(inputs) {
        restart_all(inputs, trigger)
    } else {
        return run(inputs);
    };
    // What a container waits for does not change while others are stopped. The back-off of one that
    // exited does: it starts again with the others.
    let exited = WaitReason::NotStarted(StartError::CrashLoopBackOff);
    plan.waiting = run(inputs).waiting;
    plan.waiting.retain(|_, waiting| waiting.reason != exited);
    plan
}

/// The plan for a pod whose containers may keep running.
fn run(inputs: &Inputs<'_>) -> Plan {
    match sandbox::decide(inputs.pod, inputs.observed) {
        sandbox::SandboxDecision::Create { attempt, replaces } => {
            new_sandbox(inputs, attempt, replaces)
        }
        sandbox::SandboxDecision::Keep(_) => in_sandbox(inputs),
    }
}

/// Nothing is started or stopped. Containers keep their waiting reasons: a network plugin that
/// flaps must not rewrite the status of every pod on the node.
fn without_network(inputs: &Inputs<'_>, error: &str) -> Plan {
    let why = Why::new(Topic::NetworkNotReady, format!("network is not ready: {error}"))
        .fix("check the runtime's network plugin and its configuration directory");
    let mut plan = Plan::idle(why);
    plan.waiting = sync(inputs).waiting;
    plan.wake(inputs.now.mono + NETWORK_RETRY);
    plan
}

/// Nothing is started and nothing is stopped: a newer agent, which could read the pod, started
/// what is running.
fn unreadable(why: &str) -> Plan {
    let text = format!("unchanged, this agent cannot read the pod: {why}");
    let fix = "run a podwright version not older than the API server, or delete the pod";
    Plan::idle(Why::new(Topic::Held, text).fix(fix))
}

fn held(inputs: &Inputs<'_>, hold: &Hold) -> Plan {
    let text = format!("held: {} ({})", hold.message, hold.reason);
    let why = Why::new(Topic::Held, text).fix("remove the annotation podwright/hold");
    let mut plan = killing(inputs, why);
    for container in &inputs.pod.containers {
        let blocked = Waiting { reason: WaitReason::Blocked, message: hold.message.clone() };
        match container.kind {
            ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular => {
                plan.waiting.insert(container.name.clone(), blocked);
            }
            ContainerKind::Ephemeral => {}
        }
    }
    plan
}

/// Containers without the pod's cgroup run without its limits.
fn cgroup_is_missing(inputs: &Inputs<'_>) -> bool {
    !inputs.local_state.cgroup && inputs.observed.running().next().is_some()
}

/// The time at which `activeDeadlineSeconds` expires.
fn deadline(inputs: &Inputs<'_>) -> Option<Mono> {
    let (limit, active) = (inputs.pod.active_deadline?, inputs.local_state.active?);
    Some(inputs.now.mono + limit.saturating_sub(active.elapsed(inputs.now.mono)))
}

fn kill_only(inputs: &Inputs<'_>, why: &str) -> Plan {
    killing(inputs, Why::new(Topic::Stops, why))
}

fn killing(inputs: &Inputs<'_>, why: Why) -> Plan {
    let mut plan = Plan::idle(why);
    if let Some(kill) = kill::pod(inputs.pod, inputs.observed, inputs.attempts, None)
        && may_run(inputs, PodStep::Kill, &mut plan)
    {
        plan.steps.push(Step::KillPod(kill));
    }
    plan
}

/// The instance whose exit matches a rule that restarts all containers.
fn restart_all_trigger<'a>(inputs: &Inputs<'a>) -> Option<&'a Instance> {
    inputs.pod.containers.iter().find_map(|c| {
        let newest = inputs.observed.newest(&c.name)?;
        let exit = newest.exit()?;
        let after = c.after_exit(exit.code, inputs.pod.restart_policy);
        (after == AfterExit::RestartAll).then_some(newest)
    })
}

/// Stops and removes every instance, the trigger last: an interrupted restart finds it again.
fn restart_all(inputs: &Inputs<'_>, trigger: &Instance) -> Plan {
    let text =
        format!("container {} exited; its restart rule restarts all containers", trigger.container);
    let mut plan = Plan::idle(Why::new(Topic::Stops, text));
    if ![PodStep::Kill, PodStep::Removal].iter().all(|s| may_run(inputs, *s, &mut plan)) {
        return plan;
    }
    for container in &inputs.pod.containers {
        let newest = inputs.observed.newest(&container.name);
        if let Some(instance) = newest.filter(|i| i.is_running())
            && container.kind != ContainerKind::Ephemeral
        {
            let cause = super::StopCause::RestartingAll;
            plan.steps.push(Step::StopContainer(regular::stop(inputs, container, instance, cause)));
        }
    }
    let kind = |i: &Instance| inputs.pod.container(&i.container).map(|c| c.kind);
    let of = |wanted: fn(ContainerKind) -> bool| {
        let matching = move |i: &&Instance| kind(i).is_some_and(wanted) && i.id != trigger.id;
        inputs.observed.instances.iter().filter(matching).map(|i| i.id.clone())
    };
    let mut remove: Vec<ContainerId> = of(|k| k == ContainerKind::Regular).collect();
    remove.extend(of(ContainerKind::is_init));
    remove.push(trigger.id.clone());
    let (logs, on_failure) = (Logs::Kept, OnRemovalFailure::End);
    plan.steps.push(Step::RemoveInstances { ids: remove, logs, on_failure });
    plan
}

fn new_sandbox(inputs: &Inputs<'_>, attempt: u32, replaces: bool) -> Plan {
    let (pod, observed) = (inputs.pod, inputs.observed);
    if pod.restart_policy == RestartPolicy::Never && attempt > 0 && has_used_its_only_run(inputs) {
        return kill_only(inputs, "the sandbox is gone and restartPolicy is Never");
    }
    let done = |instance: Option<&Instance>, policy: RestartPolicy| {
        let code = instance.and_then(Instance::exit).map(|exit| exit.code);
        policy == RestartPolicy::OnFailure && code == Some(0)
    };
    let candidates: Vec<Restart<'_>> = pod
        .regular_containers()
        .map(|c| restart(c, observed.newest(&c.name)))
        .filter(|r| !done(r.follows, r.container.policy.unwrap_or(pod.restart_policy)))
        .collect();
    let any_seen = pod.regular_containers().any(|c| {
        let state = observed.newest(&c.name).map(|i| &i.state);
        matches!(state, Some(State::Created | State::Running { .. } | State::Exited(_)))
    });
    if candidates.is_empty() && any_seen {
        return kill_only(inputs, "all containers have finished");
    }
    let first_init = pod.init_containers().next();
    let starts = match first_init {
        Some(init) => vec![restart(init, observed.newest(&init.name))],
        None => candidates,
    };
    let text = if replaces { "replacing the sandbox" } else { "creating the sandbox" };
    let mut plan = killing(inputs, Why::new(Topic::Starts, text));
    if let Some(Step::KillPod(kill)) = plan.steps.first_mut() {
        kill.replaced = replaces;
    }
    note_waiting(inputs, &starts, &mut plan);
    if !may_run(inputs, PodStep::Kill, &mut plan) {
        return plan;
    }
    let stale: Vec<ContainerId> = pod
        .init_containers()
        .flat_map(|c| observed.instances_of(&c.name))
        .map(|i| i.id.clone())
        .collect();
    remove_if_possible(inputs, stale, &mut plan);
    let (starts, _) = apply_backoff(inputs, starts, &mut plan);
    if may_run(inputs, PodStep::Sandbox, &mut plan) && prepare(inputs, &mut plan) {
        plan.steps.push(Step::CreateSandbox { attempt });
        plan.steps.extend(starts);
    }
    plan
}

/// Whether a pod that is never restarted has run, runs, or has failed to initialize. One whose
/// regular containers never began is initialized again: otherwise it would stay pending for ever.
/// An init container that still runs ends first, and its exit code decides.
fn has_used_its_only_run(inputs: &Inputs<'_>) -> bool {
    inputs.pod.containers.iter().any(|container| {
        let Some(newest) = inputs.observed.newest(&container.name) else { return false };
        match (container.kind, &newest.state) {
            (ContainerKind::Ephemeral, _) | (_, State::Created) => false,
            (ContainerKind::Regular, _) | (_, State::Running { .. } | State::Unknown) => true,
            (ContainerKind::Sidecar, State::Exited(_)) => false,
            (ContainerKind::Init, State::Exited(exit)) => {
                let after = container.after_exit(exit.code, RestartPolicy::Never);
                exit.failed() && after == AfterExit::Stay
            }
        }
    })
}

fn in_sandbox(inputs: &Inputs<'_>) -> Plan {
    let mut actions = Actions::default();
    regular::ephemeral(inputs, &mut actions);
    match init::decide(inputs, &mut actions) {
        init::InitProgress::Failed => {
            return kill_only(inputs, "an init container failed and is not restarted");
        }
        init::InitProgress::Underway => {}
        init::InitProgress::Complete => {
            let before = actions.starts.len();
            let kept = regular::decide(inputs, &mut actions);
            if kept == 0 && actions.starts.len() == before {
                return kill_only(inputs, "all containers have finished");
            }
        }
    }
    let mut plan = Plan::idle(Why::new(Topic::Runs, "running"));
    stop_duplicates(inputs, &mut actions);
    let stopped: Vec<ContainerId> = actions.stops.iter().map(|s| s.instance.clone()).collect();
    let mut starts = actions.starts;
    note_waiting(inputs, &starts, &mut plan);
    if !stopped.is_empty() {
        if may_run(inputs, PodStep::Kill, &mut plan) {
            plan.steps.extend(actions.stops.into_iter().map(Step::StopContainer));
        } else {
            // A container that could not be stopped is still running; its replacement must not
            // start.
            let runs = |name: &str| actions.stops.iter().any(|stop| &*stop.container == name);
            starts.retain(|start| !runs(&start.container.name));
        }
    }
    prune_init(inputs, &mut plan);
    let mut resize = actions.resize;
    resize.whole |= whole_differs(inputs.pod, &inputs.local_state.resizing.applied);
    if !resize.is_empty() && may_run(inputs, PodStep::Resize, &mut plan) {
        plan.steps.push(Step::Resize(resize));
    }
    remove_unstarted(inputs, &mut starts, &mut plan);
    let (starts, held) = apply_backoff(inputs, starts, &mut plan);
    if let Some(why) = why_in_sandbox(inputs, &plan, &starts, held.as_deref()) {
        plan.why = why;
    }
    if !starts.is_empty() && prepare(inputs, &mut plan) {
        plan.steps.extend(starts);
    }
    plan
}

/// A start call that was given up may still succeed later, next to the instance that replaced it.
fn stop_duplicates(inputs: &Inputs<'_>, actions: &mut Actions<'_>) {
    for container in &inputs.pod.containers {
        let older = inputs.observed.instances_of(&container.name).skip(1);
        for instance in older.filter(|instance| instance.is_running()) {
            let cause = super::StopCause::Duplicate;
            actions.stops.push(regular::stop(inputs, container, instance, cause));
        }
    }
}

/// `None`: the explanation that the plan already has is complete.
fn why_in_sandbox(
    inputs: &Inputs<'_>,
    plan: &Plan,
    starts: &[Step],
    held: Option<&str>,
) -> Option<Why> {
    if !starts.is_empty() {
        let names = starts.iter().filter_map(Step::start).map(|start| &*start.container);
        let text = format!("starting {}", names.collect::<Vec<_>>().join(", "));
        return Some(Why::new(Topic::Starts, text));
    }
    let stopping = |step: &Step| matches!(step, Step::StopContainer(_));
    if plan.steps.iter().any(stopping) {
        let text = "stopping a container that is replaced or no longer needed";
        return Some(Why::new(Topic::Stops, text));
    }
    if plan.steps.iter().any(|step| matches!(step, Step::Resize(_))) {
        let text = "applying new resources to the containers";
        return Some(Why::new(Topic::Runs, text));
    }
    if let Some(error) = resize_error(inputs) {
        let text = format!("cannot apply the new resources: {error}");
        let fix = "the resize is retried; request other amounts if it keeps failing";
        return Some(Why::new(Topic::Fails(PodStep::Resize), text).fix(fix));
    }
    if let Some(held) = held {
        let Some(waiting) = plan.waiting.get(held) else {
            let text = format!("{held} exited; in back-off before its restart");
            let fix = wait_fix(inputs, held, WaitReason::NotStarted(StartError::CrashLoopBackOff));
            return Some(Why::new(Topic::Waits, text).fix(fix));
        };
        let text = format!("{held} is waiting: {} ({})", waiting.message, waiting.reason.as_str());
        return Some(Why::new(Topic::Waits, text).fix(wait_fix(inputs, held, waiting.reason)));
    }
    let init = inputs.pod.init_containers().find(|c| {
        let newest = inputs.observed.newest(&c.name);
        c.kind == ContainerKind::Init && newest.is_some_and(Instance::is_running)
    });
    init.map(|c| {
        Why::new(Topic::Starts, format!("waiting for init container {} to finish", c.name))
    })
}

fn wait_fix(inputs: &Inputs<'_>, container: &str, reason: WaitReason) -> String {
    let fix = match reason {
        WaitReason::Blocked => "remove the annotation podwright/hold",
        WaitReason::NotStarted(error) => match error {
            StartError::CrashLoopBackOff => {
                let command = exit::logs_command(inputs.pod, container);
                return format!("find out why it exits: {command}");
            }
            StartError::ErrImagePull
            | StartError::ImagePullBackOff
            | StartError::RegistryUnavailable => "check the image name and the registry",
            StartError::ErrImageNeverPull => {
                "load the image on this node or change imagePullPolicy"
            }
            StartError::InvalidImageName
            | StartError::ImageInspectError
            | StartError::SignatureValidationFailed
            | StartError::CreateContainerConfigError
            | StartError::PreCreateHookError
            | StartError::CreateContainerError
            | StartError::PreStartHookError
            | StartError::RunContainerError
            | StartError::PostStartHookError => "change what the message names",
        },
    };
    fix.to_owned()
}

/// Error of the last attempt to apply resources, while a resize is in progress.
fn resize_error<'a>(inputs: &Inputs<'a>) -> Option<&'a str> {
    let failed = inputs.attempts.step_failure(PodStep::Resize)?;
    inputs.local_state.resizing.progress.as_ref()?;
    Some(&failed.message)
}

/// Prerequisites of every start. All or none: preparing for a start that then does not happen
/// would be repeated again and again.
fn prepare(inputs: &Inputs<'_>, plan: &mut Plan) -> bool {
    let steps = [PodStep::Cgroup, PodStep::Directories, PodStep::Volumes];
    if !steps.iter().all(|step| may_run(inputs, *step, plan)) {
        return false;
    }
    plan.steps.extend([Step::EnsureCgroup, Step::MakeDirectories, Step::MountVolumes]);
    true
}

/// Whether a pod-level step is out of back-off; if not, the plan explains what it waits for.
fn may_run(inputs: &Inputs<'_>, step: PodStep, plan: &mut Plan) -> bool {
    if step == PodStep::Kill
        && let Some(backoff) = kill::backoff(inputs.observed, inputs.attempts, inputs.now.mono)
    {
        plan.wake(backoff.until);
        plan.why = Why::new(Topic::Fails(step), backoff.text);
        return false;
    }
    match inputs.attempts.step_failure(step) {
        Some(failed) if inputs.now.mono < failed.retry_at => {
            plan.wake(failed.retry_at);
            let text = format!("{} (tried {} times)", failed.message, failed.times);
            plan.why = Why::new(Topic::Fails(step), text).fix(step_fix(step));
            false
        }
        Some(_) | None => true,
    }
}

/// What the user can do about a failing step.
fn step_fix(step: PodStep) -> &'static str {
    match step {
        PodStep::Cgroup => "check with podwright doctor whether the node's cgroups are writable",
        PodStep::Directories => "check whether the disk of the root directory is full or read-only",
        PodStep::Volumes => "create the missing object, or remove it from the pod",
        PodStep::Sandbox => "check the logs of the runtime and of its network plugin",
        PodStep::Kill | PodStep::Removal => "check the runtime's log: it cannot remove a container",
        PodStep::Resize => "request other amounts if it keeps failing",
        PodStep::Teardown => "find out which process on the node still uses the pod's volumes",
    }
}

/// A created container may still be started, by a call that an earlier agent process left behind.
/// In the current sandbox it is removed before another one replaces it, or both would run.
fn remove_unstarted(inputs: &Inputs<'_>, starts: &mut Vec<Restart<'_>>, plan: &mut Plan) {
    let sandbox = inputs.observed.newest_sandbox().map(|sandbox| &sandbox.id);
    let unstarted = |start: &Restart<'_>| {
        let instance = start.follows.filter(|i| matches!(i.state, State::Created))?;
        (Some(&instance.sandbox) == sandbox).then(|| instance.id.clone())
    };
    let ids: Vec<ContainerId> = starts.iter().filter_map(unstarted).collect();
    if ids.is_empty() {
        return;
    }
    if may_run(inputs, PodStep::Removal, plan) {
        let (logs, on_failure) = (Logs::Removed, OnRemovalFailure::End);
        plan.steps.push(Step::RemoveInstances { ids, logs, on_failure });
    } else {
        starts.retain(|start| unstarted(start).is_none());
    }
}

/// Removes obsolete instances of init containers. A failure delays nothing, because a later
/// instance or the new sandbox has replaced them.
fn remove_if_possible(inputs: &Inputs<'_>, ids: Vec<ContainerId>, plan: &mut Plan) {
    let failed = inputs.attempts.step_failure(PodStep::Removal);
    let waits = failed.is_some_and(|failed| inputs.now.mono < failed.retry_at);
    if !ids.is_empty() && !waits {
        let (logs, on_failure) = (Logs::Removed, OnRemovalFailure::Continue);
        plan.steps.push(Step::RemoveInstances { ids, logs, on_failure });
    }
}

/// Keeps the newest dead instance of each init container and removes the others.
fn prune_init(inputs: &Inputs<'_>, plan: &mut Plan) {
    let dead = |i: &&Instance| match i.state {
        State::Exited(_) | State::Unknown => true,
        State::Created | State::Running { .. } => false,
    };
    let old: Vec<ContainerId> = inputs
        .pod
        .init_containers()
        .flat_map(|c| inputs.observed.instances_of(&c.name).filter(dead).skip(1))
        .map(|i| i.id.clone())
        .collect();
    remove_if_possible(inputs, old, plan);
}

/// Applies back-off: the starts that may happen now, as steps, and the first container that waits.
fn apply_backoff(
    inputs: &Inputs<'_>,
    starts: Vec<Restart<'_>>,
    plan: &mut Plan,
) -> (Vec<Step>, Option<Arc<str>>) {
    let (mut now, mut held) = (Vec::new(), None);
    for start in starts {
        if let Some(until) = start_delay(inputs, &start).until {
            plan.wake(until);
            held.get_or_insert_with(|| start.container.name.clone());
            continue;
        }
        now.push(Step::StartContainer(start.step(inputs)));
    }
    (now, held)
}

/// Shows what the containers to start wait for, also if something else keeps them from starting.
fn note_waiting(inputs: &Inputs<'_>, starts: &[Restart<'_>], plan: &mut Plan) {
    let waiting = starts.iter().filter_map(|start| {
        Some((start.container.name.clone(), start_delay(inputs, start).shown?))
    });
    plan.waiting.extend(waiting);
}

/// Waiting state that a container shows, and the end of its back-off (`None`: start it now).
#[derive(Default)]
struct StartDelay {
    shown: Option<Waiting>,
    until: Option<Mono>,
}

fn start_delay(inputs: &Inputs<'_>, start: &Restart<'_>) -> StartDelay {
    let (container, now) = (start.container, inputs.now);
    let key = container.backoff_key;
    // A container that the agent stops did not crash; only an earlier exit counts.
    let crashed = inputs.observed.last_exited(&container.name);
    let hold = crashed.and_then(|i| {
        let hold =
            inputs.attempts.crash_backoff(&container.name, key, i, now, inputs.crash_backoff);
        let seen = inputs.attempts.exit_seen(&container.name, &i.id);
        hold.map(|(delay, until)| (delay, until, seen))
    });
    let failed = inputs.attempts.start_failure(&container.name, key);
    let failure = failed.map(|failed| Waiting {
        reason: WaitReason::NotStarted(failed.reason),
        message: failed.message.clone(),
    });
    if let Some((delay, until, seen)) = hold {
        let switch = seen.map(|seen| seen + SHOW_CAUSE_FOR);
        if let Some(switch) = switch.filter(|switch| now.mono < *switch) {
            return StartDelay { shown: failure, until: Some(switch.min(until)) };
        }
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(delay),
            container.name,
            inputs.pod.described()
        );
        let reason = WaitReason::NotStarted(StartError::CrashLoopBackOff);
        return StartDelay { shown: Some(Waiting { reason, message }), until: Some(until) };
    }
    let Some(failed) = failed else { return StartDelay::default() };
    if has_run(failed.reason, start.follows) {
        return StartDelay { shown: failure, until: None };
    }
    match inputs.attempts.unpulled(&container.name, key, now) {
        Some(PullBackoff { image, until, error }) => {
            let switch = failed.last + SHOW_CAUSE_FOR;
            let is_of_pull =
                failed.reason.is_failed_pull() || failed.reason == StartError::ImageInspectError;
            if is_of_pull && now.mono < switch {
                return StartDelay { shown: failure, until: Some(switch.min(until)) };
            }
            let message = image_back_off(image, error);
            let reason = WaitReason::NotStarted(StartError::ImagePullBackOff);
            StartDelay { shown: Some(Waiting { reason, message }), until: Some(until) }
        }
        None => {
            let until = (now.mono < failed.retry_at).then_some(failed.retry_at);
            StartDelay { shown: failure, until }
        }
    }
}

/// Whether the container ran, or was created and failed to start, and has exited: then only the
/// back-off of its exits applies.
fn has_run(reason: StartError, newest: Option<&Instance>) -> bool {
    match reason {
        StartError::PostStartHookError => true,
        StartError::RunContainerError => newest.is_some_and(|i| i.exit().is_some()),
        StartError::ErrImagePull
        | StartError::ImagePullBackOff
        | StartError::ErrImageNeverPull
        | StartError::InvalidImageName
        | StartError::ImageInspectError
        | StartError::RegistryUnavailable
        | StartError::SignatureValidationFailed
        | StartError::CreateContainerConfigError
        | StartError::PreCreateHookError
        | StartError::CreateContainerError
        | StartError::PreStartHookError
        | StartError::CrashLoopBackOff => false,
    }
}

/// Waiting message during a pull back-off. `error` begins with the reason.
pub fn image_back_off(image: &str, error: &str) -> String {
    format!("Back-off pulling image {image:?}: {error}")
}

#[cfg(test)]
mod tests;
