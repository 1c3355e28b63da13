//! Cache with a time to live. Bounded, because unauthenticated clients choose the keys.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const MAX_ENTRIES: usize = 4096;

pub(super) struct Cache<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    pub(super) fn new() -> Self {
        Self { entries: Mutex::default() }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock();
        let (value, until) = entries.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Adds an entry. When the cache is full, expired entries are removed, and if that is not enough,
    /// all entries.
    pub(super) fn put(&self, key: K, value: V, good_for: Duration) {
        if good_for.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut entries = self.entries.lock();
        if entries.len() >= MAX_ENTRIES {
            entries.retain(|_, (_, until)| now < *until);
        }
        if entries.len() >= MAX_ENTRIES {
            entries.clear();
        }
        entries.insert(key, (value, now + good_for));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn entry_expires_after_its_time_to_live() {
        let cache = Cache::new();
        cache.put("a", 1, MINUTE);
        cache.put("never", 1, Duration::ZERO);
        assert_eq!((cache.get(&"a"), cache.get(&"b"), cache.get(&"never")), (Some(1), None, None));
        tokio::time::advance(MINUTE).await;
        assert_eq!(cache.get(&"a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn cache_size_is_bounded() {
        let cache = Cache::new();
        for key in 0..3 * MAX_ENTRIES {
            cache.put(key, (), MINUTE);
            assert!(cache.entries.lock().len() <= MAX_ENTRIES);
            assert_eq!(cache.get(&key), Some(()));
        }
    }
}
