//! Chaos test: a schedule of user actions, faults and crashes, generated from one seed.
//!
//! The simulated user keeps a list of the requested pods. When all faults have happened, they stop;
//! then the node must converge to what the user requested, and until then no invariant may have
//! been violated ([`super::invariants`]). Two pods are never touched: faults around them must not affect
//! them.

mod faults;
mod pods;

use std::fmt::Write as _;
use std::time::Duration;

use podwright_core::pod::Phase;
use podwright_fake_runtime::{ContainerState, Features};
use serde_json::json;

use super::random::SeededRandom;
use super::test_pod::{APP, APP_2, FAILS, JOB, NODE, TestPod, test_pod};
use super::{Options, Sim, invariants, record};

/// Time to converge after the faults stop.
const SETTLE: Duration = Duration::from_secs(15 * 60);
/// More requests than this per minute on an idle node are a failure.
const IDLE_API_REQUESTS: usize = 4;
const IDLE_RUNTIME_CALLS: usize = 90;

/// Expected final state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedState {
    Runs,
    Succeeds,
    /// Finished, whatever happened to it.
    Ends,
    Held,
}

#[derive(Clone, Debug)]
struct RequestedPod {
    test_pod: TestPod,
    /// Of an API pod.
    uid: Option<String>,
    /// Of a static pod.
    file: Option<String>,
    expect: ExpectedState,
    /// What to expect once it is no longer held.
    expect_after_hold: ExpectedState,
}

impl RequestedPod {
    /// The pod's name in the API.
    fn shown_as(&self) -> String {
        match &self.file {
            Some(_) => format!("{}-{NODE}", self.test_pod.name()),
            None => self.test_pod.name().to_owned(),
        }
    }
}

pub struct Chaos {
    sim: Sim,
    random: SeededRandom,
    requested: Vec<RequestedPod>,
    /// UIDs, in the API, of pods that are never touched.
    quiet: Vec<String>,
    disturbed: Vec<String>,
    /// A pull may hang.
    hung_pulls: bool,
    /// The current content of the ConfigMap.
    settings: String,
    made: u64,
    log: Vec<String>,
}

/// Runs one seed. The error says what failed, and how to reproduce it.
pub async fn play(seed: u64) -> Result<Vec<String>, String> {
    let mut random = SeededRandom::new(seed, 1);
    let features = *random.of(&[Features::containerd_1_6(), Features::containerd_2()]);
    let sim = Sim::started(Options { seed, features, ..Options::default() }).await;
    pods::prepare(&sim).await;
    let mut chaos = Chaos {
        sim,
        random,
        requested: Vec::new(),
        quiet: Vec::new(),
        disturbed: Vec::new(),
        hung_pulls: false,
        settings: pods::FIRST_SETTING.to_owned(),
        made: 0,
        log: Vec::new(),
    };
    let played = chaos.play().await;
    let trace = chaos.trace();
    match played {
        Ok(()) => Ok(trace),
        Err(problems) => {
            let mut text = format!(
                "seed {seed}: {}\nreplay: PODWRIGHT_SIM_SEED={seed} cargo test -p \
                 podwright-testkit --test sim one_seed -- --nocapture\n\nactions:\n",
                problems.join("\n  ")
            );
            for line in &chaos.log {
                let _ = writeln!(text, "  {line}");
            }
            let _ = write!(text, "\nresult:\n{}", chaos.sim.history());
            Err(text)
        }
    }
}

impl Chaos {
    async fn play(&mut self) -> Result<(), Vec<String>> {
        self.create_untouched_pods().await;
        let actions = 12 + self.random.below(14);
        for _ in 0..actions {
            let pause = match self.random.below(4) {
                0 => 0,
                1 => self.random.below(200),
                2 => self.random.below(2_000),
                _ => self.random.below(9_000),
            };
            self.sim.pass(Duration::from_millis(pause)).await;
            self.restart_crashed_agent().await;
            self.act().await;
        }
        self.sim.pass(Duration::from_millis(self.random.below(5_000))).await;
        self.stop_faults().await;
        self.settle().await?;
        // Events that waited for the API server are still being sent.
        self.sim.pass(Duration::from_secs(60)).await;
        let rate = invariants::request_rate(&self.sim, 3).await;
        let mut problems = self.problems();
        if rate.api > IDLE_API_REQUESTS || rate.runtime > IDLE_RUNTIME_CALLS {
            problems.push(format!("an idle node makes too many requests per minute: {rate:?}"));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    async fn create_untouched_pods(&mut self) {
        let pod = test_pod("quiet").sidecar("side", APP).container("a", APP).container("b", APP);
        let uid = self.create_requested(pod, ExpectedState::Runs).await;
        let pod = test_pod("still").container("app", APP);
        self.sim.write_manifest("still.json", &pod.manifest());
        self.sim.until_ready("quiet").await;
        let still = format!("still-{NODE}");
        self.sim.until_ready(&still).await;
        let mirror = self.sim.record.pod(&still).and_then(|pod| pod.metadata.uid.clone());
        let file = Some("still.json".to_owned());
        self.requested.push(RequestedPod {
            test_pod: pod,
            uid: None,
            file,
            expect: ExpectedState::Runs,
            expect_after_hold: ExpectedState::Runs,
        });
        self.quiet.push(uid);
        self.quiet.extend(mirror);
    }

    async fn create_requested(&mut self, test_pod: TestPod, expect: ExpectedState) -> String {
        let uid = self.sim.create(&test_pod).await;
        let requested = RequestedPod {
            test_pod,
            uid: Some(uid.clone()),
            file: None,
            expect,
            expect_after_hold: expect,
        };
        self.requested.push(requested);
        uid
    }

    /// A crash point may have ended the agent.
    async fn restart_crashed_agent(&mut self) {
        if !self.sim.is_running() {
            self.log_action("the agent was killed at a step; restarting it");
            self.sim.crash().await;
            self.sim.pass(Duration::from_millis(self.random.below(3_000))).await;
            self.sim.start().await;
        }
    }

    async fn act(&mut self) {
        const WEIGHTS: [u64; 19] = [16, 8, 10, 5, 5, 5, 5, 4, 14, 14, 6, 4, 3, 2, 1, 4, 4, 4, 3];
        match self.random.weighted(&WEIGHTS) {
            0 => self.create().await,
            1 => self.update().await,
            2 => self.delete().await,
            3 => self.replace().await,
            4 => self.write_manifest(),
            5 => self.edit_or_remove_manifest(),
            6 => self.hold_or_release().await,
            7 => self.hurt().await,
            8 => self.inject_runtime_fault(),
            9 => self.inject_api_fault(),
            10 => self.crash().await,
            11 => self.string_a_wire(),
            12 => self.take_something_down(),
            13 => self.step_clock(),
            14 => self.reboot().await,
            15 => self.inject_disk_fault(),
            16 => self.resize().await,
            17 => self.debug().await,
            _ => self.edit_settings().await,
        }
    }

    fn log_action(&mut self, what: impl std::fmt::Display) {
        self.log.push(format!("{:?} {what}", self.sim.age()));
    }

    // === User actions ===

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("p{}", self.made)
    }

    async fn create(&mut self) {
        let name = self.new_name();
        let (test_pod, expect) = pods::random_pod(&name, &mut self.random);
        self.log_action(format_args!("create {name}: {}", test_pod.value()["spec"]));
        self.create_requested(test_pod, expect).await;
    }

    /// One of the API pods that may be touched, by its index in the list.
    fn some_pod(&mut self, which: fn(&RequestedPod) -> bool) -> Option<usize> {
        let touchable =
            |requested: &RequestedPod| !matches!(requested.test_pod.name(), "quiet" | "still");
        let places: Vec<usize> = (0..self.requested.len())
            .filter(|place| touchable(&self.requested[*place]) && which(&self.requested[*place]))
            .collect();
        if places.is_empty() { None } else { Some(*self.random.of(&places)) }
    }

    async fn update(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let name = self.requested[place].test_pod.name().to_owned();
        let runs_app =
            self.requested[place].test_pod.value()["spec"]["containers"][0]["image"] == APP;
        if runs_app && self.random.percent(60) {
            let test_pod = self.requested[place].test_pod.clone();
            let container = test_pod.value()["spec"]["containers"][0]["name"].as_str().unwrap();
            self.log_action(format_args!("new image for {name}/{container}"));
            if self.sim.set_image(&name, container, APP_2).await {
                self.requested[place].test_pod =
                    test_pod.clone().edit(|p| p["spec"]["containers"][0]["image"] = APP_2.into());
            }
        } else {
            let label = self.random.below(1000).to_string();
            self.log_action(format_args!("new label for {name}"));
            self.sim.patch(&name, json!({ "metadata": { "labels": { "n": label } } })).await;
        }
    }

    async fn delete(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let requested = self.requested.remove(place);
        let name = requested.test_pod.name();
        let grace = *self.random.of(&[None, None, Some(3), Some(0)]);
        self.log_action(format_args!("delete {name} within {grace:?}"));
        self.sim.delete(name, grace).await;
        if grace.is_none() && self.random.percent(30) {
            self.sim.pass(Duration::from_millis(self.random.below(3_000))).await;
            let grace = *self.random.of(&[Some(2), Some(0)]);
            self.log_action(format_args!("delete {name} again within {grace:?}"));
            self.sim.delete(name, grace).await;
        }
    }

    /// Force-deletes a pod and creates another one of its name at once.
    async fn replace(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let requested = self.requested.remove(place);
        let name = requested.test_pod.name().to_owned();
        self.log_action(format_args!("replace {name}"));
        self.sim.delete(&name, Some(0)).await;
        let (test_pod, expect) = pods::random_pod(&name, &mut self.random);
        self.create_requested(test_pod, expect).await;
    }

    fn write_manifest(&mut self) {
        let name = self.new_name();
        let test_pod = test_pod(&name).container("app", APP);
        let file = format!("{name}.json");
        self.log_action(format_args!("write {file}"));
        self.sim.write_manifest(&file, &test_pod.manifest());
        let (expect, expect_after_hold) = (ExpectedState::Runs, ExpectedState::Runs);
        self.requested.push(RequestedPod {
            test_pod,
            uid: None,
            file: Some(file),
            expect,
            expect_after_hold,
        });
    }

    fn edit_or_remove_manifest(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_some()) else { return };
        let file = self.requested[place].file.clone().unwrap();
        match self.random.below(3) {
            0 => {
                self.log_action(format_args!("edit {file}"));
                let image = *self.random.of(&[APP, APP_2]);
                let test_pod = self.requested[place].test_pod.clone();
                let test_pod =
                    test_pod.edit(|pod| pod["spec"]["containers"][0]["image"] = image.into());
                self.sim.write_manifest(&file, &test_pod.manifest());
                self.requested[place].test_pod = test_pod;
            }
            1 => {
                self.log_action(format_args!("remove {file}"));
                self.sim.remove_manifest(&file);
                self.requested.remove(place);
            }
            _ => {
                self.log_action(format_args!("break {file} and repair it"));
                self.sim.write_manifest(&file, "{ not a pod");
                let text = self.requested[place].test_pod.manifest();
                self.sim.write_manifest(&file, &text);
            }
        }
    }

    async fn hold_or_release(&mut self) {
        let holdable = |a: &RequestedPod| {
            a.file.is_none() && matches!(a.expect_after_hold, ExpectedState::Runs)
        };
        let Some(place) = self.some_pod(holdable) else { return };
        let name = self.requested[place].test_pod.name().to_owned();
        let (value, expect) = match self.requested[place].expect {
            ExpectedState::Held => (json!(null), self.requested[place].expect_after_hold),
            ExpectedState::Runs | ExpectedState::Succeeds | ExpectedState::Ends => {
                (json!("wait"), ExpectedState::Held)
            }
        };
        self.log_action(format_args!("hold {name}: {value}"));
        let patch = json!({ "metadata": { "annotations": { "podwright/hold": value } } });
        if self.sim.patch(&name, patch).await {
            self.requested[place].expect = expect;
        }
    }

    /// Changes the CPU request of a pod that has one.
    async fn resize(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none() && pods::is_resizable(&a.test_pod))
        else {
            return;
        };
        let name = self.requested[place].test_pod.name().to_owned();
        let cpu = *self.random.of(&pods::CPU_REQUESTS);
        self.log_action(format_args!("resize {name} to {cpu}"));
        if self.sim.resize(&name, "app", json!({ "cpu": cpu })).await {
            let test_pod = self.requested[place].test_pod.clone();
            self.requested[place].test_pod = pods::with_cpu(test_pod, cpu);
        }
    }

    /// Adds an ephemeral container to a pod.
    async fn debug(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let name = self.requested[place].test_pod.name().to_owned();
        let container = format!("{}{}", pods::DEBUGGER, self.made);
        self.made += 1;
        let image = *self.random.of(&[APP, JOB, FAILS]);
        self.log_action(format_args!("debug {name} with {container}, {image}"));
        self.sim.add_ephemeral_container(&name, &container, image).await;
    }

    async fn edit_settings(&mut self) {
        let content = self.random.below(1000).to_string();
        self.log_action(format_args!("new content {content} of the ConfigMap"));
        pods::edit_settings(&self.sim, &content).await;
        self.settings = content;
    }

    fn disturbances(&self) -> Vec<String> {
        self.quiet.iter().flat_map(|uid| invariants::disturbances(&self.sim, uid)).collect()
    }

    // === Checks ===

    async fn stop_faults(&mut self) {
        self.log_action("all faults end");
        self.sim.fake.heal();
        self.sim.fake.come_up();
        self.sim.api.heal();
        self.sim.environment.heal_disk();
        if self.hung_pulls {
            // A runtime ends a pull that makes no progress; the agent does so after hours.
            self.sim.fake.hang_up();
        }
        self.restart_crashed_agent().await;
        self.sim.untrip();
    }

    async fn settle(&mut self) -> Result<(), Vec<String>> {
        let end = self.sim.age() + SETTLE;
        loop {
            let open = self.unsettled();
            if open.is_empty() || self.sim.age() > end {
                let problems = self.problems();
                return if problems.is_empty() { Ok(()) } else { Err(problems) };
            }
            self.sim.pass(Duration::from_secs(2)).await;
        }
    }

    /// Everything that is not as expected in the end, or violated an invariant at any time.
    fn problems(&self) -> Vec<String> {
        let mut problems = invariants::violations(&self.sim);
        problems.extend(self.unsettled());
        problems.extend(self.disturbed.clone());
        problems.extend(self.disturbances());
        problems
    }

    /// Differences between the requested and the actual state.
    fn unsettled(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut living = Vec::new();
        let mut names = Vec::new();
        for requested in &self.requested {
            let name = requested.shown_as();
            problems.extend(self.problem_of(requested, &name, &mut living));
            names.push(name);
        }
        for pod in self.sim.record.pods() {
            let name = pod.metadata.name.clone().unwrap_or_default();
            if !names.contains(&name) {
                problems.push(format!("{name} was deleted and is still in the API"));
            }
        }
        problems.extend(invariants::leftovers(&self.sim, &living));
        problems.extend(invariants::runtime_leftovers(&self.sim));
        problems
    }

    fn problem_of(
        &self,
        requested: &RequestedPod,
        name: &str,
        living: &mut Vec<String>,
    ) -> Option<String> {
        let Some(pod) = self.sim.record.pod(name) else {
            return Some(format!("{name} is missing in the API"));
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if requested.uid.as_ref().is_some_and(|requested| *requested != uid) {
            return Some(format!("{name} is another pod in the API"));
        }
        let phase = record::phase(&pod);
        let snapshot = self.sim.fake.snapshot();
        let mine = |pod: &podwright_fake_runtime::PodRef| {
            pod.is(name) && requested.uid.as_ref().is_none_or(|uid| pod.uid.as_str() == uid)
        };
        // Ephemeral containers run once, if at all.
        let goes_on = requested.expect == ExpectedState::Runs;
        let running: Vec<&str> = snapshot
            .containers
            .iter()
            .filter(|c| mine(&c.pod) && c.state == ContainerState::Running)
            .map(|c| c.name.as_str())
            .filter(|name| !goes_on || !name.starts_with(pods::DEBUGGER))
            .collect();
        match requested.expect {
            ExpectedState::Runs => {
                let node_uid = snapshot.sandboxes.iter().rfind(|s| mine(&s.pod) && s.ready);
                living.extend(node_uid.map(|sandbox| sandbox.pod.uid.to_string()));
                let mut want = requested.test_pod.lasting();
                let mut have = running;
                want.sort_unstable();
                have.sort_unstable();
                if want != have {
                    return Some(format!("{name} should run {want:?} but runs {have:?}"));
                }
                if phase != Phase::Running || !record::is_ready(&pod) {
                    return Some(format!("{name} runs but is {} in the API", phase.as_str()));
                }
                pods::outdated(&self.sim, requested, &pod, &self.settings)
                    .map(|what| format!("{name}: {what}"))
            }
            ExpectedState::Succeeds if phase == Phase::Succeeded && running.is_empty() => None,
            ExpectedState::Ends if phase.is_terminal() && running.is_empty() => None,
            ExpectedState::Held if phase == Phase::Pending && running.is_empty() => {
                // Its cgroup and its directory may stay until it is released.
                living.push(uid);
                None
            }
            ExpectedState::Succeeds | ExpectedState::Ends | ExpectedState::Held => Some(format!(
                "{name} should be {:?}, is {} and runs {running:?}",
                requested.expect,
                phase.as_str()
            )),
        }
    }

    /// Actions and results, for comparing two runs of one seed.
    fn trace(&self) -> Vec<String> {
        let mut trace = self.log.clone();
        trace.extend(self.sim.fake.calls().iter().map(ToString::to_string));
        let shown = self.sim.record.recorded_pods();
        trace.extend(shown.iter().map(|s| {
            let phase = record::phase(&s.pod).as_str();
            format!("{:?} {} {phase} {}", s.at, s.name(), record::is_ready(&s.pod))
        }));
        trace
    }
}
