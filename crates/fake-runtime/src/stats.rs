//! Resource usage of containers and disks, as far as scripts define it.

use podwright_proto::cri;

use super::containers::{Container, State};
use super::runtime_state::RuntimeState;
use super::sandboxes::{Sandbox, selected};

/// Storage directory of containerd's default snapshotter.
const IMAGE_FS: &str = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs";

impl RuntimeState {
    fn nanos(&self) -> i64 {
        i64::try_from(self.now().as_nanosecond()).unwrap_or(i64::MAX)
    }

    pub(super) fn container_stats(&self, container: &Container) -> cri::ContainerStats {
        let timestamp = self.nanos();
        let usage = container.script.usage;
        let boxed = |value| Some(cri::UInt64Value { value });
        let mut stats = cri::ContainerStats {
            attributes: Some(cri::ContainerAttributes {
                id: container.id.clone(),
                metadata: container.config.metadata.clone(),
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
            }),
            writable_layer: Some(cri::FilesystemUsage {
                timestamp,
                fs_id: Some(cri::FilesystemIdentifier { mountpoint: IMAGE_FS.into() }),
                used_bytes: boxed(usage.disk_bytes),
                inodes_used: boxed(1),
            }),
            ..Default::default()
        };
        // A process that does not run has no cgroup to be measured.
        if container.state == State::Running {
            let ran = u64::try_from(timestamp - container.started_at).unwrap_or(0);
            let spent = (u128::from(ran) * u128::from(usage.millicores)) / 1000;
            stats.cpu = Some(cri::CpuUsage {
                timestamp,
                usage_core_nano_seconds: boxed(u64::try_from(spent).unwrap_or(u64::MAX)),
                ..Default::default()
            });
            stats.memory = Some(cri::MemoryUsage {
                timestamp,
                working_set_bytes: boxed(usage.memory_bytes),
                usage_bytes: boxed(usage.memory_bytes),
                rss_bytes: boxed(usage.memory_bytes),
                ..Default::default()
            });
        }
        stats
    }

    pub(super) fn list_container_stats(
        &mut self,
        filter: Option<&cri::ContainerStatsFilter>,
    ) -> Vec<cri::ContainerStats> {
        let wanted = self.containers.values().filter(|container| {
            filter.is_none_or(|filter| {
                let sandbox = &filter.pod_sandbox_id;
                (filter.id.is_empty() || filter.id == container.id)
                    && (sandbox.is_empty() || *sandbox == container.sandbox)
                    && selected(&container.config.labels, &filter.label_selector)
            })
        });
        let mut stats: Vec<_> = wanted.map(|container| self.container_stats(container)).collect();
        self.order.shuffle(&mut stats);
        stats
    }

    pub(super) fn sandbox_stats(&self, sandbox: &Sandbox) -> cri::PodSandboxStats {
        let timestamp = self.nanos();
        let inside = self.containers.values().filter(|container| container.sandbox == sandbox.id);
        let containers: Vec<_> = inside.map(|container| self.container_stats(container)).collect();
        let sum = |value: fn(&cri::ContainerStats) -> Option<u64>| {
            let value = containers.iter().filter_map(value).fold(0, u64::saturating_add);
            Some(cri::UInt64Value { value })
        };
        let cpu = cri::CpuUsage {
            timestamp,
            usage_core_nano_seconds: sum(|c| Some(c.cpu?.usage_core_nano_seconds?.value)),
            ..Default::default()
        };
        let memory = cri::MemoryUsage {
            timestamp,
            working_set_bytes: sum(|c| Some(c.memory?.working_set_bytes?.value)),
            usage_bytes: sum(|c| Some(c.memory?.usage_bytes?.value)),
            ..Default::default()
        };
        cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes {
                id: sandbox.id.clone(),
                metadata: sandbox.config.metadata.clone(),
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
            }),
            linux: Some(cri::LinuxPodSandboxStats {
                cpu: Some(cpu),
                memory: Some(memory),
                containers,
                ..Default::default()
            }),
        }
    }

    pub(super) fn list_sandbox_stats(
        &mut self,
        filter: Option<&cri::PodSandboxStatsFilter>,
    ) -> Vec<cri::PodSandboxStats> {
        // containerd leaves out sandboxes that are not ready.
        let wanted = self.sandboxes.values().filter(|sandbox| {
            sandbox.ready
                && filter.is_none_or(|filter| {
                    (filter.id.is_empty() || filter.id == sandbox.id)
                        && selected(&sandbox.config.labels, &filter.label_selector)
                })
        });
        let mut stats: Vec<_> = wanted.map(|sandbox| self.sandbox_stats(sandbox)).collect();
        self.order.shuffle(&mut stats);
        stats
    }

    /// The image filesystem: used bytes, without its size.
    pub(super) fn image_fs_info(&self) -> cri::ImageFsInfoResponse {
        let used = self.images.all().iter().map(|image| image.size).fold(0, u64::saturating_add);
        let usage = cri::FilesystemUsage {
            timestamp: self.nanos(),
            fs_id: Some(cri::FilesystemIdentifier { mountpoint: IMAGE_FS.into() }),
            used_bytes: Some(cri::UInt64Value { value: used }),
            inodes_used: Some(cri::UInt64Value { value: 1 }),
        };
        cri::ImageFsInfoResponse { image_filesystems: vec![usage], container_filesystems: vec![] }
    }
}
