//! Request timeout for the API server.
//!
//! A server behind a broken network or a stuck load balancer may never respond. The caller would
//! wait forever, and with it the status of a pod or the list of all pods. So the response to each
//! request must begin within a limit; after that the request fails like any other.

use std::time::Duration;

/// Longer than a busy server takes, shorter than people wait.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
#[error("no response from the API server within {} s", REQUEST_TIMEOUT.as_secs())]
struct NoResponse;

/// Adds the timeout to a client. An open watch may be idle longer: its own timeout is agreed with
/// the server when it is opened.
pub fn with_request_timeout(client: kube::Client) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let client = client.clone();
        async move {
            match tokio::time::timeout(REQUEST_TIMEOUT, client.send(request)).await {
                Ok(response) => response.map_err(Box::<dyn std::error::Error + Send + Sync>::from),
                Err(_) => Err(NoResponse.into()),
            }
        }
    });
    kube::Client::new(service, namespace)
}
