//! Connection limiter: a total limit and a limit per client address.
//!
//! The total protects memory and file descriptors from a flood of connections. The limit per
//! address keeps a single pod from shutting out all other clients. Loopback has no limit of its
//! own, only the total: all clients on this machine share that address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone, Debug)]
pub struct ConnectionLimiter {
    all: Arc<Semaphore>,
    /// Limit per client address.
    per_address: usize,
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A free slot, not yet assigned to a client.
#[derive(Debug)]
pub struct FreeSlot<'a> {
    limiter: &'a ConnectionLimiter,
    permit: OwnedSemaphorePermit,
}

/// One client's slot; dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionPermit {
    peer: IpAddr,
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimiter {
    pub fn new(all: usize, per_address: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), per_address, counts: Arc::default() }
    }

    /// Waits for a free slot. Never `None`: the semaphore is not closed while `self` exists.
    pub async fn free(&self) -> Option<FreeSlot<'_>> {
        let permit = self.all.clone().acquire_owned().await.ok()?;
        Some(FreeSlot { limiter: self, permit })
    }
}

impl FreeSlot<'_> {
    /// `None` if the peer is at its limit.
    pub fn take(self, peer: IpAddr) -> Option<ConnectionPermit> {
        let peer = peer.to_canonical();
        let mut counts = self.limiter.counts.lock();
        let count = counts.entry(peer).or_default();
        if *count >= self.limiter.per_address && !peer.is_loopback() {
            return None;
        }
        *count += 1;
        Some(ConnectionPermit { peer, counts: self.limiter.counts.clone(), _permit: self.permit })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    async fn take(
        limiter: &ConnectionLimiter,
        peer: impl Into<IpAddr>,
    ) -> Option<ConnectionPermit> {
        let free = tokio::time::timeout(std::time::Duration::from_secs(1), limiter.free()).await;
        free.ok()??.take(peer.into())
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_cannot_take_all_connections() {
        let (greedy, modest) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
        let limiter = ConnectionLimiter::new(5, 3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(take(&limiter, greedy).await.unwrap());
        }
        assert!(take(&limiter, greedy).await.is_none(), "at its limit");
        assert!(take(&limiter, greedy.to_ipv6_mapped()).await.is_none(), "same address, as IPv6");
        let other = take(&limiter, modest).await.unwrap();
        held.pop();
        held.push(take(&limiter, greedy).await.unwrap());
        let _last = take(&limiter, modest).await.unwrap();
        assert!(take(&limiter, modest).await.is_none(), "at the total limit");
        drop(other);
        assert!(take(&limiter, modest).await.is_some());
        drop(held);
        assert_eq!(limiter.counts.lock().len(), 1, "addresses without connections are dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn loopback_is_limited_only_by_the_total() {
        let limiter = ConnectionLimiter::new(5, 1);
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(take(&limiter, Ipv4Addr::LOCALHOST).await.unwrap());
        }
        assert!(take(&limiter, Ipv4Addr::LOCALHOST).await.is_none());
    }
}
