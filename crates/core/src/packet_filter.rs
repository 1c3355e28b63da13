//! Packet filter chains of a node, as arguments for `iptables` and `ip6tables`: here those of a
//! joined node, in [`isolation`] those of a standalone node.
//!
//! Other components of a cluster depend on them. kube-proxy and network plugins choose the
//! backend (legacy or nftables) that holds the hint chain. The firewall chain drops packets from
//! other machines to 127.0.0.0/8, which kube-proxy's `route_localnet` would let through
//! (CVE-2020-8558). The canaries reveal that another program, such as firewalld, has flushed a
//! table.

pub mod isolation;

/// Address family; each has its own program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    pub fn program(self) -> &'static str {
        match self {
            Self::V4 => "iptables",
            Self::V6 => "ip6tables",
        }
    }
}

/// A chain or a rule of the node. It is only ever added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Chain { table: &'static str, chain: String },
    Rule { table: &'static str, chain: String, position: Position, rule: Vec<String> },
}

/// The chains and rules of one owner in the packet filter of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSet {
    /// In the order of creation.
    pub parts: Vec<Part>,
    /// While one of these is missing, others may be missing as well.
    pub canaries: Vec<Part>,
}

/// Where a rule is added to its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    First,
    Last,
}

const HINT: &str = "KUBE-IPTABLES-HINT";
const CANARY: &str = "KUBE-KUBELET-CANARY";
const FIREWALL: &str = "KUBE-FIREWALL";
/// Tables with a canary.
const WATCHED: [&str; 3] = ["mangle", "nat", "filter"];
/// Seconds to wait for another program that holds the lock of the packet filter.
const LOCK_SECONDS: &str = "5";

const TO_FIREWALL: &[&str] = &["-j", FIREWALL];
/// The comment is the one upstream writes: a node that changes agents has the rule once.
const DROP_MARTIANS: &[&str] = &[
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "-d",
    "127.0.0.0/8",
    "!",
    "-s",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// The canaries, by which a flushed table is noticed.
pub fn canaries() -> Vec<Part> {
    WATCHED.into_iter().map(|table| Part::Chain { table, chain: CANARY.to_owned() }).collect()
}

/// All of a joined node.
pub fn joined_node(family: Family) -> PartSet {
    PartSet { parts: parts(family), canaries: canaries() }
}

/// Everything the node has in the packet filter of a family, in the order of creation. The canaries
/// are last: while one is missing, the rest may be incomplete.
pub fn parts(family: Family) -> Vec<Part> {
    let mut parts = vec![Part::Chain { table: "mangle", chain: HINT.to_owned() }];
    match family {
        Family::V4 => {
            let rule = |chain: &str, position, words: &[&str]| Part::Rule {
                table: "filter",
                chain: chain.to_owned(),
                position,
                rule: owned(words),
            };
            parts.push(Part::Chain { table: "filter", chain: FIREWALL.to_owned() });
            // The chain is filled before packets enter it.
            parts.push(rule(FIREWALL, Position::Last, DROP_MARTIANS));
            parts.push(rule("OUTPUT", Position::First, TO_FIREWALL));
            parts.push(rule("INPUT", Position::First, TO_FIREWALL));
        }
        // The kernel never routes packets from other machines to ::1.
        Family::V6 => {}
    }
    parts.extend(canaries());
    parts
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Part {
    /// Arguments of the call that succeeds if the part exists.
    pub fn check(&self) -> Vec<String> {
        match self {
            Self::Chain { table, chain } => call(table, &["-S", chain], &[]),
            Self::Rule { table, chain, rule, .. } => call(table, &["-C", chain], rule),
        }
    }

    /// Arguments of the call that adds the part.
    pub fn add(&self) -> Vec<String> {
        match self {
            Self::Chain { table, chain } => call(table, &["-N", chain], &[]),
            Self::Rule { table, chain, position, rule } => {
                let command = match position {
                    Position::First => "-I",
                    Position::Last => "-A",
                };
                call(table, &[command, chain], rule)
            }
        }
    }
}

fn call(table: &str, command: &[&str], rule: &[String]) -> Vec<String> {
    let mut words = owned(&["-w", LOCK_SECONDS, "-t", table]);
    words.extend(owned(command));
    words.extend_from_slice(rule);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chains and rules of pkg/kubelet/kubelet_network_linux.go in v1.36.
    #[test]
    fn calls_by_family() {
        let drop = "-m comment --comment block incoming localnet connections -d 127.0.0.0/8 \
                    ! -s 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
        let martians_check = format!("-w 5 -t filter -C KUBE-FIREWALL {drop}");
        let martians = format!("-w 5 -t filter -A KUBE-FIREWALL {drop}");
        let hint = ("-w 5 -t mangle -S KUBE-IPTABLES-HINT", "-w 5 -t mangle -N KUBE-IPTABLES-HINT");
        let canaries = [
            ("-w 5 -t mangle -S KUBE-KUBELET-CANARY", "-w 5 -t mangle -N KUBE-KUBELET-CANARY"),
            ("-w 5 -t nat -S KUBE-KUBELET-CANARY", "-w 5 -t nat -N KUBE-KUBELET-CANARY"),
            ("-w 5 -t filter -S KUBE-KUBELET-CANARY", "-w 5 -t filter -N KUBE-KUBELET-CANARY"),
        ];
        let firewall = [
            ("-w 5 -t filter -S KUBE-FIREWALL", "-w 5 -t filter -N KUBE-FIREWALL"),
            (martians_check.as_str(), martians.as_str()),
            (
                "-w 5 -t filter -C OUTPUT -j KUBE-FIREWALL",
                "-w 5 -t filter -I OUTPUT -j KUBE-FIREWALL",
            ),
            (
                "-w 5 -t filter -C INPUT -j KUBE-FIREWALL",
                "-w 5 -t filter -I INPUT -j KUBE-FIREWALL",
            ),
        ];
        for (family, want) in [
            (Family::V4, [&[hint][..], &firewall, &canaries].concat()),
            (Family::V6, [&[hint][..], &canaries].concat()),
        ] {
            let calls: Vec<(String, String)> = parts(family)
                .iter()
                .map(|part| (part.check().join(" "), part.add().join(" ")))
                .collect();
            let calls: Vec<(&str, &str)> =
                calls.iter().map(|(check, add)| (check.as_str(), add.as_str())).collect();
            assert_eq!(calls, want, "{family:?}");
        }
    }

    #[test]
    fn no_call_deletes_or_flushes() {
        let removing = ["-D", "-F", "-X", "-P", "-R", "-Z", "-E"];
        for part in Family::ALL.into_iter().flat_map(parts) {
            for words in [part.check(), part.add()] {
                let removes = |word: &String| removing.contains(&word.as_str());
                assert!(!words.iter().any(removes), "{words:?}");
            }
        }
    }
}
