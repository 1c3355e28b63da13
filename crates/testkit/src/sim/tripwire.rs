//! Ends the agent at a step of its own, so that every step can be its last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use podwright_cri::fake::{Fake, Fault, Rpc, Rule};
use podwright_host::change::guard;
use tokio_util::sync::CancellationToken;

use super::api::Api;

/// Whether the last step still happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The request reached nobody.
    Before,
    /// It was carried out; the agent never heard.
    After,
}

/// Which steps count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// What changes the runtime or the API.
    Changes,
    /// Every look at the runtime besides.
    Everything,
    /// What changes files, mounts and control groups, system call by system call.
    Files,
}

#[derive(Debug)]
pub struct Tripwire {
    at: u64,
    moment: Moment,
    seen: AtomicU64,
    end: CancellationToken,
}

impl Tripwire {
    pub(super) fn new(at: u64, moment: Moment, end: CancellationToken) -> Arc<Self> {
        Arc::new(Self { at, moment, seen: AtomicU64::new(0), end })
    }

    /// How many steps were made.
    pub fn steps(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// A step of which the other moment is asked about too; true if it was the last.
    pub(super) fn step(&self, moment: Moment) -> bool {
        // A wire ends only the agent it was strung for.
        if moment != self.moment || self.end.is_cancelled() {
            return false;
        }
        let last = self.seen.fetch_add(1, Relaxed) + 1 == self.at;
        if last {
            self.end.cancel();
        }
        last
    }

    /// Strings the wire where what counts passes by.
    pub(super) fn string(self: &Arc<Self>, fake: &Fake, api: &Api, counted: Counted) {
        match counted {
            Counted::Changes => {
                self.through_runtime(fake, |rpc| rpc.changes_pods());
                api.arm(Some(self.clone()));
            }
            Counted::Everything => {
                let streams = [Rpc::GetContainerEvents, Rpc::Subscribe];
                self.through_runtime(fake, |rpc| !streams.contains(rpc));
                api.arm(Some(self.clone()));
            }
            Counted::Files => self.through_machine(),
        }
    }

    /// A dead agent changes nothing, until the next one is started. What was done is in the files,
    /// so there is no other moment than the one before.
    fn through_machine(self: &Arc<Self>) {
        let this = self.clone();
        guard::post(move || !this.step(this.moment) && !this.end.is_cancelled());
    }

    fn through_runtime(self: &Arc<Self>, fake: &Fake, counts: impl Fn(&Rpc) -> bool) {
        let rpcs = Rpc::ALL.iter().copied().filter(counts);
        let (this, moment) = (self.clone(), self.moment);
        let fault = match moment {
            Moment::Before => Fault::Disconnect,
            Moment::After => Fault::DoneButDisconnect,
        };
        fake.fail(Rule::on_any_of(rpcs, fault).only(move |_| this.step(moment)));
    }
}
