//! Validation of restart and resize policies of containers.

use k8s_openapi::api::core::v1::Container;

use super::field::Errors;
use crate::schema::Path;

/// Resize policies of a container.
pub(super) fn resize_policy(
    container: &Container,
    pod_restart_policy: &str,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let mut seen = Vec::new();
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        let name = policy.resource_name.as_str();
        if seen.contains(&name) {
            errors.duplicate(&field.index(index), name);
        }
        seen.push(name);
        match name {
            "cpu" | "memory" => {}
            "" => errors.required(field, ""),
            other => errors.not_supported(field, other, &["cpu", "memory"]),
        }
        let restart = policy.restart_policy.as_str();
        match restart {
            "NotRequired" | "RestartContainer" => {}
            "" => errors.required(field, ""),
            other => errors.not_supported(field, other, &["NotRequired", "RestartContainer"]),
        }
        if pod_restart_policy == "Never" && restart != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.invalid(field, restart, detail);
        }
    }
}

/// The restart policy and rules of a container.
pub(super) fn restart_rules(container: &Container, field: &Path<'_>, errors: &mut Errors) {
    const POLICIES: [&str; 3] = ["Always", "Never", "OnFailure"];
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let at_policy = field.child("restartPolicy");
    match container.restart_policy.as_deref() {
        None if rules.is_empty() => return,
        None => {
            errors.required(&at_policy, "must specify restartPolicy when restart rules are used");
        }
        Some(policy) if !POLICIES.contains(&policy) => {
            errors.not_supported(&at_policy, policy, &POLICIES);
        }
        Some(_) => {}
    }
    let at_rules = field.child("restartPolicyRules");
    if rules.len() > 20 {
        errors.too_many(&at_rules, rules.len(), 20);
    }
    for (index, rule) in rules.iter().enumerate() {
        let field = at_rules.index(index);
        let action = rule.action.as_str();
        let actions = ["Restart", "RestartAllContainers"];
        if !actions.contains(&action) {
            errors.not_supported(&field.child("action"), action, &actions);
        }
        let at_codes = field.child("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            errors.required(&at_codes, "must be specified");
            continue;
        };
        let operator = codes.operator.as_str();
        if !["In", "NotIn"].contains(&operator) {
            errors.not_supported(&at_codes.child("operator"), operator, &["In", "NotIn"]);
        }
        let count = codes.values.as_ref().map_or(0, Vec::len);
        if count > 255 {
            errors.too_many(&at_codes.child("values"), count, 255);
        }
    }
}

/// An init container must not have a resize policy that restarts it.
pub(super) fn init_resize_policy(container: &Container, field: &Path<'_>, errors: &mut Errors) {
    let field = field.child("resizePolicy");
    for (index, policy) in container.resize_policy.iter().flatten().enumerate() {
        if policy.restart_policy == "RestartContainer" {
            let detail = "must not be set to 'RestartContainer' for non-sidecar initContainers";
            let name = field.index(index);
            errors.invalid(&name.child("restartPolicy"), &policy.restart_policy, detail);
        }
    }
}
