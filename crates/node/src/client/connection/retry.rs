//! Retry policy of failed requests.

use http::Method;

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server did not receive it, or reported that it did not begin it.
    Unsent,
    /// The connection broke; the request may have been processed.
    Broken,
}

/// Limit for a server that rejects every connection.
const UNSENT_MOST: u32 = 5;
/// The first break may be a stale connection; a second one is a real failure.
const BROKEN_MOST: u32 = 1;

/// `failures` is the number of earlier failures.
pub(super) fn may_retry(method: &Method, failure: Failure, failures: u32) -> bool {
    match failure {
        Failure::Unsent => failures < UNSENT_MOST,
        // Reads are idempotent; whether to repeat a write is the caller's decision.
        Failure::Broken => failures < BROKEN_MOST && [Method::GET, Method::HEAD].contains(method),
    }
}

/// Classifies a connection error of a request in progress.
pub(super) fn failure(error: &hyper::Error, returned: bool) -> Failure {
    if returned {
        return Failure::Unsent;
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            // After GOAWAY a server completes only the requests it began; all others get this error.
            let gone = error.is_go_away()
                && error.is_remote()
                && error.reason() == Some(h2::Reason::NO_ERROR);
            if refused || gone {
                return Failure::Unsent;
            }
        }
        source = error.source();
    }
    Failure::Broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_requests_are_retried() {
        for (method, failure, failures, want) in [
            (Method::POST, Failure::Unsent, 0, true),
            (Method::POST, Failure::Unsent, 5, false),
            (Method::POST, Failure::Broken, 0, false),
            (Method::PATCH, Failure::Broken, 0, false),
            (Method::GET, Failure::Broken, 0, true),
            (Method::GET, Failure::Broken, 1, false),
        ] {
            assert_eq!(
                may_retry(&method, failure, failures),
                want,
                "{method} {failure:?} {failures}"
            );
        }
    }
}
