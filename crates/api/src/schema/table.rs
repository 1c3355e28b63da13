//! Parser of the `.types` files.
//!
//! A struct starts in the first column: its name, `tagged` if messages print it with JSON names, and
//! `atomic` if server-side apply owns it as a whole. Its fields follow, indented: `name[/InternalName] type[!] [flags…]`. The internal name is
//! given where it is not the capitalized name. `!` means written even when empty. Flags: `merge`,
//! `merge=key` and `retainKeys` (merge strategy of a list), `omitzero`, `external` and `internal`
//! (version of the type that has the field), `inline`, and for server-side apply `keys=a,b` (the keys
//! of a list if they are not the merge key), `atomic` and `granular` (where the field differs from
//! its type) and `default=X` (value of a key that is absent). A name that is not a struct of these files
//! is a string type.
//!
//! The files are compiled in, so an invalid line is skipped here and found by the test below.

use std::collections::HashSet;

use super::{Field, Merge, Ownership, Side, Struct, Type};

pub(super) fn parse(texts: &[&'static str]) -> Vec<Struct> {
    let lines = || texts.iter().flat_map(|text| text.lines()).filter(|line| is_content(line));
    let names: HashSet<&'static str> =
        lines().filter(|line| is_header(line)).filter_map(first_word).collect();
    let mut shapes: Vec<Struct> = Vec::new();
    for line in lines() {
        if is_header(line) {
            shapes.extend(header(line));
        } else if let (Some(shape), Some(field)) = (shapes.last_mut(), field(line, &names)) {
            shape.fields.push(field);
        }
    }
    shapes
}

fn is_content(line: &str) -> bool {
    !line.trim().is_empty() && !line.starts_with('#')
}

fn is_header(line: &str) -> bool {
    !line.starts_with(' ')
}

fn first_word(line: &'static str) -> Option<&'static str> {
    line.split_whitespace().next()
}

fn header(line: &'static str) -> Option<Struct> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let mut shape = Struct { name, fields: Vec::new(), tagged: false, atomic: false };
    for flag in words {
        match flag {
            "tagged" => shape.tagged = true,
            "atomic" => shape.atomic = true,
            _ => return None,
        }
    }
    Some(shape)
}

fn field(line: &'static str, structs: &HashSet<&'static str>) -> Option<Field> {
    let mut words = line.split_whitespace();
    let names = words.next()?;
    let ty = words.next()?;
    let (name, internal_name) = match names.split_once('/') {
        Some((name, internal)) => (name, internal.to_owned()),
        None => (names, capitalised(names)),
    };
    let mut field = Field {
        name,
        internal_name,
        ty: type_of(ty.trim_end_matches('!'), structs),
        always: ty.ends_with('!'),
        omit_zero: false,
        merge: Merge::Replace,
        retain_keys: false,
        keys: Vec::new(),
        ownership: None,
        key_default: None,
        side: Side::Both,
        inline: false,
    };
    for flag in words {
        match flag.split_once('=') {
            Some(("merge", key)) => field.merge = Merge::ByKey(key),
            Some(("keys", keys)) => field.keys = keys.split(',').collect(),
            Some(("default", value)) => field.key_default = Some(value),
            Some(_) => return None,
            None => match flag {
                "merge" => field.merge = Merge::Set,
                "atomic" => field.ownership = Some(Ownership::Atomic),
                "granular" => field.ownership = Some(Ownership::Granular),
                "retainKeys" => field.retain_keys = true,
                "omitzero" => field.omit_zero = true,
                "external" => field.side = Side::Public,
                "internal" => field.side = Side::Internal,
                "inline" => field.inline = true,
                _ => return None,
            },
        }
    }
    if let (Merge::ByKey(key), true) = (field.merge, field.keys.is_empty()) {
        field.keys.push(key);
    }
    Some(field)
}

fn capitalised(name: &str) -> String {
    let mut chars = name.chars();
    chars.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

fn type_of(text: &'static str, structs: &HashSet<&'static str>) -> Type {
    if let Some(inner) = text.strip_prefix('*') {
        return Type::Pointer(Box::new(type_of(inner, structs)));
    }
    if let Some(inner) = text.strip_prefix("map[string]") {
        return Type::Map(Box::new(type_of(inner, structs)));
    }
    if text == "[]byte" {
        return Type::Bytes;
    }
    if let Some(inner) = text.strip_prefix("[]") {
        return Type::List(Box::new(type_of(inner, structs)));
    }
    match text {
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "Quantity" => Type::Quantity,
        "Time" => Type::Time,
        "MicroTime" => Type::MicroTime,
        "IntOrString" => Type::IntOrString,
        "any" => Type::Any,
        name if structs.contains(name) => Type::Struct(name),
        name => Type::String(name),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn field_line_is_parsed() {
        let shapes = parse(&[
            "Pod tagged\n  volumes []Volume! merge=name retainKeys\n  tty/TTY *bool\n\nVolume\n  name string\n",
        ]);
        assert_eq!(shapes.len(), 2);
        let (pod, volumes) = (&shapes[0], &shapes[0].fields[0]);
        assert!(pod.tagged);
        assert_eq!(volumes.ty, Type::List(Box::new(Type::Struct("Volume"))));
        assert_eq!((volumes.merge, volumes.always), (Merge::ByKey("name"), true));
        assert!(volumes.retain_keys);
        assert_eq!(pod.fields[1].internal_name, "TTY");
        assert_eq!(pod.fields[1].ty, Type::Pointer(Box::new(Type::Bool)));
    }

    #[test]
    fn every_line_of_the_type_files_is_valid() {
        let texts = super::super::FILES;
        let lines: usize =
            texts.iter().flat_map(|text| text.lines()).filter(|line| is_content(line)).count();
        let shapes = parse(texts);
        let read = shapes.len() + shapes.iter().map(|shape| shape.fields.len()).sum::<usize>();
        assert_eq!(read, lines);
    }
}
