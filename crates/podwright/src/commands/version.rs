//! `podwright version`.

use std::io::{self, Write};

use serde::Serialize;

use crate::cli::Output;

/// Kubelet version in the Node object: the upstream release whose behaviour is implemented, and
/// this program's version.
pub const KUBELET: &str = concat!("v1.36.4+podwright.", env!("CARGO_PKG_VERSION"));

/// Versions of this program.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Versions {
    #[serde(rename = "podwright")]
    pub podwright: &'static str,
    #[serde(rename = "kubelet")]
    pub kubelet: &'static str,
    #[serde(rename = "rustc")]
    pub rustc: &'static str,
    /// Set if PODWRIGHT_COMMIT was set at build time.
    #[serde(rename = "commit", skip_serializing_if = "Option::is_none")]
    pub commit: Option<&'static str>,
}

pub const VERSIONS: Versions = Versions {
    podwright: env!("CARGO_PKG_VERSION"),
    kubelet: KUBELET,
    rustc: env!("PODWRIGHT_RUSTC"),
    commit: option_env!("PODWRIGHT_COMMIT"),
};

pub fn print(output: Output, out: &mut dyn Write) -> io::Result<()> {
    match output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &VERSIONS)?;
            writeln!(out)
        }
        Output::Text => {
            writeln!(out, "podwright {}", VERSIONS.podwright)?;
            writeln!(out, "kubelet   {}", VERSIONS.kubelet)?;
            writeln!(out, "rustc     {}", VERSIONS.rustc)?;
            VERSIONS.commit.map_or(Ok(()), |commit| writeln!(out, "commit    {commit}"))
        }
    }
}
