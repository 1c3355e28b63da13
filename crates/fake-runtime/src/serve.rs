//! Processing of calls: recorded, checked, delayed or failed, carried out, answered.

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
use super::runtime_state::RuntimeState;
use super::wire::Line;

/// The fake's shared state.
pub(super) struct Shared {
    pub(super) runtime_state: Mutex<RuntimeState>,
    /// Cancelled when the last handle is gone.
    pub(super) shutdown: CancellationToken,
    process: Mutex<Process>,
    generation: AtomicU64,
    observer: Option<CallObserver>,
}

/// The runtime's process: it can end and be restarted; its state outlives it.
struct Process {
    up: bool,
    /// Cancelled with the process; all its work ends there.
    alive: CancellationToken,
    lines: Vec<Line>,
    next_line: u64,
}

impl Shared {
    pub(super) fn new(options: FakeOptions) -> Arc<Self> {
        let shutdown = CancellationToken::new();
        let process =
            Process { up: true, alive: shutdown.child_token(), lines: Vec::new(), next_line: 0 };
        let observer = options.observer.clone();
        Arc::new_cyclic(|me: &Weak<Self>| Self {
            runtime_state: Mutex::new(RuntimeState::new(options, me.clone())),
            shutdown,
            process: Mutex::new(process),
            generation: AtomicU64::new(0),
            observer,
        })
    }

    /// Number of the runtime's process: each restart begins a new one.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// A new connection, unless the runtime is down.
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
        let mut runtime_state = self.runtime_state.lock();
        let at = runtime_state.age();
        runtime_state.journal.cut(line.id, at);
    }

    /// Every connection breaks.
    pub(super) fn hang_up(&self) {
        let lines = std::mem::take(&mut self.process.lock().lines);
        for line in &lines {
            self.cut(line);
        }
    }

    /// The process ends, interrupting all its work.
    pub(super) fn go_down(&self) {
        {
            let mut process = self.process.lock();
            process.up = false;
            // First, so that interrupted work can distinguish this from an abandoned call.
            self.generation.fetch_add(1, Ordering::SeqCst);
            process.alive.cancel();
        }
        self.hang_up();
        self.runtime_state.lock().hub.clear();
    }

    pub(super) fn come_up(&self) {
        let mut process = self.process.lock();
        if !process.up {
            process.up = true;
            process.alive = self.shutdown.child_token();
        }
    }

    /// Serves one call; `work` gets the delay to apply.
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
                    // In a task of its own: it continues when the caller has given up.
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
                    // The result of the first is dropped.
                    let _ = work.clone()(me.clone(), pace).await;
                    work(me, Pace::After(Duration::ZERO)).await
                }
                Some(Fault::Overtaken(most)) => {
                    let answer = work(me, pace).await;
                    // Elapsed: no later call came.
                    let _ = tokio::time::timeout(most, self.overtaken(rpc, seq)).await;
                    answer
                }
            }
        };
        // A runtime that is down does nothing more, not even work that is due now.
        let answer = tokio::select! { biased;
            () = alive.cancelled() => return Err(Status::unavailable("the runtime went down")),
            answer = answer => answer,
        };
        call.outcome = match &answer {
            Ok(_) => Outcome::Done,
            Err(status) => Outcome::Failed(status.code()),
        };
        self.runtime_state.lock().journal.note_response(rpc, seq);
        answer.map(Response::new)
    }

    /// Records a call, and returns its fault.
    fn note(self: &Arc<Self>, via: &Via, rpc: Rpc, about: &About) -> (Ongoing, Verdict) {
        let mut runtime_state = self.runtime_state.lock();
        let verdict = runtime_state.rules.judge(rpc, about);
        let at = runtime_state.age();
        let line = via.line.as_ref().map(|line| line.id);
        let (deadline, grace) = (via.deadline, via.grace);
        let fault = verdict.recorded();
        let arrival =
            Arrival { rpc, about: about.clone(), at, line, deadline, grace, fault: fault.clone() };
        let seq = runtime_state.journal.arrive(arrival);
        drop(runtime_state);
        let arrived = CallProgress::Arrived { about, request: &via.request, fault: fault.as_ref() };
        self.observe(seq, rpc, at, arrived);
        (Ongoing { shared: self.clone(), seq, rpc, outcome: Outcome::Abandoned }, verdict)
    }

    fn observe(&self, seq: u64, rpc: Rpc, at: Duration, progress: CallProgress<'_>) {
        if let Some(observer) = &self.observer {
            observer(&ObservedCall { seq, rpc, at, progress });
        }
    }

    /// Serves a call that only reads, or changes something at once.
    pub(super) async fn respond<T: Send + 'static>(
        self: &Arc<Self>,
        via: Via,
        rpc: Rpc,
        about: About,
        look: impl FnOnce(&mut RuntimeState) -> Result<T, Status> + Clone + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let work = |shared: Arc<Self>, pace: Pace| async move {
            pace.keep().await;
            look(&mut shared.runtime_state.lock())
        };
        self.serve(via, rpc, about, work).await
    }

    /// Waits until a later call of this method was answered.
    async fn overtaken(&self, rpc: Rpc, seq: u64) {
        let mut answered = self.runtime_state.lock().journal.answered();
        let later = |newest: &BTreeMap<Rpc, u64>| newest.get(&rpc).is_some_and(|at| *at > seq);
        // The sender exists as long as `self`.
        let _ = answered.wait_for(later).await;
    }

    async fn disconnect<T>(&self, line: Option<&Line>) -> Result<T, Status> {
        if let Some(line) = line {
            self.cut(line);
        }
        // No response is sent; the end of the connection drops this future.
        std::future::pending().await
    }
}

/// Connection and metadata of a call.
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

/// Delay before the work is done.
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

/// A call with a waiting caller. However it ends, that is recorded.
struct Ongoing {
    shared: Arc<Shared>,
    seq: u64,
    rpc: Rpc,
    outcome: Outcome,
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        let mut runtime_state = self.shared.runtime_state.lock();
        let at = runtime_state.age();
        runtime_state.journal.end(self.seq, at, self.outcome);
        drop(runtime_state);
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
    fn grpc_timeout_is_parsed() {
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
