//! Kubelet server: built from the settings, and its ports.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use podwright_core::cgroup::Driver;
use podwright_core::stats::DaemonGroups;
use podwright_node::node::Node;
use podwright_node::server::auth::{self, AccessSettings};
use podwright_node::server::certificate::{Source, TlsSettings, self_signed_files};
use podwright_node::server::listen::{ListenerSettings, Listeners, Ports};
use podwright_node::server::reload::Reload;
use podwright_node::server::{Server, ServerSettings};
use podwright_node::telemetry::stats::Stats;
use tokio_util::sync::CancellationToken;

use crate::commands::version::VERSIONS;
use crate::config::KubeletSettings;
use crate::config::gates::FeatureGates;
use crate::config::kubelet::{AuthorizationMode, CgroupDriver, KubeletConfiguration, TlsVersion};

/// Lower bound of the sync loop health timeout: a shorter pause may only mean that it is busy.
const MIN_SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// Binds the ports before anything is started, so that a second agent fails early.
pub async fn take_ports(configuration: &KubeletConfiguration) -> anyhow::Result<Option<Ports>> {
    if !configuration.enable_server {
        return Ok(None);
    }
    let at = |port: i32| {
        let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
        Some(SocketAddr::new(configuration.address, port))
    };
    let Some(secure) = at(configuration.port) else { return Ok(None) };
    Ok(Some(Ports::take(secure, at(configuration.read_only_port)).await?))
}

/// The server, for requests from the ports and from this process.
pub fn server(settings: &KubeletSettings, node: &Node, stop: CancellationToken) -> Arc<Server> {
    let configuration = &settings.configuration;
    let stats = Stats::new(node, daemons(settings));
    let idle = configuration.streaming_connection_idle_timeout.to_std();
    let shown = serde_json::to_vec(&effective(settings, node.cgroup_driver()).to_configz())
        .unwrap_or_default();
    let server_settings = ServerSettings {
        split_log_streams: settings.gates.enabled("PodLogsQuerySplitStreams"),
        debugging: configuration.enable_debugging_handlers,
        stream_idle: (!idle.is_zero()).then_some(idle),
        configuration: Bytes::from(shown),
        sync_timeout: MIN_SYNC_TIMEOUT.max(configuration.sync_frequency.to_std() * 2),
        version: VERSIONS.kubelet,
        commit: VERSIONS.commit.unwrap_or_default(),
    };
    Server::new(node, stats, server_settings, stop)
}

/// The effective configuration: with the files of the certificate in use and the cgroup driver that
/// the runtime reported.
fn effective(settings: &KubeletSettings, driver: Driver) -> KubeletConfiguration {
    let mut configuration = settings.configuration.clone();
    configuration.cgroup_driver = match driver {
        Driver::Cgroupfs => CgroupDriver::Cgroupfs,
        Driver::Systemd => CgroupDriver::Systemd,
    };
    if configuration.tls_cert_file.is_empty() {
        let (certificate, key) = self_signed_files(&settings.options.cert_dir);
        configuration.tls_cert_file = certificate.to_string_lossy().into_owned();
        configuration.tls_private_key_file = key.to_string_lossy().into_owned();
    }
    configuration
}

/// Cgroups of the system daemons, for the summary API.
fn daemons(settings: &KubeletSettings) -> DaemonGroups {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let configuration = &settings.configuration;
    let runtime = &settings.options.runtime_cgroups;
    DaemonGroups::new(&configuration.kubelet_cgroups, runtime, &configuration.system_cgroups, &own)
}

/// Starts listening, with authentication and authorization.
pub fn listen(
    settings: &KubeletSettings,
    ports: Ports,
    node: &Node,
    api: Option<&kube::Client>,
) -> anyhow::Result<Listeners> {
    let configuration = &settings.configuration;
    let listener_settings = ListenerSettings {
        certificate: certificate(settings, node),
        tls: TlsSettings {
            reload: reload(&settings.gates, "ReloadKubeletServerCertificateFile"),
            only_13: configuration.tls_min_version == Some(TlsVersion::Tls13),
            cipher_suites: configuration.tls_cipher_suites.clone(),
            groups: configuration
                .tls_curve_preferences
                .iter()
                .filter_map(|group| u16::try_from(*group).ok())
                .collect(),
        },
        auth: auth_settings(configuration, &settings.gates, api),
    };
    Ok(Listeners::open(ports, listener_settings, settings.node_name.as_str().into())?)
}

fn certificate(settings: &KubeletSettings, node: &Node) -> Source {
    let configuration = &settings.configuration;
    if !configuration.tls_cert_file.is_empty() {
        return Source::Files {
            certificate: configuration.tls_cert_file.clone().into(),
            key: configuration.tls_private_key_file.clone().into(),
        };
    }
    Source::SelfSigned {
        directory: settings.options.cert_dir.clone(),
        host: settings.node_name.clone(),
        addresses: node.host_ips().to_vec(),
    }
}

/// Changed files are read again while the feature gate is on.
fn reload(gates: &FeatureGates, gate: &str) -> Reload {
    if gates.enabled(gate) { Reload::OnChange } else { Reload::Never }
}

/// Webhook authorization without an API server denies every request.
fn auth_settings(
    configuration: &KubeletConfiguration,
    gates: &FeatureGates,
    api: Option<&kube::Client>,
) -> auth::AuthSettings {
    let authentication = &configuration.authentication;
    let client_ca = &authentication.x509.client_ca_file;
    let webhook = &configuration.authorization.webhook;
    let access = match (configuration.authorization.mode, api) {
        (AuthorizationMode::Webhook, Some(client)) => AccessSettings::Webhook {
            client: client.clone(),
            allowed_for: webhook.cache_authorized_ttl.to_std(),
            denied_for: webhook.cache_unauthorized_ttl.to_std(),
        },
        (AuthorizationMode::AlwaysAllow, _) => AccessSettings::AlwaysAllow,
        (AuthorizationMode::Webhook, None) => AccessSettings::NeverAllow,
    };
    auth::AuthSettings {
        client_ca: (!client_ca.is_empty()).then(|| client_ca.into()),
        client_ca_reload: reload(gates, "ReloadKubeletClientCAFile"),
        tokens: api
            .filter(|_| authentication.webhook.enabled)
            .map(|client| (client.clone(), authentication.webhook.cache_ttl.to_std())),
        anonymous: authentication.anonymous.enabled,
        access,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::gates::FeatureGates;
    use crate::config::options::NodeOptions;

    #[test]
    fn configz_shows_the_driver_of_the_runtime_and_the_certificate_in_use() {
        let settings = KubeletSettings {
            configuration: KubeletConfiguration::default(),
            gates: FeatureGates::default(),
            options: NodeOptions { cert_dir: "/pki".into(), ..NodeOptions::default() },
            node_name: "node-1".to_owned(),
            warnings: Vec::new(),
        };
        assert_eq!(settings.configuration.cgroup_driver, CgroupDriver::Cgroupfs);
        let shown = effective(&settings, Driver::Systemd);
        assert_eq!(shown.cgroup_driver, CgroupDriver::Systemd);
        assert!(shown.tls_cert_file.starts_with("/pki/"), "{}", shown.tls_cert_file);
    }
}
