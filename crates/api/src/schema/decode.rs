//! Decoder that reads an object as the API server does, and normalizes it.
//!
//! What a client gets back is not what it sent. Unknown fields are dropped, an explicit empty value
//! is omitted unless the field distinguishes it from unset, a missing struct becomes `{}`,
//! quantities and times take their canonical form, and a number is accepted as a quantity. Doing
//! this once from the table means that everything after it (typed parsing, comparison, storage)
//! handles only one form.

use jiff::Timestamp;
use serde_json::{Map, Number, Value};

use super::{Field, Path, Side, Struct, Type, find};
use crate::quantity::{self, Quantity};

/// A decoded object in canonical form.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub value: Value,
    /// Paths of unknown fields; they are not in `value`.
    pub unknown: Vec<String>,
}

/// Texts are the API server's: clients print them unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {expected}"
    )]
    Field { found: String, owner: &'static str, path: String, expected: String },
    #[error("json: cannot unmarshal {found} into Go value of type {expected}")]
    Object { found: String, expected: String },
    #[error("unable to parse quantity's suffix")]
    QuantitySuffix,
    #[error(
        "quantities must match the regular expression \
         '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
    )]
    Quantity,
    #[error(
        "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
    )]
    Time { text: String },
    #[error("illegal base64 data at input byte {0}")]
    Base64(usize),
}

/// Decodes an object that has `apiVersion` and `kind`.
pub fn decode(shape: &'static Struct, value: &Value) -> Result<Decoded, DecodeError> {
    let mut reader = Reader { unknown: Vec::new() };
    let mut out =
        reader.object(shape, value, FieldLocation { owner: shape, path: &Path::new("") })?;
    for name in ["apiVersion", "kind"] {
        if let Some(text @ Value::String(_)) = value.get(name) {
            out.insert(name.to_owned(), text.clone());
        }
    }
    let unknown = reader.unknown;
    let unknown = unknown.into_iter().filter(|path| path != "apiVersion" && path != "kind");
    Ok(Decoded { value: Value::Object(out), unknown: unknown.collect() })
}

/// Struct of the current field, and the path to it.
#[derive(Clone, Copy)]
struct FieldLocation<'a> {
    owner: &'static Struct,
    path: &'a Path<'a>,
}

impl FieldLocation<'_> {
    fn mismatch(&self, value: &Value, expected: &Type) -> DecodeError {
        let found = match value {
            Value::Number(number) if matches!(expected, Type::Int32 | Type::Int64) => {
                format!("number {number}")
            }
            other => kind_of(other).to_owned(),
        };
        let (expected, path) = (go_name(expected), self.path.fields());
        if path.is_empty() {
            return DecodeError::Object { found, expected };
        }
        DecodeError::Field { found, owner: self.owner.short_name(), path, expected }
    }
}

/// Reported unknown fields, as in kube-apiserver: a body may have a hundred thousand.
const MAX_UNKNOWN: usize = 100;

struct Reader {
    unknown: Vec<String>,
}

impl Reader {
    fn object(
        &mut self,
        shape: &'static Struct,
        value: &Value,
        place: FieldLocation<'_>,
    ) -> Result<Map<String, Value>, DecodeError> {
        let empty = Map::new();
        let fields = match value {
            Value::Object(fields) => fields,
            Value::Null => &empty,
            other => return Err(place.mismatch(other, &Type::Struct(shape.name))),
        };
        let unknown = fields.keys().filter(|name| shape.field(name).is_none());
        for name in unknown.take(MAX_UNKNOWN.saturating_sub(self.unknown.len())) {
            self.unknown.push(place.path.child(name).to_string());
        }
        let mut out = Map::new();
        for field in shape.fields.iter().filter(|field| field.side != Side::Internal) {
            let path = place.path.child(field.name);
            let given = fields.get(field.name).unwrap_or(&Value::Null);
            let read = self.value(&field.ty, given, FieldLocation { owner: shape, path: &path })?;
            if !is_left_out(field, &read) {
                out.insert(field.name.to_owned(), read);
            }
        }
        Ok(out)
    }

    /// Canonical form of a value; `null` is the zero value of the type.
    fn value(
        &mut self,
        ty: &Type,
        value: &Value,
        place: FieldLocation<'_>,
    ) -> Result<Value, DecodeError> {
        let mismatch = |found: &Value| Err(place.mismatch(found, ty));
        Ok(match (ty, value) {
            (Type::Struct(name), _) => match find(name) {
                Some(shape) => Value::Object(self.object(shape, value, place)?),
                None => Value::Null,
            },
            (Type::Any, any) => any.clone(),
            (Type::Quantity, given) => Value::String(quantity_text(given)?),
            (Type::Pointer(_) | Type::List(_) | Type::Map(_) | Type::Bytes, Value::Null)
            | (Type::Time | Type::MicroTime, Value::Null) => Value::Null,
            (Type::Pointer(inner), given) => self.value(inner, given, place)?,
            (Type::String(_), Value::Null) => Value::String(String::new()),
            (Type::Bool, Value::Null) => Value::Bool(false),
            (Type::Int32 | Type::Int64 | Type::IntOrString, Value::Null) => 0.into(),
            (Type::String(_), Value::String(_)) | (Type::Bool, Value::Bool(_)) => value.clone(),
            (Type::IntOrString, Value::String(_)) => value.clone(),
            (Type::Int32 | Type::IntOrString, Value::Number(number)) => {
                match integer(number).and_then(|n| i32::try_from(n).ok()) {
                    Some(n) => n.into(),
                    None => return Err(place.mismatch(value, &Type::Int32)),
                }
            }
            (Type::Int64, Value::Number(number)) => match integer(number) {
                Some(n) => n.into(),
                None => return mismatch(value),
            },
            (Type::Bytes, Value::String(text)) => match illegal_base64(text) {
                Some(at) => return Err(DecodeError::Base64(at)),
                None => without_line_breaks(text).into(),
            },
            (Type::Time, Value::String(text)) => Value::String(to_the_second(text)?),
            (Type::MicroTime, Value::String(text)) => Value::String(to_the_microsecond(text)?),
            (Type::List(element), Value::Array(items)) => Value::Array(
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| {
                        let path = place.path.index(index);
                        self.value(element, item, FieldLocation { owner: place.owner, path: &path })
                    })
                    .collect::<Result<_, _>>()?,
            ),
            (Type::Map(element), Value::Object(entries)) => {
                let mut out = Map::new();
                for (key, entry) in entries {
                    let path = place.path.key(key);
                    let place = FieldLocation { owner: place.owner, path: &path };
                    let read = match **element {
                        Type::Quantity => Value::String(amount_text(entry)?),
                        _ => self.value(element, entry, place)?,
                    };
                    out.insert(key.clone(), read);
                }
                Value::Object(out)
            }
            (
                Type::String(_)
                | Type::Bool
                | Type::Int32
                | Type::Int64
                | Type::Bytes
                | Type::Time
                | Type::MicroTime
                | Type::IntOrString
                | Type::List(_)
                | Type::Map(_),
                other,
            ) => return mismatch(other),
        })
    }
}

/// An empty value is omitted unless the field is always written. A struct is never empty here.
fn is_left_out(field: &Field, written: &Value) -> bool {
    if field.omit_zero {
        return written.is_null();
    }
    !field.always
        && match (&field.ty, written) {
            (Type::Time | Type::MicroTime | Type::IntOrString | Type::Struct(_), _) => false,
            (Type::Quantity, _) => false,
            (_, Value::Null) => true,
            (Type::Pointer(_), _) => false,
            (_, Value::String(text)) => text.is_empty(),
            (_, Value::Bool(flag)) => !flag,
            (_, Value::Number(number)) => integer(number) == Some(0),
            (_, Value::Array(items)) => items.is_empty(),
            (_, Value::Object(entries)) => entries.is_empty(),
        }
}

fn integer(number: &Number) -> Option<i64> {
    number.as_i64()
}

fn quantity_text(value: &Value) -> Result<String, DecodeError> {
    let text = match value {
        Value::Null => return Ok("0".to_owned()),
        Value::String(text) => text.trim().to_owned(),
        other => other.to_string(),
    };
    quantity::as_stored(&text).map_err(|_| not_a_quantity(&text))
}

/// A resource amount, with a minimum of one thousandth.
fn amount_text(value: &Value) -> Result<String, DecodeError> {
    let text = quantity_text(value)?;
    let amount: Quantity = text.parse().map_err(|_| not_a_quantity(&text))?;
    let milli = amount.milli_value();
    let rounded = Quantity::from_milli(milli);
    if rounded == amount || milli == i64::MAX || milli == i64::MIN {
        return Ok(text);
    }
    Ok(rounded.to_string())
}

/// Distinguishes an invalid number from an invalid suffix.
fn not_a_quantity(text: &str) -> DecodeError {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let suffix = unsigned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let exponent = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let has_number = suffix.len() < unsigned.len();
    if has_number && digits.bytes().all(|b| b.is_ascii_digit()) {
        return DecodeError::QuantitySuffix;
    }
    DecodeError::Quantity
}

fn timestamp(text: &str) -> Result<Timestamp, DecodeError> {
    text.parse().map_err(|_| DecodeError::Time { text: text.to_owned() })
}

fn to_the_second(text: &str) -> Result<String, DecodeError> {
    let time = timestamp(text)?;
    let whole = Timestamp::from_second(time.as_second())
        .map_err(|_| DecodeError::Time { text: text.to_owned() })?;
    Ok(whole.to_string())
}

fn to_the_microsecond(text: &str) -> Result<String, DecodeError> {
    Ok(format!("{:.6}", timestamp(text)?))
}

/// Base64 on one line, as the API server shows it and clients read it.
fn without_line_breaks(text: &str) -> String {
    text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect()
}

/// Index of the first byte that is invalid in standard base64.
fn illegal_base64(text: &str) -> Option<usize> {
    let bytes: Vec<(usize, u8)> =
        text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n')).collect();
    let padding = bytes.iter().rev().take_while(|(_, byte)| *byte == b'=').count();
    let digits = bytes.len() - padding;
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let bad_digit = bytes.iter().take(digits).find(|(_, byte)| !is_digit(*byte));
    if let Some((at, _)) = bad_digit {
        return Some(*at);
    }
    let wanted = match digits % 4 {
        0 => 0,
        2 => 2,
        3 => 1,
        _ => return Some(text.len()),
    };
    match padding {
        given if given == wanted => None,
        given if given < wanted => Some(text.len()),
        _ => bytes.get(digits + wanted).map(|(at, _)| *at),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_name(ty: &Type) -> String {
    match ty {
        Type::String(name) if *name == "string" => (*name).to_owned(),
        Type::String("UID") => "types.UID".to_owned(),
        Type::String(name) => format!("v1.{name}"),
        Type::Bool => "bool".to_owned(),
        Type::Int32 => "int32".to_owned(),
        Type::Int64 => "int64".to_owned(),
        Type::Bytes => "[]uint8".to_owned(),
        Type::Quantity => "resource.Quantity".to_owned(),
        Type::Time => "v1.Time".to_owned(),
        Type::MicroTime => "v1.MicroTime".to_owned(),
        Type::IntOrString => "intstr.IntOrString".to_owned(),
        Type::Any => "interface {}".to_owned(),
        Type::Pointer(inner) => go_name(inner),
        Type::List(inner) => format!("[]{}", go_name_in_list(inner)),
        Type::Map(inner) if **inner == Type::Quantity => "v1.ResourceList".to_owned(),
        Type::Map(inner) => format!("map[string]{}", go_name(inner)),
        Type::Struct(name) => format!("v1.{}", name.rsplit('.').next().unwrap_or(name)),
    }
}

fn go_name_in_list(ty: &Type) -> String {
    match ty {
        Type::Pointer(inner) => format!("*{}", go_name(inner)),
        other => go_name(other),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#[allow(clippy::needless_pass_by_value, reason = "json literals are given as they stand")]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: Value) -> Result<Decoded, DecodeError> {
        decode(find("Pod").unwrap(), &value)
    }

    fn spec(value: Value) -> Value {
        pod(json!({"spec": value})).unwrap().value["spec"].clone()
    }

    #[test]
    fn explicit_zero_is_kept_only_where_it_differs_from_unset() {
        let read = spec(json!({
            "nodeName": "", "hostNetwork": false, "tolerations": [], "nodeSelector": {},
            "enableServiceLinks": false, "terminationGracePeriodSeconds": 0, "containers": []
        }));
        assert_eq!(
            read,
            json!({"enableServiceLinks": false, "terminationGracePeriodSeconds": 0, "containers": []})
        );
    }

    #[test]
    fn missing_struct_is_written_as_empty() {
        let read = spec(json!({"containers": [{"name": "c", "env": [{"name": "e", "valueFrom":
            {"resourceFieldRef": {"resource": "limits.cpu"}}}]}]}));
        let container = &read["containers"][0];
        assert_eq!(container["resources"], json!({}));
        assert_eq!(container["env"][0]["valueFrom"]["resourceFieldRef"]["divisor"], "0");
        let status = pod(json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}));
        assert_eq!(
            status.unwrap().value["status"]["conditions"][0],
            json!({"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null})
        );
    }

    #[test]
    fn quantities_and_times_take_their_canonical_form() {
        let read = spec(json!({"containers": [{"name": "c", "resources":
            {"limits": {"cpu": 0.5, "memory": "1.5Gi", "a.b/c": 2, "a.b/d": "0.0001"}}}]}));
        assert_eq!(
            read["containers"][0]["resources"]["limits"],
            json!({"cpu": "500m", "memory": "1536Mi", "a.b/c": "2", "a.b/d": "1m"})
        );
        let lease = decode(
            find("Lease").unwrap(),
            &json!({"metadata": {"creationTimestamp": "2026-01-02T03:04:05.999+01:00"},
                    "spec": {"renewTime": "2026-01-02T03:04:05.5Z"}}),
        );
        let lease = lease.unwrap().value;
        assert_eq!(lease["metadata"]["creationTimestamp"], "2026-01-02T02:04:05Z");
        assert_eq!(lease["spec"]["renewTime"], "2026-01-02T03:04:05.500000Z");
    }

    #[test]
    fn unknown_fields_are_dropped_and_reported() {
        let read = pod(json!({"apiVersion": "v1", "kind": "Pod", "extra": 1, "spec":
            {"containers": [{"name": "c", "imagee": "x"}], "hostnetwork": true}}));
        let read = read.unwrap();
        assert_eq!(read.unknown, ["extra", "spec.hostnetwork", "spec.containers[0].imagee"]);
        assert_eq!(read.value["kind"], "Pod");
        assert!(read.value.get("extra").is_none());
    }

    #[test]
    fn wrong_type_has_the_api_servers_message() {
        for (spec, want) in [
            (
                json!({"containers": "x"}),
                "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (
                json!({"restartPolicy": 5}),
                "json: cannot unmarshal number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy",
            ),
            (
                json!({"containers": [{"ports": [{"containerPort": "80"}]}]}),
                "json: cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort of type int32",
            ),
            (
                json!({"priority": 1.5}),
                "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
            ),
            (
                json!({"securityContext": []}),
                "json: cannot unmarshal array into Go struct field PodSpec.spec.securityContext of type v1.PodSecurityContext",
            ),
        ] {
            assert_eq!(pod(json!({"spec": spec})).unwrap_err().to_string(), want);
        }
        assert_eq!(
            pod(json!([])).unwrap_err().to_string(),
            "json: cannot unmarshal array into Go value of type v1.Pod"
        );
    }

    #[test]
    fn invalid_quantity_time_or_base64_is_refused() {
        for (cpu, want) in [
            (json!("1x"), DecodeError::Quantity),
            (json!(""), DecodeError::Quantity),
            (json!(true), DecodeError::Quantity),
            (json!("1ki"), DecodeError::QuantitySuffix),
        ] {
            assert_eq!(
                pod(json!({"spec": {"overhead": {"cpu": cpu}}})).unwrap_err(),
                want,
                "{cpu}"
            );
        }
        let time = pod(json!({"metadata": {"creationTimestamp": "now"}})).unwrap_err();
        assert!(matches!(time, DecodeError::Time { .. }), "{time}");
        let secret = find("Secret").unwrap();
        for (data, want) in [("!a==", 0), ("YQ", 2), ("YQ=", 3), ("YWI=x", 3), ("a", 1)] {
            let read = decode(secret, &json!({"data": {"a": data}}));
            assert_eq!(read.unwrap_err(), DecodeError::Base64(want), "{data}");
        }
        let wrapped = decode(secret, &json!({"data": {"a": "YW\r\nI=\n", "b": ""}})).unwrap();
        assert_eq!(wrapped.value["data"], json!({"a": "YWI=", "b": ""}));
    }

    #[test]
    fn decoding_is_idempotent() {
        let once =
            pod(json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 1}],
            "livenessProbe": {"httpGet": {"port": "web"}}}], "volumes": [{"name": "v", "emptyDir":
            {"sizeLimit": "1000Ki"}}]}, "status": {"startTime": "2026-01-02T03:04:05Z"}}));
        let once = once.unwrap().value;
        assert_eq!(pod(once.clone()).unwrap().value, once);
    }
}
