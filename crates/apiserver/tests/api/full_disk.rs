//! A disk without space, as a client meets it.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use podwright_apiserver::{Clock, Limits, Store};
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use serde_json::json;

use super::world::{NS, World};

/// Takes nothing more while it is full.
#[derive(Debug)]
struct Small {
    inner: InMemoryBackend,
    full: Arc<AtomicBool>,
}

impl Small {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for Small {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.room()?;
        self.inner.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.inner.write(offset, data)
    }
}

#[tokio::test]
async fn a_client_is_told_what_is_full_and_succeeds_once_it_is_not() {
    let full = Arc::new(AtomicBool::new(false));
    let disk = Small { inner: InMemoryBackend::new(), full: full.clone() };
    let clock = Clock::system();
    let store = Store::with_backend(disk, Limits::default(), clock.clone()).unwrap();
    let world = World::on(store, clock).await;
    let maps = format!("{NS}/configmaps");
    let map = json!({"metadata": {"name": "m"}});

    full.store(true, Ordering::Relaxed);
    let refused = world.post(&maps, map.clone()).await;
    assert_eq!((refused.code, &refused.body["reason"]), (503, &json!("ServiceUnavailable")));
    assert!(refused.message().contains("free some space there, and try again"), "{refused:?}");
    assert_eq!(refused.headers["retry-after"], "1");

    full.store(false, Ordering::Relaxed);
    assert_eq!(world.get(&format!("{maps}/m")).await.code, 404, "what was refused is not there");
    world.post(&maps, map).await.ok();
}
