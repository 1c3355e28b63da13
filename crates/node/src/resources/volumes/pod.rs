//! State of the volumes of one pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_core::config::mounts::Volumes as MountedVolumes;
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_core::volume::{self, VolumeNeed, VolumeState, sources};
use podwright_host::clock::Clock;
use tokio::sync::OwnedMutexGuard;

use super::tokens::Tokens;
use super::volume_type::{Mounted, PodDirectory, Prepared, VolumeProblem};
use super::{SetUpOutcome, VolumeError};

pub(super) struct PodVolumes {
    work: Arc<tokio::sync::Mutex<TrackedVolumes>>,
    /// A source of the volumes changed.
    sources_changed: AtomicBool,
    published: Mutex<PublishedState>,
    pub tokens: Tokens,
}

/// Lock on a pod's volumes. It moves along with work that cannot be cancelled.
pub(crate) type VolumesGuard = OwnedMutexGuard<TrackedVolumes>;

/// Published state, readable without the lock on the pod's volumes.
struct PublishedState {
    /// The pod as of the last set-up.
    pod: Arc<Pod>,
    mounted: MountedVolumes,
    groups: Vec<i64>,
    /// Every volume is ready, so the worker waits for none.
    ready: bool,
    wake_at: Option<Mono>,
}

#[derive(Default)]
pub(crate) struct TrackedVolumes {
    volumes: BTreeMap<String, TrackedVolume>,
    /// The pod has terminated; no volume is set up any more.
    pub closed: bool,
}

#[derive(Default)]
struct TrackedVolume {
    actual: VolumeState,
    /// The content is refreshed while containers use it.
    follows: bool,
    mounted: Option<Mounted>,
}

impl PodVolumes {
    pub(super) fn new(pod: Arc<Pod>) -> Self {
        Self {
            work: Arc::default(),
            sources_changed: AtomicBool::new(false),
            published: Mutex::new(PublishedState {
                pod,
                mounted: MountedVolumes::new(),
                groups: Vec::new(),
                ready: false,
                wake_at: None,
            }),
            tokens: Tokens::default(),
        }
    }

    pub(super) async fn lock_work(&self) -> VolumesGuard {
        self.work.clone().lock_owned().await
    }

    /// `None`: the lock is held.
    pub(super) fn try_lock_work(&self) -> Option<VolumesGuard> {
        self.work.clone().try_lock_owned().ok()
    }

    pub(super) fn mark_outdated(&self) {
        self.sources_changed.store(true, Ordering::Release);
    }

    pub(super) fn has_change(&self) -> bool {
        self.sources_changed.load(Ordering::Acquire)
    }

    pub(super) fn take_change(&self) -> bool {
        self.sources_changed.swap(false, Ordering::AcqRel)
    }

    pub(super) fn mounted(&self) -> MountedVolumes {
        self.published.lock().mounted.clone()
    }

    pub(super) fn groups(&self) -> Vec<i64> {
        self.published.lock().groups.clone()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.published.lock().ready
    }

    /// When the volumes are due although nothing changed.
    pub(super) fn wake_at(&self) -> Option<Mono> {
        self.published.lock().wake_at
    }

    /// Whether the volumes contain fields of the pod that have changed.
    pub(super) fn is_outdated_by(&self, now: &Arc<Pod>) -> bool {
        let mut published = self.published.lock();
        if Arc::ptr_eq(&published.pod, now) {
            return false;
        }
        let (old, new) = (&published.pod.object, &now.object);
        let outdated = volume::used(now).any(|volume| sources::wanted(now, volume).pod)
            && (old.metadata.labels != new.metadata.labels
                || old.metadata.annotations != new.metadata.annotations
                || old.spec != new.spec);
        if !outdated {
            // Replaced so that the comparison runs once and the old copy is freed.
            published.pod = now.clone();
        }
        outdated
    }

    pub(super) fn publish(&self, pod: &Arc<Pod>, work: &TrackedVolumes, now: Mono) {
        let ready = work.volumes.iter().filter(|(_, state)| state.actual.ready);
        let mounted = ready.filter_map(|(name, state)| {
            state.mounted.as_ref().map(|mounted| (name.clone(), mounted.volume.clone()))
        });
        let groups = work.volumes.values().filter_map(|state| state.mounted.as_ref()?.group);
        *self.published.lock() = PublishedState {
            pod: pod.clone(),
            mounted: mounted.collect(),
            groups: groups.collect(),
            ready: !work.closed && volume::used(pod).all(|volume| work.is_ready(&volume.name)),
            wake_at: work.wake_at(now),
        };
    }
}

impl TrackedVolumes {
    pub(super) fn actual(&mut self, volume: &str) -> &VolumeState {
        &self.volumes.entry(volume.to_owned()).or_default().actual
    }

    fn is_ready(&self, volume: &str) -> bool {
        self.volumes.get(volume).is_some_and(|state| state.actual.ready)
    }

    pub(super) fn mark_changed(&mut self, sources_changed: bool) {
        for state in self.volumes.values_mut().filter(|state| state.follows || !state.actual.ready)
        {
            state.actual.sources_changed |= sources_changed;
        }
    }

    /// Sets the prepared volumes up and records each result. Content that follows its sources is
    /// prepared again after `resync`, so that no lost notification is permanent.
    pub(super) fn set_up(
        &mut self,
        directory: &PodDirectory,
        prepared: Vec<(String, Result<Prepared, VolumeProblem>)>,
        resync: Duration,
        clock: &Clock,
    ) -> Vec<VolumeError> {
        let mut errors = Vec::new();
        for (name, prepared) in prepared {
            let done = prepared.and_then(|Prepared { follows, renew_at, set_up }| {
                set_up(directory).map(|mounted| (mounted, follows, renew_at))
            });
            let now = clock.now().mono;
            let state = self.volumes.entry(name.clone()).or_default();
            match done {
                Ok((mounted, follows, renew_at)) => {
                    state.mounted = Some(mounted);
                    state.follows = follows;
                    let resync_at = follows.then_some(now + resync);
                    state.actual.note_set_up([renew_at, resync_at].into_iter().flatten().min());
                }
                Err(problem) => {
                    let error = VolumeError::new(&name, problem);
                    state.actual.note_failure(error.to_string(), now);
                    errors.push(error);
                }
            }
        }
        errors
    }

    fn wake_at(&self, now: Mono) -> Option<Mono> {
        let needs = self.volumes.values().map(|state| volume::plan(&state.actual, now));
        let times = needs.filter_map(|need| match need {
            VolumeNeed::SetUp => Some(now),
            VolumeNeed::Wait(at) => Some(at),
            VolumeNeed::Nothing => None,
        });
        times.min()
    }

    pub(super) fn set_up_outcome(
        &self,
        pod: &Pod,
        now: Mono,
        errors: Vec<VolumeError>,
    ) -> SetUpOutcome {
        let missing = volume::used(pod).filter_map(|volume| {
            let actual = self.volumes.get(&volume.name).map(|state| &state.actual);
            match actual {
                Some(VolumeState { ready: true, .. }) => None,
                Some(VolumeState { failure: Some(failure), .. }) => Some(failure.message.clone()),
                Some(_) | None => Some(format!("volume {:?}", volume.name)),
            }
        });
        SetUpOutcome { errors, missing: missing.collect(), wake_at: self.wake_at(now) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use podwright_core::time::Now;
    use podwright_host::files::Root;

    use super::*;

    #[test]
    fn content_that_follows_its_sources_is_prepared_again_after_the_resync() {
        let dir = tempfile::tempdir().unwrap();
        let directory = PodDirectory(Root::open(dir.path()).unwrap());
        let at = |seconds| Mono(Duration::from_secs(seconds));
        let prepared = |follows, renew_at| {
            let set_up = |directory: &PodDirectory| Ok(Mounted::directory(directory.0.path()));
            Ok(Prepared { follows, renew_at, set_up: Box::new(set_up) })
        };
        for (case, prepared, want) in [
            ("emptyDir", prepared(false, None), None),
            ("ConfigMap", prepared(true, None), Some(at(400))),
            ("a token that expires later", prepared(true, Some(at(900))), Some(at(400))),
            ("a token that expires earlier", prepared(true, Some(at(200))), Some(at(200))),
        ] {
            let clock = Clock::manual(Now { wall: Timestamp::UNIX_EPOCH, mono: at(100) });
            let mut work = TrackedVolumes::default();
            let prepared = vec![("v".to_owned(), prepared)];
            let errors = work.set_up(&directory, prepared, Duration::from_secs(300), &clock);
            assert!(errors.is_empty());
            assert_eq!(work.wake_at(at(100)), want, "{case}");
        }
    }
}
