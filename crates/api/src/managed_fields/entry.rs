//! `metadata.managedFields` as a list, and as a map from managers to what they own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::field_set::FieldSet;
use super::path_element::BadPathElement;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    Apply,
    Update,
}

impl Operation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

/// Identity of a manager. One that applies is the same whatever version it applies in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    pub operation: Operation,
    pub name: String,
    /// Empty for an applier.
    pub api_version: String,
    pub subresource: String,
}

/// What a manager owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    pub fields: FieldSet,
    pub api_version: String,
    /// Last change by the manager, in whole seconds.
    pub time: Option<String>,
}

/// Bytes of the name of a manager, a version or a subresource.
const MAX_NAME_BYTES: usize = 256;

/// Why a list of managers cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadManagedFields {
    #[error("managedFields is not a list of objects")]
    Shape,
    #[error("unknown operation {0:?} in managedFields")]
    Operation(String),
    #[error("a name in managedFields is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    #[error("unknown fieldsType {0:?} in managedFields")]
    FieldsType(String),
    #[error(transparent)]
    Fields(#[from] BadPathElement),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedFields(pub BTreeMap<Manager, Owned>);

impl ManagedFields {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads the list of an object.
    pub fn parse(list: Option<&Value>) -> Result<Self, BadManagedFields> {
        let entries = match list {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(BadManagedFields::Shape),
        };
        let mut managers = BTreeMap::new();
        for entry in entries {
            let (manager, owned) = parse_entry(entry)?;
            managers.insert(manager, owned);
        }
        Ok(Self(managers))
    }

    /// The list for an object; `None` if there are no managers.
    pub fn encoded(&self) -> Option<Value> {
        let mut entries: Vec<_> = self.0.iter().collect();
        entries.sort_by(|one, other| order(*one).cmp(&order(*other)));
        let list: Vec<Value> = entries.into_iter().map(encode_entry).collect();
        (!list.is_empty()).then_some(Value::Array(list))
    }
}

/// Appliers come first, then the oldest change; a manager without a time has changed nothing.
fn order<'a>(
    (manager, owned): (&'a Manager, &'a Owned),
) -> (Operation, Option<&'a str>, &'a str, &'a str, &'a str) {
    (
        manager.operation,
        owned.time.as_deref(),
        &manager.name,
        &owned.api_version,
        &manager.subresource,
    )
}

fn parse_entry(entry: &Value) -> Result<(Manager, Owned), BadManagedFields> {
    let entry = entry.as_object().ok_or(BadManagedFields::Shape)?;
    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let operation = match text("operation").as_str() {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        other => return Err(BadManagedFields::Operation(other.to_owned())),
    };
    match text("fieldsType").as_str() {
        "FieldsV1" => {}
        other => return Err(BadManagedFields::FieldsType(other.to_owned())),
    }
    let api_version = text("apiVersion");
    let names = [text("manager"), text("subresource"), text("time"), api_version.clone()];
    if names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
        return Err(BadManagedFields::TooLong);
    }
    let manager = Manager {
        operation,
        name: text("manager"),
        api_version: match operation {
            Operation::Apply => String::new(),
            Operation::Update => api_version.clone(),
        },
        subresource: text("subresource"),
    };
    let fields = FieldSet::parse(entry.get("fieldsV1").unwrap_or(&Value::Null))?;
    let time = Some(text("time")).filter(|time| !time.is_empty());
    Ok((manager, Owned { fields, api_version, time }))
}

fn encode_entry((manager, owned): (&Manager, &Owned)) -> Value {
    let mut entry = Map::new();
    entry.insert("manager".to_owned(), manager.name.clone().into());
    entry.insert("operation".to_owned(), manager.operation.as_str().into());
    entry.insert("apiVersion".to_owned(), owned.api_version.clone().into());
    if let Some(time) = &owned.time {
        entry.insert("time".to_owned(), time.clone().into());
    }
    entry.insert("fieldsType".to_owned(), "FieldsV1".into());
    entry.insert("fieldsV1".to_owned(), owned.fields.encoded());
    if !manager.subresource.is_empty() {
        entry.insert("subresource".to_owned(), manager.subresource.clone().into());
    }
    Value::Object(entry)
}

/// What a client asks for by the list in its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    /// The managers of the stored object stay.
    Keep,
    /// Forget all managers.
    Reset,
    Replace(ManagedFields),
}

/// The marker of a reset, as clients may write it.
pub fn reset_marker() -> Value {
    json!([{}])
}

impl Requested {
    /// What the list of a new object asks for. A list that cannot be read is ignored.
    pub fn of(list: Option<&Value>) -> Self {
        match list {
            Some(Value::Array(entries)) if entries.is_empty() => return Self::Reset,
            Some(Value::Array(entries)) => {
                let is_blank = |entry: &Value| entry.as_object().is_some_and(Map::is_empty);
                if entries.len() == 1 && entries.iter().all(is_blank) {
                    return Self::Reset;
                }
            }
            _ => return Self::Keep,
        }
        match ManagedFields::parse(list) {
            Ok(managers) if !managers.is_empty() => Self::Replace(managers),
            _ => Self::Keep,
        }
    }
}
