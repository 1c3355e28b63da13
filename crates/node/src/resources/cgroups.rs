//! Pod cgroups: creation, limits and removal.

pub mod node_limits;
mod orphans;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_api::qos::{PodResources, QosClass, ResourceError, ResourceList};
use podwright_core::cgroup::{
    CgroupConfig, CgroupName, CgroupNameError, CpuRequests, MemoryRequests, MemoryReserve,
    PodPolicy, PodTree,
};
use podwright_core::ids::{ContainerId, PodUid};
use podwright_core::pod::Pod;
use podwright_core::resize::actuation::{ExistingCgroup, before_start};
use podwright_host::cgroup::{CgroupError, Cgroups as Host};

use crate::error_chain::chain;
use orphans::OrphanedCgroups;

#[derive(Debug, thiserror::Error)]
pub enum PodCgroupError {
    #[error("pod {pod}: invalid resources")]
    Resources { pod: String, source: Box<ResourceError> },
    #[error("pod {pod}: the UID is not valid in a cgroup name")]
    Name { pod: String, source: CgroupNameError },
    #[error("pod {pod}: cgroup operation failed")]
    Host { pod: String, source: Box<CgroupError> },
    #[error("pod {pod}: processes of an earlier pod with this UID are still being killed")]
    StillEnding { pod: String },
}

/// A pod cgroup: its current configuration and the one that the pod's resources require.
pub struct PodCgroupState {
    pub current: CgroupConfig,
    pub wanted: CgroupConfig,
    /// The part of it for the sandbox.
    pub overhead: ResourceList,
}

/// Values computed from a pod. Its class, and so its name, never change; its resources may.
struct PodCgroup {
    object: Arc<v1::Pod>,
    name: CgroupName,
    resources: PodResources,
    class: QosClass,
    cpu_requests: CpuRequests,
    memory_requests: MemoryRequests,
}

/// The pods with a cgroup.
#[derive(Default)]
struct CountedPods {
    pods: BTreeMap<PodUid, Arc<PodCgroup>>,
    /// Sum of those of the burstable class.
    burstable: CpuRequests,
    /// The same for memory.
    burstable_memory: MemoryRequests,
    guaranteed_memory: MemoryRequests,
}

impl CountedPods {
    fn insert(&mut self, uid: &PodUid, pod: Arc<PodCgroup>) {
        self.remove(uid);
        match pod.class {
            QosClass::Burstable => {
                self.burstable.add(pod.cpu_requests);
                self.burstable_memory.add(pod.memory_requests);
            }
            QosClass::Guaranteed => self.guaranteed_memory.add(pod.memory_requests),
            QosClass::BestEffort => {}
        }
        self.pods.insert(uid.clone(), pod);
    }

    fn remove(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.remove(uid) else { return };
        match pod.class {
            QosClass::Burstable => {
                self.burstable.remove(pod.cpu_requests);
                self.burstable_memory.remove(pod.memory_requests);
            }
            QosClass::Guaranteed => self.guaranteed_memory.remove(pod.memory_requests),
            QosClass::BestEffort => {}
        }
    }
}

pub struct Cgroups {
    host: Host,
    tree: PodTree,
    policy: PodPolicy,
    /// Pods with a cgroup, as reported by their workers; the shares of the burstable class are the
    /// sum of these pods. Queries do not add pods.
    pods: Mutex<CountedPods>,
    orphans: OrphanedCgroups,
    /// `qosReserved`: limits the memory of the classes.
    reserve: Option<MemoryReserve>,
    /// The configuration last written for the burstable and the best-effort class. Locked while
    /// writing, so that an older sum is not written over a newer one.
    classes: tokio::sync::Mutex<Option<[CgroupConfig; 2]>>,
}

/// A cgroup of the system or of the Kubernetes daemons, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// `system` or `kube`.
    pub owner: &'static str,
    pub name: CgroupName,
    pub config: CgroupConfig,
}

#[derive(Debug, thiserror::Error)]
pub enum ReservedError {
    #[error(
        "the cgroup {path} for {owner} reservations does not exist. Fix: create it, or correct {owner}ReservedCgroup"
    )]
    Missing { owner: &'static str, path: String },
    #[error("cannot enforce {owner} reservations on the cgroup {path}")]
    Host { owner: &'static str, path: String, source: Box<CgroupError> },
}

/// When the cgroups of the QoS classes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refresh {
    IfChanged,
    /// Another process may have changed them.
    Anyway,
}

impl Cgroups {
    pub fn new(host: Host, tree: PodTree, policy: PodPolicy) -> Self {
        Self {
            host,
            tree,
            policy,
            pods: Mutex::default(),
            orphans: OrphanedCgroups::default(),
            reserve: None,
            classes: Default::default(),
        }
    }

    /// Lower classes leave memory free for the others from now on.
    pub fn reserving(self, reserve: Option<MemoryReserve>) -> Self {
        Self { reserve, ..self }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn tree(&self) -> &PodTree {
        &self.tree
    }

    /// The cgroup parent of the pod's containers.
    pub fn parent(&self, pod: &Pod) -> Result<String, PodCgroupError> {
        Ok(self.pod_cgroup(pod)?.name.path(self.host.driver()))
    }

    /// The name of the pod cgroup.
    pub fn name_of(&self, pod: &Pod) -> Result<CgroupName, PodCgroupError> {
        Ok(self.pod_cgroup(pod)?.name.clone())
    }

    /// Whether the pod cgroup exists, called by the pod worker: from now on it counts towards its
    /// class, also if an earlier agent created it.
    pub async fn has_pod(&self, pod: &Pod) -> bool {
        let stands = self.shows_pod(pod).await;
        if stands && let Ok(pod_cgroup) = self.pod_cgroup(pod) {
            self.count(pod, pod_cgroup);
        }
        stands
    }

    /// Whether the pod cgroup exists. An error counts as yes, because a missing cgroup causes the
    /// pod's containers to be killed.
    pub async fn shows_pod(&self, pod: &Pod) -> bool {
        let exists = match self.pod_cgroup(pod) {
            Ok(pod_cgroup) => self.host.exists(&pod_cgroup.name).await.map_err(failed(pod)),
            Err(error) => Err(error),
        };
        exists.unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "cannot check cgroup, assuming it exists");
            true
        })
    }

    /// Creates the cgroup of all pods, below a root that must exist. Of its limits only the CPUs are
    /// set: the child cgroups cannot be created without them.
    pub async fn ensure_tree(&self, limits: &CgroupConfig) -> Result<(), CgroupError> {
        let cpus = CgroupConfig { cpus: limits.cpus.clone(), ..CgroupConfig::default() };
        self.host.ensure(self.tree.all(), &cpus).await?;
        self.refresh_classes(Refresh::Anyway).await
    }

    /// Sets the limits of all pods together.
    pub async fn limit_all(&self, limits: &CgroupConfig) -> Result<(), CgroupError> {
        self.host.update(self.tree.all(), limits).await
    }

    /// Enforces the limits of a system cgroup. Such a cgroup is never created, because it would be
    /// empty.
    pub async fn enforce(&self, reserved: &Reserved) -> Result<(), ReservedError> {
        let Reserved { owner, name, config } = reserved;
        let path = || self.host.path(name);
        let failed = |source: CgroupError| ReservedError::Host {
            owner,
            path: path(),
            source: Box::new(source),
        };
        if !self.host.exists(name).await.map_err(failed)? {
            return Err(ReservedError::Missing { owner, path: path() });
        }
        self.host.update(name, config).await.map_err(failed)
    }

    /// Creates the pod cgroup with its limits, after updating its class. `is_resizing`: a resize of
    /// the pod is in progress.
    pub async fn ensure_pod(&self, pod: &Pod, is_resizing: bool) -> Result<(), PodCgroupError> {
        if self.orphans.has(&pod.uid) {
            return Err(PodCgroupError::StillEnding { pod: pod.name.to_string() });
        }
        let pod_cgroup = self.pod_cgroup(pod)?;
        self.count(pod, pod_cgroup.clone());
        self.refresh().await;
        let existing = match self.host.exists(&pod_cgroup.name).await.map_err(failed(pod))? {
            true => {
                let resizing = match is_resizing {
                    true => Some(self.host.settings(&pod_cgroup.name).await.map_err(failed(pod))?),
                    false => None,
                };
                Some(ExistingCgroup { used: self.memory_of_pod(pod).await, resizing })
            }
            false => None,
        };
        let wanted = CgroupConfig::for_pod(&pod_cgroup.resources, pod_cgroup.class, self.policy);
        let config = before_start(wanted, existing);
        self.host.ensure(&pod_cgroup.name, &config).await.map_err(failed(pod))
    }

    /// The current and the required configuration of the pod cgroup.
    pub async fn group(&self, pod: &Pod) -> Result<PodCgroupState, PodCgroupError> {
        let pod_cgroup = self.pod_cgroup(pod)?;
        let current = self.host.settings(&pod_cgroup.name).await.map_err(failed(pod))?;
        let wanted = CgroupConfig::for_pod(&pod_cgroup.resources, pod_cgroup.class, self.policy);
        Ok(PodCgroupState { current, wanted, overhead: pod_cgroup.resources.overhead.clone() })
    }

    /// Changes a part of the configuration of the pod cgroup.
    pub async fn set(&self, pod: &Pod, part: &CgroupConfig) -> Result<(), PodCgroupError> {
        let pod_cgroup = self.pod_cgroup(pod)?;
        self.host.update(&pod_cgroup.name, part).await.map_err(failed(pod))?;
        self.count(pod, pod_cgroup);
        Ok(())
    }

    /// Bytes of memory in use; `None` if unknown.
    pub async fn memory_of_pod(&self, pod: &Pod) -> Option<u64> {
        let usage = self.host.usage(&self.pod_cgroup(pod).ok()?.name).await.ok()?;
        usage.memory.map(|memory| memory.usage)
    }

    /// The same for one container, whose cgroup name contains its ID.
    pub async fn memory_of_container(&self, pod: &Pod, id: &ContainerId) -> Option<u64> {
        let name = &self.pod_cgroup(pod).ok()?.name;
        let children = self.host.children(name).await.ok()?;
        let own = children.iter().find(|child| child.contains(id.as_str()))?;
        let usage = self.host.usage_of_child(name, own).await.ok()?;
        usage.memory.map(|memory| memory.usage)
    }

    /// Updates the cgroups of the QoS classes. A failure is logged and retried later.
    pub async fn refresh(&self) {
        if let Err(error) = self.refresh_classes(Refresh::IfChanged).await {
            tracing::warn!(%error, "cannot update the cgroups of the QoS classes");
        }
    }

    /// The shares of the burstable class are the sum of its pods' requests.
    pub async fn refresh_classes(&self, when: Refresh) -> Result<(), CgroupError> {
        let mut written = self.classes.lock().await;
        let wanted = self.classes_wanted();
        match when {
            Refresh::IfChanged if written.as_ref() == Some(&wanted) => return Ok(()),
            Refresh::IfChanged | Refresh::Anyway => *written = None,
        }
        let [burstable, best_effort] = &wanted;
        for (class, config) in
            [(QosClass::Burstable, burstable), (QosClass::BestEffort, best_effort)]
        {
            let name = self.tree.class(class);
            self.host.ensure(&name, &self.spare(&name, config.clone()).await).await?;
        }
        *written = Some(wanted);
        Ok(())
    }

    /// The configurations of the burstable and the best-effort class.
    fn classes_wanted(&self) -> [CgroupConfig; 2] {
        let pods = self.pods.lock();
        let mut classes =
            [CgroupConfig::for_burstable(pods.burstable), CgroupConfig::for_best_effort()];
        if let Some(reserve) = self.reserve {
            let (burstable, best_effort) =
                reserve.limits(pods.guaranteed_memory, pods.burstable_memory);
            let [of_burstable, of_best_effort] = &mut classes;
            of_burstable.memory_limit = burstable;
            of_best_effort.memory_limit = best_effort;
        }
        classes
    }

    /// A limit below the present use would kill processes. The class may keep what it has; the next
    /// refresh lowers the limit further.
    async fn spare(&self, name: &CgroupName, mut config: CgroupConfig) -> CgroupConfig {
        if let Some(limit) = &mut config.memory_limit {
            // A class that does not exist yet uses nothing.
            let memory = self.host.usage(name).await.ok().and_then(|usage| usage.memory);
            *limit = memory.map_or(*limit, |memory| memory.usage.max(*limit));
        }
        config
    }

    pub async fn destroy_pod(&self, pod: &Pod) -> Result<(), PodCgroupError> {
        let pod_cgroup = self.pod_cgroup(pod)?;
        self.host.destroy(&pod_cgroup.name).await.map_err(failed(pod))?;
        self.pods.lock().remove(&pod.uid);
        self.refresh().await;
        Ok(())
    }

    /// Kills all processes of a pod; its cgroup stays.
    pub async fn kill_pod(&self, pod: &Pod) -> Result<(), PodCgroupError> {
        let pod_cgroup = self.pod_cgroup(pod)?;
        self.host.kill(&pod_cgroup.name).await.map_err(failed(pod))
    }

    fn count(&self, pod: &Pod, pod_cgroup: Arc<PodCgroup>) {
        self.pods.lock().insert(&pod.uid, pod_cgroup);
    }

    /// The values of a pod, cached or computed.
    fn pod_cgroup(&self, pod: &Pod) -> Result<Arc<PodCgroup>, PodCgroupError> {
        let before = self.pods.lock().pods.get(&pod.uid).cloned();
        if let Some(pod_cgroup) = &before
            && Arc::ptr_eq(&pod_cgroup.object, &pod.object)
        {
            return Ok(pod_cgroup.clone());
        }
        let described = || pod.name.to_string();
        let spec = pod.object.spec.clone().unwrap_or_default();
        let invalid = |source: ResourceError| PodCgroupError::Resources {
            pod: described(),
            source: source.into(),
        };
        let resources = PodResources::parse(&spec).map_err(invalid)?;
        let class = match before {
            Some(pod_cgroup) => pod_cgroup.class,
            None => QosClass::of(&pod.object).map_err(invalid)?,
        };
        let name = self
            .tree
            .pod(class, &pod.uid)
            .map_err(|source| PodCgroupError::Name { pod: described(), source })?;
        #[cfg(test)]
        EVALUATED.with(|count| count.set(count.get() + 1));
        let cpu_requests = CpuRequests::of_pod(&resources);
        let memory_requests = MemoryRequests::of_pod(&resources);
        let object = pod.object.clone();
        Ok(Arc::new(PodCgroup { object, name, resources, class, cpu_requests, memory_requests }))
    }
}

fn failed(pod: &Pod) -> impl Fn(CgroupError) -> PodCgroupError {
    let pod = pod.name.to_string();
    move |source| PodCgroupError::Host { pod: pod.clone(), source: Box::new(source) }
}

#[cfg(test)]
std::thread_local! {
    /// Pods whose requests were evaluated.
    static EVALUATED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use podwright_core::builders::pod;
    use podwright_host::cgroup::Owner;
    use podwright_host::mounts;

    use super::*;

    /// A cgroup hierarchy of plain directories.
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
    async fn lower_classes_leave_memory_free_but_keep_what_they_use() {
        let dir = tempfile::tempdir().unwrap();
        let mib = |count: u64| count << 20;
        let reserve = MemoryReserve { percent: 50, allocatable: mib(1000) };
        let cgroups = cgroups(dir.path(), "memory").reserving(Some(reserve));
        let file =
            |class: &str, name: &str| dir.path().join("memory/kubepods").join(class).join(name);
        for class in ["burstable", "besteffort"] {
            std::fs::create_dir_all(file(class, "")).unwrap();
            std::fs::write(file(class, "memory.limit_in_bytes"), "").unwrap();
        }
        let limits = || {
            ["burstable", "besteffort"].map(|class| {
                let text = std::fs::read_to_string(file(class, "memory.limit_in_bytes")).unwrap();
                text.parse::<u64>().unwrap()
            })
        };
        let sized = |name: &str, resources: serde_json::Value| {
            let resources = serde_json::json!({ "resources": resources });
            pod(name).container_with("app", resources).build()
        };
        let all = serde_json::json!({ "cpu": "1", "memory": "200Mi" });
        let guaranteed = sized("a", serde_json::json!({ "requests": all, "limits": all }));
        let burstable = sized("b", serde_json::json!({ "requests": { "memory": "100Mi" } }));
        for pod in [&guaranteed, &burstable] {
            cgroups.count(pod, cgroups.pod_cgroup(pod).unwrap());
        }
        cgroups.refresh_classes(Refresh::IfChanged).await.unwrap();
        assert_eq!(limits(), [mib(900), mib(850)]);

        std::fs::write(file("besteffort", "memory.usage_in_bytes"), mib(870).to_string()).unwrap();
        cgroups.refresh_classes(Refresh::Anyway).await.unwrap();
        assert_eq!(limits(), [mib(900), mib(870)], "a lower limit would kill");
        cgroups.pods.lock().remove(&guaranteed.uid);
        cgroups.refresh_classes(Refresh::IfChanged).await.unwrap();
        assert_eq!(limits(), [mib(1000), mib(950)]);
    }

    #[tokio::test]
    async fn only_pods_with_a_cgroup_count_and_queries_add_none() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = cgroups(dir.path(), "cpuacct");
        let requests = serde_json::json!({ "resources": { "requests": { "cpu": "1" } } });
        let pod = pod("web").container_with("app", requests).build();
        let counted = || cgroups.pods.lock().pods.len();

        cgroups.name_of(&pod).unwrap();
        cgroups.parent(&pod).unwrap();
        assert_eq!(cgroups.memory_of_pod(&pod).await, None);
        assert!(!cgroups.shows_pod(&pod).await && !cgroups.has_pod(&pod).await);
        assert_eq!(counted(), 0);

        cgroups.ensure_pod(&pod, false).await.unwrap();
        assert_eq!(counted(), 1);
        cgroups.destroy_pod(&pod).await.unwrap();
        assert_eq!(counted(), 0);

        // A cgroup of an earlier agent counts as soon as its worker checks it.
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
    async fn class_weight_follows_each_pod_without_visiting_the_others() {
        for count in [10, 100] {
            let dir = tempfile::tempdir().unwrap();
            // A hierarchy without a file for the weight: what would be written is compared.
            let cgroups = cgroups(dir.path(), "cpuacct");
            let weight = async || cgroups.classes.lock().await.as_ref().unwrap()[0].cpu_shares;
            let requesting = |number: u64, cpu: &str| {
                let fields = serde_json::json!({ "resources": { "requests": { "cpu": cpu } } });
                pod(&format!("p{number}")).container_with("c", fields).build()
            };
            let pods: Vec<Pod> = (0..count).map(|number| requesting(number, "1")).collect();
            EVALUATED.set(0);
            for pod in &pods {
                cgroups.ensure_pod(pod, false).await.unwrap();
            }
            assert_eq!(weight().await, Some(1024 * count));
            assert_eq!(EVALUATED.get(), pods.len(), "one evaluation per pod of {count}");
            // A resize replaces the request of the pod, it does not add to it.
            cgroups.ensure_pod(&requesting(0, "2"), false).await.unwrap();
            assert_eq!(weight().await, Some(1024 * (count + 1)));
            EVALUATED.set(0);
            for pod in &pods {
                cgroups.destroy_pod(pod).await.unwrap();
            }
            assert_eq!(weight().await, Some(2));
            assert_eq!(EVALUATED.get(), 1, "only the pod that was resized");
        }
    }

    #[tokio::test]
    async fn container_start_leaves_decreases_to_a_resize_in_progress() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = cgroups(dir.path(), "cpu");
        let limits = serde_json::json!({ "resources": { "limits": { "cpu": "1" } } });
        let pod = pod("web").container_with("app", limits).build();
        let parent = cgroups.parent(&pod).unwrap();
        let group = dir.path().join("cpu").join(parent.trim_start_matches('/'));
        std::fs::create_dir_all(&group).unwrap();
        for (before, is_resizing, want) in
            [("200000", true, "200000"), ("50000", true, "100000"), ("200000", false, "100000")]
        {
            std::fs::write(group.join("cpu.cfs_quota_us"), before).unwrap();
            for file in ["cpu.cfs_period_us", "cpu.shares"] {
                std::fs::write(group.join(file), "100000").unwrap();
            }
            cgroups.ensure_pod(&pod, is_resizing).await.unwrap();
            let quota = std::fs::read_to_string(group.join("cpu.cfs_quota_us")).unwrap();
            assert_eq!(quota, want, "from {before}, resize in progress: {is_resizing}");
        }
    }

    #[tokio::test]
    async fn container_start_does_not_lower_the_limit_below_usage() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = cgroups(dir.path(), "memory");
        let limits = serde_json::json!({ "resources": { "limits": { "memory": "128Mi" } } });
        let pod = pod("web").container_with("app", limits).build();
        let parent = cgroups.parent(&pod).unwrap();
        let group = dir.path().join("memory").join(parent.trim_start_matches('/'));
        std::fs::create_dir_all(&group).unwrap();
        for (used, want) in [(128 << 20, "268435456"), (127 << 20, "134217728")] {
            std::fs::write(group.join("memory.limit_in_bytes"), "268435456").unwrap();
            std::fs::write(group.join("memory.usage_in_bytes"), used.to_string()).unwrap();
            cgroups.ensure_pod(&pod, false).await.unwrap();
            let limit = std::fs::read_to_string(group.join("memory.limit_in_bytes")).unwrap();
            assert_eq!(limit, want, "of {used} bytes in use");
        }
    }
}
