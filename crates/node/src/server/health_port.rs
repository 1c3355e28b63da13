//! Health port: plain HTTP on loopback, responds with `ok` while the process is alive.
//!
//! The sync loop is checked on the authenticated port instead.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::RawQuery;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address} for health checks. Fix: set healthzPort to another port or to 0"
)]
pub struct BindError {
    address: SocketAddr,
    source: std::io::Error,
}

/// Binds the port; the returned future serves it until stopped.
pub async fn serve(
    address: SocketAddr,
    stop: CancellationToken,
) -> Result<impl Future<Output = ()> + Send, BindError> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| BindError { address, source })?;
    let router = Router::new()
        .route("/healthz", get(|RawQuery(query)| async move { healthz(query.as_deref()) }))
        .route("/healthz/ping", get(|| async { "ok" }));
    Ok(async move {
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
        if let Err(error) = serving.await {
            tracing::warn!(%error, "health port closed");
        }
    })
}

/// A response proves liveness.
fn healthz(query: Option<&str>) -> &'static str {
    let name = |pair: &str| pair.split('=').next() == Some("verbose");
    match query.is_some_and(|query| query.split('&').any(name)) {
        true => "[+]ping ok\nhealthz check passed\n",
        false => "ok",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::http_get::{self, GetRequest};
    use podwright_core::probe::http::HttpTarget;

    #[tokio::test]
    async fn port_in_use_error_names_the_setting_and_free_port_is_served() {
        let stop = CancellationToken::new();
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let Err(error) = serve(address, stop.clone()).await else { panic!("the port is taken") };
        assert!(error.to_string().contains("healthzPort"), "{error}");
        drop(taken);
        let serving = tokio::spawn(serve(address, stop.clone()).await.unwrap());
        let target = HttpTarget {
            https: false,
            host: "127.0.0.1".into(),
            port: address.port(),
            path: "/healthz".into(),
        };
        let request = GetRequest { target, headers: &[], user_agent: "test", deadline: None };
        let response = http_get::get(&request).await.unwrap();
        assert_eq!((response.status, response.body.as_slice()), (200, b"ok".as_slice()));
        stop.cancel();
        serving.await.unwrap();
    }
}
