//! Choice of the resolv.conf for pods.
//!
//! A stub resolver on loopback, as systemd-resolved writes into `/etc/resolv.conf`, is not
//! reachable from a pod, which has its own loopback. The servers behind the stub are in a separate
//! file.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use podwright_core::config::dns::HostDns;

const USUAL: &str = "etc/resolv.conf";
const BEHIND_STUB: &str = "run/systemd/resolve/resolv.conf";

/// The file to derive pods' DNS settings from, and a warning for the user.
#[derive(Debug, PartialEq, Eq)]
pub struct Resolver {
    pub file: PathBuf,
    pub warning: Option<String>,
}

impl Resolver {
    /// Chooses among the machine's files below `root`.
    pub fn find(root: &Path) -> Self {
        let usual = root.join(USUAL);
        let servers = servers(&usual);
        if servers.iter().any(|server| reachable(server)) {
            return Self { file: usual, warning: None };
        }
        let behind = root.join(BEHIND_STUB);
        if self::servers(&behind).iter().any(|server| reachable(server)) {
            return Self { file: behind, warning: None };
        }
        let found = match servers.as_slice() {
            [] => "has no name server".to_owned(),
            some => format!("has only {}, which pods cannot reach", some.join(", ")),
        };
        let warning = format!(
            "pods cannot resolve names: {} {found}. Fix: set name servers in the pod with \
             dnsPolicy None and dnsConfig",
            usual.display()
        );
        Self { file: usual, warning: Some(warning) }
    }
}

fn servers(file: &Path) -> Vec<String> {
    match HostDns::parse(&std::fs::read_to_string(file).unwrap_or_default()) {
        HostDns::Read(conf) => conf.servers,
        HostDns::Unused | HostDns::Unreadable(_) => Vec::new(),
    }
}

fn reachable(server: &str) -> bool {
    server.parse::<IpAddr>().is_ok_and(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn file_with_reachable_name_servers_is_chosen() {
        let stub = Some("nameserver 127.0.0.53\n");
        for (usual, behind, want, warned) in [
            (Some("nameserver 10.0.0.53\n"), None, USUAL, false),
            (Some("nameserver 10.0.0.53\n"), Some("nameserver 10.9.9.9\n"), USUAL, false),
            (stub, Some("nameserver 10.9.9.9\n"), BEHIND_STUB, false),
            (stub, stub, USUAL, true),
            (stub, None, USUAL, true),
            (Some("search corp\n"), None, USUAL, true),
            (None, None, USUAL, true),
        ] {
            let root = tempfile::tempdir().unwrap();
            for (file, text) in [(USUAL, usual), (BEHIND_STUB, behind)] {
                let file = root.path().join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                text.inspect(|text| std::fs::write(file, text).unwrap());
            }
            let found = Resolver::find(root.path());
            assert_eq!(found.file, root.path().join(want), "{usual:?} {behind:?}");
            assert_eq!(found.warning.is_some(), warned, "{found:?}");
        }
    }
}
