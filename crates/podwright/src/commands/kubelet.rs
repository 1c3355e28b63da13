//! `podwright kubelet`: runs the node agent with validated settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use podwright_host::clock::Clock;
use podwright_node::client::certificates::{self, ClientCertificate, Store};
use podwright_node::client::connection::Connections;
use podwright_node::client::connection::credentials::Credentials;
use tokio_util::sync::CancellationToken;

use crate::agent::{self, AgentOptions, ApiClients};
use crate::config::KubeletSettings;
use crate::service;

/// Runs the node until a stop signal.
pub fn run(settings: &KubeletSettings) -> anyhow::Result<()> {
    service::runtime()?.block_on(async {
        let stop = service::stop_signal()?;
        let api = match &settings.options.kubeconfig {
            None => None,
            Some(path) => Some(join(settings, path, &stop).await?),
        };
        let log_links = log_links(&settings.configuration.pod_logs_dir);
        let agent_options = AgentOptions {
            log_links,
            standalone: false,
            shared_runtime: false,
            stop_pods: false,
            supervised: None,
            api,
        };
        agent::run(settings, agent_options, |_| {}, stop).await
    })
}

/// Directory of the log links that log collectors read: `containers` beside the directory of the
/// pod logs; by default upstream's `/var/log/containers`.
fn log_links(pod_logs: &str) -> PathBuf {
    Path::new(pod_logs).parent().unwrap_or(Path::new("/")).join("containers")
}

/// Creates clients for the cluster of a kubeconfig, and starts the rotation of their certificate.
async fn join(
    settings: &KubeletSettings,
    kubeconfig: &Path,
    stop: &CancellationToken,
) -> anyhow::Result<ApiClients> {
    let rotate = settings.configuration.rotate_certificates;
    let bootstrap = match &settings.options.bootstrap_kubeconfig {
        Some(path) => bootstrap(settings, kubeconfig, path).await?,
        None => None,
    };
    if bootstrap.is_none() && !rotate {
        let credentials = Arc::new(Credentials::read(kubeconfig, None).await?);
        return clients(&credentials);
    }
    let store = Store::client(&settings.options.cert_dir)?;
    let managed = rotate.then(|| store.current());
    let credentials = Arc::new(Credentials::read(kubeconfig, managed).await?);
    let clients = clients(&credentials)?;
    let certificate = ClientCertificate {
        store,
        node: settings.node_name.as_str().into(),
        credentials,
        client: clients.main.clone(),
        bootstrap,
        rotate,
        clock: Clock::real(),
    };
    tokio::spawn(certificate.run(stop.clone()));
    Ok(clients)
}

/// Writes the node's kubeconfig if there is no valid one. Returns the client with which to request
/// a certificate.
async fn bootstrap(
    settings: &KubeletSettings,
    kubeconfig: &Path,
    bootstrap: &Path,
) -> anyhow::Result<Option<kube::Client>> {
    if certificates::needs_bootstrap(kubeconfig, Timestamp::now()) {
        tracing::info!(
            bootstrap = %bootstrap.display(),
            "no valid kubeconfig, requesting a client certificate"
        );
        let pair = Store::client(&settings.options.cert_dir)?.current();
        certificates::write_from_bootstrap(bootstrap, kubeconfig, &pair)?;
    } else if !bootstrap.exists() {
        // It is often deleted after the bootstrap.
        return Ok(None);
    }
    let credentials = Credentials::read(bootstrap, None).await.context("--bootstrap-kubeconfig")?;
    Ok(Some(Connections::client(&Arc::new(credentials), &Arc::default())?))
}

fn clients(credentials: &Arc<Credentials>) -> anyhow::Result<ApiClients> {
    let requests = Arc::default();
    Ok(ApiClients {
        main: Connections::client(credentials, &requests)?,
        heartbeat: Connections::client(credentials, &requests)?,
        requests,
    })
}
