//! The plan for a pod that should run.
//!
//! In order: is it held back, is there a network, does it stand on its cgroup, is its sandbox
//! sound, and then what each container needs. Back-off comes last: it only delays a start that
//! was decided on.

use std::sync::Arc;
use std::time::Duration;

use super::regular::{Actions, Restart, restart};
use super::{
    Hold, Inputs, KillPod, Logs, Plan, Step, Topic, WaitReason, Waiting, Why, init, kill, regular,
    sandbox,
};
use crate::attempts::{PodStep, StartError, Unpulled};
use crate::ids::ContainerId;
use crate::observed::{Instance, State};
use crate::pod::{AfterExit, ContainerKind, RestartPolicy};
use crate::resize::whole_differs;
use crate::time::{Mono, go_duration};

/// How soon a pod looks again whether the network came up; usually it is told.
const NETWORK_RETRY: Duration = Duration::from_secs(1);
/// A failed pull, an exit or a failed hook shows as itself this long, then as the back-off it leads
/// to: a watcher sees what happened before it sees what follows.
const SHOWN_AS_ITSELF: Duration = Duration::from_secs(2);

pub(super) fn plan(inputs: &Inputs<'_>) -> Plan {
    if let Some(why) = &inputs.pod.unreadable {
        return left_alone(why);
    }
    if let Some(hold) = &inputs.surroundings.hold {
        return held(inputs, hold);
    }
    if let Err(error) = &inputs.surroundings.network
        && !inputs.pod.host_network
    {
        let why = Why::new(Topic::NetworkNotReady, format!("network is not ready: {error}"))
            .way_out("check the runtime's network plugin and its configuration folder");
        let mut plan = Plan::idle(why);
        plan.wake(inputs.now.mono + NETWORK_RETRY);
        return plan;
    }
    let mut plan = if lost_its_cgroup(inputs) {
        let why = "its containers run outside their cgroup; they are stopped and made anew";
        kill_only(inputs, why)
    } else if let Some(trigger) = restart_all_trigger(inputs) {
        restart_all(inputs, trigger)
    } else {
        match sandbox::decide(inputs.pod, inputs.observed) {
            sandbox::Need::New { attempt, replaces } => new_sandbox(inputs, attempt, replaces),
            sandbox::Need::Keep(_) => in_sandbox(inputs),
        }
    };
    if let Some(at) = deadline(inputs) {
        plan.wake(at);
    }
    plan
}

/// Nothing is started and nothing is stopped: what runs was started by an agent that knew how.
fn left_alone(why: &str) -> Plan {
    let text = format!("left as it is, this agent cannot read it: {why}");
    let way_out = "run a version of podwright that is not older than the API server, or delete it";
    Plan::idle(Why::new(Topic::Held, text).way_out(way_out))
}

fn held(inputs: &Inputs<'_>, hold: &Hold) -> Plan {
    let text = format!("held back: {} ({})", hold.message, hold.reason);
    let why = Why::new(Topic::Held, text).way_out("remove the annotation podwright/hold");
    let mut plan = killing(inputs, why, false);
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

/// Containers that run without the pod's cgroup run without its limits.
fn lost_its_cgroup(inputs: &Inputs<'_>) -> bool {
    !inputs.surroundings.cgroup && inputs.observed.running().next().is_some()
}

/// When `activeDeadlineSeconds` ends the pod.
fn deadline(inputs: &Inputs<'_>) -> Option<Mono> {
    let (limit, active) = (inputs.pod.active_deadline?, inputs.surroundings.active?);
    Some(inputs.now.mono + limit.saturating_sub(active.elapsed(inputs.now.mono)))
}

fn kill_only(inputs: &Inputs<'_>, why: &str) -> Plan {
    killing(inputs, Why::new(Topic::Stops, why), false)
}

fn killing(inputs: &Inputs<'_>, why: Why, replaced: bool) -> Plan {
    let mut plan = Plan::idle(why);
    if let Some(kill) = kill::pod(inputs.pod, inputs.observed, inputs.attempts, None)
        && may_try(inputs, PodStep::Kill, &mut plan)
    {
        plan.steps.push(Step::KillPod(KillPod { replaced, ..kill }));
    }
    plan
}

/// The instance whose exit asks for all containers to start over.
fn restart_all_trigger<'a>(inputs: &Inputs<'a>) -> Option<&'a Instance> {
    inputs.pod.containers.iter().find_map(|c| {
        let newest = inputs.observed.newest(&c.name)?;
        let exit = newest.exit()?;
        let after = c.after_exit(exit.code, inputs.pod.restart_policy);
        (after == AfterExit::RestartAll).then_some(newest)
    })
}

/// Stops and removes every instance, the trigger last: whoever is interrupted finds it again.
fn restart_all(inputs: &Inputs<'_>, trigger: &Instance) -> Plan {
    let text =
        format!("container {} exited and its rule restarts all containers", trigger.container);
    let mut plan = Plan::idle(Why::new(Topic::Stops, text));
    if ![PodStep::Kill, PodStep::Removal].iter().all(|s| may_try(inputs, *s, &mut plan)) {
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
    plan.steps.push(Step::RemoveInstances { ids: remove, logs: Logs::Kept });
    plan
}

fn new_sandbox(inputs: &Inputs<'_>, attempt: u32, replaces: bool) -> Plan {
    let (pod, observed) = (inputs.pod, inputs.observed);
    if pod.restart_policy == RestartPolicy::Never && attempt > 0 && !observed.instances.is_empty() {
        return kill_only(inputs, "its sandbox is gone and its containers run only once");
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
        return kill_only(inputs, "all its containers are done");
    }
    let first_init = pod.init_containers().next();
    let starts = match first_init {
        Some(init) => vec![restart(init, observed.newest(&init.name))],
        None => candidates,
    };
    let text = if replaces { "its sandbox is replaced" } else { "its sandbox is created" };
    let mut plan = killing(inputs, Why::new(Topic::Starts, text), replaces);
    if !may_try(inputs, PodStep::Kill, &mut plan) || !may_try(inputs, PodStep::Removal, &mut plan) {
        return plan;
    }
    let stale: Vec<ContainerId> = pod
        .init_containers()
        .flat_map(|c| observed.instances_of(&c.name))
        .map(|i| i.id.clone())
        .collect();
    if !stale.is_empty() {
        plan.steps.push(Step::RemoveInstances { ids: stale, logs: Logs::Removed });
    }
    let (starts, _) = hold_back(inputs, starts, &mut plan);
    if may_try(inputs, PodStep::Sandbox, &mut plan) && prepare(inputs, &mut plan) {
        plan.steps.push(Step::CreateSandbox { attempt });
        plan.steps.extend(starts);
    }
    plan
}

fn in_sandbox(inputs: &Inputs<'_>) -> Plan {
    let mut actions = Actions::default();
    regular::ephemeral(inputs, &mut actions);
    match init::decide(inputs, &mut actions) {
        init::Progress::Failed => {
            return kill_only(inputs, "an init container failed and may not run again");
        }
        init::Progress::Underway => {}
        init::Progress::Complete => {
            let before = actions.starts.len();
            let kept = regular::decide(inputs, &mut actions);
            if kept == 0 && actions.starts.len() == before {
                return kill_only(inputs, "all its containers are done");
            }
        }
    }
    let mut plan = Plan::idle(Why::new(Topic::Runs, "running"));
    stop_doubles(inputs, &mut actions);
    let stopped: Vec<ContainerId> = actions.stops.iter().map(|s| s.instance.clone()).collect();
    let mut starts = actions.starts;
    if !stopped.is_empty() {
        if may_try(inputs, PodStep::Kill, &mut plan) {
            plan.steps.extend(actions.stops.into_iter().map(Step::StopContainer));
        } else {
            // What could not be stopped lives; nothing may take its place.
            let lives = |name: &str| actions.stops.iter().any(|stop| &*stop.container == name);
            starts.retain(|start| !lives(&start.container.name));
        }
    }
    prune_init(inputs, &mut plan);
    let mut resize = actions.resize;
    resize.whole |= whole_differs(inputs.pod, &inputs.surroundings.resizing.applied);
    if !resize.is_empty() && may_try(inputs, PodStep::Resize, &mut plan) {
        plan.steps.push(Step::Resize(resize));
    }
    drop_unstarted(inputs, &mut starts, &mut plan);
    let (starts, held) = hold_back(inputs, starts, &mut plan);
    if let Some(why) = why_in_sandbox(inputs, &plan, &starts, held.as_deref()) {
        plan.why = why;
    }
    if !starts.is_empty() && prepare(inputs, &mut plan) {
        plan.steps.extend(starts);
    }
    plan
}

/// A start that nobody heard of any more may come true late, beside the one that took its place.
fn stop_doubles(inputs: &Inputs<'_>, actions: &mut Actions<'_>) {
    for container in &inputs.pod.containers {
        let older = inputs.observed.instances_of(&container.name).skip(1);
        for instance in older.filter(|instance| instance.is_running()) {
            let cause = super::StopCause::Double;
            actions.stops.push(regular::stop(inputs, container, instance, cause));
        }
    }
}

/// `None`: what the plan already says is all there is to say.
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
        let text = "stopping a container that has to start anew or not at all";
        return Some(Why::new(Topic::Stops, text));
    }
    if plan.steps.iter().any(|step| matches!(step, Step::Resize(_))) {
        let text = "giving its containers the resources they were granted";
        return Some(Why::new(Topic::Runs, text));
    }
    if let Some(error) = resize_error(inputs) {
        let text = format!("its new resources could not be applied: {error}");
        let way_out = "it is tried again; ask for other amounts if that does not help";
        return Some(Why::new(Topic::Fails(PodStep::Resize), text).way_out(way_out));
    }
    if let Some(held) = held {
        let Some(waiting) = plan.waiting.get(held) else {
            let text = format!("{held} exited; it is held back before it starts again");
            let way_out = way_out(WaitReason::NotStarted(StartError::CrashLoopBackOff));
            return Some(Why::new(Topic::Waits, text).way_out(way_out));
        };
        let text = format!("{held} waits: {} ({})", waiting.message, waiting.reason.as_str());
        return Some(Why::new(Topic::Waits, text).way_out(way_out(waiting.reason)));
    }
    let init = inputs.pod.init_containers().find(|c| {
        let newest = inputs.observed.newest(&c.name);
        c.kind == ContainerKind::Init && newest.is_some_and(Instance::is_running)
    });
    init.map(|c| {
        Why::new(Topic::Starts, format!("waiting for init container {} to finish", c.name))
    })
}

fn way_out(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Blocked => "remove the annotation podwright/hold",
        WaitReason::NotStarted(error) => match error {
            StartError::CrashLoopBackOff => "see why it exits: kubectl logs --previous",
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
            | StartError::PostStartHookError => "the message says what to change",
        },
    }
}

/// Why the last try to apply a grant failed, while that matters.
fn resize_error<'a>(inputs: &Inputs<'a>) -> Option<&'a str> {
    let failed = inputs.attempts.step_failure(PodStep::Resize)?;
    inputs.surroundings.resizing.progress.as_ref()?;
    Some(&failed.message)
}

/// What must stand before anything is started. All of it or none: preparing what is not going to
/// be started would be done again and again.
fn prepare(inputs: &Inputs<'_>, plan: &mut Plan) -> bool {
    let steps = [PodStep::Cgroup, PodStep::Directories, PodStep::Volumes];
    if !steps.iter().all(|step| may_try(inputs, *step, plan)) {
        return false;
    }
    plan.steps.extend([Step::EnsureCgroup, Step::MakeDirectories, Step::MountVolumes]);
    true
}

/// A step that failed is not tried again before its time; the plan then says what it waits for.
fn may_try(inputs: &Inputs<'_>, step: PodStep, plan: &mut Plan) -> bool {
    if step == PodStep::Kill
        && let Some(rest) = kill::rest(inputs.observed, inputs.attempts, inputs.now.mono)
    {
        plan.wake(rest.until);
        plan.why = Why::new(Topic::Fails(step), rest.text);
        return false;
    }
    match inputs.attempts.step_failure(step) {
        Some(failed) if inputs.now.mono < failed.retry_at => {
            plan.wake(failed.retry_at);
            let text = format!("{} (tried {} times)", failed.message, failed.times);
            plan.why = Why::new(Topic::Fails(step), text).way_out(way_past(step));
            false
        }
        Some(_) | None => true,
    }
}

/// What someone can do about a step that fails.
fn way_past(step: PodStep) -> &'static str {
    match step {
        PodStep::Cgroup => "see with podwright doctor whether the node's cgroups can be written",
        PodStep::Directories => "see whether the disk of the root folder is full or read-only",
        PodStep::Volumes => "make what the message names, or take it out of the pod",
        PodStep::Sandbox => "see the runtime's log, and its network plugin's",
        PodStep::Kill | PodStep::Removal => "see the runtime's log: it cannot let a container go",
        PodStep::Resize => "ask for other amounts if trying again does not help",
        PodStep::Teardown => "see who on the node still uses its volumes",
    }
}

/// A container that was made and not started may still start: an agent that died has left a call
/// behind. It goes before another takes its place, or both would run.
fn drop_unstarted(inputs: &Inputs<'_>, starts: &mut Vec<Restart<'_>>, plan: &mut Plan) {
    let unstarted = |start: &Restart<'_>| {
        let made = start.follows.filter(|i| matches!(i.state, State::Created));
        made.map(|i| i.id.clone())
    };
    let ids: Vec<ContainerId> = starts.iter().filter_map(unstarted).collect();
    if ids.is_empty() {
        return;
    }
    if may_try(inputs, PodStep::Removal, plan) {
        plan.steps.push(Step::RemoveInstances { ids, logs: Logs::Removed });
    } else {
        starts.retain(|start| unstarted(start).is_none());
    }
}

/// Keeps the newest dead instance of each init container and drops the others.
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
    if !old.is_empty() && may_try(inputs, PodStep::Removal, plan) {
        plan.steps.push(Step::RemoveInstances { ids: old, logs: Logs::Removed });
    }
}

/// Splits starts into those that may happen now, as steps, and the first one that must wait.
fn hold_back(
    inputs: &Inputs<'_>,
    starts: Vec<Restart<'_>>,
    plan: &mut Plan,
) -> (Vec<Step>, Option<Arc<str>>) {
    let (mut now, mut held) = (Vec::new(), None);
    for start in starts {
        let Wait { shown, until } = wait(inputs, &start);
        let name = &start.container.name;
        if let Some(shown) = shown {
            plan.waiting.insert(name.clone(), shown);
        }
        if let Some(until) = until {
            plan.wake(until);
            held.get_or_insert_with(|| name.clone());
            continue;
        }
        now.push(Step::StartContainer(start.step(inputs)));
    }
    (now, held)
}

/// What a container shows while it does not run, and until when it must wait (`None`: it is tried
/// now).
#[derive(Default)]
struct Wait {
    shown: Option<Waiting>,
    until: Option<Mono>,
}

fn wait(inputs: &Inputs<'_>, start: &Restart<'_>) -> Wait {
    let (container, now) = (start.container, inputs.now);
    let key = container.backoff_key;
    // A container we stop ourselves did not crash; only an exit before that counts.
    let crashed = inputs.observed.last_exited(&container.name);
    let hold = crashed.and_then(|i| {
        let hold = inputs.attempts.crash_hold(&container.name, key, i, now, inputs.crash_backoff);
        let seen = inputs.attempts.exit_seen(&container.name, &i.id);
        hold.map(|(delay, until)| (delay, until, seen))
    });
    let failed = inputs.attempts.start_failure(&container.name, key);
    let failure = failed.map(|failed| Waiting {
        reason: WaitReason::NotStarted(failed.reason),
        message: failed.message.clone(),
    });
    if let Some((delay, until, seen)) = hold {
        let switch = seen.map(|seen| seen + SHOWN_AS_ITSELF);
        if let Some(switch) = switch.filter(|switch| now.mono < *switch) {
            return Wait { shown: failure, until: Some(switch.min(until)) };
        }
        let message = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(delay),
            container.name,
            inputs.pod.described()
        );
        let reason = WaitReason::NotStarted(StartError::CrashLoopBackOff);
        return Wait { shown: Some(Waiting { reason, message }), until: Some(until) };
    }
    let Some(failed) = failed else { return Wait::default() };
    if has_run(failed.reason, start.follows) {
        return Wait { shown: failure, until: None };
    }
    match inputs.attempts.unpulled(&container.name, key, now) {
        Some(Unpulled { image, until, error }) => {
            let switch = failed.last + SHOWN_AS_ITSELF;
            let is_of_pull =
                failed.reason.is_failed_pull() || failed.reason == StartError::ImageInspectError;
            if is_of_pull && now.mono < switch {
                return Wait { shown: failure, until: Some(switch.min(until)) };
            }
            let message = image_back_off(image, error);
            let reason = WaitReason::NotStarted(StartError::ImagePullBackOff);
            Wait { shown: Some(Waiting { reason, message }), until: Some(until) }
        }
        None => {
            let until = (now.mono < failed.retry_at).then_some(failed.retry_at);
            Wait { shown: failure, until }
        }
    }
}

/// Whether it did run, or was made and could not, and ended: then only the back-off of its exits
/// holds it back.
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

/// What is said while an image is not pulled again. `error` begins with the reason.
pub fn image_back_off(image: &str, error: &str) -> String {
    format!("Back-off pulling image {image:?}: {error}")
}

#[cfg(test)]
mod tests;
