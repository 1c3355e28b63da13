//! Protobuf bodies: Go's typed clients, such as `kubectl create`, send objects in this form since
//! Kubernetes 1.32 without negotiation, and prefer it in responses.
//!
//! The table of fields converts a message to the JSON that the client would otherwise have sent,
//! and back; the rest of the server handles only JSON.

pub mod encode;

use std::collections::HashMap;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use serde_json::{Map, Value};

/// Media type in `Content-Type` and `Accept`.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Prefix of every message.
const MAGIC: &[u8] = b"k8s\0";
/// Deeper than any real object; keeps hostile messages from overflowing the stack.
const MAX_DEPTH: usize = 64;

/// Why a body cannot be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    NoPrefix,
    #[error("proto: illegal wireType or truncated message at {path}")]
    Malformed { path: String },
    #[error("proto: {path} nests too deep")]
    TooDeep { path: String },
    #[error("no kind \"{kind}\" is registered for version \"{api_version}\" in protobuf here")]
    UnknownKind { api_version: String, kind: String },
}

/// Decodes one object to JSON.
pub fn read(body: &[u8]) -> Result<Value, ProtobufError> {
    let message = body.strip_prefix(MAGIC).ok_or(ProtobufError::NoPrefix)?;
    let envelope = Message { bytes: message, path: "envelope".to_owned(), depth: 0 };
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in envelope.fields() {
        match field? {
            (1, Wire::Bytes(bytes)) => {
                let types = Message { bytes, ..envelope.below("typeMeta", bytes)? };
                for field in types.fields() {
                    match field? {
                        (1, Wire::Bytes(text)) => api_version = utf8(text, &types.path)?,
                        (2, Wire::Bytes(text)) => kind = utf8(text, &types.path)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let Some(shape) = type_of(&api_version, &kind) else {
        return Err(ProtobufError::UnknownKind { api_version, kind });
    };
    let mut object = Map::new();
    let message = Message { bytes: raw, path: kind.clone(), depth: 0 };
    shape.read_into(&message, &mut object)?;
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    Ok(Value::Object(object))
}

/// The message of a kind.
fn type_of(api_version: &str, kind: &str) -> Option<&'static Shape> {
    TYPES.get(match (api_version, kind) {
        ("events.k8s.io/v1", "Event") => "events.Event",
        (_, kind) => kind,
    })
}

static TYPES: LazyLock<HashMap<&'static str, Shape>> =
    LazyLock::new(|| parse(include_str!("protobuf/fields.table")));

#[derive(Debug, Default)]
struct Shape {
    fields: HashMap<u32, Field>,
}

#[derive(Debug)]
struct Field {
    /// Empty if inlined: its fields belong to the parent.
    name: &'static str,
    many: Many,
    ty: Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Many {
    One,
    List,
    Map,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Bool,
    Integer,
    Bytes,
    Quantity,
    Time,
    MicroTime,
    IntOrString,
    /// FieldsV1: JSON text in a message.
    Fields,
    Message(&'static str),
}

/// Parses the table; its grammar is described at its top.
fn parse(table: &'static str) -> HashMap<&'static str, Shape> {
    let mut shapes: HashMap<&'static str, Shape> = HashMap::new();
    let mut current = "";
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        if !line.starts_with(' ') {
            current = words.next().unwrap_or_default();
        }
        let shape = shapes.entry(current).or_default();
        shape.fields.extend(words.filter_map(parse_field));
    }
    shapes
}

fn parse_field(word: &'static str) -> Option<(u32, Field)> {
    let (name, rest) = word.split_once('=')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let (number, rest) = rest.split_at(digits);
    let (many, ty) = match (rest.strip_prefix('*'), rest.strip_prefix('%')) {
        (Some(ty), _) => (Many::List, ty),
        (_, Some(ty)) => (Many::Map, ty),
        (None, None) => (Many::One, rest),
    };
    let ty = match ty {
        "s" => Type::Text,
        "b" => Type::Bool,
        "i" => Type::Integer,
        "y" => Type::Bytes,
        "Q" => Type::Quantity,
        "T" => Type::Time,
        "T6" => Type::MicroTime,
        "I" => Type::IntOrString,
        "F" => Type::Fields,
        other => Type::Message(other.strip_prefix(':')?),
    };
    Some((number.parse().ok()?, Field { name, many, ty }))
}

/// An encoded message, and its path in the object.
struct Message<'a> {
    bytes: &'a [u8],
    path: String,
    depth: usize,
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A wire type that no field here uses.
    Other,
}

impl<'a> Message<'a> {
    fn below(&self, name: &str, bytes: &'a [u8]) -> Result<Self, ProtobufError> {
        let path = format!("{}.{name}", self.path);
        let depth = self.depth + 1;
        if depth > MAX_DEPTH {
            return Err(ProtobufError::TooDeep { path });
        }
        Ok(Self { bytes, path, depth })
    }

    /// Its fields in order, up to the first invalid one.
    fn fields(&self) -> impl Iterator<Item = Result<(u32, Wire<'a>), ProtobufError>> + use<'a> {
        let mut rest = self.bytes;
        let mut failed = false;
        let path = self.path.clone();
        std::iter::from_fn(move || {
            if rest.is_empty() || failed {
                return None;
            }
            let field = next_field(&mut rest);
            failed = field.is_none();
            Some(field.ok_or_else(|| ProtobufError::Malformed { path: path.clone() }))
        })
    }
}

fn next_field<'a>(rest: &mut &'a [u8]) -> Option<(u32, Wire<'a>)> {
    let (number, wire) = decode_key(rest).ok()?;
    let value = match wire {
        WireType::Varint => Wire::Number(decode_varint(rest).ok()?),
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(rest).ok()?).ok()?;
            let (bytes, after) = rest.split_at_checked(length)?;
            *rest = after;
            Wire::Bytes(bytes)
        }
        other => {
            skip_field(other, number, rest, DecodeContext::default()).ok()?;
            Wire::Other
        }
    };
    Some((number, value))
}

impl Shape {
    fn read_into(
        &self,
        message: &Message<'_>,
        out: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        for field in message.fields() {
            let (number, wire) = field?;
            // An unknown field comes from a newer client and is skipped.
            let Some(field) = self.fields.get(&number) else { continue };
            field.read_into(wire, message, out)?;
        }
        Ok(())
    }
}

impl Field {
    fn read_into(
        &self,
        wire: Wire<'_>,
        parent: &Message<'_>,
        out: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        if self.name.is_empty() {
            let (Type::Message(name), Wire::Bytes(bytes)) = (self.ty, wire) else { return Ok(()) };
            return match TYPES.get(name) {
                Some(shape) => shape.read_into(&parent.below(name, bytes)?, out),
                None => Ok(()),
            };
        }
        match self.many {
            Many::One => {
                let value = self.ty.read(&wire, self.name, parent)?;
                out.insert(self.name.to_owned(), value);
            }
            Many::List => {
                let list = out.entry(self.name).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(list) = list {
                    match (&wire, self.ty) {
                        (Wire::Bytes(packed), Type::Integer) => {
                            let mut rest = *packed;
                            while !rest.is_empty() {
                                let number = decode_varint(&mut rest)
                                    .map_err(|_| parent.malformed(self.name))?;
                                list.push(integer(number));
                            }
                        }
                        _ => list.push(self.ty.read(&wire, self.name, parent)?),
                    }
                }
            }
            Many::Map => {
                let Wire::Bytes(bytes) = wire else { return Err(parent.malformed(self.name)) };
                let (key, value) = self.entry(&parent.below(self.name, bytes)?)?;
                let map = out.entry(self.name).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(map) = map {
                    map.insert(key, value);
                }
            }
        }
        Ok(())
    }

    fn entry(&self, message: &Message<'_>) -> Result<(String, Value), ProtobufError> {
        let mut key = String::new();
        let mut value = self.ty.zero();
        for field in message.fields() {
            match field? {
                (1, Wire::Bytes(text)) => key = utf8(text, &message.path)?,
                (2, wire) => value = self.ty.read(&wire, "value", message)?,
                _ => {}
            }
        }
        Ok((key, value))
    }
}

impl Message<'_> {
    fn malformed(&self, name: &str) -> ProtobufError {
        ProtobufError::Malformed { path: format!("{}.{name}", self.path) }
    }
}

impl Type {
    fn zero(self) -> Value {
        match self {
            Self::Text | Self::Bytes => Value::String(String::new()),
            Self::Bool => Value::Bool(false),
            Self::Integer | Self::IntOrString => 0.into(),
            Self::Quantity => "0".into(),
            Self::Time | Self::MicroTime => Value::Null,
            Self::Message(_) | Self::Fields => Value::Object(Map::new()),
        }
    }

    fn read(
        self,
        wire: &Wire<'_>,
        name: &str,
        parent: &Message<'_>,
    ) -> Result<Value, ProtobufError> {
        Ok(match (self, wire) {
            (Self::Bool, Wire::Number(number)) => Value::Bool(*number != 0),
            (Self::Integer, Wire::Number(number)) => integer(*number),
            (Self::Text, Wire::Bytes(text)) => Value::String(utf8(text, &parent.path)?),
            (Self::Bytes, Wire::Bytes(bytes)) => Value::String(BASE64_STANDARD.encode(bytes)),
            (Self::Message(ty), Wire::Bytes(bytes)) => {
                let mut map = Map::new();
                if let Some(shape) = TYPES.get(ty) {
                    shape.read_into(&parent.below(name, bytes)?, &mut map)?;
                }
                Value::Object(map)
            }
            (Self::Quantity, Wire::Bytes(bytes)) => {
                let parts = Parts::of(&parent.below(name, bytes)?)?;
                Value::String(parts.text(1)?)
            }
            (Self::Time | Self::MicroTime, Wire::Bytes(bytes)) => {
                time(&Parts::of(&parent.below(name, bytes)?)?, self)
            }
            (Self::IntOrString, Wire::Bytes(bytes)) => {
                let parts = Parts::of(&parent.below(name, bytes)?)?;
                match parts.number(1) {
                    0 => integer(parts.number(2)),
                    _ => Value::String(parts.text(3)?),
                }
            }
            (Self::Fields, Wire::Bytes(bytes)) => {
                let text = Parts::of(&parent.below(name, bytes)?)?.text(1)?;
                serde_json::from_str(&text).map_err(|_| parent.malformed(name))?
            }
            _ => return Err(parent.malformed(name)),
        })
    }
}

/// The fields of a small message.
struct Parts<'a> {
    fields: Vec<(u32, Wire<'a>)>,
    path: String,
}

impl<'a> Parts<'a> {
    fn of(message: &Message<'a>) -> Result<Self, ProtobufError> {
        let fields = message.fields().collect::<Result<_, _>>()?;
        Ok(Self { fields, path: message.path.clone() })
    }

    fn number(&self, wanted: u32) -> u64 {
        let found = self.fields.iter().rev().find_map(|(number, wire)| match wire {
            Wire::Number(value) if *number == wanted => Some(*value),
            _ => None,
        });
        found.unwrap_or(0)
    }

    fn text(&self, wanted: u32) -> Result<String, ProtobufError> {
        let found = self.fields.iter().rev().find_map(|(number, wire)| match wire {
            Wire::Bytes(bytes) if *number == wanted => Some(*bytes),
            _ => None,
        });
        utf8(found.unwrap_or_default(), &self.path)
    }
}

/// An empty time is null.
fn time(parts: &Parts<'_>, ty: Type) -> Value {
    if parts.fields.is_empty() {
        return Value::Null;
    }
    let seconds = parts.number(1).cast_signed();
    let nanoseconds = i32::try_from(parts.number(2).cast_signed()).unwrap_or(0);
    let Ok(time) = Timestamp::new(seconds, nanoseconds) else { return Value::Null };
    let format = match ty {
        Type::MicroTime => "%Y-%m-%dT%H:%M:%S.%6fZ",
        _ => "%Y-%m-%dT%H:%M:%SZ",
    };
    Value::String(time.strftime(format).to_string())
}

fn integer(number: u64) -> Value {
    number.cast_signed().into()
}

fn utf8(bytes: &[u8], path: &str) -> Result<String, ProtobufError> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| ProtobufError::Malformed { path: path.to_owned() })
}

#[cfg(test)]
mod tests;
