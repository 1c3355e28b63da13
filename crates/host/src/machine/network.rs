//! Node addresses: default routes and interfaces.
//!
//! Without a configured address, the address of the interface of the default route is the one that
//! the rest of the cluster most likely reaches.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nix::net::if_::InterfaceFlags;

use super::{MachineError, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    pub interface: String,
    /// Unspecified (`0.0.0.0`) if the link has no other end to name.
    pub gateway: IpAddr,
    pub metric: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub address: IpAddr,
    pub up: bool,
    pub loopback: bool,
    pub point_to_point: bool,
}

/// Addresses of all interfaces of the network namespace that this process is in.
pub fn interface_addresses() -> Result<Vec<InterfaceAddress>> {
    let found = nix::ifaddrs::getifaddrs()
        .map_err(|errno| MachineError::Interfaces { source: io::Error::from(errno) })?;
    let address_of = |found: nix::ifaddrs::InterfaceAddress| {
        let storage = found.address?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        Some(InterfaceAddress {
            interface: found.interface_name,
            address: v4.or_else(v6)?,
            up: found.flags.contains(InterfaceFlags::IFF_UP),
            loopback: found.flags.contains(InterfaceFlags::IFF_LOOPBACK),
            point_to_point: found.flags.contains(InterfaceFlags::IFF_POINTOPOINT),
        })
    };
    Ok(found.filter_map(address_of).collect())
}

/// At most one address of each family, IPv4 first.
pub fn node_addresses(routes: &[DefaultRoute], addresses: &[InterfaceAddress]) -> Vec<IpAddr> {
    let usable = |address: &&InterfaceAddress| address.up && is_global_unicast(address.address);
    let of_family = |v4: bool| {
        let fits = move |address: &&InterfaceAddress| address.address.is_ipv4() == v4;
        let mut family_routes = routes.iter().filter(|route| route.gateway.is_ipv4() == v4);
        family_routes.find_map(|route| {
            let mut here = addresses.iter().filter(|address| address.interface == route.interface);
            // Where links have only link-local addresses (RFC 5549), the machine's own address is
            // on the loopback interface.
            let mut own = addresses.iter().filter(|address| address.loopback);
            here.find(|address| usable(address) && fits(address))
                .or_else(|| own.find(|address| usable(address) && fits(address)))
        })
    };
    let chosen: Vec<_> = [true, false].into_iter().filter_map(of_family).collect();
    if !chosen.is_empty() {
        return chosen.into_iter().map(|chosen| chosen.address).collect();
    }
    // No default route: any usable address that is neither loopback nor point-to-point.
    let outward = |address: &&InterfaceAddress| !address.loopback && !address.point_to_point;
    let mut candidates = addresses.iter().filter(|a| usable(a) && outward(a));
    candidates.next().map(|chosen| chosen.address).into_iter().collect()
}

fn is_global_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast())
        }
        IpAddr::V6(v6) => {
            !(v6.is_unspecified()
                || v6.is_loopback()
                || v6.is_unicast_link_local()
                || v6.is_multicast())
        }
    }
}

const ROUTE_UP: u32 = 0x1;
const ROUTE_REJECT: u32 = 0x200;

/// From the texts of `/proc/net/route` and `/proc/net/ipv6_route`; the best of each family first.
pub fn default_routes(v4: &str, v6: &str) -> Vec<DefaultRoute> {
    let mut routes: Vec<_> = v4.lines().skip(1).filter_map(parse_v4).collect();
    routes.sort_by_key(|route| route.metric);
    let mut routes_v6: Vec<_> = v6.lines().filter_map(parse_v6).collect();
    routes_v6.sort_by_key(|route| route.metric);
    routes.extend(routes_v6);
    routes
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask …`
fn parse_v4(line: &str) -> Option<DefaultRoute> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let [interface, destination, gateway, flags, _, _, metric, mask, ..] = fields[..] else {
        return None;
    };
    let hex = |field| u32::from_str_radix(field, 16).ok();
    if hex(destination)? != 0 || hex(mask)? != 0 || hex(flags)? & ROUTE_UP == 0 {
        return None;
    }
    // The kernel prints the four bytes as one number of its own byte order.
    let gateway = Ipv4Addr::from(hex(gateway)?.to_ne_bytes());
    Some(DefaultRoute {
        interface: interface.to_owned(),
        gateway: gateway.into(),
        metric: metric.parse().ok()?,
    })
}

/// `destination length source length next-hop metric refs use flags interface`
fn parse_v6(line: &str) -> Option<DefaultRoute> {
    let fields: Vec<_> = line.split_ascii_whitespace().collect();
    let [destination, length, _, _, next_hop, metric, _, _, flags, interface] = fields[..] else {
        return None;
    };
    let address = |field| u128::from_str_radix(field, 16).ok();
    let hex = |field| u32::from_str_radix(field, 16).ok();
    let flags = hex(flags)?;
    let usable = flags & ROUTE_UP != 0 && flags & ROUTE_REJECT == 0;
    if address(destination)? != 0 || hex(length)? != 0 || !usable {
        return None;
    }
    Some(DefaultRoute {
        interface: interface.to_owned(),
        gateway: Ipv6Addr::from(address(next_hop)?).into(),
        metric: hex(metric)?,
    })
}
