//! Pods, statistics and logs of the kubelet server, for `podwright top`.

use std::sync::{Arc, OnceLock, Weak};

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{Request, StatusCode, Uri};

use super::DebugSocketDependencies;
use crate::server::Server;

/// What is forwarded: reads only. Exec and the like stay with the server that audits them.
const FORWARDED: [&str; 3] = ["/pods", "/stats/summary", "/containerLogs/"];

/// The kubelet server of this process, once it is built.
#[derive(Clone, Default)]
pub struct LocalServer(Arc<OnceLock<Weak<Server>>>);

impl LocalServer {
    pub(in crate::server) fn set(&self, server: &Arc<Server>) {
        // A node has one server; a second one would only serve the same.
        let _ = self.0.set(Arc::downgrade(server));
    }

    fn get(&self) -> Option<Arc<Server>> {
        self.0.get()?.upgrade()
    }
}

/// Forwards `/kubelet/PATH` as `/PATH`.
pub(super) async fn forward(
    State(socket): State<Arc<DebugSocketDependencies>>,
    uri: Uri,
) -> Response {
    let Some(server) = socket.kubelet.get() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let target = uri.path_and_query().and_then(|it| forwarded(it.as_str()));
    let request = target.and_then(|target| Request::get(target).body(()).ok());
    let Some(request) = request else { return StatusCode::NOT_FOUND.into_response() };
    server.handle_local(request).await.map(Body::new)
}

fn forwarded(path: &str) -> Option<Uri> {
    let path = path.strip_prefix("/kubelet")?;
    let plain = path.split_once('?').map_or(path, |(path, _)| path);
    let is_allowed = FORWARDED.iter().any(|allowed| match allowed.strip_suffix('/') {
        Some(_) => plain.starts_with(allowed),
        None => plain == *allowed,
    });
    if !is_allowed {
        return None;
    }
    path.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::forwarded;

    #[test]
    fn only_reads_are_forwarded() {
        for (path, want) in [
            ("/kubelet/pods", Some("/pods")),
            ("/kubelet/stats/summary?only=1", Some("/stats/summary?only=1")),
            (
                "/kubelet/containerLogs/ns/pod/c?tailLines=5",
                Some("/containerLogs/ns/pod/c?tailLines=5"),
            ),
            ("/kubelet/exec/ns/pod/c", None),
            ("/kubelet/podsandmore", None),
            ("/kubelet/run/ns/pod/c?cmd=ls", None),
            ("/kubelet/configz", None),
            ("/pods", None),
        ] {
            let found = forwarded(path).map(|uri| uri.to_string());
            assert_eq!(found.as_deref(), want, "{path}");
        }
    }
}
