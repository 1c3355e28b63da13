//! Events, by the rules of the older API, which both groups of events keep.

use podwright_core::pod::validation::field::Errors;
use podwright_core::pod::validation::format;
use podwright_core::schema::Path;
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

/// An event with a time of its own says who reports it and what was done.
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
