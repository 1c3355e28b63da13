//! Messages with a value in every field, and their JSON form by field name.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, ReflectMessage,
    Value as Field,
};
use serde_json::{Map, Value, json};

use crate::differences::{LEFT_OUT, TEXT_BEFORE, is_newer};

/// Produces values that are never empty and, as far as the type allows, unique.
#[derive(Default)]
pub(crate) struct Filler {
    given: u32,
}

impl Filler {
    pub(crate) fn message(&mut self, of: &MessageDescriptor) -> DynamicMessage {
        let mut message = DynamicMessage::new(of.clone());
        for field in of.fields() {
            message.set_field(&field, self.field(&field));
        }
        message
    }

    pub(crate) fn field(&mut self, field: &FieldDescriptor) -> Field {
        if let Kind::Message(entry) = field.kind()
            && field.is_map()
        {
            let value = entry.map_entry_value_field().kind();
            let mut one = || (MapKey::String(self.text()), self.one(&value));
            return Field::Map([one(), one()].into_iter().collect());
        }
        if field.is_list() {
            return Field::List(vec![self.one(&field.kind()), self.one(&field.kind())]);
        }
        self.one(&field.kind())
    }

    /// Integers are at the far end of their range, so that a narrower type is detected.
    fn one(&mut self, kind: &Kind) -> Field {
        let n = self.next();
        match kind {
            Kind::Bool => Field::Bool(true),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                Field::I32(i32::MIN.saturating_add_unsigned(n))
            }
            Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                Field::I64(i64::MIN.saturating_add_unsigned(n.into()))
            }
            Kind::Uint32 | Kind::Fixed32 => Field::U32(u32::MAX - n),
            Kind::Uint64 | Kind::Fixed64 => Field::U64(u64::MAX - u64::from(n)),
            Kind::Float => Field::F32(n as f32 + 0.5),
            Kind::Double => Field::F64(f64::from(n) + 0.5),
            Kind::String => Field::String(self.text()),
            Kind::Bytes => Field::Bytes(self.text().into()),
            Kind::Enum(of) => {
                let numbers: Vec<_> = of.values().map(|v| v.number()).filter(|v| *v != 0).collect();
                Field::EnumNumber(numbers[n as usize % numbers.len()])
            }
            Kind::Message(of) => Field::Message(self.message(of)),
        }
    }

    fn text(&mut self) -> String {
        format!("text {}", self.next())
    }

    fn next(&mut self) -> u32 {
        self.given += 1;
        self.given
    }
}

/// A message in the form that `k8s-cri` types serialize to: without the fields that are newer,
/// with those we left out.
pub(crate) fn by_name(message: &DynamicMessage) -> Value {
    let mut object = Map::new();
    for field in message.descriptor().fields().filter(|field| !is_newer(field)) {
        let absent = field.supports_presence() && !message.has_field(&field);
        let value = message.get_field(&field);
        object.insert(
            rust_name(&field),
            if absent {
                Value::Null
            } else if field.full_name() == TEXT_BEFORE {
                json!(std::str::from_utf8(value.as_bytes().unwrap()).unwrap())
            } else {
                plain(&value)
            },
        );
    }
    for (place, field, _, empty) in LEFT_OUT {
        if message.descriptor().name() == *place {
            object.insert((*field).to_owned(), json!(empty));
        }
    }
    Value::Object(object)
}

fn plain(value: &Field) -> Value {
    match value {
        Field::Bool(value) => json!(value),
        Field::I32(value) | Field::EnumNumber(value) => json!(value),
        Field::I64(value) => json!(value),
        Field::U32(value) => json!(value),
        Field::U64(value) => json!(value),
        Field::F32(value) => json!(value),
        Field::F64(value) => json!(value),
        Field::String(value) => json!(value),
        Field::Bytes(value) => json!(value.to_vec()),
        Field::Message(message) => by_name(message),
        Field::List(values) => values.iter().map(plain).collect(),
        Field::Map(entries) => {
            entries.iter().map(|(key, value)| (key.as_str().unwrap(), plain(value))).collect()
        }
    }
}

/// `uidMappings` and `CDI_devices` are `uid_mappings` and `cdi_devices` in Rust.
pub(crate) fn rust_name(field: &FieldDescriptor) -> String {
    let mut name = String::new();
    let mut last = '_';
    for c in field.name().chars() {
        if last.is_ascii_lowercase() && c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
        last = c;
    }
    name
}

/// Every message directly inside a field's value.
pub(crate) fn each_message(value: &mut Field, visit: &mut impl FnMut(&mut DynamicMessage)) {
    match value {
        Field::Message(message) => visit(message),
        Field::List(values) => values.iter_mut().for_each(|value| each_message(value, visit)),
        Field::Map(entries) => entries.values_mut().for_each(|value| each_message(value, visit)),
        _ => {}
    }
}
