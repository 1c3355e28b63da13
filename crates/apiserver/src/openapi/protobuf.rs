//! OpenAPI version 2 as protobuf, the only form that older clients accept.
//!
//! It encodes the JSON document field by field. Extensions have no fields of their own: they are
//! names with YAML text, of which JSON is a subset. The numbers are those of gnostic's
//! OpenAPIv2.proto; only what our documents contain is written.

use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::Value;

/// An encoded message being built.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn bytes(mut self, tag: u32, content: &[u8]) -> Self {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        encode_varint(u64::try_from(content.len()).unwrap_or_default(), &mut self.0);
        self.0.extend_from_slice(content);
        self
    }

    fn message(self, tag: u32, inner: &Self) -> Self {
        self.bytes(tag, &inner.0)
    }

    /// A text field of an object, if present.
    fn text(self, tag: u32, object: &Value, field: &str) -> Self {
        match object.get(field).and_then(Value::as_str) {
            Some(text) => self.bytes(tag, text.as_bytes()),
            None => self,
        }
    }

    /// One message per map entry, with the name in the first field and the value in the second.
    fn named(self, tag: u32, map: &Value, write: impl Fn(&Value) -> Self) -> Self {
        map.as_object().into_iter().flatten().fold(self, |whole, (name, value)| {
            let entry = Self::default().bytes(1, name.as_bytes()).message(2, &write(value));
            whole.message(tag, &entry)
        })
    }

    fn each(self, tag: u32, list: &Value, write: impl Fn(&Value) -> Self) -> Self {
        list.as_array()
            .into_iter()
            .flatten()
            .fold(self, |whole, item| whole.message(tag, &write(item)))
    }

    fn extensions(self, tag: u32, object: &Value) -> Self {
        let all = object.as_object().into_iter().flatten();
        all.filter(|(name, _)| name.starts_with("x-")).fold(self, |whole, (name, value)| {
            let text = Self::default().bytes(2, value.to_string().as_bytes());
            whole.message(tag, &Self::default().bytes(1, name.as_bytes()).message(2, &text))
        })
    }
}

/// The whole document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let part = |name: &str| document.get(name).cloned().unwrap_or_default();
    let information = part("info");
    let information =
        Message::default().text(1, &information, "title").text(2, &information, "version");
    let paths = Message::default().named(2, &part("paths"), path);
    let definitions = Message::default().named(1, &part("definitions"), schema);
    Message::default()
        .text(1, document, "swagger")
        .message(2, &information)
        .message(8, &paths)
        .message(9, &definitions)
        .0
}

fn path(item: &Value) -> Message {
    let methods = [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (8, "patch")];
    methods.into_iter().fold(Message::default(), |whole, (tag, method)| match item.get(method) {
        Some(described) => whole.message(tag, &operation(described)),
        None => whole,
    })
}

fn operation(described: &Value) -> Message {
    let part = |name: &str| described.get(name).cloned().unwrap_or_default();
    let response = |value: &Value| {
        Message::default().message(1, &Message::default().text(1, value, "description"))
    };
    Message::default()
        .text(5, described, "operationId")
        .each(8, &part("parameters"), parameter)
        .message(9, &Message::default().named(1, &part("responses"), response))
        .extensions(13, described)
}

/// All our parameters are in the query.
fn parameter(described: &Value) -> Message {
    let query = Message::default()
        .text(2, described, "in")
        .text(4, described, "name")
        .text(6, described, "type");
    let not_in_body = Message::default().message(3, &query);
    let parameter = Message::default().message(2, &not_in_body);
    Message::default().message(1, &parameter)
}

fn schema(value: &Value) -> Message {
    let mut message = Message::default().text(1, value, "$ref").text(2, value, "format").text(
        4,
        value,
        "description",
    );
    for name in value.get("required").and_then(Value::as_array).into_iter().flatten() {
        message = message.bytes(19, name.as_str().unwrap_or_default().as_bytes());
    }
    if let Some(inner) = value.get("additionalProperties") {
        message = message.message(21, &Message::default().message(1, &schema(inner)));
    }
    if value.get("type").is_some() {
        message = message.message(22, &Message::default().text(1, value, "type"));
    }
    if let Some(items) = value.get("items") {
        message = message.message(23, &Message::default().message(1, &schema(items)));
    }
    if let Some(properties) = value.get("properties") {
        message = message.message(25, &Message::default().named(1, properties, schema));
    }
    message.extensions(31, value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn schema_is_encoded_field_by_field() {
        let written = schema(&json!({"type": "string", "x-k": ["v"]})).0;
        // type: field 22 holding field 1; the extension: field 31 with name and YAML
        let type_of = [0xb2, 0x01, 0x08, 0x0a, 0x06, b's', b't', b'r', b'i', b'n', b'g'];
        assert!(written.starts_with(&type_of), "{written:x?}");
        let extension = [
            0xfa, 0x01, 0x0e, 0x0a, 0x03, b'x', b'-', b'k', 0x12, 0x07, 0x12, 0x05, b'[', b'"',
            b'v', b'"', b']',
        ];
        assert!(written.ends_with(&extension), "{written:x?}");
    }
}
