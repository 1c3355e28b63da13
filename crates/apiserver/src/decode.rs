//! Request decoding: from a body to an object of the requested kind.
//!
//! The schema of each kind is the table of `podwright_api::schema`: it drops and reports unknown
//! fields, refuses wrong types, and brings the rest into the stored form.

use podwright_api::managed_fields::reset_marker;
use podwright_api::schema;
use serde_json::{Map, Value};

use crate::json_edit;
use crate::object::Object;
use crate::options::FieldValidation;
use crate::protobuf;
use crate::registry::Resource;
use crate::status::ApiError;

mod duplicates;
mod syntax;

/// A request body.
#[derive(Clone, Copy, Debug)]
pub enum Encoded<'a> {
    Json(&'a [u8]),
    Yaml(&'a [u8]),
    Protobuf(&'a [u8]),
}

/// A decoded object and warnings for the client.
#[derive(Debug)]
pub struct Decoded {
    pub object: Object,
    pub warnings: Vec<String>,
}

/// Reads a whole object of this resource.
pub fn object(
    resource: &Resource,
    body: Encoded<'_>,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    let (value, duplicates, body) = match body {
        Encoded::Json(body) => {
            let (value, duplicates) = duplicates::parse(body).map_err(|error| {
                let why = syntax::error(body).unwrap_or_else(|| error.to_string());
                let why = format!("couldn't get version/kind; json parse error: {why}");
                unrecognized(resource, &why, body)
            })?;
            (value, duplicates, body)
        }
        Encoded::Yaml(body) => {
            let (value, duplicates) = duplicates::parse_yaml(body).map_err(|error| {
                let why = format!("couldn't get version/kind; json parse error: {error}");
                unrecognized(resource, &why, body)
            })?;
            (value, duplicates, body)
        }
        Encoded::Protobuf(body) => {
            let value = protobuf::read(body)
                .map_err(|error| unrecognized(resource, &error.to_string(), body))?;
            (value, Vec::new(), body)
        }
    };
    let mut root = match value {
        Value::Object(root) => root,
        Value::Null => Map::new(), // Go decodes null to an empty object
        other => {
            let why = format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ \
                 APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                kind_of(&other)
            );
            return Err(unrecognized(resource, &why, body));
        }
    };
    check_type(resource, &mut root)?;
    known_fields(resource, &Value::Object(root), duplicates, validation, |why| {
        ApiError::bad_request(format!(
            "{} in version \"{}\" cannot be handled as a {}: {why}",
            resource.kind, resource.version, resource.kind
        ))
    })
}

/// Decodes an object of a kind that is not stored; `kind` is its name in error messages.
pub fn unstored(kind: &str, body: Encoded<'_>) -> Result<Value, ApiError> {
    let refuse = |why: &str| ApiError::bad_request(format!("the body is not a {kind}: {why}"));
    match body {
        Encoded::Json(body) => serde_json::from_slice(body)
            .map_err(|error| refuse(&syntax::error(body).unwrap_or_else(|| error.to_string()))),
        Encoded::Yaml(body) => {
            duplicates::parse_yaml(body).map(|(value, _)| value).map_err(|why| refuse(&why))
        }
        Encoded::Protobuf(body) => protobuf::read(body).map_err(|error| refuse(&error.to_string())),
    }
}

/// A parsed patch, and its duplicate keys.
#[derive(Debug)]
pub struct PatchText {
    pub value: Value,
    pub(crate) duplicates: Vec<String>,
}

/// Parses a patch; `Err` describes the syntax error.
pub fn patch(text: &[u8]) -> Result<PatchText, String> {
    duplicates::parse(text)
        .map(|(value, duplicates)| PatchText { value, duplicates })
        .map_err(|error| syntax::error(text).unwrap_or_else(|| error.to_string()))
}

/// Parses YAML, of which JSON is a part; `Err` describes the error. What is not a map is refused.
pub fn yaml(text: &[u8]) -> Result<PatchText, String> {
    let parsed = match duplicates::parse(text) {
        Ok(parsed) => Ok(parsed),
        // Most bodies are JSON, whose errors are the clearer ones.
        Err(error) if text.trim_ascii_start().starts_with(b"{") => {
            duplicates::parse_yaml(text).map_err(|_| error.to_string())
        }
        Err(_) => duplicates::parse_yaml(text),
    };
    let (value, duplicates) = parsed?;
    if !value.is_object() {
        let found = kind_of(&value);
        return Err(format!(
            "json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
        ));
    }
    Ok(PatchText { value, duplicates })
}

/// Checks a patched object; error messages show it as `shown`.
pub fn patched(
    resource: &Resource,
    object: &Value,
    patch: &PatchText,
    shown: impl Fn() -> String,
    validation: FieldValidation,
) -> Result<Decoded, ApiError> {
    known_fields(resource, object, patch.duplicates.clone(), validation, |why| {
        let error = crate::status::FieldError {
            reason: "FieldValueInvalid",
            field: "patch".to_owned(),
            message: format!("Invalid value: {:?}: {why}", shown()),
        };
        ApiError::invalid("", "", "", &[error])
    })
}

/// Go's message for a text that is not JSON.
pub fn json_fault(text: &[u8]) -> Option<String> {
    syntax::error(text)
}

fn unrecognized(resource: &Resource, why: &str, body: &[u8]) -> ApiError {
    ApiError::bad_request(format!(
        "the object provided is unrecognized (must be of type {}): {why} ({})",
        resource.kind,
        summary(body)
    ))
}

/// The beginning of the body, as text if it starts like JSON.
fn summary(body: &[u8]) -> String {
    const MAX_BYTES: usize = 30;
    let shown = body.get(..MAX_BYTES.min(body.len())).unwrap_or_default();
    let mut text = match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(shown).into_owned(),
        Some(_) => shown.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > MAX_BYTES {
        text.push_str(" ...");
    }
    text
}

/// Go package of kube-apiserver's internal form of a kind, named in conversion errors.
fn internal_package(resource: &Resource) -> &'static str {
    match resource.group.split_once('.') {
        None | Some(("events", _)) => "core",
        Some((package, _)) => package,
    }
}

/// A body may omit `kind` and `apiVersion`, but not have others.
fn check_type(resource: &Resource, root: &mut Map<String, Value>) -> Result<(), ApiError> {
    let want = resource.api_version();
    let version = root.get("apiVersion").and_then(Value::as_str).unwrap_or(&want);
    let kind = root.get("kind").and_then(Value::as_str).unwrap_or(resource.kind);
    if kind != resource.kind {
        let short = version.rsplit('/').next().unwrap_or_default();
        return Err(ApiError::bad_request(format!(
            "{kind} in version \"{short}\" cannot be handled as a {want}: converting \
             ({short}.{kind}) to ({}.{want}): unknown conversion",
            internal_package(resource),
            want = resource.kind
        )));
    }
    if version != want {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({version}) does not match the expected API version ({want})"
        )));
    }
    root.insert("apiVersion".to_owned(), want.into());
    root.insert("kind".to_owned(), resource.kind.into());
    Ok(())
}

fn known_fields(
    resource: &Resource,
    value: &Value,
    duplicates: Vec<String>,
    validation: FieldValidation,
    refuse: impl Fn(&str) -> ApiError,
) -> Result<Decoded, ApiError> {
    let shape = schema::kind(resource.group, resource.kind)
        .ok_or_else(|| refuse(&format!("no shape of {} is known", resource.kind)))?;
    let mut known = schema::decode(shape, value).map_err(|error| refuse(&error.to_string()))?;
    // An empty list of managers differs from none: it resets them.
    let managers = value.pointer("/metadata/managedFields").and_then(Value::as_array);
    if managers.is_some_and(Vec::is_empty) {
        json_edit::put(&mut known.value, &["metadata", "managedFields"], Some(reset_marker()));
    }
    let unknown = known.unknown.into_iter().map(|path| format!("unknown field \"{path}\""));
    let duplicates = duplicates.into_iter().map(|path| format!("duplicate field \"{path}\""));
    let problems: Vec<String> = unknown.chain(duplicates).collect();
    let warnings = match validation {
        FieldValidation::Strict if !problems.is_empty() => {
            return Err(refuse(&format!("strict decoding error: {}", problems.join(", "))));
        }
        FieldValidation::Strict | FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => problems,
    };
    let object = Object::try_from(known.value).map_err(|error| refuse(&error.to_string()))?;
    Ok(Decoded { object, warnings })
}

/// The name of a JSON type.
pub const fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::registry;

    fn pod(body: &str, validation: FieldValidation) -> Result<(Value, Vec<String>), String> {
        object(&registry::PODS, Encoded::Json(body.as_bytes()), validation)
            .map(|decoded| (decoded.object.into_value(), decoded.warnings))
            .map_err(|error| error.message)
    }

    #[test]
    fn unknown_and_duplicate_fields_are_refused_warned_about_or_ignored() {
        let body = r#"{"metadata":{"name":"a"},"spec":{"foo":1,"containers":[{"name":"c","bar":{}}],"hostPID":true,"hostPID":false}}"#;
        let clean = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
            "spec": {"containers": [{"name": "c", "resources": {}}]}, "status": {}});
        let problems = vec![
            "unknown field \"spec.foo\"".to_owned(),
            "unknown field \"spec.containers[0].bar\"".to_owned(),
            "duplicate field \"spec.hostPID\"".to_owned(),
        ];
        assert_eq!(pod(body, FieldValidation::Ignore), Ok((clean.clone(), vec![])));
        assert_eq!(pod(body, FieldValidation::Warn), Ok((clean, problems)));
        assert_eq!(
            pod(body, FieldValidation::Strict),
            Err("Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.foo\", \
                 unknown field \"spec.containers[0].bar\", duplicate field \"spec.hostPID\""
                .to_owned())
        );
    }

    #[test]
    fn a_body_of_another_kind_is_refused() {
        for (body, message) in [
            (
                r#"{"apiVersion":"v1","kind":"Secret"}"#,
                "Secret in version \"v1\" cannot be handled as a Pod: \
                 converting (v1.Secret) to (core.Pod): unknown conversion",
            ),
            (
                r#"{"apiVersion":"v2","kind":"Pod"}"#,
                "the API version in the data (v2) does not match the expected API version (v1)",
            ),
            (
                "{nope",
                "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse \
                 error: invalid character 'n' looking for beginning of object key string ({nope)",
            ),
            (
                "",
                "the object provided is unrecognized (must be of type Pod): couldn't get version/kind; json parse \
                 error: unexpected end of JSON input (<empty>)",
            ),
        ] {
            assert_eq!(pod(body, FieldValidation::Strict), Err(message.to_owned()), "{body}");
        }
    }

    #[test]
    fn quantities_may_be_numbers() {
        let body = r#"{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1,"memory":1.5}}}]}}"#;
        let limits = pod(body, FieldValidation::Strict)
            .map(|(pod, _)| pod["spec"]["containers"][0]["resources"]["limits"].clone());
        assert_eq!(limits, Ok(json!({"cpu": "1", "memory": "1500m"})));
    }

    #[test]
    fn hostile_bodies_are_refused_without_panic() {
        let deep = "[".repeat(100_000);
        for body in [
            "[]",
            "1",
            "\"x\"",
            "{\"metadata\":1}",
            "{\"spec\":[]}",
            &deep,
            "\u{0}",
            "{\"a\":\"\\ud800\"}",
        ] {
            let refused = pod(body, FieldValidation::Ignore);
            assert!(refused.is_err(), "{body:.20}: {refused:?}");
        }
    }
}
