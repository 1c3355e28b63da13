//! Full disk, as seen by a client.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use podwright_apiserver::{Clock, Limits, Store};
use redb::StorageBackend;
use redb::backends::InMemoryBackend;
use serde_json::json;

use super::test_server::{NS, TestServer};

/// Refuses writes while it is full.
#[derive(Debug)]
struct LimitedDisk {
    inner: InMemoryBackend,
    full: Arc<AtomicBool>,
}

impl LimitedDisk {
    fn check_space(&self) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for LimitedDisk {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.check_space()?;
        self.inner.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check_space()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check_space()?;
        self.inner.write(offset, data)
    }
}

#[tokio::test]
async fn client_gets_the_cause_and_succeeds_once_there_is_space() {
    let full = Arc::new(AtomicBool::new(false));
    let disk = LimitedDisk { inner: InMemoryBackend::new(), full: full.clone() };
    let clock = Clock::system();
    let store = Store::with_backend(disk, Limits::default(), clock.clone()).unwrap();
    let test_server = TestServer::on(store, clock).await;
    let maps = format!("{NS}/configmaps");
    let map = json!({"metadata": {"name": "m"}});

    full.store(true, Ordering::Relaxed);
    let refused = test_server.post(&maps, map.clone()).await;
    assert_eq!((refused.code, &refused.body["reason"]), (503, &json!("ServiceUnavailable")));
    assert!(refused.message().contains("free some space there, and try again"), "{refused:?}");
    assert_eq!(refused.headers["retry-after"], "1");

    full.store(false, Ordering::Relaxed);
    assert_eq!(
        test_server.get(&format!("{maps}/m")).await.code,
        404,
        "the refused object was not written"
    );
    test_server.post(&maps, map).await.ok();
}
