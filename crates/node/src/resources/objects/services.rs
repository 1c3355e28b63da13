//! Services of the cluster, for environment variables.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use podwright_core::config::ServiceView;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Objects;
use crate::sources::backoff::WatchBackoff;

const LIST_TIMEOUT: Duration = Duration::from_secs(5);

type ServiceList = Option<Arc<Vec<ServiceView>>>;

#[derive(Default)]
pub(super) struct Services(watch::Sender<ServiceList>);

impl Objects {
    /// The services of the cluster; `None` if they were not listed in time. Waits a short time after the
    /// start, so that the first containers do not fail.
    pub async fn services(&self) -> ServiceList {
        let mut services = self.services.0.subscribe();
        let read = services.wait_for(Option::is_some);
        match tokio::time::timeout(LIST_TIMEOUT, read).await {
            Ok(Ok(services)) => services.clone(),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// The known services, without waiting.
    pub fn known_services(&self) -> Arc<Vec<ServiceView>> {
        self.services.0.borrow().clone().unwrap_or_default()
    }

    /// Watches the services of the cluster until stopped.
    pub async fn follow_services(self: Arc<Self>, node: Arc<str>, stop: CancellationToken) {
        let Some(client) = self.client.clone() else { return };
        let work = async {
            // Headless services are filtered here: older servers have no selector for them.
            let config = watcher::Config::default();
            let events = watcher::watcher(Api::<v1::Service>::all(client), config);
            let mut events = std::pin::pin!(events.backoff(WatchBackoff::of(&node)));
            let mut known: BTreeMap<(String, String), ServiceView> = BTreeMap::new();
            let mut listing = BTreeMap::new();
            loop {
                match events.try_next().await {
                    Ok(Some(Event::Init)) => listing.clear(),
                    Ok(Some(Event::InitApply(service))) => {
                        listing.extend(ServiceView::of(&service).map(|view| (key(&service), view)));
                    }
                    Ok(Some(Event::InitDone)) => {
                        known = std::mem::take(&mut listing);
                        self.services.publish(&known);
                    }
                    Ok(Some(Event::Apply(service))) => {
                        match ServiceView::of(&service) {
                            Some(view) => known.insert(key(&service), view),
                            None => known.remove(&key(&service)),
                        };
                        self.services.publish(&known);
                    }
                    Ok(Some(Event::Delete(service))) => {
                        known.remove(&key(&service));
                        self.services.publish(&known);
                    }
                    Ok(None) => return,
                    Err(error) => tracing::warn!(%error, "watch on services failed, restarting it"),
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }
}

impl Services {
    fn publish(&self, known: &BTreeMap<(String, String), ServiceView>) {
        self.0.send_replace(Some(Arc::new(known.values().cloned().collect())));
    }
}

fn key(service: &v1::Service) -> (String, String) {
    let meta = &service.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}
