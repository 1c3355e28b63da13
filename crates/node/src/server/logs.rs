//! `/containerLogs`: serves container logs.

use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::{SignedDuration, Timestamp};
use podwright_core::log::{Selection, Stream};
use tokio_util::sync::CancellationToken;

use super::Server;
use super::query::Query;
use super::response::{BodyError, HttpResponse, PLAIN, plain_text};
use super::route::Target;
use crate::runtime::logs::LogRequest;
use crate::runtime::logs::read::Reader;

impl Server {
    pub(super) async fn logs(&self, target: &Target, query: &Query) -> HttpResponse {
        let options = match Options::parse(query, self.dependencies.clock.now().wall) {
            Ok(options) => options,
            Err(BadOptions::Unreadable) => {
                return plain_text(
                    StatusCode::BAD_REQUEST,
                    r#"{"message": "Unable to decode query."}"#,
                );
            }
            Err(BadOptions::Invalid) => {
                let text = r#"{"message": "Invalid request."}"#;
                return plain_text(StatusCode::UNPROCESSABLE_ENTITY, text);
            }
        };
        let Some(pod) = self.pod_index.pod_by_name(&target.pod) else {
            let text = format!("pod {:?} does not exist", &*target.pod.name);
            return plain_text(StatusCode::NOT_FOUND, text);
        };
        if pod.container(&target.container).is_none() {
            let (container, pod) = (&target.container, &*target.pod.name);
            let text = format!("container {container:?} not found in pod {pod:?}");
            return plain_text(StatusCode::NOT_FOUND, text);
        }
        let mut wanted = options.wanted(target.container.clone());
        if !self.settings.split_log_streams {
            wanted.selection.stream = None;
        }
        match self.dependencies.logs.open(&pod, &wanted).await {
            Ok(reader) => stream_log(reader, self.stop.clone()),
            Err(error) => plain_text(StatusCode::BAD_REQUEST, with_causes(&error)),
        }
    }
}

/// A streamed response. A chunk is read only after the client took the one before, and not after
/// the client is gone. The headers are already sent, so later errors are reported in the body.
fn stream_log(reader: Reader, stop: CancellationToken) -> HttpResponse {
    let pieces = futures::stream::unfold(Some(reader), move |reader| {
        let stop = stop.clone();
        async move {
            let mut reader = reader?;
            // A node that stops does not wait for clients that follow the log.
            let piece = stop.run_until_cancelled(reader.next()).await??;
            Some(match piece {
                Ok(piece) => (Ok::<_, BodyError>(Frame::data(piece)), Some(reader)),
                Err(error) => (Ok(Frame::data(error.to_string().into())), None),
            })
        }
    });
    let mut answer = HttpResponse::new(StreamBody::new(pieces).boxed_unsync());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PLAIN));
    answer
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let error_chain = std::iter::successors(Some(error), |error| error.source());
    error_chain.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Log options of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) follow: bool,
    pub(super) previous: bool,
    pub(super) timestamps: bool,
    pub(super) since: Option<Timestamp>,
    pub(super) tail_lines: Option<u64>,
    pub(super) limit_bytes: Option<u64>,
    /// `None`: both.
    pub(super) stream: Option<Stream>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadOptions {
    /// Not parseable as numbers and times.
    Unreadable,
    /// Numbers out of range.
    Invalid,
}

impl Options {
    fn wanted(self, container: String) -> LogRequest {
        let Self { follow, previous, timestamps, since, tail_lines, limit_bytes, stream } = self;
        let selection = Selection { tail: tail_lines, since, stream, timestamps, limit_bytes };
        LogRequest { container, previous, follow, selection }
    }

    /// Parses all options before any is validated.
    pub(super) fn parse(query: &Query, now: Timestamp) -> Result<Self, BadOptions> {
        // Legacy name of `tailLines`; `all` is the default.
        let legacy = query.first("tail").filter(|tail| !tail.is_empty());
        let tail_lines = match legacy {
            Some("all") => None,
            Some(tail) => Some(tail),
            None => query.first("tailLines"),
        };
        let tail_lines = tail_lines.map(number).transpose()?;
        let since_seconds = query.first("sinceSeconds").map(number).transpose()?;
        let limit_bytes = query.first("limitBytes").map(number).transpose()?;
        let since_time = match query.first("sinceTime") {
            None | Some("") => None,
            Some(text) => Some(text.parse::<Timestamp>().map_err(|_| BadOptions::Unreadable)?),
        };
        let at_least = |least: i64, number: Option<i64>| match number {
            Some(number) if number < least => Err(BadOptions::Invalid),
            number => Ok(number.and_then(|number| u64::try_from(number).ok())),
        };
        let tail_lines = at_least(0, tail_lines)?;
        let limit_bytes = at_least(1, limit_bytes)?;
        let since_seconds = at_least(1, since_seconds)?;
        let since = match (since_seconds, since_time) {
            (Some(_), Some(_)) => return Err(BadOptions::Invalid),
            (Some(seconds), None) => {
                let back = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
                // Before the minimum timestamp means everything.
                Some(now.saturating_sub(back).unwrap_or(Timestamp::MIN))
            }
            (None, time) => time,
        };
        let stream = match query.first("stream") {
            None | Some("All") => None,
            Some(_) if tail_lines.is_some() => return Err(BadOptions::Invalid),
            Some("Stdout") => Some(Stream::Stdout),
            Some("Stderr") => Some(Stream::Stderr),
            Some(_) => return Err(BadOptions::Invalid),
        };
        Ok(Self {
            stream,
            follow: query.is_true("follow"),
            previous: query.is_true("previous"),
            timestamps: query.is_true("timestamps"),
            since,
            tail_lines,
            limit_bytes,
        })
    }
}

#[cfg(feature = "fuzzing")]
pub(super) fn is_readable(query: &Query, now: Timestamp) -> bool {
    Options::parse(query, now).is_ok()
}

fn number(text: &str) -> Result<i64, BadOptions> {
    text.parse().map_err(|_| BadOptions::Unreadable)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_are_parsed_as_in_the_api() {
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let none = Options::default;
        let at = |text: &str| Some(text.parse().unwrap());
        for (query, want) in [
            ("", Ok(none())),
            ("follow=true&previous=1&timestamps", {
                Ok(Options { follow: true, previous: true, timestamps: true, ..none() })
            }),
            ("follow=false&previous=0", Ok(none())),
            ("tailLines=5", Ok(Options { tail_lines: Some(5), ..none() })),
            ("tailLines=0", Ok(Options { tail_lines: Some(0), ..none() })),
            ("tail=7&tailLines=5", Ok(Options { tail_lines: Some(7), ..none() })),
            ("tail=all&tailLines=5", Ok(none())),
            ("limitBytes=1", Ok(Options { limit_bytes: Some(1), ..none() })),
            ("sinceSeconds=60", Ok(Options { since: at("2026-01-01T00:00:00Z"), ..none() })),
            (
                "sinceTime=2025-12-31T23:00:00%2B01:00",
                Ok(Options { since: at("2025-12-31T22:00:00Z"), ..none() }),
            ),
            (
                "sinceSeconds=9223372036854775807",
                Ok(Options { since: Some(Timestamp::MIN), ..none() }),
            ),
            ("stream=All&tailLines=5", Ok(Options { tail_lines: Some(5), ..none() })),
            ("stream=Stdout", Ok(Options { stream: Some(Stream::Stdout), ..none() })),
            ("stream=Stderr", Ok(Options { stream: Some(Stream::Stderr), ..none() })),
            ("stream=Stderr&tailLines=5", Err(BadOptions::Invalid)),
            ("stream=stdin", Err(BadOptions::Invalid)),
            ("tailLines=-1", Err(BadOptions::Invalid)),
            ("limitBytes=0", Err(BadOptions::Invalid)),
            ("sinceSeconds=0", Err(BadOptions::Invalid)),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", Err(BadOptions::Invalid)),
            ("tailLines=many", Err(BadOptions::Unreadable)),
            ("tailLines=99999999999999999999", Err(BadOptions::Unreadable)),
            ("limitBytes=1.5", Err(BadOptions::Unreadable)),
            ("sinceTime=yesterday", Err(BadOptions::Unreadable)),
            ("limitBytes=0&sinceTime=yesterday", Err(BadOptions::Unreadable)),
        ] {
            assert_eq!(Options::parse(&Query::parse(query), now), want, "{query}");
        }
    }
}
