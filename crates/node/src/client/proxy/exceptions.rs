//! `NO_PROXY`: servers that are reached without a proxy, by the rules of Go's `httpproxy`.

use std::net::IpAddr;

/// Whether a server is reached directly.
pub(super) fn is_excepted(host: &str, port: u16, exceptions: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.to_canonical().is_loopback()) {
        return true;
    }
    exceptions.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let Some((network, bits)) = entry.split_once('/') {
            return ip.is_some_and(|ip| is_within(ip, network, bits).unwrap_or(false));
        }
        let (name, own_port) = split_port(&entry);
        if own_port.is_some_and(|own| own != port) {
            return false;
        }
        match (ip, name.parse::<IpAddr>().ok()) {
            (Some(ip), Some(named)) => ip.to_canonical() == named.to_canonical(),
            (None, None) => is_below(&host, name),
            (Some(_), None) | (None, Some(_)) => false,
        }
    })
}

/// `example.com` matches itself and its subdomains, `.example.com` and `*.example.com` only these.
fn is_below(host: &str, name: &str) -> bool {
    let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
    let name = name.trim_end_matches('.');
    let domain = name.strip_prefix('.').unwrap_or(name);
    if domain.is_empty() {
        return false;
    }
    let is_subdomain = host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    is_subdomain || (host == name)
}

/// Splits `host:port`; IPv6 addresses with a port are in brackets.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    if let Some((host, rest)) = entry.strip_prefix('[').and_then(|entry| entry.split_once(']')) {
        return (host, rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match entry.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

/// `None` if the network is invalid.
fn is_within(ip: IpAddr, network: &str, bits: &str) -> Option<bool> {
    let (network, bits): (IpAddr, u32) = (network.parse().ok()?, bits.parse().ok()?);
    match (ip.to_canonical(), network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let shift = 32_u32.checked_sub(bits)?;
            let differ = u32::from(ip) ^ u32::from(network);
            Some(differ.checked_shr(shift).unwrap_or(0) == 0)
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let shift = 128_u32.checked_sub(bits)?;
            let differ = u128::from(ip) ^ u128::from(network);
            Some(differ.checked_shr(shift).unwrap_or(0) == 0)
        }
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_match_hosts_networks_domains_and_ports() {
        for (host, exceptions, want) in [
            ("localhost", "", true),
            ("127.0.0.9", "", true),
            ("::1", "", true),
            ("10.0.0.1", "", false),
            ("api.example", "*", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.1:6443", true),
            ("10.0.0.1", "10.0.0.1:443", false),
            ("10.0.0.1", "a.example, 10.0.0.0/8", true),
            ("11.0.0.1", "10.0.0.0/8", false),
            ("11.0.0.1", "0.0.0.0/0", true),
            ("11.0.0.1", "10.0.0.0/64,nonsense/8,/", false),
            ("fd00::1", "fd00::/8", true),
            ("fd00::1", "[fd00::1]:6443", true),
            ("fd00::1", "fd00::1", true),
            ("api.example.com", "example.com", true),
            ("example.com", "example.com", true),
            ("API.Example.com.", "EXAMPLE.com", true),
            ("example.com", ".example.com", false),
            ("api.example.com", ".example.com", true),
            ("api.example.com", "*.example.com", true),
            ("badexample.com", "example.com", false),
            ("example.com", "example.com:6443", true),
            ("example.com", "example.com:1", false),
            ("example.com", ",,.", false),
        ] {
            assert_eq!(is_excepted(host, 6443, exceptions), want, "{host} in {exceptions:?}");
        }
    }
}
