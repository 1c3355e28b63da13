//! The API server of a node that stands alone: its files, its addresses, and who it knows.
//!
//! It runs in the agent's process. The agent speaks to it without a network, people through
//! loopback, pods through the bridge. What it keeps is in one folder that only root can read.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use podwright_apiserver::access::MASTERS;
use podwright_apiserver::tokens::TokenKey;
use podwright_apiserver::{
    ApiServer, Authority, ClaimDirectories, Clock, Identity, Ids, Limits, Settings, Store,
};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use super::claim_directories::HostDirectories;
use super::streams::Streams;
use super::{Layout, kubeconfig, write_private};
use crate::agent::ApiClients;

/// Where Kubernetes' API server is expected.
const USUAL_PORT: u16 = 6443;
const BACKLOG: u32 = 256;
/// What pods may call it; none of these names leads anywhere unless somebody serves DNS.
const NAMES: [&str; 5] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
];
const ADMIN: &str = "podwright-admin";

/// Where it is to be found.
#[derive(Clone, Copy, Debug)]
pub struct Doors {
    /// If somebody wants one in particular.
    pub port: Option<u16>,
    /// The address pods are to find it at, if they are to.
    pub for_pods: Option<Ipv4Addr>,
}

/// An API server that is open and about to serve.
pub struct Api {
    server: ApiServer,
    listeners: Vec<TcpListener>,
    tls: Arc<ServerConfig>,
    streams: Arc<Streams>,
}

impl Api {
    /// Opens the store, takes the ports, and writes the kubeconfig.
    pub async fn open(layout: &Layout, doors: Doors) -> anyhow::Result<Self> {
        let folder = layout.api();
        let listeners = listen(&folder.join("port"), doors).await?;
        let port = listeners.first().context("no address to serve")?.local_addr()?.port();
        let authority = authority(&folder)?;
        let mut addresses = vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        addresses.extend(doors.for_pods.map(IpAddr::V4));
        let tls = authority.tls(&authority.server(&NAMES, &addresses)?)?;
        let clock = Clock::system();
        let store = Store::open(&folder.join("objects.redb"), Limits::default(), clock.clone())
            .context("the objects of this node cannot be read")?;
        let mut settings = Settings::new(clock, Ids::system());
        settings.root_ca = authority.certificate().to_owned();
        settings.service = doors.for_pods.map(|ip| SocketAddr::from((ip, port)));
        let reclaim = Arc::new(HostDirectories);
        settings.volumes = Some(ClaimDirectories { path: layout.volumes(), reclaim });
        let streams = Arc::new(Streams::default());
        settings.pod_connector = Some(streams.clone());
        settings.token_key = Some(token_key(&folder.join("token.key"))?);
        let server = ApiServer::start(store, settings).await?;
        let people = authority.client(ADMIN, &[MASTERS])?;
        let url = format!("https://127.0.0.1:{port}");
        kubeconfig::write(&layout.kubeconfig(), &url, authority.certificate(), &people)?;
        Ok(Self { server, listeners, tls, streams })
    }

    /// Clients for the agent, with the rights of its node.
    pub fn clients(&self, node: &str) -> ApiClients {
        let client = || kube::Client::new(self.server.service(Identity::node(node)), "default");
        ApiClients { main: client(), heartbeat: client(), requests: Arc::default() }
    }

    /// Where the agent's server is to be put, so that logs and commands are served.
    pub fn streams(&self) -> Arc<Streams> {
        self.streams.clone()
    }

    /// Serves until told to stop; then says goodbye to whoever is connected.
    pub async fn run(self, stop: CancellationToken) {
        let Self { server, listeners, tls, streams: _ } = self;
        let serving =
            listeners.into_iter().map(|listener| server.serve(listener, tls.clone(), stop.clone()));
        let farewell = async {
            stop.cancelled().await;
            server.stop();
        };
        tokio::join!(
            futures::future::join_all(serving),
            server.run_controllers(stop.clone()),
            farewell
        );
    }
}

/// The port it had when it last served.
pub fn remembered_port(layout: &Layout) -> Option<u16> {
    remembered(&layout.api().join("port"))
}

fn remembered(file: &Path) -> Option<u16> {
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok())
}

/// Checks that nobody has the port on any of the addresses.
pub fn check_port(port: u16, for_pods: Option<Ipv4Addr>) -> anyhow::Result<()> {
    // Listening needs the event loop, which every command has.
    match listen_at(port, for_pods) {
        Ok(_) => Ok(()),
        Err(error) => Err(error).with_context(|| {
            format!(
                "port {port} cannot be used for the API server; nothing was changed. Fix: name a \
                 free one with --api-port"
            )
        }),
    }
}

/// Takes the port on each address: the one that is wished for, or the one it had before, or the
/// usual one, or any.
async fn listen(file: &Path, doors: Doors) -> anyhow::Result<Vec<TcpListener>> {
    let candidates = match doors.port.or(remembered(file)) {
        Some(port) => vec![port],
        None => vec![USUAL_PORT, 0],
    };
    let mut taken = None;
    for port in candidates {
        match listen_at(port, doors.for_pods) {
            Ok(listeners) => {
                let port = listeners.first().context("no address to serve")?.local_addr()?.port();
                write_private(file, port.to_string().as_bytes())?;
                return Ok(listeners);
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => taken = Some((port, error)),
            Err(error) => return Err(error).context("the API server cannot listen"),
        }
    }
    match taken {
        Some((port, error)) => Err(error).with_context(|| {
            format!("port {port} is in use by another program; name a free one with --api-port")
        }),
        None => anyhow::bail!("there is no port for the API server"),
    }
}

fn listen_at(port: u16, for_pods: Option<Ipv4Addr>) -> std::io::Result<Vec<TcpListener>> {
    let people = TcpSocket::new_v4()?;
    people.set_reuseaddr(true)?;
    people.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let people = people.listen(BACKLOG)?;
    let port = people.local_addr()?.port();
    let mut listeners = vec![people];
    if let Some(ip) = for_pods {
        let pods = TcpSocket::new_v4()?;
        pods.set_reuseaddr(true)?;
        // The bridge comes with the first pod; until then the address is nobody's.
        rustix::net::sockopt::set_ip_freebind(&pods, true)?;
        pods.bind(SocketAddr::from((ip, port)))?;
        listeners.push(pods.listen(BACKLOG)?);
    }
    Ok(listeners)
}

/// The authority of this node, made when there is none.
fn authority(folder: &Path) -> anyhow::Result<Authority> {
    let (certificate, key) = (folder.join("ca.crt"), folder.join("ca.key"));
    if let (Some(certificate), Some(key)) = (read(&certificate)?, read(&key)?) {
        let shown = folder.display();
        return Authority::read(text(certificate)?, text(key)?)
            .with_context(|| format!("ca.crt or ca.key in {shown} is damaged; delete both"));
    }
    let authority = Authority::create()?;
    write_private(&key, authority.key().as_bytes())?;
    write_private(&certificate, authority.certificate().as_bytes())?;
    Ok(authority)
}

/// The key that tokens of service accounts are signed with, made when there is none.
fn token_key(path: &Path) -> anyhow::Result<TokenKey> {
    if let Some(secret) = read(path)? {
        let secret: [u8; 32] = secret.try_into().ok().with_context(|| {
            format!("{} is damaged; delete it, and pods get new tokens", path.display())
        })?;
        return Ok(TokenKey::new(&secret));
    }
    let secret = TokenKey::secret().context("the kernel has no random numbers to give")?;
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
    String::from_utf8(bytes).context("it is not text")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_and_a_key_are_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let first = authority(folder.path()).unwrap();
        let again = authority(folder.path()).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        // what the one signs, the other vouches for
        let pair = again.server(&NAMES, &[]).unwrap();
        assert!(first.tls(&pair).is_ok());
        let path = folder.path().join("token.key");
        token_key(&path).unwrap();
        let secret = std::fs::read(&path).unwrap();
        token_key(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), secret);
        std::fs::write(&path, "short").unwrap();
        let refused = token_key(&path).unwrap_err().to_string();
        assert!(refused.contains("damaged; delete it"), "{refused}");
    }

    #[tokio::test]
    async fn a_port_stays_the_same_and_one_that_is_taken_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let remembered = folder.path().join("port");
        let doors = Doors { port: None, for_pods: None };
        let any = Doors { port: Some(0), ..doors };
        let port = |listeners: &[TcpListener]| listeners[0].local_addr().unwrap().port();
        let first = listen(&remembered, any).await.unwrap();
        let taken = listen(&remembered, doors).await.unwrap_err().to_string();
        assert!(taken.contains(&format!("port {}", port(&first))), "{taken}");
        let was = port(&first);
        drop(first);
        let again = listen(&remembered, doors).await.unwrap();
        assert_eq!(port(&again), was);
    }

    #[tokio::test]
    async fn an_address_that_is_not_there_yet_can_be_listened_on() {
        let folder = tempfile::tempdir().unwrap();
        let nobodys = Ipv4Addr::new(192, 0, 2, 1);
        let doors = Doors { port: Some(0), for_pods: Some(nobodys) };
        let listeners = listen(&folder.path().join("port"), doors).await.unwrap();
        let port = listeners[0].local_addr().unwrap().port();
        assert_eq!(listeners[1].local_addr().unwrap(), SocketAddr::from((nobodys, port)));
    }
}
