//! Client of the agent's debug socket.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use podwright_node::server::debug_socket::{self, SOCKET};
use serde::de::DeserializeOwned;

pub(super) struct Agent {
    root: PathBuf,
}

impl Agent {
    /// Finds the one agent that responds in any of these root directories.
    pub(super) async fn find(roots: &[PathBuf]) -> anyhow::Result<Self> {
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

    pub(super) async fn ask<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let shown = self.root.join(SOCKET);
        let failed = || format!("cannot get {path} from the agent at {}", shown.display());
        let stream = debug_socket::connect(&self.root).await.with_context(failed)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(failed)?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path).header("host", "agent").body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await.with_context(failed)?;
        let status = response.status();
        let body = response.into_body().collect().await.with_context(failed)?.to_bytes();
        connection.abort();
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
}

fn listed(roots: &[PathBuf]) -> String {
    let paths = roots.iter().map(|root: &PathBuf| Path::join(root, SOCKET).display().to_string());
    paths.collect::<Vec<_>>().join(" or ")
}
