//! Connector from the API server to the kubelet server of the agent: forwards requests for logs,
//! exec, attach, port-forward and statistics in process, without a port.

use std::sync::{Arc, OnceLock};

use futures::future::{BoxFuture, FutureExt as _};
use http::{Request, Response, StatusCode};
use podwright_apiserver::NodeConnector;
use podwright_apiserver::connect::Body;
use podwright_core::stats::usage::UsageReport;
use podwright_node::server::Server;

/// The kubelet server of the agent, once it is set: the API server starts first.
#[derive(Default)]
pub struct AgentConnector(OnceLock<Arc<Server>>);

impl AgentConnector {
    /// Sets the server; from now on requests are forwarded to it.
    pub fn open(&self, server: Arc<Server>) {
        // An agent has one server; a second one is ignored.
        let _ = self.0.set(server);
    }
}

impl NodeConnector for AgentConnector {
    fn node(&self) -> Option<Arc<str>> {
        self.0.get().map(|server| server.node_name().clone())
    }

    fn usage(&self) -> BoxFuture<'static, Option<UsageReport>> {
        let server = self.0.get().cloned();
        async move { Some(server?.usage().await) }.boxed()
    }

    fn connect(&self, _node: &str, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let Some(server) = self.0.get().cloned() else {
            return std::future::ready(unavailable()).boxed();
        };
        async move { server.handle(request).await.map(Body::new) }.boxed()
    }
}

fn unavailable() -> Response<Body> {
    let mut response = Response::new(Body::from("the node is starting; retry in a few seconds"));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}
