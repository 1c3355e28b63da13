//! A schedule of user actions, faults and crashes, made from one seed.
//!
//! The user keeps a list of what they asked for. When everything that goes wrong has gone wrong,
//! the faults stop; then the world must become what the user asked for, and until then no law may
//! have been broken ([`super::laws`]). Two pods are never touched: what happens around them must
//! not be felt.

use std::fmt::Write as _;
use std::time::Duration;

use podwright_core::pod::Phase;
use podwright_cri::fake::{ContainerState, EventFault, Fault, Features, Rpc, Rule};
use serde_json::json;

use super::api::{ApiFault, ApiRule, Verb};
use super::chance::Chance;
use super::tripwire::{Counted, Moment};
use super::wish::{APP, APP_2, FAILS, FLAKY, INIT, JOB, NODE, REMOTE, STUBBORN, Wish, wish};
use super::{Options, Sim, laws, record};

/// After the faults stop, the world has this long to become what was asked for.
const SETTLE: Duration = Duration::from_secs(15 * 60);
/// More than this per minute is a storm, when there is nothing to do.
const QUIET_API: usize = 4;
const QUIET_RUNTIME: usize = 90;

/// What the user expects of a pod in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Runs,
    Succeeds,
    /// Whatever happened to it, it is over.
    Ends,
    Held,
}

#[derive(Clone, Debug)]
struct Asked {
    wish: Wish,
    /// Of an API pod.
    uid: Option<String>,
    /// Of a static pod.
    file: Option<String>,
    expect: Expect,
    /// What to expect once it is no longer held.
    unheld: Expect,
}

impl Asked {
    /// The pod's name in the API.
    fn shown_as(&self) -> String {
        match &self.file {
            Some(_) => format!("{}-{NODE}", self.wish.name()),
            None => self.wish.name().to_owned(),
        }
    }
}

pub struct Chaos {
    sim: Sim,
    chance: Chance,
    asked: Vec<Asked>,
    /// UIDs, in the API, of pods that nobody touches.
    quiet: Vec<String>,
    disturbed: Vec<String>,
    made: u64,
    log: Vec<String>,
}

/// Plays one seed. The error tells what broke, and how to see it again.
pub async fn play(seed: u64) -> Result<Vec<String>, String> {
    let mut chance = Chance::new(seed, 1);
    let features = *chance.of(&[Features::containerd_1_6(), Features::containerd_2()]);
    let sim = Sim::started(Options { seed, features, ..Options::default() }).await;
    let mut chaos = Chaos {
        sim,
        chance,
        asked: Vec::new(),
        quiet: Vec::new(),
        disturbed: Vec::new(),
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
                 podwright-testkit --test sim one_seed -- --nocapture\n\nwhat was done:\n",
                problems.join("\n  ")
            );
            for line in &chaos.log {
                let _ = writeln!(text, "  {line}");
            }
            let _ = write!(text, "\nwhat came of it:\n{}", chaos.sim.story());
            Err(text)
        }
    }
}

impl Chaos {
    async fn play(&mut self) -> Result<(), Vec<String>> {
        self.make_the_quiet_ones().await;
        let actions = 12 + self.chance.below(14);
        for _ in 0..actions {
            let pause = match self.chance.below(4) {
                0 => 0,
                1 => self.chance.below(200),
                2 => self.chance.below(2_000),
                _ => self.chance.below(9_000),
            };
            self.sim.pass(Duration::from_millis(pause)).await;
            self.raise_the_dead().await;
            self.act().await;
        }
        self.sim.pass(Duration::from_millis(self.chance.below(5_000))).await;
        self.calm_down().await;
        self.settle().await?;
        // Events that waited for the API server are still being told.
        self.sim.pass(Duration::from_secs(60)).await;
        let said = laws::chatter(&self.sim, 3).await;
        let mut problems = self.problems();
        if said.api > QUIET_API || said.runtime > QUIET_RUNTIME {
            problems.push(format!("an idle node says too much per minute: {said:?}"));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    async fn make_the_quiet_ones(&mut self) {
        let pod = wish("quiet").sidecar("side", APP).container("a", APP).container("b", APP);
        let uid = self.ask(pod, Expect::Runs).await;
        let pod = wish("still").container("app", APP);
        self.sim.write_manifest("still.json", &pod.manifest());
        self.sim.until_ready("quiet").await;
        let still = format!("still-{NODE}");
        self.sim.until_ready(&still).await;
        let mirror = self.sim.record.pod(&still).and_then(|pod| pod.metadata.uid.clone());
        let file = Some("still.json".to_owned());
        self.asked.push(Asked {
            wish: pod,
            uid: None,
            file,
            expect: Expect::Runs,
            unheld: Expect::Runs,
        });
        self.quiet.push(uid);
        self.quiet.extend(mirror);
    }

    async fn ask(&mut self, wish: Wish, expect: Expect) -> String {
        let uid = self.sim.create(&wish).await;
        let asked = Asked { wish, uid: Some(uid.clone()), file: None, expect, unheld: expect };
        self.asked.push(asked);
        uid
    }

    /// A tripwire may have ended the agent.
    async fn raise_the_dead(&mut self) {
        if !self.sim.is_running() {
            self.say("the agent died at a step; it is started again");
            self.sim.crash().await;
            self.sim.pass(Duration::from_millis(self.chance.below(3_000))).await;
            self.sim.start().await;
        }
    }

    async fn act(&mut self) {
        const WEIGHTS: [u64; 14] = [16, 8, 10, 5, 5, 5, 5, 4, 14, 14, 6, 4, 3, 1];
        match self.chance.weighted(&WEIGHTS) {
            0 => self.create().await,
            1 => self.update().await,
            2 => self.delete().await,
            3 => self.replace().await,
            4 => self.write_manifest(),
            5 => self.edit_or_remove_manifest(),
            6 => self.hold_or_release().await,
            7 => self.hurt().await,
            8 => self.spoil_runtime(),
            9 => self.spoil_api(),
            10 => self.crash().await,
            11 => self.string_a_wire(),
            12 => self.take_something_down(),
            _ => self.reboot().await,
        }
    }

    fn say(&mut self, what: impl std::fmt::Display) {
        self.log.push(format!("{:?} {what}", self.sim.age()));
    }

    // === What users do ===

    fn new_name(&mut self) -> String {
        self.made += 1;
        format!("p{}", self.made)
    }

    fn new_pod(&mut self, name: &str) -> (Wish, Expect) {
        let pod = wish(name);
        match self.chance.below(8) {
            0 => (pod.container("app", APP), Expect::Runs),
            1 => (pod.container("a", APP).container("b", FLAKY), Expect::Runs),
            2 => {
                let pod = pod.init("first", INIT).sidecar("side", APP);
                (pod.container("a", APP).container("b", APP), Expect::Runs)
            }
            3 => (pod.restart("Never").container("job", JOB), Expect::Ends),
            4 => (pod.restart("OnFailure").container("job", JOB), Expect::Succeeds),
            5 => (pod.restart("Never").init("first", FAILS).container("job", JOB), Expect::Ends),
            6 => (pod.container("app", REMOTE), Expect::Runs),
            _ => (pod.grace(4).host_network().container("app", STUBBORN), Expect::Runs),
        }
    }

    async fn create(&mut self) {
        let name = self.new_name();
        let (wish, expect) = self.new_pod(&name);
        self.say(format_args!("create {name}: {}", wish.value()["spec"]));
        self.ask(wish, expect).await;
    }

    /// One of the API pods that may be touched, by its place in the list.
    fn some_pod(&mut self, which: fn(&Asked) -> bool) -> Option<usize> {
        let touchable = |asked: &Asked| !matches!(asked.wish.name(), "quiet" | "still");
        let places: Vec<usize> = (0..self.asked.len())
            .filter(|place| touchable(&self.asked[*place]) && which(&self.asked[*place]))
            .collect();
        if places.is_empty() { None } else { Some(*self.chance.of(&places)) }
    }

    async fn update(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let name = self.asked[place].wish.name().to_owned();
        let runs_app = self.asked[place].wish.value()["spec"]["containers"][0]["image"] == APP;
        if runs_app && self.chance.percent(60) {
            let wish = self.asked[place].wish.clone();
            let container = wish.value()["spec"]["containers"][0]["name"].as_str().unwrap();
            self.say(format_args!("new image for {name}/{container}"));
            if self.sim.set_image(&name, container, APP_2).await {
                self.asked[place].wish =
                    wish.clone().edit(|p| p["spec"]["containers"][0]["image"] = APP_2.into());
            }
        } else {
            let label = self.chance.below(1000).to_string();
            self.say(format_args!("new label for {name}"));
            self.sim.patch(&name, json!({ "metadata": { "labels": { "n": label } } })).await;
        }
    }

    async fn delete(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let asked = self.asked.remove(place);
        let name = asked.wish.name();
        let grace = *self.chance.of(&[None, None, Some(3), Some(0)]);
        self.say(format_args!("delete {name} within {grace:?}"));
        self.sim.delete(name, grace).await;
        if grace.is_none() && self.chance.percent(30) {
            self.sim.pass(Duration::from_millis(self.chance.below(3_000))).await;
            let grace = *self.chance.of(&[Some(2), Some(0)]);
            self.say(format_args!("delete {name} again within {grace:?}"));
            self.sim.delete(name, grace).await;
        }
    }

    /// Deletes a pod by force and asks for another one of its name at once.
    async fn replace(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_none()) else { return };
        let asked = self.asked.remove(place);
        let name = asked.wish.name().to_owned();
        self.say(format_args!("replace {name}"));
        self.sim.delete(&name, Some(0)).await;
        let (wish, expect) = self.new_pod(&name);
        self.ask(wish, expect).await;
    }

    fn write_manifest(&mut self) {
        let name = self.new_name();
        let wish = wish(&name).container("app", APP);
        let file = format!("{name}.json");
        self.say(format_args!("write {file}"));
        self.sim.write_manifest(&file, &wish.manifest());
        let (expect, unheld) = (Expect::Runs, Expect::Runs);
        self.asked.push(Asked { wish, uid: None, file: Some(file), expect, unheld });
    }

    fn edit_or_remove_manifest(&mut self) {
        let Some(place) = self.some_pod(|a| a.file.is_some()) else { return };
        let file = self.asked[place].file.clone().unwrap();
        match self.chance.below(3) {
            0 => {
                self.say(format_args!("edit {file}"));
                let image = *self.chance.of(&[APP, APP_2]);
                let wish = self.asked[place].wish.clone();
                let wish = wish.edit(|pod| pod["spec"]["containers"][0]["image"] = image.into());
                self.sim.write_manifest(&file, &wish.manifest());
                self.asked[place].wish = wish;
            }
            1 => {
                self.say(format_args!("remove {file}"));
                self.sim.remove_manifest(&file);
                self.asked.remove(place);
            }
            _ => {
                self.say(format_args!("spoil {file} and mend it"));
                self.sim.write_manifest(&file, "{ not a pod");
                let text = self.asked[place].wish.manifest();
                self.sim.write_manifest(&file, &text);
            }
        }
    }

    async fn hold_or_release(&mut self) {
        let holdable = |a: &Asked| a.file.is_none() && matches!(a.unheld, Expect::Runs);
        let Some(place) = self.some_pod(holdable) else { return };
        let name = self.asked[place].wish.name().to_owned();
        let (value, expect) = match self.asked[place].expect {
            Expect::Held => (json!(null), self.asked[place].unheld),
            Expect::Runs | Expect::Succeeds | Expect::Ends => (json!("wait"), Expect::Held),
        };
        self.say(format_args!("hold {name}: {value}"));
        let patch = json!({ "metadata": { "annotations": { "podwright/hold": value } } });
        if self.sim.patch(&name, patch).await {
            self.asked[place].expect = expect;
        }
    }

    // === What goes wrong ===

    /// Somebody interferes with a pod in the runtime.
    async fn hurt(&mut self) {
        let Some(place) = self.some_pod(|_| true) else { return };
        let asked = self.asked[place].clone();
        let name = asked.shown_as();
        let containers = asked.wish.lasting();
        let container = (*self.chance.of(&containers)).to_owned();
        let (what, done) = match self.chance.below(5) {
            0 => ("kills", self.sim.fake.kill_container(&name, &container, 1)),
            1 => ("runs out of memory in", self.sim.fake.oom_kill(&name, &container)),
            2 => ("forgets", self.sim.fake.forget_container(&name, &container)),
            3 => ("kills the sandbox around", self.sim.fake.kill_sandbox(&name)),
            _ => ("loses track of", self.sim.fake.lose_track_of(&name, &container)),
        };
        self.say(format_args!("the world {what} {name}/{container}: {done}"));
    }

    fn spoil_runtime(&mut self) {
        if self.chance.percent(15) {
            let fault = match self.chance.below(3) {
                0 => EventFault::Drop,
                1 => EventFault::Duplicate,
                _ => EventFault::Late(Duration::from_millis(self.chance.below(20_000))),
            };
            let first = 1 + self.chance.below(10);
            self.say(format_args!("the next {first} events: {fault:?}"));
            self.sim.fake.disturb_events(Rule::on_events(fault).first(first));
            return;
        }
        let rpc = *self.chance.of(&RPCS);
        let fault = self.runtime_fault();
        let first = 1 + self.chance.below(4);
        let mut rule = Rule::on(rpc, fault.clone()).first(first);
        let pod = self.some_pod(|_| true).filter(|_| self.chance.percent(40));
        if let Some(place) = pod {
            rule = rule.pod(self.asked[place].shown_as());
        }
        self.say(format_args!("the next {first} {rpc:?} (one pod: {}): {fault:?}", pod.is_some()));
        self.sim.fake.fail(rule);
    }

    fn runtime_fault(&mut self) -> Fault {
        let code = *self.chance.of(&[
            podwright_cri::fake::Code::Unknown,
            podwright_cri::fake::Code::Unavailable,
            podwright_cri::fake::Code::DeadlineExceeded,
            podwright_cri::fake::Code::ResourceExhausted,
        ]);
        let wait = Duration::from_millis(self.chance.below(15_000));
        match self.chance.below(9) {
            0 => Fault::Error(code, "a fault of the simulation".into()),
            1 => Fault::DoneButError(code, "a fault of the simulation".into()),
            2 => Fault::Delay(wait),
            3 => Fault::Hang,
            4 => Fault::Late(wait),
            5 => Fault::Disconnect,
            6 => Fault::DoneButDisconnect,
            7 => Fault::Twice,
            _ => Fault::Overtaken(wait),
        }
    }

    fn spoil_api(&mut self) {
        if self.chance.percent(15) {
            self.say("the watches break");
            return self.sim.api.break_watches();
        }
        let (verb, resource) = *self.chance.of(&REQUESTS);
        let fault = self.chance.of(&ApiFault::each()).clone();
        let first = 1 + self.chance.below(5);
        self.say(format_args!("the next {first} {verb} {resource}: {fault:?}"));
        self.sim.api.fail(ApiRule::on(verb, resource, fault).first(first));
    }

    async fn crash(&mut self) {
        let away = Duration::from_millis(self.chance.below(6_000));
        self.say(format_args!("the agent dies for {away:?}"));
        self.sim.crash().await;
        self.sim.pass(away).await;
        self.sim.start().await;
    }

    /// The agent will die at one of its next steps.
    fn string_a_wire(&mut self) {
        let moment = *self.chance.of(&[Moment::Before, Moment::After]);
        let at = 1 + self.chance.below(12);
        let counted = *self.chance.of(&[Counted::Changes, Counted::Files]);
        self.say(format_args!("the agent will die at step {at} of {counted:?}, {moment:?}"));
        self.sim.trip(at, moment, counted);
    }

    fn take_something_down(&mut self) {
        let away = Duration::from_millis(self.chance.below(45_000));
        if self.chance.percent(50) {
            self.say(format_args!("the runtime is down for {away:?}"));
            let fake = self.sim.fake.clone();
            fake.go_down();
            tokio::spawn(async move {
                tokio::time::sleep(away).await;
                fake.come_up();
            });
        } else {
            self.say(format_args!("the API is down for {away:?}"));
            let api = self.sim.api.clone();
            api.go_down();
            tokio::spawn(async move {
                tokio::time::sleep(away).await;
                api.come_up();
            });
        }
    }

    async fn reboot(&mut self) {
        self.say("the machine is started again");
        // What ran on the machine does not survive it; until here it should have.
        self.disturbed.extend(self.disturbances());
        self.quiet.clear();
        self.sim.reboot().await;
    }

    fn disturbances(&self) -> Vec<String> {
        self.quiet.iter().flat_map(|uid| laws::disturbances(&self.sim, uid)).collect()
    }

    // === What must come of it ===

    async fn calm_down(&mut self) {
        self.say("all faults end");
        self.sim.fake.heal();
        self.sim.fake.come_up();
        self.sim.api.heal();
        self.raise_the_dead().await;
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

    /// Everything that is not as it should be in the end, or ever was not as it should.
    fn problems(&self) -> Vec<String> {
        let mut problems = laws::broken(&self.sim);
        problems.extend(self.unsettled());
        problems.extend(self.disturbed.clone());
        problems.extend(self.disturbances());
        problems
    }

    /// What is not yet as the user asked for.
    fn unsettled(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut living = Vec::new();
        let mut names = Vec::new();
        for asked in &self.asked {
            let name = asked.shown_as();
            problems.extend(self.problem_of(asked, &name, &mut living));
            names.push(name);
        }
        for pod in self.sim.record.pods() {
            let name = pod.metadata.name.clone().unwrap_or_default();
            if !names.contains(&name) {
                problems.push(format!("{name} was deleted and is still in the API"));
            }
        }
        problems.extend(laws::leftovers(&self.sim, &living));
        problems
    }

    fn problem_of(&self, asked: &Asked, name: &str, living: &mut Vec<String>) -> Option<String> {
        let Some(pod) = self.sim.record.pod(name) else {
            return Some(format!("{name} is not in the API"));
        };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if asked.uid.as_ref().is_some_and(|asked| *asked != uid) {
            return Some(format!("{name} is another pod in the API"));
        }
        let phase = record::phase(&pod);
        let snapshot = self.sim.fake.snapshot();
        let mine = |pod: &podwright_cri::fake::PodRef| {
            pod.is(name) && asked.uid.as_ref().is_none_or(|uid| pod.uid.as_str() == uid)
        };
        let running: Vec<&str> = snapshot
            .containers
            .iter()
            .filter(|c| mine(&c.pod) && c.state == ContainerState::Running)
            .map(|c| c.name.as_str())
            .collect();
        match asked.expect {
            Expect::Runs => {
                let node_uid = snapshot.sandboxes.iter().rfind(|s| mine(&s.pod) && s.ready);
                living.extend(node_uid.map(|sandbox| sandbox.pod.uid.to_string()));
                let mut want = asked.wish.lasting();
                let mut have = running;
                want.sort_unstable();
                have.sort_unstable();
                if want != have {
                    return Some(format!("{name} should run {want:?} and runs {have:?}"));
                }
                if phase != Phase::Running || !record::is_ready(&pod) {
                    return Some(format!("{name} runs and is {} to the API", phase.as_str()));
                }
                stale_image(&asked.wish, &pod).map(|c| format!("{name}: {c} has an old image"))
            }
            Expect::Succeeds if phase == Phase::Succeeded && running.is_empty() => None,
            Expect::Ends if phase.is_terminal() && running.is_empty() => None,
            Expect::Held if phase == Phase::Pending && running.is_empty() => {
                // Its cgroup and its folder may stay for when it is released.
                living.push(uid);
                None
            }
            Expect::Succeeds | Expect::Ends | Expect::Held => Some(format!(
                "{name} should be {:?}, is {} and runs {running:?}",
                asked.expect,
                phase.as_str()
            )),
        }
    }

    /// What was done and what came of it, for comparing two runs of one seed.
    fn trace(&self) -> Vec<String> {
        let mut trace = self.log.clone();
        trace.extend(self.sim.fake.calls().iter().map(ToString::to_string));
        let shown = self.sim.record.sightings();
        trace.extend(shown.iter().map(|s| {
            let phase = record::phase(&s.pod).as_str();
            format!("{:?} {} {phase} {}", s.at, s.name(), record::is_ready(&s.pod))
        }));
        trace
    }
}

/// A container whose status does not show the image that was asked for.
fn stale_image(wish: &Wish, pod: &k8s_openapi::api::core::v1::Pod) -> Option<String> {
    let containers = wish.value()["spec"]["containers"].as_array()?;
    let shown = record::containers(pod);
    containers.iter().find_map(|c| {
        let name = c["name"].as_str()?;
        let status = shown.iter().find(|status| status.name == name)?;
        (Some(status.image.as_str()) != c["image"].as_str()).then(|| name.to_owned())
    })
}

/// Calls that an agent makes.
pub const RPCS: [Rpc; 16] = [
    Rpc::Version,
    Rpc::Status,
    Rpc::RunPodSandbox,
    Rpc::StopPodSandbox,
    Rpc::RemovePodSandbox,
    Rpc::ListPodSandbox,
    Rpc::PodSandboxStatus,
    Rpc::CreateContainer,
    Rpc::StartContainer,
    Rpc::StopContainer,
    Rpc::RemoveContainer,
    Rpc::ListContainers,
    Rpc::ContainerStatus,
    Rpc::PullImage,
    Rpc::ImageStatus,
    Rpc::Subscribe,
];

/// Requests that an agent makes about pods.
pub const REQUESTS: [(Verb, &str); 10] = [
    (Verb::List, "pods"),
    (Verb::Watch, "pods"),
    (Verb::Get, "pods"),
    (Verb::Create, "pods"),
    (Verb::Delete, "pods"),
    (Verb::Patch, "pods/status"),
    (Verb::Get, "nodes"),
    (Verb::Create, "events"),
    (Verb::List, "services"),
    (Verb::Watch, "services"),
];
