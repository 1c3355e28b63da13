//! The node's kubeconfig, derived from the bootstrap kubeconfig.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use jiff::Timestamp;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::client::kubeconfig_file;

#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("bootstrap kubeconfig {path}: cannot be read")]
    Bootstrap { path: String, source: Box<kube::config::KubeconfigError> },
    #[error("bootstrap kubeconfig {path}: the current context names no cluster with a server")]
    NoCluster { path: String },
    #[error("kubeconfig {path}: cannot be written")]
    Write { path: String, source: std::io::Error },
}

/// Whether the node needs a new kubeconfig: it cannot be read, or its certificate is missing or has
/// expired. A kubeconfig with a token or an exec plugin is used as it is.
pub fn needs_bootstrap(kubeconfig: &Path, now: Timestamp) -> bool {
    let Ok(file) = kubeconfig_file::read(kubeconfig) else { return true };
    let Some(user) = current_user(&file) else { return true };
    if let Some(data) = &user.client_certificate_data {
        use base64::Engine;
        let pem = base64::engine::general_purpose::STANDARD.decode(data).unwrap_or_default();
        return is_expired(&pem, now);
    }
    match &user.client_certificate {
        Some(path) => is_expired(&std::fs::read(path).unwrap_or_default(), now),
        None => user.token.is_none() && user.token_file.is_none() && user.exec.is_none(),
    }
}

fn is_expired(pem: &[u8], now: Timestamp) -> bool {
    super::validity(pem).is_none_or(|validity| validity.is_expired(now))
}

fn current_user(file: &Kubeconfig) -> Option<&kube::config::AuthInfo> {
    let name = file.current_context.as_ref()?;
    let context = file.contexts.iter().find(|context| context.name == *name)?.context.as_ref()?;
    let user = context.user.as_ref()?;
    file.auth_infos.iter().find(|info| info.name == *user)?.auth_info.as_ref()
}

/// Writes a kubeconfig for the cluster of the bootstrap kubeconfig, with `pair` as certificate and
/// key.
pub fn write_from_bootstrap(
    bootstrap: &Path,
    kubeconfig: &Path,
    pair: &Path,
) -> Result<(), KubeconfigError> {
    let shown = || bootstrap.display().to_string();
    let file = kubeconfig_file::read(bootstrap)
        .map_err(|source| KubeconfigError::Bootstrap { path: shown(), source: source.into() })?;
    let cluster = current_cluster(&file).ok_or(KubeconfigError::NoCluster { path: shown() })?;
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default-cluster", "cluster": cluster }],
        "users": [{
            "name": "default-auth",
            "user": { "client-certificate": pair, "client-key": pair },
        }],
        "contexts": [{
            "name": "default-context",
            "context": {
                "cluster": "default-cluster", "namespace": "default", "user": "default-auth",
            },
        }],
        "current-context": "default-context",
    });
    write(kubeconfig, &format!("{document:#}\n"))
        .map_err(|source| KubeconfigError::Write { path: kubeconfig.display().to_string(), source })
}

fn current_cluster(file: &Kubeconfig) -> Option<Value> {
    let name = file.current_context.as_ref()?;
    let context = file.contexts.iter().find(|context| context.name == *name)?.context.as_ref()?;
    let named = file.clusters.iter().find(|cluster| cluster.name == context.cluster)?;
    let cluster = named.cluster.as_ref()?;
    cluster.server.as_ref()?;
    serde_json::to_value(cluster).ok()
}

/// Writes atomically. JSON is valid YAML.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let part = path.with_extension("part");
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&part)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&part, path)
}
