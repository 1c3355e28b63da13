//! Pod network of the standalone node: its own bridge and subnet.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use podwright_host::trusted_path;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Tried in order; the first that is unused on this machine is chosen.
const CANDIDATES: [&str; 4] =
    ["10.213.0.0/16", "10.87.0.0/16", "172.29.0.0/16", "192.168.213.0/24"];
/// CNI plugin directories of distributions.
const PLUGIN_DIRECTORIES: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];
const PLUGINS: [&str; 5] = ["bridge", "host-local", "portmap", "bandwidth", "loopback"];

/// An IPv4 network in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    base: Ipv4Addr,
    prefix: u8,
}

impl Subnet {
    fn mask(self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0)
    }

    fn overlaps(self, other: Self) -> bool {
        let mask = self.mask() & other.mask();
        self.base.to_bits() & mask == other.base.to_bits() & mask
    }

    /// The first and the last address.
    pub fn range(self) -> (Ipv4Addr, Ipv4Addr) {
        let first = self.base.to_bits() & self.mask();
        (Ipv4Addr::from_bits(first), Ipv4Addr::from_bits(first | !self.mask()))
    }

    /// The address of the bridge.
    pub fn gateway(self) -> Ipv4Addr {
        Ipv4Addr::from_bits((self.base.to_bits() & self.mask()) + 1)
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not a network such as 10.213.0.0/16");
        let (base, prefix) = text.split_once('/').ok_or_else(bad)?;
        let base: Ipv4Addr = base.parse().map_err(|_| bad())?;
        let prefix: u8 = prefix.parse().ok().filter(|p| (8..=28).contains(p)).ok_or_else(bad)?;
        Ok(Self { base, prefix })
    }
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// The network of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    #[serde(rename = "bridge")]
    pub bridge: String,
    #[serde(rename = "subnet")]
    pub subnet: String,
    #[serde(rename = "plugins")]
    pub plugins: PathBuf,
}

impl Network {
    /// Chooses an unused network; a `requested` network must be unused.
    pub fn choose(bridge: String, requested: Option<&str>) -> anyhow::Result<Self> {
        let used = used_networks()?;
        let plugins = find_plugins()?;
        let clash = |subnet: Subnet| used.iter().find(|(net, _)| net.overlaps(subnet));
        if let Some(requested) = requested {
            let subnet: Subnet = requested.parse().map_err(anyhow::Error::msg)?;
            if let Some((net, link)) = clash(subnet) {
                anyhow::bail!(
                    "the pod network {subnet} overlaps {net} of {link}. Fix: choose another with --pod-cidr"
                );
            }
            return Ok(Self { bridge, subnet: subnet.to_string(), plugins });
        }
        let free = CANDIDATES.iter().filter_map(|c| c.parse().ok()).find(|s| clash(*s).is_none());
        let subnet: Subnet = free.with_context(|| {
            let tried = CANDIDATES.join(", ");
            format!(
                "{tried} are all in use on this machine. Fix: choose a free network with --pod-cidr"
            )
        })?;
        Ok(Self { bridge, subnet: subnet.to_string(), plugins })
    }

    /// The subnet of the pods, which contains the machine's address on the bridge.
    pub fn subnet(&self) -> Option<Subnet> {
        self.subnet.parse().ok()
    }

    /// The CNI configuration list for the runtime.
    pub fn conflist(&self, data_dir: &Path) -> String {
        let list = json!({
            "cniVersion": "0.4.0",
            "name": self.bridge,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.bridge,
                    "isGateway": true,
                    "ipMasq": true,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": data_dir,
                        "ranges": [[{ "subnet": self.subnet }]],
                        "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
                { "type": "bandwidth", "capabilities": { "bandwidth": true } },
            ],
        });
        format!("{list:#}\n")
    }
}

fn find_plugins() -> anyhow::Result<PathBuf> {
    let has_all = |dir: &&Path| PLUGINS.iter().all(|p| dir.join(p).exists());
    let found = PLUGIN_DIRECTORIES.iter().map(Path::new).find(has_all);
    if let Some(directory) = found {
        // containerd runs them as root.
        PLUGINS
            .iter()
            .try_for_each(|plugin| trusted_path::check_program(&directory.join(plugin)))
            .context("a CNI plugin is not run as root, because another user can change it")?;
    }
    found.map(PathBuf::from).with_context(|| {
        format!(
            "CNI plugins {} not found in any of {}. Fix, on Debian: apt-get install containernetworking-plugins",
            PLUGINS.join(", "),
            PLUGIN_DIRECTORIES.join(", ")
        )
    })
}

/// Networks in the machine's routing table, with their interfaces.
fn used_networks() -> anyhow::Result<Vec<(Subnet, String)>> {
    let table =
        std::fs::read_to_string("/proc/net/route").context("cannot read /proc/net/route")?;
    Ok(parse_routes(&table))
}

/// Parses `/proc/net/route`.
pub fn parse_routes(table: &str) -> Vec<(Subnet, String)> {
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let network = |line: &str| {
        let mut columns = line.split_whitespace();
        let link = columns.next()?.to_owned();
        let base = Ipv4Addr::from_bits(number(columns.next()?)?);
        let mask = number(columns.nth(5)?)?;
        let prefix = u8::try_from(mask.leading_ones()).ok().filter(|prefix| *prefix > 0)?;
        Some((Subnet { base, prefix }, link))
    };
    table.lines().skip(1).filter_map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_that_share_an_address_overlap() {
        let net = |text: &str| text.parse::<Subnet>().unwrap();
        assert!(net("10.213.0.0/16").overlaps(net("10.213.4.0/24")));
        assert!(net("10.213.4.0/24").overlaps(net("10.0.0.0/8")));
        assert!(!net("10.213.0.0/16").overlaps(net("10.214.0.0/16")));
        let subnet = net("10.213.4.0/22");
        assert_eq!(subnet.gateway(), Ipv4Addr::new(10, 213, 4, 1));
        let range = (Ipv4Addr::new(10, 213, 4, 0), Ipv4Addr::new(10, 213, 7, 255));
        assert_eq!(subnet.range(), range);
    }

    #[test]
    fn invalid_networks_are_rejected() {
        for text in ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/30", "::/64"] {
            assert!(text.parse::<Subnet>().is_err(), "{text}");
        }
    }

    #[test]
    fn routing_table_is_parsed() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let routes = parse_routes(table);
        assert_eq!(routes.len(), 1, "the default route is not a used network");
        assert_eq!(
            (routes[0].0.to_string(), routes[0].1.as_str()),
            ("192.168.0.0/24".into(), "eth0")
        );
    }
}
