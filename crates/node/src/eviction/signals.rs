//! Measurement of eviction signals.
//!
//! Whatever cannot be read keeps its last value, which is then stale: it keeps the node's condition
//! and ends no pod. The problem is logged once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_core::cgroup::CgroupName;
use podwright_core::eviction::{
    AbsurdValue, DiskLayout, Observation, Observations, SampleTime, Signal, Thresholds,
};
use podwright_cri as cri;
use podwright_host::cgroup::MemoryUsage;
use podwright_host::clock::Clock;
use podwright_host::machine::{Machine, MachineError};
use podwright_host::threads;
use podwright_proto::cri::FilesystemUsage;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{EvictionDependencies, EvictionSettings, Filesystem, Scope, is_disk};
use crate::error_chain::chain;
use crate::resources::cgroups::Cgroups;

/// How long a file system or the runtime may take. Afterwards its signals are stale.
const PATIENCE: Duration = Duration::from_secs(2);

/// Why signals could not be measured.
pub(super) type Problems = BTreeMap<Signal, String>;

/// Memory of the two groups that have thresholds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupMemory {
    pub(super) root: Option<MemoryUsage>,
    pub(super) pods: Option<MemoryUsage>,
    /// Of the machine.
    pub(super) total: Option<u64>,
}

pub(super) struct Signals {
    machine: Machine,
    cgroups: Arc<Cgroups>,
    runtime: cri::Client,
    clock: Clock,
    split_images: bool,
    root: FilesystemReader,
    images: Option<FilesystemReader>,
    layers: Option<FilesystemReader>,
    memory: GroupMemory,
    observed: Observations,
    problems: Problems,
    layout: Option<DiskLayout>,
}

/// Reads a file system with one thread at most: `statfs` of a dead network file system never
/// returns.
struct FilesystemReader {
    path: PathBuf,
    read: fn(&Path) -> Result<Filesystem, MachineError>,
    pending: Option<JoinHandle<Result<Filesystem, MachineError>>>,
}

impl FilesystemReader {
    fn new(path: PathBuf, read: fn(&Path) -> Result<Filesystem, MachineError>) -> Self {
        Self { path, read, pending: None }
    }

    async fn read(&mut self) -> Result<Filesystem, String> {
        let (path, read) = (self.path.clone(), self.read);
        let pending = self.pending.take();
        let mut pending = pending.unwrap_or_else(|| threads::blocking(move || read(&path)));
        match timeout(PATIENCE, &mut pending).await {
            Ok(Ok(read)) => read.map_err(|error| chain(&error)),
            Ok(Err(_)) => Err("the agent is stopping".to_owned()),
            Err(_) => {
                self.pending = Some(pending);
                let path = self.path.display();
                Err(format!("the file system of {path} does not respond, its last value is used"))
            }
        }
    }
}

impl Signals {
    pub(super) fn new(settings: &EvictionSettings, dependencies: &EvictionDependencies) -> Self {
        Self {
            machine: settings.machine.clone(),
            cgroups: dependencies.cgroups.clone(),
            runtime: dependencies.runtime.clone(),
            clock: dependencies.clock.clone(),
            split_images: settings.split_images,
            root: FilesystemReader::new(dependencies.root_dir.clone(), settings.filesystem),
            images: None,
            layers: None,
            memory: GroupMemory::default(),
            observed: Observations::new(),
            problems: Problems::new(),
            layout: None,
        }
    }

    /// The newest values.
    pub(super) fn observed(&self) -> &Observations {
        &self.observed
    }

    pub(super) fn problems(&self) -> &Problems {
        &self.problems
    }

    pub(super) fn memory(&self) -> &GroupMemory {
        &self.memory
    }

    /// `None`: the runtime did not say yet where its images are.
    pub(super) fn layout(&self) -> Option<DiskLayout> {
        self.layout
    }

    /// Measures what has thresholds.
    pub(super) async fn measure(&mut self, scope: Scope, thresholds: &Thresholds) {
        if scope == Scope::Everything {
            self.read_total();
        }
        if thresholds.has(Signal::Memory) || thresholds.has(Signal::AllocatableMemory) {
            self.measure_memory().await;
        }
        if scope == Scope::Memory {
            return;
        }
        if thresholds.has(Signal::Pids) {
            self.measure_pids();
        }
        if self.layout.is_none() || thresholds.iter().any(|threshold| is_disk(threshold.signal)) {
            self.measure_disks().await;
        }
    }

    fn read_total(&mut self) {
        match self.machine.memory() {
            Ok(total) => self.memory.total = Some(total),
            Err(error) => self.failed(&[Signal::Memory], &chain(&error)),
        }
    }

    async fn measure_memory(&mut self) {
        let host = self.cgroups.host().clone();
        let at = SampleTime::Measured(self.clock.now().mono);
        match host.memory(&CgroupName::ROOT).await {
            Ok(Some(memory)) => {
                self.memory.root = Some(memory);
                if let Some(total) = self.memory.total {
                    self.put(Signal::Memory, Observation::of_used(memory.working_set, total, at));
                }
            }
            Ok(None) => self.failed(&[Signal::Memory], "the root cgroup has no memory controller"),
            Err(error) => self.failed(&[Signal::Memory], &chain(&error)),
        }
        let pods = &[Signal::AllocatableMemory];
        match host.memory(self.cgroups.tree().all()).await {
            Ok(Some(memory)) => {
                self.memory.pods = Some(memory);
                match memory.limit {
                    Some(limit) => {
                        let seen = Observation::of_limited(memory.working_set, limit, at);
                        self.put(Signal::AllocatableMemory, seen);
                    }
                    // Nothing to be short of.
                    None => drop(self.observed.remove(&Signal::AllocatableMemory)),
                }
            }
            Ok(None) => self.failed(pods, "the cgroup of all pods does not exist"),
            Err(error) => self.failed(pods, &chain(&error)),
        }
    }

    fn measure_pids(&mut self) {
        let at = SampleTime::Measured(self.clock.now().mono);
        match self.machine.tasks() {
            Ok(tasks) => {
                let most = tasks.pid_max.min(tasks.threads_max);
                // There may be more threads than the limit that was lowered since.
                self.put(Signal::Pids, Observation::of_limited(tasks.current, most, at));
            }
            Err(error) => self.failed(&[Signal::Pids], &chain(&error)),
        }
    }

    async fn measure_disks(&mut self) {
        const ROOT: [Signal; 2] = [Signal::NodeFs, Signal::NodeFsInodes];
        const IMAGES: [Signal; 2] = [Signal::ImageFs, Signal::ImageFsInodes];
        const LAYERS: [Signal; 2] = [Signal::ContainerFs, Signal::ContainerFsInodes];
        const RUNTIME: [Signal; 4] = [IMAGES[0], IMAGES[1], LAYERS[0], LAYERS[1]];
        let (root, info) =
            tokio::join!(self.root.read(), timeout(PATIENCE, self.runtime.image_fs_info()));
        let at = SampleTime::Measured(self.clock.now().mono);
        let root_device = match root {
            Ok(root) => {
                self.put_disk(ROOT, &root, at);
                Some(root.device)
            }
            Err(problem) => {
                self.failed(&ROOT, &problem);
                None
            }
        };
        let info = match info {
            Ok(Ok(info)) => info,
            Ok(Err(error)) => return self.failed(&RUNTIME, &chain(&error)),
            Err(_) => return self.failed(&RUNTIME, "the runtime does not respond"),
        };
        let Some((path, at)) = info.image_filesystems.first().and_then(location) else {
            return self.failed(&RUNTIME, "the runtime does not say where its images are");
        };
        let images = match reader(&mut self.images, path, self.root.read).read().await {
            Ok(images) => images,
            Err(problem) => return self.failed(&RUNTIME, &problem),
        };
        self.put_disk(IMAGES, &images, at);
        let separate = info.container_filesystems.first().and_then(location);
        let layers = match separate.filter(|_| self.split_images) {
            Some((path, at)) => match reader(&mut self.layers, path, self.root.read).read().await {
                Ok(layers) => (layers, at),
                Err(problem) => return self.failed(&LAYERS, &problem),
            },
            None => (images, at),
        };
        self.put_disk(LAYERS, &layers.0, layers.1);
        if let (None, Some(root)) = (self.layout, root_device) {
            let layers = self.split_images.then_some(layers.0.device);
            let layout = DiskLayout::of(root, images.device, layers);
            tracing::info!(?layout, "layout of the file systems is known");
            self.layout = Some(layout);
        }
    }

    fn put_disk(&mut self, [bytes, inodes]: [Signal; 2], seen: &Filesystem, at: SampleTime) {
        let disk = &seen.disk;
        self.put(bytes, Observation::new(disk.available, disk.capacity, at));
        // A file system such as btrfs creates inodes as needed and counts none.
        match disk.inodes {
            0 => drop(self.observed.remove(&inodes)),
            total => self.put(inodes, Observation::new(disk.inodes_free, total, at)),
        }
    }

    fn put(&mut self, signal: Signal, seen: Result<Observation, AbsurdValue>) {
        match seen {
            Ok(seen) => {
                self.observed.insert(signal, seen);
                if self.problems.remove(&signal).is_some() {
                    tracing::info!(signal = signal.as_str(), "eviction signal is read again");
                }
            }
            Err(absurd) => self.failed(&[signal], &absurd.to_string()),
        }
    }

    fn failed(&mut self, signals: &[Signal], problem: &str) {
        for signal in signals {
            if self.problems.get(signal).is_none_or(|known| known != problem) {
                let signal = signal.as_str();
                tracing::warn!(
                    signal,
                    problem,
                    "cannot read eviction signal, no pod is evicted for it"
                );
            }
            self.problems.insert(*signal, problem.to_owned());
        }
    }
}

/// The reader of a path; one that hangs is kept while the path is the same.
fn reader(
    known: &mut Option<FilesystemReader>,
    path: PathBuf,
    read: fn(&Path) -> Result<Filesystem, MachineError>,
) -> &mut FilesystemReader {
    if known.as_ref().is_some_and(|known| known.path != path) {
        *known = None;
    }
    known.get_or_insert_with(|| FilesystemReader::new(path, read))
}

/// Path and time of a file system of the runtime.
fn location(usage: &FilesystemUsage) -> Option<(PathBuf, SampleTime)> {
    let path = usage.fs_id.as_ref().map(|id| &id.mountpoint).filter(|path| !path.is_empty())?;
    Some((PathBuf::from(path), SampleTime::Reported(usage.timestamp)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use super::*;

    static STARTED: AtomicUsize = AtomicUsize::new(0);
    static HANGS: AtomicBool = AtomicBool::new(true);

    fn hanging(path: &Path) -> Result<Filesystem, MachineError> {
        STARTED.fetch_add(1, SeqCst);
        while HANGS.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        super::super::real_filesystem(path)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn file_system_that_hangs_takes_one_thread_and_is_used_again_when_it_responds() {
        let mut reader = FilesystemReader::new("/".into(), hanging);
        for _ in 0..2 {
            let problem = reader.read().await.unwrap_err();
            assert!(problem.contains("does not respond"), "{problem}");
        }
        HANGS.store(false, SeqCst);
        assert!(reader.read().await.unwrap().disk.capacity > 0);
        assert_eq!(STARTED.load(SeqCst), 1, "each try waited for the first");
    }
}
