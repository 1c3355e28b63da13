//! Isolation of the pod network of a standalone node: pods, and the machine's address on their
//! bridge, are reachable from the machine and from the node's own pods only, and pods do not reach
//! the machine's loopback addresses.
//!
//! Without it, a neighbour on the network that routes the pod subnet through the machine reaches
//! every pod and the API for pods, because the machine forwards packets. And with the first host
//! port, the portmap plugin sets `route_localnet` on the bridge, from where a pod that may send raw
//! packets then reaches services on 127.0.0.1.
//!
//! All rules for IPv4 are in `mangle PREROUTING`. It comes before address translation, where a
//! connection to a host port still has the machine's address and the answer to a pod's masqueraded
//! connection as well: what has a pod's address there was sent to it directly. No rule of another
//! program in the `filter` table can accept a packet before it gets there.

use super::{Family, Part, PartSet, Position, owned};

/// The network of one standalone node.
#[derive(Clone, Copy, Debug)]
pub struct PodNetwork<'a> {
    /// Short hash that distinguishes the nodes of a machine.
    pub instance: &'a str,
    pub bridge: &'a str,
    /// IPv4 network in CIDR form, which contains the machine's address on the bridge.
    pub subnet: &'a str,
}

/// The node's own chain, in each table that it uses.
pub fn chain(instance: &str) -> String {
    format!("PODWRIGHT-{instance}")
}

/// Everything the node has in the packet filter of a family. Each part is a canary: all are needed.
pub fn isolation(family: Family, network: PodNetwork<'_>) -> PartSet {
    let PodNetwork { bridge, subnet, .. } = network;
    let own = chain(network.instance);
    let chain = |table| Part::Chain { table, chain: own.clone() };
    let drop = |table, words: &[&str]| Part::Rule {
        table,
        chain: own.clone(),
        position: Position::Last,
        rule: owned(&[words, &["-j", "DROP"]].concat()),
    };
    let comment = format!("podwright: pod network {bridge}");
    let jump = |table, hook: &str, words: &[&str]| Part::Rule {
        table,
        chain: hook.to_owned(),
        position: Position::First,
        rule: owned(&[words, &["-m", "comment", "--comment", &comment, "-j", &own]].concat()),
    };
    // The chain is filled before packets enter it.
    let parts = match family {
        Family::V4 => vec![
            chain("mangle"),
            drop("mangle", &["-d", "127.0.0.0/8", "-i", bridge]),
            drop("mangle", &["-s", "127.0.0.0/8", "-i", bridge]),
            drop("mangle", &["-d", subnet, "!", "-i", bridge]),
            // The machine's packets to its own address on the bridge come through lo.
            jump("mangle", "PREROUTING", &["!", "-i", "lo"]),
        ],
        // Pods have link-local addresses only, and the kernel drops packets to and from ::1 that
        // come from a link. A pod that gives itself another address stays on its bridge.
        Family::V6 => vec![
            chain("filter"),
            drop("filter", &["-i", bridge, "!", "-o", bridge]),
            drop("filter", &["!", "-i", bridge, "-o", bridge]),
            jump("filter", "FORWARD", &[]),
        ],
    };
    PartSet { canaries: parts.clone(), parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: PodNetwork<'_> =
        PodNetwork { instance: "0a1b2c3d", bridge: "pw-0a1b2c3d", subnet: "10.213.0.0/16" };

    fn added(family: Family) -> Vec<String> {
        isolation(family, NETWORK).parts.iter().map(|part| part.add().join(" ")).collect()
    }

    #[test]
    fn chain_is_filled_before_packets_enter_it() {
        assert_eq!(
            added(Family::V4),
            [
                "-w 5 -t mangle -N PODWRIGHT-0a1b2c3d",
                "-w 5 -t mangle -A PODWRIGHT-0a1b2c3d -d 127.0.0.0/8 -i pw-0a1b2c3d -j DROP",
                "-w 5 -t mangle -A PODWRIGHT-0a1b2c3d -s 127.0.0.0/8 -i pw-0a1b2c3d -j DROP",
                "-w 5 -t mangle -A PODWRIGHT-0a1b2c3d -d 10.213.0.0/16 ! -i pw-0a1b2c3d -j DROP",
                "-w 5 -t mangle -I PREROUTING ! -i lo -m comment --comment podwright: pod network \
                 pw-0a1b2c3d -j PODWRIGHT-0a1b2c3d",
            ]
        );
        assert_eq!(
            added(Family::V6),
            [
                "-w 5 -t filter -N PODWRIGHT-0a1b2c3d",
                "-w 5 -t filter -A PODWRIGHT-0a1b2c3d -i pw-0a1b2c3d ! -o pw-0a1b2c3d -j DROP",
                "-w 5 -t filter -A PODWRIGHT-0a1b2c3d ! -i pw-0a1b2c3d -o pw-0a1b2c3d -j DROP",
                "-w 5 -t filter -I FORWARD -m comment --comment podwright: pod network pw-0a1b2c3d \
                 -j PODWRIGHT-0a1b2c3d",
            ]
        );
    }

    #[test]
    fn chain_name_fits_the_kernel_and_each_part_is_checked() {
        assert!(chain(NETWORK.instance).len() <= 28);
        for family in Family::ALL {
            let set = isolation(family, NETWORK);
            assert_eq!(set.canaries, set.parts);
        }
    }
}
