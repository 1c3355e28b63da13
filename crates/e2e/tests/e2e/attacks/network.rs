//! Network: a neighbour that sends packets for pods to the machine, and a pod that sends packets
//! for the machine's loopback addresses to the bridge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use podwright_e2e::bed::Bed;
use podwright_e2e::http::connect_tls;
use podwright_e2e::netns::{NODE_ADDRESS, NetNs};
use podwright_e2e::wait;
use serde_json::json;

use super::{Attacked, probed};
use crate::privilege::needs_root;

const LIMIT: Duration = Duration::from_secs(180);
/// A connection that is possible takes milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
const HOST_PORT: u16 = 18080;
const LOCAL_SERVICE: u16 = 7777;

/// Whether a connection can be opened from a namespace.
async fn reaches(from: &NetNs, address: impl Into<SocketAddr>) -> bool {
    let connecting = tokio::time::timeout(CONNECT_LIMIT, from.connect(address.into())).await;
    matches!(connecting, Ok(Ok(_)))
}

/// Makes a pod send packets for 127.0.0.1 to the bridge, as a program with raw packets can, and
/// take the answers. The addresses of its own loopback are given up for that.
const ASK_THE_BRIDGE: &str = "\
    ip address del 127.0.0.1/8 dev lo && \
    ip route add 127.0.0.1/32 via \"$0\" dev eth0 && \
    echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet && \
    echo 1 >/proc/sys/net/ipv4/conf/eth0/route_localnet";

/// The machine forwards IPv6, as with other programs on it, and a pod has given itself an address.
const FORWARD: &str = "\
    echo 1 >/proc/sys/net/ipv6/conf/all/forwarding && \
    ip address add fd99::10/64 dev eth0 nodad && \
    ip address add fd50::1/64 dev \"$0\" nodad";
const NEIGHBOUR_IPV6: &str = "\
    ip address add fd99::1/64 dev uplink nodad && \
    ip route add fd50::/64 via fd99::10";
const POD_IPV6: &str = "\
    echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6 && \
    ip address add fd50::2/64 dev eth0 nodad && \
    ip route add default via fd50::1";

fn ipv6(text: &str) -> SocketAddr {
    SocketAddr::from((text.parse::<Ipv6Addr>().unwrap(), LOCAL_SERVICE))
}

/// Runs a script in a namespace.
fn prepare(within: &NetNs, script: &str, argument: &str) {
    let status = within.command("sh").args(["-c", script, argument]).status();
    assert!(status.unwrap().success(), "{script}");
}

#[tokio::test]
async fn neighbour_reaches_host_ports_only_and_pods_do_not_reach_loopback() {
    needs_root!();
    let bed = Bed::builder().start().await.unwrap();
    let attacked = Attacked::start(&bed, None).await;
    let mut published = probed("published", "default");
    published["spec"]["containers"][0]["ports"] =
        json!([{"containerPort": 8080, "hostPort": HOST_PORT}]);
    attacked.kubectl.run_with(&["apply", "-f", "-"], &published.to_string()).await.unwrap();
    attacked.until_ready("published").await;
    let victim: IpAddr = attacked.jsonpath("victim", "{.status.podIP}").await.parse().unwrap();
    let attacker = attacked.attacker().await;
    let api = attacker.api;
    let neighbour = bed.neighbour().unwrap();
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, LOCAL_SERVICE));
    let _local_service = bed.netns().listen(local).await.unwrap();
    let bridge = format!("pw-{}", attacked.node.instance());
    let setting = format!("/proc/sys/net/ipv4/conf/{bridge}/route_localnet");
    let value = bed.exec(&["cat", &setting]).await.unwrap();
    assert_eq!(value.trim(), "1", "portmap no longer sets it, and this case shows nothing");
    let gateway = api.ip().to_string();
    prepare(&attacker.netns, ASK_THE_BRIDGE, &gateway);
    prepare(bed.netns(), FORWARD, &bridge);
    prepare(&neighbour, NEIGHBOUR_IPV6, "");
    prepare(&attacker.netns, POD_IPV6, "");
    let (pod_ipv6, neighbour_ipv6) = (ipv6("fd50::2"), ipv6("fd99::1"));
    let _of_pod = attacker.netns.listen(pod_ipv6).await.unwrap();
    let _of_neighbour = neighbour.listen(neighbour_ipv6).await.unwrap();

    let published = (IpAddr::V4(NODE_ADDRESS), HOST_PORT);
    let pod = (victim, 8080_u16);
    let check = async |isolated: bool| {
        assert!(reaches(bed.netns(), local).await, "the machine reaches its own service");
        assert!(reaches(bed.netns(), pod).await, "the machine reaches a pod");
        assert!(reaches(bed.netns(), api).await, "the machine reaches the API for pods");
        assert!(reaches(bed.netns(), published).await, "the machine reaches a host port");
        assert!(reaches(&attacker.netns, pod).await, "a pod reaches a pod");
        assert!(reaches(&attacker.netns, api).await, "a pod reaches the API");
        assert!(reaches(&attacker.netns, published).await, "a pod reaches a host port");
        assert!(reaches(&neighbour, published).await, "a neighbour reaches a host port");
        assert_eq!(reaches(&neighbour, pod).await, !isolated, "a neighbour and a pod");
        assert_eq!(reaches(&neighbour, api).await, !isolated, "a neighbour and the API for pods");
        assert_eq!(reaches(&attacker.netns, local).await, !isolated, "a pod and loopback");
        assert!(reaches(bed.netns(), pod_ipv6).await, "the machine reaches a pod over IPv6");
        assert_eq!(reaches(&neighbour, pod_ipv6).await, !isolated, "a neighbour and a pod, IPv6");
        assert_eq!(reaches(&attacker.netns, neighbour_ipv6).await, !isolated, "out over IPv6");
    };
    check(true).await;

    // Without the chain all of this is possible, and the next start adds it again.
    let chain = format!("PODWRIGHT-{}", attacked.node.instance());
    bed.exec(&["iptables", "-t", "mangle", "-F", &chain]).await.unwrap();
    bed.exec(&["ip6tables", "-F", &chain]).await.unwrap();
    check(false).await;
    let greeted = connect_tls(&neighbour, api, &attacker.tls(), "h2").await;
    assert!(greeted.is_err(), "the API refuses a neighbour also without the chain");
    bed.exec(&["kill", "-9", &attacked.node.pid("agent")]).await.unwrap();
    let started = async || Ok(attacked.node.run(&["up"]).await.is_ok());
    wait::until_true("the node to start again", LIMIT, started).await.unwrap();
    check(true).await;

    let rules = async |program: &str| bed.exec(&[program]).await.unwrap();
    for program in ["iptables-save", "ip6tables-save"] {
        assert!(rules(program).await.contains(&chain), "{program}");
    }
    bed.exec(&["kill", "-9", &attacked.node.pid("agent")]).await.unwrap();
    attacked.end().await;
    for program in ["iptables-save", "ip6tables-save"] {
        assert!(!rules(program).await.contains("PODWRIGHT"), "{program}");
    }
    bed.close().unwrap();
}
