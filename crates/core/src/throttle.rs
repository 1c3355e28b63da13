//! Token bucket of the node's rate limits: `registryPullQPS` for image pulls, `eventRecordQPS` for
//! events, `kubeAPIQPS` for other requests to the API server, each with its burst.

use std::time::Duration;

use crate::time::Mono;

/// Token bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Throttle {
    per_second: f64,
    burst: f64,
    filled: f64,
    at: Mono,
}

impl Throttle {
    /// `None` if there is no limit.
    pub fn new(per_second: u32, burst: u32, now: Mono) -> Option<Self> {
        let (per_second, burst) = (f64::from(per_second), f64::from(burst.max(1)));
        (per_second > 0.0).then_some(Self { per_second, burst, filled: burst, at: now })
    }

    /// Takes one token if available.
    pub fn take(&mut self, now: Mono) -> bool {
        self.fill(now);
        let free = self.filled >= 1.0;
        if free {
            self.filled -= 1.0;
        }
        free
    }

    /// Takes one token, in advance if there is none; returns how long to wait for it.
    pub fn reserve(&mut self, now: Mono) -> Duration {
        self.fill(now);
        self.filled -= 1.0;
        let missing = (-self.filled).max(0.0);
        Duration::try_from_secs_f64(missing / self.per_second).unwrap_or(Duration::MAX)
    }

    fn fill(&mut self, now: Mono) {
        let grown = now.since(self.at).as_secs_f64() * self.per_second;
        self.filled = (self.filled + grown).min(self.burst);
        self.at = now;
    }
}

/// Limit of requests to the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimit {
    /// `kubeAPIQPS`; zero: no limit.
    pub per_second: u32,
    /// `kubeAPIBurst`.
    pub burst: u32,
}

impl RequestLimit {
    pub const NONE: Self = Self { per_second: 0, burst: 0 };
}

/// Whether a request counts towards [`RequestLimit`]. A watch costs the server little, and Events
/// have their own rate.
pub fn counts_as_request(path: &str, query: &str) -> bool {
    let watches = query.split('&').any(|part| matches!(part, "watch=true" | "watch=1"));
    !watches && resource(path) != Some("events")
}

/// The resource in the path of a request: `/api/v1/namespaces/<namespace>/<resource>/<name>`.
fn resource(path: &str) -> Option<&str> {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let version = if parts.next()? == "api" { 0 } else { 1 };
    parts.nth(version)?;
    match (parts.next()?, parts.nth(1)) {
        ("namespaces", Some(namespaced)) => Some(namespaced),
        (resource, _) => Some(resource),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_and_then_the_rate_applies() {
        let at = |millis| Mono(Duration::from_millis(millis));
        let mut throttle = Throttle::new(5, 10, at(0)).unwrap();
        assert_eq!((0..20).filter(|_| throttle.take(at(0))).count(), 10);
        assert_eq!((0..20).filter(|_| throttle.take(at(1000))).count(), 5);
        assert!(!throttle.take(at(1100)) && throttle.take(at(1200)));
        assert_eq!((0..99).filter(|_| throttle.take(at(600_000))).count(), 10, "never more");
        assert_eq!(Throttle::new(0, 10, at(0)), None);
    }

    #[test]
    fn watches_and_events_do_not_count_as_requests() {
        for (path, query, want) in [
            ("/api/v1/pods", "fieldSelector=spec.nodeName%3Dn", true),
            ("/api/v1/pods", "watch=true&resourceVersion=1", false),
            ("/api/v1/namespaces/default/pods/p/status", "", true),
            ("/api/v1/namespaces/default/events", "", false),
            ("/api/v1/namespaces/default/events/e.1", "", false),
            ("/apis/events.k8s.io/v1/namespaces/default/events", "", false),
            ("/api/v1/namespaces/events/pods", "", true),
            ("/api/v1/namespaces/default/pods/events", "", true),
            ("/version", "", true),
        ] {
            assert_eq!(counts_as_request(path, query), want, "{path}?{query}");
        }
    }

    #[test]
    fn reservation_waits_for_its_own_token() {
        let at = |millis| Mono(Duration::from_millis(millis));
        let mut throttle = Throttle::new(5, 2, at(0)).unwrap();
        let waits = [0, 0, 0, 0, 500].map(|now| throttle.reserve(at(now)).as_millis());
        // Two at once, then one every 200 ms.
        assert_eq!(waits, [0, 0, 200, 400, 100]);
        assert_eq!(throttle.reserve(at(60_000)), Duration::ZERO);
    }
}
