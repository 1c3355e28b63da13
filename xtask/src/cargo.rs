//! The workspace, as cargo knows it.

use std::collections::BTreeMap;
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

/// A package of ours, and which of ours it uses.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) manifest: PathBuf,
    pub(crate) uses: Vec<Use>,
}

#[derive(Debug)]
pub(crate) struct Use {
    pub(crate) member: String,
    /// Whether only the tests use it.
    pub(crate) for_tests: bool,
}

/// A package in the tree that a build resolves to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As its manifest says it, in SPDX; empty if that says nothing.
    pub(crate) licence: String,
}

/// Which dependencies a tree follows.
#[derive(Clone, Copy)]
pub(crate) enum Edges {
    /// What ends up in the program.
    Run,
    /// That, and what makes it.
    Build,
    /// That, and what tests it.
    All,
}

impl Workspace {
    /// The one this program belongs to, wherever it is called.
    pub(crate) fn here() -> anyhow::Result<Self> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("xtask is a folder of the workspace")?.to_owned();
        ensure!(root.join("Cargo.lock").exists(), "{} is no workspace", root.display());
        Ok(Self { root, cargo: env::var_os("CARGO").unwrap_or_else(|| "cargo".into()) })
    }

    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = Command::new(&self.cargo);
        cargo.current_dir(&self.root);
        // Cargo describes this package to us; a second cargo is not to take it for its own.
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
            serde_json::from_str(&json).context("cannot read the answer of cargo metadata")?;
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

    /// The packages that the given members need on this machine, by name. One member alone is
    /// resolved with the features it asks for itself, not with those its neighbours switch on.
    pub(crate) fn tree(&self, of: Option<&str>, edges: Edges) -> anyhow::Result<Vec<Package>> {
        let edges = match edges {
            Edges::Run => "normal",
            Edges::Build => "normal,build",
            Edges::All => "normal,build,dev",
        };
        let mut arguments = vec!["tree", "--locked", "--prefix=none", "--format={p}\t{l}"];
        arguments.extend(["--edges", edges]);
        match of {
            Some(member) => arguments.extend(["--package", member]),
            None => arguments.push("--workspace"),
        }
        parse_tree(&self.read(&arguments)?)
    }

    fn read(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.cargo();
        let output = command.args(arguments).stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot run {command:?}"))?;
        ensure!(output.status.success(), "{command:?} ended with {}", output.status);
        String::from_utf8(output.stdout).context("cargo wrote what is no text")
    }
}

/// Each line: `name v1.2.3 (where from)`, a tab, the licence, and `(*)` if it was there before.
fn parse_tree(text: &str) -> anyhow::Result<Vec<Package>> {
    let mut packages = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let Some((package, licence)) = line.split_once('\t') else {
            bail!("cannot read a line of cargo tree: {line:?}");
        };
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else {
            bail!("cannot read a package of cargo tree: {line:?}");
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

#[cfg(test)]
mod tests {
    use super::*;

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
