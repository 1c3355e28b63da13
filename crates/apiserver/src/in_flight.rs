//! Limits on requests in progress: their number and the memory of their bodies, in total and for
//! each client address.
//!
//! A pod with a token can send requests that are not finished, and can leave responses unread. Each
//! listener has limits of its own, so that pods cannot use up those of the machine's owner, and
//! within a listener no address can use up those of the others. Requests of this process have none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::status::ApiError;

/// Bodies from this size are processed one at a time: their objects take many times the space.
pub(crate) const LARGE_BODY_BYTES: usize = 256 << 10;

/// Limits of one address, or of all addresses of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// Requests that end by themselves.
    pub requests: usize,
    /// Watches, logs and connections to containers.
    pub streams: usize,
    /// Bytes of bodies: of requests, and of responses until they are sent.
    pub bytes: usize,
}

/// Of all addresses together.
const ALL: Quota = Quota { requests: 256, streams: 1024, bytes: 24 << 20 };
/// Of one pod: two large objects at a time.
const ONE_POD: Quota = Quota { requests: 32, streams: 128, bytes: 8 << 20 };

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
struct Quotas {
    all: Quota,
    one: Quota,
}

const AUTHENTICATED: Quotas = Quotas { all: ALL, one: ONE_POD };
/// Health, version and refusals are all that a client without credentials gets.
const ANONYMOUS: Quotas = Quotas {
    all: Quota { requests: 64, streams: 16, bytes: 4 << 20 },
    one: Quota { requests: 8, streams: 2, bytes: 1 << 20 },
};

/// Which limit a request counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestClass {
    Short,
    Stream,
}

/// What is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InUse {
    requests: usize,
    streams: usize,
    bytes: usize,
}

impl InUse {
    fn count(&mut self, class: RequestClass) -> &mut usize {
        match class {
            RequestClass::Short => &mut self.requests,
            RequestClass::Stream => &mut self.streams,
        }
    }
}

impl Quota {
    fn count(&self, class: RequestClass) -> usize {
        match class {
            RequestClass::Short => self.requests,
            RequestClass::Stream => self.streams,
        }
    }
}

/// The requests in progress of one listener, either those with or those without credentials.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    quotas: Quotas,
    counts: Arc<Mutex<Counts>>,
    /// Held while a large body is processed.
    large: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Counts {
    all: InUse,
    by_peer: HashMap<IpAddr, InUse>,
}

/// The share of one client address. In the extensions of its requests.
#[derive(Clone, Debug)]
pub(crate) struct PeerShare {
    in_flight: InFlight,
    peer: IpAddr,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self::with(AUTHENTICATED)
    }

    /// Requests of clients without credentials: apart from the others, or a user of this machine
    /// could shut out its owner, who has the same address.
    pub(crate) fn anonymous() -> Self {
        Self::with(ANONYMOUS)
    }

    fn with(quotas: Quotas) -> Self {
        Self { quotas, counts: Arc::default(), large: Arc::new(Semaphore::new(1)) }
    }

    pub(crate) fn of(&self, peer: IpAddr) -> PeerShare {
        PeerShare { in_flight: self.clone(), peer: peer.to_canonical() }
    }
}

impl PeerShare {
    /// All clients on this machine share one address, so it has no share of its own.
    fn quota(&self) -> Quota {
        let Quotas { all, one } = self.in_flight.quotas;
        if self.peer.is_loopback() { all } else { one }
    }

    /// Counts a request until the result is dropped.
    pub(crate) fn begin(&self, class: RequestClass) -> Result<RequestPermit, ApiError> {
        let (all, quota) = (self.in_flight.quotas.all, self.quota());
        let mut counts = self.in_flight.counts.lock();
        let counts = &mut *counts;
        let mut of_peer = counts.by_peer.get(&self.peer).copied().unwrap_or_default();
        if *counts.all.count(class) >= all.count(class)
            || *of_peer.count(class) >= quota.count(class)
        {
            return Err(ApiError::too_many_requests());
        }
        *counts.all.count(class) += 1;
        *of_peer.count(class) += 1;
        counts.by_peer.insert(self.peer, of_peer);
        let held = Held { share: self.clone(), class, bytes: Mutex::default() };
        Ok(RequestPermit(Arc::new(held)))
    }
}

/// One request in progress. Dropping the last clone frees what it uses.
#[derive(Clone, Debug)]
pub(crate) struct RequestPermit(Arc<Held>);

#[derive(Debug)]
struct Held {
    share: PeerShare,
    class: RequestClass,
    bytes: Mutex<usize>,
}

impl RequestPermit {
    /// Counts bytes that the request needs now, unless they exceed a quota.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), ApiError> {
        let (all, quota) = (self.0.share.in_flight.quotas.all, self.0.share.quota());
        let mut counts = self.0.share.in_flight.counts.lock();
        let counts = &mut *counts;
        let of_peer = counts.by_peer.entry(self.0.share.peer).or_default();
        if counts.all.bytes + bytes > all.bytes || of_peer.bytes + bytes > quota.bytes {
            return Err(ApiError::too_many_requests());
        }
        counts.all.bytes += bytes;
        of_peer.bytes += bytes;
        *self.0.bytes.lock() += bytes;
        Ok(())
    }

    /// Counts the bytes of a response in place of those of the request. It exists already, so it
    /// is counted even beyond the quota.
    pub(crate) fn replace(&self, bytes: usize) {
        let mut counts = self.0.share.in_flight.counts.lock();
        let counts = &mut *counts;
        let of_peer = counts.by_peer.entry(self.0.share.peer).or_default();
        let before = std::mem::replace(&mut *self.0.bytes.lock(), bytes);
        for in_use in [&mut counts.all, of_peer] {
            in_use.bytes = in_use.bytes.saturating_sub(before) + bytes;
        }
    }

    /// Whether a response of this size may be sent now. A response that is larger than the quota is
    /// sent if the peer has no other.
    pub(crate) fn may_send(&self, bytes: usize) -> bool {
        let (all, quota) = (self.0.share.in_flight.quotas.all, self.0.share.quota());
        let counts = self.0.share.in_flight.counts.lock();
        let own = *self.0.bytes.lock();
        let others = |in_use: &InUse| in_use.bytes.saturating_sub(own);
        let fits = |in_use: &InUse, limit: usize| {
            others(in_use) == 0 || others(in_use).saturating_add(bytes) <= limit
        };
        fits(&counts.all, all.bytes)
            && counts.by_peer.get(&self.0.share.peer).is_none_or(|peer| fits(peer, quota.bytes))
    }

    /// Counts the bytes that a stream keeps until its client takes them, in place of those counted
    /// before; false if they do not fit, by the rule of [`Self::may_send`].
    pub(crate) fn keep(&self, bytes: usize) -> bool {
        let fits = self.may_send(bytes);
        if fits {
            self.replace(bytes);
        }
        fits
    }

    /// Waits for the turn of a large body; held until the result is dropped.
    pub(crate) async fn turn(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        if bytes < LARGE_BODY_BYTES {
            return None;
        }
        // Fails only if the semaphore is closed, and it never is.
        self.0.share.in_flight.large.clone().acquire_owned().await.ok()
    }

    /// Keeps the request in progress until the response is sent.
    pub(crate) fn until_sent(self, response: Response) -> Response {
        // A stream counts what it keeps itself.
        if let Some(size) = response.body().size_hint().exact() {
            self.replace(usize::try_from(size).unwrap_or(usize::MAX));
        }
        response.map(|body| Body::new(CountedBody { body, _permit: self }))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut counts = self.share.in_flight.counts.lock();
        let counts = &mut *counts;
        let bytes = *self.bytes.get_mut();
        let release = |in_use: &mut InUse| {
            *in_use.count(self.class) = in_use.count(self.class).saturating_sub(1);
            in_use.bytes = in_use.bytes.saturating_sub(bytes);
        };
        release(&mut counts.all);
        if let Some(of_peer) = counts.by_peer.get_mut(&self.share.peer) {
            release(of_peer);
            if *of_peer == InUse::default() {
                counts.by_peer.remove(&self.share.peer);
            }
        }
    }
}

/// Response body that keeps its request in progress until it is dropped.
struct CountedBody {
    body: Body,
    _permit: RequestPermit,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn share(in_flight: &InFlight, last: u8) -> PeerShare {
        in_flight.of(Ipv4Addr::new(10, 213, 0, last).into())
    }

    #[test]
    fn one_address_cannot_use_up_the_requests_of_all() {
        let in_flight = InFlight::new();
        let (greedy, modest) = (share(&in_flight, 2), share(&in_flight, 3));
        for (class, limit) in [(RequestClass::Short, 32), (RequestClass::Stream, 128)] {
            let mut held: Vec<_> = (0..limit).map(|_| greedy.begin(class).unwrap()).collect();
            assert_eq!(greedy.begin(class).unwrap_err().code, 429);
            modest.begin(class).unwrap();
            held.pop();
            greedy.begin(class).unwrap();
        }
        let all: Vec<_> = (0..8).flat_map(|last| [last; 32]).collect();
        let held: Vec<_> =
            all.iter().map(|&last| share(&in_flight, last).begin(RequestClass::Short)).collect();
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(share(&in_flight, 99).begin(RequestClass::Short).unwrap_err().code, 429);
        drop(held);
        assert!(
            in_flight.counts.lock().by_peer.is_empty(),
            "addresses without requests are dropped"
        );
        assert_eq!(in_flight.counts.lock().all, InUse::default());
    }

    #[test]
    fn requests_without_credentials_leave_the_owner_of_the_machine_its_own() {
        let (in_flight, anonymous) = (InFlight::new(), InFlight::anonymous());
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let stranger = anonymous.of(loopback);
        let held: Vec<_> =
            std::iter::from_fn(|| stranger.begin(RequestClass::Short).ok()).collect();
        assert_eq!(held.len(), ANONYMOUS.all.requests);
        in_flight.of(loopback).begin(RequestClass::Short).unwrap();
    }

    #[test]
    fn bodies_are_counted_until_the_response_is_sent() {
        const MEBIBYTE: usize = 1 << 20;
        let in_flight = InFlight::new();
        let (greedy, modest) = (share(&in_flight, 2), share(&in_flight, 3));
        let begin = |share: &PeerShare| share.begin(RequestClass::Short).unwrap();
        let (one, other) = (begin(&greedy), begin(&greedy));
        one.reserve(5 * MEBIBYTE).unwrap();
        other.reserve(3 * MEBIBYTE).unwrap();
        assert_eq!(other.reserve(1).unwrap_err().code, 429);
        begin(&modest).reserve(8 * MEBIBYTE).unwrap();
        // a response takes the place of its request
        let response = one.until_sent(Response::new(Body::from(vec![0; 2 * MEBIBYTE])));
        other.reserve(3 * MEBIBYTE).unwrap();
        let reading = begin(&greedy);
        assert!(!reading.may_send(1));
        assert!(!begin(&modest).may_send(30 * MEBIBYTE), "another address is being sent something");
        drop((response, other));
        assert!(reading.may_send(30 * MEBIBYTE), "nothing else is being sent");
        drop(reading);
        assert_eq!(in_flight.counts.lock().all, InUse::default());
    }
}
