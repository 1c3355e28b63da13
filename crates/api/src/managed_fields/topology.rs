//! How server-side apply sees a value of a type: as one, or as parts that managers own separately.

use crate::schema::{self, Field, Ownership, Side, Struct, Type};

/// The type of a value, with what its field says about it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A whole object, which has `apiVersion` and `kind` beside the fields of its struct.
    Object(&'static Struct),
    Typed {
        ty: &'static Type,
        field: Option<&'static Field>,
    },
}

/// What the scalars of a type may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarKind {
    Text,
    Number,
    Bool,
    Any,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Topology {
    Scalar(ScalarKind),
    /// Any value, owned as a whole.
    Untyped,
    /// Elements are identified by these of their fields, or by their own value if there are none.
    List {
        element: Place,
        keys: &'static [&'static str],
        atomic: bool,
    },
    Map {
        element: Place,
        atomic: bool,
    },
    Struct {
        atomic: bool,
    },
}

static TEXT: Type = Type::String("string");

impl Place {
    pub(super) fn topology(self) -> Topology {
        let (ty, field) = match self {
            Self::Object(_) => return Topology::Struct { atomic: false },
            Self::Typed { ty, field } => (ty, field),
        };
        let atomic = field.is_some_and(|field| field.ownership == Some(Ownership::Atomic));
        match ty.target() {
            Type::String(_) | Type::Bytes => Topology::Scalar(ScalarKind::Text),
            Type::Bool => Topology::Scalar(ScalarKind::Bool),
            Type::Int32 | Type::Int64 => Topology::Scalar(ScalarKind::Number),
            Type::Quantity | Type::Time | Type::MicroTime | Type::IntOrString => {
                Topology::Scalar(ScalarKind::Any)
            }
            Type::Any | Type::Pointer(_) => Topology::Untyped,
            Type::List(element) => {
                let element = Self::Typed { ty: element, field: None };
                let keys = field.map_or(&[][..], |field| field.keys.as_slice());
                let is_set = field.is_some_and(|field| field.merge == schema::Merge::Set);
                Topology::List { element, keys, atomic: atomic || (keys.is_empty() && !is_set) }
            }
            Type::Map(element) => {
                Topology::Map { element: Self::Typed { ty: element, field: None }, atomic }
            }
            Type::Struct(name) => {
                let granular =
                    field.is_some_and(|field| field.ownership == Some(Ownership::Granular));
                let whole = schema::find(name).is_some_and(|shape| shape.atomic);
                Topology::Struct { atomic: atomic || (whole && !granular) }
            }
        }
    }

    /// The struct of the value, if it is one.
    pub(super) fn shape(self) -> Option<&'static Struct> {
        match self {
            Self::Object(shape) => Some(shape),
            Self::Typed { ty, .. } => match ty.target() {
                Type::Struct(name) => schema::find(name),
                _ => None,
            },
        }
    }

    /// The type of a field of a struct; `None` if it has no such field.
    pub(super) fn field(self, name: &str) -> Option<Self> {
        if matches!(self, Self::Object(_)) && matches!(name, "apiVersion" | "kind") {
            return Some(Self::Typed { ty: &TEXT, field: None });
        }
        let shape: &'static Struct = self.shape()?;
        let field =
            shape.fields.iter().find(|field| field.name == name && field.side != Side::Internal)?;
        Some(Self::Typed { ty: &field.ty, field: Some(field) })
    }

    /// The type of what is at a key of a map or at a field of a struct.
    pub(super) fn member(self, name: &str) -> Option<Self> {
        match self.topology() {
            Topology::Map { element, .. } => Some(element),
            Topology::Struct { .. } => self.field(name),
            Topology::Scalar(_) | Topology::Untyped | Topology::List { .. } => None,
        }
    }

    /// The type of the elements of a list.
    pub(super) fn element(self) -> Option<Self> {
        match self.topology() {
            Topology::List { element, .. } => Some(element),
            _ => None,
        }
    }
}
