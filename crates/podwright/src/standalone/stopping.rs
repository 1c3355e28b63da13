//! Asks the running agent to stop all pods, and waits for it.
//!
//! The agent has the specs, the hooks and the order; this only asks, waits and says what for. A
//! command that is interrupted here leaves an agent that goes on stopping pods: the next `down`
//! asks again, which changes nothing, and the next `up` starts another agent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use podwright_node::inquiry;
use podwright_node::pods::{StoppingPod, StoppingPods};

use super::Layout;
use super::agent::Agent;

const POLL: Duration = Duration::from_millis(100);
/// How long the agent may take to answer one question.
const ANSWER: Duration = Duration::from_secs(5);
/// What stopping may take beyond the longest grace period: sandboxes, networks, a busy machine.
const SLACK: Duration = Duration::from_secs(30);
/// How long an agent that has just started may take to know all pods.
const KNOWING: Duration = Duration::from_secs(30);
/// How often it is said what is waited for.
const PROGRESS: Duration = Duration::from_secs(5);

/// How pods were stopped.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Pods that ran, as NAMESPACE/NAME.
    pub ran: BTreeSet<String>,
    /// Those of them that had not stopped in time.
    pub late: BTreeSet<String>,
}

/// Waits until the agent answers; false if it ends before, does not in time, or cannot stop pods.
pub async fn answers(layout: &Layout, within: Duration) -> anyhow::Result<bool> {
    let agent = Agent::of(layout).daemon();
    let answering = async {
        while agent.running()?.is_some() {
            match ask(layout, Method::GET).await {
                Ok(_) => return Ok(true),
                Err(AskError::Unknown) => return Ok(false),
                Err(AskError::Failed(_)) => tokio::time::sleep(POLL).await,
            }
        }
        Ok(false)
    };
    tokio::time::timeout(within, answering).await.unwrap_or(Ok(false))
}

/// Whether the agent was asked to stop all pods.
pub async fn is_requested(layout: &Layout) -> bool {
    ask(layout, Method::GET).await.is_ok_and(|state| state.requested)
}

/// Asks the agent to stop all pods and waits until they have stopped, or `timeout` is over.
pub async fn stop_pods(
    layout: &Layout,
    timeout: Option<Duration>,
    say: &impl Fn(&str),
) -> anyhow::Result<Stopped> {
    let began = Instant::now();
    let mut state = request(layout, timeout.unwrap_or(KNOWING)).await?;
    let mut progress = Progress { began, said: began, stopped: Stopped::default() };
    progress.begin(&state, say);
    loop {
        progress.stopped.ran.extend(state.pods.iter().filter(|pod| pod.alive).map(full_name));
        let waited = began.elapsed();
        let done = state.pods.is_empty() && (state.complete || waited >= KNOWING);
        if done {
            return Ok(progress.stopped);
        }
        let longest = state.pods.iter().map(|pod| pod.grace_seconds).max().unwrap_or_default();
        let longest = Duration::from_secs(longest).max(KNOWING) + SLACK;
        if waited >= timeout.unwrap_or(longest) {
            progress.stopped.late = state.pods.iter().map(full_name).collect();
            return Ok(progress.stopped);
        }
        tokio::time::sleep(POLL).await;
        match ask(layout, Method::GET).await {
            Ok(now) => {
                progress.tell(&state, &now, say);
                state = now;
            }
            // It goes on stopping them however slowly it answers.
            Err(_) if Agent::of(layout).daemon().running()?.is_some() => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Asks until the agent has heard it: to ask twice changes nothing.
async fn request(layout: &Layout, within: Duration) -> anyhow::Result<StoppingPods> {
    let began = Instant::now();
    loop {
        let error = match ask(layout, Method::POST).await {
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

struct Progress {
    began: Instant,
    said: Instant,
    stopped: Stopped,
}

impl Progress {
    fn begin(&self, state: &StoppingPods, say: &impl Fn(&str)) {
        for pod in state.pods.iter().filter(|pod| pod.alive) {
            say(&format!("stopping {} (grace period {} s)", full_name(pod), pod.grace_seconds));
        }
    }

    /// Says which pods stopped meanwhile and, now and then, what is waited for.
    fn tell(&mut self, before: &StoppingPods, now: &StoppingPods, say: &impl Fn(&str)) {
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

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("the agent is of a build that cannot be asked to stop the pods")]
    Unknown,
    #[error("cannot ask the agent to stop the pods: {0:#}")]
    Failed(anyhow::Error),
}

async fn ask(layout: &Layout, method: Method) -> Result<StoppingPods, AskError> {
    let asking = async {
        let stream = inquiry::connect(&layout.root_dir()).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let request = Request::builder().method(method).uri("/stop").header("host", "agent");
        let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        connection.abort();
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        anyhow::ensure!(status.is_success(), "it answers {status}");
        anyhow::Ok(Some(serde_json::from_slice(&body)?))
    };
    let answer = tokio::time::timeout(ANSWER, asking).await;
    match answer.context("it does not answer").flatten() {
        Ok(Some(state)) => Ok(state),
        Ok(None) => Err(AskError::Unknown),
        Err(error) => Err(AskError::Failed(error)),
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

    /// An agent, which is this process, that gives these answers one by one and then the last again.
    struct FakeAgent {
        layout: Layout,
        serving: tokio::task::JoinHandle<()>,
        _directory: tempfile::TempDir,
    }

    impl FakeAgent {
        fn answering(answers: Vec<(u16, StoppingPods)>) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let layout =
                Layout { state: directory.path().join("s"), runs: directory.path().join("run") };
            for directory in [layout.root_dir(), layout.run()] {
                std::fs::create_dir_all(directory).unwrap();
            }
            Agent::of(&layout).daemon().note_self().unwrap();
            let socket = layout.root_dir().join(inquiry::SOCKET);
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            let serving = tokio::spawn(async move {
                let mut answers = answers.into_iter().peekable();
                while let Some((status, state)) = answers.peek().cloned() {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let mut asked = [0; 4096];
                    // The questions are short, and all are answered the same.
                    let _ = stream.read(&mut asked).await.unwrap();
                    let body = serde_json::to_string(&state).unwrap();
                    let length = body.len();
                    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n");
                    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
                    if answers.len() > 1 {
                        answers.next();
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
    async fn agent_that_fails_to_answer_now_and_then_is_asked_again() {
        let running = || pods_left(vec![pod("db", &["postgres"])]);
        let none = || pods_left(Vec::new());
        let agent = FakeAgent::answering(vec![
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
        // One that does not answer until the time is over has not stopped them.
        let agent = FakeAgent::answering(vec![(200, running()), (500, none())]);
        let timeout = Some(Duration::from_millis(300));
        let stopped = stop_pods(&agent.layout, timeout, &|_| {}).await.unwrap();
        assert_eq!(stopped.late, ["default/db".to_owned()].into());
        // One that has ended is not waited for.
        let agent = FakeAgent::answering(vec![(200, running()), (500, none())]);
        Agent::of(&agent.layout).daemon().forget();
        stop_pods(&agent.layout, None, &|_| {}).await.unwrap_err();
    }

    #[tokio::test]
    async fn agent_of_a_build_without_the_question_is_not_waited_for() {
        let agent = FakeAgent::answering(vec![(404, pods_left(Vec::new()))]);
        let began = Instant::now();
        assert!(!answers(&agent.layout, Duration::from_secs(60)).await.unwrap());
        assert!(began.elapsed() < Duration::from_secs(30));
        let agent = FakeAgent::answering(vec![(200, pods_left(Vec::new()))]);
        assert!(answers(&agent.layout, Duration::from_secs(60)).await.unwrap());
        let hangs = FakeAgent::answering(vec![(500, pods_left(Vec::new()))]);
        assert!(!answers(&hangs.layout, Duration::from_millis(200)).await.unwrap());
    }

    #[test]
    fn progress_names_pods_what_they_wait_for_and_how_long() {
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let began = Instant::now().checked_sub(PROGRESS).unwrap();
        let mut progress = Progress { began, said: began, stopped: Stopped::default() };
        let before = pods_left(vec![pod("db", &["postgres", "backup"]), pod("web", &["nginx"])]);
        progress.begin(&before, &say);
        progress.stopped.ran = before.pods.iter().map(full_name).collect();
        let now = pods_left(vec![pod("db", &["postgres"])]);
        progress.tell(&before, &now, &say);
        progress.tell(&now, &now, &say);
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
