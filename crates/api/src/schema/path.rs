//! Field path in an object.
//!
//! A path is a chain of borrowed steps on the stack: walking an object does not allocate, and only
//! an error builds the text.

use std::fmt;

#[derive(Clone, Copy, Debug)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    /// A path of one field; the empty name is the object itself.
    pub const fn new(field: &'a str) -> Self {
        Self { parent: None, step: Step::Field(field) }
    }

    pub const fn child<'b>(&'b self, field: &'b str) -> Path<'b>
    where
        'a: 'b,
    {
        Path { parent: Some(self), step: Step::Field(field) }
    }

    pub const fn index<'b>(&'b self, index: usize) -> Path<'b>
    where
        'a: 'b,
    {
        Path { parent: Some(self), step: Step::Index(index) }
    }

    /// Entry of a map.
    pub const fn key<'b>(&'b self, key: &'b str) -> Path<'b>
    where
        'a: 'b,
    {
        Path { parent: Some(self), step: Step::Key(key) }
    }

    /// Only the field names, as in decoding errors.
    pub fn fields(&self) -> String {
        let mut names = Vec::new();
        let mut at = Some(self);
        while let Some(path) = at {
            if let Step::Field(name) = path.step
                && !name.is_empty()
            {
                names.push(name);
            }
            at = path.parent;
        }
        names.reverse();
        names.join(".")
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut dot = "";
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
            if !parent.is_empty_root() {
                dot = ".";
            }
        }
        match self.step {
            Step::Field(name) => write!(f, "{dot}{name}"),
            Step::Index(index) => write!(f, "[{index}]"),
            Step::Key(key) => write!(f, "[{key}]"),
        }
    }
}

impl Path<'_> {
    fn is_empty_root(&self) -> bool {
        self.parent.is_none() && matches!(self.step, Step::Field(""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_the_api_servers_format() {
        let spec = Path::new("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        let limits = first.child("resources");
        assert_eq!(limits.key("cpu").to_string(), "spec.containers[0].resources[cpu]");
        assert_eq!(limits.key("cpu").fields(), "spec.containers.resources");
    }

    #[test]
    fn root_object_has_no_name() {
        let root = Path::new("");
        assert_eq!(root.to_string(), "");
        assert_eq!(root.child("data").key("a b").to_string(), "data[a b]");
    }
}
