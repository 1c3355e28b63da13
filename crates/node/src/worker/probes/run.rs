//! One probe of a container.

use std::net::IpAddr;
use std::time::Duration;

use podwright_core::pod::Pod;
use podwright_core::probe::ProbeOutcome;
use podwright_core::probe::check::{self, Check, HttpCheck, Timing};
use podwright_core::probe::http;
use podwright_core::probe::schedule::DueProbe;
use podwright_cri::Kind;
use tokio::time::Instant;

use super::{ProbeContext, grpc};
use crate::client::http_get::{self, GetError, GetRequest};

/// An outcome, and what the container answered. The answer is only for the users of the debug
/// socket: a response may contain secrets, which Events must not.
pub(super) struct ProbeRun {
    pub(super) outcome: ProbeOutcome,
    pub(super) answer: Option<String>,
}

impl From<ProbeOutcome> for ProbeRun {
    fn from(outcome: ProbeOutcome) -> Self {
        Self { outcome, answer: None }
    }
}

/// Runs a probe; if the probe itself cannot run, it is retried a few times.
pub(super) async fn run_probe(
    context: &ProbeContext,
    pod: &Pod,
    due: &DueProbe,
    address: Option<IpAddr>,
) -> ProbeRun {
    let container = pod.container(&due.container);
    let Some((container, probe)) = container.and_then(|c| Some((c, c.probe(due.kind)?))) else {
        return ProbeOutcome::error("the container no longer has this probe").into();
    };
    let check = match Check::of(container, probe) {
        Ok(check) => check,
        Err(error) => return ProbeOutcome::error(error.to_string()).into(),
    };
    let timeout = Timing::of(probe).timeout;
    let mut tries = 1;
    loop {
        let run: ProbeRun = match &check {
            Check::Exec { command } => exec(context, due, command.clone(), timeout).await,
            Check::Http(check) => match at(check.host.as_deref(), address) {
                Some(address) => http(check, address, timeout).await,
                None => no_address().into(),
            },
            Check::Tcp { host, port } => match host.clone().or(address.map(|ip| ip.to_string())) {
                Some(host) => tcp(&host, *port, timeout).await.into(),
                None => no_address().into(),
            },
            Check::Grpc { port, service } => match address {
                Some(address) => grpc::check(address, *port, service, timeout).await.into(),
                None => no_address().into(),
            },
        };
        match run.outcome {
            ProbeOutcome::Error { .. } if tries < check::TRIES => tries += 1,
            _ => return run,
        }
    }
}

fn no_address() -> ProbeOutcome {
    ProbeOutcome::error("the pod has no address")
}

/// The pod's address; a placeholder for a check that names its host.
fn at(host: Option<&str>, address: Option<IpAddr>) -> Option<IpAddr> {
    address.or(host.map(|_| IpAddr::from([0; 16])))
}

async fn exec(
    context: &ProbeContext,
    due: &DueProbe,
    command: Vec<String>,
    timeout: Duration,
) -> ProbeRun {
    match context.runtime.exec(&due.instance, command, Some(timeout)).await {
        Ok(output) => {
            let mut text = output.stdout;
            text.extend_from_slice(&output.stderr);
            let text = check::kept(&text);
            let answer = Some(check::exec_answer(output.exit_code, &text));
            let outcome = match output.exit_code {
                0 => ProbeOutcome::Success,
                _ => ProbeOutcome::Failure(text),
            };
            ProbeRun { outcome, answer }
        }
        Err(error) if error.kind == Kind::TimedOut => ProbeOutcome::Failure(error.message).into(),
        Err(error) => ProbeOutcome::error(error.rpc_text()).into(),
    }
}

async fn http(check: &HttpCheck, address: IpAddr, timeout: Duration) -> ProbeRun {
    let mut request = GetRequest::of(check, address, check::USER_AGENT);
    request.deadline = Some(Instant::now() + timeout);
    match http_get::get(&request).await {
        Ok(response) => ProbeRun {
            outcome: http::outcome(response.status, &response.body),
            answer: Some(http::answer(response.status, &response.body)),
        },
        Err(GetError::Body { problem }) => {
            ProbeOutcome::Error { text: problem, state: "failure" }.into()
        }
        Err(error @ (GetError::Failed { .. } | GetError::NoTls { .. })) => {
            ProbeOutcome::Failure(error.to_string()).into()
        }
    }
}

async fn tcp(host: &str, port: u16, timeout: Duration) -> ProbeOutcome {
    match tokio::time::timeout(timeout, http_get::connect(host, port)).await {
        Ok(Ok(_)) => ProbeOutcome::Success,
        Ok(Err(error)) => ProbeOutcome::Failure(http_get::dial_error(host, port, &error)),
        Err(_) => {
            let address = http_get::authority(host, port);
            ProbeOutcome::Failure(format!("dial tcp {address}: i/o timeout"))
        }
    }
}
