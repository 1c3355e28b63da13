//! Takes away what `up` made: the same things, in the opposite order.
//!
//! It goes by what is there, not by what was once intended, and whatever cannot be done keeps
//! nothing else from being done. First everything is asked to end; then whatever did not is made
//! to, and swept up. Only what is left after that is an error, and then the record stays, so that
//! it can be tried again.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::bail;
use podwright_cri::{Client, Endpoint, Timeouts};

use super::agent::{Agent, Difference, Keeper, Purpose};
use super::containerd::Containerd;
use super::lock::NodeLock;
use super::pods::{self, Ended, Grace, Whose};
use super::shared::{Left, Shared};
use super::stopping::{self, Stopped};
use super::{Layout, Record, filter, state_dir, sweep};

const AGENT_PATIENCE: Duration = Duration::from_secs(15);
/// How long an agent that runs may take to answer before it counts as one that hangs.
const ANSWER_PATIENCE: Duration = Duration::from_secs(15);
/// How long an agent may take to answer that was just started, on a small machine.
const AGENT_START: Duration = Duration::from_secs(60);
/// What an agent that hangs has between SIGTERM and SIGKILL, however little time is left.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
const RUNTIME_PATIENCE: Duration = Duration::from_secs(10);
/// A call that takes longer than this does not come back.
const CALL_PATIENCE: Duration = Duration::from_secs(20);

/// How much time pods get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// Their own grace periods, but no longer than this if it is given.
    Grace(Option<Duration>),
    /// A moment.
    Now,
}

/// Whether there was anything to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Stopped,
    NothingHere,
}

/// Stops everything and removes it from the machine. The data stays. `say` tells progress.
pub async fn down(
    layout: &Layout,
    lock: &NodeLock,
    haste: Haste,
    say: impl Fn(&str),
) -> anyhow::Result<Outcome> {
    state_dir::check_access(layout)?;
    let Some(record) = layout.record()? else {
        say("nothing to stop here");
        return Ok(Outcome::NothingHere);
    };
    layout.check_instance()?;
    let mut failures = Failures::default();
    if Agent::of(layout).note()?.is_some_and(|note| note.keeper == Keeper::Other) {
        say("the agent runs in the foreground: end it where it was started as well \
             (systemctl stop podwright-up), or it is started again");
    }
    let mut pods = Pods::default();
    let grace = pods.stop_by_agent(layout, lock, &record, haste, &say).await;
    if failures.unless_done(Agent::of(layout).daemon().stop(AGENT_PATIENCE)) == Some(true) {
        say("agent stopped");
    }
    if let Some(endpoint) = &record.wishes.runtime {
        failures.unless_done(end_guests(endpoint, &record, grace, &mut pods, &say).await);
    }
    failures.unless_done(stop_private_runtime(layout, lock, &record, grace, &mut pods, &say).await);
    failures.unless_done(sweep::end_shims(layout));
    failures.unless_done(sweep::remove_cgroup(&record.cgroup_root).await);
    let mut left = failures.unless_done(sweep::unmount(layout)).unwrap_or_default();
    failures.unless_done(sweep::remove_shim_sockets(layout));
    if record.wishes.runtime.is_none() {
        failures.unless_done(sweep::remove_network(layout, &record.network));
        failures.unless_done(filter::forget_network(&record.network.bridge));
        let left = Shared::here().and_then(|shared| shared.leave(layout));
        if let Some(Left::Others(nodes)) = failures.unless_done(left) {
            say(&format!(
                "net.ipv4.ip_forward and the chains for host ports stay as they are: other nodes \
                 on this machine: {nodes}"
            ));
        }
    }
    if failures.is_empty() {
        left.extend(failures.unless_done(sweep::remove_run_directory(layout)).unwrap_or_default());
    }
    if failures.is_empty() {
        failures.unless_done(layout.forget_record());
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

/// Which pods were stopped, so far, and by whom.
#[derive(Default)]
struct Pods {
    by_agent: Stopped,
    asked_agent: bool,
}

impl Pods {
    /// Lets the agent stop the pods, if it is to and can. Returns what is left to those that it
    /// did not stop.
    async fn stop_by_agent(
        &mut self,
        layout: &Layout,
        lock: &NodeLock,
        record: &Record,
        haste: Haste,
        say: &impl Fn(&str),
    ) -> Grace {
        let timeout = match haste {
            Haste::Grace(timeout) => timeout,
            Haste::Now => return Grace::AtOnce,
        };
        let time = Time { began: Instant::now(), timeout };
        let own = || Grace::Own { at_most: time.left().unwrap_or(Duration::MAX) };
        match agent_for_stopping(layout, lock, record, time, say).await {
            Ok(Found::Yes) => {}
            Ok(Found::NothingRuns) => return own(),
            Err(error) => {
                say(&format!("the agent cannot be asked to stop the pods: {error:#}"));
                return own();
            }
        }
        match stopping::stop_pods(layout, time.left(), say).await {
            Ok(stopped) => {
                self.asked_agent = true;
                let late = !stopped.late.is_empty();
                self.by_agent = stopped;
                if late {
                    let names = listed(&self.by_agent.late);
                    say(&format!("still running when their time was over, now killed: {names}"));
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

    /// What was ended without the agent, and what that means.
    fn tell(&self, ended: &Ended, grace: Grace, place: &str, say: &impl Fn(&str)) {
        let all: BTreeSet<&String> = self.by_agent.ran.iter().chain(&ended.ran).collect();
        let gracefully = matches!(grace, Grace::Own { .. });
        if gracefully && !self.asked_agent && !ended.ran.is_empty() {
            say("stopped without the agent: containers got the grace period of their pod, all at \
                 the same time");
            if !ended.hooks.is_empty() {
                say(&format!("preStop hooks were not run: {}", listed(&ended.hooks)));
            }
        }
        if !all.is_empty() {
            say(&format!("{} stopped{place}", counted(all.len())));
        }
    }
}

fn listed(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// What `--timeout` leaves. All counts against it, an agent that has to be started included.
#[derive(Clone, Copy)]
struct Time {
    began: Instant,
    timeout: Option<Duration>,
}

impl Time {
    fn left(self) -> Option<Duration> {
        self.timeout.map(|timeout| timeout.saturating_sub(self.began.elapsed()))
    }

    /// As long as this, but no longer than a third of what is left: pods need the rest.
    fn share(self, patience: Duration) -> Duration {
        self.left().map_or(patience, |left| patience.min(left / 3))
    }

    /// As long as this, but no longer than what is left.
    fn at_most(self, patience: Duration) -> Duration {
        self.left().map_or(patience, |left| left.min(patience))
    }
}

/// Whether there is an agent to ask.
enum Found {
    Yes,
    /// There is none, and none is needed.
    NothingRuns,
}

/// Finds the agent, or starts it if it is not running and pods are: nobody else knows their hooks.
/// One that cannot be asked makes room for it.
async fn agent_for_stopping(
    layout: &Layout,
    lock: &NodeLock,
    record: &Record,
    time: Time,
    say: &impl Fn(&str),
) -> anyhow::Result<Found> {
    let agent = Agent::of(layout);
    let running = agent.daemon().running()?;
    let replaced = running.is_some();
    if let Some(process) = running {
        let difference = agent.difference(&process, &record.wishes)?;
        let keeper = agent.note()?.map_or(Keeper::Us, |note| note.keeper);
        let unfit = match difference {
            Some(Difference::Build) if keeper == Keeper::Us => "is of another build",
            _ if stopping::answers(layout, time.share(ANSWER_PATIENCE)).await? => {
                return Ok(Found::Yes);
            }
            _ => "does not answer",
        };
        match keeper {
            Keeper::Us => say(&format!("the agent {unfit}; it is replaced to stop the pods")),
            Keeper::Other => bail!(
                "it {unfit} and runs in the foreground, as process {}; see where it was started",
                process.pid
            ),
        }
        agent.daemon().stop(time.share(AGENT_PATIENCE).max(KILL_PATIENCE))?;
        agent.forget();
    }
    let client = match &record.wishes.runtime {
        Some(endpoint) => Client::new(&endpoint.parse()?, Timeouts { call: CALL_PATIENCE }),
        None if !layout.runtime_state().exists() => return Ok(Found::NothingRuns),
        None => {
            let containerd = Containerd::new(layout);
            containerd.start(&record.network, lock)?;
            containerd.ready().await?;
            containerd.client()?
        }
    };
    let whose = match &record.wishes.runtime {
        Some(_) => Whose::Below(&record.cgroup_root),
        None => Whose::All,
    };
    if !pods::any_alive(&client, whose).await? {
        return Ok(Found::NothingRuns);
    }
    if !replaced {
        say("the agent is not running; starting it to stop the pods");
    }
    agent.start(lock, Purpose::StopPods)?;
    if !stopping::answers(layout, time.at_most(AGENT_START)).await? {
        bail!("it does not answer; see the end of {}", layout.agent_log().display());
    }
    Ok(Found::Yes)
}

/// What could not be done.
#[derive(Default)]
struct Failures(Vec<anyhow::Error>);

impl Failures {
    fn unless_done<T>(&mut self, outcome: anyhow::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.0.push(error)).ok()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn outcome(self, layout: &Layout) -> anyhow::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let told: Vec<String> = self.0.iter().map(|error| format!("\n  {error:#}")).collect();
        bail!(
            "not everything could be taken down:{}\nsee to it and try again: \
             podwright down --state-dir {}",
            told.concat(),
            layout.state().display()
        )
    }
}

/// Ends our pods in a runtime that was there before us, and stays.
async fn end_guests(
    endpoint: &str,
    record: &Record,
    grace: Grace,
    pods: &mut Pods,
    say: &impl Fn(&str),
) -> anyhow::Result<()> {
    let parsed: Endpoint = endpoint.parse()?;
    let client = Client::new(&parsed, Timeouts { call: CALL_PATIENCE });
    let ended = pods::end(&client, Whose::Below(&record.cgroup_root), grace).await;
    pods.tell(&ended, grace, &format!(" in {endpoint}"), say);
    let told: Vec<String> = ended.troubles.iter().map(|error| format!("{error:#}")).collect();
    match told.as_slice() {
        [] => Ok(()),
        told => bail!("pods stay in the runtime {endpoint}: {}", told.join("; ")),
    }
}

/// Stops the private containerd, if there is one, after its pods. One that died is started once
/// more: nobody else can take down what it had put up.
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
                pods.tell(&ended, grace, "", say);
                for trouble in ended.troubles {
                    say(&format!("ended by force: {trouble:#}"));
                }
            }
            Err(error) => say(&format!("pods are ended by force: {error:#}")),
        }
    }
    if containerd.daemon().stop(RUNTIME_PATIENCE)? {
        say("containerd stopped");
    }
    Ok(())
}

async fn end_private_pods(
    containerd: &Containerd<'_>,
    lock: &NodeLock,
    record: &Record,
    grace: Grace,
) -> anyhow::Result<Ended> {
    containerd.start(&record.network, lock)?;
    containerd.ready().await?;
    let client = Client::new(&containerd.endpoint()?, Timeouts { call: CALL_PATIENCE });
    Ok(pods::end(&client, Whose::All, grace).await)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn everything_counts_against_the_timeout() {
        let of = |elapsed: u64, timeout: Option<u64>| Time {
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
    fn one_pod_is_one_pod() {
        assert_eq!([0, 1, 9].map(counted), ["0 pods", "1 pod", "9 pods"]);
    }
}
