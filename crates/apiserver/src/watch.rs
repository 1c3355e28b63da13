//! Watches: the current objects, if requested, and then every change, as JSON lines.
//!
//! The stream reads the store's log from its own position and waits at the end. With a selector, an
//! object that begins to match is ADDED and one that no longer matches is DELETED, whatever the
//! actual change.
//!
//! A watch of the network keeps what its client has not taken yet: at first the list of current
//! objects, later a few events. These bytes count against the share of the client.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::document::{Document, DocumentError, Revision};
use crate::encode::Encoder;
use crate::in_flight::RequestPermit;
use crate::json_edit;
use crate::negotiate::{Encoding, View};
use crate::object::Object;
use crate::options::{Freshness, ListOptions};
use crate::protobuf;
use crate::registry::PODS;
use crate::request::RequestInfo;
use crate::selector::Selector;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Event, EventType, HistoryError, Key, Scope, Subscription, Unseen};

/// Number of events read and sent at a time.
const BATCH: usize = 32;
/// Bytes of current objects after which no more are sent at a time.
const MAX_CHUNK_BYTES: usize = 256 << 10;
/// Interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark is sent this long before the end, so that the client's next watch continues
/// where this one ended.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Default timeout. In a cluster, watches end so that clients spread over servers again; here it
/// only bounds the cost of an abandoned connection.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchEventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl WatchEventType {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }
}

struct Watch {
    server: ApiServer,
    encoder: Encoder,
    scope: Scope,
    selector: Selector,
    /// Set for a watch of a single name.
    only: Option<Key>,
    position: WatchPosition,
    bookmarks: bool,
    next_bookmark: Instant,
    ends: Instant,
    stop: CancellationToken,
    changes: Subscription,
    /// There may be more in the log after `position`, whether or not anything changes.
    behind: bool,
    /// Counts the bytes that this watch keeps; none for a client in this process.
    permit: Option<RequestPermit>,
    /// Bytes of the objects that existed at the start and are still to be sent.
    initial_bytes: usize,
}

/// Position of a watch.
enum WatchPosition {
    /// Still sending the objects that existed at the start.
    Initial {
        objects: std::vec::IntoIter<(Key, Document)>,
        revision: Revision,
        bookmark_at_end: bool,
    },
    /// Everything up to this revision has been sent.
    After(Revision),
    Ended,
}

impl ApiServer {
    /// Response body of a watch.
    pub(crate) fn watch(
        &self,
        info: &RequestInfo,
        options: ListOptions,
        encoder: Encoder,
        permit: Option<RequestPermit>,
    ) -> Result<Body, ApiError> {
        let scope = Scope::new(info.resource, info.namespace_option());
        let initial = options.watch.send_initial_events;
        let from_start = match (initial, options.freshness) {
            (Some(requested), _) => requested,
            (None, Freshness::Newest | Freshness::Any) => true,
            (None, Freshness::NotOlderThan(_) | Freshness::Exactly(_)) => false,
        };
        let one = match info.name.is_empty() {
            true => options.selector.fields.name().filter(|_| is_one(info)),
            false => Some(info.name.as_str()),
        };
        // Before the list is read, so that nothing is missed in between.
        let changes = match one {
            Some(name) => {
                self.store().subscribe_to_key(&Key::new(info.resource, &info.namespace, name))
            }
            None => self.store().subscribe_to_scope(&scope),
        };
        let mut initial_bytes = 0;
        let position = if from_start {
            let (objects, revision) = self.store().list(&scope, None)?;
            initial_bytes = objects.iter().map(|(_, document)| document.text.len()).sum();
            if permit.as_ref().is_some_and(|permit| !permit.keep(initial_bytes)) {
                return Err(ApiError::too_many_requests());
            }
            if let Freshness::NotOlderThan(requested) | Freshness::Exactly(requested) =
                options.freshness
                && requested > revision
            {
                return Err(ApiError::version_too_large(requested, revision));
            }
            let bookmark_at_end = options.watch.bookmarks;
            WatchPosition::Initial { objects: objects.into_iter(), revision, bookmark_at_end }
        } else {
            match options.freshness {
                Freshness::NotOlderThan(requested) | Freshness::Exactly(requested) => {
                    WatchPosition::After(requested)
                }
                Freshness::Newest | Freshness::Any => WatchPosition::After(self.store().revision()),
            }
        };
        let now = Instant::now();
        let timeout = options.watch.timeout_seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let only =
            (!info.name.is_empty()).then(|| Key::new(info.resource, &info.namespace, &info.name));
        let ends = now.checked_add(timeout).unwrap_or(now + DEFAULT_TIMEOUT);
        let watch = Watch {
            server: self.clone(),
            encoder,
            scope,
            selector: options.selector,
            only,
            position,
            bookmarks: options.watch.bookmarks,
            next_bookmark: next_bookmark(now, ends),
            ends,
            stop: self.stopped(),
            changes,
            behind: true,
            permit,
            initial_bytes,
        };
        let lines = stream::unfold(watch, |mut watch| async move {
            let chunk = watch.next().await?;
            Some((Ok::<Bytes, std::convert::Infallible>(chunk), watch))
        });
        Ok(Body::from_stream(lines))
    }
}

/// Time of the bookmark after `now`. After the last one it is past the end.
fn next_bookmark(now: Instant, ends: Instant) -> Instant {
    let next = now + BOOKMARK_EVERY;
    match ends.checked_sub(BOOKMARK_BEFORE_END).filter(|last| now < *last) {
        Some(last) => next.min(last),
        None => next.max(ends),
    }
}

/// Whether a name selects one object: in one namespace, or of a kind without namespaces.
fn is_one(info: &RequestInfo) -> bool {
    !info.resource.namespaced || info.namespace_option().is_some()
}

impl Watch {
    /// The next lines, or the end of the stream.
    async fn next(&mut self) -> Option<Bytes> {
        // The client has taken the lines before.
        if let Some(permit) = &self.permit {
            permit.replace(self.initial_bytes);
        }
        loop {
            let mut lines = Vec::new();
            match std::mem::replace(&mut self.position, WatchPosition::Ended) {
                WatchPosition::Ended => return None,
                WatchPosition::Initial { objects, revision, bookmark_at_end } => {
                    self.send_initial(objects, revision, bookmark_at_end, &mut lines);
                }
                WatchPosition::After(revision) => {
                    if self.stop.is_cancelled() || Instant::now() >= self.ends {
                        return None; // also for a watch that always has events
                    }
                    self.position = WatchPosition::After(revision);
                    match self.next_read().await {
                        Some(after) => self.behind = !self.send_changes(after, &mut lines),
                        None if self.wait(&mut lines).await => {}
                        None => return None,
                    }
                }
            }
            if !lines.is_empty() {
                self.count(&mut lines);
                return Some(Bytes::from(lines));
            }
        }
    }

    /// Counts the next lines until the client takes them. Other watches of the client may keep too
    /// much already; then this one ends, and the client lists again.
    fn count(&mut self, lines: &mut Vec<u8>) {
        let Some(permit) = &self.permit else { return };
        if let WatchPosition::Initial { .. } = self.position {
            permit.replace(self.initial_bytes + lines.len()); // about what it was before
        } else if !permit.keep(self.initial_bytes + lines.len()) {
            lines.clear();
            self.fail(&ApiError::too_many_requests(), lines);
        }
    }

    fn send_initial(
        &mut self,
        mut objects: std::vec::IntoIter<(Key, Document)>,
        revision: Revision,
        bookmark_at_end: bool,
        lines: &mut Vec<u8>,
    ) {
        for (key, document) in objects.by_ref().take(BATCH) {
            self.initial_bytes = self.initial_bytes.saturating_sub(document.text.len());
            if self.only.as_ref().is_some_and(|only| only != &key) {
                continue;
            }
            match self.selector.matches(&document) {
                Ok(true) => self.line(WatchEventType::Added, &document, lines),
                Ok(false) => {}
                Err(error) => return self.fail(&error.into(), lines),
            }
            if lines.len() >= MAX_CHUNK_BYTES {
                break;
            }
        }
        if objects.len() > 0 {
            self.position = WatchPosition::Initial { objects, revision, bookmark_at_end };
            return;
        }
        if bookmark_at_end {
            self.bookmark(revision, true, lines);
        }
        self.position = WatchPosition::After(revision);
    }

    /// The revision after which the log has to be read; `None`: there is nothing new.
    async fn next_read(&mut self) -> Option<Revision> {
        let WatchPosition::After(position) = self.position else { return None };
        if !self.behind && self.next_read_is_empty() {
            return None;
        }
        // A change is marked right before it becomes visible.
        let Some(Unseen { first, visible_at }) = self.changes.take_unseen() else {
            return Some(position);
        };
        let mut current = self.server.store().changes();
        // The sender is in the store.
        let _ = current.wait_for(|revision| *revision >= visible_at).await;
        Some(if self.behind { position } else { position.max(first.saturating_sub(1)) })
    }

    /// Moves on to what is visible if there is nothing new; returns whether that is so.
    fn next_read_is_empty(&mut self) -> bool {
        let visible = self.server.store().revision();
        if self.changes.has_unseen() {
            return false;
        }
        if let WatchPosition::After(position) = self.position {
            self.position = WatchPosition::After(position.max(visible));
        }
        true
    }

    /// Sends the next range of the log; true if that was all of it. Most of the log may not concern
    /// this watch, so no lines does not mean that nothing is left.
    fn send_changes(&mut self, after: Revision, lines: &mut Vec<u8>) -> bool {
        let history = match self.server.store().history(&self.scope, after, BATCH) {
            Ok(history) => history,
            Err(HistoryError::TooOld { requested, oldest }) => {
                let why = format!("too old resource version: {requested} ({oldest})");
                self.fail(&ApiError::expired(why), lines);
                return true;
            }
            Err(HistoryError::Store(error)) => {
                self.fail(&error.into(), lines);
                return true;
            }
        };
        self.position = WatchPosition::After(history.upto);
        for event in history.events {
            if self.only.as_ref().is_some_and(|only| only != &event.key) {
                continue;
            }
            match self.filter_event(&event) {
                Ok(Some((kind, document))) => self.line(kind, &document, lines),
                Ok(None) => {}
                Err(error) => {
                    self.fail(&error.into(), lines);
                    return true;
                }
            }
        }
        !history.more
    }

    /// Applies the selector to an event.
    fn filter_event(
        &self,
        event: &Event,
    ) -> Result<Option<(WatchEventType, Document)>, DocumentError> {
        let document = event.document();
        let now = self.selector.matches(&document)?;
        let kind = match event.event_type {
            EventType::Created => WatchEventType::Added,
            EventType::Updated => WatchEventType::Modified,
            EventType::Deleted => WatchEventType::Deleted,
        };
        // No previous text means that the selector matches both or neither.
        let previous = event.previous_document().filter(|_| event.event_type == EventType::Updated);
        let Some(previous) = previous else { return Ok(now.then_some((kind, document))) };
        Ok(match (self.selector.matches(&previous)?, now) {
            (true, true) => Some((WatchEventType::Modified, document)),
            (false, true) => Some((WatchEventType::Added, document)),
            (true, false) => Some((WatchEventType::Deleted, previous)),
            (false, false) => None,
        })
    }

    /// Waits for something to send; false at the end of the watch.
    async fn wait(&mut self, lines: &mut Vec<u8>) -> bool {
        let until = if self.bookmarks { self.next_bookmark.min(self.ends) } else { self.ends };
        // Each arm only waits: dropping it loses nothing.
        tokio::select! { biased;
            () = self.stop.cancelled() => false,
            () = self.changes.changed() => true,
            () = tokio::time::sleep_until(until) => {
                let now = Instant::now();
                if now >= self.ends {
                    return false;
                }
                // A change comes before the bookmark, which is sent in the next wait then.
                if self.next_read_is_empty() && let WatchPosition::After(revision) = self.position {
                    self.next_bookmark = next_bookmark(now, self.ends);
                    self.bookmark(revision, false, lines);
                }
                true
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.server.now()
    }

    fn line(&mut self, kind: WatchEventType, document: &Document, lines: &mut Vec<u8>) {
        match self.encoder.document(document, self.now()) {
            Ok(object) => self.write(kind, &object, lines),
            Err(error) => self.fail(&error.into(), lines),
        }
    }

    /// `initial_end`: everything that existed at the start has been sent.
    fn bookmark(&mut self, revision: Revision, initial_end: bool, lines: &mut Vec<u8>) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let annotations = initial_end.then(|| json!({"k8s.io/initial-events-end": "true"}));
        json_edit::put(&mut metadata, &["annotations"], annotations);
        let resource = self.encoder.resource;
        let object = match self.encoder.view {
            View::Table => {
                // The table has one row, with the bookmark as its object.
                let object = Object::try_from(json!({"metadata": metadata})).unwrap_or_default();
                return self.write(
                    WatchEventType::Bookmark,
                    &self.encoder.object(object, self.now()),
                    lines,
                );
            }
            View::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            View::Whole if resource == &PODS => json!({
                "kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata,
                "spec": {"containers": null}, "status": {},
            }),
            View::Whole => json!({
                "kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata,
            }),
        };
        let object = self.encoder.bytes(&object);
        self.write(WatchEventType::Bookmark, &object, lines);
    }

    /// Sends an error as the last line.
    fn fail(&mut self, error: &ApiError, lines: &mut Vec<u8>) {
        let status: Value = serde_json::from_slice(&error.to_json()).unwrap_or_default();
        let status = self.encoder.bytes(&status);
        self.write(WatchEventType::Error, &status, lines);
        self.position = WatchPosition::Ended;
    }

    fn write(&mut self, kind: WatchEventType, object: &[u8], lines: &mut Vec<u8>) {
        if self.encoder.encoding == Encoding::Protobuf {
            return protobuf::encode::watch_event(kind.as_str(), object, lines);
        }
        lines.extend_from_slice(b"{\"type\":\"");
        lines.extend_from_slice(kind.as_str().as_bytes());
        lines.extend_from_slice(b"\",\"object\":");
        lines.extend_from_slice(object);
        lines.extend_from_slice(b"}\n");
    }
}

#[cfg(test)]
mod tests;
