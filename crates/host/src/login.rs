//! The login manager, systemd-logind: it announces a shutdown and delays it while there is a lock.
//!
//! An announcement ends all pods of the node, and a bus delivers signals of any user. So only those
//! of the login manager itself are received; the bus filters out the others.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use zbus::Connection;
use zbus::connection::Builder;
use zbus::fdo::{DBusProxy, NameOwnerChangedStream};
use zbus::proxy::CacheProperties;

use crate::files::{Durability, FileError, Root};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const NAME: &str = "org.freedesktop.login1";

/// Where the login manager reads further configuration from.
pub const OVERRIDE_DIR: &str = "/etc/systemd/logind.conf.d";
/// Upstream's name of the agent's part of it.
pub const OVERRIDE_FILE: &str = "99-kubelet.conf";
const MAX_OVERRIDE_BYTES: u64 = 4096;

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait LoginManager {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<zbus::OwnedFd>;

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;

    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait UnitManager {
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;
}

/// How to reach the login manager.
#[derive(Clone, Debug)]
pub enum LoginBus {
    System,
    /// A socket on which the login manager itself is the peer.
    Peer(PathBuf),
    /// A bus at this address.
    Address(String),
}

#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error(
        "cannot reach the login manager over D-Bus. Fix: start dbus and systemd-logind, or unset \
         shutdownGracePeriod"
    )]
    Connect { source: Box<zbus::Error> },
    #[error("systemd-logind did not {attempt}")]
    Call { attempt: &'static str, source: Box<zbus::Error> },
    #[error("systemd-logind did not {attempt} within {}s", CALL_TIMEOUT.as_secs())]
    Timeout { attempt: &'static str },
    #[error("cannot configure a longer delay of shutdowns")]
    Override(#[from] FileError),
    #[error(
        "{} was not written by a node agent, so it is left alone. Fix: set InhibitDelayMaxSec \
         there to {}, or move it away",
        path.display(), wanted.as_secs()
    )]
    ForeignOverride { path: PathBuf, wanted: Duration },
}

type Result<T> = std::result::Result<T, LoginError>;

/// A lock that delays a shutdown until it is dropped.
#[derive(Debug)]
pub struct ShutdownLock(#[allow(dead_code, reason = "it counts while it is open")] OwnedFd);

/// A connection to the login manager.
pub struct LoginSession {
    connection: Connection,
    manager: LoginManagerProxy<'static>,
    announcements: PrepareForShutdownStream,
    /// Changes of the owner of the login manager's name: it was restarted. `None` without a bus.
    owners: Option<NameOwnerChangedStream>,
}

impl LoginSession {
    /// Connects, and receives announcements from now on.
    pub async fn open(bus: &LoginBus) -> Result<Self> {
        let connect = async {
            let connection = match bus {
                LoginBus::System => Connection::system().await?,
                LoginBus::Address(address) => Builder::address(address.as_str()).build().await?,
                LoginBus::Peer(path) => {
                    let stream = tokio::net::UnixStream::connect(path).await?;
                    Builder::unix_stream(stream.into_std()?).p2p().build().await?
                }
            };
            let manager = LoginManagerProxy::builder(&connection)
                .cache_properties(CacheProperties::No)
                .build()
                .await?;
            let announcements = manager.receive_prepare_for_shutdown().await?;
            // This may start the login manager, which must not look like a restart below.
            manager.inhibit_delay_max_usec().await?;
            let owners = match bus {
                LoginBus::Peer(_) => None,
                LoginBus::System | LoginBus::Address(_) => {
                    let bus = DBusProxy::new(&connection).await?;
                    Some(bus.receive_name_owner_changed_with_args(&[(0, NAME)]).await?)
                }
            };
            Ok::<_, zbus::Error>(Self { connection, manager, announcements, owners })
        };
        match tokio::time::timeout(CALL_TIMEOUT, connect).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err(error)) => Err(LoginError::Connect { source: Box::new(error) }),
            Err(_) => Err(LoginError::Timeout { attempt: "answer" }),
        }
    }

    /// How long a shutdown is delayed at most.
    pub async fn delay(&self) -> Result<Duration> {
        let read = self.manager.inhibit_delay_max_usec();
        Ok(Duration::from_micros(call("report InhibitDelayMaxSec", read).await?))
    }

    /// Whether a shutdown has been announced and not cancelled.
    pub async fn is_shutting_down(&self) -> Result<bool> {
        call("report PreparingForShutdown", self.manager.preparing_for_shutdown()).await
    }

    /// Delays shutdowns from now on.
    pub async fn lock(&self) -> Result<ShutdownLock> {
        let why = "Kubelet needs time to handle node shutdown";
        let lock =
            call("delay shutdowns", self.manager.inhibit("shutdown", "kubelet", why, "delay"));
        Ok(ShutdownLock(lock.await?.into()))
    }

    /// Has the login manager read its configuration again.
    pub async fn reload(&self) -> Result<()> {
        const SIGHUP: i32 = 1;
        let reload = async {
            let units = UnitManagerProxy::builder(&self.connection)
                .cache_properties(CacheProperties::No)
                .build()
                .await?;
            units.kill_unit("systemd-logind.service", "all", SIGHUP).await
        };
        call("read its configuration again", reload).await
    }

    /// The next announcement: whether the machine shuts down. `None`: the connection ended, or the
    /// login manager was restarted.
    ///
    /// Dropping the future loses no announcement.
    pub async fn next(&mut self) -> Option<bool> {
        let Self { announcements, owners, .. } = self;
        let restarted = async {
            match owners {
                Some(owners) => drop(owners.next().await),
                None => std::future::pending().await,
            }
        };
        let announcement = tokio::select! { biased;
            announcement = announcements.next() => announcement?,
            () = restarted => return None,
        };
        // One that cannot be read is like a lost connection: its state is asked for again.
        announcement.args().ok().map(|args| *args.start())
    }
}

async fn call<T>(
    attempt: &'static str,
    request: impl Future<Output = zbus::Result<T>>,
) -> Result<T> {
    match tokio::time::timeout(CALL_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(LoginError::Call { attempt, source: Box::new(error) }),
        Err(_) => Err(LoginError::Timeout { attempt }),
    }
}

/// Writes the agent's part of the login manager's configuration; `mark` is the first line of a file
/// that may be replaced.
pub fn write_override(directory: &Path, mark: &str, text: &str, wanted: Duration) -> Result<()> {
    let root = Root::create(directory, 0o755)?;
    match root.read(OVERRIDE_FILE, MAX_OVERRIDE_BYTES) {
        Ok(found) if found == text.as_bytes() => return Ok(()),
        Ok(found) if found.starts_with(mark.as_bytes()) => {}
        Err(error) if error.is_not_found() => {}
        Ok(_) | Err(FileError::TooLarge { .. }) => {
            let path = directory.join(OVERRIDE_FILE);
            return Err(LoginError::ForeignOverride { path, wanted });
        }
        Err(error) => return Err(error.into()),
    }
    Ok(root.write_atomic(OVERRIDE_FILE, text.as_bytes(), 0o644, Durability::Disk)?)
}

#[cfg(test)]
mod tests;
