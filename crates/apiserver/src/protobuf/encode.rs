//! Encoding of JSON as protobuf: the reverse of the decoder, from the same table.
//!
//! Fields that the table does not have are left out, as are values of the wrong type: what is sent
//! was decoded and stored by this server before.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value};

use super::{Field, MAGIC, Many, Shape, TYPES, Type, type_of};

/// The object with its envelope; `None` if its kind is not in the table.
pub fn object(object: &Value) -> Option<Vec<u8>> {
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let mut raw = Vec::new();
    write_shape(type_of(api_version, kind)?, object.as_object()?, &mut raw);
    Some(enveloped(api_version, kind, &raw))
}

/// A list with its envelope. The items are written one by one: a list may be long.
pub struct List {
    api_version: String,
    kind: String,
    shape: &'static Shape,
    raw: Vec<u8>,
}

impl List {
    /// Begins a list of objects of this version and kind; `None` if the kind is not in the table.
    pub fn new(api_version: &str, kind: &str, metadata: &Value) -> Option<Self> {
        let shape = type_of(api_version, kind)?;
        let mut raw = Vec::new();
        let mut listed = Vec::new();
        write_shape(TYPES.get("ListMeta")?, metadata.as_object()?, &mut listed);
        bytes(1, &listed, &mut raw);
        Some(Self { api_version: api_version.to_owned(), kind: format!("{kind}List"), shape, raw })
    }

    pub fn push(&mut self, item: &Value) {
        let mut raw = Vec::new();
        if let Some(item) = item.as_object() {
            write_shape(self.shape, item, &mut raw);
        }
        bytes(2, &raw, &mut self.raw);
    }

    pub fn finish(self) -> Vec<u8> {
        enveloped(&self.api_version, &self.kind, &self.raw)
    }
}

/// An event of a watch, whose object is encoded already: its length, then the message.
pub fn watch_event(kind: &str, object: &[u8], out: &mut Vec<u8>) {
    let mut embedded = Vec::with_capacity(object.len() + 8);
    bytes(1, object, &mut embedded);
    let mut event = Vec::with_capacity(embedded.len() + 24);
    bytes(1, kind.as_bytes(), &mut event);
    bytes(2, &embedded, &mut event);
    out.extend_from_slice(&u32::try_from(event.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(&event);
}

fn enveloped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut types = Vec::new();
    bytes(1, api_version.as_bytes(), &mut types);
    bytes(2, kind.as_bytes(), &mut types);
    let mut out = Vec::with_capacity(raw.len() + types.len() + 16);
    out.extend_from_slice(MAGIC);
    bytes(1, &types, &mut out);
    bytes(2, raw, &mut out);
    out
}

fn number(field: u32, value: i64, out: &mut Vec<u8>) {
    encode_key(field, WireType::Varint, out);
    encode_varint(value.cast_unsigned(), out);
}

fn bytes(field: u32, content: &[u8], out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn write_shape(shape: &Shape, object: &Map<String, Value>, out: &mut Vec<u8>) {
    let mut fields: Vec<_> = shape.fields.iter().collect();
    fields.sort_by_key(|(number, _)| **number); // clients do not mind, people who compare do
    for (number, field) in fields {
        write_field(*number, field, object, out);
    }
}

fn write_field(number: u32, field: &Field, object: &Map<String, Value>, out: &mut Vec<u8>) {
    if field.name.is_empty() {
        let Type::Message(inner) = field.ty else { return };
        let mut inlined = Vec::new();
        if let Some(shape) = TYPES.get(inner) {
            write_shape(shape, object, &mut inlined);
        }
        if !inlined.is_empty() {
            bytes(number, &inlined, out);
        }
        return;
    }
    match (field.many, object.get(field.name)) {
        (_, None | Some(Value::Null)) => {}
        (Many::One, Some(value)) => write_value(field.ty, number, value, out),
        (Many::List, Some(Value::Array(items))) => {
            for item in items {
                write_value(field.ty, number, item, out);
            }
        }
        (Many::Map, Some(Value::Object(entries))) => {
            for (key, value) in entries {
                let mut entry = Vec::new();
                bytes(1, key.as_bytes(), &mut entry);
                write_value(field.ty, 2, value, &mut entry);
                bytes(number, &entry, out);
            }
        }
        _ => {}
    }
}

fn write_value(ty: Type, field: u32, value: &Value, out: &mut Vec<u8>) {
    match (ty, value) {
        (Type::Text, Value::String(text)) => bytes(field, text.as_bytes(), out),
        (Type::Bool, Value::Bool(flag)) => number(field, i64::from(*flag), out),
        (Type::Integer, Value::Number(value)) => number(field, value.as_i64().unwrap_or(0), out),
        (Type::Bytes, Value::String(text)) => {
            if let Ok(decoded) = BASE64_STANDARD.decode(text) {
                bytes(field, &decoded, out);
            }
        }
        (Type::Quantity, Value::String(text)) => {
            let mut quantity = Vec::new();
            bytes(1, text.as_bytes(), &mut quantity);
            bytes(field, &quantity, out);
        }
        (Type::Time | Type::MicroTime, Value::String(text)) => {
            let Ok(time) = text.parse::<Timestamp>() else { return };
            let mut parts = Vec::new();
            number(1, time.as_second(), &mut parts);
            number(2, i64::from(time.subsec_nanosecond()), &mut parts);
            bytes(field, &parts, out);
        }
        (Type::IntOrString, Value::Number(value)) => {
            let mut parts = Vec::new();
            number(1, 0, &mut parts);
            number(2, value.as_i64().unwrap_or(0), &mut parts);
            bytes(field, &parts, out);
        }
        (Type::IntOrString, Value::String(text)) => {
            let mut parts = Vec::new();
            number(1, 1, &mut parts);
            bytes(3, text.as_bytes(), &mut parts);
            bytes(field, &parts, out);
        }
        (Type::Fields, fields @ Value::Object(_)) => {
            let mut raw = Vec::new();
            bytes(1, fields.to_string().as_bytes(), &mut raw);
            bytes(field, &raw, out);
        }
        (Type::Message(inner), Value::Object(map)) => {
            let mut message = Vec::new();
            if let Some(shape) = TYPES.get(inner) {
                write_shape(shape, map, &mut message);
            }
            bytes(field, &message, out);
        }
        _ => {}
    }
}
