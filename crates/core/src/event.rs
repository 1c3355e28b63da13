//! Event correlation: which events are sent, repeated with a count, combined or dropped.
//!
//! A crash-looping container or a missing volume causes the same event every few seconds. Events
//! are therefore correlated as every Kubernetes component does: a repeated event only raises a
//! count; after ten different messages of one kind within ten minutes the rest are combined into
//! one event; and each object has a burst of 25 events, refilled by one every five minutes. The rate
//! of the whole node, [`EventRate`], delays events and drops none.
//!
//! The wall clock is used, because events carry no other time; a clock step costs or admits a few
//! events.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::throttle::Throttle;
use crate::time::Mono;

/// Size of each cache; the least recently used entry is dropped first.
const CACHE_SIZE: usize = 512;
/// Different messages of one kind that are sent separately within `SIMILAR_WITHIN`.
const TEXTS: usize = 10;
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_secs(600);
/// Events that an object may send at once, and the time after which one more is allowed.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
const COMBINED: &str = "(combined from similar events): ";

/// Events that a node may send: `eventRecordQPS` and `eventBurst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRate {
    /// 0: no limit.
    pub per_second: u32,
    pub burst: u32,
}

impl EventRate {
    /// `None` if there is no limit.
    pub fn throttle(self, now: Mono) -> Option<Throttle> {
        Throttle::new(self.per_second, self.burst, now)
    }
}

impl Default for EventRate {
    fn default() -> Self {
        Self { per_second: 50, burst: 100 }
    }
}

/// The parts of an event that are compared with others.
#[derive(Clone, Copy, Debug)]
pub struct IncomingEvent<'a> {
    /// Key of the object that the event is about.
    pub object: &'a str,
    /// Part of the object, as a field path.
    pub part: &'a str,
    pub severity: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
    pub at: Timestamp,
}

/// What to do with an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Correlation {
    /// A new event. Once it is sent, [`Correlator::record`] stores its name.
    New { key: Key, message: String },
    /// Already sent under this name; `count` is its new count.
    Repeated { key: Key, name: String, count: i32, message: String },
    /// The object has exceeded its rate limit.
    Suppressed,
}

/// Key of an event in the caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

/// Caches of recent events.
#[derive(Debug, Default)]
pub struct Correlator {
    similar: Recent<Similar>,
    sent: Recent<(String, i32)>,
    allowances: Recent<Allowance>,
}

/// Recent events of one kind about one object.
#[derive(Debug)]
struct Similar {
    texts: VecDeque<String>,
    last: Timestamp,
}

#[derive(Debug)]
struct Allowance {
    left: u32,
    /// When the next event began to accrue.
    since: Timestamp,
}

impl Correlator {
    pub fn correlate(&mut self, event: &IncomingEvent<'_>) -> Correlation {
        let (key, message) = self.combine(event);
        let known = self.sent.get(&key).map(|(name, count)| {
            // Suppressed events are counted too.
            *count = count.saturating_add(1);
            (name.clone(), *count)
        });
        if !self.allows(event) {
            return Correlation::Suppressed;
        }
        let key = Key(key);
        match known {
            Some((name, count)) => Correlation::Repeated { key, name, count, message },
            None => Correlation::New { key, message },
        }
    }

    /// Records that an event was sent for the first time, under this name.
    pub fn record(&mut self, key: Key, name: String) {
        self.sent.put(key.0, (name, 1));
    }

    /// The event no longer exists in the API: a repetition is sent as a new event.
    pub fn forget(&mut self, key: &Key) {
        self.sent.remove(&key.0);
    }

    /// The cache key and the message of an event.
    fn combine(&mut self, event: &IncomingEvent<'_>) -> (String, String) {
        let IncomingEvent { object, part, severity, reason, message, at } = *event;
        let kind = joined(&[object, severity, reason]);
        let own = || (joined(&[object, part, severity, reason, message]), message.to_owned());
        let Some(similar) = self.similar.get(&kind) else {
            let texts = VecDeque::from([message.to_owned()]);
            self.similar.put(kind, Similar { texts, last: at });
            return own();
        };
        if at.duration_since(similar.last) > SIMILAR_WITHIN {
            similar.texts.clear();
        }
        similar.last = at;
        if !similar.texts.iter().any(|text| text == message) {
            similar.texts.push_back(message.to_owned());
        }
        if similar.texts.len() < TEXTS {
            return own();
        }
        similar.texts.pop_front();
        (kind, format!("{COMBINED}{message}"))
    }

    /// Whether the object may send one more event; counts it if so.
    fn allows(&mut self, event: &IncomingEvent<'_>) -> bool {
        let Some(allowance) = self.allowances.get(event.object) else {
            let allowance = Allowance { left: BURST - 1, since: event.at };
            self.allowances.put(event.object.to_owned(), allowance);
            return true;
        };
        let waited = u64::try_from(event.at.duration_since(allowance.since).as_secs()).unwrap_or(0);
        let gained = waited / REFILL.as_secs();
        let left = u64::from(allowance.left).saturating_add(gained).min(u64::from(BURST));
        allowance.left = u32::try_from(left).unwrap_or(BURST);
        let counted = REFILL * u32::try_from(gained).unwrap_or(u32::MAX);
        allowance.since = if allowance.left == BURST {
            event.at
        } else {
            allowance.since.saturating_add(counted).unwrap_or(event.at)
        };
        match allowance.left.checked_sub(1) {
            Some(left) => {
                allowance.left = left;
                true
            }
            None => false,
        }
    }
}

/// No part of an event contains a NUL byte.
fn joined(parts: &[&str]) -> String {
    parts.join("\0")
}

/// A small cache, least recently used first. A linear search is enough: events are rare.
#[derive(Debug)]
struct Recent<V>(VecDeque<(String, V)>);

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<V> Recent<V> {
    /// The value, which becomes the most recently used.
    fn get(&mut self, name: &str) -> Option<&mut V> {
        let position = self.0.iter().position(|(known, _)| known == name)?;
        let entry = self.0.remove(position)?;
        self.0.push_back(entry);
        self.0.back_mut().map(|(_, value)| value)
    }

    fn put(&mut self, name: String, value: V) {
        self.remove(&name);
        if self.0.len() == CACHE_SIZE {
            self.0.pop_front();
        }
        self.0.push_back((name, value));
    }

    fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| known != name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn event(message: &str, second: i64) -> IncomingEvent<'_> {
        IncomingEvent {
            object: "web",
            part: "",
            severity: "Warning",
            reason: "BackOff",
            message,
            at: at(second),
        }
    }

    /// Correlates an event and records it if it is new.
    fn send(correlator: &mut Correlator, event: &IncomingEvent<'_>) -> Correlation {
        let sent = correlator.correlate(event);
        if let Correlation::New { key, message } = &sent {
            correlator.record(key.clone(), message.clone());
        }
        sent
    }

    #[test]
    fn repeated_event_is_counted() {
        let mut correlator = Correlator::default();
        assert!(matches!(send(&mut correlator, &event("again", 0)), Correlation::New { .. }));
        for want in 2..5 {
            let sent = send(&mut correlator, &event("again", want.into()));
            let Correlation::Repeated { key, name, count, .. } = sent else { panic!("{sent:?}") };
            assert_eq!((name.as_str(), count), ("again", want));
            if want == 4 {
                correlator.forget(&key);
            }
        }
        assert!(matches!(send(&mut correlator, &event("again", 9)), Correlation::New { .. }));
        let part = IncomingEvent { part: "spec.containers{app}", ..event("again", 9) };
        assert!(
            matches!(send(&mut correlator, &part), Correlation::New { .. }),
            "another container"
        );
    }

    #[test]
    fn many_messages_of_one_kind_are_combined() {
        let mut correlator = Correlator::default();
        let texts: Vec<String> = (0..13).map(|number| format!("text {number}")).collect();
        let sent: Vec<Correlation> =
            texts.iter().map(|text| send(&mut correlator, &event(text, 1))).collect();
        for (sent, text) in sent.iter().zip(&texts).take(9) {
            assert!(
                matches!(sent, Correlation::New { message, .. } if message == text),
                "{sent:?}"
            );
        }
        let combined = "(combined from similar events): text 9";
        assert!(matches!(&sent[9], Correlation::New { message, .. } if message == combined));
        let Correlation::Repeated { count: 4, message, .. } = &sent[12] else { panic!("{sent:?}") };
        assert_eq!(message, "(combined from similar events): text 12");
        let other = IncomingEvent { reason: "Failed", ..event("text 13", 1) };
        assert!(
            matches!(send(&mut correlator, &other), Correlation::New { message, .. } if message == "text 13")
        );
        // After ten minutes without such an event they are sent separately again.
        let later = send(&mut correlator, &event("text 14", 602));
        assert!(matches!(later, Correlation::New { message, .. } if message == "text 14"));
    }

    #[test]
    fn noisy_object_is_limited_to_one_event_in_five_minutes() {
        let mut correlator = Correlator::default();
        let mut sent =
            |second| send(&mut correlator, &event("again", second)) != Correlation::Suppressed;
        assert_eq!((0..100).filter(|_| sent(0)).count(), 25);
        assert_eq!([299, 300, 301, 599, 600].map(&mut sent), [false, true, false, false, true]);
        // A clock that steps back neither takes away nor refills.
        assert!(!sent(10));
        // A long quiet time refills the burst, and no more than that.
        let day = 90_000;
        assert_eq!((0..100).filter(|_| sent(day)).count(), 25);
        let other = IncomingEvent { object: "other", ..event("again", day) };
        assert!(
            matches!(correlator.correlate(&other), Correlation::New { .. }),
            "others are not affected"
        );
    }

    #[test]
    fn suppressed_events_are_counted() {
        let mut correlator = Correlator::default();
        for _ in 0..30 {
            send(&mut correlator, &event("again", 0));
        }
        let sent = send(&mut correlator, &event("again", 300));
        assert!(matches!(sent, Correlation::Repeated { count: 31, .. }), "{sent:?}");
    }

    #[test]
    fn caches_are_bounded() {
        let mut correlator = Correlator::default();
        for number in 0..3 * CACHE_SIZE {
            let object = number.to_string();
            send(&mut correlator, &IncomingEvent { object: &object, ..event("x", 0) });
        }
        let lengths =
            (correlator.similar.0.len(), correlator.sent.0.len(), correlator.allowances.0.len());
        assert_eq!(lengths, (CACHE_SIZE, CACHE_SIZE, CACHE_SIZE));
    }
}
