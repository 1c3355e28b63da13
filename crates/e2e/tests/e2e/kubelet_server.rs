//! The kubelet server, asked by those who really ask: kube-apiserver on behalf of kubectl, and
//! clients with certificates and tokens of the cluster.

mod access;
mod logs;
mod numbers;
mod streams;

use std::process::Command;

use http::Request;
use hyper::body::Bytes;
use podwright_e2e::http::{Answer, Tls};
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::pki::Pair;
use podwright_e2e::process::{self, Stdin};
use podwright_e2e::wait;

use crate::cluster::{Cluster, LIMIT};

/// How a program ended.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs a program to its end, whatever that is.
async fn run(mut command: Command, input: &[u8]) -> Ended {
    let input = input.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        process::run(&mut command, Stdin::Ends(&input), LIMIT * 2)
    });
    let output = ended.await.unwrap().unwrap();
    Ended {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Cluster {
    fn kubectl(&self, release: Release) -> Kubectl {
        self.bed.kubectl(release).unwrap()
    }

    /// Asks the node itself.
    pub(crate) async fn ask(&self, method: &str, path: &str, who: &Who) -> Answer {
        self.ask_with(method, path, who, &[]).await
    }

    async fn ask_with(
        &self,
        method: &str,
        path: &str,
        who: &Who,
        headers: &[(&str, &str)],
    ) -> Answer {
        let url = format!("{}{path}", self.agent.url());
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut tls = Tls::default();
        match who {
            Who::Nobody => {}
            Who::Token(token) => {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            Who::Certificate(pair) => tls.identity = Some(pair.clone()),
        }
        self.bed.http_send(request.body(Bytes::new()).unwrap(), &tls).await.unwrap()
    }

    /// A client certificate of the cluster.
    fn certificate(&self, user: &str, groups: &[&str]) -> Who {
        let authority = self.bed.control_plane().unwrap().authority();
        Who::Certificate(authority.client(user, groups).unwrap())
    }

    pub(crate) fn admin(&self) -> Who {
        self.certificate("admin", &["system:masters"])
    }
}

pub(crate) enum Who {
    Nobody,
    Token(String),
    Certificate(Pair),
}

/// How many file descriptors a process has open.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Waits until a process has no more descriptors open than it had.
async fn settles(what: &str, pid: u32, before: usize) {
    let settled = async || Ok(open_files(pid) <= before);
    wait::until_true(format!("{what} to close what it opened"), LIMIT, settled).await.unwrap();
}
