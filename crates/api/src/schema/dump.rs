//! Printer for values in the format of the API server's internal types.
//!
//! Some validation messages quote the invalid struct, and a refused update contains a diff of two
//! structs. Users search for these messages, so the text is the API server's: capitalized field
//! names, every field, in its order.

use serde_json::{Map, Value};

use super::{Field, Side, Struct, Type, find};

/// On one line.
pub fn dump(ty: &Type, value: &Value) -> String {
    let mut out = String::new();
    node(ty, value).write(&mut out);
    out
}

/// One line per field, indented by one space per level.
pub fn pretty(ty: &Type, value: &Value) -> String {
    let mut out = String::new();
    node(ty, value).write_indented(&mut out, 0);
    out
}

/// A pod spec as the internal type: the host settings are in the security context.
pub fn internal_pod_spec(spec: &Value) -> Value {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    let mut context = match spec.remove("securityContext") {
        Some(Value::Object(context)) => context,
        _ => Map::new(),
    };
    for name in ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace", "hostUsers"] {
        if let Some(value) = spec.remove(name) {
            context.insert(name.to_owned(), value);
        }
    }
    spec.insert("securityContext".to_owned(), Value::Object(context));
    Value::Object(spec)
}

enum Node {
    Plain(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

fn node(ty: &Type, value: &Value) -> Node {
    match (ty, value) {
        (Type::Struct(name), _) => Node::Object(find(name).map_or_else(Vec::new, |shape| {
            if shape.tagged { tagged(shape, value) } else { internal(shape, value) }
        })),
        (Type::Pointer(_) | Type::List(_) | Type::Map(_) | Type::Bytes, Value::Null)
        | (Type::Time | Type::MicroTime | Type::Any, Value::Null) => Node::Plain("null".to_owned()),
        (Type::Pointer(inner), _) => node(inner, value),
        (Type::List(element), Value::Array(items)) => {
            Node::List(items.iter().map(|item| node(element, item)).collect())
        }
        (Type::Map(element), Value::Object(entries)) => Node::Object(
            entries.iter().map(|(key, entry)| (key.clone(), node(element, entry))).collect(),
        ),
        (Type::String(_), Value::Null) => Node::Plain("\"\"".to_owned()),
        (Type::Quantity, Value::Null) => Node::Plain("\"0\"".to_owned()),
        (Type::Bool, Value::Null) => Node::Plain("false".to_owned()),
        (Type::Int32 | Type::Int64 | Type::IntOrString, Value::Null) => Node::Plain("0".to_owned()),
        (_, Value::String(text)) => Node::Plain(quoted(text)),
        (_, other) => Node::Plain(other.to_string()),
    }
}

fn internal(shape: &Struct, value: &Value) -> Vec<(String, Node)> {
    let mut out = Vec::new();
    for field in shape.fields.iter().filter(|field| field.side != Side::Public) {
        let held = node(&field.ty, value.get(field.name).unwrap_or(&Value::Null));
        match held {
            Node::Object(fields) if field.inline => out.extend(fields),
            held => out.push((field.internal_name.clone(), held)),
        }
    }
    out
}

fn tagged(shape: &Struct, value: &Value) -> Vec<(String, Node)> {
    let given = |field: &Field| value.get(field.name).cloned().unwrap_or(Value::Null);
    shape
        .fields
        .iter()
        .map(|field| (field, given(field)))
        .filter(|(field, given)| field.always || !is_empty(given))
        .map(|(field, given)| (field.name.to_owned(), node(&field.ty, &given)))
        .collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

impl Node {
    fn write(&self, out: &mut String) {
        match self {
            Self::Plain(text) => out.push_str(text),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (at, (name, held)) in fields.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    out.push_str(&quoted(name));
                    out.push(':');
                    held.write(out);
                }
                out.push('}');
            }
        }
    }

    fn write_indented(&self, out: &mut String, level: usize) {
        match self {
            Self::Plain(text) => out.push_str(text),
            Self::List(items) if items.is_empty() => out.push_str("[]"),
            Self::Object(fields) if fields.is_empty() => out.push_str("{}"),
            Self::List(items) => {
                out.push('[');
                for (at, item) in items.iter().enumerate() {
                    new_line(out, at > 0, level + 1);
                    item.write_indented(out, level + 1);
                }
                new_line(out, false, level);
                out.push(']');
            }
            Self::Object(fields) => {
                out.push('{');
                for (at, (name, held)) in fields.iter().enumerate() {
                    new_line(out, at > 0, level + 1);
                    out.push_str(&quoted(name));
                    out.push_str(": ");
                    held.write_indented(out, level + 1);
                }
                new_line(out, false, level);
                out.push('}');
            }
        }
    }
}

fn new_line(out: &mut String, comma: bool, level: usize) {
    if comma {
        out.push(',');
    }
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', level));
}

/// JSON text that is safe inside HTML, as the API server's encoder writes it.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn struct_has_every_field_under_its_internal_name() {
        let context = json!({"privileged": true, "allowPrivilegeEscalation": false});
        assert_eq!(
            dump(&Type::Struct("SecurityContext"), &context),
            "{\"Capabilities\":null,\"Privileged\":true,\"SELinuxOptions\":null,\
             \"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\"RunAsNonRoot\":null,\
             \"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":false,\"ProcMount\":null,\
             \"SeccompProfile\":null,\"AppArmorProfile\":null}"
        );
    }

    #[test]
    fn types_shared_by_all_kinds_keep_their_wire_names() {
        let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}});
        assert_eq!(
            dump(&Type::Struct("PodAffinityTerm"), &term),
            "{\"LabelSelector\":{\"matchLabels\":{\"a\":\"b\"}},\"Namespaces\":null,\
             \"TopologyKey\":\"zone\",\"NamespaceSelector\":null,\"MatchLabelKeys\":null,\
             \"MismatchLabelKeys\":null}"
        );
    }

    #[test]
    fn host_settings_are_in_the_security_context() {
        let spec = internal_pod_spec(&json!({"hostNetwork": true, "containers": null}));
        let text = pretty(&Type::Struct("PodSpec"), &spec);
        assert!(
            text.contains(
                " \"SecurityContext\": {\n  \"HostNetwork\": true,\n  \"HostPID\": false,"
            ),
            "{text}"
        );
    }

    #[test]
    fn text_is_escaped_for_html_too() {
        assert_eq!(quoted("a<b>&\"\n\u{1}"), "\"a\\u003cb\\u003e\\u0026\\\"\\n\\u0001\"");
    }
}
