//! Kubelet server with its real clients: kube-apiserver on behalf of kubectl, and clients with
//! certificates and tokens of the cluster.

mod access;
mod logs;
mod numbers;
mod streams;

use std::process::Command;

use http::Request;
use hyper::body::Bytes;
use podwright_e2e::http::{HttpResponse, Tls};
use podwright_e2e::kubectl::{Kubectl, Release};
use podwright_e2e::pki::Pair;
use podwright_e2e::process::{self, Stdin};
use podwright_e2e::wait;

use crate::cluster::{Cluster, LIMIT};

/// Result of a program.
struct ProgramResult {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs a program to completion, with any exit status.
async fn run(mut command: Command, input: &[u8]) -> ProgramResult {
    let input = input.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        process::run(&mut command, Stdin::Ends(&input), LIMIT * 2)
    });
    let output = ended.await.unwrap().unwrap();
    ProgramResult {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

impl Cluster {
    fn kubectl(&self, release: Release) -> Kubectl {
        self.bed.kubectl(release).unwrap()
    }

    /// Sends a request to the node itself.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        identity: &ClientIdentity,
    ) -> HttpResponse {
        self.request_with(method, path, identity, &[]).await
    }

    async fn request_with(
        &self,
        method: &str,
        path: &str,
        identity: &ClientIdentity,
        headers: &[(&str, &str)],
    ) -> HttpResponse {
        let url = format!("{}{path}", self.agent.url());
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut tls = Tls::default();
        match identity {
            ClientIdentity::Anonymous => {}
            ClientIdentity::Token(token) => {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            ClientIdentity::Certificate(pair) => tls.identity = Some(pair.clone()),
        }
        self.bed.http_send(request.body(Bytes::new()).unwrap(), &tls).await.unwrap()
    }

    /// A client certificate of the cluster.
    fn certificate(&self, user: &str, groups: &[&str]) -> ClientIdentity {
        let authority = self.bed.control_plane().unwrap().authority();
        ClientIdentity::Certificate(authority.client(user, groups).unwrap())
    }

    pub(crate) fn admin(&self) -> ClientIdentity {
        self.certificate("admin", &["system:masters"])
    }
}

pub(crate) enum ClientIdentity {
    Anonymous,
    Token(String),
    Certificate(Pair),
}

/// Number of open file descriptors of a process.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Waits until a process has no more descriptors open than before.
async fn until_files_closed(what: &str, pid: u32, before: usize) {
    let settled = async || Ok(open_files(pid) <= before);
    wait::until_true(format!("{what} to close what it opened"), LIMIT, settled).await.unwrap();
}
