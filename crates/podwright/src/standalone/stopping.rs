//! Stop of all pods by the running agent, requested over its debug socket.
//!
//! The agent knows specs, hooks and order; this module sends the request, waits and reports
//! progress. If the command is interrupted, the agent continues to stop pods: the next `down`
//! repeats the request, which is idempotent, and the next `up` replaces the agent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use podwright_node::pods::{StoppingPod, StoppingPods};
use podwright_node::server::debug_socket;

use super::Layout;
use super::agent::Agent;

const POLL: Duration = Duration::from_millis(100);
/// Timeout of one request to the agent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time beyond the longest grace period, for sandboxes, networks and a busy machine.
const SLACK: Duration = Duration::from_secs(30);
/// Time an agent that has just started needs to learn of all pods.
const DISCOVERY: Duration = Duration::from_secs(30);
/// How often progress is reported.
const PROGRESS: Duration = Duration::from_secs(5);

/// Outcome of [`stop_pods`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Pods that were running, as NAMESPACE/NAME.
    pub ran: BTreeSet<String>,
    /// Pods that did not stop in time.
    pub late: BTreeSet<String>,
}

/// Waits until the agent responds; false if it exits, does not respond in time, or does not support
/// stopping pods.
pub async fn wait_until_responding(layout: &Layout, within: Duration) -> anyhow::Result<bool> {
    let agent = Agent::of(layout).daemon();
    let responding = async {
        while agent.running()?.is_some() {
            match send(layout, Method::GET).await {
                Ok(_) => return Ok(true),
                Err(RequestError::Unsupported) => return Ok(false),
                Err(RequestError::Failed(_)) => tokio::time::sleep(POLL).await,
            }
        }
        Ok(false)
    };
    tokio::time::timeout(within, responding).await.unwrap_or(Ok(false))
}

/// Whether the agent is stopping all pods.
pub async fn is_requested(layout: &Layout) -> bool {
    send(layout, Method::GET).await.is_ok_and(|state| state.requested)
}

/// Requests the agent to stop all pods and waits until they have stopped or `timeout` has passed.
pub async fn stop_pods(
    layout: &Layout,
    timeout: Option<Duration>,
    say: &impl Fn(&str),
) -> anyhow::Result<Stopped> {
    let began = Instant::now();
    let mut state = request(layout, timeout.unwrap_or(DISCOVERY)).await?;
    let mut progress = StopProgress { began, said: began, stopped: Stopped::default() };
    progress.begin(&state, say);
    loop {
        progress.stopped.ran.extend(state.pods.iter().filter(|pod| pod.alive).map(full_name));
        let waited = began.elapsed();
        let done = state.pods.is_empty() && (state.complete || waited >= DISCOVERY);
        if done {
            return Ok(progress.stopped);
        }
        let longest = state.pods.iter().map(|pod| pod.grace_seconds).max().unwrap_or_default();
        let longest = Duration::from_secs(longest).max(DISCOVERY) + SLACK;
        if waited >= timeout.unwrap_or(longest) {
            progress.stopped.late = state.pods.iter().map(full_name).collect();
            return Ok(progress.stopped);
        }
        tokio::time::sleep(POLL).await;
        match send(layout, Method::GET).await {
            Ok(now) => {
                progress.report(&state, &now, say);
                state = now;
            }
            // The agent continues to stop pods even if it responds slowly.
            Err(_) if Agent::of(layout).daemon().running()?.is_some() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends the stop request until it succeeds; it is idempotent.
async fn request(layout: &Layout, within: Duration) -> anyhow::Result<StoppingPods> {
    let began = Instant::now();
    loop {
        let error = match send(layout, Method::POST).await {
            Ok(state) => return Ok(state),
            Err(error) => error,
        };
        let late = began.elapsed() >= within;
        if late || Agent::of(layout).daemon().running()?.is_none() {
            return Err(error.into());
        }
        tokio::time::sleep(POLL).await;
    }
}

struct StopProgress {
    began: Instant,
    said: Instant,
    stopped: Stopped,
}

impl StopProgress {
    fn begin(&self, state: &StoppingPods, say: &impl Fn(&str)) {
        for pod in state.pods.iter().filter(|pod| pod.alive) {
            say(&format!("stopping {} (grace period {} s)", full_name(pod), pod.grace_seconds));
        }
    }

    /// Prints pods that have stopped since `before` and, periodically, what is still running.
    fn report(&mut self, before: &StoppingPods, now: &StoppingPods, say: &impl Fn(&str)) {
        let waited = self.began.elapsed().as_secs();
        for pod in before.pods.iter().filter(|pod| self.stopped.ran.contains(&full_name(pod))) {
            if !now.pods.iter().any(|other| other.uid == pod.uid) {
                say(&format!("{} stopped after {waited} s", full_name(pod)));
            }
        }
        if self.said.elapsed() >= PROGRESS {
            self.said = Instant::now();
            for pod in &now.pods {
                say(&waiting(pod, waited));
            }
        }
    }
}

fn waiting(pod: &StoppingPod, waited: u64) -> String {
    let what = match pod.containers.as_slice() {
        [] => "its sandbox".to_owned(),
        containers => containers.join(", "),
    };
    let grace = pod.grace_seconds;
    format!("waiting for {}: {what} ({waited} s of {grace} s)", full_name(pod))
}

fn full_name(pod: &StoppingPod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error("the agent is of an earlier build, which cannot stop all pods")]
    Unsupported,
    #[error("cannot request the agent to stop the pods: {0:#}")]
    Failed(anyhow::Error),
}

async fn send(layout: &Layout, method: Method) -> Result<StoppingPods, RequestError> {
    let exchange = async {
        let stream = debug_socket::connect(&layout.root_dir()).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::builder().method(method).uri("/stop").header("host", "agent");
        let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        anyhow::ensure!(status.is_success(), "status {status}");
        anyhow::Ok(Some(serde_json::from_slice(&body)?))
    };
    let outcome = tokio::time::timeout(REQUEST_TIMEOUT, exchange).await;
    match outcome.context("the agent does not respond").flatten() {
        Ok(Some(state)) => Ok(state),
        Ok(None) => Err(RequestError::Unsupported),
        Err(error) => Err(RequestError::Failed(error)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pod(name: &str, containers: &[&str]) -> StoppingPod {
        StoppingPod {
            namespace: "default".into(),
            name: name.into(),
            uid: name.into(),
            alive: true,
            containers: containers.iter().map(|name| (*name).to_owned()).collect(),
            grace_seconds: 30,
        }
    }

    /// An agent in this process that sends these responses in order and then repeats the last.
    struct FakeAgent {
        layout: Layout,
        serving: tokio::task::JoinHandle<()>,
        _directory: tempfile::TempDir,
    }

    impl FakeAgent {
        fn responding(responses: Vec<(u16, StoppingPods)>) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let layout =
                Layout { state: directory.path().join("s"), runs: directory.path().join("run") };
            for directory in [layout.root_dir(), layout.run()] {
                std::fs::create_dir_all(directory).unwrap();
            }
            Agent::of(&layout).daemon().write_own_pid_file().unwrap();
            let socket = layout.root_dir().join(debug_socket::SOCKET);
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            let serving = tokio::spawn(async move {
                let mut responses = responses.into_iter().peekable();
                while let Some((status, state)) = responses.peek().cloned() {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let mut request = [0; 4096];
                    // Requests are short, and the response does not depend on them.
                    let _ = stream.read(&mut request).await.unwrap();
                    let body = serde_json::to_string(&state).unwrap();
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n");
                    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                    if responses.len() > 1 {
                        responses.next();
                    }
                }
            });
            Self { layout, serving, _directory: directory }
        }
    }

    impl Drop for FakeAgent {
        fn drop(&mut self) {
            self.serving.abort();
        }
    }

    fn pods_left(pods: Vec<StoppingPod>) -> StoppingPods {
        StoppingPods { requested: true, complete: true, pods }
    }

    #[tokio::test]
    async fn failed_requests_are_retried() {
        let running = || pods_left(vec![pod("db", &["postgres"])]);
        let none = || pods_left(Vec::new());
        let agent = FakeAgent::responding(vec![
            (503, none()),
            (200, running()),
            (500, none()),
            (200, running()),
            (504, none()),
            (200, none()),
        ]);
        let stopped = stop_pods(&agent.layout, None, &|_| {}).await.unwrap();
        assert_eq!(stopped.ran, ["default/db".to_owned()].into());
        assert_eq!(stopped.late, BTreeSet::new());
        // Pods count as late if the agent does not respond until the timeout.
        let agent = FakeAgent::responding(vec![(200, running()), (500, none())]);
        let timeout = Some(Duration::from_millis(300));
        let stopped = stop_pods(&agent.layout, timeout, &|_| {}).await.unwrap();
        assert_eq!(stopped.late, ["default/db".to_owned()].into());
        // An agent that has exited is not waited for.
        let agent = FakeAgent::responding(vec![(200, running()), (500, none())]);
        Agent::of(&agent.layout).daemon().forget();
        stop_pods(&agent.layout, None, &|_| {}).await.unwrap_err();
    }

    #[tokio::test]
    async fn agent_that_does_not_support_the_request_is_not_waited_for() {
        let agent = FakeAgent::responding(vec![(404, pods_left(Vec::new()))]);
        let began = Instant::now();
        assert!(!wait_until_responding(&agent.layout, Duration::from_secs(60)).await.unwrap());
        assert!(began.elapsed() < Duration::from_secs(30));
        let agent = FakeAgent::responding(vec![(200, pods_left(Vec::new()))]);
        assert!(wait_until_responding(&agent.layout, Duration::from_secs(60)).await.unwrap());
        let hangs = FakeAgent::responding(vec![(500, pods_left(Vec::new()))]);
        assert!(!wait_until_responding(&hangs.layout, Duration::from_millis(200)).await.unwrap());
    }

    #[test]
    fn progress_names_pods_their_containers_and_the_elapsed_time() {
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let began = Instant::now().checked_sub(PROGRESS).unwrap();
        let mut progress = StopProgress { began, said: began, stopped: Stopped::default() };
        let before = pods_left(vec![pod("db", &["postgres", "backup"]), pod("web", &["nginx"])]);
        progress.begin(&before, &say);
        progress.stopped.ran = before.pods.iter().map(full_name).collect();
        let now = pods_left(vec![pod("db", &["postgres"])]);
        progress.report(&before, &now, &say);
        progress.report(&now, &now, &say);
        assert_eq!(
            said.into_inner(),
            [
                "stopping default/db (grace period 30 s)",
                "stopping default/web (grace period 30 s)",
                "default/web stopped after 5 s",
                "waiting for default/db: postgres (5 s of 30 s)",
            ]
        );
    }
}
