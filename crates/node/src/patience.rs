//! Every request to the API server ends, one way or the other.
//!
//! A server behind a broken network or a stuck load balancer may never answer. Whoever asked would
//! wait for ever, and with it that pod's status, or the list of all pods. So each request gets a
//! time in which its answer has to begin; the caller then does what it does about any failure.

use std::time::Duration;

/// Longer than a busy server takes, shorter than people wait.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", PATIENCE.as_secs())]
struct NoAnswer;

/// The same client, with an end to its patience. A watch that was opened may be silent: how long
/// is agreed with the server when it is opened.
pub fn patient(client: kube::Client) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            match tokio::time::timeout(PATIENCE, client.send(request)).await {
                Ok(answer) => answer.map_err(Box::<dyn std::error::Error + Send + Sync>::from),
                Err(_) => Err(NoAnswer.into()),
            }
        }
    });
    kube::Client::new(service, namespace)
}
