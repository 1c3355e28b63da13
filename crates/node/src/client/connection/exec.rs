//! Credentials from an exec plugin: the program runs again when the API server refuses them.
//!
//! A plugin may omit the expiry of its token; then a 401 is the first sign of it. As upstream, the
//! refused request fails, and the next one uses what the program returns then.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt};
use parking_lot::Mutex;
use tokio::time::Instant;
use tower::{BoxError, Layer, ServiceExt};

use super::Connections;
use super::credentials::Credentials;
use super::pool::ResponseBody;

/// A server that refuses everything does not start the program with every request.
const AGAIN: Duration = Duration::from_secs(10);

/// Requests with what the program gave last. Clones share it.
#[derive(Clone)]
pub(super) struct ExecAuth {
    connections: Connections,
    credentials: Arc<Credentials>,
    given: Arc<Mutex<Given>>,
    /// Held while the program runs.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct Given {
    /// `None`: it gives a certificate, which belongs to the connection and not to the request.
    token: Option<Arc<AuthLayer>>,
    number: u64,
    /// When the program last ran because of a refusal.
    renewed: Option<Instant>,
}

impl ExecAuth {
    pub(super) fn new(
        connections: Connections,
        credentials: Arc<Credentials>,
        token: Option<AuthLayer>,
    ) -> Self {
        let given = Given { token: token.map(Arc::new), number: 0, renewed: None };
        let (given, turn) = (Arc::new(Mutex::new(given)), Arc::default());
        Self { connections, credentials, given, turn }
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        let (token, number) = {
            let given = self.given.lock();
            (given.token.clone(), given.number)
        };
        let connections = self.connections.clone();
        let response = match token {
            Some(token) => token.layer(connections).oneshot(request).await?,
            None => connections.answer(request).await?,
        };
        if response.status() == StatusCode::UNAUTHORIZED {
            self.renew(number).await;
        }
        Ok(response)
    }

    /// Runs the program, unless that happened since the refused credentials were taken.
    async fn renew(&self, refused: u64) {
        let _turn = self.turn.lock().await;
        {
            let mut given = self.given.lock();
            let recently = given.renewed.is_some_and(|at| at.elapsed() < AGAIN);
            if given.number != refused || recently {
                return;
            }
            given.renewed = Some(Instant::now());
        }
        let credentials = self.credentials.clone();
        let run = move || {
            let token = credentials.config().auth_layer()?;
            if token.is_none() {
                credentials.renew();
            }
            Ok::<_, kube::Error>(token)
        };
        match tokio::task::spawn_blocking(run).await {
            Ok(Ok(token)) => {
                tracing::info!("exec plugin: ran again, the API server refused its credentials");
                let mut given = self.given.lock();
                given.token = token.map(Arc::new);
                given.number += 1;
            }
            Ok(Err(error)) => {
                let error = crate::error_chain::chain(&error);
                tracing::warn!(error, "exec plugin: failed, keeping its last credentials");
            }
            // It fails only while the agent stops.
            Err(_) => {}
        }
    }
}

impl tower::Service<Request<Body>> for ExecAuth {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::Api;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers one request per connection: 200 to the bearer of `good`, 401 to anyone else.
    async fn serve(listener: TcpListener, good: &'static str) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut asked, mut buffer) = (Vec::new(), [0; 1024]);
            while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                let read = stream.read(&mut buffer).await.unwrap();
                asked.extend_from_slice(&buffer[..read]);
            }
            let asked = String::from_utf8(asked).unwrap().to_ascii_lowercase();
            assert!(asked.contains("user-agent: kubelet/v1.36.4 (linux/"), "{asked}");
            let (status, body) = match asked.contains(&format!("authorization: bearer {good}\r\n"))
            {
                true => ("200 OK", json!({ "metadata": { "name": "n" } })),
                false => ("401 Unauthorized", json!({ "kind": "Status", "code": 401 })),
            };
            let body = body.to_string();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
            let answer = format!("{head}Connection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    #[tokio::test]
    async fn plugin_runs_again_when_its_token_without_expiry_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (says, runs) = (directory.path().join("says"), directory.path().join("runs"));
        let give = |token: &str| {
            let answer = json!({
                "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                "status": { "token": token },
            });
            std::fs::write(&says, answer.to_string()).unwrap();
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, "fresh"));
        let script = format!("echo >> {}; cat {}", runs.display(), says.display());
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
            "args": ["-c", script], "interactiveMode": "Never",
        });
        let kubeconfig = json!({
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
            "users": [{ "name": "u", "user": { "exec": exec } }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "x",
        });
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let _ = rustls::crypto::ring::default_provider().install_default();

        give("stale");
        let credentials = Arc::new(Credentials::read(&path, None).await.unwrap());
        let client = Connections::client(&credentials, &Arc::default()).unwrap();
        let nodes: Api<Node> = Api::all(client);
        let count = || std::fs::read_to_string(&runs).unwrap().lines().count();
        let before = count();
        give("staler");
        for _ in 0..3 {
            let refused = nodes.get("n").await.unwrap_err();
            assert!(
                matches!(&refused, kube::Error::Api(status) if status.code == 401),
                "{refused}"
            );
        }
        assert_eq!(count(), before + 1, "not with every refusal");
        give("fresh");
        tokio::time::pause();
        tokio::time::advance(AGAIN).await;
        tokio::time::resume();
        assert!(nodes.get("n").await.is_err(), "this one went with the old token");
        nodes.get("n").await.unwrap();
    }
}
