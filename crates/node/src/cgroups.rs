//! The pods' places in the cgroup tree.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::cgroup::{CgroupConfig, CgroupName, CgroupNameError, PodPolicy, PodTree};
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::qos::{PodResources, QosClass, ResourceError};
use podwright_host::cgroup::{CgroupError, Cgroups as Host};

#[derive(Debug, thiserror::Error)]
pub enum PodCgroupError {
    #[error("pod {pod}: its resources cannot be read")]
    Resources { pod: String, source: Box<ResourceError> },
    #[error("pod {pod}: its uid makes no cgroup name")]
    Name { pod: String, source: CgroupNameError },
    #[error("pod {pod}: cgroup")]
    Host { pod: String, source: Box<CgroupError> },
}

/// What was computed for a pod when its cgroup was made; its class never changes.
struct Known {
    name: CgroupName,
    resources: PodResources,
    class: QosClass,
}

pub struct Cgroups {
    host: Host,
    tree: PodTree,
    policy: PodPolicy,
    pods: Mutex<BTreeMap<PodUid, Arc<Known>>>,
}

impl Cgroups {
    pub fn new(host: Host, tree: PodTree, policy: PodPolicy) -> Self {
        Self { host, tree, policy, pods: Mutex::default() }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn tree(&self) -> &PodTree {
        &self.tree
    }

    /// Where the runtime puts the pod's containers.
    pub fn parent(&self, pod: &Pod) -> Result<String, PodCgroupError> {
        Ok(self.known(pod)?.name.path(self.host.driver()))
    }

    /// A cgroup that cannot be looked at counts as missing; making it will tell why.
    pub async fn has_pod(&self, pod: &Pod) -> bool {
        match self.known(pod) {
            Ok(known) => self.host.exists(&known.name).await.unwrap_or(false),
            Err(_) => false,
        }
    }

    /// The group around all pods, below a root that must exist.
    pub async fn ensure_tree(&self, limits: &CgroupConfig) -> Result<(), CgroupError> {
        self.host.ensure(self.tree.all(), limits).await?;
        self.refresh_classes().await
    }

    /// Makes the pod's cgroup with its limits, and lets its class know of it first.
    pub async fn ensure_pod(&self, pod: &Pod) -> Result<(), PodCgroupError> {
        let known = self.known(pod)?;
        let failed = |source: CgroupError| PodCgroupError::Host {
            pod: pod.name.to_string(),
            source: Box::new(source),
        };
        if let Err(error) = self.refresh_classes().await {
            tracing::warn!(%error, "cannot update the cgroups of the QoS classes");
        }
        let config = CgroupConfig::for_pod(&known.resources, known.class, self.policy);
        self.host.ensure(&known.name, &config).await.map_err(failed)
    }

    /// Burstable pods share what their requests add up to.
    pub async fn refresh_classes(&self) -> Result<(), CgroupError> {
        let pods: Vec<Arc<Known>> = self.pods.lock().values().cloned().collect();
        let burstable = pods.iter().filter(|known| known.class == QosClass::Burstable);
        let config = CgroupConfig::for_burstable(burstable.map(|known| &known.resources));
        self.host.ensure(&self.tree.class(QosClass::Burstable), &config).await?;
        let best_effort = self.tree.class(QosClass::BestEffort);
        self.host.ensure(&best_effort, &CgroupConfig::for_best_effort()).await
    }

    pub async fn destroy_pod(&self, pod: &Pod) -> Result<(), PodCgroupError> {
        let known = self.known(pod)?;
        let failed = |source: CgroupError| PodCgroupError::Host {
            pod: pod.name.to_string(),
            source: Box::new(source),
        };
        self.host.destroy(&known.name).await.map_err(failed)?;
        self.pods.lock().remove(&pod.uid);
        Ok(())
    }

    /// Cgroups of pods that nobody knows any more.
    pub async fn destroy_orphans(&self, keep: impl Fn(&PodUid) -> bool) -> Result<(), CgroupError> {
        for (uid, name) in self.host.pods(&self.tree).await? {
            if !keep(&uid) {
                tracing::info!(%uid, "removing the cgroup of a pod that is gone");
                self.host.destroy(&name).await?;
                self.pods.lock().remove(&uid);
            }
        }
        Ok(())
    }

    fn known(&self, pod: &Pod) -> Result<Arc<Known>, PodCgroupError> {
        if let Some(known) = self.pods.lock().get(&pod.uid) {
            return Ok(known.clone());
        }
        let described = || pod.name.to_string();
        let spec = pod.object.spec.clone().unwrap_or_default();
        let resources = PodResources::parse(&spec).map_err(|source| PodCgroupError::Resources {
            pod: described(),
            source: source.into(),
        })?;
        let class = resources.class();
        let name = self
            .tree
            .pod(class, &pod.uid)
            .map_err(|source| PodCgroupError::Name { pod: described(), source })?;
        let known = Arc::new(Known { name, resources, class });
        self.pods.lock().insert(pod.uid.clone(), known.clone());
        Ok(known)
    }
}
