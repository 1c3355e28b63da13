//! Embedded API server of the standalone node: its files, addresses and identities.
//!
//! It runs in the agent's process. The agent calls it in process, users connect through loopback,
//! pods through the bridge. Its files are in one directory that only root can read.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use http::HeaderValue;
use podwright_apiserver::authority::AuthorityUse;
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{
    ApiServer, Authority, ClaimDirectories, Clock, Identity, Ids, Limits, Peers, Settings, Store,
};
use podwright_core::certificate::CertificateValidity;
use podwright_node::client::connection::user_agent;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use super::agent_connector::AgentConnector;
use super::backup::CopyObjects;
use super::claim_directories::HostDirectories;
use super::credentials::{self, AdminKubeconfig};
use super::network::Subnet;
use super::{Layout, write_private};
use crate::agent::ApiClients;

/// Default port of the Kubernetes API server.
const DEFAULT_PORT: u16 = 6443;
const BACKLOG: u32 = 256;
/// Host names in the serving certificate; they resolve only if the user runs a DNS server.
const NAMES: [&str; 5] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
];

/// Addresses to listen on.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Requested port; none for the stored, the default or any free port.
    pub port: Option<u16>,
    /// Subnet of the pods, if the API is served to pods; its gateway is the address for them.
    pub for_pods: Option<Subnet>,
}

/// Addresses to bind.
#[derive(Clone, Copy, Debug)]
struct PortOptions {
    port: Option<u16>,
    for_pods: Option<Ipv4Addr>,
}

/// API server with an open store and bound ports.
pub struct Api {
    server: ApiServer,
    listeners: Vec<(TcpListener, Peers)>,
    tls: Arc<ServerConfig>,
    agent_connector: Arc<AgentConnector>,
    admin: AdminKubeconfig,
    admin_validity: CertificateValidity,
}

impl Api {
    /// Binds the ports, opens the store and writes the kubeconfig.
    pub async fn open(layout: &Layout, listen_options: ListenOptions) -> anyhow::Result<Self> {
        let directory = layout.api();
        let for_pods = listen_options.for_pods.map(Subnet::gateway);
        let port_options = PortOptions { port: listen_options.port, for_pods };
        let listeners = listen(&directory.join("port"), port_options).await?;
        let port = listeners.first().context("no address to serve")?.local_addr()?.port();
        let authority = authority(&directory, "ca", AuthorityUse::Servers)?;
        let clients = credentials::authority(&directory)?;
        let mut addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        addresses.extend(for_pods.map(IpAddr::V4));
        let tls = clients.tls(&authority.server(&NAMES, &addresses)?)?;
        let clock = Clock::system();
        let store = Store::open(&directory.join("objects.redb"), Limits::default(), clock.clone())
            .context("cannot open the API objects of this node")?;
        let mut settings = Settings::new(clock, Ids::system());
        settings.root_ca = authority.certificate().to_owned();
        settings.service = for_pods.map(|ip| SocketAddr::from((ip, port)));
        let reclaim = Arc::new(HostDirectories);
        settings.volumes = Some(ClaimDirectories { path: layout.volumes(), reclaim });
        let agent_connector = Arc::new(AgentConnector::default());
        settings.node_connector = Some(agent_connector.clone());
        settings.token_key = Some(token_key(&directory.join("token.key"))?);
        let server = ApiServer::start(store, settings).await?;
        let url = format!("https://127.0.0.1:{port}");
        let server_authority = authority.certificate().to_owned();
        let admin = AdminKubeconfig::new(layout, url, server_authority, clients);
        let admin_validity = admin.write()?;
        // Loopback is the first. A packet from elsewhere reaches its address as well, where another
        // program has set `route_localnet`.
        let range = listen_options.for_pods.map(Subnet::range);
        let peers = [Peers::Loopback].into_iter().chain(range.map(Peers::range));
        let listeners = listeners.into_iter().zip(peers).collect();
        Ok(Self { server, listeners, tls, agent_connector, admin, admin_validity })
    }

    /// Clients for the agent, with the permissions of its node.
    pub fn clients(&self, node: &str) -> anyhow::Result<ApiClients> {
        let name = HeaderValue::try_from(user_agent()).context("name of the agent")?;
        let service = || self.server.service_for(Identity::node(node), name.clone());
        let client = || kube::Client::new(service(), "default");
        Ok(ApiClients { main: client(), heartbeat: client(), requests: Arc::default() })
    }

    /// Copies the objects to a new file, for backups.
    pub fn copy_objects(&self) -> CopyObjects {
        let server = self.server.clone();
        Arc::new(move |path| Ok(server.copy_objects(path)?))
    }

    /// Connector that takes the agent's kubelet server, for logs and exec.
    pub fn agent_connector(&self) -> Arc<AgentConnector> {
        self.agent_connector.clone()
    }

    /// Serves until `stop` is cancelled, then closes connections gracefully.
    pub async fn run(self, stop: CancellationToken) {
        let Self { server, listeners, tls, agent_connector: _, admin, admin_validity } = self;
        let serving = listeners
            .into_iter()
            .map(|(listener, peers)| server.serve(listener, peers, tls.clone(), stop.clone()));
        let shutdown = async {
            stop.cancelled().await;
            server.stop();
        };
        tokio::join!(
            futures::future::join_all(serving),
            server.run_controllers(stop.clone()),
            admin.renew(admin_validity, stop.clone()),
            shutdown
        );
    }
}

/// The stored port of the previous start.
pub fn stored_port(layout: &Layout) -> Option<u16> {
    remembered(&layout.api().join("port"))
}

fn remembered(file: &Path) -> Option<u16> {
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok())
}

/// Checks that the port is free on all addresses.
pub fn check_port(port: u16, for_pods: Option<Ipv4Addr>) -> anyhow::Result<()> {
    // Needs a Tokio runtime, which every command has.
    match listen_at(port, for_pods) {
        Ok(_) => Ok(()),
        Err(error) => Err(error).with_context(|| {
            format!(
                "cannot use port {port} for the API server; nothing was changed. Fix: choose a free \
                 port with --api-port"
            )
        }),
    }
}

/// Binds the port on each address: the requested one, or that of the previous start, or the
/// default, or any free port.
async fn listen(file: &Path, listen_options: PortOptions) -> anyhow::Result<Vec<TcpListener>> {
    let candidates = match listen_options.port.or(remembered(file)) {
        Some(port) => vec![port],
        None => vec![DEFAULT_PORT, 0],
    };
    let mut taken = None;
    for port in candidates {
        match listen_at(port, listen_options.for_pods) {
            Ok(listeners) => {
                let port = listeners.first().context("no address to serve")?.local_addr()?.port();
                write_private(file, port.to_string().as_bytes())?;
                return Ok(listeners);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => taken = Some((port, error)),
            Err(error) => return Err(error).context("cannot listen for the API server"),
        }
    }
    match taken {
        Some((port, error)) => Err(error).with_context(|| {
            format!(
                "port {port} is in use by another program. Fix: choose a free port with --api-port"
            )
        }),
        None => anyhow::bail!("no port for the API server"),
    }
}

fn listen_at(port: u16, for_pods: Option<Ipv4Addr>) -> std::io::Result<Vec<TcpListener>> {
    let loopback = TcpSocket::new_v4()?;
    loopback.set_reuseaddr(true)?;
    loopback.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let loopback = loopback.listen(BACKLOG)?;
    let port = loopback.local_addr()?.port();
    let mut listeners = vec![loopback];
    if let Some(ip) = for_pods {
        let pods = TcpSocket::new_v4()?;
        pods.set_reuseaddr(true)?;
        // The bridge is created with the first pod; until then the address does not exist.
        rustix::net::sockopt::set_ip_freebind(&pods, true)?;
        pods.bind(SocketAddr::from((ip, port)))?;
        listeners.push(pods.listen(BACKLOG)?);
    }
    Ok(listeners)
}

/// A certificate authority of this node in `NAME.crt` and `NAME.key`, created if there is none.
pub fn authority(
    directory: &Path,
    name: &str,
    signs_for: AuthorityUse,
) -> anyhow::Result<Authority> {
    let file = |end: &str| directory.join(format!("{name}.{end}"));
    let (certificate, key) = (file("crt"), file("key"));
    if let (Some(certificate), Some(key)) = (read(&certificate)?, read(&key)?) {
        let shown = directory.display();
        return Authority::read(signs_for, text(certificate)?, text(key)?).with_context(|| {
            format!("{name}.crt or {name}.key in {shown} is corrupt. Fix: delete both")
        });
    }
    let authority = Authority::create(signs_for)?;
    write_private(&key, authority.key().as_bytes())?;
    write_private(&certificate, authority.certificate().as_bytes())?;
    Ok(authority)
}

/// The signing key of service account tokens, created if there is none.
fn token_key(path: &Path) -> anyhow::Result<TokenKey> {
    if let Some(secret) = read(path)? {
        let secret: [u8; 32] = secret.try_into().ok().with_context(|| {
            format!("{} is corrupt. Fix: delete it; pods get new tokens", path.display())
        })?;
        return Ok(TokenKey::new(&secret));
    }
    let secret = TokenKey::secret().context("cannot read random numbers from the kernel")?;
    write_private(path, &secret)?;
    Ok(TokenKey::new(&secret))
}

fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn text(bytes: Vec<u8>) -> anyhow::Result<String> {
    String::from_utf8(bytes).context("not valid UTF-8")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use jiff::SignedDuration;
    use podwright_apiserver::authority::CertificatePair;

    use super::super::kubeconfig::{self, EntryNames};
    use super::*;

    #[test]
    fn authority_and_token_key_are_created_once() {
        let directory = tempfile::tempdir().unwrap();
        let made = || authority(directory.path(), "ca", AuthorityUse::Servers).unwrap();
        let first = made();
        let again = made();
        assert_eq!(first.certificate(), again.certificate());
        // a certificate signed by one is valid for the other
        let pair = again.server(&NAMES, &[]).unwrap();
        assert!(first.tls(&pair).is_ok());
        let path = directory.path().join("token.key");
        token_key(&path).unwrap();
        let secret = std::fs::read(&path).unwrap();
        token_key(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), secret);
        std::fs::write(&path, "short").unwrap();
        let refused = token_key(&path).unwrap_err().to_string();
        assert!(refused.contains("corrupt. Fix: delete it"), "{refused}");
    }

    /// The status code of a request with this certificate; none if the handshake is refused.
    async fn ask(url: &str, authority: &str, pair: &CertificatePair) -> Option<u16> {
        let names = EntryNames::of_user(&Layout::new(Path::new("/s")), "someone");
        let text = kubeconfig::text(url, authority, &names, pair);
        let file = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let options = kube::config::KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
        let client = kube::Client::try_from(config).unwrap();
        let request = http::Request::get("/api/v1/nodes").body(Vec::new()).unwrap();
        match client.request_text(request).await {
            Ok(_) => Some(200),
            Err(kube::Error::Api(status)) => Some(status.code),
            Err(_) => None,
        }
    }

    #[tokio::test]
    async fn client_certificate_of_the_earlier_authority_is_refused() {
        // given a node of 0.1.0, whose only authority signed a client certificate without an end
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        std::fs::create_dir(layout.api()).unwrap();
        let earlier = authority(&layout.api(), "ca", AuthorityUse::Servers).unwrap();
        let validity = credentials::valid_for(SignedDuration::from_hours(24 * 36_500)).unwrap();
        let endless = earlier.client("podwright-admin", &["system:masters"], validity).unwrap();
        // when this build starts
        let options = ListenOptions { port: Some(0), for_pods: None };
        let api = Api::open(&layout, options).await.unwrap();
        let url = api.admin.url().to_owned();
        let stop = CancellationToken::new();
        let running = tokio::spawn(api.run(stop.clone()));
        // then only its own certificates are accepted, and the server's authority has not changed
        assert_ne!(ask(&url, earlier.certificate(), &endless).await, Some(200));
        let clients = credentials::authority(&layout.api()).unwrap();
        let validity = credentials::valid_for(SignedDuration::from_hours(1)).unwrap();
        let admin = clients.client("me", &["system:masters"], validity).unwrap();
        assert_eq!(ask(&url, earlier.certificate(), &admin).await, Some(200));
        stop.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn port_is_stored_and_a_port_in_use_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let remembered = directory.path().join("port");
        let listen_options = PortOptions { port: None, for_pods: None };
        let any = PortOptions { port: Some(0), ..listen_options };
        let port = |listeners: &[TcpListener]| listeners[0].local_addr().unwrap().port();
        let first = listen(&remembered, any).await.unwrap();
        let taken = listen(&remembered, listen_options).await.unwrap_err().to_string();
        assert!(taken.contains(&format!("port {}", port(&first))), "{taken}");
        let was = port(&first);
        drop(first);
        let again = listen(&remembered, listen_options).await.unwrap();
        assert_eq!(port(&again), was);
    }

    #[tokio::test]
    async fn address_that_does_not_exist_yet_can_be_listened_on() {
        let directory = tempfile::tempdir().unwrap();
        let unassigned = Ipv4Addr::new(192, 0, 2, 1);
        let listen_options = PortOptions { port: Some(0), for_pods: Some(unassigned) };
        let listeners = listen(&directory.path().join("port"), listen_options).await.unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        assert_eq!(listeners[1].local_addr().unwrap(), SocketAddr::from((unassigned, port)));
    }
}
