//! Type schema of the API: fields, types, and how the API server treats them.
//!
//! The generated structs contain only names. What a client can observe also depends on whether a
//! field is a pointer (an explicit `false` is kept) or a value (it is not), on whether an empty
//! field is written, on the merge key of a list, and on the field order in messages. This data is
//! defined once, in the `.types` files, and is used by decoding, comparison, messages and merge
//! patches.

pub mod decode;
pub mod diff;
pub mod dump;
pub mod equal;
pub mod path;
mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use decode::{DecodeError, Decoded, decode};
pub use path::Path;

/// Converts a value to one of the generated structs.
///
/// It goes through text: the generated deserialization code is large, and this shares the copy that
/// the API client uses.
pub fn typed<T: DeserializeOwned>(value: &Value) -> serde_json::Result<T> {
    serde_json::from_str(&value.to_string())
}

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A string; the name is `string` or that of its enumeration.
    String(&'static str),
    Bool,
    Int32,
    Int64,
    /// Base64 text.
    Bytes,
    Quantity,
    /// RFC 3339 to the second.
    Time,
    /// RFC 3339 to the microsecond.
    MicroTime,
    IntOrString,
    /// Any value, kept as it is.
    Any,
    /// Optional value, where unset differs from the zero value.
    Pointer(Box<Type>),
    List(Box<Type>),
    Map(Box<Type>),
    Struct(&'static str),
}

impl Type {
    /// Target of a pointer; any other type itself.
    pub fn target(&self) -> &Self {
        match self {
            Self::Pointer(inner) => inner.target(),
            other => other,
        }
    }

    /// Name of the struct that this type is, or that it contains in pointers, lists or maps.
    pub fn innermost_struct(&self) -> Option<&'static str> {
        match self {
            Self::Struct(name) => Some(name),
            Self::Pointer(inner) | Self::List(inner) | Self::Map(inner) => inner.innermost_struct(),
            Self::String(_)
            | Self::Bool
            | Self::Int32
            | Self::Int64
            | Self::Bytes
            | Self::Quantity
            | Self::Time
            | Self::MicroTime
            | Self::IntOrString
            | Self::Any => None,
        }
    }
}

/// Merge strategy of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The patch replaces the list.
    Replace,
    /// A set of scalar values.
    Set,
    /// Elements are matched by the value of this field.
    ByKey(&'static str),
}

/// Whether field managers own the parts of a value or only the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    Atomic,
    Granular,
}

/// Versions of a type that have a field: the public one, the API server's internal one, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Both,
    /// Only in the public version.
    Public,
    /// Only in the internal version, which the API server's messages print.
    Internal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name in JSON.
    pub name: &'static str,
    /// Name in the API server's messages.
    pub internal_name: String,
    pub ty: Type,
    /// Written even when empty.
    pub always: bool,
    /// Omitted if it is the zero time.
    pub omit_zero: bool,
    pub merge: Merge,
    /// A patch clears the fields of this struct that it does not name.
    pub retain_keys: bool,
    /// Fields that identify an element of the list for server-side apply; empty if it has none.
    pub keys: Vec<&'static str>,
    /// How server-side apply owns the value, if not as its type says.
    pub ownership: Option<Ownership>,
    /// Value of this field in a key when the element does not have it.
    pub key_default: Option<&'static str>,
    pub side: Side,
    /// Messages print its fields as if they belonged to the parent.
    pub inline: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: &'static str,
    pub fields: Vec<Field>,
    /// Messages print it with JSON names and omit empty fields.
    pub tagged: bool,
    /// Server-side apply owns it as a whole.
    pub atomic: bool,
}

impl Struct {
    /// Field with this JSON name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name && field.side != Side::Internal)
    }

    /// Name without the group that distinguishes two structs of the same name.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

const FILES: &[&str] = &[
    include_str!("schema/meta.types"),
    include_str!("schema/pod.types"),
    include_str!("schema/container.types"),
    include_str!("schema/volume.types"),
    include_str!("schema/cluster.types"),
    include_str!("schema/rbac.types"),
];

static STRUCTS: LazyLock<HashMap<&'static str, Struct>> =
    LazyLock::new(|| table::parse(FILES).into_iter().map(|shape| (shape.name, shape)).collect());

/// Struct with this name.
pub fn find(name: &str) -> Option<&'static Struct> {
    STRUCTS.get(name)
}

/// Struct of an API kind. The group matters only for events.
pub fn kind(group: &str, kind: &str) -> Option<&'static Struct> {
    match (group, kind) {
        ("events.k8s.io", "Event") => find("events.Event"),
        _ => find(kind),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn every_struct_of_a_field_is_in_the_table() {
        for shape in STRUCTS.values() {
            for field in &shape.fields {
                if let Some(name) = field.ty.innermost_struct() {
                    assert!(find(name).is_some(), "{}.{}: {name}", shape.name, field.name);
                }
            }
        }
    }

    #[test]
    fn merge_key_is_a_field_of_the_element() {
        for shape in STRUCTS.values() {
            for field in &shape.fields {
                if let Merge::ByKey(key) = field.merge {
                    let Type::List(element) = field.ty.target() else {
                        panic!("{}.{} is not a list", shape.name, field.name)
                    };
                    let name = element.innermost_struct().unwrap();
                    assert!(find(name).unwrap().field(key).is_some(), "{}.{}", shape.name, key);
                }
            }
        }
    }

    #[test]
    fn lists_carry_the_merge_strategy_of_the_public_api() {
        for (shape, field, want) in [
            ("PodSpec", "containers", Merge::ByKey("name")),
            ("PodSpec", "volumes", Merge::ByKey("name")),
            ("PodSpec", "tolerations", Merge::Replace),
            ("PodSpec", "hostAliases", Merge::ByKey("ip")),
            ("PodSpec", "topologySpreadConstraints", Merge::ByKey("topologyKey")),
            ("Container", "ports", Merge::ByKey("containerPort")),
            ("Container", "volumeMounts", Merge::ByKey("mountPath")),
            ("Container", "command", Merge::Replace),
            ("PodStatus", "conditions", Merge::ByKey("type")),
            ("PodStatus", "podIPs", Merge::ByKey("ip")),
            ("NodeStatus", "addresses", Merge::ByKey("type")),
            ("NodeStatus", "images", Merge::Replace),
            ("NodeSpec", "taints", Merge::Replace),
            ("ObjectMeta", "ownerReferences", Merge::ByKey("uid")),
            ("ObjectMeta", "finalizers", Merge::Set),
        ] {
            assert_eq!(find(shape).unwrap().field(field).unwrap().merge, want, "{shape}.{field}");
        }
        assert!(find("PodSpec").unwrap().field("volumes").unwrap().retain_keys);
    }

    #[test]
    fn event_kinds_differ_by_group() {
        assert!(kind("", "Event").unwrap().field("involvedObject").is_some());
        assert!(kind("events.k8s.io", "Event").unwrap().field("regarding").is_some());
        assert_eq!(kind("events.k8s.io", "Event").unwrap().short_name(), "Event");
    }
}
