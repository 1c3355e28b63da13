//! The agent that runs on this machine, as its socket answers.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use podwright_node::inquiry::{self, SOCKET};
use serde::de::DeserializeOwned;

pub(super) struct Agent {
    root: PathBuf,
}

impl Agent {
    /// The one agent that answers below any of these root folders.
    pub(super) async fn find(roots: &[PathBuf]) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        for root in roots {
            match inquiry::connect(root).await {
                Ok(_) => found.push(root.clone()),
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    bail!("only the owner of {} may ask; try sudo", root.join(SOCKET).display());
                }
                Err(_) => {}
            }
        }
        match found.as_slice() {
            [root] => Ok(Self { root: root.clone() }),
            [] => bail!(
                "no agent answers at {}; is it running? If it has another folder, name it with \
                 --root-dir, or with --state-dir as you did for podwright up",
                listed(roots)
            ),
            several => bail!(
                "more than one agent runs here ({}); choose one with --root-dir",
                listed(several)
            ),
        }
    }

    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let shown = self.root.join(SOCKET);
        let about = || format!("asking the agent at {} for {path}", shown.display());
        let stream = inquiry::connect(&self.root).await.with_context(about)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(about)?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path).header("host", "agent").body(Empty::<Bytes>::new())?;
        let answer = sender.send_request(request).await.with_context(about)?;
        let status = answer.status();
        let body = answer.into_body().collect().await.with_context(about)?.to_bytes();
        connection.abort();
        if status == http::StatusCode::NOT_FOUND {
            bail!("the pod is gone meanwhile");
        }
        if !status.is_success() {
            bail!("{}: the agent answers {status}; its log says why", about());
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("{}: is it of another version than this command?", about()))
    }
}

fn listed(roots: &[PathBuf]) -> String {
    let paths = roots.iter().map(|root: &PathBuf| Path::join(root, SOCKET).display().to_string());
    paths.collect::<Vec<_>>().join(" or ")
}
