//! What is in the machine that a node agent or a bed could have left there, so that before and
//! after can be compared.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::output;
use crate::{cell, mounts};

/// Programs that a node is made of, by the 15 characters the kernel keeps of a name. On the machine
/// itself others come and go with its own life, unless they sit in a network or a cgroup that is
/// not ours; in a [cell](crate::cell) every process counts.
const PROGRAMS: [&str; 12] = [
    "bed-guardian",
    "containerd",
    "containerd-shim",
    "crun",
    "etcd",
    "kube-apiserver",
    "kube-controller",
    "kubectl",
    "kubelet",
    "pause",
    "podwright",
    "runc",
];

/// Settings that a kubelet, a runtime or a network plugin may change; files below /proc/sys.
const SETTINGS: [&str; 14] = [
    "fs/inotify/max_user_instances",
    "fs/inotify/max_user_watches",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "net/bridge/bridge-nf-call-iptables",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/netfilter/nf_conntrack_max",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// Folders that runtimes and kubelets share whatever they are told, with a file for each pod.
const SHARED_FOLDERS: [&str; 5] = [
    "/run/containerd/s",
    "/run/netns",
    "/run/podwright",
    "/var/lib/cni/results",
    "/var/log/containers",
];

/// The thread that looks, which [may be in another network](crate::netns::NetNs::within) than its
/// process.
const HERE: &str = "/proc/thread-self";

/// The state of the machine at one moment, one line for each thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing(BTreeSet<String>);

/// What came and what went between two listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

impl Listing {
    /// Mounts, cgroups, processes, and the files for network namespaces, shims and network plugins;
    /// and links, packet filter rules and settings of the network that this thread is in.
    pub fn take() -> Result<Self> {
        let mut lines = BTreeSet::new();
        for mount in mounts::all()? {
            lines.insert(format!("mount {} {} {}", mount.point.display(), mount.kind, mount.root));
            if mount.kind.starts_with("cgroup") {
                let mut folders = Vec::new();
                crate::cgroup::below(&mount.point, &mut folders);
                lines.extend(folders.iter().map(|folder| format!("cgroup {}", folder.display())));
            }
        }
        lines.extend(SHARED_FOLDERS.iter().flat_map(|folder| files(folder)));
        lines.extend(links()?);
        lines.extend(rules());
        lines.extend(SETTINGS.iter().filter_map(|name| setting(name)));
        lines.extend(processes());
        Ok(Self(lines))
    }

    /// What changed from this listing to a `later` one.
    pub fn difference(&self, later: &Self) -> Difference {
        Difference {
            added: later.0.difference(&self.0).cloned().collect(),
            removed: self.0.difference(&later.0).cloned().collect(),
        }
    }

    /// Without the lines that `unwanted` picks out.
    pub fn without(mut self, unwanted: impl Fn(&str) -> bool) -> Self {
        self.0.retain(|line| !unwanted(line));
        self
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl Difference {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.removed {
            writeln!(out, "- {line}")?;
        }
        for line in &self.added {
            writeln!(out, "+ {line}")?;
        }
        Ok(())
    }
}

fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| format!("file {}", entry.path().display())).collect()
}

/// Not from /sys, which goes on showing the network it was mounted in.
fn links() -> Result<Vec<String>> {
    let table = fs::read_to_string(Path::new(HERE).join("net/dev"))?;
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    Ok(names.map(|name| format!("link {name}")).collect())
}

/// The packet filter, without counters and times. A tool that is not installed has made no rule.
fn rules() -> Vec<String> {
    let tools: [&[&str]; 3] =
        [&["iptables-save"], &["ip6tables-save"], &["nft", "list", "ruleset"]];
    let said = tools.iter().filter_map(|tool| {
        let (program, arguments) = tool.split_first()?;
        let text = output(Command::new(program).args(arguments)).ok()?;
        Some((program, text))
    });
    said.flat_map(|(program, text)| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let lines = lines.map(without_counters).filter(|line| !is_frame(line));
        lines.map(|line| format!("rule {program} {line}")).collect::<Vec<_>>()
    })
    .collect()
}

/// Drops `[12:3456]` of iptables and `packets 12 bytes 3456` of nft.
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

/// Whether a line only holds others: a table, or a chain that the kernel has of its own and that
/// lets everything through. Whoever has ever looked into a table has made it.
fn is_frame(line: &str) -> bool {
    const OWN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
    let line = line.trim();
    match line.split(' ').collect::<Vec<_>>().as_slice() {
        [""] | ["COMMIT"] | ["}"] | ["table", .., "{"] => true,
        ["chain", name, "{"] => OWN.contains(name),
        ["type", .., "policy", "accept;"] => true,
        [chain, "ACCEPT"] => chain.starts_with(':'),
        [table] => table.starts_with('*'),
        _ => false,
    }
}

fn setting(name: &str) -> Option<String> {
    let value = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    Some(format!("setting {name} = {}", value.trim()))
}

/// The processes of a node, by pid and command; see [`PROGRAMS`].
fn processes() -> Vec<String> {
    let home = Home::of(Path::new(HERE));
    let all_count = cell::inside();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let proc = entry.path();
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let command = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        let command = command.trim();
        // What has no program of its own is a thread of the kernel, or already dead.
        if fs::read_link(proc.join("exe")).is_err() {
            continue;
        }
        if all_count || PROGRAMS.contains(&command) || Home::of(&proc).is_foreign_to(&home) {
            found.push(format!("process {pid} {command}"));
        }
    }
    found
}

/// Where a process lives.
struct Home {
    namespace: PathBuf,
    cgroups: BTreeSet<String>,
}

impl Home {
    fn of(proc: &Path) -> Self {
        let table = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
        Self {
            namespace: fs::read_link(proc.join("ns/net")).unwrap_or_default(),
            cgroups: table.lines().map(str::to_owned).collect(),
        }
    }

    /// In another network, or in a cgroup made for pods.
    fn is_foreign_to(&self, home: &Self) -> bool {
        let elsewhere = |line: &String| line.contains("/pw-") || line.contains("kubepods");
        let known = !self.namespace.as_os_str().is_empty(); // else it ended meanwhile
        known && self.namespace != home.namespace || self.cgroups.iter().any(elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_names_what_came_and_what_went() {
        let listing = |lines: &[&str]| Listing(lines.iter().map(|&l| l.to_owned()).collect());
        let difference = listing(&["a", "b"]).difference(&listing(&["b", "c"]));
        assert_eq!(difference.to_string(), "- a\n+ c\n");
        assert!(listing(&["a"]).difference(&listing(&["a"])).is_empty());
    }

    #[test]
    fn counters_do_not_make_a_difference() {
        for (line, want) in [
            (":INPUT ACCEPT [12:3456]", ":INPUT ACCEPT"),
            ("  counter packets 7 bytes 420 accept", "  counter accept"),
            ("-A X -m comment --comment packets -j Y", "-A X -m comment --comment packets -j Y"),
        ] {
            assert_eq!(without_counters(line), want);
        }
    }

    #[test]
    fn empty_tables_make_no_difference_and_rules_and_policies_do() {
        for (line, want) in [
            ("*nat", true),
            ("COMMIT", true),
            (":INPUT ACCEPT", true),
            (":INPUT DROP", false),
            (":CNI-HOSTPORT-DNAT -", false),
            ("-A POSTROUTING -j ACCEPT", false),
            ("table ip nat {", true),
            ("\tchain POSTROUTING {", true),
            ("\tchain CNI-HOSTPORT-DNAT {", false),
            ("\t\ttype nat hook postrouting priority srcnat; policy accept;", true),
            ("\t\ttype filter hook forward priority filter; policy drop;", false),
            ("\t\tip saddr 10.0.0.1 counter accept", false),
            ("\t}", true),
        ] {
            assert_eq!(is_frame(line), want, "{line}");
        }
    }
}
