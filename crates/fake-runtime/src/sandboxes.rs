//! Pod sandboxes: creation, stop, removal.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use podwright_proto::cri;
use tonic::Status;

use super::events::EventKind;
use super::journal::Violation;
use super::names::Reservation;
use super::options::Condition;
use super::rpc::PodRef;
use super::runtime_state::RuntimeState;
use super::script::End;
use super::serve::{Pace, Shared};

#[derive(Debug)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) pod: PodRef,
    pub(super) config: cri::PodSandboxConfig,
    handler: String,
    pub(super) created_at: i64,
    pub(super) ready: bool,
    /// Empty for the host's network, and after the network was removed.
    pub(super) ips: Vec<IpAddr>,
    pub(super) pid: u32,
    /// How many calls are stopping it now.
    stopping: u32,
}

impl Sandbox {
    pub(super) fn attempt(&self) -> u32 {
        self.config.metadata.as_ref().map_or(0, |meta| meta.attempt)
    }

    fn state(&self) -> i32 {
        let state = if self.ready {
            cri::PodSandboxState::SandboxReady
        } else {
            cri::PodSandboxState::SandboxNotready
        };
        state.into()
    }

    pub(super) fn status(&self) -> cri::PodSandboxStatus {
        let mut ips = self.ips.iter().map(IpAddr::to_string);
        let network = cri::PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| cri::PodIp { ip }).collect(),
        };
        let namespaces = cri::Namespace { options: namespace_options(&self.config).cloned() };
        cri::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            network: Some(network),
            linux: Some(cri::LinuxPodSandboxStatus { namespaces: Some(namespaces) }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }

    /// Verbose status, as containerd writes it; only the part we read.
    pub(super) fn info(&self) -> BTreeMap<String, String> {
        recorded(&self.config)
    }

    fn line(&self) -> cri::PodSandbox {
        cri::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }
}

/// A request as containerd shows it in a verbose status.
pub(super) fn recorded(config: &impl serde::Serialize) -> BTreeMap<String, String> {
    [("info".to_owned(), serde_json::json!({ "config": config }).to_string())].into()
}

fn namespace_options(config: &cri::PodSandboxConfig) -> Option<&cri::NamespaceOption> {
    config.linux.as_ref()?.security_context.as_ref()?.namespace_options.as_ref()
}

fn is_host_network(config: &cri::PodSandboxConfig) -> bool {
    namespace_options(config).is_some_and(|o| o.network == cri::NamespaceMode::Node as i32)
}

/// Whether an object has all the requested labels.
pub(super) fn selected(
    labels: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Pod addresses, assigned round-robin as by CNI's host-local.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    last: u16,
    used: BTreeSet<u16>,
}

impl Addresses {
    /// 10.88.0.0/16, and fd88::/112 beside it.
    fn take(&mut self, dual_stack: bool) -> Result<Vec<IpAddr>, Status> {
        for _ in 0..=u16::MAX {
            self.last = self.last.wrapping_add(1);
            let usable = self.last > 1 && self.last < u16::MAX;
            if usable && self.used.insert(self.last) {
                let [high, low] = self.last.to_be_bytes();
                let four = IpAddr::V4(Ipv4Addr::new(10, 88, high, low));
                let six = IpAddr::V6(Ipv6Addr::new(0xfd88, 0, 0, 0, 0, 0, 0, self.last));
                return Ok(if dual_stack { vec![four, six] } else { vec![four] });
            }
        }
        let text = "failed to allocate for range 0: no IP addresses available in range set: \
                    10.88.0.1-10.88.255.254";
        Err(Status::unknown(text))
    }

    #[cfg(test)]
    pub(super) fn are_all_free(&self) -> bool {
        self.used.is_empty()
    }

    fn give_back(&mut self, ips: &[IpAddr]) {
        for ip in ips {
            if let IpAddr::V4(ip) = ip {
                let [_, _, high, low] = ip.octets();
                self.used.remove(&u16::from_be_bytes([high, low]));
            }
        }
    }
}

pub(super) async fn run(
    shared: Arc<Shared>,
    request: cri::RunPodSandboxRequest,
    pace: Pace,
) -> Result<cri::RunPodSandboxResponse, Status> {
    let config = request.config.unwrap_or_default();
    let (id, reservation) = shared.runtime_state.lock().reserve_sandbox(&config)?;
    pace.keep().await;
    shared.runtime_state.lock().add_sandbox(&id, config, request.runtime_handler)?;
    reservation.keep();
    Ok(cri::RunPodSandboxResponse { pod_sandbox_id: id })
}

pub(super) async fn stop(
    shared: Arc<Shared>,
    id: String,
    pace: Pace,
) -> Result<cri::StopPodSandboxResponse, Status> {
    let known = shared.runtime_state.lock().begin_stopping(&id);
    if !known {
        let text = format!("an error occurred when try to find sandbox {id:?}: not found");
        return Err(Status::not_found(text));
    }
    let _stopping = Stopping { shared: shared.clone(), id: id.clone() };
    pace.keep().await;
    shared.runtime_state.lock().stop_sandbox(&id);
    Ok(cri::StopPodSandboxResponse {})
}

pub(super) async fn remove(
    shared: Arc<Shared>,
    id: String,
    pace: Pace,
) -> Result<cri::RemovePodSandboxResponse, Status> {
    // A sandbox that does not exist is already removed.
    if shared.runtime_state.lock().begin_stopping(&id) {
        let _stopping = Stopping { shared: shared.clone(), id: id.clone() };
        pace.keep().await;
        shared.runtime_state.lock().remove_sandbox(&id);
    }
    Ok(cri::RemovePodSandboxResponse {})
}

/// A sandbox that is being stopped.
struct Stopping {
    shared: Arc<Shared>,
    id: String,
}

impl Drop for Stopping {
    fn drop(&mut self) {
        if let Some(sandbox) = self.shared.runtime_state.lock().sandboxes.get_mut(&self.id) {
            sandbox.stopping = sandbox.stopping.saturating_sub(1);
        }
    }
}

impl RuntimeState {
    fn reserve_sandbox(
        &mut self,
        config: &cri::PodSandboxConfig,
    ) -> Result<(String, Reservation), Status> {
        let Some(meta) = &config.metadata else {
            return Err(Status::unknown("sandbox config must include metadata"));
        };
        let id = self.next_id();
        let reservation = self.sandbox_names.reserve("sandbox", sandbox_name(meta), id.clone())?;
        Ok((id, reservation))
    }

    fn add_sandbox(
        &mut self,
        id: &str,
        config: cri::PodSandboxConfig,
        handler: String,
    ) -> Result<(), Status> {
        let pod = PodRef::of(&config.metadata.clone().unwrap_or_default());
        let ips = if is_host_network(&config) {
            vec![]
        } else {
            if let Condition::NotReady { message, .. } = &self.network {
                let text = format!("failed to setup network for sandbox {id:?}: {message}");
                return Err(Status::unknown(text));
            }
            self.addresses.take(self.options.dual_stack)?
        };
        let rival = self
            .sandboxes
            .values()
            .find(|other| other.ready && other.stopping == 0 && other.pod.uid == pod.uid);
        if let Some(rival) = rival {
            let ids = [rival.id.clone(), id.to_owned()];
            self.journal.report(Violation::TwoReady { pod: pod.clone(), ids });
        }
        let sandbox = Sandbox {
            id: id.to_owned(),
            pod,
            config,
            handler,
            created_at: self.stamp(),
            ready: true,
            ips,
            pid: self.pid(),
            stopping: 0,
        };
        self.sandboxes.insert(id.to_owned(), sandbox);
        self.publish(&EventKind::Created, id);
        self.publish(&EventKind::Started, id);
        Ok(())
    }

    /// Whether there is such a sandbox.
    fn begin_stopping(&mut self, id: &str) -> bool {
        let sandbox = self.sandboxes.get_mut(id);
        sandbox.map(|sandbox| sandbox.stopping += 1).is_some()
    }

    /// Kills its containers, then its process, then removes its network.
    fn stop_sandbox(&mut self, id: &str) {
        let inside: Vec<String> = self.containers_of(id);
        for container in inside {
            self.end_container(&container, &End::killed());
        }
        self.end_sandbox(id);
        self.lose_sandbox(id);
    }

    /// The sandbox's own process ends; containers and network are not affected.
    pub(super) fn end_sandbox(&mut self, id: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        if std::mem::replace(&mut sandbox.ready, false) {
            self.publish(&EventKind::Exited { code: 137 }, id);
        }
    }

    /// The machine went down, and its network with it.
    pub(super) fn lose_sandbox(&mut self, id: &str) {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return };
        sandbox.ready = false;
        let ips = std::mem::take(&mut sandbox.ips);
        self.addresses.give_back(&ips);
    }

    fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id);
        for container in self.containers_of(id) {
            self.delete_container(&container);
        }
        self.publish(&EventKind::Deleted, id);
        let Some(sandbox) = self.sandboxes.remove(id) else { return };
        if let Some(meta) = &sandbox.config.metadata {
            self.sandbox_names.release(&sandbox_name(meta));
        }
        let uid = &sandbox.pod.uid;
        if !self.sandboxes.values().any(|other| other.pod.uid == *uid) {
            self.starts.retain(|(pod, _), _| pod != uid);
        }
        self.touch();
    }

    pub(super) fn containers_of(&self, sandbox: &str) -> Vec<String> {
        let inside = self.containers.values().filter(|c| c.sandbox == sandbox);
        inside.map(|container| container.id.clone()).collect()
    }

    pub(super) fn sandbox(&self, id: &str) -> Result<&Sandbox, Status> {
        self.sandboxes.get(id).ok_or_else(|| {
            Status::not_found("an error occurred when try to find sandbox: not found")
        })
    }

    pub(super) fn list_sandboxes(
        &mut self,
        filter: Option<&cri::PodSandboxFilter>,
    ) -> Vec<cri::PodSandbox> {
        let all = self.sandboxes.values();
        let wanted = all.filter(|sandbox| {
            filter.is_none_or(|filter| {
                (filter.id.is_empty() || filter.id == sandbox.id)
                    && filter.state.as_ref().is_none_or(|want| want.state == sandbox.state())
                    && selected(&sandbox.config.labels, &filter.label_selector)
            })
        });
        let mut lines: Vec<_> = wanted.map(Sandbox::line).collect();
        self.order.shuffle(&mut lines);
        lines
    }
}

fn sandbox_name(meta: &cri::PodSandboxMetadata) -> String {
    format!("{}_{}_{}_{}", meta.name, meta.namespace, meta.uid, meta.attempt)
}
