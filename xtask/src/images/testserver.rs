//! The test server as a static program.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::cargo::Workspace;

/// Builds it unless it is up to date and returns its path.
pub(super) fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let target = host(workspace)?;
    // A target directory of its own: other flags in the shared one would make cargo rebuild
    // everything each time.
    let directory = workspace.root.join("target/static");
    let mut cargo = workspace.cargo();
    cargo
        .args(["build", "--release", "--locked", "--package", "podwright-testserver"])
        // With an explicit target the flags do not apply to build scripts and macros, which must
        // stay dynamic.
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&directory)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        // A tenth larger, but built in three quarters of the time.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let status = cargo.status().with_context(|| format!("cannot run {cargo:?}"))?;
    ensure!(status.success(), "{cargo:?} ended with {status}");
    Ok(directory.join(target).join("release/testserver"))
}

/// The triple of this machine: tests run where they are built.
fn host(workspace: &Workspace) -> anyhow::Result<String> {
    let output = workspace.cargo().args(["--version", "--verbose"]).output().context("cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("cargo --version --verbose names no host")?.to_owned())
}
