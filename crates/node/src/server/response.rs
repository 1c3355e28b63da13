//! HTTP responses of the kubelet server.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

pub type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// Body of a response; streamed bodies may last for hours.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;
pub type HttpResponse = Response<Body>;

pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
pub(super) const JSON: &str = "application/json";
/// The text format of Prometheus.
pub(super) const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A response with a complete body.
pub(super) fn full_body(
    status: StatusCode,
    kind: &'static str,
    content: impl Into<Bytes>,
) -> HttpResponse {
    let body = Full::new(content.into()).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// A plain-text response; `nosniff` keeps browsers from interpreting it.
pub(super) fn plain_text(status: StatusCode, text: impl Into<String>) -> HttpResponse {
    let mut answer = full_body(status, PLAIN, text.into());
    let option = HeaderName::from_static("x-content-type-options");
    answer.headers_mut().insert(option, HeaderValue::from_static("nosniff"));
    answer
}

pub(super) fn json(value: &impl serde::Serialize) -> HttpResponse {
    match serde_json::to_vec(value) {
        Ok(text) => full_body(StatusCode::OK, JSON, text),
        Err(error) => plain_text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// A response with a page of metrics.
pub(super) fn metrics(page: String) -> HttpResponse {
    full_body(StatusCode::OK, EXPOSITION, page)
}
