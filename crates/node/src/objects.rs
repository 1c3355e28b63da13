//! ConfigMaps, Secrets and Services that containers' variables come from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use podwright_core::config::env::{Need, ObjectKind};
use podwright_core::config::env_file::EnvFile;
use podwright_core::config::{EnvSources, Lookup, ServiceView};
use podwright_core::pod::Pod;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const SERVICES_PATIENCE: Duration = Duration::from_secs(5);

type Services = Option<Arc<Vec<ServiceView>>>;

pub struct Objects {
    client: Option<kube::Client>,
    services: watch::Sender<Services>,
}

impl Objects {
    pub fn new(client: Option<kube::Client>) -> Arc<Self> {
        Arc::new(Self { client, services: watch::Sender::new(None) })
    }

    /// The services of the cluster; `None` if they were never read. A node that just started
    /// waits a moment for them instead of failing its first containers.
    pub async fn services(&self) -> Services {
        let mut services = self.services.subscribe();
        let read = services.wait_for(Option::is_some);
        match tokio::time::timeout(SERVICES_PATIENCE, read).await {
            Ok(Ok(services)) => services.clone(),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    /// Reads what a container's variables need.
    pub async fn fetch(&self, pod: &Pod, needs: Vec<Need>) -> Fetched {
        let mut fetched = Fetched { api: self.client.is_some(), ..Fetched::default() };
        let Some(client) = &self.client else { return fetched };
        for need in needs {
            match need {
                Need::Object { kind: ObjectKind::ConfigMap, name, .. } => {
                    let found = get::<v1::ConfigMap>(client, pod, &name).await;
                    fetched.config_maps.insert(name, found);
                }
                Need::Object { kind: ObjectKind::Secret, name, .. } => {
                    let found = get::<v1::Secret>(client, pod, &name).await;
                    fetched.secrets.insert(name, found);
                }
                // Files are looked up in the pod's mounted volumes by whoever mounts those.
                Need::File { .. } => {}
            }
        }
        fetched
    }

    /// Follows the cluster's services until stopped.
    pub async fn follow_services(self: Arc<Self>, stop: CancellationToken) {
        let Some(client) = self.client.clone() else { return };
        let work = async {
            // Headless services are left out here: older servers cannot select them away.
            let config = watcher::Config::default();
            let events = watcher::watcher(Api::<v1::Service>::all(client), config);
            let mut events = std::pin::pin!(events.default_backoff());
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
                        self.publish(&known);
                    }
                    Ok(Some(Event::Apply(service))) => {
                        match ServiceView::of(&service) {
                            Some(view) => known.insert(key(&service), view),
                            None => known.remove(&key(&service)),
                        };
                        self.publish(&known);
                    }
                    Ok(Some(Event::Delete(service))) => {
                        known.remove(&key(&service));
                        self.publish(&known);
                    }
                    Ok(None) => return,
                    Err(error) => tracing::warn!(%error, "lost the watch on services"),
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    fn publish(&self, known: &BTreeMap<(String, String), ServiceView>) {
        self.services.send_replace(Some(Arc::new(known.values().cloned().collect())));
    }
}

fn key(service: &v1::Service) -> (String, String) {
    let meta = &service.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

async fn get<K>(client: &kube::Client, pod: &Pod, name: &str) -> Lookup<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), &pod.name.namespace);
    match api.get_opt(name).await {
        Ok(Some(object)) => Lookup::Found(object),
        Ok(None) => Lookup::Missing,
        Err(error) => Lookup::Failed(error.to_string()),
    }
}

/// Objects as they were when a container was about to start.
#[derive(Default)]
pub struct Fetched {
    api: bool,
    config_maps: BTreeMap<String, Lookup<v1::ConfigMap>>,
    secrets: BTreeMap<String, Lookup<v1::Secret>>,
}

impl EnvSources for Fetched {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        borrowed(self.api, self.config_maps.get(name))
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        borrowed(self.api, self.secrets.get(name))
    }

    fn file(&self, _volume: &str, _path: &str) -> EnvFile<'_> {
        EnvFile::NoVolume
    }
}

fn borrowed<T>(api: bool, found: Option<&Lookup<T>>) -> Lookup<&T> {
    match found {
        Some(Lookup::Found(object)) => Lookup::Found(object),
        Some(Lookup::Missing) => Lookup::Missing,
        Some(Lookup::Failed(problem)) => Lookup::Failed(problem.clone()),
        Some(Lookup::NoApiServer) | None if !api => Lookup::NoApiServer,
        Some(Lookup::NoApiServer) | None => Lookup::Missing,
    }
}
