//! Response encoding of objects: whole, as a list, as a table, or metadata only.
//!
//! A whole object is sent as its stored text without parsing; the other forms are built from the
//! parsed object.

use jiff::Timestamp;
use podwright_api::validation::field::quote;
use serde_json::{Map, Value, json};

use crate::document::{Document, DocumentError};
use crate::events;
use crate::negotiate::{Encoding, View};
use crate::object::Object;
use crate::registry::{EVENTS_V1, Resource};
use crate::rest::ListPage;
use crate::status::ApiError;
use crate::{json_edit, protobuf, table};

/// Encodes one resource in the form that the client requested.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    pub resource: &'static Resource,
    pub view: View,
    pub encoding: Encoding,
    pub include: Include,
}

/// What a table row carries beside its cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    None,
    #[default]
    Metadata,
    Object,
}

impl Include {
    /// The option applies to tables only.
    pub fn parse(text: Option<&str>, view: View) -> Result<Self, ApiError> {
        match text.filter(|_| view == View::Table) {
            Some("None") => Ok(Self::None),
            Some("Object") => Ok(Self::Object),
            None | Some("" | "Metadata") => Ok(Self::Metadata),
            Some(other) => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', \
                 'Object', 'None', or empty",
                quote(other)
            ))),
        }
    }
}

impl Encoder {
    pub fn whole(resource: &'static Resource) -> Self {
        Self { resource, view: View::Whole, encoding: Encoding::Json, include: Include::default() }
    }

    /// One stored object.
    pub fn document(&self, document: &Document, now: Timestamp) -> Result<Vec<u8>, DocumentError> {
        if self.is_stored_text() {
            let mut out = Vec::with_capacity(document.text.len() + 96);
            document.write(self.resource, &mut out);
            return Ok(out);
        }
        let object = document.object(events::stored_as(self.resource))?;
        Ok(self.object(object, now))
    }

    /// One object, given in its stored form.
    pub fn object(&self, object: Object, now: Timestamp) -> Vec<u8> {
        let object = events::from_stored(self.resource, object);
        let encoded = match self.view {
            View::Whole => object.into_value(),
            View::Metadata => partial(object.into_value()),
            View::Table => {
                let version = object.resource_version().to_owned();
                let mut table = self.table(vec![object.into_value()], now);
                json_edit::put(&mut table, &["metadata", "resourceVersion"], Some(version.into()));
                table
            }
        };
        self.bytes(&encoded)
    }

    /// A page of stored objects.
    pub fn page(&self, page: &ListPage, now: Timestamp) -> Result<Vec<u8>, DocumentError> {
        let metadata = list_metadata(page);
        if self.is_stored_text() {
            return Ok(self.plain_list(page, &metadata));
        }
        if self.encoding == Encoding::Protobuf
            && let Some(list) = self.protobuf_list(page, &metadata)?
        {
            return Ok(list);
        }
        let mut objects = Vec::with_capacity(page.items.len());
        for (_, document) in &page.items {
            let object = document.object(events::stored_as(self.resource))?;
            objects.push(events::from_stored(self.resource, object).into_value());
        }
        Ok(self.list(objects, &metadata, now))
    }

    /// A list of objects, given with their kind and version.
    pub fn list(&self, mut objects: Vec<Value>, metadata: &Value, now: Timestamp) -> Vec<u8> {
        let encoded = match self.view {
            View::Whole => {
                objects.iter_mut().filter_map(Value::as_object_mut).for_each(|object| {
                    object.remove("kind");
                    object.remove("apiVersion");
                });
                json!({
                    "kind": format!("{}List", self.resource.kind),
                    "apiVersion": self.resource.api_version(),
                    "metadata": metadata,
                    "items": objects,
                })
            }
            View::Metadata => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": objects.into_iter().map(partial).collect::<Vec<_>>(),
            }),
            View::Table => {
                let mut table = self.table(objects, now);
                json_edit::put(&mut table, &["metadata"], Some(metadata.clone()));
                table
            }
        };
        self.bytes(&encoded)
    }

    /// Whether the stored text is the response.
    fn is_stored_text(&self) -> bool {
        self.view == View::Whole && self.encoding == Encoding::Json && self.resource != &EVENTS_V1
    }

    /// A value in the form of the response. One without a protobuf form is sent as JSON, which
    /// no kind of object is.
    pub(crate) fn bytes(&self, value: &Value) -> Vec<u8> {
        match self.encoding {
            Encoding::Json => value.to_string().into_bytes(),
            Encoding::Yaml => yaml(value),
            Encoding::Protobuf => {
                protobuf::encode::object(value).unwrap_or_else(|| value.to_string().into_bytes())
            }
        }
    }

    /// A list, of which only one item at a time is parsed.
    fn protobuf_list(
        &self,
        page: &ListPage,
        metadata: &Value,
    ) -> Result<Option<Vec<u8>>, DocumentError> {
        let (api_version, kind) = match self.view {
            View::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
            View::Whole | View::Table => (self.resource.api_version(), self.resource.kind),
        };
        let Some(mut list) = protobuf::encode::List::new(&api_version, kind, metadata) else {
            return Ok(None);
        };
        for (_, document) in &page.items {
            let object = document.object(events::stored_as(self.resource))?;
            list.push(events::from_stored(self.resource, object).value());
        }
        Ok(Some(list.finish()))
    }

    fn plain_list(&self, page: &ListPage, metadata: &Value) -> Vec<u8> {
        let size: usize = page.items.iter().map(|(_, document)| document.text.len() + 64).sum();
        let mut out = Vec::with_capacity(size + 256);
        let head = format!(
            "{{\"kind\":\"{}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
            self.resource.kind,
            self.resource.api_version()
        );
        out.extend_from_slice(head.as_bytes());
        for (at, (_, document)) in page.items.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            document.write_item(&mut out);
        }
        out.extend_from_slice(b"]}");
        out
    }

    /// Rows carry metadata unless the client requests otherwise.
    fn table(&self, objects: Vec<Value>, now: Timestamp) -> Value {
        let mut table = table::rows(self.resource, &objects, now);
        if self.include != Include::Metadata {
            let rows = table.get_mut("rows").and_then(Value::as_array_mut);
            for (row, object) in rows.into_iter().flatten().zip(objects) {
                match (self.include, row.as_object_mut()) {
                    (Include::Object, Some(row)) => _ = row.insert("object".to_owned(), object),
                    (Include::None, Some(row)) => _ = row.remove("object"),
                    (Include::Metadata, _) | (_, None) => {}
                }
            }
        }
        table
    }
}

/// YAML as `kubectl get -o yaml` writes it.
fn yaml(value: &Value) -> Vec<u8> {
    match serde_saphyr::to_string(value) {
        Ok(text) => text.into_bytes(),
        // JSON is YAML, too.
        Err(error) => {
            tracing::error!(%error, "cannot write YAML, sending JSON");
            value.to_string().into_bytes()
        }
    }
}

fn list_metadata(page: &ListPage) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), page.revision.to_string().into());
    if let Some(token) = &page.continue_token {
        metadata.insert("continue".to_owned(), token.clone().into());
    }
    if let Some(remaining) = page.remaining {
        metadata.insert("remainingItemCount".to_owned(), remaining.into());
    }
    Value::Object(metadata)
}

/// Kind, version and metadata.
fn partial(mut object: Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object.get_mut("metadata").map(Value::take).unwrap_or_default(),
    })
}
