//! Connection limiter: shares of clients, and the time before authentication.
//!
//! The total protects memory and file descriptors from a flood of connections. The share of an
//! address keeps one client from shutting out all others; loopback has none, because all clients on
//! this machine share that address. Neither protects from clients without credentials, so
//! connections that have not authenticated are a small part of the total and last a short time, and
//! a new one replaces the oldest: they cannot shut out a client with credentials, which
//! authenticates with its first request.
//!
//! A check of credentials may take long. Meanwhile the connection is neither replaced nor timed, but
//! only until credentials of it were refused, and only as many connections as may be without
//! credentials: forged tokens are no better than none.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

/// How long a connection may stay without an authenticated request, TLS handshake included.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// All connections; further ones wait to be accepted.
    pub all: usize,
    /// Those of one address, loopback excepted; further ones are refused.
    pub per_address: usize,
    /// Those that have not authenticated; a further one replaces the oldest.
    pub unauthenticated: usize,
    /// The same for one address, loopback excepted.
    pub unauthenticated_per_address: usize,
}

#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    permits: Arc<Semaphore>,
    limits: ConnectionLimits,
    connections: Arc<Mutex<Connections>>,
}

#[derive(Debug, Default)]
struct Connections {
    by_address: HashMap<IpAddr, usize>,
    /// By the order of their start.
    unauthenticated: BTreeMap<u64, Unauthenticated>,
    /// Those whose credentials are being checked, and which are therefore not replaced.
    checked: BTreeMap<u64, IpAddr>,
    started: u64,
}

#[derive(Debug)]
struct Unauthenticated {
    peer: IpAddr,
    replaced: CancellationToken,
}

/// What a connection has done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    authenticated: bool,
    /// Requests whose credentials are being checked, as far as they protect the connection.
    checking: usize,
    /// Credentials were refused.
    refused: bool,
}

/// One client's connection; dropping it frees its share.
#[derive(Debug)]
pub struct ConnectionPermit {
    peer: IpAddr,
    number: u64,
    limits: ConnectionLimits,
    connections: Arc<Mutex<Connections>>,
    replaced: CancellationToken,
    progress: watch::Sender<Progress>,
    _permit: OwnedSemaphorePermit,
}

/// A request whose credentials are being checked, which may take longer than
/// [`AUTHENTICATION_TIMEOUT`].
#[derive(Debug)]
pub struct CredentialCheck<'a> {
    permit: &'a ConnectionPermit,
    protects: bool,
}

impl ConnectionLimiter {
    pub fn new(limits: ConnectionLimits) -> Self {
        let permits = Arc::new(Semaphore::new(limits.all));
        Self { permits, limits, connections: Arc::default() }
    }

    /// Accepts the next connection; `None` if its address is at its limit. Cancel safe: a
    /// connection that was not accepted stays in the backlog.
    pub async fn accept(
        &self,
        listener: &TcpListener,
    ) -> io::Result<Option<(TcpStream, ConnectionPermit)>> {
        self.accept_from(listener, |_| true).await
    }

    /// The same; `None` also if the listener is not for this address, which then counts nowhere.
    pub async fn accept_from(
        &self,
        listener: &TcpListener,
        is_peer: impl Fn(IpAddr) -> bool,
    ) -> io::Result<Option<(TcpStream, ConnectionPermit)>> {
        // Never closed: the semaphore exists as long as `self`.
        let Ok(permit) = self.permits.clone().acquire_owned().await else { return Ok(None) };
        let (stream, peer) = listener.accept().await?;
        let admitted = is_peer(peer.ip()).then(|| self.admit(peer.ip(), permit)).flatten();
        Ok(admitted.map(|permit| (stream, permit)))
    }

    /// Counts a connection that was accepted elsewhere; `None` if a limit is reached.
    pub fn try_admit(&self, peer: IpAddr) -> Option<ConnectionPermit> {
        let permit = self.permits.clone().try_acquire_owned().ok()?;
        self.admit(peer, permit)
    }

    fn admit(&self, peer: IpAddr, permit: OwnedSemaphorePermit) -> Option<ConnectionPermit> {
        let peer = peer.to_canonical();
        let mut connections = self.connections.lock();
        let count = connections.by_address.entry(peer).or_default();
        if *count >= self.limits.per_address && !peer.is_loopback() {
            return None;
        }
        *count += 1;
        connections.make_room(peer, &self.limits);
        let number = connections.started;
        connections.started += 1;
        let replaced = CancellationToken::new();
        let entry = Unauthenticated { peer, replaced: replaced.clone() };
        connections.unauthenticated.insert(number, entry);
        Some(ConnectionPermit {
            peer,
            number,
            limits: self.limits,
            connections: self.connections.clone(),
            replaced,
            progress: watch::Sender::default(),
            _permit: permit,
        })
    }
}

impl Connections {
    /// Replaces the oldest unauthenticated connection if there are too many: of this address if
    /// they are its own, else of any.
    fn make_room(&mut self, peer: IpAddr, limits: &ConnectionLimits) {
        let own = |entry: &&Unauthenticated| entry.peer == peer;
        let of_peer = self.unauthenticated.values().filter(own).count();
        let oldest = if of_peer >= limits.unauthenticated_per_address && !peer.is_loopback() {
            self.unauthenticated.iter().find(|(_, entry)| own(entry)).map(|(number, _)| *number)
        } else if self.unauthenticated.len() >= limits.unauthenticated {
            self.unauthenticated.keys().next().copied()
        } else {
            None
        };
        if let Some(entry) = oldest.and_then(|number| self.unauthenticated.remove(&number)) {
            entry.replaced.cancel();
        }
    }

    /// Takes a connection off those that may be replaced, unless too many are.
    fn protect(&mut self, number: u64, peer: IpAddr, limits: &ConnectionLimits) -> bool {
        let of_peer = self.checked.values().filter(|other| **other == peer).count();
        let is_full = self.checked.len() >= limits.unauthenticated
            || of_peer >= limits.unauthenticated_per_address && !peer.is_loopback();
        // One that has been replaced is about to be closed.
        if is_full || self.unauthenticated.remove(&number).is_none() {
            return false;
        }
        self.checked.insert(number, peer);
        true
    }
}

impl ConnectionPermit {
    /// The client's address, IPv4 addresses never in their IPv6 form.
    pub fn peer(&self) -> IpAddr {
        self.peer
    }

    /// From now on the connection is not limited by [`Self::expired`].
    pub fn authenticated(&self) {
        if !self.progress.borrow().authenticated {
            let mut connections = self.connections.lock();
            connections.unauthenticated.remove(&self.number);
            connections.checked.remove(&self.number);
            // Before the lock is released: a check that ends meanwhile must not undo it.
            self.progress.send_modify(|progress| progress.authenticated = true);
        }
    }

    /// Counts a request until the result is dropped. The connection is not replaced meanwhile, or a
    /// burst of clients with credentials would replace each other.
    pub fn check_credentials(&self) -> CredentialCheck<'_> {
        let mut connections = self.connections.lock();
        let progress = *self.progress.borrow();
        let protects = !progress.authenticated
            && !progress.refused
            && (progress.checking > 0 || connections.protect(self.number, self.peer, &self.limits));
        if protects {
            self.progress.send_modify(|progress| progress.checking += 1);
        }
        CredentialCheck { permit: self, protects }
    }

    /// Returns when the connection must be closed: it was replaced by a newer one, or has not
    /// authenticated for [`AUTHENTICATION_TIMEOUT`].
    pub async fn expired(&self) {
        let mut progress = self.progress.subscribe();
        let idle = async {
            loop {
                // These waits fail only if the sender is dropped, and `self` holds it.
                let _ = progress.wait_for(|progress| progress.checking == 0).await;
                let next =
                    progress.wait_for(|progress| progress.checking > 0 || progress.authenticated);
                if tokio::time::timeout(AUTHENTICATION_TIMEOUT, next).await.is_err() {
                    return;
                }
                if progress.borrow().authenticated {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = self.replaced.cancelled() => {}
            () = idle => {}
        }
    }
}

impl Drop for CredentialCheck<'_> {
    fn drop(&mut self) {
        let permit = self.permit;
        let mut connections = permit.connections.lock();
        if self.protects {
            permit.progress.send_modify(|progress| progress.checking -= 1);
        }
        let progress = *permit.progress.borrow();
        if progress.authenticated {
            return;
        }
        permit.progress.send_modify(|progress| progress.refused = true);
        if self.protects && progress.checking == 0 {
            connections.checked.remove(&permit.number);
            let replaced = permit.replaced.clone();
            let entry = Unauthenticated { peer: permit.peer, replaced };
            connections.unauthenticated.insert(permit.number, entry);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut connections = self.connections.lock();
        connections.unauthenticated.remove(&self.number);
        connections.checked.remove(&self.number);
        if let Some(count) = connections.by_address.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                connections.by_address.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests;
