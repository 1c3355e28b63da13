//! All there is in the runtime, under one lock: each change happens at once or not at all.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use podwright_core::ids::{PodName, PodUid};
use podwright_core::labels;
use podwright_proto::cri;
use tokio::sync::watch;
use tokio::time::Instant;

use super::containers::Container;
use super::events::{self, Hub, News, What};
use super::faults::{EventFault, Rules};
use super::images::Images;
use super::journal::Journal;
use super::names::Names;
use super::options::{Condition, ExecCall, FakeOptions};
use super::random::Random;
use super::rpc::{About, PodRef};
use super::sandboxes::{Addresses, Sandbox};
use super::script::{ExecReply, Script};
use super::serve::Shared;

/// Chooses the script of a container about to be created.
pub(super) type Chooser = Arc<dyn Fn(&cri::ContainerConfig) -> Option<Script> + Send + Sync>;
/// Answers a command run in a container.
pub(super) type Answerer = Arc<dyn Fn(&ExecCall) -> Option<ExecReply> + Send + Sync>;

pub(super) struct World {
    pub(super) options: FakeOptions,
    pub(super) me: Weak<Shared>,
    pub(super) began: Instant,
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
    pub(super) sandbox_names: Names,
    pub(super) container_names: Names,
    pub(super) images: Images,
    pub(super) addresses: Addresses,
    /// By the full name of the image.
    pub(super) scripts: BTreeMap<String, Script>,
    pub(super) chooser: Option<Chooser>,
    pub(super) answerer: Option<Answerer>,
    /// How often each container of each pod was started.
    pub(super) starts: BTreeMap<(PodUid, String), u32>,
    pub(super) runtime: Condition,
    pub(super) network: Condition,
    /// Stops are called done, and nothing is stopped.
    pub(super) stops_in_vain: bool,
    /// As UpdateRuntimeConfig told it.
    pub(super) pod_cidr: Option<String>,
    pub(super) hub: Hub,
    pub(super) rules: Rules,
    pub(super) journal: Journal,
    pub(super) ids: Random,
    /// Ids for the next sandboxes and containers, before any left to chance.
    pub(super) given_ids: VecDeque<String>,
    pub(super) order: Random,
    /// Counts changes, for those who wait for one.
    pub(super) changes: watch::Sender<u64>,
    next_pid: u32,
    last_stamp: (i64, i64),
}

impl World {
    pub(super) fn next_id(&mut self) -> String {
        self.given_ids.pop_front().unwrap_or_else(|| self.ids.hex64())
    }

    pub(super) fn new(options: FakeOptions, me: Weak<Shared>) -> Self {
        let seed = options.seed;
        Self {
            me,
            began: Instant::now(),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            sandbox_names: Names::default(),
            container_names: Names::default(),
            images: Images::default(),
            addresses: Addresses::default(),
            scripts: BTreeMap::new(),
            chooser: None,
            answerer: None,
            starts: BTreeMap::new(),
            runtime: Condition::Ready,
            network: Condition::Ready,
            stops_in_vain: false,
            pod_cidr: None,
            hub: Hub::default(),
            rules: Rules::new(Random::new(seed, 1)),
            journal: Journal::new(options.keep_calls),
            ids: Random::new(seed, 2),
            given_ids: VecDeque::new(),
            order: Random::new(seed, 3),
            changes: watch::Sender::new(0),
            next_pid: 1000,
            last_stamp: (0, 0),
            options,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.options.wall)()
    }

    /// Nanoseconds since 1970. Two stamps of one moment differ, as on any real machine: what was
    /// made first must be told from what was made last.
    pub(super) fn stamp(&mut self) -> i64 {
        let now = i64::try_from(self.now().as_nanosecond()).unwrap_or(i64::MAX);
        let (last, ticks) = self.last_stamp;
        let ticks = if now == last { ticks + 1 } else { 0 };
        self.last_stamp = (now, ticks);
        now.saturating_add(ticks)
    }

    pub(super) fn pid(&mut self) -> u32 {
        self.next_pid = self.next_pid.wrapping_add(1);
        self.next_pid
    }

    /// Time since the fake was started.
    pub(super) fn age(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn touch(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    // === Who is meant ===

    pub(super) fn about_sandbox(&self, id: &str) -> About {
        let pod = self.sandboxes.get(id).map(|sandbox| sandbox.pod.clone());
        About { pod, sandbox_id: Some(id.to_owned()), ..About::default() }
    }

    pub(super) fn about_container(&self, id: &str) -> About {
        let container_id = Some(id.to_owned());
        match self.containers.get(id) {
            None => About { container_id, ..About::default() },
            Some(container) => About {
                pod: Some(container.pod.clone()),
                container: Some(container.name.clone()),
                container_id,
                sandbox_id: Some(container.sandbox.clone()),
                image: None,
            },
        }
    }

    /// The pod whose objects alone are listed; unnamed if the runtime has none of them.
    pub(super) fn about_selector(&self, wanted: Option<&BTreeMap<String, String>>) -> About {
        let Some(uid) = wanted.and_then(|labels| labels.get(labels::POD_UID)) else {
            return About::default();
        };
        let known = self.sandboxes.values().find(|s| s.pod.uid.as_str() == uid);
        let pod = known.map(|sandbox| sandbox.pod.clone()).unwrap_or_else(|| PodRef {
            uid: PodUid::new(uid.as_str()),
            name: PodName::new("", ""),
        });
        About { pod: Some(pod), ..About::default() }
    }

    // === Telling ===

    /// Publishes what happened to a container or a sandbox.
    pub(super) fn tell(&mut self, what: &What, id: &str) {
        self.touch();
        let (about, pid) = match (self.containers.get(id), self.sandboxes.get(id)) {
            (Some(container), _) => (self.about_container(id), container.pid),
            (None, Some(sandbox)) => (self.about_sandbox(id), sandbox.pid),
            (None, None) => return,
        };
        let fault = self.rules.judge_event(&about);
        let (containerd, cri) = self.hub.followed();
        let news = News {
            envelopes: if containerd {
                events::envelopes(what, id, pid, self.now())
            } else {
                vec![]
            },
            event: about.sandbox_id.filter(|_| cri).and_then(|of| self.event(what, id, &of)),
        };
        match fault {
            None => self.hub.tell(&news),
            Some(EventFault::Drop) => {}
            Some(EventFault::Duplicate) => {
                self.hub.tell(&news);
                self.hub.tell(&news);
            }
            Some(EventFault::Late(by)) => {
                let me = self.me.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(by).await;
                    if let Some(shared) = me.upgrade() {
                        shared.world.lock().hub.tell(&news);
                    }
                });
            }
        }
    }

    fn event(&self, what: &What, id: &str, sandbox: &str) -> Option<cri::ContainerEventResponse> {
        let sandbox = self.sandboxes.get(sandbox)?;
        let of_pod = self.containers.values().filter(|c| c.sandbox == sandbox.id);
        Some(cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: events::event_type(what)?.into(),
            created_at: i64::try_from(self.now().as_nanosecond()).unwrap_or(i64::MAX),
            pod_sandbox_status: Some(sandbox.status()),
            containers_statuses: of_pod.map(|container| self.container_status(container)).collect(),
        })
    }
}
