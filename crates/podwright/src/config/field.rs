//! Field paths in a configuration document.
//!
//! Rules, warnings and errors identify fields by path. Keys of maps may contain dots
//! (`memory.available`, `kubernetes.io/os`), so a path is a list of steps and not a string.

use std::fmt;

use serde_json::{Map, Value};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Key(String),
    Index(usize),
}

/// Path from the root of a document to one value.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(Vec<Step>);

impl FieldPath {
    /// Parses `authentication.webhook.enabled`; only for field names, which contain no dots.
    pub fn of(dotted: &str) -> Self {
        Self(dotted.split('.').map(|key| Step::Key(key.to_owned())).collect())
    }

    pub fn key(&self, key: &str) -> Self {
        self.then(Step::Key(key.to_owned()))
    }

    pub fn index(&self, index: usize) -> Self {
        self.then(Step::Index(index))
    }

    fn then(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The path without its last step; none for the root.
    pub fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }

    /// The key this path ends with, if it ends with a key.
    pub fn last_key(&self) -> Option<&str> {
        match self.0.last()? {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        }
    }

    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// Whether values here are secret: headers sent with the static pod URL carry
    /// credentials.
    pub fn is_secret(&self) -> bool {
        matches!(self.0.first(), Some(Step::Key(key)) if key == "staticPodURLHeader")
    }

    /// The value at this path.
    pub fn find<'doc>(&self, document: &'doc Value) -> Option<&'doc Value> {
        self.0.iter().try_fold(document, |at, step| match step {
            Step::Key(key) => at.get(key),
            Step::Index(index) => at.get(index),
        })
    }

    /// Sets a value at this path and creates missing objects. A non-object on the path is replaced.
    pub fn put(&self, document: &mut Value, value: Value) {
        let mut at = document;
        for step in &self.0 {
            let Step::Key(key) = step else { return };
            if !at.is_object() {
                *at = Value::Object(Map::new());
            }
            let Value::Object(object) = at else { return };
            at = object.entry(key.clone()).or_insert(Value::Null);
        }
        *at = value;
    }

    /// Removes the value at this path.
    pub fn remove(&self, document: &mut Value) -> Option<Value> {
        let (last, above) = self.0.split_last()?;
        let parent = above.iter().try_fold(document, |at, step| match step {
            Step::Key(key) => at.get_mut(key),
            Step::Index(index) => at.get_mut(index),
        })?;
        match (last, parent) {
            (Step::Key(key), Value::Object(object)) => object.remove(key),
            (Step::Index(index), Value::Array(items)) if *index < items.len() => {
                Some(items.remove(*index))
            }
            _ => None,
        }
    }

    /// A document that contains only `value` at this path.
    pub fn document_with(&self, value: Value) -> Value {
        self.0.iter().rev().fold(value, |inner, step| match step {
            Step::Key(key) => Value::Object(Map::from_iter([(key.clone(), inner)])),
            Step::Index(_) => Value::Array(vec![inner]),
        })
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if is_plain(key) && position == 0 => f.write_str(key)?,
                Step::Key(key) if is_plain(key) => write!(f, ".{key}")?,
                Step::Key(key) => write!(f, "[{key:?}]")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn path_is_displayed_in_the_usual_notation() {
        let root = FieldPath::default();
        assert_eq!(FieldPath::of("authentication.webhook").to_string(), "authentication.webhook");
        assert_eq!(
            root.key("evictionHard").key("memory.available").to_string(),
            r#"evictionHard["memory.available"]"#
        );
        assert_eq!(
            root.key("registerWithTaints").index(1).key("effect").to_string(),
            "registerWithTaints[1].effect"
        );
    }

    #[test]
    fn value_is_put_found_and_removed_at_its_path() {
        let mut document = json!({"a": 1});
        let path = FieldPath::of("b.c");
        path.put(&mut document, json!(2));
        assert_eq!(document, json!({"a": 1, "b": {"c": 2}}));
        assert_eq!(path.find(&document), Some(&json!(2)));
        assert_eq!(path.remove(&mut document), Some(json!(2)));
        assert_eq!(path.remove(&mut document), None);
        assert_eq!(document, json!({"a": 1, "b": {}}));
    }

    #[test]
    fn items_of_lists_are_found_and_removed_too() {
        let mut document = json!({"list": ["x", "y"]});
        let second = FieldPath::of("list").index(1);
        assert_eq!(second.remove(&mut document), Some(json!("y")));
        assert_eq!(second.remove(&mut document), None);
        assert_eq!(second.document_with(json!("z")), json!({"list": ["z"]}));
    }
}
