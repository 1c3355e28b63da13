//! Difference between two observations, with its path and both values.

use std::fmt::{self, Display};

use serde_json::Value;

/// Long enough to recognize a value.
const SHOWN: usize = 600;

#[derive(Clone, Debug)]
pub(super) struct Difference {
    list: String,
    place: String,
    recorded: String,
    ours: String,
}

impl Difference {
    pub(super) fn new(
        list: impl Into<String>,
        place: impl Into<String>,
        recorded: impl Display,
        ours: impl Display,
    ) -> Self {
        let (list, place) = (list.into(), place.into());
        Self { list, place, recorded: recorded.to_string(), ours: ours.to_string() }
    }

    /// Prepends a path component.
    pub(super) fn at(mut self, place: impl Display) -> Self {
        self.place = format!("{place}{}", self.place);
        self
    }
}

impl Display for Difference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "  {} {}", self.list, self.place)?;
        writeln!(out, "    recorded: {}", shortened(&self.recorded))?;
        writeln!(out, "    ours:     {}", shortened(&self.ours))
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
        None => text.to_owned(),
    }
}

/// The first path at which two values differ.
pub(super) fn first(list: &str, recorded: &Value, ours: &Value) -> Option<Difference> {
    match (recorded, ours) {
        (left, right) if left == right => None,
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                let side = |object: &serde_json::Map<String, Value>| {
                    object.get(key).cloned().unwrap_or(Value::Null)
                };
                let found = first(list, &side(left), &side(right));
                found.map(|difference| difference.at(format_args!(".{key}")))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            let pairs = left.iter().zip(right).enumerate();
            pairs.into_iter().find_map(|(index, (left, right))| {
                let found = first(list, left, right);
                found.map(|difference| difference.at(format_args!("[{index}]")))
            })
        }
        (left, right) => Some(Difference::new(list, "", left, right)),
    }
}

/// Number of differing paths; used to select the nearest value to show.
pub(super) fn count(left: &Value, right: &Value) -> usize {
    match (left, right) {
        (left, right) if left == right => 0,
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys().filter(|key| !left.contains_key(*key)));
            keys.map(|key| match (left.get(key), right.get(key)) {
                (Some(left), Some(right)) => count(left, right),
                (None, _) | (_, None) => 1,
            })
            .sum()
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            left.iter().zip(right).map(|(left, right)| count(left, right)).sum()
        }
        _ => 1,
    }
}
