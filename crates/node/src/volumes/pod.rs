//! The volumes of one pod, as this node has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use podwright_core::config::mounts::Volumes as MountedVolumes;
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_core::volume::{self, Actual, Need, sources};
use podwright_host::clock::Clock;
use tokio::sync::OwnedMutexGuard;

use super::kind::{Mounted, PodFolder, Prepared, Problem};
use super::tokens::Tokens;
use super::{Outcome, VolumeError};

pub(super) struct PodVolumes {
    work: Arc<tokio::sync::Mutex<Work>>,
    /// Something the volumes are made of changed.
    news: AtomicBool,
    shown: Mutex<Shown>,
    pub tokens: Tokens,
}

/// The right to work on a pod's volumes. It goes along with work that cannot be stopped.
pub(super) type Turn = OwnedMutexGuard<Work>;

/// What others may ask without waiting for the pod's turn.
struct Shown {
    /// As of when the volumes were last brought up.
    pod: Arc<Pod>,
    mounted: MountedVolumes,
    groups: Vec<i64>,
    /// Every volume is ready, so the worker is not waiting for any.
    ready: bool,
    wake_at: Option<Mono>,
}

#[derive(Default)]
pub(super) struct Work {
    volumes: BTreeMap<String, One>,
    /// The pod is over; nothing is set up any more.
    pub closed: bool,
}

#[derive(Default)]
struct One {
    actual: Actual,
    /// It is brought up to date while containers use it.
    follows: bool,
    mounted: Option<Mounted>,
}

impl PodVolumes {
    pub(super) fn new(pod: Arc<Pod>) -> Self {
        Self {
            work: Arc::default(),
            news: AtomicBool::new(false),
            shown: Mutex::new(Shown {
                pod,
                mounted: MountedVolumes::new(),
                groups: Vec::new(),
                ready: false,
                wake_at: None,
            }),
            tokens: Tokens::default(),
        }
    }

    pub(super) async fn turn(&self) -> Turn {
        self.work.clone().lock_owned().await
    }

    /// `None`: somebody works on them.
    pub(super) fn turn_if_free(&self) -> Option<Turn> {
        self.work.clone().try_lock_owned().ok()
    }

    pub(super) fn tell(&self) {
        self.news.store(true, Ordering::Release);
    }

    pub(super) fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    pub(super) fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::AcqRel)
    }

    pub(super) fn mounted(&self) -> MountedVolumes {
        self.shown.lock().mounted.clone()
    }

    pub(super) fn groups(&self) -> Vec<i64> {
        self.shown.lock().groups.clone()
    }

    pub(super) fn is_ready(&self) -> bool {
        self.shown.lock().ready
    }

    /// When the volumes need somebody although nothing changed.
    pub(super) fn wake_at(&self) -> Option<Mono> {
        self.shown.lock().wake_at
    }

    /// Whether the volumes tell something of the pod that is different now.
    pub(super) fn is_outdated_by(&self, now: &Arc<Pod>) -> bool {
        let mut shown = self.shown.lock();
        if Arc::ptr_eq(&shown.pod, now) {
            return false;
        }
        let (old, new) = (&shown.pod.object, &now.object);
        let outdated = volume::used(now).any(|volume| sources::wanted(now, volume).pod)
            && (old.metadata.labels != new.metadata.labels
                || old.metadata.annotations != new.metadata.annotations
                || old.spec != new.spec);
        if !outdated {
            // Compared once, and the older copy is not kept for it.
            shown.pod = now.clone();
        }
        outdated
    }

    pub(super) fn show(&self, pod: &Arc<Pod>, work: &Work, now: Mono) {
        let ready = work.volumes.iter().filter(|(_, one)| one.actual.ready);
        let mounted = ready.filter_map(|(name, one)| {
            one.mounted.as_ref().map(|mounted| (name.clone(), mounted.volume.clone()))
        });
        let groups = work.volumes.values().filter_map(|one| one.mounted.as_ref()?.group);
        *self.shown.lock() = Shown {
            pod: pod.clone(),
            mounted: mounted.collect(),
            groups: groups.collect(),
            ready: !work.closed && volume::used(pod).all(|volume| work.is_ready(&volume.name)),
            wake_at: work.wake_at(now),
        };
    }
}

impl Work {
    pub(super) fn actual(&mut self, volume: &str) -> &Actual {
        &self.volumes.entry(volume.to_owned()).or_default().actual
    }

    fn is_ready(&self, volume: &str) -> bool {
        self.volumes.get(volume).is_some_and(|one| one.actual.ready)
    }

    pub(super) fn hear(&mut self, news: bool) {
        for one in self.volumes.values_mut().filter(|one| one.follows || !one.actual.ready) {
            one.actual.news |= news;
        }
    }

    /// Puts in place what was prepared, and writes down what came of it.
    pub(super) fn act(
        &mut self,
        folder: &PodFolder,
        prepared: Vec<(String, Result<Prepared, Problem>)>,
        clock: &Clock,
    ) -> Vec<VolumeError> {
        let mut errors = Vec::new();
        for (name, prepared) in prepared {
            let done = prepared.and_then(|Prepared { follows, renew_at, act }| {
                act(folder).map(|mounted| (mounted, follows, renew_at))
            });
            let now = clock.now().mono;
            let one = self.volumes.entry(name.clone()).or_default();
            match done {
                Ok((mounted, follows, renew_at)) => {
                    one.mounted = Some(mounted);
                    one.follows = follows;
                    one.actual.note_set_up(renew_at);
                }
                Err(problem) => {
                    let error = VolumeError::new(&name, problem);
                    one.actual.note_failure(error.to_string(), now);
                    errors.push(error);
                }
            }
        }
        errors
    }

    fn wake_at(&self, now: Mono) -> Option<Mono> {
        let needs = self.volumes.values().map(|one| volume::plan(&one.actual, now));
        let times = needs.filter_map(|need| match need {
            Need::SetUp => Some(now),
            Need::Wait(at) => Some(at),
            Need::Nothing => None,
        });
        times.min()
    }

    pub(super) fn outcome(&self, pod: &Pod, now: Mono, errors: Vec<VolumeError>) -> Outcome {
        let missing = volume::used(pod).filter_map(|volume| {
            let actual = self.volumes.get(&volume.name).map(|one| &one.actual);
            match actual {
                Some(Actual { ready: true, .. }) => None,
                Some(Actual { failure: Some(failure), .. }) => Some(failure.message.clone()),
                Some(_) | None => Some(format!("volume {:?}", volume.name)),
            }
        });
        Outcome { errors, missing: missing.collect(), wake_at: self.wake_at(now) }
    }
}
