//! Parser of configuration files into untyped documents.
//!
//! JSON is parsed as YAML. Duplicate keys are accepted (the last one counts) but are probably a
//! mistake, so each is reported with its path. Existing deserializers either stop at the first
//! duplicate or ignore them, hence a custom visitor.

use std::cell::RefCell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;

use super::field::FieldPath;

/// Content of a file and its duplicate keys. No `Debug`: it may contain secrets.
pub struct Document {
    pub value: Value,
    pub duplicates: Vec<FieldPath>,
}

impl Document {
    /// Parses YAML or JSON. The error contains the location.
    pub fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! {
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            // A file mode written 0644 is octal, as it is for every other Kubernetes tool.
            legacy_octal_numbers: true,
            // One line per problem; the location is in it.
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let duplicates = RefCell::new(Vec::new());
        let reader = Reader { path: FieldPath::default(), duplicates: &duplicates };
        let value = reader.deserialize(deserializer)?;
        Ok(Self { value, duplicates: duplicates.into_inner() })
    }
}

/// Builds a value and records duplicate keys.
struct Reader<'a> {
    path: FieldPath,
    duplicates: &'a RefCell<Vec<FieldPath>>,
}

impl Reader<'_> {
    fn at(&self, path: FieldPath) -> Self {
        Self { path, duplicates: self.duplicates }
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML or JSON value")
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

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.at(self.path.index(list.len())))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = self.path.key(&key);
            let value = entries.next_value_seed(self.at(path.clone()))?;
            if object.insert(key, value).is_some() {
                self.duplicates.borrow_mut().push(path);
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_and_json_give_the_same_document() {
        let yaml = Document::parse("a: 1\nb: [x, 'true', yes]\nc:\n  d: 1.5\n  e:\n").unwrap();
        let json = Document::parse(r#"{"a":1,"b":["x","true",true],"c":{"d":1.5,"e":null}}"#);
        assert_eq!(yaml.value, json!({"a":1,"b":["x","true",true],"c":{"d":1.5,"e":null}}));
        assert_eq!(yaml.value, json.unwrap().value);
    }

    #[test]
    fn a_file_mode_with_a_leading_zero_is_octal() {
        assert_eq!(Document::parse("mode: 0644").unwrap().value, json!({"mode": 0o644}));
    }

    #[test]
    fn duplicate_keys_are_reported_and_the_last_one_counts() {
        let text = "maxPods: 1\nauth:\n  x: 1\n  x: 2\nmaxPods: 3\nlist:\n- {k: 1, k: 2}\n";
        let document = Document::parse(text).unwrap();
        assert_eq!(document.value, json!({"maxPods": 3, "auth": {"x": 2}, "list": [{"k": 2}]}));
        let names: Vec<_> = document.duplicates.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["auth.x", "maxPods", "list[0].k"]);
        let json = Document::parse(r#"{"a": 1, "a": 2}"#).unwrap();
        assert_eq!(json.value, json!({"a": 2}));
        assert_eq!(json.duplicates.len(), 1);
    }

    #[test]
    fn invalid_text_is_refused_with_its_location() {
        for text in ["a: [1", "a: b: c", "a: 1\n---\nb: 2\n", "x: .inf"] {
            let error = Document::parse(text).err().unwrap();
            assert!(error.contains("line"), "{text:?}: {error}");
            assert!(!error.contains('\n'), "one line: {error:?}");
        }
    }
}
