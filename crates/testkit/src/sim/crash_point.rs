//! Crash points: kill the agent at a chosen step, so that every step can be its last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use podwright_fake_runtime::{Fake, Fault, Rpc, Rule};
use podwright_host::change::guard;
use tokio_util::sync::CancellationToken;

use super::api::Api;

/// Whether the last step still happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The request was not received.
    Before,
    /// It was carried out; the agent did not get the response.
    After,
}

/// Which steps count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Calls that change the runtime or the API.
    Changes,
    /// Also every read from the runtime.
    Everything,
    /// System calls that change files, mounts and cgroups.
    Files,
}

#[derive(Debug)]
pub struct CrashPoint {
    at: u64,
    moment: Moment,
    seen: AtomicU64,
    end: CancellationToken,
}

impl CrashPoint {
    pub(super) fn new(at: u64, moment: Moment, end: CancellationToken) -> Arc<Self> {
        Arc::new(Self { at, moment, seen: AtomicU64::new(0), end })
    }

    /// How many steps were made.
    pub fn steps(&self) -> u64 {
        self.seen.load(Relaxed)
    }

    /// Counts a step if `moment` is the configured one; true if it was the last.
    pub(super) fn step(&self, moment: Moment) -> bool {
        // A crash point ends only the agent it was set for.
        if moment != self.moment || self.end.is_cancelled() {
            return false;
        }
        let last = self.seen.fetch_add(1, Relaxed) + 1 == self.at;
        if last {
            self.end.cancel();
        }
        last
    }

    /// Installs the crash point in the fake runtime, the API or the system calls.
    pub(super) fn install(self: &Arc<Self>, fake: &Fake, api: &Api, counted: Counted) {
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

    /// A killed agent changes nothing until the next one is started. A system call has either
    /// happened or not, so both moments are the same here.
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
