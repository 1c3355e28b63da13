//! Asks the running agent to stop all pods, and waits for it.
//!
//! The agent has the specs, the hooks and the order; this only asks, waits and says what for. A
//! command that is interrupted here leaves an agent that goes on stopping pods: the next `down`
//! asks again, which changes nothing, and the next `up` starts another agent.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use http::{Method, Request};
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

/// Waits until the agent answers; false if it ends before, or does not in time.
pub async fn answers(layout: &Layout, within: Duration) -> anyhow::Result<bool> {
    let agent = Agent::of(layout).daemon();
    let began = Instant::now();
    while began.elapsed() < within && agent.running()?.is_some() {
        if ask(layout, Method::GET).await.is_ok() {
            return Ok(true);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(false)
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
    let mut state = ask(layout, Method::POST).await?;
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
        let now = ask(layout, Method::GET).await?;
        progress.tell(&state, &now, say);
        state = now;
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

async fn ask(layout: &Layout, method: Method) -> anyhow::Result<StoppingPods> {
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
        anyhow::ensure!(status.is_success(), "it answers {status}");
        anyhow::Ok(serde_json::from_slice(&body)?)
    };
    let answer = tokio::time::timeout(ANSWER, asking).await;
    answer.context("it does not answer").flatten().context("cannot ask the agent to stop the pods")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

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

    #[test]
    fn progress_names_pods_what_they_wait_for_and_how_long() {
        let said = RefCell::new(Vec::new());
        let say = |text: &str| said.borrow_mut().push(text.to_owned());
        let began = Instant::now().checked_sub(PROGRESS).unwrap();
        let of = |pods: Vec<StoppingPod>| StoppingPods { requested: true, complete: true, pods };
        let mut progress = Progress { began, said: began, stopped: Stopped::default() };
        let before = of(vec![pod("db", &["postgres", "backup"]), pod("web", &["nginx"])]);
        progress.begin(&before, &say);
        progress.stopped.ran = before.pods.iter().map(full_name).collect();
        let now = of(vec![pod("db", &["postgres"])]);
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
