//! What was tried and failed, and when it may be tried again.
//!
//! Back-off is data, not a sleeping task: the plan reads it, says why a container waits, and asks
//! to be woken. Everything here lives in memory; an agent that restarts begins with a clean slate,
//! as upstream's does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{ContainerId, SandboxId};
use crate::observed::{Instance, ObservedPod};
use crate::time::{Mono, Now};

/// How fast failures may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackoffLimits {
    #[serde(rename = "initial")]
    pub initial: Duration,
    #[serde(rename = "max")]
    pub max: Duration,
    /// A quiet time of this length forgets all earlier failures. Not lowered with `max`.
    #[serde(rename = "forget_after")]
    pub forget_after: Duration,
}

impl BackoffLimits {
    pub const DEFAULT: Self = Self {
        initial: Duration::from_secs(10),
        max: Duration::from_secs(300),
        forget_after: Duration::from_secs(600),
    };

    /// `crashLoopBackOff.maxContainerRestartPeriod`: a cap below the first wait is the first wait.
    pub fn capped(max: Duration) -> Self {
        Self { initial: Self::DEFAULT.initial.min(max), max, ..Self::DEFAULT }
    }
}

/// One doubling wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    #[serde(rename = "delay")]
    pub delay: Duration,
    #[serde(rename = "last_try")]
    pub last_try: Mono,
}

impl Backoff {
    /// The wait that still applies to something that failed at `failed`: its length and its end.
    pub fn hold(
        &self,
        failed: Mono,
        now: Mono,
        limits: &BackoffLimits,
    ) -> Option<(Duration, Mono)> {
        if self.is_forgotten(failed, limits) {
            return None;
        }
        let until = failed + self.delay;
        (now < until).then_some((self.delay, until))
    }

    /// The back-off after one more try.
    pub fn next(this: Option<&Self>, failed: Mono, now: Mono, limits: &BackoffLimits) -> Self {
        let delay = match this {
            Some(b) if !b.is_forgotten(failed, limits) => (b.delay * 2).min(limits.max),
            Some(_) | None => limits.initial,
        };
        Self { delay, last_try: now }
    }

    fn is_forgotten(&self, failed: Mono, limits: &BackoffLimits) -> bool {
        failed.since(self.last_try) > limits.forget_after
    }
}

/// Why a container could not be started. Users and controllers match on these words.
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
    /// The image was asked for and did not come; it rests before it is asked for again.
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

/// The last failure of one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure<R> {
    #[serde(rename = "reason")]
    pub reason: R,
    #[serde(rename = "message")]
    pub message: String,
    /// When this kind of failure began, and how often it came since.
    #[serde(rename = "since")]
    pub since: Now,
    #[serde(rename = "times")]
    pub times: u32,
    /// When it last failed.
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

/// When the exit of an instance happened, on our own clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SeenExit {
    #[serde(rename = "instance")]
    instance: ContainerId,
    #[serde(rename = "at")]
    at: Mono,
    /// When we heard of it; on a busy machine that is later.
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
    /// The image that could not be had, if that was the failure: its own, or a volume's.
    #[serde(rename = "unpulled", default)]
    unpulled: Option<Arc<str>>,
    #[serde(rename = "exits")]
    exits: Vec<SeenExit>,
    /// The highest attempt number that may be taken in the runtime though no instance shows.
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
    /// Sandboxes we stopped. A dead one that is not in here may still hold its address.
    #[serde(rename = "stopped")]
    stopped: BTreeMap<SandboxId, Stopped>,
    /// Containers we stopped, as long as they are still seen running.
    #[serde(rename = "ended", default)]
    ended: BTreeMap<ContainerId, Stopped>,
}

/// Stops of one thing that the runtime called done.
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

/// An image that is not pulled again before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpulled<'a> {
    pub image: &'a str,
    pub until: Mono,
    pub error: &'a str,
}

/// What the runtime said it had stopped, and still shows as running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survivor {
    /// For people: `container app`, `sandbox 4f1…`.
    pub name: String,
    /// When the runtime last said so, and how often it did.
    pub last: Mono,
    pub times: u32,
}

/// Nobody keeps more exits than this of one container; the runtime keeps one or two.
const EXITS_KEPT: usize = 4;

impl Attempts {
    /// Notes when an instance exited. The first sight counts: the wall clock may move later.
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

    /// The crash back-off that holds a container back after this exit: its length and its end.
    pub fn crash_hold(
        &self,
        container: &str,
        key: u64,
        instance: &Instance,
        now: Now,
        limits: &BackoffLimits,
    ) -> Option<(Duration, Mono)> {
        let starts = self.starts.get(container).filter(|s| s.key == key)?;
        starts.backoff?.hold(self.exit_at(container, instance, now)?, now.mono, limits)
    }

    /// When the exit of an instance was first seen.
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

    /// A container is about to be started again after this exit: the next wait is longer.
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

    /// The failure just noted was that this image could not be had.
    pub fn note_unpulled(&mut self, container: &Arc<str>, key: u64, image: &Arc<str>) {
        self.starts_of(container, key).unpulled = Some(image.clone());
    }

    /// The image that a container waits for, until when, and what became of its last pull.
    pub fn unpulled(&self, container: &str, key: u64, now: Now) -> Option<Unpulled<'_>> {
        let image = self.starts.get(container).filter(|s| s.key == key)?.unpulled.as_deref()?;
        let (until, error) = self.pull_hold(image, now)?;
        Some(Unpulled { image, until, error })
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

    /// A create call may have taken this attempt's name without telling us.
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

    /// The wait before an image is pulled again, and the error that caused it.
    pub fn pull_hold(&self, image: &str, now: Now) -> Option<(Mono, &str)> {
        let (backoff, error) = self.pulls.get(image)?;
        let (_, until) = backoff.hold(backoff.last_try, now.mono, &BackoffLimits::DEFAULT)?;
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

    /// Something was tried, failed, and has not succeeded since.
    pub fn has_failures(&self) -> bool {
        !self.steps.is_empty() || self.starts.values().any(|starts| starts.failure.is_some())
    }

    /// Forgets sandboxes that were stopped and are gone.
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

    /// The runtime says that it stopped this container.
    pub fn note_stopped(&mut self, instance: ContainerId, now: Mono) {
        let stopped = Stopped::again(self.ended.get(&instance), now);
        self.ended.insert(instance, stopped);
    }

    /// Forgets containers that were stopped and are seen to be.
    pub fn forget_ended(&mut self, observed: &ObservedPod) {
        self.ended.retain(|id, _| observed.running().any(|instance| instance.id == *id));
    }

    /// The one of them that was stopped last.
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

    /// Puts another text in place of what a hook was told and said.
    pub(crate) fn mask_hooks(&mut self, mask: &str) {
        let failures = self.starts.values_mut().filter_map(|starts| starts.failure.as_mut());
        for failure in failures.filter(|f| f.reason == StartError::PostStartHookError) {
            mask.clone_into(&mut failure.message);
        }
    }

    /// Something outside changed (a missing ConfigMap appeared, say): try again at once.
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

    /// A container that dies at once every time it may run: the gaps between its starts.
    fn gaps(limits: &BackoffLimits, runs_for: &[u64]) -> Vec<u64> {
        let (mut now, mut backoff, mut gaps) = (Mono(s(1000)), None::<Backoff>, Vec::new());
        for run in runs_for {
            let died = now + s(*run);
            let start = backoff.and_then(|b| b.hold(died, died, limits)).map_or(died, |(_, t)| t);
            gaps.push(start.since(died).as_secs());
            backoff = Some(Backoff::next(backoff.as_ref(), died, start, limits));
            now = start;
        }
        gaps
    }

    #[test]
    fn a_crash_loop_waits_twice_as_long_each_time() {
        let waits = gaps(&BackoffLimits::DEFAULT, &[0; 8]);
        assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn ten_quiet_minutes_forget_the_crashes_before() {
        let waits = gaps(&BackoffLimits::DEFAULT, &[0, 0, 0, 601, 0]);
        assert_eq!(waits, [0, 10, 20, 0, 10]);
    }

    #[test]
    fn a_low_cap_is_also_the_first_wait() {
        let waits = gaps(&BackoffLimits::capped(s(5)), &[0; 4]);
        assert_eq!(waits, [0, 5, 5, 5]);
    }

    #[test]
    fn the_same_failure_is_counted_and_another_starts_over() {
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
        assert_eq!(attempts.start_failure("c", 2), None, "an edited container has a clean slate");
    }
}
