//! A user's links and packet filter rules, in the bed's network.

use anyhow::{Result, bail};

use crate::netns::NetNs;
use crate::process::output;

pub(super) struct UserNetwork {
    netns: NetNs,
    /// Each line of [`LOOK`] that a bystander is in.
    seen: Vec<String>,
}

/// In one go: every program that is started costs more than what it does.
const PLANT: &str = r#"
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

const LOOK: &str = r#"
ip -oneline address show | tr -s ' ' | cut -d ' ' -f 1-4 | sed 's/^/address /'
ip -oneline link show | cut -d : -f 1,2 | sed 's/^/link /'
iptables-save | sed 's/^/iptables /'
ip6tables-save | sed 's/^/ip6tables /'
nft list table inet user_table 2>&1 | sed 's/^/nft /'
"#;

/// What marks the lines of a bystander.
const MARKS: [&str; 5] = ["user0", "user1", "user_", "USER-", "7777"];

/// Two links and an address, two chains and four rules for each of iptables and ip6tables, three
/// lines of a table.
const LINES: usize = 3 + 2 * 6 + 3;

impl UserNetwork {
    pub(super) fn plant(netns: NetNs) -> Result<Self> {
        output(netns.command("sh").args(["-c", PLANT]))?;
        let mut network = Self { netns, seen: Vec::new() };
        network.seen = network.look()?;
        if network.seen.len() != LINES {
            bail!("bystander: of a user's network only this is seen: {:#?}", network.seen);
        }
        Ok(network)
    }

    fn look(&self) -> Result<Vec<String>> {
        let said = output(self.netns.command("sh").args(["-c", LOOK]))?;
        let own = said.lines().filter(|line| MARKS.iter().any(|mark| line.contains(mark)));
        Ok(own.filter(|line| !line.contains("fe80")).map(str::to_owned).collect())
    }

    pub(super) fn harm(&self) -> Vec<String> {
        let now = match self.look() {
            Ok(now) => now,
            Err(error) => return vec![format!("network: cannot be looked at: {error:#}")],
        };
        let gone = self.seen.iter().filter(|line| !now.contains(line));
        gone.map(|line| format!("network: a user's {line} is gone or was changed")).collect()
    }
}
