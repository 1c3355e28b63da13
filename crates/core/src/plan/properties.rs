//! Properties of plans: a small model of a runtime executes them while random events happen to the
//! pod and random steps fail.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::attempts::StartError;
use crate::builders::{self, t};
use crate::lifecycle::{Kill, Request};
use crate::observed::{Exit, Instance, Sandbox, State};
use crate::pod::{ContainerKind, RestartPolicy};

/// A worker that decides more often than this without time passing would be in a busy loop.
const DECISIONS_AT_ONCE: usize = 12;
const RETRY: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
enum Event {
    Exits(usize, i32),
    /// The runtime lost its state.
    Lost(usize),
    /// It was removed externally.
    Removed(usize),
    SandboxDies,
    NewImage(usize),
    Delete(u64),
    Kill(u64),
    Hold(bool),
    CgroupGone,
    Wait(u64),
    /// The wall clock is set forward or back; the monotonic clock goes on.
    ClockSet(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let which = || 0..4usize;
    prop_oneof![
        4 => (which(), prop_oneof![Just(0), Just(1)]).prop_map(|(c, code)| Event::Exits(c, code)),
        1 => which().prop_map(Event::Lost),
        1 => which().prop_map(Event::Removed),
        1 => Just(Event::SandboxDies),
        1 => which().prop_map(Event::NewImage),
        1 => (0..40u64).prop_map(Event::Delete),
        1 => (0..40u64).prop_map(Event::Kill),
        1 => any::<bool>().prop_map(Event::Hold),
        1 => Just(Event::CgroupGone),
        5 => (1..60u64).prop_map(Event::Wait),
        1 => (-7200..7200i64).prop_map(Event::ClockSet),
    ]
}

fn policy() -> impl Strategy<Value = RestartPolicy> {
    prop_oneof![
        Just(RestartPolicy::Always),
        Just(RestartPolicy::OnFailure),
        Just(RestartPolicy::Never)
    ]
}

const NAMES: [&str; 4] = ["init", "side", "a", "b"];

/// A pod, a model of its runtime, and the choices that decide which steps fail.
struct Model {
    case: Case,
    failures: Vec<bool>,
    made: u32,
    /// The grace period of each stop so far, by instance.
    stops: BTreeMap<ContainerId, Duration>,
}

impl Model {
    fn new(policy: RestartPolicy, failures: Vec<bool>) -> Self {
        let pod = builders::pod("web").restart(policy).init("init").sidecar("side");
        let pod = pod.container("a").container("b").grace(30).build();
        let nothing = builders::observed(&pod).build();
        let case = builders::case(pod, nothing, t(0));
        Self { case, failures, made: 0, stops: BTreeMap::new() }
    }

    fn fails(&mut self) -> bool {
        self.failures.pop().unwrap_or(false)
    }

    fn newest(&mut self, name: &str) -> Option<&mut Instance> {
        self.case.observed.instances.iter_mut().find(|i| &*i.container == name)
    }

    fn end(&mut self, id: &ContainerId, code: i32) {
        let now = self.case.now.wall;
        let instance = self.case.observed.instances.iter_mut().find(|i| i.id == *id);
        if let Some(instance) = instance.filter(|i| i.exit().is_none()) {
            let exit = Exit {
                code,
                reason: "Error".into(),
                message: String::new(),
                started: now,
                finished: now,
            };
            instance.state = State::Exited(exit);
        }
    }

    fn pass(&mut self, time: Duration) {
        let now = &mut self.case.now;
        now.mono = now.mono + time;
        now.wall = now.wall.saturating_add(time).unwrap();
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Exits(which, code) => {
                let running = self.newest(NAMES[which]).filter(|i| i.is_running());
                if let Some(id) = running.map(|i| i.id.clone()) {
                    self.end(&id, code);
                }
            }
            Event::Lost(which) => {
                if let Some(instance) = self.newest(NAMES[which]).filter(|i| i.is_running()) {
                    instance.state = State::Unknown;
                }
            }
            Event::Removed(which) => {
                let id = self.newest(NAMES[which]).map(|i| i.id.clone());
                self.case.observed.instances.retain(|i| Some(&i.id) != id.as_ref());
            }
            Event::SandboxDies => {
                for sandbox in &mut self.case.observed.sandboxes {
                    sandbox.ready = false;
                }
            }
            Event::NewImage(which) => {
                let name = NAMES[which];
                let made = self.made;
                let container = self.case.pod.containers.iter_mut().find(|c| &*c.name == name);
                container.unwrap().hash = crate::pod::ContainerHash(made.wrapping_add(7));
            }
            Event::Delete(grace) => {
                let at = self.case.now.wall;
                let grace = Some(Duration::from_secs(grace));
                self.case.pod.deletion = Some(crate::pod::Deletion { at, grace });
                self.case.lifecycle.request(Request::Update, &self.case.pod);
            }
            Event::Kill(grace) => {
                let kill = Kill { grace: Some(Duration::from_secs(grace)), ..Kill::default() };
                self.case.lifecycle.request(Request::Kill(kill), &self.case.pod);
            }
            Event::Hold(held) => {
                let hold = Hold { reason: "Held".into(), message: "wait".into() };
                self.case.local_state.hold = held.then_some(hold);
            }
            Event::CgroupGone => self.case.local_state.cgroup = false,
            Event::Wait(seconds) => self.pass(Duration::from_secs(seconds)),
            Event::ClockSet(seconds) => {
                let by = jiff::SignedDuration::from_secs(seconds);
                self.case.now.wall = self.case.now.wall.saturating_add(by).unwrap();
            }
        }
    }

    /// Decides and executes until nothing is left to do at this moment.
    fn settle(&mut self) -> Plan {
        for _ in 0..DECISIONS_AT_ONCE {
            for container in &self.case.pod.containers {
                for instance in self.case.observed.instances_of(&container.name) {
                    let (name, key) = (&container.name, container.backoff_key);
                    self.case.attempts.note_exit(name, key, instance, self.case.now);
                }
            }
            let plan = decide(&self.case.inputs());
            if plan.stage_done {
                self.case.lifecycle.stopped();
                continue;
            }
            if plan.steps.is_empty() {
                return plan;
            }
            let ending = self.case.lifecycle.stage();
            if self.execute(&plan) && ending == Stage::Terminated {
                self.case.lifecycle.released();
            }
            // Init containers finish at once.
            let quick = self.newest("init").filter(|i| i.is_running()).map(|i| i.id.clone());
            if let Some(id) = quick {
                self.end(&id, 0);
            }
        }
        panic!("{DECISIONS_AT_ONCE} plans and no end: {:?}", decide(&self.case.inputs()));
    }

    fn execute(&mut self, plan: &Plan) -> bool {
        let mut all = true;
        for step in &plan.steps {
            if self.fails() {
                let regular = |start: &Start| {
                    let kind = self.case.pod.container(&start.container).map(|c| c.kind);
                    kind != Some(ContainerKind::Init)
                };
                let goes_on = step.start().is_some_and(regular);
                self.note_failure(step);
                all = false;
                if goes_on {
                    continue;
                }
                return false;
            }
            self.step(step);
        }
        all
    }

    fn note_failure(&mut self, step: &Step) {
        let now = self.case.now;
        let failed = match step {
            Step::EnsureCgroup => PodStep::Cgroup,
            Step::MakeDirectories => PodStep::Directories,
            Step::MountVolumes => PodStep::Volumes,
            Step::KillPod(_) | Step::StopContainer(_) => PodStep::Kill,
            Step::RemoveInstances { .. } => PodStep::Removal,
            Step::CreateSandbox { .. } => PodStep::Sandbox,
            Step::Resize(_) => PodStep::Resize,
            Step::UnmountVolumes | Step::DestroyCgroup => PodStep::Teardown,
            Step::StartContainer(start) => {
                let key = self.case.pod.container(&start.container).unwrap().backoff_key;
                let (name, reason) = (&start.container, StartError::CreateContainerError);
                let attempts = &mut self.case.attempts;
                attempts.note_start_failure(name, key, reason, "no".into(), now, RETRY);
                return;
            }
        };
        self.case.attempts.note_step_failure(failed, "no".into(), now, RETRY);
    }

    fn step(&mut self, step: &Step) {
        let attempts = &mut self.case.attempts;
        match step {
            Step::EnsureCgroup => self.case.local_state.cgroup = true,
            Step::MakeDirectories | Step::MountVolumes => {}
            Step::Resize(_) => attempts.note_step_done(PodStep::Resize),
            Step::KillPod(kill) => {
                attempts.note_step_done(PodStep::Kill);
                for sandbox in &kill.sandboxes {
                    attempts.note_sandbox_stopped(sandbox.clone(), self.case.now.mono);
                }
                self.stop(&kill.stops);
                for sandbox in &mut self.case.observed.sandboxes {
                    sandbox.ready &= !kill.sandboxes.contains(&sandbox.id);
                }
                // Its containers ended with it.
                let dead = |i: &Instance| kill.sandboxes.contains(&i.sandbox) && i.exit().is_none();
                let dead: Vec<ContainerId> = self
                    .case
                    .observed
                    .instances
                    .iter()
                    .filter(|i| dead(i))
                    .map(|i| i.id.clone())
                    .collect();
                dead.iter().for_each(|id| self.end(id, 137));
            }
            Step::StopContainer(stop) => {
                attempts.note_step_done(PodStep::Kill);
                self.stop(std::slice::from_ref(stop));
            }
            Step::RemoveInstances { ids, .. } => {
                let alive = |i: &Instance| ids.contains(&i.id) && i.is_running();
                assert!(!self.case.observed.instances.iter().any(alive), "removed while running");
                self.case.observed.instances.retain(|i| !ids.contains(&i.id));
            }
            Step::CreateSandbox { attempt } => {
                assert!(!self.case.lifecycle.is_ending(), "a sandbox for a terminating pod");
                assert!(self.case.observed.ready_sandbox().is_none(), "two live sandboxes");
                self.made += 1;
                self.case.observed.sandboxes.push(Sandbox {
                    id: SandboxId::new(format!("s{}", self.made)),
                    attempt: *attempt,
                    created: self.case.now.wall,
                    ready: true,
                    host_network: Some(false),
                    handler: String::new(),
                    ips: Some(vec![[10, 0, 0, 1].into()]),
                });
                self.case.observed.sort();
            }
            Step::StartContainer(start) => self.start(start),
            Step::UnmountVolumes => {}
            Step::DestroyCgroup => {
                assert!(!self.case.observed.is_alive(), "cgroup destroyed while the pod runs");
            }
        }
    }

    fn stop(&mut self, stops: &[Stop]) {
        for stop in stops {
            if self.case.lifecycle.is_ending() {
                let before = self.stops.insert(stop.instance.clone(), stop.grace);
                assert!(before.is_none_or(|before| stop.grace <= before), "grace grew");
            }
            self.end(&stop.instance, 137);
        }
    }

    fn start(&mut self, start: &Start) {
        assert!(
            !self.case.lifecycle.is_ending(),
            "{} started in a terminating pod",
            start.container
        );
        let alive = |i: &Instance| match i.state {
            State::Running { .. } | State::Unknown => true,
            State::Created | State::Exited(_) => false,
        };
        let twice = self.case.observed.instances_of(&start.container).any(alive);
        assert!(!twice, "two live instances of {}", start.container);
        let sandbox = self.case.observed.ready_sandbox().expect("a sandbox to start in").id.clone();
        let container = self.case.pod.container(&start.container).unwrap();
        if let Some(after) = start.after.as_ref() {
            let after = self.case.observed.instances.iter().find(|i| i.id == *after).cloned();
            if let Some(after) = after {
                let (key, limits) = (container.backoff_key, self.case.crash_backoff);
                let now = self.case.now;
                self.case.attempts.note_restart(&start.container, key, &after, now, &limits);
            }
        }
        self.case.attempts.note_started(&start.container, container.backoff_key);
        self.made += 1;
        let attempt = match start.attempt {
            NextAttempt::Number(n) | NextAttempt::PastLogs(n) => n,
        };
        let used = |i: &Instance| i.attempt >= attempt;
        let reused = self.case.observed.instances_of(&start.container).any(used);
        assert!(!reused, "attempt {attempt} of {} follows a later one", start.container);
        self.case.observed.instances.push(Instance {
            id: ContainerId::new(format!("c{}", self.made)),
            container: start.container.clone(),
            sandbox,
            attempt,
            hash: Some(container.hash),
            created: self.case.now.wall,
            state: State::Running { started: self.case.now.wall },
            image: String::new(),
            image_ref: String::new(),
            resources: None,
            user: None,
            stop_signal: None,
            log_path: None,
            mounts: Vec::new(),
        });
        // Sorted as the runtime client delivers it.
        self.case.observed.sort();
    }

    /// Advances time until no back-off is left.
    fn run_until_idle(&mut self) -> Plan {
        for _ in 0..200 {
            let plan = self.settle();
            match plan.wake_at {
                None => return plan,
                Some(at) => {
                    let wait = at.since(self.case.now.mono).max(Duration::from_millis(1));
                    self.pass(wait);
                }
            }
        }
        panic!("it never settles: {:?}", decide(&self.case.inputs()));
    }

    fn running(&self) -> Vec<&str> {
        let running = self.case.observed.running().map(|i| &*i.container);
        let mut running: Vec<&str> = running.collect();
        running.sort_unstable();
        running
    }
}

proptest! {
    /// Never two running sandboxes or instances, no start in a terminating pod, a grace period
    /// that never grows, no endless planning: asserted where the steps are executed.
    #[test]
    fn executed_plans_settle_under_any_events_and_failures(
        policy in policy(),
        failures in vec(prop::bool::weighted(0.25), 0..40),
        events in vec(event(), 0..25),
    ) {
        let mut model = Model::new(policy, failures);
        for event in events {
            model.settle();
            model.apply(event);
        }
        model.failures.clear();
        model.case.local_state.hold = None;
        model.run_until_idle();
        match model.case.lifecycle.stage() {
            Stage::Syncing if policy == RestartPolicy::Always => {
                prop_assert_eq!(model.running(), ["a", "b", "side"]);
            }
            Stage::Syncing => {}
            Stage::Finished => prop_assert_eq!(model.running(), [""; 0]),
            Stage::Terminating | Stage::Terminated => {
                prop_assert!(false, "a lifecycle that does not end: {:?}", model.case.lifecycle);
            }
        }
    }

    /// The order of requests does not affect the grace period.
    #[test]
    fn grace_period_is_the_shortest_requested(graces in vec(0..100u64, 1..8)) {
        let pod = builders::pod("web").container("a").build();
        let mut lifecycle = Lifecycle::begin(&pod, true);
        let mut last = None;
        for grace in &graces {
            let kill = Kill { grace: Some(Duration::from_secs(*grace)), ..Kill::default() };
            lifecycle.request(Request::Kill(kill), &pod);
            prop_assert!(last.is_none_or(|last| lifecycle.grace() <= last), "grace grew");
            last = Some(lifecycle.grace());
        }
        let least = graces.iter().min().copied().unwrap_or(0).max(1);
        prop_assert_eq!(lifecycle.grace(), Some(Duration::from_secs(least)));
    }
}
