//! Which file tells pods their name servers.
//!
//! A stub resolver on loopback, as systemd-resolved puts into `/etc/resolv.conf`, is the machine's
//! own: in a pod, loopback is the pod. The servers behind it are in a file of their own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use podwright_core::config::dns::HostDns;

const USUAL: &str = "etc/resolv.conf";
const BEHIND_STUB: &str = "run/systemd/resolve/resolv.conf";

/// The file to derive pods' DNS settings from, and what a person should know about it.
#[derive(Debug, PartialEq, Eq)]
pub struct Resolver {
    pub file: PathBuf,
    pub warning: Option<String>,
}

impl Resolver {
    /// Looks at a machine's files below `root`.
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
            [] => "names no server".to_owned(),
            some => format!("names only {}, which a pod cannot reach", some.join(", ")),
        };
        let warning = format!(
            "pods will not resolve names: {} {found}; give a pod servers with dnsPolicy None \
             and dnsConfig",
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
    fn pods_get_servers_that_they_can_reach() {
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
