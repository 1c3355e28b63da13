//! Directory change notifications for any number of listeners over one inotify instance.
//!
//! The kernel allows 128 instances per user, and 500 clients may follow logs at a time. A watch on
//! the log directory of a container reports both new lines and rotation.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Polling interval if the kernel refuses a watch.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The watched directories.
#[derive(Default)]
pub(crate) struct DirectoryWatch {
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

/// Changes of one directory. The watch is removed with the last listener.
pub(crate) struct Changes {
    /// `None`: the kernel refused the watch.
    receiver: Option<(watch::Receiver<u64>, WatchHandle)>,
}

struct WatchHandle {
    directory_watch: Weak<DirectoryWatch>,
    descriptor: WatchDescriptor,
}

impl DirectoryWatch {
    /// Watches a directory. Earlier changes are not reported.
    pub(crate) fn watch(self: &Arc<Self>, dir: &Path) -> Changes {
        match self.try_watch(dir) {
            Ok(receiver) => Changes { receiver: Some(receiver) },
            Err(error) => {
                tracing::debug!(%error, directory = %dir.display(), "cannot watch, polling");
                Changes { receiver: None }
            }
        }
    }

    fn try_watch(self: &Arc<Self>, dir: &Path) -> io::Result<(watch::Receiver<u64>, WatchHandle)> {
        let mut hub = self.hub.lock();
        let hub = match &mut *hub {
            Some(hub) => hub,
            empty => {
                let inotify = Inotify::init()?;
                let watches = inotify.watches();
                let events = inotify.into_event_stream([0; 4096])?;
                tokio::spawn(forward_events(Arc::downgrade(self), events));
                empty.insert(Hub { watches, listeners: HashMap::new() })
            }
        };
        let mask = WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::DELETE_SELF
            | WatchMask::ONLYDIR;
        // The same directory has the same descriptor.
        let descriptor = hub.watches.add(dir, mask)?;
        let listeners = hub
            .listeners
            .entry(descriptor.clone())
            .or_insert_with(|| Listeners { changes: watch::Sender::new(0), count: 0 });
        listeners.count += 1;
        let handle = WatchHandle { directory_watch: Arc::downgrade(self), descriptor };
        Ok((listeners.changes.subscribe(), handle))
    }

    fn notify(&self, descriptor: &WatchDescriptor, mask: EventMask) {
        let hub = self.hub.lock();
        let Some(hub) = &*hub else { return };
        if mask.contains(EventMask::Q_OVERFLOW) {
            // It is unknown which events were lost.
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

impl Drop for WatchHandle {
    fn drop(&mut self) {
        let Some(directory_watch) = self.directory_watch.upgrade() else { return };
        let mut hub = directory_watch.hub.lock();
        let Some(hub) = &mut *hub else { return };
        let Some(listeners) = hub.listeners.get_mut(&self.descriptor) else { return };
        listeners.count -= 1;
        if listeners.count == 0 {
            hub.listeners.remove(&self.descriptor);
            // Fails if the directory, and with it the watch, is gone.
            let _ = hub.watches.remove(self.descriptor.clone());
        }
    }
}

impl Changes {
    /// Waits for a change since the last call, or since the watch began. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        let gone = match &mut self.receiver {
            Some((changes, _)) => changes.changed().await.is_err(),
            None => true,
        };
        if gone {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

async fn forward_events(
    directory_watch: Weak<DirectoryWatch>,
    mut events: EventStream<[u8; 4096]>,
) {
    while let Some(event) = events.next().await {
        let Some(directory_watch) = directory_watch.upgrade() else { return };
        match event {
            Ok(event) => directory_watch.notify(&event.wd, event.mask),
            Err(error) => {
                tracing::warn!(%error, "inotify failed, polling logs from now on");
                *directory_watch.hub.lock() = None;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn listeners_share_a_watch_that_is_removed_with_the_last() {
        let dir = tempfile::tempdir().unwrap();
        let directory_watch = Arc::new(DirectoryWatch::default());
        let mut listeners: Vec<Changes> =
            (0..500).map(|_| directory_watch.watch(dir.path())).collect();
        assert_eq!(directory_watch.watched(), 1);
        std::fs::write(dir.path().join("0.log"), "x").unwrap();
        for listener in &mut listeners {
            listener.next().await;
        }
        drop(listeners);
        assert_eq!(directory_watch.watched(), 0);
    }

    #[tokio::test]
    async fn unwatchable_directory_is_polled() {
        tokio::time::pause();
        let directory_watch = Arc::new(DirectoryWatch::default());
        directory_watch.watch(Path::new("/no/such/folder")).next().await;
    }
}
