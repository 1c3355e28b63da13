//! Isolation of the node's pod network: keeps its packet filter chains while the node runs, and
//! removes them when it goes down.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use podwright_core::packet_filter::Family;
use podwright_core::packet_filter::isolation::{PodNetwork, chain, isolation};
use podwright_host::trusted_path::PROGRAM_DIRECTORIES;
use podwright_node::resources::packet_filter::PacketFilter;
use tokio_util::sync::CancellationToken;

use super::filter;
use super::network::Network;

/// How often the chains are checked: another program, such as firewalld, may flush a table.
const INTERVAL: Duration = Duration::from_secs(60);

/// The pod network of one node.
#[derive(Clone, Debug)]
pub struct Isolation {
    instance: String,
    network: Network,
}

impl Isolation {
    pub fn new(instance: String, network: Network) -> Self {
        Self { instance, network }
    }

    /// Adds what is missing; true if something was.
    pub async fn ensure(&self) -> anyhow::Result<bool> {
        let network = PodNetwork {
            instance: &self.instance,
            bridge: &self.network.bridge,
            subnet: &self.network.subnet,
        };
        let directories: Vec<PathBuf> = PROGRAM_DIRECTORIES.map(PathBuf::from).into();
        let filters = PacketFilter::find(&directories);
        let mut added = false;
        for family in present_families() {
            let found = filters.iter().find(|filter| filter.family() == family);
            match ensure_family(family, found, network).await {
                Ok(new) => added |= new,
                // Kernels without the tables of IPv6 are common. The next check tries again.
                Err(error) if family == Family::V6 && !forwards_v6() => {
                    tracing::debug!(
                        error = format!("{error:#}"),
                        "IPv6 is not forwarded, no rules"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        Ok(added)
    }

    /// Keeps the chains until `stop`.
    pub async fn maintain(self, stop: CancellationToken) {
        let mut last_problem = None;
        loop {
            tokio::select! { biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            match self.ensure().await {
                Ok(added) => {
                    if added {
                        tracing::warn!(
                            chain = chain(&self.instance),
                            "packet filter was flushed, chains of the pod network added again"
                        );
                    }
                    last_problem = None;
                }
                Err(error) => {
                    let problem = format!("{error:#}");
                    if last_problem.as_ref() != Some(&problem) {
                        tracing::warn!(
                            error = problem,
                            "check packet filter chains of the pod network failed, retrying every \
                             minute"
                        );
                        last_problem = Some(problem);
                    }
                }
            }
        }
    }

    /// Removes the chains and the jumps to them.
    pub fn remove(&self) -> anyhow::Result<()> {
        present_families()
            .into_iter()
            .try_for_each(|family| filter::remove_chain(family, &chain(&self.instance)))
    }
}

async fn ensure_family(
    family: Family,
    filter: Option<&PacketFilter>,
    network: PodNetwork<'_>,
) -> anyhow::Result<bool> {
    let filter = filter.with_context(|| {
        let program = family.program();
        format!("{program} is not installed. Fix, on Debian: apt-get install iptables")
    })?;
    let ensured = filter.ensure(&isolation(family, network)).await;
    ensured.context(
        "cannot add the packet filter rules that keep neighbours on the network out of the pods",
    )
}

/// Whether any interface forwards IPv6; what cannot be read counts as forwarding.
fn forwards_v6() -> bool {
    let Ok(interfaces) = std::fs::read_dir("/proc/sys/net/ipv6/conf") else { return true };
    interfaces.into_iter().any(|interface| {
        let read = interface
            .and_then(|interface| std::fs::read_to_string(interface.path().join("forwarding")));
        read.map_or(true, |value| value.trim() != "0")
    })
}

/// The families of this kernel.
fn present_families() -> Vec<Family> {
    let has_v6 = Path::new("/proc/sys/net/ipv6").exists();
    Family::ALL.into_iter().filter(|family| *family == Family::V4 || has_v6).collect()
}
