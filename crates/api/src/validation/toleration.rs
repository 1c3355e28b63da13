//! Validation of tolerations.

use k8s_openapi::api::core::v1::Toleration;

use super::field::Errors;
use super::{format, text};
use crate::schema::Path;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub fn check(tolerations: &[Toleration], field: &Path<'_>, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let field = field.index(index);
        let (key, value) = (text(&toleration.key), text(&toleration.value));
        let (operator, effect) = (text(&toleration.operator), text(&toleration.effect));
        if !key.is_empty() {
            errors.malformed(&field.child("key"), key, &format::qualified_name(key));
        }
        if key.is_empty() && operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all \
                          values and all keys\"";
            errors.invalid(&field.child("operator"), operator, detail);
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.invalid(&field.child("effect"), effect, detail);
        }
        let at_operator = field.child("operator");
        match operator {
            "Equal" | "" => {
                let problems = format::label_value(value);
                if !problems.is_empty() {
                    errors.invalid(&at_operator, value, &problems.join(";"));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let detail = "value must be empty when `operator` is 'Exists'";
                errors.invalid(&at_operator, value, detail);
            }
            "Lt" | "Gt" => {
                errors.not_supported(&at_operator, operator, &["Equal", "Exists", "Lt", "Gt"]);
            }
            other => errors.not_supported(&at_operator, other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            self::effect(effect, &field.child("effect"), errors);
        }
    }
}

/// The effect of a taint.
pub fn effect(effect: &str, field: &Path<'_>, errors: &mut Errors) {
    match effect {
        "" => errors.required(field, ""),
        known if EFFECTS.contains(&known) => {}
        other => errors.not_supported(field, other, &EFFECTS),
    }
}

/// Tolerations may be added; existing ones may change only in `tolerationSeconds`.
pub(super) fn only_added(
    new: &[Toleration],
    old: &[Toleration],
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let same = |a: &Toleration, b: &Toleration| {
        (&a.key, &a.operator, &a.value, &a.effect) == (&b.key, &b.operator, &b.value, &b.effect)
    };
    if !old.iter().all(|old| new.iter().any(|new| same(new, old))) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        return errors.forbidden(field, detail);
    }
    check(new, field, errors);
}
