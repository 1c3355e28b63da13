//! How any call is served: noted, judged, carried out, answered, or not.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::faults::{Fault, Verdict};
use super::journal::{Arrival, Outcome};
use super::observer::{CallObserver, CallProgress, ObservedCall};
use super::options::FakeOptions;
use super::rpc::{About, Rpc};
use super::wire::Line;
use super::world::World;

/// The fake, as its parts share it.
pub(super) struct Shared {
    pub(super) world: Mutex<World>,
    /// Cancelled for good when the last handle is gone.
    pub(super) life: CancellationToken,
    process: Mutex<Process>,
    generation: AtomicU64,
    observer: Option<CallObserver>,
}

/// The runtime's process: it can end and be started again, and what it holds outlives it.
struct Process {
    up: bool,
    /// Cancelled with the process; all work in it ends there.
    alive: CancellationToken,
    lines: Vec<Line>,
    next_line: u64,
}

impl Shared {
    pub(super) fn new(options: FakeOptions) -> Arc<Self> {
        let life = CancellationToken::new();
        let process =
            Process { up: true, alive: life.child_token(), lines: Vec::new(), next_line: 0 };
        let observer = options.observer.clone();
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            world: Mutex::new(World::new(options, me.clone())),
            life,
            process: Mutex::new(process),
            generation: AtomicU64::new(0),
            observer,
        })
    }

    /// Which process of the runtime this is: each restart begins a new one.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// A new connection, unless nobody listens.
    pub(super) fn accept(&self) -> Option<Line> {
        let mut process = self.process.lock();
        if !process.up {
            return None;
        }
        process.lines.retain(|line| !line.is_cut());
        let line = Line::new(process.next_line);
        process.next_line += 1;
        process.lines.push(line.clone());
        Some(line)
    }

    pub(super) fn cut(&self, line: &Line) {
        line.cut();
        let mut world = self.world.lock();
        let at = world.age();
        world.journal.cut(line.id, at);
    }

    /// Every connection breaks.
    pub(super) fn hang_up(&self) {
        let lines = std::mem::take(&mut self.process.lock().lines);
        for line in &lines {
            self.cut(line);
        }
    }

    /// The process ends, with all its work in the middle of whatever it was at.
    pub(super) fn go_down(&self) {
        {
            let mut process = self.process.lock();
            process.up = false;
            // First, so that work cut short knows that it is not merely abandoned.
            self.generation.fetch_add(1, Ordering::SeqCst);
            process.alive.cancel();
        }
        self.hang_up();
        self.world.lock().hub.clear();
    }

    pub(super) fn come_up(&self) {
        let mut process = self.process.lock();
        if !process.up {
            process.up = true;
            process.alive = self.life.child_token();
        }
    }

    /// Serves one call; `work` gets the pace at which to do it.
    pub(super) async fn serve<T, W>(
        self: &Arc<Self>,
        via: Via,
        rpc: Rpc,
        about: About,
        work: impl FnOnce(Arc<Self>, Pace) -> W + Clone + Send,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let alive = self.process.lock().alive.clone();
        let (mut call, verdict) = self.note(&via, rpc, &about);
        let pace = Pace::After(verdict.delay);
        let (me, seq) = (self.clone(), call.seq);
        let answer = async {
            match verdict.fault {
                None | Some(Fault::Delay(_)) => work(me, pace).await,
                Some(Fault::Error(code, text)) => {
                    pace.keep().await;
                    Err(Status::new(code, text))
                }
                Some(Fault::DoneButError(code, text)) => {
                    work(me, pace).await.and(Err(Status::new(code, text)))
                }
                Some(Fault::Hang) => work(me, Pace::Never).await,
                Some(Fault::Late(by)) => {
                    let work = work(me, Pace::After(verdict.delay.saturating_add(by)));
                    let alive = alive.clone();
                    // In a task of its own: it goes on when the caller has given up.
                    tokio::spawn(async move {
                        tokio::select! { biased;
                            () = alive.cancelled() => {}
                            _ = work => {}
                        }
                    });
                    std::future::pending().await
                }
                Some(Fault::Disconnect) => {
                    pace.keep().await;
                    self.disconnect(via.line.as_ref()).await
                }
                Some(Fault::DoneButDisconnect) => {
                    work(me, pace).await?;
                    self.disconnect(via.line.as_ref()).await
                }
                Some(Fault::Twice) => {
                    // What became of the first nobody hears.
                    let _ = work.clone()(me.clone(), pace).await;
                    work(me, Pace::After(Duration::ZERO)).await
                }
                Some(Fault::Overtaken(most)) => {
                    let answer = work(me, pace).await;
                    // Elapsed: nobody came by.
                    let _ = tokio::time::timeout(most, self.overtaken(rpc, seq)).await;
                    answer
                }
            }
        };
        // A runtime that is gone does nothing more, not even what was due this very moment.
        let answer = tokio::select! { biased;
            () = alive.cancelled() => return Err(Status::unavailable("the runtime went down")),
            answer = answer => answer,
        };
        call.outcome = match &answer {
            Ok(_) => Outcome::Done,
            Err(status) => Outcome::Failed(status.code()),
        };
        self.world.lock().journal.note_answer(rpc, seq);
        answer.map(Response::new)
    }

    /// Puts a call on record, and says what is to become of it.
    fn note(self: &Arc<Self>, via: &Via, rpc: Rpc, about: &About) -> (Ongoing, Verdict) {
        let mut world = self.world.lock();
        let verdict = world.rules.judge(rpc, about);
        let at = world.age();
        let line = via.line.as_ref().map(|line| line.id);
        let (deadline, grace) = (via.deadline, via.grace);
        let fault = verdict.recorded();
        let arrival =
            Arrival { rpc, about: about.clone(), at, line, deadline, grace, fault: fault.clone() };
        let seq = world.journal.arrive(arrival);
        drop(world);
        let arrived = CallProgress::Arrived { about, request: &via.request, fault: fault.as_ref() };
        self.observe(seq, rpc, at, arrived);
        (Ongoing { shared: self.clone(), seq, rpc, outcome: Outcome::Abandoned }, verdict)
    }

    fn observe(&self, seq: u64, rpc: Rpc, at: Duration, progress: CallProgress<'_>) {
        if let Some(observer) = &self.observer {
            observer(&ObservedCall { seq, rpc, at, progress });
        }
    }

    /// Serves a call that only looks, or changes something at once.
    pub(super) async fn answer<T: Send + 'static>(
        self: &Arc<Self>,
        via: Via,
        rpc: Rpc,
        about: About,
        look: impl FnOnce(&mut World) -> Result<T, Status> + Clone + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let work = |shared: Arc<Self>, pace: Pace| async move {
            pace.keep().await;
            look(&mut shared.world.lock())
        };
        self.serve(via, rpc, about, work).await
    }

    /// Waits until a call of this method that came after this one was answered.
    async fn overtaken(&self, rpc: Rpc, seq: u64) {
        let mut answered = self.world.lock().journal.answered();
        let later = |newest: &BTreeMap<Rpc, u64>| newest.get(&rpc).is_some_and(|at| *at > seq);
        // The sender lives as long as `self`.
        let _ = answered.wait_for(later).await;
    }

    async fn disconnect<T>(&self, line: Option<&Line>) -> Result<T, Status> {
        if let Some(line) = line {
            self.cut(line);
        }
        // No answer comes; the connection's end drops us.
        std::future::pending().await
    }
}

/// By which way a call came.
#[derive(Debug, Default)]
pub(super) struct Via {
    line: Option<Line>,
    deadline: Option<Instant>,
    /// The request in protobuf encoding, for the observer of calls.
    request: Vec<u8>,
    /// The timeout of a StopContainer.
    pub(super) grace: Option<i64>,
}

impl Via {
    pub(super) fn of<T: Message>(request: &Request<T>) -> Self {
        let timeout = request.metadata().get("grpc-timeout");
        let timeout = timeout.and_then(|value| timeout_of(value.to_str().ok()?));
        Self {
            line: request.extensions().get::<Line>().cloned(),
            deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            request: request.get_ref().encode_to_vec(),
            grace: None,
        }
    }
}

/// How long until the work is done.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    After(Duration),
    Never,
}

impl Pace {
    pub(super) async fn keep(self) {
        match self {
            Self::After(Duration::ZERO) => {}
            Self::After(wait) => tokio::time::sleep(wait).await,
            Self::Never => std::future::pending().await,
        }
    }
}

/// A call somebody waits for. However it ends, that is noted.
struct Ongoing {
    shared: Arc<Shared>,
    seq: u64,
    rpc: Rpc,
    outcome: Outcome,
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let mut world = self.shared.world.lock();
        let at = world.age();
        world.journal.end(self.seq, at, self.outcome);
        drop(world);
        self.shared.observe(self.seq, self.rpc, at, CallProgress::Ended(self.outcome));
    }
}

/// gRPC's `grpc-timeout`: at most eight digits and a unit.
fn timeout_of(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let value: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(value.checked_mul(3600)?),
        "M" => Duration::from_secs(value.checked_mul(60)?),
        "S" => Duration::from_secs(value),
        "m" => Duration::from_millis(value),
        "u" => Duration::from_micros(value),
        "n" => Duration::from_nanos(value),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_deadline_is_understood() {
        for (text, want) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("30S", Some(Duration::from_secs(30))),
            ("120000m", Some(Duration::from_secs(120))),
            ("5u", Some(Duration::from_micros(5))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("m", None),
            ("5x", None),
            ("-5m", None),
        ] {
            assert_eq!(timeout_of(text), want, "{text}");
        }
    }
}
