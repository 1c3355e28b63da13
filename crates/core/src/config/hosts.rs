//! Host name of a pod, and its `/etc/hosts`.

use std::fmt::Write as _;
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_api::validation::format::{dns_label, dns_subdomain};

use super::error::ConfigError;
use super::facts::NodeFacts;
use crate::pod::Pod;

/// The kernel's limit on a host name, less one for the terminating NUL.
const MAX_HOSTNAME: usize = 63;
const MAX_FQDN: usize = 64;

/// Host name of a pod, and the domain of its `subdomain` if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNames {
    pub hostname: String,
    pub domain: Option<String>,
}

impl HostNames {
    pub fn of(pod: &Pod, facts: &NodeFacts) -> Result<Self, ConfigError> {
        let spec = pod.object.spec.as_ref();
        let set = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
        if let Some(name) = spec.and_then(|spec| spec.hostname_override.as_ref()) {
            check("HostnameOverride", name, "subdomain", &dns_subdomain(name))?;
            return Ok(Self { hostname: fitting(name), domain: None });
        }
        let own = set(spec.and_then(|spec| spec.hostname.as_ref()));
        if let Some(name) = &own {
            check("Hostname", name, "label", &dns_label(name))?;
        }
        let subdomain = set(spec.and_then(|spec| spec.subdomain.as_ref()));
        if let Some(name) = &subdomain {
            check("Subdomain", name, "label", &dns_label(name))?;
        }
        let domain = subdomain.map(|subdomain| {
            format!("{subdomain}.{}.svc.{}", pod.name.namespace, facts.cluster_domain)
        });
        Ok(Self { hostname: fitting(own.as_deref().unwrap_or(&pod.name.name)), domain })
    }

    /// Host name for the kernel; the FQDN if the pod sets `setHostnameAsFQDN`.
    pub fn kernel_name(&self, pod: &Pod) -> Result<String, ConfigError> {
        let spec = pod.object.spec.as_ref();
        let whole = spec.and_then(|spec| spec.set_hostname_as_fqdn).unwrap_or(false);
        match &self.domain {
            Some(domain) if whole => {
                let fqdn = format!("{}.{domain}", self.hostname);
                if fqdn.len() > MAX_FQDN {
                    return Err(ConfigError::FqdnTooLong { fqdn });
                }
                Ok(fqdn)
            }
            Some(_) | None => Ok(self.hostname.clone()),
        }
    }
}

fn check(
    field: &'static str,
    value: &str,
    kind: &'static str,
    problems: &[String],
) -> Result<(), ConfigError> {
    if problems.is_empty() {
        return Ok(());
    }
    Err(ConfigError::HostName { field, value: value.to_owned(), kind, why: problems.join(";") })
}

/// A name must not end in a dash or a dot, so these are removed after truncation.
fn fitting(name: &str) -> String {
    if name.len() <= MAX_HOSTNAME {
        return name.to_owned();
    }
    let (cut, _) = name.split_at(name.floor_char_boundary(MAX_HOSTNAME));
    cut.trim_end_matches(['-', '.']).to_owned()
}

/// Content of a pod's `/etc/hosts`. On the host network it is the node's file with a header.
pub fn etc_hosts(pod: &Pod, pod_ips: &[IpAddr], names: &HostNames, node_file: &[u8]) -> Vec<u8> {
    let spec = pod.object.spec.as_ref();
    let aliases = spec.and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    let mut content = if pod.host_network {
        let mut content = b"# Kubernetes-managed hosts file (host network).\n".to_vec();
        content.extend_from_slice(node_file);
        content
    } else {
        managed(pod_ips, names).into_bytes()
    };
    content.extend_from_slice(entries(aliases).as_bytes());
    content
}

fn managed(pod_ips: &[IpAddr], names: &HostNames) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    let hostname = &names.hostname;
    for ip in pod_ips {
        // Writing to a string cannot fail.
        let _ = match &names.domain {
            Some(domain) => writeln!(text, "{ip}\t{hostname}.{domain}\t{hostname}"),
            None => writeln!(text, "{ip}\t{hostname}"),
        };
    }
    text
}

fn entries(aliases: &[v1::HostAlias]) -> String {
    let mut text = String::new();
    if !aliases.is_empty() {
        text.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default();
        let _ = writeln!(text, "{}\t{}", alias.ip, names.join("\t"));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sample;
    use super::*;

    fn names(name: &str, spec: Value) -> Result<HostNames, ConfigError> {
        HostNames::of(&sample::named_pod(name, spec), &sample::facts())
    }

    #[test]
    fn host_name_comes_from_the_first_field_that_is_set() {
        let domain = Some("sub.default.svc.cluster.local".to_owned());
        let long = "a".repeat(62);
        for (case, name, spec, hostname, want_domain) in [
            ("its own", "web", json!({}), "web".to_owned(), None),
            ("the hostname", "web", json!({"hostname": "h"}), "h".into(), None),
            ("with subdomain", "web", json!({"subdomain": "sub"}), "web".into(), domain.clone()),
            ("both", "web", json!({"hostname": "h", "subdomain": "sub"}), "h".into(), domain),
            (
                "the override, without a domain",
                "web",
                json!({"hostnameOverride": "a.b.c", "hostname": "h", "subdomain": "sub"}),
                "a.b.c".into(),
                None,
            ),
            ("cut to 63", &"b".repeat(70), json!({}), "b".repeat(63), None),
            ("cut, and no dash at the end", &format!("{long}-{long}"), json!({}), long, None),
            (
                "empty means unset",
                "web",
                json!({"hostname": "", "subdomain": ""}),
                "web".into(),
                None,
            ),
        ] {
            let got = names(name, spec).unwrap();
            assert_eq!(got, HostNames { hostname, domain: want_domain }, "{case}");
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for (spec, want) in [
            (json!({"hostname": "a.b"}), "pod Hostname \"a.b\" is not a valid DNS label: "),
            (json!({"subdomain": "A"}), "pod Subdomain \"A\" is not a valid DNS label: "),
            (
                json!({"hostnameOverride": "a..b"}),
                "pod HostnameOverride \"a..b\" is not a valid DNS subdomain: ",
            ),
        ] {
            let got = names("web", spec).unwrap_err().to_string();
            assert!(got.starts_with(want) && got.len() > want.len(), "{got}");
        }
    }

    #[test]
    fn kernel_name_is_the_fqdn_only_if_requested_and_short_enough() {
        let fqdn = |subdomain: &str| {
            let spec = json!({"subdomain": subdomain, "setHostnameAsFQDN": true});
            let pod = sample::pod(spec);
            HostNames::of(&pod, &sample::facts()).unwrap().kernel_name(&pod)
        };
        assert_eq!(fqdn("sub").unwrap(), "web.sub.default.svc.cluster.local");
        assert_eq!(fqdn("").unwrap(), "web");
        // ".default.svc.cluster.local" has 26 characters, "web." 4.
        assert_eq!(fqdn(&"s".repeat(34)).unwrap().len(), 64);
        let long = format!("web.{}.default.svc.cluster.local", "s".repeat(35));
        assert_eq!(
            fqdn(&"s".repeat(35)).unwrap_err().to_string(),
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {long} is too \
                 long (64 characters is the max, 65 characters requested)"
            )
        );
        let unasked = sample::pod(json!({"subdomain": "sub"}));
        let names = HostNames::of(&unasked, &sample::facts()).unwrap();
        assert_eq!(names.kernel_name(&unasked).unwrap(), "web");
    }

    #[test]
    fn etc_hosts_lists_all_addresses_of_the_pod() {
        const FIXED: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n\
            ::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n\
            fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";
        let aliases = json!([{"ip": "1.2.3.4", "hostnames": ["foo", "bar"]}, {"ip": "::2"}]);
        let added = "\n# Entries added by HostAliases.\n1.2.3.4\tfoo\tbar\n::2\t\n";
        let domain = "sub.default.svc.cluster.local";
        for (case, spec, want) in [
            ("short", json!({}), format!("{FIXED}10.1.0.2\tweb\nfd00::2\tweb\n")),
            (
                "with a domain",
                json!({"subdomain": "sub"}),
                format!("{FIXED}10.1.0.2\tweb.{domain}\tweb\nfd00::2\tweb.{domain}\tweb\n"),
            ),
            (
                "aliases",
                json!({"hostAliases": aliases}),
                format!("{FIXED}10.1.0.2\tweb\nfd00::2\tweb\n{added}"),
            ),
            (
                "the node's",
                json!({"hostNetwork": true, "hostAliases": aliases}),
                format!("# Kubernetes-managed hosts file (host network).\nnode file\n{added}"),
            ),
        ] {
            let pod = sample::pod(spec);
            let names = HostNames::of(&pod, &sample::facts()).unwrap();
            let ips = ["10.1.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
            let got = etc_hosts(&pod, &ips, &names, b"node file\n");
            assert_eq!(String::from_utf8(got).unwrap(), want, "{case}");
        }
    }
}
