//! Sysctl allow list for pods.
//!
//! Only sysctls that the kernel keeps per namespace are possible, and of these only the ones that
//! cannot affect other pods are safe. `allowedUnsafeSysctls` adds more.

/// Safe sysctls and the kernel version that each requires.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Namespace in which the kernel keeps a sysctl, by name prefix.
const NAMESPACES: [(&str, Namespace); 5] = [
    ("kernel.shm", Namespace::Ipc),
    ("kernel.msg", Namespace::Ipc),
    ("kernel.sem", Namespace::Ipc),
    ("fs.mqueue.", Namespace::Ipc),
    ("net.", Namespace::Net),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// Sysctls that pods may set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedSysctls {
    names: Vec<String>,
    /// `net.core.*` without the star.
    prefixes: Vec<String>,
}

impl AllowedSysctls {
    /// The safe sysctls of this kernel plus `allowedUnsafeSysctls`.
    pub fn new(kernel: &str, unsafe_too: &[String]) -> Self {
        let version = version(kernel);
        let mut allowed = Self::default();
        let safe = SAFE.iter().filter(|(_, since)| version >= *since);
        allowed.names.extend(safe.map(|(name, _)| (*name).to_owned()));
        for pattern in unsafe_too {
            let pattern = dotted(pattern);
            match pattern.strip_suffix('*') {
                Some(prefix) => allowed.prefixes.push(prefix.to_owned()),
                None => allowed.names.push(pattern),
            }
        }
        allowed
    }

    /// Reason why a pod must not set `name`; `None` if it may.
    pub(super) fn objection(&self, name: &str, host_net: bool, host_ipc: bool) -> Option<String> {
        let name = dotted(name);
        let listed = self.names.contains(&name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()));
        if !listed {
            return Some(format!("{name:?} not allowlisted"));
        }
        let shared = match namespace(&name) {
            Some(Namespace::Ipc) if host_ipc => "ipc",
            Some(Namespace::Net) if host_net => "net",
            Some(Namespace::Ipc | Namespace::Net) | None => return None,
        };
        Some(format!("{name:?} not allowed with host {shared} enabled"))
    }
}

fn namespace(name: &str) -> Option<Namespace> {
    NAMESPACES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, kept)| *kept)
}

/// `net/ipv4/x` is another spelling of `net.ipv4.x`, unless the first separator is a dot.
fn dotted(name: &str) -> String {
    match name.find(['.', '/']).and_then(|at| name.get(at..=at)) {
        Some("/") => {
            let swap = |c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        Some(_) | None => name.to_owned(),
    }
}

fn version(kernel: &str) -> (u32, u32) {
    let mut parts = kernel.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    let mut next = || parts.next().flatten().unwrap_or(0);
    (next(), next())
}
