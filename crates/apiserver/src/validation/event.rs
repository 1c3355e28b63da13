//! Validation of events: rules of the older API, which apply to both groups, and the additional
//! rules of the newer.

use podwright_api::schema::Path;
use podwright_api::validation::field::Errors;
use podwright_api::validation::format;
use serde_json::Value;

use super::text;

const LIMIT: usize = 128;
const MESSAGE_LIMIT: usize = 1024;

pub(super) fn check(object: &Value, errors: &mut Errors) {
    let namespace = text(object, "/metadata/namespace");
    let about = text(object, "/involvedObject/namespace");
    let involved = Path::new("involvedObject");
    let at_about = involved.child("namespace");
    let mismatch = "does not match event.namespace";
    if text(object, "/eventTime").is_empty() {
        let agree = match about {
            "" => namespace.is_empty() || namespace == "default",
            about => about == namespace,
        };
        if !agree {
            errors.invalid(&at_about, about, mismatch);
        }
    } else {
        if about.is_empty() && namespace != "default" && namespace != "kube-system" {
            errors.invalid(&at_about, about, mismatch);
        }
        of_the_newer_form(object, errors);
    }
    errors.malformed(&Path::new("namespace"), namespace, &format::dns_subdomain(namespace));
}

/// Additional rules of the newer API for a new event.
pub(super) fn check_new(object: &Value, errors: &mut Errors) {
    if let Some(series) = object.get("series").filter(|series| series.is_object()) {
        if series.get("count").and_then(Value::as_i64).unwrap_or(0) < 2 {
            errors.invalid(&Path::new("series.count"), "", "should be at least 2");
        }
        if text(series, "/lastObservedTime").is_empty() {
            errors.required(&Path::new("series.lastObservedTime"), "");
        }
    }
    if text(object, "/eventTime").is_empty() {
        errors.required(&Path::new("eventTime"), "");
    }
    let kind = text(object, "/type");
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(&Path::new("type"), "", &format!("has invalid value: {kind}"));
    }
    let given = |path: &str| !text(object, path).is_empty();
    let counted = object.get("count").and_then(Value::as_i64).unwrap_or(0) != 0;
    for (name, is_set) in [
        ("firstTimestamp", given("/firstTimestamp")),
        ("lastTimestamp", given("/lastTimestamp")),
        ("count", counted),
        ("source", given("/source/component") || given("/source/host")),
    ] {
        if is_set {
            errors.invalid(&Path::new(name), "", "needs to be unset");
        }
    }
}

/// An event with `eventTime` must have a reporter and an action.
fn of_the_newer_form(object: &Value, errors: &mut Errors) {
    let reporter = text(object, "/reportingComponent");
    let at_reporter = Path::new("reportingComponent");
    if reporter.is_empty() {
        errors.required(&at_reporter, "");
    }
    errors.malformed(&at_reporter, reporter, &format::qualified_name(reporter));
    for name in ["reportingInstance", "action", "reason"] {
        let value = text(object, &format!("/{name}"));
        if value.is_empty() {
            errors.required(&Path::new(name), "");
        }
        at_most(value, LIMIT, name, errors);
    }
    at_most(text(object, "/message"), MESSAGE_LIMIT, "message", errors);
}

fn at_most(value: &str, limit: usize, name: &str, errors: &mut Errors) {
    if value.len() > limit {
        let detail = format!("can have at most {limit} characters");
        errors.invalid(&Path::new(name), "", &detail);
    }
}
