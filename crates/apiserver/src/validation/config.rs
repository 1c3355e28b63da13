//! Validation of ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use podwright_api::schema::Path;
use podwright_api::validation::field::Errors;
use podwright_api::validation::format;
use serde_json::{Map, Value};

use super::text;
use crate::decode;

/// Maximum total size of the values.
const SIZE_LIMIT: usize = 1024 * 1024;
const IMMUTABLE: &str = "field is immutable when `immutable` is set";

fn entries<'a>(object: &'a Value, name: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object.get(name).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

pub(super) fn config_map(object: &Value, errors: &mut Errors) {
    let (data, binary) = (Path::new("data"), Path::new("binaryData"));
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        errors.malformed(&data.key(key), key, &format::config_key(key));
        if entries(object, "binaryData").any(|(other, _)| other == key) {
            errors.invalid(&data.key(key), key, "duplicate of key present in binaryData");
        }
        size += value.as_str().map_or(0, str::len);
    }
    for (key, value) in entries(object, "binaryData") {
        errors.malformed(&binary.key(key), key, &format::config_key(key));
        size += bytes(value).len();
    }
    if size > SIZE_LIMIT {
        errors.too_long(&Path::new("[]"), SIZE_LIMIT);
    }
}

pub(super) fn config_map_change(new: &Value, old: &Value, errors: &mut Errors) {
    frozen(new, old, &["data", "binaryData"], errors);
}

fn frozen(new: &Value, old: &Value, fields: &[&str], errors: &mut Errors) {
    let is_frozen = |object: &Value| object.get("immutable") == Some(&Value::Bool(true));
    if !is_frozen(old) {
        return;
    }
    if !is_frozen(new) {
        errors.forbidden(&Path::new("immutable"), IMMUTABLE);
    }
    for field in fields {
        if new.get(field) != old.get(field) {
            errors.forbidden(&Path::new(field), IMMUTABLE);
        }
    }
}

pub(super) fn secret(object: &Value, errors: &mut Errors) {
    let data = Path::new("data");
    let mut size = 0;
    for (key, value) in entries(object, "data") {
        errors.malformed(&data.key(key), key, &format::config_key(key));
        size += bytes(value).len();
    }
    if size > SIZE_LIMIT {
        errors.too_long(&data, SIZE_LIMIT);
    }
    let entry = |key: &str| object.get("data").and_then(|data| data.get(key)).map(bytes);
    match text(object, "/type") {
        "kubernetes.io/service-account-token" => {
            const ACCOUNT: &str = "kubernetes.io/service-account.name";
            let annotations = object.pointer("/metadata/annotations");
            let account = annotations.and_then(|it| it.get(ACCOUNT)).and_then(Value::as_str);
            if account.unwrap_or_default().is_empty() {
                let metadata = Path::new("metadata");
                errors.required(&metadata.child("annotations").key(ACCOUNT), "");
            }
        }
        "kubernetes.io/dockercfg" => json_entry(".dockercfg", &entry, &data, errors),
        "kubernetes.io/dockerconfigjson" => json_entry(".dockerconfigjson", &entry, &data, errors),
        "kubernetes.io/basic-auth"
            if entry("username").is_none() && entry("password").is_none() =>
        {
            errors.required(&data.key("username"), "");
            errors.required(&data.key("password"), "");
        }
        "kubernetes.io/ssh-auth" if entry("ssh-privatekey").unwrap_or_default().is_empty() => {
            errors.required(&data.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if entry(key).is_none() {
                    errors.required(&data.key(key), "");
                }
            }
        }
        _ => {}
    }
}

fn json_entry(
    key: &str,
    entry: &impl Fn(&str) -> Option<Vec<u8>>,
    data: &Path<'_>,
    errors: &mut Errors,
) {
    match entry(key) {
        None => errors.required(&data.key(key), ""),
        Some(bytes) => {
            if let Some(fault) = object_fault(&bytes) {
                errors.invalid(&data.key(key), "<secret contents redacted>", &fault);
            }
        }
    }
}

/// Why a text is not a JSON object, without revealing its content.
fn object_fault(text: &[u8]) -> Option<String> {
    let found = match serde_json::from_slice(text) {
        Ok(Value::Object(_) | Value::Null) => return None,
        Ok(other) => decode::kind_of(&other),
        Err(_) => return Some(decode::json_fault(text).unwrap_or_else(|| "not JSON".to_owned())),
    };
    let wanted = "map[string]interface {}";
    Some(format!("json: cannot unmarshal {found} into Go value of type {wanted}"))
}

pub(super) fn secret_change(new: &Value, old: &Value, errors: &mut Errors) {
    if text(new, "/type") != text(old, "/type") {
        errors.invalid(&Path::new("type"), text(new, "/type"), "field is immutable");
    }
    frozen(new, old, &["data"], errors);
}
