//! Removal of the iptables rules that CNI plugins created for the node's pods, and of the node's own
//! chains.
//!
//! Other nodes and the machine's kubelet use the same plugins. A plugin writes the name of its
//! network into the comment of each rule that it adds to an existing chain, so the node's rules are
//! identified by that name only. Chains that are shared by all networks are handled by the sibling
//! module for shared network state.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::Context as _;
use podwright_core::packet_filter::Family;

use super::containerd::find;

/// Chains that the portmap plugin shares between all networks.
const SHARED: [&str; 3] = ["CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"];
const PLUGIN_PREFIX: &str = "CNI-";
const HOST_PORT_PREFIX: &str = "CNI-DN-";

/// Arguments of one iptables call.
type Call = Vec<String>;

/// All rules and chains, parsed from `iptables-save`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filter {
    chains: BTreeSet<Chain>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Chain {
    table: String,
    name: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Rule {
    chain: Chain,
    words: Vec<String>,
}

impl Filter {
    /// Reads the current rules of IPv4.
    pub fn read() -> anyhow::Result<Self> {
        Self::read_of(Family::V4)
    }

    fn read_of(family: Family) -> anyhow::Result<Self> {
        Ok(Self::parse(&run(&format!("{}-save", family.program()), &[])?))
    }

    /// Parses the output of `iptables-save`.
    pub fn parse(saved: &str) -> Self {
        let mut filter = Self::default();
        let mut table = "";
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split_whitespace().next().unwrap_or_default();
                filter.chains.insert(Chain { table: table.into(), name: name.into() });
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let mut words = words(rule).into_iter();
                let name = words.next().unwrap_or_default();
                let chain = Chain { table: table.into(), name };
                filter.rules.push(Rule { chain, words: words.collect() });
            }
        }
        filter
    }

    /// The existing shared chains.
    pub fn shared_chains(&self) -> Vec<String> {
        let shared = self.chains.iter().filter(|chain| chain.is_shared());
        shared.map(ToString::to_string).collect()
    }

    /// Calls that remove all rules and chains of a network.
    fn network_removal(&self, network: &str) -> Vec<Call> {
        let of_plugins = |chain: &&Chain| chain.name.starts_with(PLUGIN_PREFIX);
        let named = self.rules.iter().filter(|rule| rule.is_of(network));
        let ours: BTreeSet<Chain> = named
            .flat_map(|rule| [rule.target(), Some(rule.chain.clone())])
            .flatten()
            .filter(|chain| of_plugins(&chain) && !chain.is_shared())
            .filter(|chain| self.chains.contains(chain))
            .collect();
        self.removal(&ours, |rule| rule.is_of(network))
    }

    /// Calls that remove the shared chains except those that existed `before`; none while any
    /// network uses them.
    fn shared_removal(&self, before: &[String]) -> Vec<Call> {
        let in_use = self.chains.iter().any(|chain| chain.name.starts_with(HOST_PORT_PREFIX))
            || self.rules.iter().any(|rule| rule.chain.name == SHARED[0]);
        if in_use {
            return Vec::new();
        }
        let shared = self.chains.iter().filter(|chain| chain.is_shared());
        let ours = shared.filter(|chain| !before.contains(&chain.to_string())).cloned().collect();
        self.removal(&ours, |_| false)
    }

    /// Calls that remove the chains of this name, in whatever tables they are.
    fn chain_removal(&self, name: &str) -> Vec<Call> {
        let ours = self.chains.iter().filter(|chain| chain.name == name).cloned().collect();
        self.removal(&ours, |_| false)
    }

    /// Calls that remove chains: first rules that jump to them, then their rules, then the chains.
    fn removal(&self, chains: &BTreeSet<Chain>, also: impl Fn(&Rule) -> bool) -> Vec<Call> {
        let call = |chain: &Chain, action: &str, words: &[String]| {
            let head = ["--wait", "-t", &chain.table, action, &chain.name].map(str::to_owned);
            [&head, words].concat()
        };
        let elsewhere = self.rules.iter().filter(|rule| !chains.contains(&rule.chain));
        let referring = elsewhere.filter(|rule| {
            also(rule) || rule.target().is_some_and(|target| chains.contains(&target))
        });
        let mut calls: Vec<Call> =
            referring.map(|rule| call(&rule.chain, "-D", &rule.words)).collect();
        for action in ["-F", "-X"] {
            calls.extend(chains.iter().map(|chain| call(chain, action, &[])));
        }
        calls
    }
}

impl Chain {
    fn is_shared(&self) -> bool {
        SHARED.contains(&self.name.as_str())
    }
}

impl std::fmt::Display for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

impl Rule {
    fn after(&self, option: &str) -> Option<&str> {
        let mut words = self.words.iter().skip_while(|word| *word != option);
        words.nth(1).map(String::as_str)
    }

    fn target(&self) -> Option<Chain> {
        let name = self.after("-j")?.to_owned();
        Some(Chain { table: self.chain.table.clone(), name })
    }

    fn is_of(&self, network: &str) -> bool {
        let mark = format!("name: \"{network}\" id: ");
        self.after("--comment").is_some_and(|comment| comment.contains(&mark))
    }
}

/// Removes all rules and chains of a network.
pub fn remove_network_rules(network: &str) -> anyhow::Result<()> {
    execute(Family::V4, &Filter::read()?.network_removal(network))
}

/// Removes the shared chains except those that existed before or are in use.
pub fn remove_shared_chains(before: &[String]) -> anyhow::Result<()> {
    execute(Family::V4, &Filter::read()?.shared_removal(before))
}

/// Removes the chains of this name and the rules that jump to them.
pub fn remove_chain(family: Family, name: &str) -> anyhow::Result<()> {
    execute(family, &Filter::read_of(family)?.chain_removal(name))
}

fn execute(family: Family, calls: &[Call]) -> anyhow::Result<()> {
    for call in calls {
        let words: Vec<&str> = call.iter().map(String::as_str).collect();
        run(family.program(), &words)?;
    }
    Ok(())
}

/// Splits a rule in the quoting of iptables-save.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                quoted = !quoted;
                any = true;
            }
            '\\' if quoted => word.extend(chars.next()),
            ' ' if !quoted => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    if any || !word.is_empty() {
        words.push(word);
    }
    words
}

/// Runs a program and returns its standard output.
pub(super) fn run(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let path = find(program)?.with_context(|| {
        format!("{program} is not installed. Fix, on Debian: apt-get install iptables iproute2")
    })?;
    let output = Command::new(path)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        anyhow::bail!("{program} {} failed: {}", arguments.join(" "), stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Two networks with a host port each, and a chain of Docker.
    const SAVED: &str = r#"# Generated by iptables-save
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-1111 - [0:0]
:CNI-2222 - [0:0]
:CNI-DN-1111 - [0:0]
:CNI-DN-2222 - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A POSTROUTING -s 10.1.0.2/32 -m comment --comment "name: \"pw-1\" id: \"aa\"" -j CNI-1111
-A POSTROUTING -s 10.2.0.2/32 -m comment --comment "name: \"pw-12\" id: \"bb\"" -j CNI-2222
-A CNI-1111 -d 10.1.0.0/16 -m comment --comment "name: \"pw-1\" id: \"aa\"" -j ACCEPT
-A CNI-2222 -d 10.2.0.0/16 -m comment --comment "name: \"pw-12\" id: \"bb\"" -j ACCEPT
-A CNI-DN-1111 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.1.0.2:80
-A CNI-DN-2222 -p tcp -m tcp --dport 81 -j DNAT --to-destination 10.2.0.2:81
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"pw-1\" id: \"aa\"" -m multiport --dports 80 -j CNI-DN-1111
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"pw-12\" id: \"bb\"" -m multiport --dports 81 -j CNI-DN-2222
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
COMMIT
"#;

    /// The rules after the calls.
    fn after(mut filter: Filter, calls: &[Call]) -> Filter {
        for call in calls {
            let [_, _, table, action, name, words @ ..] = call.as_slice() else { panic!() };
            let chain = Chain { table: table.clone(), name: name.clone() };
            match action.as_str() {
                "-D" => {
                    let index = filter
                        .rules
                        .iter()
                        .position(|rule| rule.chain == chain && rule.words == words);
                    filter.rules.remove(index.unwrap());
                }
                "-F" => filter.rules.retain(|rule| rule.chain != chain),
                "-X" => {
                    let used = |rule: &Rule| rule.target().as_ref() == Some(&chain);
                    assert!(!filter.rules.iter().any(|rule| used(rule) || rule.chain == chain));
                    assert!(filter.chains.remove(&chain), "{chain}");
                }
                other => panic!("{other}"),
            }
        }
        filter
    }

    fn without(text: &str, dropped: &[&str]) -> Filter {
        let kept = |line: &&str| !dropped.iter().any(|part| line.contains(part));
        Filter::parse(&text.lines().filter(kept).collect::<Vec<_>>().join("\n"))
    }

    #[test]
    fn network_is_removed_and_one_with_a_longer_name_is_kept() {
        let filter = Filter::parse(SAVED);
        let calls = filter.network_removal("pw-1");
        assert_eq!(after(filter, &calls), without(SAVED, &["1111", "\"pw-1\\\""]));
        assert_eq!(Filter::parse(SAVED).network_removal("pw"), Vec::<Call>::new());
    }

    #[test]
    fn own_chain_is_removed_with_its_jump_and_that_of_another_node_is_kept() {
        const TWO: &str = r#"*mangle
:PREROUTING ACCEPT [0:0]
:PODWRIGHT-1111 - [0:0]
:PODWRIGHT-11112222 - [0:0]
:USER - [0:0]
-A PREROUTING ! -i lo -m comment --comment "podwright: pod network pw-11112222" -j PODWRIGHT-11112222
-A PREROUTING ! -i lo -m comment --comment "podwright: pod network pw-1111" -j PODWRIGHT-1111
-A PREROUTING -j USER
-A PODWRIGHT-1111 -d 10.213.0.0/16 ! -i pw-1111 -j DROP
-A PODWRIGHT-11112222 -d 10.87.0.0/16 ! -i pw-11112222 -j DROP
-A USER -d 10.213.0.0/16 -j DROP
COMMIT
"#;
        let filter = Filter::parse(TWO);
        let calls = filter.chain_removal("PODWRIGHT-1111");
        let left = without(TWO, &["PODWRIGHT-1111 ", "pw-1111\""]);
        assert_eq!(left.chains.len(), 3);
        assert_eq!(after(filter, &calls), left);
        assert_eq!(Filter::parse(SAVED).chain_removal("PODWRIGHT-1111"), Vec::<Call>::new());
    }

    #[test]
    fn chain_without_a_jump_to_it_is_recognised_by_its_rules() {
        let torn = || without(SAVED, &["-j CNI-1111"]);
        let calls = torn().network_removal("pw-1");
        let left = after(torn(), &calls);
        assert!(!left.chains.iter().any(|chain| chain.name == "CNI-1111"), "{left:?}");
    }

    #[test]
    fn shared_chains_are_removed_if_unused_and_not_there_before() {
        let filter = Filter::parse(SAVED);
        assert_eq!(filter.shared_removal(&[]), Vec::<Call>::new(), "two networks use them");
        let idle = || without(SAVED, &["1111", "2222"]);
        let before = idle().shared_chains();
        assert_eq!(before.len(), 3, "{before:?}");
        assert_eq!(idle().shared_removal(&before), Vec::<Call>::new(), "they were there before");
        let left = after(idle(), &idle().shared_removal(&[]));
        assert_eq!(left, without(SAVED, &["1111", "2222", "CNI-HOSTPORT"]));
    }

    #[test]
    fn quoted_words_of_a_rule_are_not_split() {
        let words = words(r#"POSTROUTING -m comment --comment "name: \"x\" id: 1" -j CNI-A"#);
        assert_eq!(words.get(4).map(String::as_str), Some("name: \"x\" id: 1"));
        assert_eq!(words.last().map(String::as_str), Some("CNI-A"));
    }
}
