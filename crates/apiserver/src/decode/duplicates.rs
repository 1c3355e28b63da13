//! JSON parsing that reports duplicate keys; the last value counts.

use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The value, and the paths of duplicate keys.
pub(super) fn parse(text: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut input = serde_json::Deserializer::from_slice(text);
    let seed = Seed { path: &mut String::new(), duplicates: &mut duplicates };
    let value = seed.deserialize(&mut input)?;
    input.end()?;
    Ok((value, duplicates))
}

struct Seed<'a> {
    path: &'a mut String,
    duplicates: &'a mut Vec<String>,
}

impl Seed<'_> {
    fn below<'b>(&'b mut self) -> Seed<'b> {
        Seed { path: self.path, duplicates: self.duplicates }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a JSON number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut input: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        let length = self.path.len();
        loop {
            self.path.push_str(&format!("[{}]", list.len()));
            let next = input.next_element_seed(self.below())?;
            self.path.truncate(length);
            match next {
                Some(value) => list.push(value),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut input: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let length = self.path.len();
        while let Some(key) = input.next_key::<String>()? {
            if !self.path.is_empty() {
                self.path.push('.');
            }
            self.path.push_str(&key);
            let value = input.next_value_seed(self.below())?;
            if map.insert(key, value).is_some() && !self.duplicates.contains(self.path) {
                self.duplicates.push(self.path.clone());
            }
            self.path.truncate(length);
        }
        Ok(Value::Object(map))
    }
}
