//! DNS configuration of a pod: name servers, search domains and options.
//!
//! The base is the cluster's or the node's configuration, depending on `dnsPolicy`; `dnsConfig`
//! adds to it. Entries beyond the resolver's limits are dropped and reported as events of the pod.

use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_proto::cri;

use super::error::ConfigError;
use super::facts::NodeFacts;
use super::sandbox::{Warning, WarningTarget};
use crate::pod::Pod;

const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
/// Longer names abort some resolvers.
const MAX_SEARCH_LENGTH: usize = 253;
const MAX_SEARCH_LINE: usize = 2048;
const NO_SERVER: &str =
    "Encountered error while parsing resolv conf file. Error: nameserver list is empty ";

/// Resolver configuration of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostDns {
    /// `resolvConf: ""`: pods do not use the node's configuration.
    #[default]
    Unused,
    Read(ResolvConf),
    /// The file cannot be read; the text is the error.
    Unreadable(String),
}

/// Content of a `resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

impl HostDns {
    /// Parses a `resolv.conf`. Name servers accumulate, the last `search` wins, and so does the
    /// last of each option.
    pub fn parse(text: &str) -> Self {
        let mut conf = ResolvConf::default();
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        for line in lines {
            let mut fields = line.split_whitespace();
            match fields.next() {
                Some("nameserver") => match fields.next() {
                    // A scope names an interface of the host; a pod has no such interface.
                    Some(server) if server.contains('%') => {}
                    Some(server) => conf.servers.push(server.to_owned()),
                    None => return Self::Unreadable(NO_SERVER.to_owned()),
                },
                Some("search") => {
                    let undotted = |name: &str| name.strip_suffix('.').unwrap_or(name).to_owned();
                    conf.searches = fields.filter(|name| *name != ".").map(undotted).collect();
                }
                Some("options") => {
                    fields.for_each(|option| set_option(&mut conf.options, option.to_owned()));
                }
                _ => {}
            }
        }
        Self::Read(conf)
    }
}

/// Base of a pod's DNS configuration.
enum Base {
    Nothing,
    Cluster,
    Host,
}

/// DNS configuration of a pod, and warnings about dropped entries.
pub fn for_pod(
    pod: &Pod,
    facts: &NodeFacts,
    of_host: &HostDns,
) -> Result<(cri::DnsConfig, Vec<Warning>), ConfigError> {
    let mut warnings = Vec::new();
    let mut conf = match base(pod) {
        Base::Nothing => ResolvConf::default(),
        Base::Cluster if !facts.cluster_dns.is_empty() => cluster(pod, facts, of_host)?,
        Base::Cluster if !facts.standalone => {
            warnings.extend(no_cluster_dns(pod));
            host(facts, of_host)?
        }
        Base::Cluster | Base::Host => host(facts, of_host)?,
    };
    let spec = pod.object.spec.as_ref();
    if let Some(own) = spec.and_then(|spec| spec.dns_config.as_ref()) {
        append(&mut conf, own);
    }
    warnings.extend(cut_servers(&mut conf.servers));
    warnings.extend(cut_searches(&mut conf.searches));
    let ResolvConf { servers, searches, options } = conf;
    Ok((cri::DnsConfig { servers, searches, options }, warnings))
}

fn base(pod: &Pod) -> Base {
    let policy = pod.object.spec.as_ref().and_then(|spec| spec.dns_policy.as_deref());
    match policy {
        Some("None") => Base::Nothing,
        Some("Default") => Base::Host,
        Some("ClusterFirst") if pod.host_network => Base::Host,
        _ => Base::Cluster,
    }
}

/// Only the cluster's servers, which forward other queries.
fn cluster(pod: &Pod, facts: &NodeFacts, of_host: &HostDns) -> Result<ResolvConf, ConfigError> {
    let host = readable(of_host)?.searches;
    let searches = match facts.cluster_domain.as_str() {
        "" => host,
        domain => {
            let mut searches = vec![
                format!("{}.svc.{domain}", pod.name.namespace),
                format!("svc.{domain}"),
                domain.to_owned(),
            ];
            searches.extend(host);
            without_duplicates(searches)
        }
    };
    Ok(ResolvConf {
        servers: facts.cluster_dns.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec!["ndots:5".to_owned()],
    })
}

fn host(facts: &NodeFacts, of_host: &HostDns) -> Result<ResolvConf, ConfigError> {
    match of_host {
        HostDns::Read(_) | HostDns::Unreadable(_) => readable(of_host),
        // Loopback has no server: with an empty list the runtime would use the node's servers.
        HostDns::Unused => {
            let loopback = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned();
            let mut servers: Vec<_> = facts.host_ips.iter().map(loopback).collect();
            if servers.is_empty() {
                servers.push("127.0.0.1".to_owned());
            }
            Ok(ResolvConf { servers, searches: vec![".".to_owned()], options: Vec::new() })
        }
    }
}

fn readable(host: &HostDns) -> Result<ResolvConf, ConfigError> {
    match host {
        HostDns::Unused => Ok(ResolvConf::default()),
        HostDns::Read(conf) => Ok(conf.clone()),
        HostDns::Unreadable(why) => Err(ConfigError::HostDns { why: why.clone() }),
    }
}

fn append(conf: &mut ResolvConf, own: &v1::PodDNSConfig) {
    conf.servers.extend(own.nameservers.iter().flatten().cloned());
    conf.servers = without_duplicates(std::mem::take(&mut conf.servers));
    conf.searches.extend(own.searches.iter().flatten().cloned());
    conf.searches = without_duplicates(std::mem::take(&mut conf.searches));
    for option in own.options.iter().flatten() {
        let name = option.name.as_deref().unwrap_or_default();
        let text = match option.value.as_deref().unwrap_or_default() {
            "" => name.to_owned(),
            value => format!("{name}:{value}"),
        };
        set_option(&mut conf.options, text);
    }
}

/// Replaces the option of the same name, or adds it.
fn set_option(options: &mut Vec<String>, option: String) {
    fn name(option: &str) -> &str {
        option.split_once(':').map_or(option, |(name, _)| name)
    }
    match options.iter_mut().find(|known| name(known) == name(&option)) {
        Some(known) => *known = option,
        None => options.push(option),
    }
}

fn without_duplicates(all: Vec<String>) -> Vec<String> {
    let mut kept: Vec<String> = Vec::with_capacity(all.len());
    for item in all {
        if !kept.contains(&item) {
            kept.push(item);
        }
    }
    kept
}

fn no_cluster_dns(pod: &Pod) -> [Warning; 2] {
    const TEXT: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                        \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let warning = |about, message: String| Warning { about, reason: "MissingClusterDNS", message };
    [
        warning(WarningTarget::Node, TEXT.to_owned()),
        warning(WarningTarget::Pod, format!("pod: {:?}. {TEXT}", pod.described())),
    ]
}

fn cut_servers(servers: &mut Vec<String>) -> Option<Warning> {
    (servers.len() > MAX_SERVERS).then(|| {
        servers.truncate(MAX_SERVERS);
        forming(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            servers.join(" ")
        ))
    })
}

fn cut_searches(searches: &mut Vec<String>) -> Option<Warning> {
    let before = searches.len();
    searches.truncate(MAX_SEARCHES);
    searches.retain(|search| search.len() <= MAX_SEARCH_LENGTH);
    while line_length(searches) > MAX_SEARCH_LINE {
        searches.pop();
    }
    (searches.len() < before).then(|| {
        forming(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: {}",
            searches.join(" ")
        ))
    })
}

/// Length of the search line: the names with one space between two.
fn line_length(searches: &[String]) -> usize {
    searches.iter().map(|search| search.len() + 1).sum::<usize>().saturating_sub(1)
}

fn forming(message: String) -> Warning {
    Warning { about: WarningTarget::Pod, reason: "DNSConfigForming", message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::sample;
    use super::*;

    fn words(all: &[&str]) -> Vec<String> {
        all.iter().map(|word| (*word).to_owned()).collect()
    }

    fn conf(servers: &[&str], searches: &[&str], options: &[&str]) -> ResolvConf {
        ResolvConf { servers: words(servers), searches: words(searches), options: words(options) }
    }

    #[test]
    fn resolv_conf_is_parsed_as_resolvers_do() {
        for (text, want) in [
            ("", conf(&[], &[], &[])),
            ("nameserver 1.2.3.4\n nameserver\t::1 # two", conf(&["1.2.3.4", "::1"], &[], &[])),
            ("nameserver fe80::1%3\nnameserver fd00::1", conf(&["fd00::1"], &[], &[])),
            ("search a b\nsearch c. . d\n", conf(&[], &["c", "d"], &[])),
            ("search a\nsearch", conf(&[], &[], &[])),
            (
                "options ndots:1 rotate\noptions ndots:2 attempts:3",
                conf(&[], &[], &["ndots:2", "rotate", "attempts:3"]),
            ),
            (
                "# nameserver 1.1.1.1\n; x\ndomain y\r\nnameserver 2.2.2.2\r\n",
                conf(&["2.2.2.2"], &[], &[]),
            ),
        ] {
            assert_eq!(HostDns::parse(text), HostDns::Read(want), "{text:?}");
        }
        assert_eq!(HostDns::parse("nameserver"), HostDns::Unreadable(NO_SERVER.to_owned()));
    }

    #[test]
    fn dns_policy_selects_the_base_and_dns_config_adds_to_it() {
        let host = conf(&["9.9.9.9"], &["corp", "svc.cluster.local"], &["rotate"]);
        let cluster = ["default.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp"];
        let from_cluster = conf(&["10.96.0.10"], &cluster, &["ndots:5"]);
        let own = json!({"nameservers": ["1.1.1.1", "9.9.9.9"], "searches": ["x", "corp"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}, {"name": "rotate"}]});
        for (case, spec, want) in [
            ("None", json!({"dnsPolicy": "None"}), conf(&[], &[], &[])),
            (
                "None with a config",
                json!({"dnsPolicy": "None", "dnsConfig": own}),
                conf(&["1.1.1.1", "9.9.9.9"], &["x", "corp"], &["ndots:2", "edns0", "rotate"]),
            ),
            ("ClusterFirst", json!({"dnsPolicy": "ClusterFirst"}), from_cluster.clone()),
            (
                "ClusterFirst on the host's network",
                json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}),
                host.clone(),
            ),
            (
                "ClusterFirstWithHostNet",
                json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}),
                from_cluster.clone(),
            ),
            (
                "Default with a config",
                json!({"dnsPolicy": "Default", "dnsConfig": own}),
                conf(
                    &["9.9.9.9", "1.1.1.1"],
                    &["corp", "svc.cluster.local", "x"],
                    &["rotate", "ndots:2", "edns0"],
                ),
            ),
            ("an unknown policy", json!({"dnsPolicy": "Odd", "hostNetwork": true}), from_cluster),
        ] {
            let host = HostDns::Read(host.clone());
            let (got, warnings) = for_pod(&sample::pod(spec), &sample::facts(), &host).unwrap();
            let got =
                ResolvConf { servers: got.servers, searches: got.searches, options: got.options };
            assert_eq!((got, warnings), (want, vec![]), "{case}");
        }
    }

    #[test]
    fn without_a_resolv_conf_a_pod_uses_loopback() {
        let pod = sample::pod(json!({"dnsPolicy": "Default"}));
        for (ips, want) in [
            (vec![], vec!["127.0.0.1"]),
            (vec!["10.0.0.1"], vec!["127.0.0.1"]),
            (vec!["10.0.0.1", "fd00::1"], vec!["127.0.0.1", "::1"]),
        ] {
            let mut facts = sample::facts();
            facts.host_ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
            let (got, _) = for_pod(&pod, &facts, &HostDns::Unused).unwrap();
            assert_eq!((got.servers, got.searches), (words(&want), words(&["."])));
        }
    }

    #[test]
    fn without_cluster_dns_the_hosts_is_used_and_events_report_it() {
        let mut facts = sample::facts();
        facts.cluster_dns.clear();
        let (got, warnings) = for_pod(&sample::pod(json!({})), &facts, &HostDns::Unused).unwrap();
        assert_eq!(got.servers, ["127.0.0.1"]);
        let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                    \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        let reported: Vec<_> =
            warnings.iter().map(|w| (w.about, w.reason, w.message.as_str())).collect();
        let pod_text = format!("pod: \"web_default(u1)\". {text}");
        assert_eq!(
            reported,
            [
                (WarningTarget::Node, "MissingClusterDNS", text),
                (WarningTarget::Pod, "MissingClusterDNS", pod_text.as_str())
            ]
        );
    }

    #[test]
    fn standalone_node_uses_the_hosts_without_events() {
        let facts = NodeFacts { cluster_dns: Vec::new(), standalone: true, ..sample::facts() };
        let (got, warnings) = for_pod(&sample::pod(json!({})), &facts, &HostDns::Unused).unwrap();
        assert_eq!((got.servers, warnings), (words(&["127.0.0.1"]), Vec::new()));
    }

    #[test]
    fn without_a_cluster_domain_only_the_hosts_searches_remain() {
        let mut facts = sample::facts();
        facts.cluster_domain.clear();
        let host = HostDns::parse("search corp corp");
        let (got, _) = for_pod(&sample::pod(json!({})), &facts, &host).unwrap();
        assert_eq!(got.searches, ["corp", "corp"]);
    }

    #[test]
    fn entries_beyond_resolver_limits_are_dropped_and_reported() {
        let names = |count: usize| (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>();
        let of_length = |length: usize| "x".repeat(length);
        let wide: Vec<_> = (0..9).map(|n| format!("{n}{}", of_length(249))).collect();
        for (case, searches, want) in [
            ("as many as fit", names(32), names(32)),
            ("one too many", names(33), names(32)),
            (
                "one too long",
                vec![of_length(254), "a".into(), of_length(253)],
                vec!["a".into(), of_length(253)],
            ),
            // Eight names of 250 and the spaces between them are 2007, nine are 2258.
            ("together too long", wide.clone(), wide[..8].to_vec()),
        ] {
            let spec = json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}});
            let (got, warnings) =
                for_pod(&sample::pod(spec), &sample::facts(), &HostDns::Unused).unwrap();
            assert_eq!(got.searches, want, "{case}");
            let reported: Vec<_> = warnings.iter().map(|w| (w.reason, w.message.clone())).collect();
            let text = "Search Line limits were exceeded, some search paths have been omitted, the \
                        applied search line is: ";
            let expected = ("DNSConfigForming", format!("{text}{}", want.join(" ")));
            assert_eq!(reported, if searches == want { vec![] } else { vec![expected] }, "{case}");
        }
        let servers = ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"];
        let spec = json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": servers}});
        let (got, warnings) =
            for_pod(&sample::pod(spec), &sample::facts(), &HostDns::Unused).unwrap();
        assert_eq!(got.servers, servers[..3]);
        assert_eq!(
            warnings[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: 1.1.1.1 1.1.1.2 1.1.1.3"
        );
    }

    #[test]
    fn unreadable_host_file_fails_only_pods_that_use_it() {
        let host = HostDns::Unreadable("gone".to_owned());
        for (policy, fails) in [("None", false), ("Default", true), ("ClusterFirst", true)] {
            let got = for_pod(&sample::pod(json!({"dnsPolicy": policy})), &sample::facts(), &host);
            assert_eq!(got.is_err(), fails, "{policy}");
        }
    }
}
