//! The machine as it is when the node starts, and what of it pods get.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use podwright_api::qos::ResourceList;
use podwright_api::quantity::{Format, Quantity};
use podwright_core::cgroup::PIDS;
use podwright_core::node_status::addresses::LOOPBACK;
use podwright_core::node_status::{MachineResources, Settings};
use podwright_host::machine::{self, Machine};
use podwright_node::report::heartbeat::addresses;

use super::identity;
use crate::config::KubeletSettings;
use crate::config::kubelet::KubeletConfiguration;

/// How often to check for an address that the machine does not have yet.
const ADDRESS_RETRY: Duration = Duration::from_secs(1);

pub(super) struct MeasuredMachine {
    pub machine: Machine,
    pub capacity: machine::Capacity,
    pub max_pods: usize,
    pub identity: Settings,
    pub amounts: MachineResources,
    /// What the node reports as its capacity.
    shown: ResourceList,
    /// What can be reserved: the capacity and process IDs.
    pub whole: ResourceList,
}

impl MeasuredMachine {
    pub(super) fn measure(settings: &KubeletSettings, root_dir: &Path) -> anyhow::Result<Self> {
        let machine = Machine::at("/");
        let capacity = machine.capacity()?;
        let max_pods = max_pods(&settings.configuration, capacity.cpus);
        let identity = identity::identity(settings, max_pods)?;
        let storage = match identity.ignores_local_storage {
            true => None,
            false => Some(machine::disk(root_dir)?.capacity),
        };
        let amounts = amounts(&capacity, storage);
        let shown = amounts.capacity(max_pods);
        let mut whole = shown.clone();
        if let Some(pids) = max_pids(&machine) {
            whole.insert(PIDS.to_owned(), Quantity::new(pids, Format::DecimalSi));
        }
        identity.reservations.check(&whole)?;
        Ok(Self { machine, capacity, max_pods, identity, amounts, shown, whole })
    }

    /// What pods may request.
    pub(super) fn allocatable(&self) -> ResourceList {
        self.identity.reservations.allocatable(&self.shown)
    }

    /// The node's addresses in `status.hostIPs` of pods. Waits up to `timeout`, because the network of
    /// a machine that has just booted may not be up yet.
    pub(super) async fn host_ips(&self, timeout: Duration) -> Vec<IpAddr> {
        let (identity, machine) = (&self.identity, &self.machine);
        let began = tokio::time::Instant::now();
        let found = loop {
            let by_name = addresses::resolve(&identity.hostname).await;
            let found = addresses::find(identity, machine, &by_name);
            let complete = found.as_ref().is_ok_and(|found| !found.is_empty());
            if complete || began.elapsed() >= timeout {
                break found;
            }
            tokio::time::sleep(ADDRESS_RETRY).await;
        };
        match found {
            Ok(found) if !found.is_empty() => found,
            Ok(_) => {
                tracing::warn!(
                    "no address but loopback found yet, using 127.0.0.1 as the host IP of pods until then"
                );
                vec![LOOPBACK]
            }
            // It may come up with the network. Until then the configured address is used.
            Err(problem) => {
                tracing::warn!(problem, "cannot use the node address yet");
                identity.node_ips.clone()
            }
        }
    }
}

/// Capacity of the machine. Read once, so that reported and enforced capacity are the same.
fn amounts(capacity: &machine::Capacity, storage: Option<u64>) -> MachineResources {
    MachineResources {
        cpus: capacity.cpus,
        memory: capacity.memory,
        swap: capacity.swap,
        hugepages: capacity.hugepages.clone(),
        storage,
    }
}

/// Maximum number of processes and threads; none if it cannot be read.
fn max_pids(machine: &Machine) -> Option<i64> {
    let tasks = machine.tasks();
    let tasks = tasks.inspect_err(|error| {
        tracing::warn!(%error, "cannot read the pid limit, pods share no pid limit");
    });
    let tasks = tasks.ok()?;
    Some(i64::try_from(tasks.pid_max.min(tasks.threads_max)).unwrap_or(i64::MAX))
}

fn max_pods(configuration: &KubeletConfiguration, cpus: u32) -> usize {
    let most = usize::try_from(configuration.max_pods).unwrap_or(0);
    let per_core = usize::try_from(configuration.pods_per_core).unwrap_or(0);
    match per_core.saturating_mul(usize::try_from(cpus).unwrap_or(1)) {
        0 => most,
        by_cores => most.min(by_cores),
    }
}
