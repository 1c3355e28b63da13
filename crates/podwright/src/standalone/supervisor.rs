//! Supervisor of the private containerd: starts it again when it exits or hangs.
//!
//! Containers belong to their shims and do not notice. Only the process of the pid file is watched
//! and killed, and containerd is started only under the node lock, so never while `up`, `down` or
//! `reset` works on the node.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use jiff::Timestamp;
use podwright_core::supervision::{Supervision, Verdict};
use podwright_core::time::Mono;
use podwright_cri::{Client, Kind, Timeouts};
use podwright_host::process::{Ended, InheritedLimits, ProcessIdentity, WatchedProcess};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::containerd::{Containerd, Started};
use super::lock::NodeLock;
use super::network::Network;
use super::{Layout, daemon, write_private};
use crate::agent::RuntimeEvent;

/// A healthy containerd responds within milliseconds.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a stopped containerd is looked for: a command may start it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Time to write its stacks into its log before a hanging containerd is killed.
const DUMP_TIME: Duration = Duration::from_secs(1);
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after an error of the supervision itself, such as an unreadable pid file.
const ERROR_DELAY: Duration = Duration::from_secs(10);
/// Events that wait until the node reports them.
const EVENTS: usize = 64;
/// How long commands mention an exit.
const RECENT: Duration = Duration::from_secs(3600);

/// What the agent gets from the supervisor.
pub struct SupervisedRuntime {
    /// Why containerd is not running; none while it responds.
    pub problem: watch::Receiver<Option<String>>,
    pub events: mpsc::Receiver<RuntimeEvent>,
}

/// State of the supervised containerd, for other commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisionNote {
    /// Why it is not running; none while it responds.
    #[serde(rename = "problem", default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(rename = "nextStart", default, skip_serializing_if = "Option::is_none")]
    pub next_start: Option<Timestamp>,
    /// How often this agent started it again.
    #[serde(rename = "restarts", default)]
    pub restarts: u32,
    #[serde(rename = "lastExit", default, skip_serializing_if = "Option::is_none")]
    pub last_exit: Option<LastExit>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastExit {
    #[serde(rename = "at")]
    pub at: Timestamp,
    #[serde(rename = "reason")]
    pub reason: String,
}

impl SupervisionNote {
    /// The note of a running agent; none if there is none. A corrupt one is ignored: it is
    /// information only, and the agent writes it again.
    pub fn read(layout: &Layout) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(layout.supervision()).ok()?).ok()
    }

    /// Why containerd is not running, and when it is started again.
    pub fn problem(&self, now: Timestamp) -> Option<String> {
        let problem = self.problem.as_ref()?;
        let next = match self.next_start.map(|at| at.duration_since(now).as_secs()) {
            Some(seconds) if seconds > 0 => format!("; next start in {seconds}s"),
            Some(_) | None => String::new(),
        };
        Some(format!("{problem}{next}"))
    }

    /// The last restart, if it was recent.
    pub fn recent_restart(&self, now: Timestamp) -> Option<String> {
        let exit = self.last_exit.as_ref()?;
        let ago = Duration::try_from(now.duration_since(exit.at)).unwrap_or_default();
        (self.restarts > 0 && self.problem.is_none() && ago < RECENT).then(|| {
            let times = match self.restarts {
                1 => Cow::Borrowed("once"),
                times => format!("{times} times").into(),
            };
            let ago = match ago.as_secs() {
                seconds @ 0..120 => format!("{seconds}s"),
                seconds => format!("{}m", seconds / 60),
            };
            format!(
                "containerd was started again {times} by this agent; last, {ago} ago: {}",
                exit.reason
            )
        })
    }
}

pub struct RuntimeSupervisor {
    layout: Layout,
    network: Network,
    /// Those of this process before the agent changed them.
    limits: Option<InheritedLimits>,
    supervision: Supervision,
    began: Instant,
    /// It exited or was killed, and has not responded since.
    is_restart: bool,
    note: SupervisionNote,
    problem: watch::Sender<Option<String>>,
    events: mpsc::Sender<RuntimeEvent>,
}

/// Outcome of an attempt to start containerd.
enum Attempt {
    Started,
    /// A command works on the node.
    Busy,
}

impl RuntimeSupervisor {
    /// Call it before the agent changes its own limits.
    pub fn new(layout: &Layout, network: Network) -> (Self, SupervisedRuntime) {
        let (problem, problems) = watch::channel(None);
        let (events, received) = mpsc::channel(EVENTS);
        let limits = InheritedLimits::of_this_process(Path::new("/proc"));
        let limits = limits.inspect_err(|error| {
            tracing::warn!(%error, "cannot read limits, a restarted containerd has the agent's");
        });
        let supervisor = Self {
            layout: layout.clone(),
            network,
            limits: limits.ok(),
            supervision: Supervision::new(Mono::ZERO),
            began: Instant::now(),
            is_restart: false,
            note: SupervisionNote::default(),
            problem,
            events,
        };
        (supervisor, SupervisedRuntime { problem: problems, events: received })
    }

    /// Supervises until `stop` is cancelled. containerd keeps running.
    pub async fn run(mut self, stop: CancellationToken) {
        self.write_note();
        stop.run_until_cancelled(async {
            loop {
                let outcome = match self.containerd().daemon().running() {
                    Ok(Some(process)) => self.watch(&process).await,
                    Ok(None) => self.start_again().await,
                    Err(error) => Err(error),
                };
                if let Err(error) = outcome {
                    let error = format!("{error:#}");
                    tracing::error!(error, "supervise containerd failed, retrying");
                    self.set_problem(format!("containerd is not supervised: {error}"));
                    tokio::time::sleep(ERROR_DELAY).await;
                }
            }
        })
        .await;
    }

    fn containerd(&self) -> Containerd<'_> {
        Containerd::new(&self.layout)
    }

    fn now(&self) -> Mono {
        Mono(self.began.elapsed())
    }

    /// Watches a running containerd until it has exited.
    async fn watch(&mut self, process: &ProcessIdentity) -> anyhow::Result<()> {
        let now = self.now();
        self.supervision.started(now);
        let Some(pidfd) = daemon::open(process)? else { return Ok(()) };
        let watched = WatchedProcess::new(pidfd)
            .with_context(|| format!("cannot watch process {}", process.pid))?;
        let endpoint = self.containerd().endpoint()?;
        let client = Client::new(&endpoint, Timeouts { call: PROBE_TIMEOUT });
        let mut hung = false;
        loop {
            let probe = async { tokio::time::timeout(PROBE_TIMEOUT, client.version()).await };
            let responds = tokio::select! { biased;
                ended = watched.ended() => {
                    ended.context("cannot watch containerd")?;
                    self.exited(watched.reap(), hung);
                    return Ok(());
                }
                response = probe => match response { // a read, may be dropped
                    Ok(Ok(_)) => true,
                    Ok(Err(error)) if error.kind == Kind::Unimplemented => {
                        self.serves_no_pods();
                        false
                    }
                    Ok(Err(_)) | Err(_) => false,
                },
            };
            let verdict = match responds {
                true => {
                    self.responded();
                    self.supervision.responded()
                }
                false => self.supervision.silent(self.now()),
            };
            let wait = match verdict {
                Verdict::ProbeAfter(wait) => wait,
                Verdict::Hanging => {
                    hung = true;
                    self.report(RuntimeEvent::warning(
                        "ContainerRuntimeHanging",
                        "containerd does not respond; killing it to start it again".to_owned(),
                    ));
                    // It writes its stacks into its log, if it still can.
                    daemon::signal(process, Signal::USR1)?;
                    tokio::time::sleep(DUMP_TIME).await;
                    daemon::signal(process, Signal::KILL)?;
                    // If the kernel does not end it, it is reported and killed again.
                    let _ = tokio::time::timeout(KILL_TIMEOUT, watched.ended()).await;
                    continue;
                }
            };
            tokio::select! { biased;
                _ = watched.ended() => {} // handled above
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn responded(&mut self) {
        let was_down = std::mem::take(&mut self.is_restart);
        if self.note.problem.take().is_some() || was_down {
            self.note.next_start = None;
            self.publish();
        }
        if !was_down {
            return;
        }
        self.note.restarts = self.note.restarts.saturating_add(1);
        self.publish();
        self.report(RuntimeEvent::normal(
            "ContainerRuntimeStarted",
            "containerd was started again; containers kept running".to_owned(),
        ));
    }

    /// It runs, but the plugin for pods does not.
    fn serves_no_pods(&mut self) {
        let why = self.containerd().plugin_failure().map(|why| format!(": {why}"));
        let problem = format!("containerd runs without its CRI plugin{}", why.unwrap_or_default());
        self.is_restart = true;
        if self.note.problem.as_ref() != Some(&problem) {
            self.report(RuntimeEvent::warning("ContainerRuntimeFailed", problem.clone()));
            self.set_problem(problem);
        }
    }

    /// `ended` is unknown unless this process started it.
    fn exited(&mut self, ended: Option<Ended>, hung: bool) {
        let reason = match (hung, ended) {
            (true, _) => "containerd did not respond and was killed".to_owned(),
            (false, Some(Ended::Signal(signal))) => {
                let name = nix::sys::signal::Signal::try_from(signal).map(|it| it.as_str());
                format!("containerd was killed by signal {signal} ({})", name.unwrap_or("?"))
            }
            (false, Some(Ended::Status(status))) => {
                self.with_exit_reason(format!("containerd exited with status {status}"))
            }
            (false, None) => self.with_exit_reason("containerd exited".to_owned()),
        };
        self.failed(reason);
    }

    fn with_exit_reason(&self, text: String) -> String {
        match self.containerd().exit_reason() {
            Some(reason) => format!("{text}: {reason}"),
            None => text,
        }
    }

    /// Records an exit or a failed start, and plans the next start.
    fn failed(&mut self, reason: String) {
        let delay = self.supervision.exited(self.now());
        let now = Timestamp::now();
        self.is_restart = true;
        self.note.next_start = now.checked_add(delay).ok();
        self.note.last_exit = Some(LastExit { at: now, reason: reason.clone() });
        let next = match delay.as_secs() {
            0 => "starting it again".to_owned(),
            seconds => format!("starting it again in {seconds} s"),
        };
        self.report(RuntimeEvent::warning("ContainerRuntimeExited", format!("{reason}; {next}")));
        self.set_problem(reason);
    }

    /// Waits for the next start and starts containerd, unless a command does.
    async fn start_again(&mut self) -> anyhow::Result<()> {
        if !self.is_restart {
            self.failed("containerd is not running".to_owned());
        }
        loop {
            let left = self.note.next_start.map(|at| at.duration_since(Timestamp::now()));
            // The clock may be set while it waits.
            let left = left.and_then(|left| Duration::try_from(left).ok()).unwrap_or_default();
            if left.is_zero() {
                break;
            }
            tokio::time::sleep(left.min(LOOK_INTERVAL)).await;
            if self.containerd().daemon().running()?.is_some() {
                return Ok(());
            }
        }
        let (layout, network, limits) = (self.layout.clone(), self.network.clone(), self.limits);
        let attempt = tokio::task::spawn_blocking(move || attempt(&layout, &network, limits));
        match attempt.await.context("start containerd")? {
            Ok(Attempt::Started) => {}
            Ok(Attempt::Busy) => tokio::time::sleep(LOOK_INTERVAL).await,
            Err(error) => {
                let reason = self.with_exit_reason(format!("cannot start containerd: {error:#}"));
                self.failed(reason);
            }
        }
        Ok(())
    }

    fn set_problem(&mut self, problem: String) {
        self.note.problem = Some(problem);
        self.publish();
    }

    fn publish(&self) {
        self.problem.send_replace(self.note.problem.clone());
        self.write_note();
    }

    fn write_note(&self) {
        let written = serde_json::to_vec(&self.note)
            .map_err(anyhow::Error::from)
            .and_then(|text| write_private(&self.layout.supervision(), &text));
        if let Err(error) = written {
            let error = format!("{error:#}");
            tracing::warn!(error, "cannot record the state of containerd for podwright status");
        }
    }

    fn report(&self, event: RuntimeEvent) {
        if let Err(error) = self.events.try_send(event) {
            tracing::debug!(%error, "event of the container runtime dropped");
        }
    }
}

/// Starts containerd under the node lock.
fn attempt(
    layout: &Layout,
    network: &Network,
    limits: Option<InheritedLimits>,
) -> anyhow::Result<Attempt> {
    let Some(lock) = NodeLock::try_take(layout, "the agent")? else { return Ok(Attempt::Busy) };
    // `down` removes the record last.
    if layout.record()?.is_none() {
        return Ok(Attempt::Busy);
    }
    match Containerd::new(layout).with_limits(limits).start(network, &lock)? {
        Started::Now | Started::Already => Ok(Attempt::Started),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn note_describes_the_problem_or_a_recent_restart() {
        let exit = LastExit { at: t(1000), reason: "containerd exited with status 1".to_owned() };
        let down = SupervisionNote {
            problem: Some("containerd exited with status 1".to_owned()),
            next_start: Some(t(1008)),
            restarts: 0,
            last_exit: Some(exit),
        };
        let text = down.problem(t(1000)).unwrap();
        assert_eq!(text, "containerd exited with status 1; next start in 8s");
        assert_eq!(down.problem(t(1010)).unwrap(), "containerd exited with status 1");
        assert_eq!(down.recent_restart(t(1010)), None);
        let up = SupervisionNote { problem: None, next_start: None, restarts: 2, ..down };
        assert_eq!(up.problem(t(1010)), None);
        assert_eq!(
            up.recent_restart(t(1300)).unwrap(),
            "containerd was started again 2 times by this agent; last, 5m ago: \
             containerd exited with status 1"
        );
        assert_eq!(up.recent_restart(t(1000 + 3600)), None);
        let text = serde_json::to_string(&up).unwrap();
        assert_eq!(serde_json::from_str::<SupervisionNote>(&text).unwrap(), up);
        let next_build = r#"{"problem":"x","unknown":1}"#;
        assert_eq!(
            serde_json::from_str::<SupervisionNote>(next_build).unwrap().problem.as_deref(),
            Some("x")
        );
    }
}
