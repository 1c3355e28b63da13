//! Set of fields: a trie of path elements.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::path_element::{BadPathElement, PathElement};

/// Which fields a manager owns. A path may be a member itself, have members below it, or both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    members: BTreeSet<PathElement>,
    children: BTreeMap<PathElement, FieldSet>,
}

static EMPTY: FieldSet = FieldSet { members: BTreeSet::new(), children: BTreeMap::new() };

impl FieldSet {
    pub const fn new() -> Self {
        Self { members: BTreeSet::new(), children: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.children.values().all(Self::is_empty)
    }

    /// Adds the path; the empty path is the object, which no manager owns.
    pub fn insert(&mut self, path: &[PathElement]) {
        match path {
            [] => {}
            [last] => _ = self.members.insert(last.clone()),
            [first, rest @ ..] => self.children.entry(first.clone()).or_default().insert(rest),
        }
    }

    /// Adds paths of field names.
    pub fn of_fields(paths: &[&[&str]]) -> Self {
        let mut set = Self::new();
        for path in paths {
            let path: Vec<_> = path.iter().map(|name| PathElement::field(*name)).collect();
            set.insert(&path);
        }
        set
    }

    /// Whether the step from here is a member.
    pub fn has(&self, step: &PathElement) -> bool {
        self.members.contains(step)
    }

    /// The members below a step.
    pub fn below(&self, step: &PathElement) -> &Self {
        self.children.get(step).unwrap_or(&EMPTY)
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&PathElement, &Self)> {
        self.children.iter()
    }

    /// A set of these members and children, without empty children.
    pub(super) fn from_parts(
        members: impl IntoIterator<Item = PathElement>,
        children: impl IntoIterator<Item = (PathElement, Self)>,
    ) -> Self {
        Self {
            members: members.into_iter().collect(),
            children: children.into_iter().filter(|(_, set)| !set.is_empty()).collect(),
        }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &PathElement> {
        self.members.iter()
    }

    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.extend(other);
        union
    }

    fn extend(&mut self, other: &Self) {
        self.members.extend(other.members.iter().cloned());
        for (step, set) in &other.children {
            self.children.entry(step.clone()).or_default().extend(set);
        }
    }

    pub fn intersection(&self, other: &Self) -> Self {
        Self::from_parts(
            self.members.intersection(&other.members).cloned(),
            self.children.iter().filter_map(|(step, set)| {
                Some((step.clone(), set.intersection(other.children.get(step)?)))
            }),
        )
    }

    /// Without the members of the other; what is below one of them stays.
    pub fn difference(&self, other: &Self) -> Self {
        Self::from_parts(
            self.members.difference(&other.members).cloned(),
            self.children.iter().map(|(step, set)| match other.children.get(step) {
                Some(removed) => (step.clone(), set.difference(removed)),
                None => (step.clone(), set.clone()),
            }),
        )
    }

    /// Without the members of the other and everything below them.
    pub fn recursive_difference(&self, other: &Self) -> Self {
        let children = self.children.iter().filter(|(step, _)| !other.has(step));
        Self::from_parts(
            self.members.difference(&other.members).cloned(),
            children.map(|(step, set)| match other.children.get(step) {
                Some(removed) => (step.clone(), set.recursive_difference(removed)),
                None => (step.clone(), set.clone()),
            }),
        )
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.members.len() + self.children.values().map(Self::len).sum::<usize>()
    }

    /// The paths as messages show them, those of one level before deeper ones; no more than this
    /// many bytes, since each repeats the names of all enclosing fields.
    pub fn paths(&self, max_bytes: usize) -> Vec<String> {
        let (mut paths, mut left) = (Vec::new(), max_bytes);
        self.collect_paths("", &mut left, &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, left: &mut usize, paths: &mut Vec<String>) {
        for step in &self.members {
            let path = format!("{prefix}{step}");
            let Some(rest) = left.checked_sub(path.len()) else {
                *left = 0;
                return;
            };
            *left = rest;
            paths.push(path);
        }
        for (step, set) in &self.children {
            if *left == 0 {
                return;
            }
            set.collect_paths(&format!("{prefix}{step}"), left, paths);
        }
    }

    /// Parses FieldsV1. Elements of unknown kinds are dropped.
    pub fn parse(fields: &Value) -> Result<Self, BadPathElement> {
        let mut set = Self::new();
        for (key, below) in fields.as_object().into_iter().flatten() {
            if key == "." {
                continue;
            }
            let Some(step) = PathElement::parse(key)? else { continue };
            let children = Self::parse(below)?;
            if children.is_empty() || below.get(".").is_some() {
                set.members.insert(step.clone());
            }
            if !children.is_empty() {
                set.children.insert(step, children);
            }
        }
        Ok(set)
    }

    /// The set as FieldsV1.
    pub fn encoded(&self) -> Value {
        Value::Object(self.encode())
    }

    fn encode(&self) -> Map<String, Value> {
        let mut out = Map::new();
        for step in &self.members {
            out.insert(step.encoded(), Value::Object(Map::new()));
        }
        for (step, set) in self.children.iter().filter(|(_, set)| !set.is_empty()) {
            let mut below = set.encode();
            if self.members.contains(step) {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            out.insert(step.encoded(), Value::Object(below));
        }
        out
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(fields: &Value) -> FieldSet {
        FieldSet::parse(fields).unwrap()
    }

    #[test]
    fn fields_v1_round_trips() {
        for fields in [
            json!({}),
            json!({"f:data": {"f:a": {}, "f:b.c": {}}}),
            json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}),
            json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {},
                "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}}}}}}}),
            json!({"f:metadata": {"f:finalizers": {"v:\"x.io/f\"": {}}}, "f:l": {"i:0": {}}}),
        ] {
            let encoded = set(&fields).encoded();
            // A key that owns only itself may be written with or without its dot.
            let shorter = fields.to_string().replace("{\".\":{}}", "{}");
            assert_eq!(encoded.to_string(), shorter);
        }
    }

    #[test]
    fn unknown_elements_are_dropped_and_bad_ones_refused() {
        assert_eq!(set(&json!({"z:what": {}, "f:a": {"z:b": {}}})).encoded(), json!({"f:a": {}}));
        for bad in ["a", "k:[1]", "k:{", "v:{", "i:x", ""] {
            assert!(FieldSet::parse(&json!({ bad: {} })).is_err(), "{bad}");
        }
    }

    #[test]
    fn sets_are_combined() {
        let one = set(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        let other = set(&json!({"f:a": {}, "f:d": {}}));
        assert_eq!(one.difference(&other), set(&json!({"f:a": {"f:b": {}}, "f:c": {}})));
        assert_eq!(one.recursive_difference(&other), set(&json!({"f:c": {}})));
        assert_eq!(one.intersection(&other), set(&json!({"f:a": {}})));
        assert_eq!(
            one.union(&other),
            set(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}, "f:d": {}}))
        );
    }

    #[test]
    fn paths_are_shown_as_upstream_shows_them() {
        let fields = json!({"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {"f:ports":
            {"k:{\"protocol\":\"TCP\",\"containerPort\":80}": {}}}}, "f:replicas": {}},
            "f:data": {"f:a.b": {}}, "f:l": {"v:\"x\"": {}, "i:0": {}}});
        assert_eq!(
            set(&fields).paths(1000),
            [
                ".data.a.b",
                ".l[=\"x\"]",
                ".l[0]",
                ".spec.replicas",
                ".spec.containers[name=\"c\"].ports[containerPort=80,protocol=\"TCP\"]",
            ]
        );
        assert_eq!((set(&fields).len(), set(&fields).paths(12)), (5, vec![".data.a.b".to_owned()]));
    }
}
