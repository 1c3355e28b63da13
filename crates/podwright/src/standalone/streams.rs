//! Logs and commands for `kubectl`: what the API server is asked for, the agent's own server
//! answers, without a port between them.

use std::sync::{Arc, OnceLock};

use futures::future::{BoxFuture, FutureExt as _};
use http::{Request, Response, StatusCode};
use podwright_apiserver::PodConnector;
use podwright_apiserver::connect::Body;
use podwright_node::server::Server;

/// The agent's server, once there is one: the API server is there first.
#[derive(Default)]
pub struct Streams(OnceLock<Arc<Server>>);

impl Streams {
    /// From now on questions are answered.
    pub fn open(&self, server: Arc<Server>) {
        // An agent has one server; a second one would change nothing.
        let _ = self.0.set(server);
    }
}

impl PodConnector for Streams {
    fn connect(&self, _node: &str, request: Request<Body>) -> BoxFuture<'static, Response<Body>> {
        let Some(server) = self.0.get().cloned() else {
            return std::future::ready(not_yet()).boxed();
        };
        async move { server.handle(request).await.map(Body::new) }.boxed()
    }
}

fn not_yet() -> Response<Body> {
    let mut answer = Response::new(Body::from("the node is starting; try again in a moment"));
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer
}
