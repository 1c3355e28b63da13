//! In-memory part of the store: node leases and events, lost on restart.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use jiff::Timestamp;

use super::{Event, EventType, Key, Limits, Scope};
use crate::document::{Document, Revision};

#[derive(Debug)]
pub(super) struct Memory {
    objects: BTreeMap<Key, Document>,
    log: VecDeque<Event>,
    log_bytes: usize,
    /// History up to this revision is not kept.
    oldest: Revision,
    /// Expiring objects by the revision of their last change, which is also the order of expiry.
    expiring: BTreeMap<Revision, (Key, Timestamp)>,
    /// Keys and texts of the expiring objects.
    expiring_bytes: usize,
}

impl Memory {
    pub(super) fn new(start: Revision) -> Self {
        Self {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            log_bytes: 0,
            oldest: start,
            expiring: BTreeMap::new(),
            expiring_bytes: 0,
        }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Document> {
        self.objects.get(key).cloned()
    }

    pub(super) fn revision_of(&self, key: &Key) -> Option<Revision> {
        self.objects.get(key).map(|document| document.revision)
    }

    pub(super) fn oldest(&self) -> Revision {
        self.oldest
    }

    pub(super) fn list<'a>(
        &'a self,
        scope: &'a Scope,
        after: Option<&str>,
    ) -> impl Iterator<Item = (Key, Document)> + 'a {
        let start = match after.filter(|after| *after > scope.prefix()) {
            Some(after) => Bound::Excluded(Key::from_stored(after)),
            None => Bound::Included(Key::from_stored(scope.prefix())),
        };
        self.objects
            .range((start, Bound::Unbounded))
            .take_while(|(key, _)| scope.holds(key.as_str()))
            .map(|(key, document)| (key.clone(), document.clone()))
    }

    pub(super) fn history<'a>(
        &'a self,
        scope: &'a Scope,
        after: Revision,
        upto: Revision,
    ) -> impl Iterator<Item = Event> + 'a {
        let start = self.log.partition_point(|event| event.revision <= after);
        self.log
            .range(start..)
            .take_while(move |event| event.revision <= upto)
            .filter(|event| scope.holds(event.key.as_str()))
            .cloned()
    }

    pub(super) fn record(&mut self, event: Event, now: Timestamp, limits: &Limits) {
        let old = match event.event_type {
            EventType::Created | EventType::Updated => {
                if event.key.expires() {
                    self.expiring.insert(event.revision, (event.key.clone(), now));
                    self.expiring_bytes += event.key.as_str().len() + event.text.len();
                }
                self.objects.insert(event.key.clone(), event.document())
            }
            EventType::Deleted => self.objects.remove(&event.key),
        };
        if let Some(old) = old
            && self.expiring.remove(&old.revision).is_some()
        {
            self.expiring_bytes -= event.key.as_str().len() + old.text.len();
        }
        self.log_bytes += weight(&event);
        self.log.push_back(event);
        while self.log.len() > limits.log_entries || self.log_bytes > limits.log_bytes {
            let Some(dropped) = self.log.pop_front() else { break };
            self.log_bytes -= weight(&dropped);
            self.oldest = dropped.revision;
        }
    }

    /// The next object to expire, if any: the oldest, when it is too old, or there are too many or
    /// too large ones.
    pub(super) fn next_expired(&self, now: Timestamp, limits: &Limits) -> Option<(Key, Document)> {
        let (_, (key, since)) = self.expiring.first_key_value()?;
        let age = now.duration_since(*since);
        let over = age >= jiff::SignedDuration::try_from(limits.event_ttl).ok()?;
        if over
            || self.expiring.len() > limits.max_events
            || self.expiring_bytes > limits.event_bytes
        {
            return Some((key.clone(), self.objects.get(key)?.clone()));
        }
        None
    }
}

fn weight(event: &Event) -> usize {
    let previous = event.previous.as_ref().map_or(0, bytes::Bytes::len);
    event.key.as_str().len() + event.text.len() + previous
}
