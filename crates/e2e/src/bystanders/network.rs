//! Links and packet filter rules of a user, in the bed's network namespace.

use anyhow::{Result, bail};

use crate::netns::NetNs;
use crate::process::output;

pub(super) struct UserNetwork {
    netns: NetNs,
    /// The lines of [`LIST`] output that contain a bystander.
    seen: Vec<String>,
}

/// One script: starting a program costs more than its work.
const CREATE: &str = r#"
set -e
ip link add user0 type veth peer name user1
ip address add 192.0.2.77/32 dev user0
ip link set user0 up
ip link set user1 up
for program in iptables ip6tables; do
    $program-restore --noflush <<'RULES'
*nat
:USER-NAT - [0:0]
-A USER-NAT -p tcp --dport 7777 -j RETURN
-A POSTROUTING -p tcp --dport 7777 -j USER-NAT
COMMIT
*filter
:USER-FILTER - [0:0]
-A USER-FILTER -p tcp --dport 7777 -j ACCEPT
-A FORWARD -p tcp --dport 7777 -j USER-FILTER
COMMIT
RULES
done
nft -f - <<'RULES'
table inet user_table {
    chain user_chain {
        type filter hook input priority 77; policy accept;
        tcp dport 7777 accept
    }
}
RULES
"#;

const LIST: &str = r#"
ip -oneline address show | tr -s ' ' | cut -d ' ' -f 1-4 | sed 's/^/address /'
ip -oneline link show | cut -d : -f 1,2 | sed 's/^/link /'
iptables-save | sed 's/^/iptables /'
ip6tables-save | sed 's/^/ip6tables /'
nft list table inet user_table 2>&1 | sed 's/^/nft /'
"#;

/// Substrings that mark the lines of a bystander.
const MARKS: [&str; 5] = ["user0", "user1", "user_", "USER-", "7777"];

/// Two links and an address; two chains and four rules each for iptables and ip6tables; three lines
/// of an nftables table.
const LINES: usize = 3 + 2 * 6 + 3;

impl UserNetwork {
    pub(super) fn create(netns: NetNs) -> Result<Self> {
        output(netns.command("sh").args(["-c", CREATE]))?;
        let mut network = Self { netns, seen: Vec::new() };
        network.seen = network.list()?;
        if network.seen.len() != LINES {
            bail!("bystander: incomplete user network: {:#?}", network.seen);
        }
        Ok(network)
    }

    fn list(&self) -> Result<Vec<String>> {
        let printed = output(self.netns.command("sh").args(["-c", LIST]))?;
        let own = printed.lines().filter(|line| MARKS.iter().any(|mark| line.contains(mark)));
        Ok(own.filter(|line| !line.contains("fe80")).map(str::to_owned).collect())
    }

    pub(super) fn damage(&self) -> Vec<String> {
        let now = match self.list() {
            Ok(now) => now,
            Err(error) => return vec![format!("network: cannot inspect: {error:#}")],
        };
        let gone = self.seen.iter().filter(|line| !now.contains(line));
        gone.map(|line| format!("network: a user's {line} is gone or was changed")).collect()
    }
}
