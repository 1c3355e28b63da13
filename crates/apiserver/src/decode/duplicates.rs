//! JSON and YAML parsing that reports duplicate keys; the last value counts.
//!
//! The number of values is limited, since a value takes many times the space of its text, and so is
//! what is reported, since each report repeats the names of all enclosing fields.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

/// Values of one body. A pod with a hundred containers of a hundred variables each has thirty
/// thousand.
const MAX_VALUES: usize = 50_000;
/// Reported duplicates, as in kube-apiserver.
const MAX_REPORTED: usize = 100;
/// Bytes of reported paths.
const MAX_REPORTED_BYTES: usize = 64 << 10;

/// The value, and the paths of duplicate keys.
pub(super) fn parse(text: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let mut duplicates = Duplicates::default();
    let mut values = MAX_VALUES;
    let mut input = serde_json::Deserializer::from_slice(text);
    let seed = Seed { path: &mut String::new(), duplicates: &mut duplicates, values: &mut values };
    let value = seed.deserialize(&mut input)?;
    input.end()?;
    Ok((value, duplicates.paths))
}

/// Levels of a YAML document, each of which takes several kilobytes of the stack. Objects of the
/// API have about twenty.
const MAX_DEPTH: usize = 40;

/// As [`parse`], of one YAML document with the types of YAML 1.1 that Go's parser knows.
pub(super) fn parse_yaml(text: &[u8]) -> Result<(Value, Vec<String>), String> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: 2 * MAX_VALUES,
        },
    };
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    let mut duplicates = Duplicates::default();
    let mut values = MAX_VALUES;
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |input| {
        let seed =
            Seed { path: &mut String::new(), duplicates: &mut duplicates, values: &mut values };
        seed.deserialize(input)
    });
    Ok((value.map_err(|error| error.to_string())?, duplicates.paths))
}

/// Paths of duplicate keys, each once, in order.
#[derive(Default)]
struct Duplicates {
    paths: Vec<String>,
    known: HashSet<String>,
    bytes: usize,
}

impl Duplicates {
    fn add(&mut self, path: &str) {
        if self.paths.len() >= MAX_REPORTED
            || self.bytes + path.len() > MAX_REPORTED_BYTES
            || self.known.contains(path)
        {
            return;
        }
        self.bytes += path.len();
        self.known.insert(path.to_owned());
        self.paths.push(path.to_owned());
    }
}

struct Seed<'a> {
    path: &'a mut String,
    duplicates: &'a mut Duplicates,
    /// How many more values there may be.
    values: &'a mut usize,
}

impl Seed<'_> {
    fn below<'b>(&'b mut self) -> Seed<'b> {
        Seed { path: self.path, duplicates: self.duplicates, values: self.values }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        *self.values = self.values.checked_sub(1).ok_or_else(|| {
            D::Error::custom(format!("the object has more than {MAX_VALUES} values"))
        })?;
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
            if map.insert(key, value).is_some() {
                self.duplicates.add(self.path);
            }
            self.path.truncate(length);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_reported_once_and_the_last_value_counts() {
        let text = br#"{"a": 1, "b": {"c": 1, "c": 2, "c": 3}, "l": [{"d": 1, "d": 2}], "a": 4}"#;
        let (value, duplicates) = parse(text).unwrap();
        assert_eq!(value, serde_json::json!({"a": 4, "b": {"c": 3}, "l": [{"d": 2}]}));
        assert_eq!(duplicates, ["b.c", "l[0].d", "a"]);
    }

    #[test]
    fn many_duplicates_take_linear_time_and_little_space() {
        let pairs: Vec<String> =
            (0..20_000).map(|number| format!("\"k{number}\":0,\"k{number}\":0")).collect();
        let began = std::time::Instant::now();
        let (_, duplicates) = parse(format!("{{{}}}", pairs.join(",")).as_bytes()).unwrap();
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
        assert_eq!(duplicates.len(), MAX_REPORTED);
        // each path contains the name of the enclosing field
        let name = "n".repeat(MAX_REPORTED_BYTES / 4);
        let text = format!("{{\"{name}\":{{{}}}}}", pairs.join(","));
        let (_, duplicates) = parse(text.as_bytes()).unwrap();
        assert_eq!(duplicates.len(), 3);
    }

    #[test]
    fn number_of_values_is_limited() {
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 1));
        parse(list(MAX_VALUES - 1).as_bytes()).unwrap();
        let error = parse(list(MAX_VALUES).as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("the object has more than 50000 values"), "{error}");
    }
}
