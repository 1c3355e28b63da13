//! The test server as a static program.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};

use crate::cargo::Workspace;

/// Builds it, or finds it built, and says where it is.
pub(super) fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let target = host(workspace)?;
    // Its own folder: other flags in the same one would make cargo build everything anew, each
    // time in turn.
    let folder = workspace.root.join("target/static");
    let mut cargo = workspace.cargo();
    cargo
        .args(["build", "--release", "--locked", "--package", "podwright-testserver"])
        // With a named target the flags are not for build scripts and macros, which must stay
        // dynamic.
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&folder)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        // A tenth larger, and built in three quarters of the time.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    let status = cargo.status().with_context(|| format!("cannot run {cargo:?}"))?;
    ensure!(status.success(), "{cargo:?} ended with {status}");
    Ok(folder.join(target).join("release/testserver"))
}

/// The triple of this machine: tests run where they are built.
fn host(workspace: &Workspace) -> anyhow::Result<String> {
    let output = workspace.cargo().args(["--version", "--verbose"]).output().context("cargo")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("cargo --version --verbose names no host")?.to_owned())
}
