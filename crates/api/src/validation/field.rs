//! Field errors, with the texts of the API server.
//!
//! Clients match on these texts and on the reasons, so they are part of the interface.

use std::fmt;

use serde_json::Value;

use crate::schema::dump::dump;
use crate::schema::{Path, Type};

/// One error of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Machine-readable, such as `FieldValueRequired`.
    pub reason: &'static str,
    pub field: String,
    /// The text after the field path, such as `Required value: must be set`.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All errors as one sentence: a single one as it is, several in brackets, without duplicates.
pub fn summary(errors: &[FieldError]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors.iter().map(ToString::to_string) {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// Collects errors in the order in which they are found.
#[derive(Debug, Default)]
pub struct Errors(Vec<FieldError>);

impl Errors {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn into_vec(self) -> Vec<FieldError> {
        self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn append(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    pub fn required(&mut self, field: &Path<'_>, detail: &str) {
        self.push("FieldValueRequired", field, "Required value".to_owned(), detail);
    }

    pub fn invalid(&mut self, field: &Path<'_>, value: impl MessageValue, detail: &str) {
        self.push("FieldValueInvalid", field, format!("Invalid value: {}", value.shown()), detail);
    }

    /// One error for each problem of a format check.
    pub fn malformed(&mut self, field: &Path<'_>, value: impl MessageValue, problems: &[String]) {
        let shown = value.shown();
        for problem in problems {
            let body = format!("Invalid value: {shown}");
            self.push("FieldValueInvalid", field, body, problem);
        }
    }

    pub fn forbidden(&mut self, field: &Path<'_>, detail: &str) {
        self.push("FieldValueForbidden", field, "Forbidden".to_owned(), detail);
    }

    pub fn duplicate(&mut self, field: &Path<'_>, value: impl MessageValue) {
        self.duplicate_because(field, value, "");
    }

    pub fn duplicate_because(&mut self, field: &Path<'_>, value: impl MessageValue, detail: &str) {
        let body = format!("Duplicate value: {}", value.shown());
        self.push("FieldValueDuplicate", field, body, detail);
    }

    pub fn not_found(&mut self, field: &Path<'_>, value: impl MessageValue, detail: &str) {
        self.push("FieldValueNotFound", field, format!("Not found: {}", value.shown()), detail);
    }

    pub fn not_supported(
        &mut self,
        field: &Path<'_>,
        value: impl MessageValue,
        supported: &[&str],
    ) {
        let quoted: Vec<String> = supported.iter().map(|value| quote(value)).collect();
        let body = format!("Unsupported value: {}", value.shown());
        let detail = format!("supported values: {}", quoted.join(", "));
        self.push("FieldValueNotSupported", field, body, &detail);
    }

    pub fn too_long(&mut self, field: &Path<'_>, limit: usize) {
        let detail = format!("may not be more than {limit} bytes");
        self.push("FieldValueTooLong", field, "Too long".to_owned(), &detail);
    }

    pub fn too_many(&mut self, field: &Path<'_>, count: usize, limit: usize) {
        let detail = format!("must have at most {limit} items");
        self.push("FieldValueTooMany", field, format!("Too many: {count}"), &detail);
    }

    fn push(&mut self, reason: &'static str, field: &Path<'_>, body: String, detail: &str) {
        let message = if detail.is_empty() { body } else { format!("{body}: {detail}") };
        self.0.push(FieldError { reason, field: field.to_string(), message });
    }
}

/// A value as it appears in a message.
pub trait MessageValue {
    fn shown(self) -> String;
}

impl MessageValue for &str {
    fn shown(self) -> String {
        quote(self)
    }
}

impl MessageValue for &String {
    fn shown(self) -> String {
        quote(self)
    }
}

impl MessageValue for bool {
    fn shown(self) -> String {
        self.to_string()
    }
}

impl MessageValue for i32 {
    fn shown(self) -> String {
        self.to_string()
    }
}

impl MessageValue for i64 {
    fn shown(self) -> String {
        self.to_string()
    }
}

/// An unset value.
#[derive(Clone, Copy, Debug)]
pub struct Unset;

impl MessageValue for Unset {
    fn shown(self) -> String {
        "null".to_owned()
    }
}

/// A list of strings.
impl MessageValue for &[String] {
    fn shown(self) -> String {
        Value::from(self.to_vec()).to_string()
    }
}

/// A struct, printed as the API server's internal type.
pub struct Internal<'a, T>(pub Type, pub &'a T);

impl<T: serde::Serialize> MessageValue for Internal<'_, T> {
    fn shown(self) -> String {
        let value = serde_json::to_value(self.1).unwrap_or(Value::Null);
        dump(&self.0, &value)
    }
}

/// Text in double quotes, with Go's escapes.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_reason_and_text() {
        let field = Path::new("spec");
        let mut errors = Errors::new();
        errors.required(&field, "");
        errors.required(&field, "must be set");
        errors.invalid(&field, "a\"b", "is odd");
        errors.invalid(&field, 5_i64, "too few");
        errors.forbidden(&field, "not now");
        errors.duplicate(&field, "x");
        errors.not_found(&field, "x", "");
        errors.not_supported(&field, "x", &["a", "b"]);
        errors.too_long(&field, 3);
        errors.too_many(&field, 4, 3);
        let got: Vec<_> = errors.into_vec().into_iter().map(|e| (e.reason, e.message)).collect();
        let want = [
            ("FieldValueRequired", "Required value"),
            ("FieldValueRequired", "Required value: must be set"),
            ("FieldValueInvalid", "Invalid value: \"a\\\"b\": is odd"),
            ("FieldValueInvalid", "Invalid value: 5: too few"),
            ("FieldValueForbidden", "Forbidden: not now"),
            ("FieldValueDuplicate", "Duplicate value: \"x\""),
            ("FieldValueNotFound", "Not found: \"x\""),
            ("FieldValueNotSupported", "Unsupported value: \"x\": supported values: \"a\", \"b\""),
            ("FieldValueTooLong", "Too long: may not be more than 3 bytes"),
            ("FieldValueTooMany", "Too many: 4: must have at most 3 items"),
        ];
        assert_eq!(got, want.map(|(reason, message)| (reason, message.to_owned())));
    }

    #[test]
    fn summary_names_each_error_once() {
        let error = |field: &str| FieldError {
            reason: "FieldValueRequired",
            field: field.to_owned(),
            message: "Required value".to_owned(),
        };
        assert_eq!(summary(&[error("a")]), "a: Required value");
        assert_eq!(
            summary(&[error("a"), error("b"), error("a")]),
            "[a: Required value, b: Required value]"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(quote("a\u{0}\u{7}\u{1b}\u{85}é"), "\"a\\x00\\a\\x1b\\u0085é\"");
    }
}
