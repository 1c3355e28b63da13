#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;

use podwright_api::schema;
use prost::encoding::{encode_key, encode_varint};
use serde_json::json;

use super::*;

/// Builder for an encoded message.
#[derive(Clone, Default)]
struct Wired(Vec<u8>);

impl Wired {
    fn number(mut self, field: u32, value: i64) -> Self {
        encode_key(field, WireType::Varint, &mut self.0);
        encode_varint(value.cast_unsigned(), &mut self.0);
        self
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Self {
        encode_key(field, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, field: u32, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u32, inner: &Self) -> Self {
        self.bytes(field, &inner.0)
    }
}

fn body(api_version: &str, kind: &str, object: &Wired) -> Vec<u8> {
    let types = Wired::default().text(1, api_version).text(2, kind);
    let envelope = Wired::default().message(1, &types).message(2, object).text(3, "").text(4, "");
    [MAGIC, &envelope.0].concat()
}

/// Field names of a type, including those of inlined types.
fn names(ty: &str) -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    for field in TYPES[ty].fields.values() {
        match (field.name, field.ty) {
            ("", Type::Message(inner)) => names.extend(self::names(inner)),
            (name, _) => _ = names.insert(name),
        }
    }
    names
}

#[test]
fn table_has_every_field_of_every_type_and_no_other() {
    let mut wrong = Vec::new();
    for ty in TYPES.keys() {
        let Some(shape) = schema::find(ty) else { continue };
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for field in &shape.fields {
            if field.side != schema::Side::Internal {
                known.insert(field.name);
            }
        }
        let ours = names(ty);
        wrong.extend(known.difference(&ours).map(|name| format!("{ty}.{name} has no number")));
        wrong.extend(ours.difference(&known).map(|name| format!("{ty}.{name} is not in the API")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_type_named_in_the_table_is_defined() {
    for (ty, shape) in TYPES.iter() {
        for field in shape.fields.values() {
            if let Type::Message(inner) = field.ty {
                assert!(TYPES.contains_key(inner), "{ty}.{}: {inner}", field.name);
            }
        }
    }
}

#[test]
fn message_is_decoded_to_its_json() {
    let quantity = |text: &str| Wired::default().text(1, text);
    let entry = |key: &str, value: &Wired| Wired::default().text(1, key).message(2, value);
    let time = Wired::default().number(1, 1_700_000_000).number(2, 0);
    let probe = {
        let port = Wired::default().number(1, 1).number(2, 0).text(3, "web");
        let http = Wired::default().text(1, "/").message(2, &port).text(3, "").text(4, "HTTP");
        let handler = Wired::default().message(2, &http); // inlined
        Wired::default().message(1, &handler).number(2, 5)
    };
    let container = Wired::default()
        .text(1, "c")
        .text(2, "busybox")
        .text(3, "sh")
        .text(3, "-c")
        .message(8, &Wired::default().message(1, &entry("cpu", &quantity("100m"))))
        .message(10, &probe);
    let volume = Wired::default()
        .text(1, "v")
        .message(2, &Wired::default().message(1, &Wired::default().text(1, "/x")));
    let security = Wired::default().number(2, 1000).number(4, 1).number(4, 2);
    let meta = Wired::default()
        .text(1, "a")
        .text(6, "")
        .message(8, &Wired::default()) // no creation time
        .message(9, &time)
        .message(11, &Wired::default().text(1, "k").text(2, "v"))
        .number(7, 3);
    let spec = Wired::default()
        .message(1, &volume)
        .message(2, &container)
        .number(4, -1)
        .number(11, 1)
        .message(14, &security)
        .number(9999, 1); // from a newer client
    let pod = Wired::default().message(1, &meta).message(2, &spec);
    assert_eq!(
        read(&body("v1", "Pod", &pod)).unwrap(),
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "a", "resourceVersion": "", "creationTimestamp": null, "generation": 3,
                "deletionTimestamp": "2023-11-14T22:13:20Z", "labels": {"k": "v"},
            },
            "spec": {
                "volumes": [{"name": "v", "hostPath": {"path": "/x"}}],
                "containers": [{
                    "name": "c", "image": "busybox", "command": ["sh", "-c"],
                    "resources": {"limits": {"cpu": "100m"}},
                    "livenessProbe": {
                        "httpGet": {"path": "/", "port": "web", "host": "", "scheme": "HTTP"},
                        "initialDelaySeconds": 5,
                    },
                }],
                "terminationGracePeriodSeconds": -1,
                "hostNetwork": true,
                "securityContext": {"runAsUser": 1000, "supplementalGroups": [1, 2]},
            },
        })
    );
}

#[test]
fn bytes_and_micro_times_are_converted_to_json() {
    let entry = Wired::default().text(1, "k").bytes(2, &[0, 255]);
    let secret = Wired::default().message(2, &entry);
    assert_eq!(read(&body("v1", "Secret", &secret)).unwrap()["data"], json!({"k": "AP8="}));
    let renewed = Wired::default().number(1, 1_700_000_000).number(2, 123_456_000);
    let lease = Wired::default().message(2, &Wired::default().message(4, &renewed));
    let lease = read(&body("coordination.k8s.io/v1", "Lease", &lease)).unwrap();
    assert_eq!(lease["spec"]["renewTime"], "2023-11-14T22:13:20.123456Z");
    let event = Wired::default().text(7, "note");
    let event = read(&body("events.k8s.io/v1", "Event", &event)).unwrap();
    assert_eq!(event.get("message"), None, "the two event types have different field numbers");
}

/// A value of the type in which every field is set.
fn filled(ty: &schema::Type, depth: usize) -> Value {
    match ty {
        schema::Type::String(_) => json!("t"),
        schema::Type::Bool => json!(true),
        schema::Type::Int32 => json!(-3),
        schema::Type::Int64 => json!(1_234_567_890_123_i64),
        schema::Type::Bytes => json!("AP8="),
        schema::Type::Quantity => json!("100m"),
        schema::Type::Time => json!("2023-11-14T22:13:20Z"),
        schema::Type::MicroTime => json!("2023-11-14T22:13:20.123456Z"),
        schema::Type::IntOrString if depth.is_multiple_of(2) => json!("web"),
        schema::Type::IntOrString => json!(80),
        schema::Type::Any => json!({"f:data": {"f:a": {}}}),
        schema::Type::Pointer(inner) => filled(inner, depth),
        schema::Type::List(inner) => json!([filled(inner, depth + 1), filled(inner, depth + 1)]),
        schema::Type::Map(inner) => json!({"k": filled(inner, depth + 1)}),
        schema::Type::Struct(name) => {
            let shape = schema::find(name).unwrap();
            let fields = shape.fields.iter().filter(|field| field.side != schema::Side::Internal);
            Value::Object(fields.map(|f| (f.name.to_owned(), filled(&f.ty, depth + 1))).collect())
        }
    }
}

#[test]
fn every_field_of_every_kind_survives_encoding() {
    for resource in crate::registry::RESOURCES.iter().filter(|r| !r.storage.is_empty()) {
        let shape = schema::kind(resource.group, resource.kind).unwrap();
        let mut object = filled(&schema::Type::Struct(shape.name), 0);
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        let encoded = encode::object(&object).unwrap();
        assert_eq!(read(&encoded).unwrap(), object, "{}", resource.qualified());
    }
}

/// What another implementation makes of the bytes: the field numbers are the API's.
#[test]
fn list_and_watch_event_have_the_frames_of_the_api() {
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    let mut list = encode::List::new("v1", "ConfigMap", &json!({"resourceVersion": "7"})).unwrap();
    list.push(&map);
    let item = Wired::default()
        .message(1, &Wired::default().text(1, "a"))
        .message(2, &Wired::default().text(1, "k").text(2, "v"));
    let raw = Wired::default().message(1, &Wired::default().text(2, "7")).message(2, &item);
    let types = Wired::default().text(1, "v1").text(2, "ConfigMapList");
    let want = Wired::default().message(1, &types).message(2, &raw);
    assert_eq!(list.finish(), [MAGIC, &want.0].concat());
    let mut framed = Vec::new();
    encode::watch_event("ADDED", b"object", &mut framed);
    let event = Wired::default().text(1, "ADDED").message(2, &Wired::default().bytes(1, b"object"));
    let length = u32::try_from(event.0.len()).unwrap().to_be_bytes();
    assert_eq!(framed, [&length[..], &event.0].concat());
}

#[test]
fn hostile_messages_are_refused_without_panic() {
    let nested = (0..200).fold(Wired::default(), |inner, _| Wired::default().message(1, &inner));
    let pod = Wired::default().message(2, &Wired::default().message(18, &nested));
    let affinity = body("v1", "Pod", &pod);
    let good = body("v1", "Pod", &Wired::default().message(1, &Wired::default().text(1, "a")));
    for (case, bytes) in [
        ("empty", Vec::new()),
        ("JSON", b"{}".to_vec()),
        ("of an unknown kind", body("apps/v1", "Deployment", &Wired::default())),
        (
            "text that is none",
            body("v1", "Pod", &Wired::default().message(1, &Wired::default().bytes(1, &[255]))),
        ),
        ("a number for a message", body("v1", "Pod", &Wired::default().number(1, 1))),
        ("a length beyond the end", [MAGIC, &[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat()),
        ("an endless number", [MAGIC, &[0xff; 20]].concat()),
    ] {
        assert!(read(&bytes).is_err(), "{case}");
    }
    for end in 0..good.len() {
        let _ = read(&good[..end]); // any result will do, but no panic
    }
    let _ = read(&affinity);
}

proptest::proptest! {
    #[test]
    fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..300)) {
        for kind in ["Pod", "Node", "DeleteOptions"] {
            let _ = read(&body("v1", kind, &Wired(bytes.clone())));
        }
        let _ = read(&[MAGIC, &bytes].concat());
    }
}
