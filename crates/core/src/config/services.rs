//! Service environment variables in the format of Docker links.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1;

/// The API server's service, whose variables every pod gets.
const API: (&str, &str) = ("default", "kubernetes");

/// Fields of a Service with a cluster address that variables need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    pub namespace: String,
    pub name: String,
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    pub name: String,
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

impl ServiceView {
    /// `None` for a service without a cluster address or without ports.
    pub fn of(service: &v1::Service) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let cluster_ip = spec.cluster_ip.as_deref().filter(|ip| !matches!(*ip, "" | "None"))?;
        let port = |port: &v1::ServicePort| ServicePort {
            name: port.name.clone().unwrap_or_default(),
            port: port.port,
            protocol: port.protocol.clone().filter(|p| !p.is_empty()).unwrap_or("TCP".to_owned()),
        };
        let ports: Vec<_> = spec.ports.iter().flatten().map(port).collect();
        (!ports.is_empty()).then(|| Self {
            namespace: service.metadata.namespace.clone().unwrap_or_default(),
            name: service.metadata.name.clone().unwrap_or_default(),
            cluster_ip: cluster_ip.to_owned(),
            ports,
        })
    }
}

/// Variables for a pod of this namespace. With `links` it gets the services of its namespace,
/// without only the API server's; a service `kubernetes` in its namespace overrides the one in
/// `default`.
pub fn variables(
    services: &[ServiceView],
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut visible = BTreeMap::new();
    for service in services {
        let is_api = (service.namespace.as_str(), service.name.as_str()) == API;
        if is_api {
            visible.entry(service.name.as_str()).or_insert(service);
        } else if links && service.namespace == namespace {
            visible.insert(service.name.as_str(), service);
        }
    }
    visible.into_values().flat_map(of_service).collect()
}

fn of_service(service: &ServiceView) -> Vec<(String, String)> {
    let prefix = upper(&service.name);
    let ip = &service.cluster_ip;
    let mut all = vec![(format!("{prefix}_SERVICE_HOST"), ip.clone())];
    for (at, ServicePort { name, port, protocol }) in service.ports.iter().enumerate() {
        let url = format!("{}://{}:{port}", protocol.to_lowercase(), in_url(ip));
        if at == 0 {
            all.push((format!("{prefix}_SERVICE_PORT"), port.to_string()));
            all.push((format!("{prefix}_PORT"), url.clone()));
        }
        if !name.is_empty() {
            all.push((format!("{prefix}_SERVICE_PORT_{}", upper(name)), port.to_string()));
        }
        let link = format!("{prefix}_PORT_{port}_{}", protocol.to_uppercase());
        all.push((format!("{link}_PROTO"), protocol.to_lowercase()));
        all.push((format!("{link}_PORT"), port.to_string()));
        all.push((format!("{link}_ADDR"), ip.clone()));
        all.push((link, url));
    }
    all
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

/// An IPv6 address needs brackets before a port.
fn in_url(ip: &str) -> String {
    match ip.parse() {
        Ok(IpAddr::V6(_)) => format!("[{ip}]"),
        Ok(IpAddr::V4(_)) | Err(_) => ip.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, i32, &str)]) -> ServiceView {
        let ports: Vec<_> = ports
            .iter()
            .map(|(name, port, protocol)| json!({"name": name, "port": port, "protocol": protocol}))
            .collect();
        let object = json!({"metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": ports}});
        ServiceView::of(&serde_json::from_value(object).unwrap()).unwrap()
    }

    #[test]
    fn service_variables_have_all_docker_link_formats() {
        let ports = [("http-web", 80, "TCP"), ("", 53, "UDP")];
        let got = variables(&[service("ns", "my-app", "10.0.0.5", &ports)], "ns", true);
        let want = [
            ("MY_APP_PORT", "tcp://10.0.0.5:80"),
            ("MY_APP_PORT_53_UDP", "udp://10.0.0.5:53"),
            ("MY_APP_PORT_53_UDP_ADDR", "10.0.0.5"),
            ("MY_APP_PORT_53_UDP_PORT", "53"),
            ("MY_APP_PORT_53_UDP_PROTO", "udp"),
            ("MY_APP_PORT_80_TCP", "tcp://10.0.0.5:80"),
            ("MY_APP_PORT_80_TCP_ADDR", "10.0.0.5"),
            ("MY_APP_PORT_80_TCP_PORT", "80"),
            ("MY_APP_PORT_80_TCP_PROTO", "tcp"),
            ("MY_APP_SERVICE_HOST", "10.0.0.5"),
            ("MY_APP_SERVICE_PORT", "80"),
            ("MY_APP_SERVICE_PORT_HTTP_WEB", "80"),
        ];
        let got: Vec<_> = got.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn ipv6_address_is_in_brackets() {
        let got = variables(&[service("ns", "a", "fd00::5", &[("", 80, "")])], "ns", true);
        assert_eq!(got["A_PORT"], "tcp://[fd00::5]:80");
        assert_eq!(got["A_SERVICE_HOST"], "fd00::5");
    }

    #[test]
    fn pod_gets_the_api_service_and_with_links_those_of_its_namespace() {
        let port = [("", 1, "TCP")];
        let api = service("default", "kubernetes", "10.96.0.1", &port);
        let own_api = service("ns", "kubernetes", "10.96.0.2", &port);
        let near = service("ns", "near", "10.0.0.1", &port);
        let far = service("other", "far", "10.0.0.2", &port);
        let hosts = |services: &[&ServiceView], links| {
            let services: Vec<_> = services.iter().map(|s| (*s).clone()).collect();
            let all = variables(&services, "ns", links);
            let hosts = all.into_iter().filter(|(name, _)| name.ends_with("_SERVICE_HOST"));
            hosts.map(|(_, ip)| ip).collect::<Vec<_>>()
        };
        assert_eq!(hosts(&[&api, &near, &far], true), ["10.96.0.1", "10.0.0.1"]);
        assert_eq!(hosts(&[&api, &near, &far], false), ["10.96.0.1"]);
        assert_eq!(hosts(&[&api, &own_api], true), ["10.96.0.2"]);
        assert_eq!(hosts(&[&own_api, &api], true), ["10.96.0.2"]);
        assert_eq!(hosts(&[&own_api, &api], false), ["10.96.0.1"]);
    }

    #[test]
    fn service_without_address_or_ports_has_no_variables() {
        for spec in [
            json!({"clusterIP": "None", "ports": [{"port": 1}]}),
            json!({"clusterIP": "", "ports": [{"port": 1}]}),
            json!({"ports": [{"port": 1}]}),
            json!({"clusterIP": "10.0.0.1"}),
        ] {
            let object = json!({"metadata": {"name": "s"}, "spec": spec});
            assert_eq!(ServiceView::of(&serde_json::from_value(object).unwrap()), None);
        }
    }
}
