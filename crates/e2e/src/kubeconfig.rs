//! Kubeconfig for the bed's API server, as a file and as a client.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Request;
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use crate::case;
use crate::netns::{Connector, NetNs};
use crate::pki::Pair;

/// Time limit for the start of a response; a watch also responds immediately.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// Credential of a client.
#[derive(Clone)]
pub enum Credential {
    Certificate(Pair),
    Token(String),
}

/// A kubeconfig for `server` with everything inline; JSON, which is valid YAML.
pub(crate) fn document(server: &str, authority: &str, credential: &Credential) -> String {
    let user = match credential {
        Credential::Certificate(pair) => json!({
            "client-certificate-data": STANDARD.encode(&pair.certificate),
            "client-key-data": STANDARD.encode(&pair.key),
        }),
        Credential::Token(token) => json!({ "token": token }),
    };
    let cluster = json!({
        "server": server,
        "certificate-authority-data": STANDARD.encode(authority),
    });
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "bed", "cluster": cluster }],
        "users": [{ "name": "user", "user": user }],
        "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "user" } }],
        "current-context": "bed",
    });
    format!("{document:#}\n")
}

/// Writes a kubeconfig readable by its owner only.
pub(crate) fn save(path: &Path, document: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, document).with_context(|| format!("writing {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(())
}

/// A client for a kubeconfig whose connections are opened inside `netns`.
pub async fn client(path: &Path, netns: &NetNs) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(path)
        .with_context(|| format!("reading the kubeconfig {}", path.display()))?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let https = config.rustls_https_connector_with_connector(Connector(netns.clone()))?;
    let http = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
        .build::<_, Body>(https);
    let limited = tower::service_fn(move |request: Request<Body>| {
        let (http, request_line) =
            (http.clone(), format!("{} {}", request.method(), request.uri()));
        async move {
            let _waiting = case::waiting_for(format!("the response to {request_line}"));
            match tokio::time::timeout(ANSWER_LIMIT, http.request(request)).await {
                Ok(response) => response.map_err(tower::BoxError::from),
                Err(_) => {
                    Err(format!("{request_line}: no response within {} s", ANSWER_LIMIT.as_secs())
                        .into())
                }
            }
        }
    });
    let builder =
        ClientBuilder::new(limited, &config.default_namespace).with_layer(&config.base_uri_layer());
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).build(),
        None => builder.build(),
    })
}
