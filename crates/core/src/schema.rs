//! The shape of the API's types: which fields there are, of what type, and how the API server
//! treats them.
//!
//! Why a table beside the generated structs: the structs know names and nothing else. What a
//! client can observe also depends on whether a field is a pointer (an explicit `false` survives)
//! or a value (it does not), on whether an empty one is still written, on the key by which a list
//! is merged, and on the order in which messages print the fields. All of that is data, it stands
//! once, in the `.types` files, and everything generic reads it: decoding, comparison, messages
//! and merge patches.

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

/// The value as one of the generated structs.
///
/// By way of text: the code that reads these types is large, and this way there is one copy of it,
/// which the client of the API server has as well.
pub fn typed<T: DeserializeOwned>(value: &Value) -> serde_json::Result<T> {
    serde_json::from_str(&value.to_string())
}

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A string; the name is `string` or that of the enumeration it belongs to.
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
    /// Anything at all, kept as it is.
    Any,
    /// Set or unset, where unset differs from the zero value.
    Pointer(Box<Type>),
    List(Box<Type>),
    Map(Box<Type>),
    Struct(&'static str),
}

impl Type {
    /// The type a pointer points to; any other type itself.
    pub fn target(&self) -> &Self {
        match self {
            Self::Pointer(inner) => inner.target(),
            other => other,
        }
    }

    /// The name of the struct that a value of this type is, or has at its leaves.
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

/// How a merge patch treats a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// The patch's list takes the place of the old one.
    Replace,
    /// A set of plain values.
    Set,
    /// Elements are matched by the value of this field.
    ByKey(&'static str),
}

/// Which of the two forms of a type has a field: the public one, the API server's own, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Both,
    /// Only what clients see.
    Public,
    /// Only what the API server's messages print.
    Internal,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name on the wire.
    pub name: &'static str,
    /// Name in the API server's messages.
    pub internal_name: String,
    pub ty: Type,
    /// Written even when empty.
    pub always: bool,
    /// Left out when it is the zero time.
    pub omit_zero: bool,
    pub merge: Merge,
    /// Fields of this struct that the patch does not name are cleared.
    pub retain_keys: bool,
    pub side: Side,
    /// Messages print its fields as if they were its parent's.
    pub inline: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Struct {
    pub name: &'static str,
    pub fields: Vec<Field>,
    /// Messages print it with the names and omissions of the wire.
    pub tagged: bool,
}

impl Struct {
    /// The field with this name on the wire.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name && field.side != Side::Internal)
    }

    /// Its name without the group that tells two of the same name apart.
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
];

static STRUCTS: LazyLock<HashMap<&'static str, Struct>> =
    LazyLock::new(|| table::parse(FILES).into_iter().map(|shape| (shape.name, shape)).collect());

/// The struct of this name.
pub fn find(name: &str) -> Option<&'static Struct> {
    STRUCTS.get(name)
}

/// The struct of a kind that has an address of its own. The group matters for events only.
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
    fn every_struct_that_a_field_names_is_in_the_table() {
        for shape in STRUCTS.values() {
            for field in &shape.fields {
                if let Some(name) = field.ty.innermost_struct() {
                    assert!(find(name).is_some(), "{}.{}: {name}", shape.name, field.name);
                }
            }
        }
    }

    #[test]
    fn a_merge_key_is_a_field_of_the_element() {
        for shape in STRUCTS.values() {
            for field in &shape.fields {
                if let Merge::ByKey(key) = field.merge {
                    let Type::List(element) = field.ty.target() else {
                        panic!("{}.{} is no list", shape.name, field.name)
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
    fn the_two_kinds_of_event_differ_by_group() {
        assert!(kind("", "Event").unwrap().field("involvedObject").is_some());
        assert!(kind("events.k8s.io", "Event").unwrap().field("regarding").is_some());
        assert_eq!(kind("events.k8s.io", "Event").unwrap().short_name(), "Event");
    }
}
