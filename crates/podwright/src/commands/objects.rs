//! The node and the pods of `podwright up`, from its API server.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::status::node::{self, NodeLine};

/// Generous for a busy machine; if nothing listens, the request fails immediately.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(in crate::commands) struct Objects {
    pub(in crate::commands) nodes: Vec<Node>,
    pub(in crate::commands) pods: Vec<Pod>,
}

impl Objects {
    pub(in crate::commands) async fn read(kubeconfig: &Path) -> anyhow::Result<Self> {
        let reading = async {
            let options = KubeConfigOptions::default();
            let config = Kubeconfig::read_from(kubeconfig)?;
            let config = kube::Config::from_custom_kubeconfig(config, &options).await?;
            let client = kube::Client::try_from(config)?;
            let all = ListParams::default();
            let nodes = Api::<Node>::all(client.clone()).list(&all).await?.items;
            let pods = Api::<Pod>::all(client).list(&all).await?.items;
            anyhow::Ok(Self { nodes, pods })
        };
        let read = tokio::time::timeout(REQUEST_TIMEOUT, reading).await;
        read.context("the API server does not respond")?
    }

    /// The node in one line; none until it is registered.
    pub(in crate::commands) fn node(&self) -> Option<NodeLine> {
        self.nodes.first().map(|node| node::summary(node, &self.pods))
    }
}
