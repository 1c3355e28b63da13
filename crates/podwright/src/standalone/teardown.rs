//! Teardown of the standalone node: removes what `up` created, in reverse order.
//!
//! It depends on what exists, not on what `up` intended, and a failed step does not stop the
//! others. First everything is stopped gracefully; then what remains is killed and leftovers are
//! removed. Only what is left after that is an error, and then the record is kept, so that `down`
//! can be repeated.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use podwright_cri::{Client, Endpoint, Timeouts};

use super::agent::{Agent, Difference, Purpose, Supervisor};
use super::containerd::{Containerd, Started};
use super::isolation::Isolation;
use super::lock::NodeLock;
use super::pods::{self, EndedPods, Grace, PodSelection};
use super::shared_network::{LeaveOutcome, SharedNetwork};
use super::stopping::{self, Stopped};
use super::{Layout, Record, filter, leftovers, state_dir};

const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// After this time without a response a running agent counts as hanging.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Time for an agent that was just started to respond, on a small machine.
const AGENT_START_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum time between SIGTERM and SIGKILL for a hanging agent.
const MIN_KILL_TIMEOUT: Duration = Duration::from_secs(2);
const RUNTIME_STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// A runtime call that takes longer is considered hung.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How pods are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// With their own grace periods, limited to this if given.
    Grace(Option<Duration>),
    /// Killed after one second.
    Now,
}

/// Whether there was anything to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stopped,
    NothingHere,
}

/// Stops everything and removes it from the machine. The data is kept. `say` prints progress.
pub async fn down(
    layout: &Layout,
    lock: &NodeLock,
    stop_mode: StopMode,
    say: impl Fn(&str),
) -> anyhow::Result<Outcome> {
    state_dir::check_access(layout)?;
    let Some(record) = layout.record()? else {
        say("nothing to stop here");
        return Ok(Outcome::NothingHere);
    };
    layout.check_instance()?;
    let mut failures = Failures::default();
    if Agent::of(layout).note()?.is_some_and(|note| note.supervisor == Supervisor::External) {
        say("the agent runs in the foreground; stop it where it was started as well \
             (systemctl stop podwright-up), or it will be restarted");
    }
    let mut pods = Pods::default();
    let grace = pods.stop_by_agent(layout, lock, &record, stop_mode, &say).await;
    if failures.record(Agent::of(layout).daemon().stop(AGENT_STOP_TIMEOUT)) == Some(true) {
        say("agent stopped");
    }
    if let Some(endpoint) = &record.up_options.runtime {
        failures
            .record(end_pods_in_existing_runtime(endpoint, &record, grace, &mut pods, &say).await);
    }
    failures.record(stop_private_runtime(layout, lock, &record, grace, &mut pods, &say).await);
    failures.record(leftovers::end_shims(layout));
    failures.record(leftovers::remove_cgroup(&record.cgroup_root).await);
    let mut left = failures.record(leftovers::unmount(layout)).unwrap_or_default();
    failures.record(leftovers::remove_shim_sockets(layout));
    if record.up_options.runtime.is_none() {
        failures.record(leftovers::remove_network(layout, &record.network));
        failures.record(filter::remove_network_rules(&record.network.bridge));
        failures.record(Isolation::new(layout.instance(), record.network.clone()).remove());
        let left = SharedNetwork::here().and_then(|shared_network| shared_network.leave(layout));
        if let Some(LeaveOutcome::Others(nodes)) = failures.record(left) {
            say(&format!(
                "net.ipv4.ip_forward and the host port chains are kept; other nodes on this \
                 machine: {nodes}"
            ));
        }
    }
    if failures.is_empty() {
        left.extend(failures.record(leftovers::remove_run_directory(layout)).unwrap_or_default());
    }
    if failures.is_empty() {
        failures.record(layout.forget_record());
    }
    failures.outcome(layout)?;
    if !left.is_empty() {
        say(&format!("left in place: {}", left.join(", ")));
    }
    Ok(Outcome::Stopped)
}

/// "1 pod", "3 pods".
fn counted(pods: usize) -> String {
    format!("{pods} pod{}", if pods == 1 { "" } else { "s" })
}

/// Pods that were stopped by the agent.
#[derive(Default)]
struct Pods {
    by_agent: Stopped,
    agent_used: bool,
}

impl Pods {
    /// Lets the agent stop the pods, if possible. Returns the grace period for pods that it did not
    /// stop.
    async fn stop_by_agent(
        &mut self,
        layout: &Layout,
        lock: &NodeLock,
        record: &Record,
        stop_mode: StopMode,
        say: &impl Fn(&str),
    ) -> Grace {
        let timeout = match stop_mode {
            StopMode::Grace(timeout) => timeout,
            StopMode::Now => return Grace::AtOnce,
        };
        let time = TimeBudget { began: Instant::now(), timeout };
        let own = || Grace::Own { at_most: time.left().unwrap_or(Duration::MAX) };
        match agent_for_stopping(layout, lock, record, time, say).await {
            Ok(AgentLookup::Ready) => {}
            Ok(AgentLookup::NoPods) => return own(),
            Err(error) => {
                say(&format!("the agent cannot stop the pods: {error:#}"));
                return own();
            }
        }
        match stopping::stop_pods(layout, time.left(), say).await {
            Ok(stopped) => {
                self.agent_used = true;
                let late = !stopped.late.is_empty();
                self.by_agent = stopped;
                if late {
                    let names = listed(&self.by_agent.late);
                    say(&format!("not stopped in time, killing: {names}"));
                    return Grace::AtOnce;
                }
                own()
            }
            Err(error) => {
                say(&format!("the agent did not stop the pods: {error:#}"));
                own()
            }
        }
    }

    /// Prints how many pods were stopped, and the limits of a stop without the agent.
    fn report(&self, ended: &EndedPods, grace: Grace, location: &str, say: &impl Fn(&str)) {
        let all: BTreeSet<&String> = self.by_agent.ran.iter().chain(&ended.ran).collect();
        let gracefully = matches!(grace, Grace::Own { .. });
        if gracefully && !self.agent_used && !ended.ran.is_empty() {
            say(
                "stopped without the agent: all containers at the same time, with the grace period \
                 of their pod",
            );
            if !ended.hooks.is_empty() {
                say(&format!("preStop hooks were not run: {}", listed(&ended.hooks)));
            }
        }
        if !all.is_empty() {
            say(&format!("{} stopped{location}", counted(all.len())));
        }
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Remaining time of `--timeout`, which includes starting an agent if necessary.
#[derive(Clone, Copy)]
struct TimeBudget {
    began: Instant,
    timeout: Option<Duration>,
}

impl TimeBudget {
    fn left(self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.began.elapsed()))
    }

    /// `timeout`, limited to a third of the remaining time: pods need the rest.
    fn share(self, timeout: Duration) -> Duration {
        self.left().map_or(timeout, |left| timeout.min(left / 3))
    }

    /// `timeout`, limited to the remaining time.
    fn at_most(self, timeout: Duration) -> Duration {
        self.left().map_or(timeout, |left| left.min(timeout))
    }
}

/// Outcome of [`agent_for_stopping`].
enum AgentLookup {
    /// The agent responds.
    Ready,
    /// No agent is running and none is needed, because no pod is running.
    NoPods,
}

/// Finds the agent, or starts it if pods are running without one: only the agent can run their
/// hooks. An agent that does not respond, or is of another build, is replaced.
async fn agent_for_stopping(
    layout: &Layout,
    lock: &NodeLock,
    record: &Record,
    time: TimeBudget,
    say: &impl Fn(&str),
) -> anyhow::Result<AgentLookup> {
    let agent = Agent::of(layout);
    let mut replaced = false;
    if let Some(process) = agent.daemon().running()? {
        // The agent starts a containerd that exited only while no command works on the node.
        if record.up_options.runtime.is_none() && layout.runtime_state().exists() {
            let containerd = Containerd::new(layout);
            if containerd.start(&record.network, lock)? == Started::Now {
                containerd.ready().await?;
            }
        }
        let difference = agent.difference(&process, &record.up_options)?;
        let supervisor = agent.note()?.map_or(Supervisor::Podwright, |note| note.supervisor);
        let unfit = match difference {
            Some(Difference::Build) if supervisor == Supervisor::Podwright => {
                Some("is of another build")
            }
            _ if stopping::wait_until_responding(layout, time.share(RESPONSE_TIMEOUT)).await? => {
                return Ok(AgentLookup::Ready);
            }
            // A killed process is still there for a moment.
            _ if agent.daemon().running()?.is_none() => None,
            _ => Some("does not respond"),
        };
        match (unfit, supervisor) {
            (None, _) => {}
            (Some(unfit), Supervisor::Podwright) => {
                say(&format!("the agent {unfit}; replacing it to stop the pods"));
                replaced = true;
                agent.daemon().stop(time.share(AGENT_STOP_TIMEOUT).max(MIN_KILL_TIMEOUT))?;
            }
            (Some(unfit), Supervisor::External) => bail!(
                "it {unfit} and runs in the foreground as process {}; check where it was started",
                process.pid
            ),
        }
        agent.forget();
    }
    let client = match &record.up_options.runtime {
        Some(endpoint) => Client::new(&endpoint.parse()?, Timeouts { call: CALL_TIMEOUT }),
        None if !layout.runtime_state().exists() => return Ok(AgentLookup::NoPods),
        None => {
            let containerd = Containerd::new(layout);
            containerd.start(&record.network, lock)?;
            containerd.ready().await?;
            containerd.client()?
        }
    };
    let selection = match &record.up_options.runtime {
        Some(_) => PodSelection::Below(&record.cgroup_root),
        None => PodSelection::All,
    };
    if !pods::any_alive(&client, selection).await? {
        return Ok(AgentLookup::NoPods);
    }
    if !replaced {
        say("the agent is not running; starting it to stop the pods");
    }
    agent.start(lock, Purpose::StopPods)?;
    if !stopping::wait_until_responding(layout, time.at_most(AGENT_START_TIMEOUT)).await? {
        bail!("it does not respond; see the end of {}", layout.agent_log().display());
    }
    Ok(AgentLookup::Ready)
}

/// Errors of failed steps.
#[derive(Default)]
struct Failures(Vec<anyhow::Error>);

impl Failures {
    fn record<T>(&mut self, outcome: anyhow::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error)).ok()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn outcome(self, layout: &Layout) -> anyhow::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let errors: Vec<String> = self.0.iter().map(|error| format!("\n  {error:#}")).collect();
        bail!(
            "cannot remove everything:{}\nFix: resolve these errors and run again: \
             podwright down --state-dir {}",
            errors.concat(),
            layout.state().display()
        )
    }
}

/// Stops the node's pods in an existing runtime, which keeps running.
async fn end_pods_in_existing_runtime(
    endpoint: &str,
    record: &Record,
    grace: Grace,
    pods: &mut Pods,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    let parsed: Endpoint = endpoint.parse()?;
    let client = Client::new(&parsed, Timeouts { call: CALL_TIMEOUT });
    let ended = pods::end(&client, PodSelection::Below(&record.cgroup_root), grace).await;
    pods.report(&ended, grace, &format!(" in {endpoint}"), say);
    let errors: Vec<String> = ended.errors.iter().map(|error| format!("{error:#}")).collect();
    match errors.as_slice() {
        [] => Ok(()),
        errors => {
            bail!("cannot remove pods from the runtime {endpoint}: {}", errors.join("; "))
        }
    }
}

/// Stops the private containerd, if there is one, after its pods. One that exited is started again,
/// because only containerd can remove its sandboxes properly.
async fn stop_private_runtime(
    layout: &Layout,
    lock: &NodeLock,
    record: &Record,
    grace: Grace,
    pods: &mut Pods,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    let containerd = Containerd::new(layout);
    if layout.runtime_state().exists() {
        match end_private_pods(&containerd, lock, record, grace).await {
            Ok(ended) => {
                pods.report(&ended, grace, "", say);
                for error in ended.errors {
                    say(&format!("stopping by force: {error:#}"));
                }
            }
            Err(error) => say(&format!("stopping pods by force: {error:#}")),
        }
    }
    if containerd.daemon().stop(RUNTIME_STOP_TIMEOUT)? {
        say("containerd stopped");
    }
    Ok(())
}

async fn end_private_pods(
    containerd: &Containerd<'_>,
    lock: &NodeLock,
    record: &Record,
    grace: Grace,
) -> anyhow::Result<EndedPods> {
    containerd.start(&record.network, lock)?;
    containerd.ready().await?;
    let client = Client::new(&containerd.endpoint()?, Timeouts { call: CALL_TIMEOUT });
    Ok(pods::end(&client, PodSelection::All, grace).await)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_counts_against_the_timeout() {
        let of = |elapsed: u64, timeout: Option<u64>| TimeBudget {
            began: Instant::now().checked_sub(Duration::from_secs(elapsed)).unwrap(),
            timeout: timeout.map(Duration::from_secs),
        };
        let minute = Duration::from_secs(60);
        assert_eq!((of(90, None).left(), of(90, None).at_most(minute)), (None, minute));
        let late = of(90, Some(30));
        assert_eq!((late.left(), late.at_most(minute)), (Some(Duration::ZERO), Duration::ZERO));
        assert!(of(0, Some(30)).share(minute) <= Duration::from_secs(10));
        assert!(of(20, Some(30)).at_most(minute) <= Duration::from_secs(10));
    }

    #[test]
    fn pod_count_is_pluralized() {
        assert_eq!([0, 1, 9].map(counted), ["0 pods", "1 pod", "9 pods"]);
    }
}
