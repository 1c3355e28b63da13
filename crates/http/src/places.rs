//! Room for connections.
//!
//! There are only so many, or a flood of them takes the memory and the file handles of everybody
//! else; and one address gets only a share, or a single pod could shut out all the others. Loopback
//! is no single peer: everybody on the machine comes from there, so it has no share, only the whole.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone, Debug)]
pub struct Places {
    all: Arc<Semaphore>,
    /// Of one address.
    share: usize,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place that is free, for whoever comes next.
#[derive(Debug)]
pub struct Free<'a> {
    places: &'a Places,
    permit: OwnedSemaphorePermit,
}

/// Somebody's place, until it is dropped.
#[derive(Debug)]
pub struct Place {
    peer: IpAddr,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub fn new(all: usize, share: usize) -> Self {
        Self { all: Arc::new(Semaphore::new(all)), share, taken: Arc::default() }
    }

    /// Waits until there is a place. `None` never comes: they are not closed while one asks.
    pub async fn free(&self) -> Option<Free<'_>> {
        let permit = self.all.clone().acquire_owned().await.ok()?;
        Some(Free { places: self, permit })
    }
}

impl Free<'_> {
    /// `None`: the peer has its share.
    pub fn take(self, peer: IpAddr) -> Option<Place> {
        let peer = peer.to_canonical();
        let mut taken = self.places.taken.lock();
        let count = taken.entry(peer).or_default();
        if *count >= self.places.share && !peer.is_loopback() {
            return None;
        }
        *count += 1;
        Some(Place { peer, taken: self.places.taken.clone(), _permit: self.permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    async fn take(places: &Places, peer: impl Into<IpAddr>) -> Option<Place> {
        let free = tokio::time::timeout(std::time::Duration::from_secs(1), places.free()).await;
        free.ok()??.take(peer.into())
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_leaves_room_for_others() {
        let (greedy, modest) = (Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 3));
        let places = Places::new(5, 3);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(take(&places, greedy).await.unwrap());
        }
        assert!(take(&places, greedy).await.is_none(), "its share");
        assert!(take(&places, greedy.to_ipv6_mapped()).await.is_none(), "the same in other words");
        let other = take(&places, modest).await.unwrap();
        held.pop();
        held.push(take(&places, greedy).await.unwrap());
        let _last = take(&places, modest).await.unwrap();
        assert!(take(&places, modest).await.is_none(), "there are no more");
        drop(other);
        assert!(take(&places, modest).await.is_some());
        drop(held);
        assert_eq!(places.taken.lock().len(), 1, "who is gone is forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn the_machine_itself_has_all_the_room_there_is() {
        let places = Places::new(5, 1);
        let mut held = Vec::new();
        for _ in 0..5 {
            held.push(take(&places, Ipv4Addr::LOCALHOST).await.unwrap());
        }
        assert!(take(&places, Ipv4Addr::LOCALHOST).await.is_none());
    }
}
