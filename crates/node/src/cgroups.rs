//! The pods' places in the cgroup tree.

mod orphans;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::cgroup::{CgroupConfig, CgroupName, CgroupNameError, PodPolicy, PodTree};
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::pod::Pod;
use podwright_core::qos::{PodResources, QosClass, ResourceError, ResourceList};
use podwright_host::cgroup::{CgroupError, Cgroups as Host};

use crate::causes::chain;
use orphans::Orphans;

#[derive(Debug, thiserror::Error)]
pub enum PodCgroupError {
    #[error("pod {pod}: its resources cannot be read")]
    Resources { pod: String, source: Box<ResourceError> },
    #[error("pod {pod}: its uid makes no cgroup name")]
    Name { pod: String, source: CgroupNameError },
    #[error("pod {pod}: cgroup")]
    Host { pod: String, source: Box<CgroupError> },
    #[error("pod {pod}: what is left in its cgroup of an earlier life is still being ended")]
    StillEnding { pod: String },
}

/// A pod's group as it is, and as the pod's resources make it.
pub struct Group {
    pub current: CgroupConfig,
    pub wanted: CgroupConfig,
    /// What of it the sandbox itself costs.
    pub overhead: ResourceList,
}

/// What was computed from a pod. Its class, and so its name, never change; its resources may.
struct Known {
    object: Arc<v1::Pod>,
    name: CgroupName,
    resources: PodResources,
    class: QosClass,
}

pub struct Cgroups {
    host: Host,
    tree: PodTree,
    policy: PodPolicy,
    /// The pods whose groups stand, as their workers know; burstable ones share by their sum.
    /// Whoever only asks adds nobody.
    pods: Mutex<BTreeMap<PodUid, Arc<Known>>>,
    orphans: Orphans,
    /// What was last written for all burstable pods. Held while writing: an older sum must not be
    /// written over a newer one.
    burstable: tokio::sync::Mutex<Option<CgroupConfig>>,
}

/// A group of the system or of Kubernetes' own daemons, and what it is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// `system` or `kube`.
    pub whose: &'static str,
    pub name: CgroupName,
    pub config: CgroupConfig,
}

#[derive(Debug, thiserror::Error)]
pub enum ReservedError {
    #[error(
        "the cgroup {path} for {whose} reservations does not exist; make it, or correct {whose}ReservedCgroup"
    )]
    Missing { whose: &'static str, path: String },
    #[error("the cgroup {path} for {whose} reservations")]
    Host { whose: &'static str, path: String, source: Box<CgroupError> },
}

/// When the classes' groups are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    IfChanged,
    /// Somebody else may have written to them.
    Anyway,
}

impl Cgroups {
    pub fn new(host: Host, tree: PodTree, policy: PodPolicy) -> Self {
        Self {
            host,
            tree,
            policy,
            pods: Mutex::default(),
            orphans: Orphans::default(),
            burstable: Default::default(),
        }
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

    /// The name of the pod's own group.
    pub fn name_of(&self, pod: &Pod) -> Result<CgroupName, PodCgroupError> {
        Ok(self.known(pod)?.name.clone())
    }

    /// Whether the pod's group stands, for its worker: a group that an agent before us made counts
    /// from now on.
    pub async fn has_pod(&self, pod: &Pod) -> bool {
        let stands = self.shows_pod(pod).await;
        if stands && let Ok(known) = self.known(pod) {
            self.count(pod, known);
        }
        stands
    }

    /// Whether the pod's group stands. One that cannot be looked at is not gone: only what is known
    /// to be missing may cost the pod its containers.
    pub async fn shows_pod(&self, pod: &Pod) -> bool {
        let looked = match self.known(pod) {
            Ok(known) => self.host.exists(&known.name).await.map_err(failed(pod)),
            Err(error) => Err(error),
        };
        looked.unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "taken for there as long as nobody can tell");
            true
        })
    }

    /// The group around all pods, below a root that must exist. Of its limits only the CPUs are set:
    /// the groups below can be made only where they are.
    pub async fn ensure_tree(&self, limits: &CgroupConfig) -> Result<(), CgroupError> {
        let cpus = CgroupConfig { cpus: limits.cpus.clone(), ..CgroupConfig::default() };
        self.host.ensure(self.tree.all(), &cpus).await?;
        self.refresh_classes(Refresh::Anyway).await
    }

    /// Holds all pods together to this.
    pub async fn limit_all(&self, limits: &CgroupConfig) -> Result<(), CgroupError> {
        self.host.update(self.tree.all(), limits).await
    }

    /// Holds the system to what is reserved for it. Its groups are never made: nothing would be in
    /// them.
    pub async fn enforce(&self, reserved: &Reserved) -> Result<(), ReservedError> {
        let Reserved { whose, name, config } = reserved;
        let path = || self.host.path(name);
        let failed = |source: CgroupError| ReservedError::Host {
            whose,
            path: path(),
            source: Box::new(source),
        };
        if !self.host.exists(name).await.map_err(failed)? {
            return Err(ReservedError::Missing { whose, path: path() });
        }
        self.host.update(name, config).await.map_err(failed)
    }

    /// Makes the pod's cgroup with its limits, and lets its class know of it first.
    pub async fn ensure_pod(&self, pod: &Pod) -> Result<(), PodCgroupError> {
        if self.orphans.has(&pod.uid) {
            return Err(PodCgroupError::StillEnding { pod: pod.name.to_string() });
        }
        let known = self.known(pod)?;
        self.count(pod, known.clone());
        self.refresh().await;
        let mut config = CgroupConfig::for_pod(&known.resources, known.class, self.policy);
        if let Some(limit) = config.memory_limit
            && self.memory_of_pod(pod).await.is_some_and(|used| used >= limit)
        {
            // One container's start must not cost another its life: a resize lowers the limit when
            // it can.
            config.memory_limit = None;
        }
        self.host.ensure(&known.name, &config).await.map_err(failed(pod))
    }

    /// What the pod's group has now, and what it should have.
    pub async fn group(&self, pod: &Pod) -> Result<Group, PodCgroupError> {
        let known = self.known(pod)?;
        let current = self.host.settings(&known.name).await.map_err(failed(pod))?;
        let wanted = CgroupConfig::for_pod(&known.resources, known.class, self.policy);
        Ok(Group { current, wanted, overhead: known.resources.overhead.clone() })
    }

    /// Changes a part of the pod's group.
    pub async fn set(&self, pod: &Pod, part: &CgroupConfig) -> Result<(), PodCgroupError> {
        let known = self.known(pod)?;
        self.host.update(&known.name, part).await.map_err(failed(pod))?;
        self.count(pod, known);
        Ok(())
    }

    /// Bytes of memory in use; `None` if nobody can tell.
    pub async fn memory_of_pod(&self, pod: &Pod) -> Option<u64> {
        let usage = self.host.usage(&self.known(pod).ok()?.name).await.ok()?;
        usage.memory.map(|memory| memory.usage)
    }

    /// The same of one container, whose group the runtime has named after it.
    pub async fn memory_of_container(&self, pod: &Pod, id: &ContainerId) -> Option<u64> {
        let name = &self.known(pod).ok()?.name;
        let children = self.host.children(name).await.ok()?;
        let own = children.iter().find(|child| child.contains(id.as_str()))?;
        let usage = self.host.usage_of_child(name, own).await.ok()?;
        usage.memory.map(|memory| memory.usage)
    }

    /// Lets the classes follow the pods that are here. A failure is told, and mended later.
    pub async fn refresh(&self) {
        if let Err(error) = self.refresh_classes(Refresh::IfChanged).await {
            tracing::warn!(%error, "cannot update the cgroups of the QoS classes");
        }
    }

    /// Burstable pods share what their requests add up to.
    pub async fn refresh_classes(&self, when: Refresh) -> Result<(), CgroupError> {
        let mut written = self.burstable.lock().await;
        let config = {
            let pods = self.pods.lock();
            let burstable = pods.values().filter(|known| known.class == QosClass::Burstable);
            CgroupConfig::for_burstable(burstable.map(|known| &known.resources))
        };
        match when {
            Refresh::IfChanged if *written == Some(config.clone()) => return Ok(()),
            Refresh::IfChanged | Refresh::Anyway => *written = None,
        }
        self.host.ensure(&self.tree.class(QosClass::Burstable), &config).await?;
        let best_effort = self.tree.class(QosClass::BestEffort);
        self.host.ensure(&best_effort, &CgroupConfig::for_best_effort()).await?;
        *written = Some(config);
        Ok(())
    }

    pub async fn destroy_pod(&self, pod: &Pod) -> Result<(), PodCgroupError> {
        let known = self.known(pod)?;
        self.host.destroy(&known.name).await.map_err(failed(pod))?;
        self.pods.lock().remove(&pod.uid);
        self.refresh().await;
        Ok(())
    }

    fn count(&self, pod: &Pod, known: Arc<Known>) {
        self.pods.lock().insert(pod.uid.clone(), known);
    }

    /// What is computed from a pod, or was before.
    fn known(&self, pod: &Pod) -> Result<Arc<Known>, PodCgroupError> {
        let before = self.pods.lock().get(&pod.uid).cloned();
        if let Some(known) = &before
            && Arc::ptr_eq(&known.object, &pod.object)
        {
            return Ok(known.clone());
        }
        let described = || pod.name.to_string();
        let spec = pod.object.spec.clone().unwrap_or_default();
        let resources = PodResources::parse(&spec).map_err(|source| PodCgroupError::Resources {
            pod: described(),
            source: source.into(),
        })?;
        let class = before.map_or_else(|| resources.class(), |known| known.class);
        let name = self
            .tree
            .pod(class, &pod.uid)
            .map_err(|source| PodCgroupError::Name { pod: described(), source })?;
        Ok(Arc::new(Known { object: pod.object.clone(), name, resources, class }))
    }
}

fn failed(pod: &Pod) -> impl Fn(CgroupError) -> PodCgroupError {
    let pod = pod.name.to_string();
    move |source| PodCgroupError::Host { pod: pod.clone(), source: Box::new(source) }
}

#[cfg(test)]
mod tests {
    use podwright_core::builders::pod;
    use podwright_host::cgroup::Owner;
    use podwright_host::mounts;

    use super::*;

    /// One hierarchy of plain folders.
    fn cgroups(root: &std::path::Path, controller: &str) -> Cgroups {
        let mount = root.join(controller);
        std::fs::create_dir(&mount).unwrap();
        let table = format!(
            "31 23 0:28 / {} rw - tmpfs tmpfs rw\n32 31 0:29 / {} rw - cgroup cgroup rw,{controller}\n",
            root.display(),
            mount.display()
        );
        let table = mounts::parse(table.as_bytes());
        let host = Host::open(&table, root, Owner::Us, Vec::new()).unwrap();
        Cgroups::new(host, PodTree::below(&CgroupName::ROOT), PodPolicy::default())
    }

    #[tokio::test]
    async fn only_a_pod_whose_group_stands_counts_and_a_question_adds_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let cgroups = cgroups(folder.path(), "cpuacct");
        let requests = serde_json::json!({ "resources": { "requests": { "cpu": "1" } } });
        let pod = pod("web").container_with("app", requests).build();
        let counted = || cgroups.pods.lock().len();

        cgroups.name_of(&pod).unwrap();
        cgroups.parent(&pod).unwrap();
        assert_eq!(cgroups.memory_of_pod(&pod).await, None);
        assert!(!cgroups.shows_pod(&pod).await && !cgroups.has_pod(&pod).await);
        assert_eq!(counted(), 0);

        cgroups.ensure_pod(&pod).await.unwrap();
        assert_eq!(counted(), 1);
        cgroups.destroy_pod(&pod).await.unwrap();
        assert_eq!(counted(), 0);

        // What an agent before us made counts as soon as its worker sees it.
        cgroups
            .host
            .ensure(&cgroups.name_of(&pod).unwrap(), &CgroupConfig::default())
            .await
            .unwrap();
        assert!(cgroups.shows_pod(&pod).await);
        assert_eq!(counted(), 0);
        assert!(cgroups.has_pod(&pod).await);
        assert_eq!(counted(), 1);
    }

    #[tokio::test]
    async fn the_start_of_a_container_takes_no_memory_from_others_that_use_it() {
        let folder = tempfile::tempdir().unwrap();
        let cgroups = cgroups(folder.path(), "memory");
        let limits = serde_json::json!({ "resources": { "limits": { "memory": "128Mi" } } });
        let pod = pod("web").container_with("app", limits).build();
        let parent = cgroups.parent(&pod).unwrap();
        let group = folder.path().join("memory").join(parent.trim_start_matches('/'));
        std::fs::create_dir_all(&group).unwrap();
        for (used, want) in [(128 << 20, "268435456"), (127 << 20, "134217728")] {
            std::fs::write(group.join("memory.limit_in_bytes"), "268435456").unwrap();
            std::fs::write(group.join("memory.usage_in_bytes"), used.to_string()).unwrap();
            cgroups.ensure_pod(&pod).await.unwrap();
            let limit = std::fs::read_to_string(group.join("memory.limit_in_bytes")).unwrap();
            assert_eq!(limit, want, "of {used} bytes in use");
        }
    }
}
