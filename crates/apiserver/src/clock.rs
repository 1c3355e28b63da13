//! Wall clock and identifiers: the two inputs the server takes from outside.
//!
//! Why injected: the simulator runs the server on paused time with a seed, and a failing run must
//! replay exactly. Timers are not here; `tokio::time` can be paused.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use podwright_core::random::SplitMix64;
use rustls::crypto::SecureRandom;

/// Reads the wall clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    pub fn new(read: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The system clock.
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// A time as in `metadata` and conditions: whole seconds, UTC.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Generates UIDs and the random suffixes of generated names.
#[derive(Clone)]
pub struct Ids(Source);

#[derive(Clone)]
enum Source {
    System(&'static dyn SecureRandom),
    Seeded(Arc<Mutex<SplitMix64>>),
}

/// kube-apiserver's alphabet: no vowels, so that no name is a word.
const NAME_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

impl Ids {
    /// From the operating system.
    pub fn system() -> Self {
        Self(Source::System(rustls::crypto::ring::default_provider().secure_random))
    }

    /// The same sequence for the same seed.
    pub fn seeded(seed: u64) -> Self {
        Self(Source::Seeded(Arc::new(Mutex::new(SplitMix64::new(seed)))))
    }

    /// A version 4 UUID.
    pub fn uid(&self) -> String {
        let bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        let bits = bits & !(0xf << 76) | (0x4 << 76); // version 4
        let bits = bits & !(0x3 << 62) | (0x2 << 62); // the RFC's variant
        let hex = format!("{bits:032x}");
        let mut uid = String::with_capacity(36);
        for (at, digit) in hex.chars().enumerate() {
            if matches!(at, 8 | 12 | 16 | 20) {
                uid.push('-');
            }
            uid.push(digit);
        }
        uid
    }

    /// The five characters at the end of a generated name.
    pub fn suffix(&self) -> String {
        let mut draw = self.next();
        let base = NAME_ALPHABET.len() as u64;
        (0..5)
            .filter_map(|_| {
                let at = usize::try_from(draw % base).ok()?;
                draw /= base;
                NAME_ALPHABET.get(at).copied().map(char::from)
            })
            .collect()
    }

    fn next(&self) -> u64 {
        match &self.0 {
            Source::System(random) => {
                let mut bytes = [0; 8];
                // A kernel without randomness cannot run TLS either; repeated names are then
                // refused as already existing, never shared.
                let _ = random.fill(&mut bytes);
                u64::from_le_bytes(bytes)
            }
            Source::Seeded(state) => state.lock().draw(),
        }
    }
}

impl fmt::Debug for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_well_formed_uids() {
        // given two sources with one seed
        let (one, two) = (Ids::seeded(7), Ids::seeded(7));
        for _ in 0..100 {
            // when both generate
            let (uid, same) = (one.uid(), two.uid());
            // then they agree, on a version 4 UUID
            assert_eq!(uid, same);
            let parts: Vec<&str> = uid.split('-').collect();
            assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
            assert!(parts.get(2).is_some_and(|p| p.starts_with('4')), "{uid}");
            assert!(parts.get(3).is_some_and(|p| p.starts_with(['8', '9', 'a', 'b'])), "{uid}");
        }
    }

    #[test]
    fn system_uids_differ() {
        let ids = Ids::system();
        assert_ne!(ids.uid(), ids.uid());
        assert_eq!(ids.suffix().len(), 5);
    }

    #[test]
    fn time_is_written_in_whole_seconds() {
        let time = Timestamp::from_millisecond(1_700_000_000_123).unwrap_or_default();
        assert_eq!(rfc3339(time), "2023-11-14T22:13:20Z");
    }
}
