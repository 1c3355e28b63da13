//! Checks of dependencies: layers between members, purity of core, banned packages.

use std::collections::BTreeSet;

use super::Finding;
use crate::cargo::{Member, Package};

/// The members that only decide and do no I/O. Each uses those before it.
pub(super) const PURE: &[&str] = &["podwright-api", "podwright-core"];

/// Layers, bottom up: each member, and which others it may use outside its tests.
const LAYERS: &[(&str, &[&str])] = &[
    ("podwright-proto", &[]),
    ("podwright-api", &[]),
    ("podwright-core", &["podwright-api", "podwright-proto"]),
    ("podwright-cri", &["podwright-api", "podwright-core", "podwright-proto"]),
    ("podwright-host", &["podwright-api", "podwright-core", "podwright-proto"]),
    ("podwright-http", &[]),
    (
        "podwright-node",
        &[
            "podwright-api",
            "podwright-core",
            "podwright-proto",
            "podwright-cri",
            "podwright-host",
            "podwright-http",
        ],
    ),
    (
        "podwright-apiserver",
        &["podwright-api", "podwright-core", "podwright-proto", "podwright-http"],
    ),
    ("podwright-pause", &[]),
    (
        "podwright",
        &[
            "podwright-api",
            "podwright-core",
            "podwright-proto",
            "podwright-cri",
            "podwright-host",
            "podwright-node",
            "podwright-apiserver",
            "podwright-pause",
        ],
    ),
    // From here on: members that never ship.
    (
        "podwright-fake-runtime",
        &["podwright-api", "podwright-core", "podwright-proto", "podwright-cri"],
    ),
    (
        "podwright-testkit",
        &[
            "podwright-api",
            "podwright-core",
            "podwright-proto",
            "podwright-cri",
            "podwright-fake-runtime",
            "podwright-host",
            "podwright-node",
            "podwright-apiserver",
        ],
    ),
    (
        "podwright-e2e",
        &[
            "podwright-api",
            "podwright-core",
            "podwright-proto",
            "podwright-cri",
            "podwright-fake-runtime",
            "podwright-host",
            "podwright-apiserver",
            "podwright-pause",
            "podwright-testkit",
        ],
    ),
    (
        "podwright-fuzz",
        &[
            "podwright",
            "podwright-api",
            "podwright-core",
            "podwright-proto",
            "podwright-cri",
            "podwright-host",
            "podwright-http",
            "podwright-node",
            "podwright-apiserver",
        ],
    ),
    ("podwright-testserver", &[]),
    ("xtask", &["podwright", "podwright-pause"]),
];

/// Packages that access anything outside the process, which a decision could then depend on.
const IMPURE: &[(&str, &str)] = &[
    ("tokio", "a runtime: timers, sockets, tasks"),
    ("async-io", "a runtime"),
    ("smol", "a runtime"),
    ("mio", "sockets"),
    ("socket2", "sockets"),
    ("hyper", "HTTP"),
    ("reqwest", "HTTP"),
    ("tonic", "gRPC calls; podwright-proto without its grpc feature has only the messages"),
    ("tower", "calls"),
    ("axum", "HTTP"),
    ("kube", "the API client"),
    ("kube-client", "the API client"),
    ("kube-runtime", "the API client"),
    ("rustls", "TLS"),
    ("rustix", "system calls"),
    ("nix", "system calls"),
    ("libc", "system calls"),
    ("inotify", "files"),
    ("tempfile", "files"),
    ("procfs", "the kernel's tables"),
    ("zbus", "the message bus"),
    ("redb", "files"),
    ("getrandom", "randomness: the same inputs must give the same plan"),
    ("rand", "randomness: the same inputs must give the same plan"),
    ("fastrand", "randomness: the same inputs must give the same plan"),
    ("tracing", "a global: a decision returns its reason"),
    ("log", "a global: a decision returns its reason"),
];

/// Packages that must not be built with, and why.
const BANS: &[(&str, &str)] = &[
    ("openssl", "a C library to track; rustls is the only TLS library here"),
    ("openssl-sys", "a C library to track; rustls is the only TLS library here"),
    ("native-tls", "brings openssl; rustls is the only TLS library here"),
    ("aws-lc-rs", "a second crypto provider beside ring, and rustls panics if it must choose"),
    ("aws-lc-sys", "a second crypto provider beside ring, and rustls panics if it must choose"),
    ("chrono", "Kubernetes' types carry jiff; two time libraries need conversions"),
    ("serde_yaml", "unmaintained; serde-saphyr reads YAML here"),
    ("serde_yml", "RUSTSEC-2025-0068; serde-saphyr reads YAML here"),
    ("unsafe-libyaml", "C translated to unsafe Rust; serde-saphyr reads YAML here"),
    ("backoff", "unmaintained; back-off is data in podwright-core"),
    ("atty", "unmaintained; std::io::IsTerminal does it"),
    ("spdy-mux", "GPL-3.0; streams are passed through to the runtime unread"),
];

pub(super) fn layers(members: &[Member]) -> Finding {
    let mut faults = Vec::new();
    let mut uses = 0;
    for member in members {
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == member.name) else {
            faults.push(format!("{}: not in the list of layers; add it", member.name));
            continue;
        };
        for used in member.uses.iter().filter(|used| !used.for_tests) {
            uses += 1;
            if !allowed.contains(&used.member.as_str()) {
                faults.push(format!("{} must not depend on {}", member.name, used.member));
            }
        }
    }
    let seen = format!("{} members, {uses} dependencies between them", members.len());
    Finding { rule: "members depend only downwards", seen, faults }
}

/// Each pure member, with its dependency tree.
pub(super) fn purity(trees: &[(&str, Vec<Package>)]) -> Finding {
    let seen = trees.iter().map(|(member, tree)| format!("{member}: {} packages", tree.len()));
    let faults = trees.iter().flat_map(|(member, tree)| {
        listed(tree, IMPURE).into_iter().map(move |fault| format!("{member}: {fault}"))
    });
    Finding {
        rule: "pure members have no clock, no I/O and no randomness in their dependency trees",
        seen: seen.collect::<Vec<_>>().join(", "),
        faults: faults.collect(),
    }
}

pub(super) fn bans(tree: &[Package]) -> Finding {
    Finding {
        rule: "no banned package is used",
        seen: format!("{} packages, {} bans", tree.len(), BANS.len()),
        faults: listed(tree, BANS),
    }
}

/// Names of the banned packages.
pub(super) fn banned() -> BTreeSet<String> {
    BANS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

fn listed(tree: &[Package], list: &[(&str, &str)]) -> Vec<String> {
    let names: BTreeSet<&str> = tree.iter().map(|package| package.name.as_str()).collect();
    list.iter()
        .filter(|(name, _)| names.contains(name))
        .map(|(name, why)| {
            format!("{name}: {why} (cargo tree --invert {name} shows what depends on it)")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::{Edges, Use, Workspace};

    fn member(name: &str, uses: &[(&str, bool)]) -> Member {
        let uses = uses.iter().map(|(m, tests)| Use { member: (*m).into(), for_tests: *tests });
        Member { name: name.into(), manifest: "Cargo.toml".into(), uses: uses.collect() }
    }

    fn package(name: &str) -> Package {
        Package { name: name.into(), version: "1.0.0".into(), licence: "MIT".into() }
    }

    #[test]
    fn a_dependency_upwards_or_sideways_is_a_fault() {
        for (from, to) in [
            ("podwright-core", "podwright-host"),
            ("podwright-api", "podwright-core"),
            ("podwright-api", "podwright-proto"),
            ("podwright-cri", "podwright-host"),
            ("podwright-node", "podwright-apiserver"),
            ("podwright-node", "podwright-testkit"),
            ("podwright-apiserver", "podwright-node"),
            ("podwright-apiserver", "podwright-cri"),
            ("podwright-apiserver", "podwright-host"),
            ("podwright", "podwright-testkit"),
            ("podwright-node", "podwright-fake-runtime"),
        ] {
            let faults = layers(&[member(from, &[(to, false)])]).faults;
            assert_eq!(faults, [format!("{from} must not depend on {to}")]);
            assert_eq!(layers(&[member(from, &[(to, true)])]).faults, [""; 0], "for tests");
        }
        let ways = [("podwright-core", false), ("podwright-host", false)];
        assert_eq!(layers(&[member("podwright-node", &ways)]).faults, [""; 0]);
    }

    #[test]
    fn a_member_without_a_layer_is_a_fault() {
        assert_eq!(layers(&[member("podwright-new", &[])]).faults.len(), 1);
    }

    #[test]
    fn every_layer_is_listed_after_the_layers_it_may_use() {
        for (index, (name, allowed)) in LAYERS.iter().enumerate() {
            for used in *allowed {
                let before = LAYERS[..index].iter().any(|(name, _)| name == used);
                assert!(before, "{name} may use {used}, which is not below it");
            }
        }
    }

    #[test]
    fn this_workspace_passes() {
        let workspace = Workspace::here().unwrap();
        assert_eq!(layers(&workspace.members().unwrap()).faults, [""; 0]);
        for member in PURE {
            let tree = workspace.tree_of(member).unwrap();
            assert!(tree.iter().any(|package| package.name == "serde"), "{member}: {tree:?}");
            assert_eq!(purity(&[(*member, tree)]).faults, [""; 0]);
        }
        let all = workspace.packages(Edges::All).unwrap();
        assert!(all.iter().any(|package| package.name == "proptest"), "of tests, too");
        assert_eq!(bans(&all).faults, [""; 0]);
    }

    #[test]
    fn a_listed_package_is_a_fault_with_its_reason() {
        let tree = vec![package("serde"), package("tokio"), package("tokio-macros")];
        assert_eq!(bans(&tree).faults, [""; 0]);
        let faults =
            purity(&[("podwright-api", vec![package("serde")]), ("podwright-core", tree)]).faults;
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("podwright-core: tokio: a runtime"), "{faults:?}");
        assert_eq!(bans(&[package("openssl")]).faults.len(), 1);
    }
}
