//! Rules of nftables, iptables and ip6tables of a machine snapshot, without counters.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Result;

use super::{Entry, Kind};
use crate::process::output;

pub(super) fn entries() -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for program in ["iptables-save", "ip6tables-save"] {
        entries.extend(saved(program, &output(&mut Command::new(program))?));
    }
    let rules = output(Command::new("nft").args(["list", "ruleset"]))?;
    entries.extend(nftables(&rules));
    Ok(entries)
}

/// Parses iptables-save output. The position of a rule in its chain is part of the entry.
fn saved(program: &str, text: &str) -> Vec<Entry> {
    let (mut found, mut table) = (Vec::new(), String::new());
    let mut places = BTreeMap::new();
    for line in text.lines().map(without_counters) {
        if let Some(name) = line.strip_prefix('*') {
            table = name.to_owned();
            places.clear();
        } else if let Some(chain) = line.strip_prefix(':') {
            let (chain, policy) = chain.split_once(' ').unwrap_or((chain, ""));
            if !(BUILT_IN.contains(&chain) && policy == "ACCEPT") {
                let name = format!("{program} {table} chain {chain}");
                found.push(Entry::new(Kind::Rule, name, format!("policy {policy}")));
            }
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let chain = rule.split(' ').next().unwrap_or_default().to_owned();
            let place: &mut u32 = places.entry(chain).or_default();
            *place += 1;
            let name = format!("{program} {table} -A {rule}");
            found.push(Entry::new(Kind::Rule, name, format!("place {place}")));
        }
    }
    found
}

/// Parses `nft list ruleset` output: tables contain chains and sets, which contain lines.
fn nftables(text: &str) -> Vec<Entry> {
    let (mut found, mut inside) = (Vec::new(), Vec::<String>::new());
    let mut place = 0_u32;
    for line in text.lines().map(|line| without_counters(line.trim())) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "}" {
            inside.pop();
            place = 0;
        } else if let Some(opened) = line.strip_suffix(" {") {
            inside.push(opened.to_owned());
            place = 0;
            let built_in = opened.strip_prefix("chain ").is_some_and(|c| BUILT_IN.contains(&c));
            // Listing an iptables table creates it with its built-in chains.
            if !(built_in || is_table_of_iptables(opened)) {
                found.push(Entry::new(Kind::Rule, format!("nft {}", inside.join(" ")), ""));
            }
        } else if !(line.starts_with("type ") && line.ends_with("policy accept;")) {
            place += 1;
            let name = format!("nft {}: {line}", inside.join(" "));
            found.push(Entry::new(Kind::Rule, name, format!("place {place}")));
        }
    }
    found
}

/// The kernel's built-in chains.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

fn is_table_of_iptables(opened: &str) -> bool {
    const TABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];
    match opened.split(' ').collect::<Vec<_>>().as_slice() {
        ["table", "ip" | "ip6", name] => TABLES.contains(name),
        _ => false,
    }
}

/// Removes `[12:3456]` of iptables and `packets 12 bytes 3456` of nft.
fn without_counters(line: &str) -> String {
    let mut words = line.split(' ').peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let is_pair = word.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if is_pair.is_some_and(|pair| pair.bytes().all(|b| b.is_ascii_digit() || b == b':')) {
            continue;
        }
        if (word == "packets" || word == "bytes")
            && words.next_if(|next| next.parse::<u64>().is_ok()).is_some()
        {
            continue;
        }
        kept.push(word);
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn counters_do_not_make_a_difference() {
        for (line, want) in [
            (":INPUT ACCEPT [12:3456]", ":INPUT ACCEPT"),
            ("counter packets 7 bytes 420 accept", "counter accept"),
            ("-A X -m comment --comment packets -j Y", "-A X -m comment --comment packets -j Y"),
        ] {
            assert_eq!(without_counters(line), want);
        }
    }

    #[test]
    fn empty_iptables_tables_are_ignored_but_rules_and_policies_count() {
        let text = "# comment\n*nat\n:POSTROUTING ACCEPT [1:2]\n:INPUT DROP [0:0]\n:USER - [0:0]\n\
                    -A POSTROUTING -j USER\n-A USER -j RETURN\n-A USER -j ACCEPT\nCOMMIT\n";
        assert_eq!(
            lines(&saved("iptables-save", text)),
            [
                "rule iptables-save nat chain INPUT: policy DROP",
                "rule iptables-save nat chain USER: policy -",
                "rule iptables-save nat -A POSTROUTING -j USER: place 1",
                "rule iptables-save nat -A USER -j RETURN: place 1",
                "rule iptables-save nat -A USER -j ACCEPT: place 2",
            ]
        );
        assert_eq!(saved("iptables-save", "*nat\n:OUTPUT ACCEPT [0:0]\nCOMMIT\n"), []);
    }

    #[test]
    fn nftables_rules_are_named_with_table_and_chain() {
        let text = "table ip nat {\n\tchain POSTROUTING {\n\t\ttype nat hook postrouting \
                    priority srcnat; policy accept;\n\t\tcounter packets 1 bytes 2 accept\n\t}\n}\n\
                    table inet user {\n\tchain own {\n\t\taccept\n\t}\n}\n";
        assert_eq!(
            lines(&nftables(text)),
            [
                "rule nft table ip nat chain POSTROUTING: counter accept: place 1",
                "rule nft table inet user",
                "rule nft table inet user chain own",
                "rule nft table inet user chain own: accept: place 1",
            ]
        );
    }
}
