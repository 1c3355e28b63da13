//! `/metrics` and `/stats/summary` pages.

use podwright_host::cgroup::Detail;
use podwright_host::{machine, self_usage, threads};

use super::Server;
use super::query::Query;
use super::response::{HttpResponse, json, metrics};
use super::route::Page;
use crate::telemetry::metrics::cadvisor::{self, Disks, Row};
use crate::telemetry::metrics::census::{self, Agent, TrackedPod};
use crate::telemetry::metrics::{Exposition, resource, volumes, write_process};
use crate::telemetry::stats::{CgroupUsage, Snapshot};

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
        let written = self.stats.written().await;
        let mut rows = Vec::new();
        for row in rows_without_details(&snapshot) {
            let detail = self.stats.detail(row.group).await;
            let layer = written.by_container.get(row.name).copied();
            rows.push(Row { detail, layer, ..row });
        }
        let machine = self.stats.machine().clone();
        let read = threads::blocking(move || {
            let of = written.layers_dir.and_then(|layers_dir| machine::device_of(&layers_dir));
            let disks = (machine.filesystems(), machine.block_devices(), of);
            (machine.identity().ok(), machine.capacity().ok(), disks)
        });
        // Fails only while the agent stops.
        let Ok((identity, capacity, (filesystems, devices, layers))) = read.await else { return };
        let (filesystems, devices) = (filesystems.unwrap_or_default(), devices.unwrap_or_default());
        // The first row is the machine's.
        if let (Some(root), Some(capacity)) = (rows.first_mut(), &capacity) {
            root.limit_by_machine(capacity);
        }
        let disks = Disks::new(filesystems, devices, layers, &rows);
        let images = self.stats.sandbox_images(&snapshot).await;
        cadvisor::write(
            &snapshot,
            &images,
            &rows,
            &disks,
            identity.as_ref(),
            capacity.as_ref(),
            out,
        );
    }
}

/// Every cgroup of a snapshot with its labels.
fn rows_without_details(snapshot: &Snapshot) -> Vec<Row<'_>> {
    let unlabeled = |group| of(group, "", "");
    let mut rows = vec![unlabeled(&snapshot.node), unlabeled(&snapshot.all_pods)];
    for pod in &snapshot.pods {
        let (namespace, name) = (&*pod.name().namespace, &*pod.name().name);
        rows.push(Row { started: Some(pod.started), ..of(&pod.group, namespace, name) });
        rows.extend(pod.containers.iter().map(|container| Row {
            container: &container.name,
            image: &container.image,
            name: container.id.as_str(),
            started: Some(container.started),
            ..of(&container.group, namespace, name)
        }));
    }
    rows
}

fn of<'a>(group: &'a CgroupUsage, namespace: &'a str, pod: &'a str) -> Row<'a> {
    let (id, detail) = (group.path.as_str(), Detail::default());
    let (container, image, name) = ("", "", "");
    let (started, layer, machine_memory) = (None, None, None);
    Row {
        container,
        id,
        image,
        name,
        namespace,
        pod,
        group,
        detail,
        started,
        layer,
        machine_memory,
    }
}
