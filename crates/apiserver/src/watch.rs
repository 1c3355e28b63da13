//! A watch: what there is, if asked for, and then every change, as a stream of JSON lines.
//!
//! The stream reads the store's log from its own place and waits when it has caught up. A
//! selector splits changes: an object that begins to match is ADDED, one that ceases to is
//! DELETED, whatever happened to it in truth.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::document::{Document, DocumentError, Revision};
use crate::negotiate::View;
use crate::options::{Freshness, ListOptions};
use crate::present::Presenter;
use crate::request::RequestInfo;
use crate::selector::Selector;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{Event, HistoryError, Key, Scope, What};
use crate::tree;

/// How many events are read, and sent, at a time.
const BATCH: usize = 32;
/// How often a client that likes bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// For a client that names no time. Watches end so that clients spread over servers again; here
/// it only bounds what a forgotten connection costs.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(45 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl Kind {
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
    presenter: Presenter,
    scope: Scope,
    selector: Selector,
    /// Of a watch for one name.
    only: Option<Key>,
    place: Place,
    bookmarks: bool,
    next_bookmark: Instant,
    ends: Instant,
    stop: CancellationToken,
    changes: tokio::sync::watch::Receiver<Revision>,
}

/// How far a watch has come.
enum Place {
    /// Still telling what there was when it began.
    Initial {
        objects: std::vec::IntoIter<(Key, Document)>,
        revision: Revision,
        say_end: bool,
    },
    /// Everything up to here is told.
    After(Revision),
    Ended,
}

impl ApiServer {
    /// The body of the answer to a watch.
    pub fn watch(
        &self,
        info: &RequestInfo,
        options: ListOptions,
        presenter: Presenter,
    ) -> Result<Body, ApiError> {
        let scope = Scope::new(info.resource, info.namespace_option());
        let initial = options.watch.send_initial_events;
        let from_start = match (initial, options.freshness) {
            (Some(asked), _) => asked,
            (None, Freshness::Newest | Freshness::Any) => true,
            (None, Freshness::NotOlderThan(_) | Freshness::Exactly(_)) => false,
        };
        let changes = self.store().changes();
        let place = if from_start {
            let (objects, revision) = self.store().list(&scope, None)?;
            if let Freshness::NotOlderThan(asked) | Freshness::Exactly(asked) = options.freshness
                && asked > revision
            {
                return Err(ApiError::version_too_large(asked, revision));
            }
            let say_end = initial == Some(true) && options.watch.bookmarks;
            Place::Initial { objects: objects.into_iter(), revision, say_end }
        } else {
            match options.freshness {
                Freshness::NotOlderThan(asked) | Freshness::Exactly(asked) => Place::After(asked),
                Freshness::Newest | Freshness::Any => Place::After(self.store().revision()),
            }
        };
        let now = Instant::now();
        let timeout = options.watch.timeout_seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        let only =
            (!info.name.is_empty()).then(|| Key::new(info.resource, &info.namespace, &info.name));
        let watch = Watch {
            server: self.clone(),
            presenter,
            scope,
            selector: options.selector,
            only,
            place,
            bookmarks: options.watch.bookmarks,
            next_bookmark: now + BOOKMARK_EVERY,
            ends: now.checked_add(timeout).unwrap_or(now + DEFAULT_TIMEOUT),
            stop: self.stopped(),
            changes,
        };
        let lines = stream::unfold(watch, |mut watch| async move {
            let chunk = watch.next().await?;
            Some((Ok::<Bytes, std::convert::Infallible>(chunk), watch))
        });
        Ok(Body::from_stream(lines))
    }
}

impl Watch {
    /// The next lines, or the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let mut lines = Vec::new();
            match std::mem::replace(&mut self.place, Place::Ended) {
                Place::Ended => return None,
                Place::Initial { objects, revision, say_end } => {
                    self.tell_initial(objects, revision, say_end, &mut lines);
                }
                Place::After(revision) => {
                    if self.stop.is_cancelled() || Instant::now() >= self.ends {
                        return None; // also of one that always has something to tell
                    }
                    // Seen before it is read, so that nothing written after the read is missed.
                    self.changes.borrow_and_update();
                    let caught_up = self.tell_changes(revision, &mut lines);
                    if lines.is_empty() && caught_up && !self.wait(&mut lines).await {
                        return None;
                    }
                }
            }
            if !lines.is_empty() {
                return Some(Bytes::from(lines));
            }
        }
    }

    fn tell_initial(
        &mut self,
        mut objects: std::vec::IntoIter<(Key, Document)>,
        revision: Revision,
        say_end: bool,
        lines: &mut Vec<u8>,
    ) {
        for (key, document) in objects.by_ref().take(BATCH) {
            if self.only.as_ref().is_some_and(|only| only != &key) {
                continue;
            }
            match self.selector.matches(&document) {
                Ok(true) => self.line(Kind::Added, &document, lines),
                Ok(false) => {}
                Err(error) => return self.fail(&error.into(), lines),
            }
        }
        if objects.len() > 0 {
            self.place = Place::Initial { objects, revision, say_end };
            return;
        }
        if say_end {
            let end = json!({"k8s.io/initial-events-end": "true"});
            self.bookmark(revision, Some(end), lines);
        }
        self.place = Place::After(revision);
    }

    /// Tells what comes next in the log; true when that was all of it. Most of a log may be
    /// nothing to this watch, so that nothing told does not mean that nothing is left.
    fn tell_changes(&mut self, after: Revision, lines: &mut Vec<u8>) -> bool {
        let history = match self.server.store().history(&self.scope, after, BATCH) {
            Ok(history) => history,
            Err(HistoryError::TooOld { asked, oldest }) => {
                let why = format!("too old resource version: {asked} ({oldest})");
                self.fail(&ApiError::expired(why), lines);
                return true;
            }
            Err(HistoryError::Store(error)) => {
                self.fail(&error.into(), lines);
                return true;
            }
        };
        self.place = Place::After(history.upto);
        for event in history.events {
            if self.only.as_ref().is_some_and(|only| only != &event.key) {
                continue;
            }
            match self.sight(&event) {
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

    /// What an event looks like through the selector.
    fn sight(&self, event: &Event) -> Result<Option<(Kind, Document)>, DocumentError> {
        let document = event.document();
        let now = self.selector.matches(&document)?;
        let kind = match event.what {
            What::Created => Kind::Added,
            What::Updated => Kind::Modified,
            What::Deleted => Kind::Deleted,
        };
        // No previous text means that the selector judges both alike.
        let previous = event.previous_document().filter(|_| event.what == What::Updated);
        let Some(previous) = previous else { return Ok(now.then_some((kind, document))) };
        Ok(match (self.selector.matches(&previous)?, now) {
            (true, true) => Some((Kind::Modified, document)),
            (false, true) => Some((Kind::Added, document)),
            (true, false) => Some((Kind::Deleted, previous)),
            (false, false) => None,
        })
    }

    /// Waits for something to tell; false when there is nothing more to wait for.
    async fn wait(&mut self, lines: &mut Vec<u8>) -> bool {
        let until = if self.bookmarks { self.next_bookmark.min(self.ends) } else { self.ends };
        // Each arm only waits: dropping it loses nothing.
        tokio::select! { biased;
            () = self.stop.cancelled() => false,
            changed = self.changes.changed() => changed.is_ok(),
            () = tokio::time::sleep_until(until) => {
                let now = Instant::now();
                if now >= self.ends {
                    return false;
                }
                self.next_bookmark = now + BOOKMARK_EVERY;
                if let Place::After(revision) = self.place {
                    self.bookmark(revision, None, lines);
                }
                true
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.server.now()
    }

    fn line(&mut self, kind: Kind, document: &Document, lines: &mut Vec<u8>) {
        match self.presenter.document(document, self.now()) {
            Ok(object) => self.write(kind, &object, lines),
            Err(error) => self.fail(&error.into(), lines),
        }
    }

    fn bookmark(&mut self, revision: Revision, annotations: Option<Value>, lines: &mut Vec<u8>) {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        tree::put(&mut metadata, &["annotations"], annotations);
        let resource = self.presenter.resource;
        let object = match self.presenter.view {
            View::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
                "columnDefinitions": null, "rows": [],
            }),
            View::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
            }),
            View::Whole => json!({
                "kind": resource.kind, "apiVersion": resource.api_version(), "metadata": metadata,
            }),
        };
        self.write(Kind::Bookmark, object.to_string().as_bytes(), lines);
    }

    /// The last line a client gets.
    fn fail(&mut self, error: &ApiError, lines: &mut Vec<u8>) {
        self.write(Kind::Error, &error.to_json(), lines);
        self.place = Place::Ended;
    }

    fn write(&mut self, kind: Kind, object: &[u8], lines: &mut Vec<u8>) {
        lines.extend_from_slice(b"{\"type\":\"");
        lines.extend_from_slice(kind.as_str().as_bytes());
        lines.extend_from_slice(b"\",\"object\":");
        lines.extend_from_slice(object);
        lines.extend_from_slice(b"}\n");
    }
}
