//! Configuration layers, merged with the source of each value.
//!
//! Defaults, presets, the `--config` file, its drop-ins and the flags are merged as untyped
//! documents; only the result is decoded. The source of each value is recorded, so that an error in
//! the result names the file or flag to edit.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::field::FieldPath;
use super::problem::Source;

/// A document with the source of each value. No `Debug`: it may contain secrets.
#[derive(Clone)]
pub struct Layers {
    document: Value,
    sources: BTreeMap<FieldPath, Source>,
}

impl Default for Layers {
    fn default() -> Self {
        Self { document: Value::Object(Map::new()), sources: BTreeMap::new() }
    }
}

impl Layers {
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Applies a document as a JSON merge patch: objects merge, everything else replaces, null
    /// removes.
    pub fn merge(&mut self, patch: &Value, source: &Source) {
        self.merge_at(&FieldPath::default(), patch, source);
    }

    fn merge_at(&mut self, path: &FieldPath, patch: &Value, source: &Source) {
        match patch {
            Value::Null => self.remove(path),
            Value::Object(entries) => {
                if !path.find(&self.document).is_some_and(Value::is_object) {
                    self.set(path, Value::Object(Map::new()), source);
                }
                for (key, value) in entries {
                    self.merge_at(&path.key(key), value, source);
                }
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                self.set(path, patch.clone(), source);
            }
        }
    }

    /// Sets one value, replacing an existing one.
    pub fn set(&mut self, path: &FieldPath, value: Value, source: &Source) {
        self.remove(path);
        path.put(&mut self.document, value);
        self.sources.insert(path.clone(), source.clone());
    }

    /// Removes a value and its source.
    pub fn remove(&mut self, path: &FieldPath) {
        path.remove(&mut self.document);
        self.sources.retain(|known, _| !known.starts_with(path));
    }

    pub fn get(&self, path: &FieldPath) -> Option<&Value> {
        path.find(&self.document)
    }

    /// The source of the value at a path. For a part of a value it is the source of the whole; for
    /// an object without a source, the source of its first part.
    pub fn source_of(&self, path: &FieldPath) -> Source {
        let mut current = Some(path.clone());
        while let Some(at) = current {
            if let Some(source) = self.sources.get(&at) {
                return source.clone();
            }
            current = at.parent();
        }
        let part = self.sources.iter().find(|(known, _)| known.starts_with(path));
        part.map_or(Source::Default, |(_, source)| source.clone())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    fn file(name: &str) -> Source {
        Source::File(name.into())
    }

    #[test]
    fn objects_merge_lists_replace_and_null_removes() {
        let mut layers = Layers::default();
        layers.merge(
            &json!({"maxPods": 10, "clusterDNS": ["a", "b"], "evictionHard": {"x": "1", "y": "2"}}),
            &file("base"),
        );
        layers.merge(
            &json!({"maxPods": null, "clusterDNS": ["c"], "evictionHard": {"y": "3"}}),
            &file("dropin"),
        );
        assert_eq!(
            layers.document(),
            &json!({"clusterDNS": ["c"], "evictionHard": {"x": "1", "y": "3"}})
        );
    }

    #[test]
    fn every_value_has_its_last_source() {
        let mut layers = Layers::default();
        layers.merge(&json!({"a": {"b": 1, "c": 2}, "d": [1, 2]}), &file("base"));
        layers.merge(&json!({"a": {"c": 3}}), &file("dropin"));
        layers.set(&FieldPath::of("e"), json!(1), &Source::Flag("e-flag"));
        for (path, want) in [
            (FieldPath::of("a.b"), file("base")),
            (FieldPath::of("a.c"), file("dropin")),
            (FieldPath::of("d").index(1), file("base")),
            (FieldPath::of("e"), Source::Flag("e-flag")),
            (FieldPath::of("never.set"), Source::Default),
        ] {
            assert_eq!(layers.source_of(&path), want, "{path}");
        }
    }

    #[test]
    fn removed_value_has_no_source() {
        let mut layers = Layers::default();
        layers.merge(&json!({"a": {"b": 1}}), &file("base"));
        layers.merge(&json!({"a": {"b": null}}), &file("dropin"));
        assert_eq!(layers.get(&FieldPath::of("a.b")), None);
        assert_eq!(layers.source_of(&FieldPath::of("a.b")), file("base"), "source of the object");
        layers.remove(&FieldPath::of("a"));
        assert_eq!(layers.source_of(&FieldPath::of("a.b")), Source::Default);
    }
}
