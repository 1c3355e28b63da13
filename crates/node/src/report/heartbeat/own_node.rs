//! Watch on this node's Node object.
//!
//! One watch by name for all that need the labels, the taints or the UID: admission, mirror pods and
//! the heartbeat.

use std::sync::Arc;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::sources::backoff::WatchBackoff;

#[derive(Clone, Debug, Default)]
pub enum OwnNode {
    /// Not listed yet.
    #[default]
    Unknown,
    Absent,
    Present(Arc<v1::Node>),
}

impl OwnNode {
    pub fn object(&self) -> Option<&Arc<v1::Node>> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(node) => Some(node),
        }
    }
}

/// Watches until stopped.
pub async fn follow(
    client: kube::Client,
    name: Arc<str>,
    shown: watch::Sender<OwnNode>,
    stop: CancellationToken,
) {
    let work = async {
        let nodes: Api<v1::Node> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let backoff = WatchBackoff::of(&name);
        let mut events = std::pin::pin!(watcher::watcher(nodes, config).backoff(backoff));
        let mut listed = None;
        loop {
            match events.try_next().await {
                Ok(Some(Event::Init)) => listed = None,
                Ok(Some(Event::InitApply(node))) => listed = Some(node),
                Ok(Some(Event::InitDone)) => drop(shown.send_replace(match listed.take() {
                    Some(node) => OwnNode::Present(slim(node)),
                    None => OwnNode::Absent,
                })),
                Ok(Some(Event::Apply(node))) => {
                    shown.send_replace(OwnNode::Present(slim(node)));
                }
                Ok(Some(Event::Delete(_))) => drop(shown.send_replace(OwnNode::Absent)),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(%error, "watch on the Node object failed, restarting it");
                }
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Without the managed fields, which are not used.
fn slim(mut node: v1::Node) -> Arc<v1::Node> {
    node.metadata.managed_fields = None;
    Arc::new(node)
}
