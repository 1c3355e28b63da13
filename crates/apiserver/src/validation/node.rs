//! Validation of nodes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Taint;
use podwright_api::quantity::Quantity;
use podwright_api::schema::{self, Path, Type};
use podwright_api::validation::field::{Errors, Internal};
use podwright_api::validation::resource_name::check_amount;
use podwright_api::validation::{format, toleration};
use serde_json::{Map, Value};

use super::{METADATA, text};

pub(super) fn check(object: &Value, errors: &mut Errors) {
    taints(object, errors);
    amounts(object, errors);
    let cidrs = pod_cidrs(object);
    let spec = Path::new("spec");
    let field = spec.child("podCIDRs");
    for (index, cidr) in cidrs.iter().enumerate() {
        errors.malformed(&field.index(index), cidr, &is_cidr(cidr));
    }
    let families: Vec<bool> =
        cidrs.iter().filter_map(|cidr| parse_cidr(cidr)).map(|(ip, _)| ip.is_ipv4()).collect();
    let one_each = match (cidrs.len(), families.as_slice()) {
        (0 | 1, _) => true,
        (2, [first, second]) => first != second,
        _ => false,
    };
    if !one_each {
        let detail = "may specify no more than one CIDR for each IP family";
        errors.invalid(&field, cidrs.as_slice(), detail);
    }
}

fn pod_cidrs(object: &Value) -> Vec<String> {
    let list = object.pointer("/spec/podCIDRs").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (ip, length) = text.split_once('/')?;
    let (ip, length): (IpAddr, u8) = (ip.parse().ok()?, length.parse().ok()?);
    (length <= if ip.is_ipv4() { 32 } else { 128 }).then_some((ip, length))
}

fn is_cidr(text: &str) -> format::Problems {
    let Some((ip, length)) = parse_cidr(text) else {
        return vec!["must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)".to_owned()];
    };
    let beyond = match ip {
        IpAddr::V4(ip) => u32::from(ip).checked_shl(length.into()).unwrap_or(0) != 0,
        IpAddr::V6(ip) => u128::from(ip).checked_shl(length.into()).unwrap_or(0) != 0,
    };
    if beyond {
        return vec!["must not have bits set beyond the prefix length".to_owned()];
    }
    format::Problems::new()
}

/// The path in the message is kube-apiserver's, although taints are not metadata.
fn taints(object: &Value, errors: &mut Errors) {
    let field = METADATA.child("taints");
    let given = object.pointer("/spec/taints");
    let given: Vec<Taint> = given.and_then(|given| schema::typed(given).ok()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, taint) in given.iter().enumerate() {
        let field = field.index(index);
        errors.malformed(&field.child("key"), &taint.key, &format::qualified_name(&taint.key));
        let value = taint.value.as_deref().unwrap_or_default();
        let problems = format::label_value(value);
        if !problems.is_empty() {
            errors.invalid(&field.child("value"), value, &problems.join(";"));
        }
        toleration::effect(&taint.effect, &field.child("effect"), errors);
        if !seen.insert((&taint.key, &taint.effect)) {
            let shown = Internal(Type::Struct("Taint"), taint);
            let detail = "taints must be unique by key and effect pair";
            errors.duplicate_because(&field, shown, detail);
        }
    }
}

fn amounts(object: &Value, errors: &mut Errors) {
    let status = Path::new("status");
    for list in ["capacity", "allocatable"] {
        let field = status.child(list);
        let given = object.pointer(&format!("/status/{list}")).and_then(Value::as_object);
        for (name, amount) in given.into_iter().flat_map(Map::iter) {
            let amount: Option<Quantity> = amount.as_str().and_then(|text| text.parse().ok());
            if let Some(amount) = amount {
                check_amount(name, amount, &field.child(name), errors);
            }
        }
    }
}

pub(super) fn change(new: &Value, old: &Value, errors: &mut Errors) {
    amounts(new, errors);
    let status = Path::new("status");
    let field = status.child("addresses");
    let given = new.pointer("/status/addresses").and_then(Value::as_array);
    let given = given.map_or(&[][..], Vec::as_slice);
    for (index, address) in given.iter().enumerate() {
        if given.iter().take(index).any(|other| other == address) {
            errors.duplicate(&field.index(index), Internal(Type::Struct("NodeAddress"), address));
        }
    }
    let spec = Path::new("spec");
    let (before, now) = (pod_cidrs(old), pod_cidrs(new));
    let detail = "node updates may not change podCIDR except from \"\" to valid";
    if !before.is_empty() && before.len() != now.len() {
        errors.forbidden(&spec.child("podCIDRs"), detail);
    } else {
        for _ in before.iter().zip(&now).filter(|(before, now)| before != now) {
            errors.forbidden(&spec.child("podCIDRs"), detail);
        }
    }
    let provider = text(old, "/spec/providerID");
    if !provider.is_empty() && provider != text(new, "/spec/providerID") {
        let detail = "node updates may not change providerID except from \"\" to valid";
        errors.forbidden(&spec.child("providerID"), detail);
    }
    taints(new, errors);
    if text(new, "/spec/externalID") != text(old, "/spec/externalID") {
        errors.forbidden(&spec.child("externalID"), "may not be updated");
    }
}
