//! Pod source: the pods that the API server assigned to this node.

use futures::TryStreamExt;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use podwright_core::ids::PodUid;
use podwright_core::pod::Source;
use podwright_core::pod::merge::SourceUpdate;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::backoff::WatchBackoff;
use crate::pods::Delivery;

/// Lists and watches until stopped. A broken watch is resumed without losing changes.
pub async fn run(
    client: kube::Client,
    node: &str,
    deliveries: mpsc::Sender<Delivery>,
    stop: CancellationToken,
) {
    let work = async {
        let pods: Api<v1::Pod> = Api::all(client);
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let events = watcher::watcher(pods, config).backoff(WatchBackoff::of(node));
        let mut events = std::pin::pin!(events);
        let mut listing = Vec::new();
        loop {
            let event = match events.try_next().await {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "watch pods failed, retrying");
                    continue;
                }
            };
            if let Some(news) = news(event, &mut listing)
                && deliveries.send(Delivery { source: Source::Api, news }).await.is_err()
            {
                return;
            }
        }
    };
    stop.run_until_cancelled(work).await;
}

/// Converts a watch event. A list arrives in pieces and is delivered when it is complete.
fn news(event: Event<v1::Pod>, listing: &mut Vec<v1::Pod>) -> Option<SourceUpdate> {
    match event {
        Event::Init => {
            listing.clear();
            None
        }
        Event::InitApply(pod) => {
            listing.push(slim(pod));
            None
        }
        Event::InitDone => Some(SourceUpdate::All(std::mem::take(listing))),
        Event::Apply(pod) => Some(SourceUpdate::Changed(Box::new(slim(pod)))),
        Event::Delete(pod) => uid(&pod).map(SourceUpdate::Gone),
    }
}

fn uid(pod: &v1::Pod) -> Option<PodUid> {
    pod.metadata.uid.as_deref().map(PodUid::new)
}

/// Removes the field ownership, about half of an object and not used here.
fn slim(mut pod: v1::Pod) -> v1::Pod {
    pod.metadata.managed_fields = None;
    pod
}
