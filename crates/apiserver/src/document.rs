//! A stored object: JSON text, cut so that it can be served without parsing.
//!
//! Why not `Value`: parsed JSON takes several times the memory of its text, and most reads only
//! copy the text. The text begins after `"metadata":{"resourceVersion":"N",`, because the version
//! is known only when the write is ordered, and after `kind` and `apiVersion`, because list items
//! have none.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::object::{NotAnObject, Object};
use crate::registry::Resource;

/// A revision of the whole store; an object's `resourceVersion` is that of its last change.
pub type Revision = u64;

/// One stored object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub revision: Revision,
    /// Everything after the version: `"name":"a"},"spec":{}}`.
    pub text: Bytes,
}

/// Why stored text cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("stored object at revision {revision} is not JSON")]
    Json { revision: Revision, source: serde_json::Error },
    #[error("stored object at revision {revision} is damaged")]
    Shape { revision: Revision, source: NotAnObject },
}

impl Document {
    /// The text to store for an object, without what the server adds (`kind`, `apiVersion`, the
    /// version) and what it never keeps (`selfLink`).
    pub fn text(object: Object) -> Bytes {
        let Value::Object(mut root) = object.into_value() else { return Bytes::new() };
        root.remove("apiVersion");
        root.remove("kind");
        let mut meta = match root.remove("metadata") {
            Some(Value::Object(meta)) => meta,
            _ => Map::new(),
        };
        for unkept in ["resourceVersion", "selfLink"] {
            meta.remove(unkept);
        }
        // The version before it ends in a comma, so a field must follow.
        meta.entry("name").or_insert_with(|| Value::String(String::new()));
        let mut text = Value::Object(meta).to_string();
        text.remove(0);
        if root.is_empty() {
            text.push('}');
        } else {
            text.push(',');
            text.push_str(Value::Object(root).to_string().get(1..).unwrap_or("}"));
        }
        Bytes::from(text)
    }

    /// Appends the object as a list item, without `kind` and `apiVersion`.
    pub fn write_item(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        self.write_rest(out);
    }

    /// Appends the whole object.
    pub fn write(&self, resource: &Resource, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"kind\":\"");
        out.extend_from_slice(resource.kind.as_bytes());
        out.extend_from_slice(b"\",\"apiVersion\":\"");
        out.extend_from_slice(resource.api_version().as_bytes());
        out.extend_from_slice(b"\",");
        self.write_rest(out);
    }

    fn write_rest(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"metadata\":{\"resourceVersion\":\"");
        out.extend_from_slice(self.revision.to_string().as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(&self.text);
    }

    /// The whole object, parsed.
    pub fn object(&self, resource: &Resource) -> Result<Object, DocumentError> {
        let mut text = Vec::with_capacity(self.text.len() + 96);
        self.write(resource, &mut text);
        let revision = self.revision;
        let value: Value = serde_json::from_slice(&text)
            .map_err(|source| DocumentError::Json { revision, source })?;
        Object::try_from(value).map_err(|source| DocumentError::Shape { revision, source })
    }

    /// Parses only the fields of `T`, which is much cheaper than the whole.
    pub fn extract<T: serde::de::DeserializeOwned>(&self) -> Result<T, DocumentError> {
        let mut text = Vec::with_capacity(self.text.len() + 48);
        self.write_item(&mut text);
        serde_json::from_slice(&text)
            .map_err(|source| DocumentError::Json { revision: self.revision, source })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    fn object(value: Value) -> Object {
        Object::try_from(value).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn object_round_trips_through_the_store_with_its_version() {
        for (case, stored, served) in [
            (
                "ordinary",
                json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "resourceVersion": "3",
                       "managedFields": [{}], "selfLink": "x"}, "spec": {"x": [1, "\"}"]}, "status": {}}),
                json!({"metadata": {"name": "a", "resourceVersion": "9", "managedFields": [{}]},
                       "spec": {"x": [1, "\"}"]}, "status": {}}),
            ),
            (
                "metadata alone",
                json!({"metadata": {"name": "a"}}),
                json!({"metadata": {"name": "a", "resourceVersion": "9"}}),
            ),
            ("nothing", json!({}), json!({"metadata": {"name": "", "resourceVersion": "9"}})),
        ] {
            // given stored text, when it is read as an item and as a whole
            let document = Document { revision: 9, text: Document::text(object(stored)) };
            let mut item = Vec::new();
            document.write_item(&mut item);
            let whole = document.object(&registry::PODS).map(Object::into_value);
            // then
            assert_eq!(serde_json::from_slice::<Value>(&item).ok(), Some(served.clone()), "{case}");
            let mut typed = served;
            typed["kind"] = json!("Pod");
            typed["apiVersion"] = json!("v1");
            assert_eq!(whole.ok(), Some(typed), "{case}");
        }
    }
}
