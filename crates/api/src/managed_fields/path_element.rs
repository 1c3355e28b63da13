//! One step of a path to a field, as FieldsV1 writes it.

use std::fmt;

use serde_json::{Map, Number, Value};

/// A scalar that identifies a list element. The order is that of messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scalar {
    Integer(i64),
    Text(String),
    Bool(bool),
    /// Any other value, as JSON text.
    Other(String),
}

impl Scalar {
    pub fn of(value: &Value) -> Self {
        match value {
            Value::String(text) => Self::Text(text.clone()),
            Value::Bool(flag) => Self::Bool(*flag),
            Value::Number(number) => match number.as_i64() {
                Some(number) => Self::Integer(number),
                None => whole(number).map_or_else(|| Self::Other(value.to_string()), Self::Integer),
            },
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Other(value.to_string()),
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Integer(number) => (*number).into(),
            Self::Text(text) => Value::String(text.clone()),
            Self::Bool(flag) => Value::Bool(*flag),
            Self::Other(text) => serde_json::from_str(text).unwrap_or_default(),
        }
    }
}

/// `80.0` is the number 80.
pub(super) fn whole(number: &Number) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // floats above it are not exact
    let float = number.as_f64()?;
    (float.fract() == 0.0 && float.abs() < EXACT).then_some(float as i64)
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => write!(f, "{number}"),
            Self::Text(text) => write!(f, "{}", Value::String(text.clone())),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// The order is that of messages: fields, then list elements.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathElement {
    /// Field of a struct, or key of a map.
    Field(String),
    /// Element of a list with keys: their names and values, by name.
    Key(Vec<(String, Scalar)>),
    /// Member of a set.
    Value(Scalar),
    /// Position in a list.
    Index(i64),
}

/// The text is no path element.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a field of a FieldsV1 set")]
pub struct BadPathElement(String);

impl PathElement {
    pub fn field(name: impl Into<String>) -> Self {
        Self::Field(name.into())
    }

    /// Parses a key of FieldsV1; `None` for a kind of element that is not known.
    pub fn parse(text: &str) -> Result<Option<Self>, BadPathElement> {
        let bad = || BadPathElement(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(bad)?;
        Ok(Some(match kind {
            "f" => Self::Field(rest.to_owned()),
            "v" => Self::Value(Scalar::of(&serde_json::from_str(rest).map_err(|_| bad())?)),
            "i" => Self::Index(rest.parse().map_err(|_| bad())?),
            "k" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).map_err(|_| bad())?;
                let keys: std::collections::BTreeMap<String, Value> = keys.into_iter().collect();
                Self::Key(keys.into_iter().map(|(key, value)| (key, Scalar::of(&value))).collect())
            }
            _ => return Ok(None),
        }))
    }

    /// The key of FieldsV1.
    pub fn encoded(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Value(scalar) => format!("v:{}", scalar.value()),
            Self::Index(index) => format!("i:{index}"),
            Self::Key(keys) => {
                let keys: Map<String, Value> =
                    keys.iter().map(|(key, scalar)| (key.clone(), scalar.value())).collect();
                format!("k:{}", Value::Object(keys))
            }
        }
    }
}

impl fmt::Display for PathElement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Value(scalar) => write!(f, "[={scalar}]"),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Key(keys) => {
                f.write_str("[")?;
                for (at, (key, scalar)) in keys.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{key}={scalar}")?;
                }
                f.write_str("]")
            }
        }
    }
}
