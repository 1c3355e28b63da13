//! Puts one question to a container.

use std::net::IpAddr;
use std::time::Duration;

use podwright_core::pod::Pod;
use podwright_core::probe::Outcome;
use podwright_core::probe::check::{self, Check, HttpCheck, Timing};
use podwright_core::probe::http;
use podwright_core::probe::schedule::Ask;
use podwright_cri::Kind;
use tokio::time::Instant;

use super::{Means, grpc};
use crate::http_get::{self, GetError, Question};

/// Asks until the question could be asked, a few times at most.
pub(super) async fn asked(means: &Means, pod: &Pod, ask: &Ask, address: Option<IpAddr>) -> Outcome {
    let container = pod.container(&ask.container);
    let Some((container, probe)) = container.and_then(|c| Some((c, c.probe(ask.kind)?))) else {
        return Outcome::error("the container has no such probe any more");
    };
    let check = match Check::of(container, probe) {
        Ok(check) => check,
        Err(error) => return Outcome::error(error.to_string()),
    };
    let timeout = Timing::of(probe).timeout;
    let mut tries = 1;
    loop {
        let outcome = match &check {
            Check::Exec { command } => exec(means, ask, command.clone(), timeout).await,
            Check::Http(check) => match at(check.host.as_deref(), address) {
                Some(address) => http(check, address, timeout).await,
                None => no_address(),
            },
            Check::Tcp { host, port } => match host.clone().or(address.map(|ip| ip.to_string())) {
                Some(host) => tcp(&host, *port, timeout).await,
                None => no_address(),
            },
            Check::Grpc { port, service } => match address {
                Some(address) => grpc::check(address, *port, service, timeout).await,
                None => no_address(),
            },
        };
        match outcome {
            Outcome::Error { .. } if tries < check::TRIES => tries += 1,
            outcome => return outcome,
        }
    }
}

fn no_address() -> Outcome {
    Outcome::error("the pod has no address")
}

/// The pod's address; any will do for a check that names its host.
fn at(host: Option<&str>, address: Option<IpAddr>) -> Option<IpAddr> {
    address.or(host.map(|_| IpAddr::from([0; 16])))
}

async fn exec(means: &Means, ask: &Ask, command: Vec<String>, timeout: Duration) -> Outcome {
    match means.runtime.exec(&ask.instance, command, Some(timeout)).await {
        Ok(output) if output.exit_code == 0 => Outcome::Success,
        Ok(output) => {
            let mut said = output.stdout;
            said.extend_from_slice(&output.stderr);
            Outcome::Failure(check::kept(&said))
        }
        Err(error) if error.kind == Kind::TimedOut => Outcome::Failure(error.message),
        Err(error) => Outcome::error(error.rpc_text()),
    }
}

async fn http(check: &HttpCheck, address: IpAddr, timeout: Duration) -> Outcome {
    let mut question = Question::of(check, address, check::USER_AGENT);
    question.deadline = Some(Instant::now() + timeout);
    match http_get::get(&question).await {
        Ok(answer) => http::outcome(answer.status, &answer.body),
        Err(GetError::Body { problem }) => Outcome::Error { text: problem, state: "failure" },
        Err(error @ (GetError::Failed { .. } | GetError::NoTls { .. })) => {
            Outcome::Failure(error.to_string())
        }
    }
}

async fn tcp(host: &str, port: u16, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, http_get::connect(host, port)).await {
        Ok(Ok(_)) => Outcome::Success,
        Ok(Err(error)) => Outcome::Failure(http_get::dial_error(host, port, &error)),
        Err(_) => {
            let place = http_get::authority(host, port);
            Outcome::Failure(format!("dial tcp {place}: i/o timeout"))
        }
    }
}
