//! Answers, in the forms that clients of a kubelet know.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// What an answer carries; it may go on for hours.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;
pub type Answer = Response<Body>;

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";
/// The text format of Prometheus.
pub(super) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A whole answer.
pub(super) fn whole(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Answer {
    let body = Full::new(content.into()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// Words for people. A browser must not take them for anything else.
pub(super) fn words(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut answer = whole(status, PLAIN, text.into());
    let option = HeaderName::from_static("x-content-type-options");
    answer.headers_mut().insert(option, HeaderValue::from_static("nosniff"));
    answer
}

pub(super) fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(text) => whole(StatusCode::OK, JSON, text),
        Err(error) => words(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// A page of metrics.
pub(super) fn metrics(page: String) -> Answer {
    whole(StatusCode::OK, EXPOSITION, page)
}
