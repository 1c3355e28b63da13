//! State of the fake runtime, under one lock: each change is atomic.

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
use super::events::{self, EventKind, Hub, RuntimeEvent};
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
/// Handles an exec command.
pub(super) type ExecHandler = Arc<dyn Fn(&ExecCall) -> Option<ExecReply> + Send + Sync>;

pub(super) struct RuntimeState {
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
    pub(super) exec_handler: Option<ExecHandler>,
    /// How often each container of each pod was started.
    pub(super) starts: BTreeMap<(PodUid, String), u32>,
    pub(super) runtime: Condition,
    pub(super) network: Condition,
    /// Stops succeed without effect.
    pub(super) ignores_stops: bool,
    /// As set by UpdateRuntimeConfig.
    pub(super) pod_cidr: Option<String>,
    pub(super) hub: Hub,
    pub(super) rules: Rules,
    pub(super) journal: Journal,
    pub(super) ids: Random,
    /// Ids for the next sandboxes and containers; further ids are random.
    pub(super) given_ids: VecDeque<String>,
    pub(super) order: Random,
    /// Counts changes, for tasks that wait for one.
    pub(super) changes: watch::Sender<u64>,
    next_pid: u32,
    last_stamp: (i64, i64),
}

impl RuntimeState {
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
            exec_handler: None,
            starts: BTreeMap::new(),
            runtime: Condition::Ready,
            network: Condition::Ready,
            ignores_stops: false,
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

    /// Nanoseconds since 1970. Two timestamps of one moment differ, as on a real machine: the order
    /// of creation must be visible.
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

    // === Subjects of calls ===

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

    /// The pod whose objects alone are listed; without a name if the runtime has none of them.
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

    // === Events ===

    /// Publishes what happened to a container or a sandbox.
    pub(super) fn publish(&mut self, what: &EventKind, id: &str) {
        self.touch();
        let (about, pid) = match (self.containers.get(id), self.sandboxes.get(id)) {
            (Some(container), _) => (self.about_container(id), container.pid),
            (None, Some(sandbox)) => (self.about_sandbox(id), sandbox.pid),
            (None, None) => return,
        };
        let fault = self.rules.judge_event(&about);
        let (containerd, cri) = self.hub.followed();
        let event_message = RuntimeEvent {
            envelopes: if containerd {
                events::envelopes(what, id, pid, self.now())
            } else {
                vec![]
            },
            event: about.sandbox_id.filter(|_| cri).and_then(|of| self.event(what, id, &of)),
        };
        match fault {
            None => self.hub.publish(&event_message),
            Some(EventFault::Drop) => {}
            Some(EventFault::Duplicate) => {
                self.hub.publish(&event_message);
                self.hub.publish(&event_message);
            }
            Some(EventFault::Late(by)) => {
                let me = self.me.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(by).await;
                    if let Some(shared) = me.upgrade() {
                        shared.runtime_state.lock().hub.publish(&event_message);
                    }
                });
            }
        }
    }

    fn event(
        &self,
        what: &EventKind,
        id: &str,
        sandbox: &str,
    ) -> Option<cri::ContainerEventResponse> {
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
