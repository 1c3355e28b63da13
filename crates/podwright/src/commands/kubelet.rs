//! `podwright kubelet`: a node with validated settings.

use std::path::{Path, PathBuf};

use anyhow::Context;
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::agent::{self, Surroundings};
use crate::config::KubeletSettings;
use crate::service;

/// Runs the node until it is told to stop.
pub fn run(settings: &KubeletSettings) -> anyhow::Result<()> {
    service::runtime()?.block_on(async {
        let stop = service::stop_signal()?;
        let api = match &settings.options.kubeconfig {
            None => None,
            Some(path) => Some(client(path.clone()).await?),
        };
        let log_links = log_links(&settings.configuration.pod_logs_dir);
        let surroundings = Surroundings { log_links, make_cgroup_root: false, api };
        agent::run(settings, surroundings, || Ok(()), stop).await
    })
}

/// Where log collectors look for container logs: `containers` beside the folder of the pods' logs,
/// which with the default is upstream's `/var/log/containers`.
fn log_links(pod_logs: &str) -> PathBuf {
    Path::new(pod_logs).parent().unwrap_or(Path::new("/")).join("containers")
}

async fn client(path: PathBuf) -> anyhow::Result<kube::Client> {
    let shown = path.display().to_string();
    let kubeconfig = Kubeconfig::read_from(&path).with_context(|| format!("kubeconfig {shown}"))?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("kubeconfig {shown}"))?;
    kube::Client::try_from(config).with_context(|| format!("kubeconfig {shown}"))
}
