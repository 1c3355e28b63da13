//! Record of failed attempts: what failed, and when it may be retried.
//!
//! Back-off is data, not a sleeping task: the plan reads it, explains why a container waits, and
//! schedules its next wake-up. The record is kept in memory only; like upstream's, it is empty
//! after a restart of the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::{self, Backoff, BackoffLimits};
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::observed::{Instance, ObservedPod};
use crate::pod::Pod;
use crate::time::{Mono, Now};

/// Reason why a container could not be started. Users and controllers match on these words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StartError {
    #[serde(rename = "ErrImagePull")]
    ErrImagePull,
    #[serde(rename = "ImagePullBackOff")]
    ImagePullBackOff,
    #[serde(rename = "ErrImageNeverPull")]
    ErrImageNeverPull,
    #[serde(rename = "InvalidImageName")]
    InvalidImageName,
    #[serde(rename = "ImageInspectError")]
    ImageInspectError,
    #[serde(rename = "RegistryUnavailable")]
    RegistryUnavailable,
    #[serde(rename = "SignatureValidationFailed")]
    SignatureValidationFailed,
    #[serde(rename = "CreateContainerConfigError")]
    CreateContainerConfigError,
    #[serde(rename = "PreCreateHookError")]
    PreCreateHookError,
    #[serde(rename = "CreateContainerError")]
    CreateContainerError,
    #[serde(rename = "PreStartHookError")]
    PreStartHookError,
    #[serde(rename = "RunContainerError")]
    RunContainerError,
    #[serde(rename = "PostStartHookError")]
    PostStartHookError,
    #[serde(rename = "CrashLoopBackOff")]
    CrashLoopBackOff,
}

impl StartError {
    /// The image pull failed; it is retried after a back-off.
    pub fn is_failed_pull(self) -> bool {
        match self {
            Self::ErrImagePull | Self::RegistryUnavailable | Self::SignatureValidationFailed => {
                true
            }
            Self::ImagePullBackOff
            | Self::ErrImageNeverPull
            | Self::InvalidImageName
            | Self::ImageInspectError
            | Self::CreateContainerConfigError
            | Self::PreCreateHookError
            | Self::CreateContainerError
            | Self::PreStartHookError
            | Self::RunContainerError
            | Self::PostStartHookError
            | Self::CrashLoopBackOff => false,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ErrImagePull => "ErrImagePull",
            Self::ImagePullBackOff => "ImagePullBackOff",
            Self::ErrImageNeverPull => "ErrImageNeverPull",
            Self::InvalidImageName => "InvalidImageName",
            Self::ImageInspectError => "ImageInspectError",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::SignatureValidationFailed => "SignatureValidationFailed",
            Self::CreateContainerConfigError => "CreateContainerConfigError",
            Self::PreCreateHookError => "PreCreateHookError",
            Self::CreateContainerError => "CreateContainerError",
            Self::PreStartHookError => "PreStartHookError",
            Self::RunContainerError => "RunContainerError",
            Self::PostStartHookError => "PostStartHookError",
            Self::CrashLoopBackOff => "CrashLoopBackOff",
        }
    }
}

/// The last failure of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure<R> {
    #[serde(rename = "reason")]
    pub reason: R,
    #[serde(rename = "message")]
    pub message: String,
    /// When failures for this reason began; `times` counts them since then.
    #[serde(rename = "since")]
    pub since: Now,
    #[serde(rename = "times")]
    pub times: u32,
    /// Time of the last failure.
    #[serde(rename = "last")]
    pub last: Mono,
    #[serde(rename = "retry_at")]
    pub retry_at: Mono,
}

/// A step that concerns the whole pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum PodStep {
    #[serde(rename = "Cgroup")]
    Cgroup,
    #[serde(rename = "Directories")]
    Directories,
    #[serde(rename = "Volumes")]
    Volumes,
    #[serde(rename = "Sandbox")]
    Sandbox,
    /// Stopping containers and sandboxes.
    #[serde(rename = "Kill")]
    Kill,
    /// Removing old instances.
    #[serde(rename = "Removal")]
    Removal,
    #[serde(rename = "Resize")]
    Resize,
    #[serde(rename = "Teardown")]
    Teardown,
}

/// Time at which an instance exited, on the monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SeenExit {
    #[serde(rename = "instance")]
    instance: ContainerId,
    #[serde(rename = "at")]
    at: Mono,
    /// When the agent observed the exit; on a busy machine later than `at`.
    #[serde(rename = "seen")]
    seen: Mono,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Starts {
    /// The container's `backoff_key`: an edited container is a new one.
    #[serde(rename = "key")]
    key: u64,
    #[serde(rename = "backoff")]
    backoff: Option<Backoff>,
    #[serde(rename = "failure")]
    failure: Option<Failure<StartError>>,
    /// The image whose pull failed, if that was the failure: the container's own or a volume's.
    #[serde(rename = "unpulled", default)]
    unpulled: Option<Arc<str>>,
    #[serde(rename = "exits")]
    exits: Vec<SeenExit>,
    /// The highest attempt number that may be in use in the runtime without a visible instance.
    #[serde(rename = "taken")]
    taken: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempts {
    #[serde(rename = "starts")]
    starts: BTreeMap<Arc<str>, Starts>,
    #[serde(rename = "pulls")]
    pulls: BTreeMap<Arc<str>, (Backoff, String)>,
    #[serde(rename = "steps")]
    steps: BTreeMap<PodStep, Failure<PodStep>>,
    /// Sandboxes that the agent stopped. A sandbox that is not ready and not in here may still
    /// hold its address.
    #[serde(rename = "stopped")]
    stopped: BTreeMap<SandboxId, Stopped>,
    /// Containers that the agent stopped, while the runtime still shows them running.
    #[serde(rename = "ended", default)]
    ended: BTreeMap<ContainerId, Stopped>,
}

/// Stops of one container or sandbox that the runtime reported as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stopped {
    #[serde(rename = "last")]
    last: Mono,
    #[serde(rename = "times")]
    times: u32,
}

impl Stopped {
    fn again(earlier: Option<&Self>, now: Mono) -> Self {
        Self { last: now, times: earlier.map_or(1, |earlier| earlier.times.saturating_add(1)) }
    }
}

/// An image in pull back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullBackoff<'a> {
    pub image: &'a str,
    pub until: Mono,
    pub error: &'a str,
}

/// A container or sandbox that the runtime reported as stopped but still shows running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// For display: `container app`, `sandbox 4f1…`.
    pub name: String,
    /// When the runtime last reported the stop, and how often.
    pub last: Mono,
    pub times: u32,
}

/// Exits kept per container; the runtime itself keeps one or two.
const EXITS_KEPT: usize = 4;

/// Delay before a failed step is retried, without the spread.
const STEP_RETRY: Duration = Duration::from_secs(10);

/// Delay before a failed step of this pod is retried: ten to fifteen seconds, different for each
/// pod, so that not all pods retry at the same time.
pub fn step_retry(uid: &PodUid) -> Duration {
    let seed = uid.as_str().bytes().fold(0u32, |sum, byte| sum.wrapping_add(byte.into()));
    backoff::spread(STEP_RETRY, seed)
}

impl Attempts {
    /// Takes note of what an observation shows: exits, and what is stopped or gone.
    pub fn note_observed(&mut self, pod: &Pod, observed: &ObservedPod, now: Now) {
        self.forget_stopped(observed);
        self.forget_sandboxes(observed);
        for container in &pod.containers {
            let instances = observed.instances_of(&container.name);
            self.note_exits(&container.name, container.backoff_key, instances, now);
        }
    }

    /// Records the exits of a container's newest instances. An older one must not displace them: the
    /// back-off counts from the newest.
    pub fn note_exits<'a>(
        &mut self,
        container: &Arc<str>,
        key: u64,
        newest_first: impl Iterator<Item = &'a Instance>,
        now: Now,
    ) {
        let newest: Vec<&Instance> =
            newest_first.filter(|instance| instance.exit().is_some()).take(EXITS_KEPT).collect();
        for instance in newest.into_iter().rev() {
            self.note_exit(container, key, instance, now);
        }
    }

    /// Records when an instance exited. The first observation counts: the wall clock may move
    /// later.
    pub fn note_exit(&mut self, container: &Arc<str>, key: u64, instance: &Instance, now: Now) {
        let Some(exit) = instance.exit() else { return };
        let starts = self.starts_of(container, key);
        if starts.exits.iter().any(|e| e.instance == instance.id) {
            return;
        }
        let at = now.mono_at(exit.finished, BackoffLimits::DEFAULT.forget_after);
        starts.exits.push(SeenExit { instance: instance.id.clone(), at, seen: now.mono });
        if starts.exits.len() > EXITS_KEPT {
            starts.exits.remove(0);
        }
    }

    /// The crash back-off in effect after this exit: its length and its end.
    pub fn crash_backoff(
        &self,
        container: &str,
        key: u64,
        instance: &Instance,
        now: Now,
        limits: &BackoffLimits,
    ) -> Option<(Duration, Mono)> {
        let starts = self.starts.get(container).filter(|s| s.key == key)?;
        starts.backoff?.in_effect(self.exit_at(container, instance, now)?, now.mono, limits)
    }

    /// When the exit of an instance was first observed.
    pub fn exit_seen(&self, container: &str, instance: &ContainerId) -> Option<Mono> {
        let exits = &self.starts.get(container)?.exits;
        exits.iter().find(|exit| exit.instance == *instance).map(|exit| exit.seen)
    }

    fn exit_at(&self, container: &str, instance: &Instance, now: Now) -> Option<Mono> {
        let exit = instance.exit()?;
        let seen = self.starts.get(container);
        let seen = seen.and_then(|s| s.exits.iter().find(|e| e.instance == instance.id));
        let fresh = || now.mono_at(exit.finished, BackoffLimits::DEFAULT.forget_after);
        Some(seen.map_or_else(fresh, |e| e.at))
    }

    /// A container is about to be restarted after this exit: lengthens the next back-off.
    pub fn note_restart(
        &mut self,
        container: &Arc<str>,
        key: u64,
        after: &Instance,
        now: Now,
        limits: &BackoffLimits,
    ) {
        let Some(failed) = self.exit_at(container, after, now) else { return };
        let starts = self.starts_of(container, key);
        starts.backoff = Some(Backoff::next(starts.backoff.as_ref(), failed, now.mono, limits));
    }

    pub fn note_start_failure(
        &mut self,
        container: &Arc<str>,
        key: u64,
        reason: StartError,
        message: String,
        now: Now,
        retry_in: Duration,
    ) {
        let starts = self.starts_of(container, key);
        let earlier = starts.failure.take();
        starts.failure = Some(Failure::again(earlier, reason, message, now, retry_in));
        starts.unpulled = None;
    }

    /// The failure just recorded was that this image could not be pulled.
    pub fn note_unpulled(&mut self, container: &Arc<str>, key: u64, image: &Arc<str>) {
        self.starts_of(container, key).unpulled = Some(image.clone());
    }

    /// The image that a container waits for, the end of the back-off, and the error of the last
    /// pull.
    pub fn unpulled(&self, container: &str, key: u64, now: Now) -> Option<PullBackoff<'_>> {
        let image = self.starts.get(container).filter(|s| s.key == key)?.unpulled.as_deref()?;
        let (until, error) = self.pull_backoff(image, now)?;
        Some(PullBackoff { image, until, error })
    }

    pub fn note_started(&mut self, container: &Arc<str>, key: u64) {
        let starts = self.starts_of(container, key);
        starts.failure = None;
        starts.unpulled = None;
        starts.taken = None;
    }

    pub fn start_failure(&self, container: &str, key: u64) -> Option<&Failure<StartError>> {
        self.starts.get(container).filter(|s| s.key == key)?.failure.as_ref()
    }

    /// A create call may have used this attempt number although its response was lost.
    pub fn note_attempt_taken(&mut self, container: &Arc<str>, key: u64, attempt: u32) {
        let starts = self.starts_of(container, key);
        starts.taken = starts.taken.max(Some(attempt));
    }

    pub fn attempt_taken(&self, container: &str) -> Option<u32> {
        self.starts.get(container)?.taken
    }

    pub fn note_pull_failure(
        &mut self,
        image: &Arc<str>,
        reason: StartError,
        error: &str,
        now: Now,
    ) {
        let error = format!("{}: {error}", reason.as_str());
        let limits = BackoffLimits::DEFAULT;
        let earlier = self.pulls.get(image).map(|(backoff, _)| backoff);
        let next = Backoff::next(earlier, now.mono, now.mono, &limits);
        self.pulls.insert(image.clone(), (next, error));
    }

    pub fn note_pulled(&mut self, image: &str) {
        self.pulls.remove(image);
    }

    /// The end of an image's pull back-off, and the error that caused it.
    pub fn pull_backoff(&self, image: &str, now: Now) -> Option<(Mono, &str)> {
        let (backoff, error) = self.pulls.get(image)?;
        let (_, until) = backoff.in_effect(backoff.last_try, now.mono, &BackoffLimits::DEFAULT)?;
        Some((until, error))
    }

    pub fn note_step_failure(
        &mut self,
        step: PodStep,
        message: String,
        now: Now,
        retry_in: Duration,
    ) {
        let earlier = self.steps.remove(&step);
        self.steps.insert(step, Failure::again(earlier, step, message, now, retry_in));
    }

    pub fn note_step_done(&mut self, step: PodStep) {
        self.steps.remove(&step);
    }

    pub fn step_failure(&self, step: PodStep) -> Option<&Failure<PodStep>> {
        self.steps.get(&step)
    }

    pub fn step_failures(&self) -> impl Iterator<Item = &Failure<PodStep>> {
        self.steps.values()
    }

    /// An operation failed and has not succeeded since.
    pub fn has_failures(&self) -> bool {
        !self.steps.is_empty() || self.starts.values().any(|starts| starts.failure.is_some())
    }

    /// Drops stopped sandboxes that no longer exist.
    pub fn forget_sandboxes(&mut self, observed: &ObservedPod) {
        self.stopped.retain(|id, _| observed.sandboxes.iter().any(|sandbox| sandbox.id == *id));
    }

    pub fn note_sandbox_stopped(&mut self, sandbox: SandboxId, now: Mono) {
        let stopped = Stopped::again(self.stopped.get(&sandbox), now);
        self.stopped.insert(sandbox, stopped);
    }

    pub fn sandbox_stopped(&self, sandbox: &SandboxId) -> bool {
        self.stopped.contains_key(sandbox)
    }

    /// The runtime reported that it stopped this container.
    pub fn note_stopped(&mut self, instance: ContainerId, now: Mono) {
        let stopped = Stopped::again(self.ended.get(&instance), now);
        self.ended.insert(instance, stopped);
    }

    /// Drops stopped containers that are observed as stopped.
    pub fn forget_stopped(&mut self, observed: &ObservedPod) {
        self.ended.retain(|id, _| observed.running().any(|instance| instance.id == *id));
    }

    /// The container or sandbox that was stopped last and still runs.
    pub fn survivor(&self, observed: &ObservedPod) -> Option<Survivor> {
        let containers = observed.running().filter_map(|instance| {
            let name = format!("container {}", instance.container);
            Some((name, self.ended.get(&instance.id)?))
        });
        let ready = observed.sandboxes.iter().filter(|sandbox| sandbox.ready);
        let sandboxes = ready.filter_map(|sandbox| {
            let name = format!("sandbox {}", sandbox.id.as_str());
            Some((name, self.stopped.get(&sandbox.id)?))
        });
        let last = containers.chain(sandboxes).max_by_key(|(_, stopped)| stopped.last);
        last.map(|(name, stopped)| Survivor { name, last: stopped.last, times: stopped.times })
    }

    /// Replaces the messages of failed hooks, which contain commands and their output.
    pub(crate) fn mask_hooks(&mut self, mask: &str) {
        let failures = self.starts.values_mut().filter_map(|starts| starts.failure.as_mut());
        for failure in failures.filter(|f| f.reason == StartError::PostStartHookError) {
            mask.clone_into(&mut failure.message);
        }
    }

    /// A dependency changed (a missing ConfigMap was created, say): retry at once.
    pub fn retry_now(&mut self, now: Now) {
        for starts in self.starts.values_mut() {
            if let Some(failure) = &mut starts.failure {
                failure.retry_at = now.mono;
            }
        }
        for failure in self.steps.values_mut() {
            failure.retry_at = now.mono;
        }
    }

    fn starts_of(&mut self, container: &Arc<str>, key: u64) -> &mut Starts {
        let starts = self.starts.entry(container.clone()).or_default();
        if starts.key != key {
            *starts = Starts { key, taken: starts.taken, ..Starts::default() };
        }
        starts
    }
}

impl<R: PartialEq> Failure<R> {
    fn again(
        earlier: Option<Self>,
        reason: R,
        message: String,
        now: Now,
        retry_in: Duration,
    ) -> Self {
        let (since, times) = match earlier {
            Some(e) if e.reason == reason => (e.since, e.times.saturating_add(1)),
            Some(_) | None => (now, 1),
        };
        Self { reason, message, since, times, last: now.mono, retry_at: now.mono + retry_in }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn repeated_failure_is_counted_and_another_reason_resets_the_count() {
        let now = Now { wall: jiff::Timestamp::UNIX_EPOCH, mono: Mono(s(5)) };
        let later = Now { mono: Mono(s(20)), ..now };
        let c: Arc<str> = "c".into();
        let mut attempts = Attempts::default();
        let config = StartError::CreateContainerConfigError;
        attempts.note_start_failure(&c, 1, config, "no key".into(), now, s(10));
        attempts.note_start_failure(&c, 1, config, "no key".into(), later, s(10));
        let failure = attempts.start_failure("c", 1).unwrap();
        assert_eq!((failure.times, failure.since, failure.retry_at), (2, now, Mono(s(30))));
        attempts.note_start_failure(&c, 1, StartError::RunContainerError, "x".into(), later, s(10));
        assert_eq!(attempts.start_failure("c", 1).unwrap().times, 1);
        assert_eq!(attempts.start_failure("c", 2), None, "an edited container starts afresh");
    }

    #[test]
    fn failed_steps_of_pods_are_retried_within_ten_to_fifteen_seconds_not_all_together() {
        let delays: std::collections::BTreeSet<Duration> =
            (0..100).map(|n| step_retry(&PodUid::new(format!("uid-{n}")))).collect();
        assert!(delays.iter().all(|delay| (s(10)..s(15)).contains(delay)), "{delays:?}");
        assert!(delays.len() > 10, "{} different delays", delays.len());
        let uid = PodUid::new("uid-1".to_owned());
        assert_eq!(step_retry(&uid), step_retry(&uid));
    }
}
