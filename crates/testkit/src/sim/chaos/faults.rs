//! Faults of a chaos schedule: of the runtime, the API server, the disk, the clock and the agent.

use std::time::Duration;

use jiff::SignedDuration;
use podwright_fake_runtime::{EventFault, Fault, Rpc, Rule};
use podwright_host::change::guard::DiskFault;

use super::Chaos;
use crate::sim::api::{ApiFault, ApiRule, Verb};
use crate::sim::crash_point::{Counted, Moment};

impl Chaos {
    /// Interferes with a pod in the runtime.
    pub(super) async fn hurt(&mut self) {
        let Some(place) = self.some_pod(|_| true) else { return };
        let requested = self.requested[place].clone();
        let name = requested.shown_as();
        let containers = requested.test_pod.lasting();
        let container = (*self.random.of(&containers)).to_owned();
        let (what, done) = match self.random.below(5) {
            0 => ("kills", self.sim.fake.kill_container(&name, &container, 1)),
            1 => ("OOM kill in", self.sim.fake.oom_kill(&name, &container)),
            2 => ("forgets", self.sim.fake.remove_container_externally(&name, &container)),
            3 => ("kills the sandbox around", self.sim.fake.kill_sandbox(&name)),
            _ => ("loses track of", self.sim.fake.lose_state_of(&name, &container)),
        };
        self.log_action(format_args!("external change: {what} {name}/{container}: {done}"));
    }

    pub(super) fn inject_runtime_fault(&mut self) {
        if self.random.percent(15) {
            let fault = match self.random.below(3) {
                0 => EventFault::Drop,
                1 => EventFault::Duplicate,
                _ => EventFault::Late(Duration::from_millis(self.random.below(20_000))),
            };
            let first = 1 + self.random.below(10);
            self.log_action(format_args!("the next {first} events: {fault:?}"));
            self.sim.fake.disturb_events(Rule::on_events(fault).first(first));
            return;
        }
        let rpc = *self.random.of(&RPCS);
        let fault = self.runtime_fault();
        let no_response = matches!(fault, Fault::Hang | Fault::Late(_));
        self.hung_pulls |= rpc == Rpc::PullImage && no_response;
        let first = 1 + self.random.below(4);
        let mut rule = Rule::on(rpc, fault.clone()).first(first);
        let pod = self.some_pod(|_| true).filter(|_| self.random.percent(40));
        if let Some(place) = pod {
            rule = rule.pod(self.requested[place].shown_as());
        }
        self.log_action(format_args!(
            "the next {first} {rpc:?} (one pod: {}): {fault:?}",
            pod.is_some()
        ));
        self.sim.fake.fail(rule);
    }

    fn runtime_fault(&mut self) -> Fault {
        let code = *self.random.of(&[
            podwright_fake_runtime::Code::Unknown,
            podwright_fake_runtime::Code::Unavailable,
            podwright_fake_runtime::Code::DeadlineExceeded,
            podwright_fake_runtime::Code::ResourceExhausted,
        ]);
        let wait = Duration::from_millis(self.random.below(15_000));
        match self.random.below(9) {
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

    pub(super) fn inject_api_fault(&mut self) {
        if self.random.percent(15) {
            self.log_action("the watches break");
            return self.sim.api.break_watches();
        }
        let (verb, resource) = match self.random.below(10) {
            0 => (Verb::Get, "configmaps"),
            _ => *self.random.of(&REQUESTS),
        };
        let mut faults = ApiFault::each();
        faults.extend(REFUSALS.map(ApiFault::Error));
        let fault = self.random.of(&faults).clone();
        let first = 1 + self.random.below(5);
        self.log_action(format_args!("the next {first} {verb} {resource}: {fault:?}"));
        self.sim.api.fail(ApiRule::on(verb, resource, fault).first(first));
    }

    pub(super) async fn crash(&mut self) {
        let away = Duration::from_millis(self.random.below(6_000));
        self.log_action(format_args!("the agent is down for {away:?}"));
        self.sim.crash().await;
        self.sim.pass(away).await;
        self.sim.start().await;
    }

    /// The agent will be killed at one of its next steps.
    pub(super) fn string_a_wire(&mut self) {
        let moment = *self.random.of(&[Moment::Before, Moment::After]);
        let at = 1 + self.random.below(12);
        let counted = *self.random.of(&[Counted::Changes, Counted::Files]);
        self.log_action(format_args!(
            "the agent will be killed at step {at} of {counted:?}, {moment:?}"
        ));
        self.sim.trip(at, moment, counted);
    }

    pub(super) fn take_something_down(&mut self) {
        let away = Duration::from_millis(self.random.below(45_000));
        if self.random.percent(50) {
            self.log_action(format_args!("the runtime is down for {away:?}"));
            let fake = self.sim.fake.clone();
            fake.go_down();
            tokio::spawn(async move {
                tokio::time::sleep(away).await;
                fake.come_up();
            });
        } else {
            self.log_action(format_args!("the API is down for {away:?}"));
            let api = self.sim.api.clone();
            api.go_down();
            tokio::spawn(async move {
                tokio::time::sleep(away).await;
                api.come_up();
            });
        }
    }

    /// By less than a pod with a deadline may be late in the end.
    pub(super) fn step_clock(&mut self) {
        let seconds = *self.random.of(&[-60, -10, -1, 1, 10, 60]);
        self.log_action(format_args!("the wall clock steps by {seconds} s"));
        self.sim.clock.step_wall(SignedDuration::from_secs(seconds));
    }

    pub(super) async fn reboot(&mut self) {
        self.log_action("the machine reboots");
        // Containers do not survive the reboot; until here they should have.
        self.disturbed.extend(self.disturbances());
        self.quiet.clear();
        self.sim.reboot().await;
    }

    /// Checkpoints, volumes and pod directories cannot be written.
    pub(super) fn inject_disk_fault(&mut self) {
        let fault = *self.random.of(&[DiskFault::Full, DiskFault::Broken]);
        let first = 1 + self.random.below(20);
        self.log_action(format_args!("the next {first} writes to the disk: {fault:?}"));
        self.sim.environment.fail_writes(fault, first);
    }
}

/// Responses of a server that does not accept the agent's credentials, or lost an object.
const REFUSALS: [u16; 3] = [401, 403, 404];

/// Calls that an agent makes.
const RPCS: [Rpc; 16] = [
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
const REQUESTS: [(Verb, &str); 10] = [
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
