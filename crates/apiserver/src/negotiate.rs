//! Content negotiation: the `Accept` header.
//!
//! Objects are sent as JSON, YAML or protobuf. Tables (`kubectl get`) and metadata only are other
//! *views* of the same objects, requested by parameters of the media type.

use http::{HeaderMap, header};

use crate::protobuf;
use crate::status::ApiError;

/// Media types of bodies and of responses, as messages list them.
pub const MEDIA_TYPES: &str =
    "application/json, application/yaml, application/vnd.kubernetes.protobuf";
const WATCH_TYPES: &str =
    "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
pub const YAML: &str = "application/yaml";

/// Form of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

impl Encoding {
    /// Media type of a response.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => YAML,
            Self::Protobuf => protobuf::MEDIA_TYPE,
        }
    }

    /// Media type of a watch; YAML has no stream.
    pub fn stream_type(self) -> Result<&'static str, ApiError> {
        match self {
            Self::Json => Ok("application/json"),
            Self::Protobuf => Ok("application/vnd.kubernetes.protobuf;stream=watch"),
            Self::Yaml => Err(ApiError::not_acceptable(WATCH_TYPES)),
        }
    }
}

/// View of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Whole,
    /// `meta.k8s.io` Table, as `kubectl get` prints it.
    Table,
    /// Kind, version and metadata.
    Metadata,
}

/// Form of the discovery documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// One document per group and version.
    Plain,
    /// Everything in one document.
    Aggregated,
}

struct Range<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl Range<'_> {
    fn parameter(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    fn is_json(&self) -> bool {
        self.encoding() == Some(Encoding::Json)
    }

    fn encoding(&self) -> Option<Encoding> {
        match self.media {
            "application/json" | "application/*" | "*/*" => Some(Encoding::Json),
            YAML => Some(Encoding::Yaml),
            protobuf::MEDIA_TYPE => Some(Encoding::Protobuf),
            _ => None,
        }
    }
}

/// Media ranges in the client's order of preference.
fn ranges(headers: &HeaderMap) -> Vec<Range<'_>> {
    let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let mut ranges: Vec<Range<'_>> = lines
        .flat_map(|line| line.split(','))
        .map(str::trim)
        .filter(|range| !range.is_empty())
        .map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let parameters = parts.filter_map(|part| part.split_once('=')).collect();
            Range { media, parameters }
        })
        .collect();
    ranges.sort_by(|one, other| quality(other).total_cmp(&quality(one))); // stable
    ranges
}

fn quality(range: &Range<'_>) -> f32 {
    match range.parameter("q") {
        "" => 1.0,
        q => q.parse().unwrap_or(0.0),
    }
}

/// The first view and form on the client's list that this server supports. Tables have no protobuf
/// form here: who prints them asks for JSON.
pub fn view(headers: &HeaderMap) -> Result<(View, Encoding), ApiError> {
    if !headers.contains_key(header::ACCEPT) {
        return Ok((View::Whole, Encoding::Json));
    }
    for range in &ranges(headers) {
        let Some(encoding) = range.encoding() else { continue };
        let meta = (range.parameter("g"), range.parameter("v")) == ("meta.k8s.io", "v1");
        match range.parameter("as") {
            "" => return Ok((View::Whole, encoding)),
            "Table" if meta && encoding != Encoding::Protobuf => {
                return Ok((View::Table, encoding));
            }
            "PartialObjectMetadata" | "PartialObjectMetadataList" if meta => {
                return Ok((View::Metadata, encoding));
            }
            _ => {}
        }
    }
    Err(ApiError::not_acceptable(MEDIA_TYPES))
}

pub fn discovery(headers: &HeaderMap) -> Discovery {
    for range in ranges(headers).iter().filter(|range| range.is_json()) {
        let kind = (range.parameter("g"), range.parameter("v"), range.parameter("as"));
        match kind {
            ("apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList") => return Discovery::Aggregated,
            (_, _, "") => return Discovery::Plain,
            _ => {}
        }
    }
    Discovery::Plain
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn headers(accept: &'static str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        }
        headers
    }

    #[test]
    fn order_of_preference_decides_the_view() {
        for (accept, want) in [
            ("", Ok(View::Whole)),
            ("*/*", Ok(View::Whole)),
            ("application/json", Ok(View::Whole)),
            ("application/json;stream=watch", Ok(View::Whole)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Ok(View::Table)),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", Ok(View::Whole)),
            (
                "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
                Ok(View::Metadata),
            ),
            ("application/cbor", Err(406)),
            (
                "application/json;q=0.1, application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9",
                Ok(View::Table),
            ),
        ] {
            let found = view(&headers(accept)).map(|(view, _)| view).map_err(|e| e.code);
            assert_eq!(found, want, "{accept}");
        }
    }

    #[test]
    fn order_of_preference_decides_the_form() {
        let table = "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1;g=meta.k8s.io";
        for (accept, want) in [
            ("", (View::Whole, Encoding::Json)),
            ("*/*", (View::Whole, Encoding::Json)),
            ("application/yaml", (View::Whole, Encoding::Yaml)),
            ("application/vnd.kubernetes.protobuf", (View::Whole, Encoding::Protobuf)),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                (View::Whole, Encoding::Protobuf),
            ),
            ("application/json,application/vnd.kubernetes.protobuf", (View::Whole, Encoding::Json)),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                (View::Metadata, Encoding::Protobuf),
            ),
            (table, (View::Table, Encoding::Json)),
        ] {
            assert_eq!(view(&headers(accept)).ok(), Some(want), "{accept}");
        }
    }

    #[test]
    fn aggregated_discovery_is_served_on_request() {
        for (accept, want) in [
            ("application/json", Discovery::Plain),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
                Discovery::Aggregated,
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
                Discovery::Plain,
            ),
        ] {
            assert_eq!(discovery(&headers(accept)), want, "{accept}");
        }
    }
}
