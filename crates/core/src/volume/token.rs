//! Service account tokens of volumes: request parameters and renewal time.
//!
//! The age of a token is measured on both clocks from its receipt, and it is renewed when either says
//! so: the monotonic clock stands still while the machine is suspended, the wall clock may be set
//! back. A wall clock that is set forward causes one renewal too many.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1;

use crate::pod::Pod;
use crate::time::{Mono, Now};

/// Tokens with a longer lifetime are still renewed daily.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Random spread of renewals, so that the pods of a node do not renew in the same second.
const SPREAD_SECONDS: u64 = 10;
const DEFAULT_SECONDS: i64 = 3600;
/// Retry delay after a failed renewal; a fifth of the token's lifetime is left for retries.
const RETRY: Duration = Duration::from_secs(10);

/// A token that a volume contains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenSpec {
    pub service_account: String,
    /// `None`: for the API server.
    pub audience: Option<String>,
    pub seconds: i64,
}

impl TokenSpec {
    pub fn new(pod: &Pod, source: &v1::ServiceAccountTokenProjection) -> Self {
        let spec = pod.object.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.clone());
        Self {
            service_account: account.filter(|name| !name.is_empty()).unwrap_or("default".into()),
            audience: source.audience.clone().filter(|audience| !audience.is_empty()),
            seconds: source.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
        }
    }

    /// The token is bound to the pod and expires with it.
    pub fn request(&self, pod: &Pod) -> TokenRequest {
        let bound = BoundObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: Some(pod.name.name.to_string()),
            uid: Some(pod.uid.to_string()),
        };
        let spec = TokenRequestSpec {
            audiences: Some(self.audience.iter().cloned().collect()),
            expiration_seconds: Some(self.seconds),
            bound_object_ref: Some(bound),
        };
        TokenRequest { spec: Some(spec), ..TokenRequest::default() }
    }
}

/// A received token. `Debug` does not print its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub text: Arc<str>,
    pub renew_at: Mono,
    /// The same by the wall clock.
    renew_by: Timestamp,
    pub ends_at: Mono,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(until {:?})", self.ends_at)
    }
}

impl Token {
    /// From the response to a request. The server may grant another lifetime than requested.
    /// `None`: the response is unusable.
    pub fn received(response: &TokenRequest, pod: &Pod, now: Now) -> Option<Self> {
        let text = response.status.as_ref()?.token.as_deref()?;
        let granted = response.spec.as_ref().and_then(|spec| spec.expiration_seconds);
        let seconds = granted.unwrap_or(DEFAULT_SECONDS);
        let lifetime = Duration::from_secs(u64::try_from(seconds).ok()?);
        let spread =
            pod.uid.as_str().bytes().fold(0u64, |sum, b| sum.wrapping_mul(31) + u64::from(b));
        let early = Duration::from_millis(spread % (SPREAD_SECONDS * 1000)).min(lifetime / 20);
        let renew_after = (lifetime * 4 / 5).min(MAX_AGE).saturating_sub(early);
        (!text.is_empty()).then(|| Self {
            text: text.into(),
            renew_at: now.mono + renew_after,
            renew_by: later(now.wall, renew_after),
            ends_at: now.mono + lifetime,
        })
    }

    /// Whether it is time to renew the token.
    pub fn is_due(&self, now: Now) -> bool {
        now.mono >= self.renew_at || now.wall >= self.renew_by
    }

    /// The same token with a later renewal time, after a failed renewal.
    pub fn kept_for_now(self, now: Now) -> Self {
        Self { renew_at: now.mono + RETRY, renew_by: later(now.wall, RETRY), ..self }
    }
}

fn later(wall: Timestamp, by: Duration) -> Timestamp {
    wall.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builders::{pod, t};

    fn response(seconds: i64) -> TokenRequest {
        serde_json::from_value(json!({
            "metadata": {}, "spec": {"audiences": [], "expirationSeconds": seconds},
            "status": {"token": "hunter2", "expirationTimestamp": "2026-01-01T00:00:00Z"},
        }))
        .unwrap()
    }

    #[test]
    fn token_is_renewed_at_four_fifths_of_its_lifetime_or_after_a_day() {
        let pod = pod("p").build();
        let now = t(1000);
        for (seconds, earliest, latest) in
            [(3600, 2870, 2880), (600, 470, 480), (365 * 86_400, 86_390, 86_400)]
        {
            let token = Token::received(&response(seconds), &pod, now).unwrap();
            let after = token.renew_at.since(now.mono).as_secs_f64();
            assert!(f64::from(earliest) <= after && after <= f64::from(latest), "{seconds}");
            assert_eq!(token.ends_at.since(now.mono).as_secs(), u64::try_from(seconds).unwrap());
        }
    }

    #[test]
    fn token_is_renewed_when_either_clock_says_so() {
        let pod = pod("p").build();
        let token = Token::received(&response(3600), &pod, t(1000)).unwrap();
        for (case, wall, mono, due) in [
            ("half of its lifetime is over", 2800, 2800, false),
            ("nine tenths are over", 4240, 4240, true),
            ("the machine was suspended for an hour", 4700, 1100, true),
            ("the clock was set back by an hour", 1240, 4240, true),
            ("the clock was set back a minute after the receipt", 0, 1060, false),
        ] {
            let now = Now { wall: t(wall).wall, mono: t(mono).mono };
            assert_eq!(token.is_due(now), due, "{case}");
        }
        let kept = token.kept_for_now(t(4700));
        assert!(!kept.is_due(t(4709)) && kept.is_due(t(4710)));
    }

    #[test]
    fn token_is_bound_to_its_pod_and_never_printed() {
        let pod = pod("p").spec("serviceAccountName", json!("robot")).build();
        let source = serde_json::from_value(json!({"path": "t", "audience": "x"})).unwrap();
        let wanted = TokenSpec::new(&pod, &source);
        let request = wanted.request(&pod).spec.unwrap();
        assert_eq!(wanted.service_account, "robot");
        assert_eq!(request.audiences.unwrap(), ["x"]);
        assert_eq!(request.expiration_seconds, Some(3600));
        let bound = request.bound_object_ref.unwrap();
        assert_eq!((bound.name.as_deref(), bound.uid.as_deref()), (Some("p"), Some("uid-p")));
        let token = Token::received(&response(3600), &pod, t(0)).unwrap();
        assert!(!format!("{token:?}").contains("hunter2"));
    }

    #[test]
    fn response_without_a_token_is_none() {
        let pod = pod("p").build();
        let mut empty = response(3600);
        empty.status = None;
        assert_eq!(Token::received(&empty, &pod, t(0)), None);
        assert_eq!(Token::received(&response(-5), &pod, t(0)), None);
    }
}
