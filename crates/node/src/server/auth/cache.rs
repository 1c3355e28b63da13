//! Answers that stay good for a while. Bounded, because strangers may ask anything.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const MOST: usize = 4096;

pub(super) struct Cache<K, V> {
    answers: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    pub(super) fn new() -> Self {
        Self { answers: Mutex::default() }
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        let answers = self.answers.lock();
        let (value, until) = answers.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    /// Remembers an answer. When there are too many, those that expired go, and if that is not
    /// enough, all: they can be asked for again.
    pub(super) fn put(&self, key: K, value: V, good_for: Duration) {
        if good_for.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut answers = self.answers.lock();
        if answers.len() >= MOST {
            answers.retain(|_, (_, until)| now < *until);
        }
        if answers.len() >= MOST {
            answers.clear();
        }
        answers.insert(key, (value, now + good_for));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_good_for_its_time_and_no_longer() {
        let cache = Cache::new();
        cache.put("a", 1, MINUTE);
        cache.put("never", 1, Duration::ZERO);
        assert_eq!((cache.get(&"a"), cache.get(&"b"), cache.get(&"never")), (Some(1), None, None));
        tokio::time::advance(MINUTE).await;
        assert_eq!(cache.get(&"a"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_without_end() {
        let cache = Cache::new();
        for key in 0..3 * MOST {
            cache.put(key, (), MINUTE);
            assert!(cache.answers.lock().len() <= MOST);
            assert_eq!(cache.get(&key), Some(()));
        }
    }
}
