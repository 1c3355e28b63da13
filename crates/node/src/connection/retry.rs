//! Whether a request that failed may be sent again.

use http::Method;

/// How far a request got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server never saw it, or said that it did not begin it.
    Unsent,
    /// The connection broke; nobody knows how far it got.
    Broken,
}

/// A server that turns every connection away must not be asked for ever.
const UNSENT_MOST: u32 = 5;
/// The first break may be an old connection that nobody told us of; a second is no accident.
const BROKEN_MOST: u32 = 1;

/// `failures` is how often it failed before.
pub(super) fn again(method: &Method, failure: Failure, failures: u32) -> bool {
    match failure {
        Failure::Unsent => failures < UNSENT_MOST,
        // Reading twice is reading; writing twice is for the caller to judge.
        Failure::Broken => failures < BROKEN_MOST && [Method::GET, Method::HEAD].contains(method),
    }
}

/// What an error of the connection says of a request that was under way.
pub(super) fn failure(error: &hyper::Error, returned: bool) -> Failure {
    if returned {
        return Failure::Unsent;
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
            // A server that goes away answers only what it began; the rest gets this error.
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
    fn only_what_cannot_happen_twice_is_sent_again() {
        for (method, failure, failures, want) in [
            (Method::POST, Failure::Unsent, 0, true),
            (Method::POST, Failure::Unsent, 5, false),
            (Method::POST, Failure::Broken, 0, false),
            (Method::PATCH, Failure::Broken, 0, false),
            (Method::GET, Failure::Broken, 0, true),
            (Method::GET, Failure::Broken, 1, false),
        ] {
            assert_eq!(again(&method, failure, failures), want, "{method} {failure:?} {failures}");
        }
    }
}
