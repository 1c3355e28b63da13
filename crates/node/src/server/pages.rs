//! `/metrics` and `/stats/summary` pages.

use std::collections::HashMap;

use podwright_core::ids::SandboxId;
use podwright_core::stats::Interface;
use podwright_host::{machine, self_usage, threads};

use super::Server;
use super::query::Query;
use super::response::{HttpResponse, json, metrics};
use super::route::Page;
use crate::telemetry::metrics::cadvisor::{self, Disks, Network, Row};
use crate::telemetry::metrics::census::{self, Agent, TrackedPod};
use crate::telemetry::metrics::{Exposition, resource, volumes, write_process};
use crate::telemetry::stats::{CgroupUsage, PodSnapshot, Snapshot};

impl Server {
    pub(super) async fn metrics(&self, page: Page) -> HttpResponse {
        let mut out = Exposition::default();
        match page {
            Page::Agent => {
                self.dependencies.metrics.write(&mut out);
                self.census(&mut out);
                volumes::write(&self.stats.claims().await, &mut out);
                write_process(&self_usage::read("/proc".as_ref()), &mut out);
            }
            Page::Resource => {
                let snapshot = self.stats.snapshot().await;
                resource::write(&snapshot, self.stats.swap_of_containers(), &mut out);
            }
            Page::Cadvisor => self.cadvisor(&mut out).await,
            Page::Probes => self.dependencies.metrics.write_probes(&mut out),
        }
        metrics(out.into_page())
    }

    fn census(&self, out: &mut Exposition) {
        let handles = self.pod_index.handles();
        let pods: Vec<TrackedPod> = handles
            .iter()
            .map(|(uid, handle)| {
                let pod = handle.pod();
                TrackedPod {
                    stage: handle.stage(),
                    wanted: self.pod_index.pod(uid).is_some(),
                    is_static: pod.is_static(),
                    ephemeral_containers: pod.ephemeral_containers().count(),
                }
            })
            .collect();
        census::write_pods(&pods, self.dependencies.metrics.pods.ending_orphans.get(), out);
        let agent = Agent {
            node: &self.dependencies.node_name,
            cgroup_version: self.dependencies.cgroup_version,
            version: self.settings.version,
            commit: self.settings.commit,
        };
        census::write_agent(&agent, out);
    }

    pub(super) async fn summary(&self, query: &Query) -> HttpResponse {
        let summary = self.stats.summary().await;
        match query.first("only_cpu_and_memory") {
            Some("true") => json(&summary.cpu_and_memory_only()),
            Some(_) | None => json(&summary),
        }
    }

    async fn cadvisor(&self, out: &mut Exposition) {
        let snapshot = self.stats.snapshot().await;
        let sandboxes = self.stats.sandboxes(&snapshot).await;
        let images = self.stats.sandbox_images(&snapshot).await;
        let written = self.stats.written().await;
        let mut rows = Vec::new();
        for row in rows_without_details(&snapshot, &sandboxes, &images) {
            let detail = self.stats.detail(row.group).await;
            let layer = written.by_container.get(row.name).copied();
            rows.push(Row { detail, layer, ..row });
        }
        let machine = self.stats.machine().clone();
        let read = threads::blocking(move || {
            let of = written.layers_dir.and_then(|layers_dir| machine::device_of(&layers_dir));
            let disks = (machine.filesystems(), machine.block_devices(), of);
            (machine.identity().ok(), machine.capacity().ok(), disks, machine.interfaces(None))
        });
        // Fails only while the agent stops.
        let Ok((identity, capacity, disks, interfaces)) = read.await else { return };
        let (filesystems, devices, layers) = disks;
        let (filesystems, devices) = (filesystems.unwrap_or_default(), devices.unwrap_or_default());
        let incomplete = snapshot.incomplete || interfaces.is_err();
        let interfaces = interfaces.unwrap_or_default();
        let networks = networks(&snapshot, &sandboxes, &images, &interfaces);
        // The first row is the machine's.
        if let (Some(root), Some(capacity)) = (rows.first_mut(), &capacity) {
            root.limit_by_machine(capacity);
        }
        let disks = Disks::new(filesystems, devices, layers, &rows);
        let (identity, capacity) = (identity.as_ref(), capacity.as_ref());
        cadvisor::write(incomplete, &rows, &networks, &disks, identity, capacity, out);
    }
}

type Sandboxes = HashMap<SandboxId, CgroupUsage>;
type Images = HashMap<SandboxId, String>;

/// Every cgroup of a snapshot with its labels, the root first.
fn rows_without_details<'a>(
    snapshot: &'a Snapshot,
    sandboxes: &'a Sandboxes,
    images: &'a Images,
) -> Vec<Row<'a>> {
    let mut rows = vec![Row::of(&snapshot.node), Row::of(&snapshot.all_pods)];
    rows.extend(snapshot.classes.iter().map(Row::of));
    for (_, started, group) in &snapshot.daemons {
        // A daemon may be configured into a cgroup that has a row, and two into one.
        let is_known = |row: &Row<'_>| row.id.trim_matches('/') == group.path.trim_matches('/');
        if !rows.iter().any(is_known) {
            rows.push(Row { started: Some(*started), ..Row::of(group) });
        }
    }
    for pod in &snapshot.pods {
        rows.push(row_of_pod(pod, &pod.group));
        rows.extend(sandboxes.get(&pod.sandbox).map(|group| row_of_sandbox(pod, group, images)));
        rows.extend(pod.containers.iter().map(|container| Row {
            container: &container.name,
            image: &container.image,
            name: container.id.as_str(),
            started: Some(container.started),
            ..row_of_pod(pod, &container.group)
        }));
    }
    rows
}

/// The interfaces of the machine and of each pod that has its own.
fn networks<'a>(
    snapshot: &'a Snapshot,
    sandboxes: &'a Sandboxes,
    images: &'a Images,
    of_machine: &'a [Interface],
) -> Vec<Network<'a>> {
    let of_pods = snapshot.pods.iter().map(|pod| {
        // A sandbox without a cgroup of its own is shown in that of its pod.
        let group = sandboxes.get(&pod.sandbox).unwrap_or(&pod.group);
        Network { row: row_of_sandbox(pod, group, images), interfaces: &pod.interfaces }
    });
    let of_machine = Network { row: Row::of(&snapshot.node), interfaces: of_machine };
    std::iter::once(of_machine).chain(of_pods).collect()
}

fn row_of_pod<'a>(pod: &'a PodSnapshot, group: &'a CgroupUsage) -> Row<'a> {
    let (namespace, name) = (&*pod.name().namespace, &*pod.name().name);
    Row { namespace, pod: name, started: Some(pod.started), ..Row::of(group) }
}

fn row_of_sandbox<'a>(pod: &'a PodSnapshot, group: &'a CgroupUsage, images: &'a Images) -> Row<'a> {
    let image = images.get(&pod.sandbox).map_or("", String::as_str);
    Row { image, name: pod.sandbox.as_str(), ..row_of_pod(pod, group) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use podwright_core::builders::pod;
    use podwright_core::stats::Daemon;

    use super::*;

    fn group(path: &str) -> CgroupUsage {
        let mut group = CgroupUsage::default();
        group.path = path.to_owned();
        group
    }

    fn snapshot() -> Snapshot {
        let started = Timestamp::UNIX_EPOCH;
        let pods = vec![PodSnapshot {
            pod: Arc::new(pod("web").container("app").build()),
            started,
            group: group("/kubepods/podu"),
            sandbox: SandboxId::new("s1"),
            interfaces: vec![Interface { name: "eth0".into(), ..Interface::default() }],
            containers: Vec::new(),
        }];
        Snapshot {
            read: podwright_core::time::Mono::ZERO,
            at: started,
            node: group("/"),
            all_pods: group("/kubepods"),
            classes: vec![group("/kubepods/burstable"), group("/kubepods/besteffort")],
            daemons: vec![
                (Daemon::Kubelet, started, group("/system/kubelet")),
                (Daemon::Runtime, started, group("/system/kubelet/")),
                (Daemon::Misc, started, group("/")),
            ],
            pods,
            incomplete: false,
        }
    }

    #[test]
    fn every_cgroup_has_one_row() {
        let snapshot = snapshot();
        let sandboxes = [(SandboxId::new("s1"), group("/kubepods/podu/s1"))].into();
        let images = [(SandboxId::new("s1"), "pause:1".to_owned())].into();
        let rows = rows_without_details(&snapshot, &sandboxes, &images);
        let ids: Vec<&str> = rows.iter().map(|row| row.id).collect();
        let classes = ["/kubepods/burstable", "/kubepods/besteffort"];
        let (before, after) = (["/", "/kubepods"], ["/system/kubelet", "/kubepods/podu"]);
        let want = [&before[..], &classes, &after, &["/kubepods/podu/s1"]].concat();
        assert_eq!(ids, want, "cgroups of daemons appear once");
        let sandbox = rows.last().unwrap();
        let labels = (sandbox.container, sandbox.image, sandbox.name, sandbox.pod);
        assert_eq!(labels, ("", "pause:1", "s1", "web"));
    }

    #[test]
    fn interfaces_of_the_machine_are_shown_at_the_root() {
        let snapshot = snapshot();
        let of_machine = [Interface { name: "ens3".into(), ..Interface::default() }];
        let (sandboxes, images) = (HashMap::new(), HashMap::new());
        let networks = networks(&snapshot, &sandboxes, &images, &of_machine);
        let found: Vec<(&str, &str, &str)> = networks
            .iter()
            .flat_map(|network| {
                network.interfaces.iter().map(|i| (network.row.id, network.row.name, &*i.name))
            })
            .collect();
        assert_eq!(found, [("/", "", "ens3"), ("/kubepods/podu", "s1", "eth0")]);
    }
}
