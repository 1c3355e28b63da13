//! Comparison of our CRI messages with the published `k8s-cri` crate.
//!
//! No compiler checks a field number, and a wrong one shows up as a setting that silently does
//! nothing. So every field of every message is filled, sent through the other crate's types and
//! expected under the same name there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod differences;
mod filled;
mod peer;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage};
use serde_json::{Value, json};

use crate::differences::{LEFT_OUT, NEWER_FIELDS, NEWER_TYPES, is_newer, is_newer_type};
use crate::filled::{Filler, by_name, rust_name};
use crate::peer::{ENUMS, MESSAGES, Peer};

#[test]
fn every_field_round_trips_through_k8s_cri() {
    for (peer, message) in pairs() {
        let mut filler = Filler::default();
        agree(peer, &filler.message(&message), "all fields");
        // One at a time as well: two booleans swapped would look right when both are true.
        for field in message.fields() {
            let mut alone = DynamicMessage::new(message.clone());
            alone.set_field(&field, filler.field(&field));
            agree(peer, &alone, field.name());
        }
    }
}

fn agree(peer: &Peer, sent: &DynamicMessage, case: &str) {
    let name = peer.name;
    let bytes = sent.encode_to_vec();
    let ours = (peer.through_ours)(&bytes).unwrap();
    assert_eq!(&decode(sent, &ours), sent, "{name}, {case}: lost by our own type");

    let (seen, back) = (peer.through_theirs)(&bytes)
        .unwrap_or_else(|error| panic!("{name}, {case}: k8s-cri cannot read it: {error}"));
    assert_eq!(seen, by_name(sent), "{name}, {case}: left is what k8s-cri read");
    let returned = decode(sent, &(peer.through_ours)(&back).unwrap());
    assert_eq!(returned, without_newer(sent), "{name}, {case}: changed on the way back");
}

#[test]
fn every_integer_has_the_width_and_sign_of_k8s_cri() {
    let probes = [json!(-1), json!(1u64 << 40), json!(1u64 << 63)];
    for (peer, message) in pairs() {
        let (empty, _) = (peer.through_theirs)(&[]).unwrap();
        for field in message.fields().filter(|field| !is_newer(field)) {
            let fits = probes.clone().map(|probe| {
                let mut value = empty.clone();
                value[rust_name(&field)] = if field.is_list() { json!([probe]) } else { probe };
                (peer.theirs_takes)(value)
            });
            let want = match field.kind() {
                Kind::Int32 | Kind::Enum(_) => [true, false, false],
                Kind::Int64 => [true, true, false],
                Kind::Uint64 => [false, true, true],
                _ => [false; 3],
            };
            assert_eq!(fits, want, "{}: does k8s-cri take -1, 2^40, 2^63?", field.full_name());
        }
    }
}

#[test]
fn every_enum_value_has_the_same_name_and_number() {
    for ours in pool().all_enums().filter(|ours| ours.package_name() == "runtime.v1") {
        let Some(theirs) = ENUMS.iter().find(|theirs| theirs.name == ours.name()) else {
            assert!(is_newer_type(ours.name()), "{} is unknown to k8s-cri", ours.name());
            continue;
        };
        for number in 0..100 {
            let value = ours.get_value(number);
            let name = value.as_ref().map(|value| value.name());
            assert_eq!(name, (theirs.name_of)(number), "{} {number}", ours.name());
        }
    }
}

/// The one enum that is newer than `k8s-cri`; its numbers follow from a rule.
#[test]
fn signals_are_numbered_by_name_and_real_time_ones_by_rank() {
    let signal = pool().get_enum_by_name("runtime.v1.Signal").unwrap();
    let names: Vec<_> = (0..).map_while(|n| Some(signal.get_value(n)?.name().to_owned())).collect();
    assert_eq!(names.len(), signal.values().len(), "a gap in the numbers");

    let (default, signals) = names.split_first().unwrap();
    assert_eq!(default, "RUNTIME_DEFAULT");
    let (plain, real_time) = signals.split_at(34);
    assert!(plain.is_sorted(), "{plain:?}");
    let ranks = std::iter::once("SIGRTMIN".to_owned())
        .chain((1..=15).map(|n| format!("SIGRTMINPLUS{n}")))
        .chain((1..=14).rev().map(|n| format!("SIGRTMAXMINUS{n}")))
        .chain(["SIGRTMAX".to_owned()]);
    assert_eq!(real_time, ranks.collect::<Vec<_>>());
}

#[test]
fn every_message_has_a_peer_or_is_listed_as_newer() {
    for message in messages() {
        let peer = MESSAGES.iter().any(|peer| peer.is(&message));
        assert_ne!(peer, is_newer_type(message.name()), "{}", message.name());
        for field in message.fields().filter(|_| !peer) {
            assert!(is_newer(&field), "{} needs a line of its own", field.full_name());
        }
    }
}

#[test]
fn fields_listed_as_newer_are_declared_here_and_missing_in_k8s_cri() {
    for (message, field, number, kind, since) in NEWER_FIELDS {
        let case = format!("{message}.{field}, since Kubernetes {since}");
        let declared = pool().get_message_by_name(&format!("runtime.v1.{message}")).unwrap();
        let declared = declared.get_field_by_name(field).expect(&case);
        assert_eq!(declared.number(), *number, "{case}");
        assert_eq!(format!("{:?}", declared.kind()).trim_start_matches("runtime.v1."), *kind);
        if let Some(peer) = MESSAGES.iter().find(|peer| peer.is(declared.parent_message())) {
            let (theirs, _) = (peer.through_theirs)(&[]).unwrap();
            assert_eq!(theirs.get(rust_name(&declared)), None, "{case}: no longer newer");
        }
    }
    let versions = NEWER_FIELDS.iter().map(|row| row.4).chain(NEWER_TYPES.iter().map(|row| row.1));
    for since in versions {
        assert!(since > "1.32", "k8s-cri covers Kubernetes 1.32, so it covers {since}");
    }
}

#[test]
fn numbers_of_left_out_fields_are_reserved() {
    for (message, field, number, _) in LEFT_OUT {
        let declared = pool().get_message_by_name(&format!("runtime.v1.{message}")).unwrap();
        let reserved = declared.reserved_ranges().any(|range| range.contains(number));
        assert!(reserved, "{message}: reserve {number}, it is `{field}`");
    }
}

/// Together with the checks of message names above, this checks the names of the methods.
#[test]
fn every_method_has_the_request_and_response_of_its_name() {
    let theirs = [
        k8s_cri::v1::runtime_service_server::SERVICE_NAME,
        k8s_cri::v1::image_service_server::SERVICE_NAME,
    ];
    for service in theirs {
        for method in pool().get_service_by_name(service).unwrap().methods() {
            let (input, output) = (method.input(), method.output());
            let got = (input.name(), output.name(), method.is_server_streaming());
            let (request, response) =
                (format!("{}Request", method.name()), format!("{}Response", method.name()));
            let want = match method.name() {
                "GetContainerEvents" => ("GetEventsRequest", "ContainerEventResponse", true),
                _ => (request.as_str(), response.as_str(), false),
            };
            assert_eq!(got, want);
        }
    }
}

#[test]
fn field_names_are_converted_to_rust_names() {
    let mount = pool().get_message_by_name("runtime.v1.Mount").unwrap();
    let config = pool().get_message_by_name("runtime.v1.ContainerConfig").unwrap();
    for (message, field, want) in [
        (&mount, "uidMappings", "uid_mappings"),
        (&mount, "image_sub_path", "image_sub_path"),
        (&config, "CDI_devices", "cdi_devices"),
    ] {
        assert_eq!(rust_name(&message.get_field_by_name(field).unwrap()), want);
    }
    let empty = by_name(&DynamicMessage::new(mount));
    assert_eq!(empty.get("uid_mappings"), Some(&Value::Array(vec![])));
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(podwright_proto::FILE_DESCRIPTOR_SET).unwrap()
}

fn messages() -> Vec<MessageDescriptor> {
    let ours = |m: &MessageDescriptor| m.package_name() == "runtime.v1" && !m.is_map_entry();
    pool().all_messages().filter(ours).collect()
}

fn pairs() -> impl Iterator<Item = (&'static Peer, MessageDescriptor)> {
    messages()
        .into_iter()
        .filter_map(|message| Some((MESSAGES.iter().find(|p| p.is(&message))?, message)))
}

fn decode(like: &DynamicMessage, bytes: &[u8]) -> DynamicMessage {
    DynamicMessage::decode(like.descriptor(), bytes).unwrap()
}

/// The part of a message that `k8s-cri` knows.
fn without_newer(message: &DynamicMessage) -> DynamicMessage {
    let mut known = message.clone();
    for field in message.descriptor().fields().filter(is_newer) {
        known.clear_field(&field);
    }
    for (_, value) in known.fields_mut() {
        filled::each_message(value, &mut |inner| *inner = without_newer(inner));
    }
    known
}
