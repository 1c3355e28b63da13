//! OpenAPI documents, versions 2 and 3.
//!
//! `kubectl` uses them to validate manifests, to merge lists by their keys on apply, to explain
//! fields, and to check whether a dry run is possible. They are generated from the same tables that
//! decode and merge objects ([`podwright_api::schema`]), so they cannot disagree with the
//! behaviour. A document is kept in memory while a response with it is being sent, and all such
//! responses share it: many clients that do not read theirs cost no more than one. It is not kept
//! longer, since requests are rare and it takes a megabyte.

mod definitions;
mod descriptions;
mod operations;
mod protobuf;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Weak};

use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::discovery::KUBERNETES_VERSION;
use crate::registry::{RESOURCES, Resource};

/// Media types that clients of different ages use for the protobuf form of version 2.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// An OpenAPI path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApiPage {
    /// `/openapi/v2`: everything.
    Whole,
    /// `/openapi/v3`: the index of documents.
    Index,
    /// `/openapi/v3/apis/{group}/{version}`
    Document { group: &'static str, version: &'static str },
}

/// The two versions of the format, which differ in structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    V2,
    V3,
}

impl Form {
    fn reference(self, name: &str) -> Value {
        let place = match self {
            Self::V2 => "definitions",
            Self::V3 => "components/schemas",
        };
        json!({"$ref": format!("#/{place}/{name}")})
    }
}

impl OpenApiPage {
    /// The page at a path, given by the parts after `openapi`.
    pub fn at(parts: &[&str]) -> Option<Self> {
        match parts {
            ["v2"] => Some(Self::Whole),
            ["v3"] => Some(Self::Index),
            ["v3", "api", version] => Self::document("", version),
            ["v3", "apis", group, version] => Self::document(group, version),
            _ => None,
        }
    }

    fn document(group: &str, version: &str) -> Option<Self> {
        let served = RESOURCES.iter().find(|r| r.group == group && r.version == version)?;
        Some(Self::Document { group: served.group, version: served.version })
    }

    pub fn serve(self, headers: &HeaderMap) -> Response {
        let protobuf = wanted_protobuf(headers).filter(|_| self == Self::Whole);
        let form = if protobuf.is_some() { Encoding::Protobuf } else { Encoding::Json };
        let kind = protobuf.unwrap_or("application/json");
        let document = shared(self, form);
        let tag = document.tag.clone();
        let body = Bytes::from_owner(SharedDocument(document));
        let known = headers.get(header::IF_NONE_MATCH);
        if known.and_then(|known| known.to_str().ok()).is_some_and(|known| known.contains(&tag)) {
            return StatusCode::NOT_MODIFIED.into_response();
        }
        let mut response = ([(header::CONTENT_TYPE, kind)], body).into_response();
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            response.headers_mut().insert(header::ETAG, tag);
        }
        response
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Json,
    Protobuf,
}

/// A generated document.
#[derive(Debug)]
struct EncodedDocument {
    text: Vec<u8>,
    tag: String,
}

/// The content of a response; keeps its document.
struct SharedDocument(Arc<EncodedDocument>);

impl AsRef<[u8]> for SharedDocument {
    fn as_ref(&self) -> &[u8] {
        &self.0.text
    }
}

/// Documents that are being sent.
static SENT: Mutex<Vec<(OpenApiPage, Encoding, Weak<EncodedDocument>)>> = Mutex::new(Vec::new());

/// The document of a page. The lock is held while it is generated: the tables it is generated from
/// take several times its size.
fn shared(page: OpenApiPage, encoding: Encoding) -> Arc<EncodedDocument> {
    let mut sent = SENT.lock();
    let is_page = |entry: &&(OpenApiPage, Encoding, Weak<EncodedDocument>)| {
        (entry.0, entry.1) == (page, encoding)
    };
    if let Some(document) = sent.iter().find(is_page).and_then(|entry| entry.2.upgrade()) {
        return document;
    }
    let text = match (page, encoding) {
        (OpenApiPage::Whole, Encoding::Protobuf) => protobuf::encode(&whole()),
        (OpenApiPage::Whole, Encoding::Json) => whole().to_string().into_bytes(),
        (OpenApiPage::Index, _) => index().to_string().into_bytes(),
        (OpenApiPage::Document { group, version }, _) => {
            document(group, version).to_string().into_bytes()
        }
    };
    let tag = format!("\"{}\"", hash(&text));
    let document = Arc::new(EncodedDocument { text, tag });
    sent.retain(|entry| entry.2.strong_count() > 0);
    sent.push((page, encoding, Arc::downgrade(&document)));
    document
}

/// Media type of the response: a request may have the one with `@`, but clients do not accept it in
/// a response.
fn wanted_protobuf(headers: &HeaderMap) -> Option<&'static str> {
    let [old, new] = PROTOBUF;
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let mut ranges = accepted.flat_map(|line| line.split(',')).map(str::trim);
    ranges.any(|range| range.starts_with(old) || range.starts_with(new)).then_some(new)
}

fn hash(body: &[u8]) -> String {
    let digest = Sha256::digest(body);
    digest.iter().map(|byte| format!("{byte:02X}")).collect()
}

fn information() -> Value {
    json!({"title": "Kubernetes", "version": KUBERNETES_VERSION})
}

/// Version 2: one document of everything.
fn whole() -> Value {
    let resources = || RESOURCES.iter().copied();
    json!({
        "swagger": "2.0",
        "info": information(),
        "paths": operations::paths(resources(), Form::V2),
        "definitions": definitions::of(resources(), Form::V2),
    })
}

/// Version 3: one document for each group and version, with descriptions. Version 2 has none: older
/// clients request it whole for each command.
fn document(group: &str, version: &str) -> Value {
    let resources =
        || RESOURCES.iter().copied().filter(|r| r.group == group && r.version == version);
    json!({
        "openapi": "3.0.0",
        "info": information(),
        "paths": operations::paths(resources(), Form::V3),
        "components": {"schemas": definitions::of(resources(), Form::V3)},
    })
}

/// A client caches a document as long as its hash is the same.
static HASHES: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let groups: BTreeMap<String, &Resource> =
        RESOURCES.iter().map(|resource| (path_of(resource), *resource)).collect();
    groups
        .into_iter()
        .map(|(path, resource)| {
            let text = document(resource.group, resource.version).to_string();
            (path, hash(text.as_bytes()))
        })
        .collect()
});

fn path_of(resource: &Resource) -> String {
    match resource.group {
        "" => format!("api/{}", resource.version),
        group => format!("apis/{group}/{}", resource.version),
    }
}

fn index() -> Value {
    let entry = |(path, hash): (&String, &String)| {
        let url = format!("/openapi/v3/{path}?hash={hash}");
        (path.clone(), json!({"serverRelativeURL": url}))
    };
    let paths: Map<String, Value> = HASHES.iter().map(entry).collect();
    json!({"paths": paths})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every reference in a document resolves within it.
    fn check_references(document: &Value, value: &Value) {
        match value {
            Value::Object(map) => {
                if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                    let pointer = reference.trim_start_matches('#');
                    assert!(document.pointer(pointer).is_some(), "{reference} does not resolve");
                }
                map.values().for_each(|value| check_references(document, value));
            }
            Value::Array(list) => list.iter().for_each(|value| check_references(document, value)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_resolves() {
        check_references(&whole(), &whole());
        for resource in RESOURCES {
            let document = document(resource.group, resource.version);
            check_references(&document, &document);
        }
    }

    #[test]
    fn kinds_have_names_and_lists_have_merge_keys() {
        let whole = whole();
        let pod = &whole["definitions"]["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "Pod"}])
        );
        let spec = &whole["definitions"]["io.k8s.api.core.v1.PodSpec"];
        assert_eq!(spec["required"], json!(["containers"]));
        let containers = &spec["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
        let ports = &whole["definitions"]["io.k8s.api.core.v1.Container"]["properties"]["ports"];
        assert_eq!(ports["x-kubernetes-list-type"], "map");
        assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["containerPort", "protocol"]));
        assert_eq!(spec["properties"]["nodeSelector"]["x-kubernetes-map-type"], "atomic");
        let owner = &whole["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference"];
        assert_eq!(owner["x-kubernetes-map-type"], "atomic");
        let volumes = &spec["properties"]["volumes"];
        assert_eq!(volumes["x-kubernetes-patch-strategy"], "merge,retainKeys");
        let metadata = &whole["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"];
        assert_eq!(metadata["properties"]["finalizers"]["x-kubernetes-patch-strategy"], "merge");
    }

    #[test]
    fn types_and_fields_are_described() {
        let document = document("", "v1");
        let schemas = &document["components"]["schemas"];
        let text = |value: &Value| value["description"].as_str().unwrap_or_default().to_owned();
        let pod = &schemas["io.k8s.api.core.v1.Pod"];
        assert!(text(pod).starts_with("Pod is a collection of containers"), "{}", text(pod));
        let spec = &pod["properties"]["spec"];
        assert!(text(spec).contains("desired behavior of the pod"), "{spec}");
        let reference = json!([{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]);
        assert_eq!(spec["allOf"], reference);
        let meta = &schemas["io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"]["properties"];
        assert!(text(&meta["labels"]).contains("Map of string keys and values"));
        // every field that is in the tables and in the schemas of the release
        let mut missing = Vec::new();
        for (name, schema) in schemas.as_object().into_iter().flatten() {
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                if text(property).is_empty()
                    && !name.ends_with("List")
                    && !name.ends_with("ListMeta")
                {
                    missing.push(format!("{name}.{field}"));
                }
            }
        }
        assert!(missing.len() < 20, "{missing:?}");
        let whole = whole();
        assert_eq!(text(&whole["definitions"]["io.k8s.api.core.v1.Pod"]), "");
    }

    #[test]
    fn patch_supports_dry_run() {
        let document = document("", "v1");
        let patch = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"];
        let names: Vec<&str> = patch["parameters"]
            .as_array()
            .map(|list| list.iter().filter_map(|each| each["name"].as_str()).collect())
            .unwrap_or_default();
        assert!(names.contains(&"dryRun") && names.contains(&"fieldValidation"), "{names:?}");
        assert_eq!(
            patch["x-kubernetes-group-version-kind"],
            json!({"group": "", "version": "v1", "kind": "Pod"})
        );
    }

    #[test]
    fn protobuf_is_served_on_request_with_a_valid_media_type() {
        for requested in PROTOBUF {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(requested));
            let response = OpenApiPage::Whole.serve(&headers);
            let kind = response.headers().get(header::CONTENT_TYPE);
            assert_eq!(kind, Some(&HeaderValue::from_static(PROTOBUF[1])), "{requested}");
        }
        let response = OpenApiPage::Whole.serve(&HeaderMap::new());
        let kind = response.headers().get(header::CONTENT_TYPE);
        assert_eq!(kind, Some(&HeaderValue::from_static("application/json")));
    }

    #[tokio::test]
    async fn responses_that_are_being_sent_share_one_document() {
        use http_body_util::BodyExt as _;

        let bytes = async || {
            let response = OpenApiPage::Whole.serve(&HeaderMap::new());
            response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default()
        };
        let (one, other) = (bytes().await, bytes().await);
        assert!(!one.is_empty());
        assert_eq!(one.as_ptr(), other.as_ptr());
        let count = |sent: &[(OpenApiPage, Encoding, Weak<EncodedDocument>)]| {
            sent.iter().map(|entry| entry.2.strong_count()).sum::<usize>()
        };
        assert!(count(&SENT.lock()) >= 2);
        drop((one, other));
        let (page, json) = (OpenApiPage::Whole, Encoding::Json);
        let sent = SENT.lock();
        let entry = sent.iter().find(|entry| (entry.0, entry.1) == (page, json));
        assert!(entry.is_some_and(|entry| entry.2.strong_count() == 0), "it is not kept longer");
    }

    #[test]
    fn index_lists_documents() {
        let index = index();
        let url = index["paths"]["apis/coordination.k8s.io/v1"]["serverRelativeURL"].as_str();
        let want = "/openapi/v3/apis/coordination.k8s.io/v1?hash=";
        assert!(url.is_some_and(|url| url.starts_with(want)), "{url:?}");
        assert_eq!(
            OpenApiPage::at(&["v3", "apis", "coordination.k8s.io", "v1"]),
            Some(OpenApiPage::Document { group: "coordination.k8s.io", version: "v1" })
        );
        assert_eq!(OpenApiPage::at(&["v3", "apis", "apps", "v1"]), None);
    }
}
