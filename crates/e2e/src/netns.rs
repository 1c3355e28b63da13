//! Network namespace: the host of a node or of a control plane, with one address and no external
//! network. A veth pair can connect the two.
//!
//! It is kept by a mount in the bed's directory, not below /run/netns, so that removing the
//! directory's mounts also removes the namespace, its links and its packet filter rules.

use std::ffi::OsStr;
use std::fs::File;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use anyhow::{Context, Result};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

use crate::process::{output, output_of};

/// The node's address; the same in every bed, each in its own namespace.
pub const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 10);

/// The control plane's address; also a node's default gateway, which forwards nothing.
pub const CONTROL_PLANE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// `ip` commands for a node. A veth pair represents the network card, because not every kernel has
/// dummy links; while unconnected, both ends are inside.
const NODE: &str = "\
link set lo up
link add eth0 type veth peer name uplink
link set uplink up
link set eth0 up
address add 10.99.0.10/24 dev eth0
route add default via 10.99.0.1 dev eth0
";

/// `ip` commands for a control plane. Its address stays when a node is disconnected.
const CONTROL_PLANE: &str = "\
link set lo up
address add 10.99.0.1/32 dev lo
";

/// `ip` commands on the control plane's side of a connection: pods are reached through the node.
const PLUGGED_IN: &str = "\
link set uplink up
route add 10.99.0.10 dev uplink src 10.99.0.1
route add default via 10.99.0.10 dev uplink src 10.99.0.1
";

/// Which kind of host a namespace is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Host {
    Node,
    ControlPlane,
}

#[derive(Clone, Debug)]
pub struct NetNs {
    file: PathBuf,
}

impl NetNs {
    /// Creates the namespace and its links; `file` is its mount point.
    pub(crate) fn create(file: PathBuf, host: Host) -> Result<Self> {
        File::create(&file).with_context(|| format!("creating {}", file.display()))?;
        let mut net = OsStr::new("--net=").to_owned();
        net.push(&file);
        output(Command::new("unshare").arg(net).arg("true"))?;
        let namespace = Self { file };
        let (links, forward) = match host {
            Host::Node => (NODE, "1"),
            Host::ControlPlane => (CONTROL_PLANE, "0"), // no forwarding
        };
        namespace.links(links)?;
        let forward = format!("echo {forward} >/proc/sys/net/ipv4/ip_forward");
        output(namespace.command("sh").args(["-c", &forward]))?;
        Ok(namespace)
    }

    /// The namespace of a process, such as one in a pod. It is valid while the process runs.
    pub fn of_process(pid: &str) -> Self {
        Self { file: Path::new("/proc").join(pid).join("ns/net") }
    }

    /// Connects a node to the control plane in `plane`. The link is removed with the node's
    /// namespace.
    pub(crate) fn plug_into(&self, plane: &Self) -> Result<()> {
        self.links(&format!("link set uplink netns {}\n", plane.file.display()))?;
        plane.links(PLUGGED_IN)
    }

    /// Removes the link at the control plane, if present: the kernel removes the node's namespace
    /// with a delay.
    pub(crate) fn unplug(&self) -> Result<()> {
        let gone = "! ip link show uplink >/dev/null 2>&1";
        let script = format!("{gone} || ip link delete uplink || {gone}");
        output(self.command("sh").args(["-c", &script])).map(drop)
    }

    /// Runs each line as an `ip` command.
    fn links(&self, lines: &str) -> Result<()> {
        output_of(self.command("ip").args(["-batch", "-"]), lines.as_bytes()).map(drop)
    }

    /// The mount point of the namespace.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A command that runs inside. Not `ip netns exec`: that remounts /sys, which hides the cgroup
    /// mounts.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut net = OsStr::new("--net=").to_owned();
        net.push(&self.file);
        let mut command = Command::new("nsenter");
        command.arg(net).arg("--").arg(program);
        command
    }

    /// Runs `act` inside, on a new thread: a namespace belongs to a thread, and the threads of the
    /// runtime are shared.
    pub async fn within<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let file = File::open(&self.file)?;
        let (done, response) = oneshot::channel();
        std::thread::Builder::new().name("netns".into()).spawn(move || {
            let entered = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
            // The send fails only if the caller no longer waits; then the result is not needed.
            let _ = done.send(entered.map_err(io::Error::from).and_then(|()| act()));
        })?;
        response.await.map_err(|_| io::Error::other("the thread in the namespace panicked"))?
    }

    /// Opens a TCP connection from inside; the socket stays in the namespace wherever it is used.
    pub async fn connect(&self, address: SocketAddr) -> io::Result<tokio::net::TcpStream> {
        let stream = self
            .within(move || {
                let stream = TcpStream::connect_timeout(&address, CONNECT_LIMIT)?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(stream)
            })
            .await?;
        tokio::net::TcpStream::from_std(stream)
    }

    /// Listens inside, for a server that runs in the test process.
    pub async fn listen(&self, address: SocketAddr) -> io::Result<tokio::net::TcpListener> {
        let listener = self
            .within(move || {
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .await?;
        tokio::net::TcpListener::from_std(listener)
    }
}

/// Opens the connections of an HTTP client inside the namespace: the base of a `kube::Client`.
#[derive(Clone, Debug)]
pub struct Connector(pub NetNs);

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<tokio::net::TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let namespace = self.0.clone();
        Box::pin(async move {
            let address = address_of(&uri).map_err(io::Error::other)?;
            namespace.connect(address).await.map(TokioIo::new)
        })
    }
}

/// The address in a URL. There is no name server inside, so only addresses and `localhost` work.
pub(crate) fn address_of(uri: &Uri) -> Result<SocketAddr> {
    let host = uri.host().context("the URL has no host")?;
    let ip = match host.trim_matches(['[', ']']) {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => host.parse().with_context(|| format!("{host} is not an IP address"))?,
    };
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn url_names_an_address() {
        for (url, want) in [
            ("http://10.88.0.2:8080/x", Some("10.88.0.2:8080")),
            ("https://10.99.0.10", Some("10.99.0.10:443")),
            ("http://localhost", Some("127.0.0.1:80")),
            ("http://[fd00::1]:81/", Some("[fd00::1]:81")),
            ("http://example.com/", None),
            ("/no/host", None),
        ] {
            let address = address_of(&url.parse().unwrap()).ok().map(|a| a.to_string());
            assert_eq!(address.as_deref(), want, "{url}");
        }
    }
}
