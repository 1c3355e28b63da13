//! Workspace metadata, as reported by cargo.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;

pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    cargo: OsString,
}

/// A workspace member and the members it depends on.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) manifest: PathBuf,
    pub(crate) uses: Vec<Use>,
}

#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) member: String,
    /// Whether it is a dev-dependency only.
    pub(crate) for_tests: bool,
}

/// A package in a resolved dependency tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its manifest says it, in SPDX; empty if that says nothing.
    pub(crate) licence: String,
}

/// Which dependency edges are followed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edges {
    /// Normal and build dependencies.
    Build,
    /// Those, and dev-dependencies.
    All,
}

impl Workspace {
    /// The workspace this program belongs to, independent of the current directory.
    pub(crate) fn here() -> anyhow::Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("xtask has no parent directory")?.to_owned();
        ensure!(root.join("Cargo.lock").exists(), "{} is not a workspace", root.display());
        Ok(Self { root, cargo: env::var_os("CARGO").unwrap_or_else(|| "cargo".into()) })
    }

    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new(&self.cargo);
        cargo.current_dir(&self.root);
        // Cargo sets variables that describe this package; a nested cargo must not use them.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO_PKG_") || name == "CARGO_MANIFEST_DIR" {
                cargo.env_remove(name);
            }
        }
        cargo
    }

    pub(crate) fn members(&self) -> anyhow::Result<Vec<Member>> {
        let json = self.read(&["metadata", "--no-deps", "--locked", "--format-version=1"])?;
        let metadata: Metadata =
            serde_json::from_str(&json).context("cannot parse the output of cargo metadata")?;
        let ours: Vec<String> = metadata.packages.iter().map(|p| p.name.clone()).collect();
        let members = metadata.packages.into_iter().map(|package| Member {
            uses: package
                .dependencies
                .into_iter()
                .filter(|dependency| ours.contains(&dependency.name))
                .map(|dependency| Use {
                    for_tests: dependency.kind.as_deref() == Some("dev"),
                    member: dependency.name,
                })
                .collect(),
            name: package.name,
            manifest: package.manifest_path,
        });
        Ok(members.collect())
    }

    /// Packages that all members need on this machine, with all features, by name.
    pub(crate) fn packages(&self, edges: Edges) -> anyhow::Result<Vec<Package>> {
        let host = self.host()?;
        let mut arguments = vec!["metadata", "--locked", "--format-version=1", "--all-features"];
        arguments.extend(["--filter-platform", &host]);
        let graph: Graph = serde_json::from_str(&self.read(&arguments)?)
            .context("cannot parse the output of cargo metadata")?;
        Ok(graph.packages_by(edges))
    }

    /// Packages that end up in one member, by name. They are resolved with the features the member
    /// requests itself, not with those its neighbours switch on; `cargo metadata` does not report
    /// that.
    pub(crate) fn tree_of(&self, member: &str) -> anyhow::Result<Vec<Package>> {
        let mut arguments = vec!["tree", "--locked", "--prefix=none", "--format={p}\t{l}"];
        arguments.extend(["--edges", "normal", "--package", member]);
        parse_tree(&self.read(&arguments)?)
    }

    /// The default target platform of cargo.
    fn host(&self) -> anyhow::Result<String> {
        let version = self.read(&["--version", "--verbose"])?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        Ok(host.context("rustc -vV names no host platform")?.to_owned())
    }

    fn read(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.cargo();
        let output = command.args(arguments).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot run {command:?}"))?;
        ensure!(output.status.success(), "{command:?} ended with {}", output.status);
        String::from_utf8(output.stdout).context("output of cargo is not UTF-8")
    }
}

/// Each line: `name v1.2.3 (source)`, a tab, the licence, and `(*)` if it was listed before.
fn parse_tree(text: &str) -> anyhow::Result<Vec<Package>> {
    let mut packages = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let Some((package, licence)) = line.split_once('\t') else {
            bail!("cannot parse a line of cargo tree: {line:?}");
        };
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            bail!("cannot parse a package of cargo tree: {line:?}");
        };
        let package = Package {
            name: name.into(),
            version: version.trim_start_matches('v').into(),
            licence: licence.trim_end_matches("(*)").trim().into(),
        };
        packages.insert((package.name.clone(), package.version.clone()), package);
    }
    Ok(packages.into_values().collect())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<MetadataDependency>,
}

#[derive(Deserialize)]
struct MetadataDependency {
    name: String,
    kind: Option<String>,
}

/// The part of the dependency graph that is used here.
#[derive(Deserialize)]
struct Graph {
    packages: Vec<GraphPackage>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct GraphPackage {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    /// `None` is a normal dependency.
    kind: Option<String>,
}

impl Edge {
    fn is_followed(&self, edges: Edges) -> bool {
        let for_tests = |kind: &EdgeKind| kind.kind.as_deref() == Some("dev");
        self.dep_kinds.iter().any(|kind| edges == Edges::All || !for_tests(kind))
    }
}

impl Graph {
    /// The members and everything reachable from them.
    fn packages_by(self, edges: Edges) -> Vec<Package> {
        let nodes: BTreeMap<&str, &Node> =
            self.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
        let mut ahead: Vec<&str> = self.workspace_members.iter().map(String::as_str).collect();
        let mut reached = BTreeSet::new();
        while let Some(id) = ahead.pop() {
            if reached.insert(id) {
                let deps = nodes.get(id).into_iter().flat_map(|node| &node.deps);
                let deps = deps.filter(|edge| edge.is_followed(edges));
                ahead.extend(deps.map(|edge| edge.pkg.as_str()));
            }
        }
        let packages = self.packages.iter().filter(|package| reached.contains(package.id.as_str()));
        let packages: BTreeSet<Package> = packages
            .map(|package| Package {
                name: package.name.clone(),
                version: package.version.clone(),
                licence: package.license.clone().unwrap_or_default(),
            })
            .collect();
        packages.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_those_that_the_members_reach() {
        let package = |name: &str| serde_json::json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT"});
        let node = |id: &str, deps: &[(&str, Option<&str>)]| {
            let deps = deps.iter().map(|(pkg, kind)| {
                serde_json::json!({"pkg": pkg, "dep_kinds": [{"kind": kind, "target": null}]})
            });
            serde_json::json!({"id": id, "deps": deps.collect::<Vec<_>>()})
        };
        let packages = ["ours", "run", "build", "test", "far", "other"].map(package);
        let graph = || -> Graph {
            serde_json::from_value(serde_json::json!({
                "packages": packages,
                "workspace_members": ["ours"],
                "resolve": {"nodes": [
                    node("ours", &[("run", None), ("build", Some("build")), ("test", Some("dev"))]),
                    node("run", &[]),
                    node("build", &[("far", None)]),
                    node("test", &[("ours", None)]),
                    node("far", &[]),
                    node("other", &[("run", None)]),
                ]},
            }))
            .unwrap()
        };
        let names = |edges| -> Vec<String> {
            graph().packages_by(edges).into_iter().map(|package| package.name).collect()
        };
        assert_eq!(names(Edges::Build), ["build", "far", "ours", "run"]);
        assert_eq!(names(Edges::All), ["build", "far", "ours", "run", "test"]);
    }

    #[test]
    fn a_tree_is_read_whatever_follows_the_version() {
        let text = "podwright-core v0.1.0 (/src/crates/core)\tApache-2.0\n\
                    serde_derive v1.0.2 (proc-macro)\tMIT OR Apache-2.0\n\
                    serde v1.0.2\tMIT OR Apache-2.0 (*)\n\
                    \n\
                    serde v1.0.2\tMIT OR Apache-2.0\n\
                    bare v2.0.0\t\n";
        let want = [
            ("bare", "2.0.0", ""),
            ("podwright-core", "0.1.0", "Apache-2.0"),
            ("serde", "1.0.2", "MIT OR Apache-2.0"),
            ("serde_derive", "1.0.2", "MIT OR Apache-2.0"),
        ]
        .map(|(name, version, licence)| Package {
            name: name.into(),
            version: version.into(),
            licence: licence.into(),
        });
        assert_eq!(parse_tree(text).unwrap(), want);
        assert!(parse_tree("error: something else").is_err());
    }
}
