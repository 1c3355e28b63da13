//! Word of changes in folders, for any number of listeners over one inotify instance.
//!
//! Why one: the kernel gives a user 128 instances, and 500 people may follow logs at a time. A
//! watch on the folder of a container's logs tells of new lines and of rotation alike.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Where the kernel has no watch to give, time has to do.
const WITHOUT_WATCH: Duration = Duration::from_secs(1);

/// The folders somebody listens to.
#[derive(Default)]
pub(crate) struct Folders {
    hub: Mutex<Option<Hub>>,
}

struct Hub {
    watches: Watches,
    listeners: HashMap<WatchDescriptor, Listeners>,
}

struct Listeners {
    changes: watch::Sender<u64>,
    count: usize,
}

/// Changes of one folder. The watch goes with the last of them.
pub(crate) struct Changes {
    /// `None`: the kernel would not watch the folder.
    heard: Option<(watch::Receiver<u64>, Lease)>,
}

struct Lease {
    folders: Weak<Folders>,
    descriptor: WatchDescriptor,
}

impl Folders {
    /// Listens to a folder. What changed before is not told.
    pub(crate) fn watch(self: &Arc<Self>, folder: &Path) -> Changes {
        match self.try_watch(folder) {
            Ok(heard) => Changes { heard: Some(heard) },
            Err(error) => {
                tracing::debug!(%error, folder = %folder.display(), "polled, not watched");
                Changes { heard: None }
            }
        }
    }

    fn try_watch(self: &Arc<Self>, folder: &Path) -> io::Result<(watch::Receiver<u64>, Lease)> {
        let mut hub = self.hub.lock();
        let hub = match &mut *hub {
            Some(hub) => hub,
            empty => {
                let inotify = Inotify::init()?;
                let watches = inotify.watches();
                let events = inotify.into_event_stream([0; 4096])?;
                tokio::spawn(pass_on(Arc::downgrade(self), events));
                empty.insert(Hub { watches, listeners: HashMap::new() })
            }
        };
        let mask = WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::DELETE_SELF
            | WatchMask::ONLYDIR;
        // The same folder gives the same descriptor again.
        let descriptor = hub.watches.add(folder, mask)?;
        let listeners = hub
            .listeners
            .entry(descriptor.clone())
            .or_insert_with(|| Listeners { changes: watch::Sender::new(0), count: 0 });
        listeners.count += 1;
        let lease = Lease { folders: Arc::downgrade(self), descriptor };
        Ok((listeners.changes.subscribe(), lease))
    }

    fn tell(&self, descriptor: &WatchDescriptor, mask: EventMask) {
        let hub = self.hub.lock();
        let Some(hub) = &*hub else { return };
        if mask.contains(EventMask::Q_OVERFLOW) {
            // Nobody knows whose events were lost.
            hub.listeners.values().for_each(|l| l.changes.send_modify(|count| *count += 1));
        } else if let Some(listeners) = hub.listeners.get(descriptor) {
            listeners.changes.send_modify(|count| *count += 1);
        }
    }

    #[cfg(test)]
    fn watched(&self) -> usize {
        self.hub.lock().as_ref().map_or(0, |hub| hub.listeners.len())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(folders) = self.folders.upgrade() else { return };
        let mut hub = folders.hub.lock();
        let Some(hub) = &mut *hub else { return };
        let Some(listeners) = hub.listeners.get_mut(&self.descriptor) else { return };
        listeners.count -= 1;
        if listeners.count == 0 {
            hub.listeners.remove(&self.descriptor);
            // It fails if the folder is gone, and the watch with it.
            let _ = hub.watches.remove(self.descriptor.clone());
        }
    }
}

impl Changes {
    /// Waits for a change since the last call, or since listening began. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        let gone = match &mut self.heard {
            Some((changes, _)) => changes.changed().await.is_err(),
            None => true,
        };
        if gone {
            tokio::time::sleep(WITHOUT_WATCH).await;
        }
    }
}

async fn pass_on(folders: Weak<Folders>, mut events: EventStream<[u8; 4096]>) {
    while let Some(event) = events.next().await {
        let Some(folders) = folders.upgrade() else { return };
        match event {
            Ok(event) => folders.tell(&event.wd, event.mask),
            Err(error) => {
                tracing::warn!(%error, "word of changed logs is lost; they are polled from now on");
                *folders.hub.lock() = None;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_listeners_share_a_watch_and_the_last_takes_it_along() {
        let folder = tempfile::tempdir().unwrap();
        let folders = Arc::new(Folders::default());
        let mut listeners: Vec<Changes> = (0..500).map(|_| folders.watch(folder.path())).collect();
        assert_eq!(folders.watched(), 1);
        std::fs::write(folder.path().join("0.log"), "x").unwrap();
        for listener in &mut listeners {
            listener.next().await;
        }
        drop(listeners);
        assert_eq!(folders.watched(), 0);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_watched_is_polled() {
        tokio::time::pause();
        let folders = Arc::new(Folders::default());
        folders.watch(Path::new("/no/such/folder")).next().await;
    }
}
