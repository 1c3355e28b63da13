//! Client of the agent's debug socket.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use http::Request;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use podwright_node::server::debug_socket::{self, SOCKET};
use serde::de::DeserializeOwned;
use tokio_util::task::AbortOnDropHandle;

/// Bytes of an error text that are read.
const ERROR_LIMIT: usize = 4096;

#[derive(Clone, Debug)]
pub(in crate::commands) struct Agent {
    root: PathBuf,
}

impl Agent {
    /// Finds the one agent that responds in any of these root directories.
    pub(in crate::commands) async fn find(roots: &[PathBuf]) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        for root in roots {
            match debug_socket::connect(root).await {
                Ok(_) => found.push(root.clone()),
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    bail!(
                        "permission denied on {}. Fix: run with sudo",
                        root.join(SOCKET).display()
                    );
                }
                Err(_) => {}
            }
        }
        match found.as_slice() {
            [root] => Ok(Self { root: root.clone() }),
            [] => bail!(
                "no agent responds at {}. Fix: start it, or if it uses another directory, give \
                 --root-dir, or the --state-dir of podwright up",
                listed(roots)
            ),
            several => bail!(
                "several agents are running ({}). Fix: choose one with --root-dir",
                listed(several)
            ),
        }
    }

    pub(in crate::commands) fn root(&self) -> &Path {
        &self.root
    }

    pub(in crate::commands) async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> anyhow::Result<T> {
        let failed = || self.failed(path);
        let response = self.response(path).await?;
        let status = response.body.status();
        let body = response.body.into_body().collect().await.with_context(failed)?.to_bytes();
        if status == http::StatusCode::NOT_FOUND {
            bail!("the pod no longer exists");
        }
        if !status.is_success() {
            bail!("{}: status {status}; see the agent's log", failed());
        }
        serde_json::from_slice(&body).with_context(|| {
            format!("{}: unexpected response; the agent may be of another version", failed())
        })
    }

    /// A response whose body is read piece by piece, such as a log.
    pub(in crate::commands) async fn stream(&self, path: &str) -> anyhow::Result<ResponseStream> {
        let Response { body, connection } = self.response(path).await?;
        let status = body.status();
        let body = body.into_body();
        if status.is_success() {
            return Ok(ResponseStream { body, _connection: connection });
        }
        // An error is a short text.
        let text = Limited::new(body, ERROR_LIMIT).collect().await;
        let text = text.map(|text| text.to_bytes()).unwrap_or_default();
        match String::from_utf8_lossy(&text).trim() {
            "" => bail!("{}: status {status}", self.failed(path)),
            text => bail!("{text}"),
        }
    }

    async fn response(&self, path: &str) -> anyhow::Result<Response> {
        let failed = || self.failed(path);
        let stream = debug_socket::connect(&self.root).await.with_context(failed)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(failed)?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // The request gets the error.
            let _ = connection.await;
        }));
        let request = Request::get(path).header("host", "agent").body(Empty::<Bytes>::new())?;
        let body = sender.send_request(request).await.with_context(failed)?;
        Ok(Response { body, connection })
    }

    fn failed(&self, path: &str) -> String {
        format!("cannot get {path} from the agent at {}", self.root.join(SOCKET).display())
    }
}

struct Response {
    body: http::Response<Incoming>,
    connection: AbortOnDropHandle<()>,
}

/// A body in pieces; dropping it closes the connection.
pub(in crate::commands) struct ResponseStream {
    body: Incoming,
    _connection: AbortOnDropHandle<()>,
}

impl ResponseStream {
    /// `None` at the end. Cancel-safe.
    pub(in crate::commands) async fn next(&mut self) -> anyhow::Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame.context("the agent closed the connection")?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

fn listed(roots: &[PathBuf]) -> String {
    let paths = roots.iter().map(|root: &PathBuf| Path::join(root, SOCKET).display().to_string());
    paths.collect::<Vec<_>>().join(" or ")
}
