//! Descriptions of types and fields, which `kubectl explain` prints.
//!
//! They are compressed in the program and unpacked while a document is generated: most nodes never
//! serve one. `build.rs` writes them.

use std::collections::HashMap;
use std::io::Read as _;

use flate2::read::ZlibDecoder;
use serde_json::{Map, Value, json};

/// Compressed at build time.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.zlib"));
/// Upper bound of the unpacked text; a test checks that it is far below.
const MAX_BYTES: u64 = 4 << 20;
/// Fields that every kind has, whatever its schema.
const COMMON: [(&str, &str); 2] = [
    ("apiVersion", "Group and version of the API that the object is written for."),
    ("kind", "Kind of the object."),
];

/// The unpacked text.
pub(super) struct Descriptions(String);

impl Descriptions {
    pub(super) fn unpack() -> Self {
        let mut text = String::new();
        // Packed by our own build; a test shows that it can be read.
        let read = ZlibDecoder::new(PACKED).take(MAX_BYTES).read_to_string(&mut text);
        if let Err(error) = read {
            tracing::error!(%error, "cannot unpack the descriptions for kubectl explain");
        }
        Self(text)
    }

    /// Adds the descriptions to the definitions that have one.
    pub(super) fn add_to(&self, definitions: &mut Map<String, Value>) {
        let index = self.index();
        for (name, definition) in definitions {
            let Some(described) = index.get(name.as_str()) else { continue };
            describe(definition, described.text);
            let properties = definition.get_mut("properties").and_then(Value::as_object_mut);
            for (field, property) in properties.into_iter().flatten() {
                let common = COMMON.iter().find(|(name, _)| name == field).map(|(_, text)| *text);
                if let Some(text) = described.fields.get(field.as_str()).copied().or(common) {
                    refer_beside(property);
                    describe(property, text);
                }
            }
        }
    }

    fn index(&self) -> HashMap<&str, Described<'_>> {
        let mut index: HashMap<&str, Described<'_>> = HashMap::new();
        let mut current = "";
        for line in self.0.lines() {
            let Some((name, text)) = line.split_once('\t') else { continue };
            if let Some(definition) = name.strip_prefix('=') {
                current = definition;
                index.entry(current).or_default().text = text;
            } else {
                index.entry(current).or_default().fields.insert(name, text);
            }
        }
        index
    }
}

/// The descriptions of one type, escaped.
#[derive(Default)]
struct Described<'t> {
    text: &'t str,
    fields: HashMap<&'t str, &'t str>,
}

fn describe(schema: &mut Value, escaped: &str) {
    if let Some(schema) = schema.as_object_mut().filter(|_| !escaped.is_empty()) {
        schema.insert("description".to_owned(), unescaped(escaped).into());
    }
}

/// A description has no effect beside a reference, so the reference goes one level down.
fn refer_beside(property: &mut Value) {
    let Some(object) = property.as_object_mut() else { return };
    if let Some(reference) = object.remove("$ref") {
        object.insert("allOf".to_owned(), json!([{"$ref": reference}]));
        object.insert("default".to_owned(), json!({}));
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => out.push(match characters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => '\\',
            }),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_unpacked_whole() {
        let descriptions = Descriptions::unpack();
        let size = u64::try_from(descriptions.0.len()).unwrap_or(MAX_BYTES);
        assert!((200 << 10..MAX_BYTES / 2).contains(&size), "{size} bytes");
        assert!(PACKED.len() < 200 << 10, "{} bytes in the program", PACKED.len());
        assert!(descriptions.0.ends_with('\n'));
        podwright_testkit::report::figure(&format!(
            "descriptions for kubectl explain: {} KB, {} KB in the program",
            size >> 10,
            PACKED.len() >> 10
        ));
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescaped(r"a\nb\\nc\\"), "a\nb\\nc\\");
        assert_eq!(unescaped("plain"), "plain");
    }
}
