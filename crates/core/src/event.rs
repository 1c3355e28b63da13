//! Which events are told, and as what.
//!
//! A container that crashes all day, or a volume that is never found, has the same news every few
//! seconds. So news is correlated as every Kubernetes component does it: the same event again only
//! raises a count; of one kind of event with ever new words only ten are told apart in ten minutes,
//! the rest as one; and an object that has told 25 events gets to tell one more every five minutes.
//!
//! Time here is the wall clock's: an event carries no other, and a clock that jumps costs a few
//! events more or less.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// How many of each are remembered; the longest unheard-of is forgotten first.
const REMEMBERED: usize = 512;
/// So many texts of one kind are told apart within this time of each other.
const TEXTS: usize = 10;
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_secs(600);
/// What an object may tell at once, and how long it waits for each one more.
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(300);
const COMBINED: &str = "(combined from similar events): ";

/// An event as far as it is compared with others.
#[derive(Clone, Copy, Debug)]
pub struct News<'a> {
    /// What it is about, in whatever words tell objects apart.
    pub object: &'a str,
    /// Which part of the object.
    pub part: &'a str,
    pub severity: &'a str,
    pub reason: &'a str,
    pub message: &'a str,
    pub at: Timestamp,
}

/// What becomes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is news. Once it is told, [`Correlator::told`] wants to know under which name.
    New { key: Key, message: String },
    /// It was told under this name, and is told so often now.
    Again { key: Key, name: String, count: i32, message: String },
    /// The object has told enough for now.
    Not,
}

/// What the same event is recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key(String);

/// Remembers what was told.
#[derive(Debug, Default)]
pub struct Correlator {
    similar: Recent<Similar>,
    told: Recent<(String, i32)>,
    allowances: Recent<Allowance>,
}

/// Events of one kind about one object.
#[derive(Debug)]
struct Similar {
    texts: VecDeque<String>,
    last: Timestamp,
}

#[derive(Debug)]
struct Allowance {
    left: u32,
    /// Since when the next one is being waited for.
    since: Timestamp,
}

impl Correlator {
    pub fn judge(&mut self, news: &News<'_>) -> Told {
        let (key, message) = self.combine(news);
        let known = self.told.get(&key).map(|(name, count)| {
            // Also what is not told is counted.
            *count = count.saturating_add(1);
            (name.clone(), *count)
        });
        if !self.allows(news) {
            return Told::Not;
        }
        let key = Key(key);
        match known {
            Some((name, count)) => Told::Again { key, name, count, message },
            None => Told::New { key, message },
        }
    }

    /// An event was told for the first time, under this name.
    pub fn told(&mut self, key: Key, name: String) {
        self.told.put(key.0, (name, 1));
    }

    /// It is not there any more: it would have to be told anew.
    pub fn forget(&mut self, key: &Key) {
        self.told.remove(&key.0);
    }

    /// Under which key, and in which words, an event is told.
    fn combine(&mut self, news: &News<'_>) -> (String, String) {
        let News { object, part, severity, reason, message, at } = *news;
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

    /// Whether the object may tell one more; if so, it did.
    fn allows(&mut self, news: &News<'_>) -> bool {
        let Some(allowance) = self.allowances.get(news.object) else {
            let allowance = Allowance { left: BURST - 1, since: news.at };
            self.allowances.put(news.object.to_owned(), allowance);
            return true;
        };
        let waited = u64::try_from(news.at.duration_since(allowance.since).as_secs()).unwrap_or(0);
        let gained = waited / REFILL.as_secs();
        let left = u64::from(allowance.left).saturating_add(gained).min(u64::from(BURST));
        allowance.left = u32::try_from(left).unwrap_or(BURST);
        let counted = REFILL * u32::try_from(gained).unwrap_or(u32::MAX);
        allowance.since = if allowance.left == BURST {
            news.at
        } else {
            allowance.since.saturating_add(counted).unwrap_or(news.at)
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

/// No part of an event has a zero in it that anyone could miss.
fn joined(parts: &[&str]) -> String {
    parts.join("\0")
}

/// The last few of many, by name. A line is enough: events are rare, and few are remembered.
#[derive(Debug)]
struct Recent<V>(VecDeque<(String, V)>);

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<V> Recent<V> {
    /// The value, which is the last to be forgotten now.
    fn get(&mut self, name: &str) -> Option<&mut V> {
        let place = self.0.iter().position(|(known, _)| known == name)?;
        let entry = self.0.remove(place)?;
        self.0.push_back(entry);
        self.0.back_mut().map(|(_, value)| value)
    }

    fn put(&mut self, name: String, value: V) {
        self.remove(&name);
        if self.0.len() == REMEMBERED {
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

    fn news(message: &str, second: i64) -> News<'_> {
        News {
            object: "web",
            part: "",
            severity: "Warning",
            reason: "BackOff",
            message,
            at: at(second),
        }
    }

    /// Judges, and tells what is new under its own words.
    fn tell(correlator: &mut Correlator, news: &News<'_>) -> Told {
        let told = correlator.judge(news);
        if let Told::New { key, message } = &told {
            correlator.told(key.clone(), message.clone());
        }
        told
    }

    #[test]
    fn the_same_event_again_is_counted() {
        let mut correlator = Correlator::default();
        assert!(matches!(tell(&mut correlator, &news("again", 0)), Told::New { .. }));
        for want in 2..5 {
            let told = tell(&mut correlator, &news("again", want.into()));
            let Told::Again { key, name, count, .. } = told else { panic!("{told:?}") };
            assert_eq!((name.as_str(), count), ("again", want));
            if want == 4 {
                correlator.forget(&key);
            }
        }
        assert!(matches!(tell(&mut correlator, &news("again", 9)), Told::New { .. }));
        let part = News { part: "spec.containers{app}", ..news("again", 9) };
        assert!(matches!(tell(&mut correlator, &part), Told::New { .. }), "of another container");
    }

    #[test]
    fn ever_new_words_of_one_kind_become_one_event() {
        let mut correlator = Correlator::default();
        let texts: Vec<String> = (0..13).map(|number| format!("text {number}")).collect();
        let told: Vec<Told> =
            texts.iter().map(|text| tell(&mut correlator, &news(text, 1))).collect();
        for (told, text) in told.iter().zip(&texts).take(9) {
            assert!(matches!(told, Told::New { message, .. } if message == text), "{told:?}");
        }
        let combined = "(combined from similar events): text 9";
        assert!(matches!(&told[9], Told::New { message, .. } if message == combined));
        let Told::Again { count: 4, message, .. } = &told[12] else { panic!("{told:?}") };
        assert_eq!(message, "(combined from similar events): text 12");
        let other = News { reason: "Failed", ..news("text 13", 1) };
        assert!(
            matches!(tell(&mut correlator, &other), Told::New { message, .. } if message == "text 13")
        );
        // After ten quiet minutes they are told apart again.
        let later = tell(&mut correlator, &news("text 14", 602));
        assert!(matches!(later, Told::New { message, .. } if message == "text 14"));
    }

    #[test]
    fn an_object_that_talks_too_much_is_heard_once_in_five_minutes() {
        let mut correlator = Correlator::default();
        let mut heard = |second| tell(&mut correlator, &news("again", second)) != Told::Not;
        assert_eq!((0..100).filter(|_| heard(0)).count(), 25);
        assert_eq!([299, 300, 301, 599, 600].map(&mut heard), [false, true, false, false, true]);
        // A clock that goes back takes nothing away and gives nothing.
        assert!(!heard(10));
        // An hour and a day of silence fill the allowance, and no more than that.
        let day = 90_000;
        assert_eq!((0..100).filter(|_| heard(day)).count(), 25);
        let other = News { object: "other", ..news("again", day) };
        assert!(matches!(correlator.judge(&other), Told::New { .. }), "others are not affected");
    }

    #[test]
    fn what_was_not_told_is_counted_all_the_same() {
        let mut correlator = Correlator::default();
        for _ in 0..30 {
            tell(&mut correlator, &news("again", 0));
        }
        let told = tell(&mut correlator, &news("again", 300));
        assert!(matches!(told, Told::Again { count: 31, .. }), "{told:?}");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::default();
        for number in 0..3 * REMEMBERED {
            let object = number.to_string();
            tell(&mut correlator, &News { object: &object, ..news("x", 0) });
        }
        let lengths =
            (correlator.similar.0.len(), correlator.told.0.len(), correlator.allowances.0.len());
        assert_eq!(lengths, (REMEMBERED, REMEMBERED, REMEMBERED));
    }
}
