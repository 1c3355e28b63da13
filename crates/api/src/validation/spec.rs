//! Validation of a pod spec as a whole.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::container::PodContext;
use super::field::{Errors, Unset};
use super::{
    affinity, container, dns, env, format, meta, port, resource, security, text, toleration,
    volume, windows,
};
use crate::schema::Path;

pub(super) fn check(pod: &Pod, spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    if spec.termination_grace_period_seconds.is_none() {
        errors.required(&field.child("terminationGracePeriodSeconds"), "");
    }
    containers(pod, spec, field, errors);
    port::host_network(spec, field, errors);
    policies(spec, field, errors);
    meta::labels(spec.node_selector.as_ref(), &field.child("nodeSelector"), errors);
    security::of_pod(spec, field, errors);
    if let Some(affinity) = &spec.affinity {
        affinity::check(affinity, &field.child("affinity"), errors);
    }
    dns::config(spec, field, errors);
    gates(spec, field, errors);
    let constraints = spec.topology_spread_constraints.as_deref().unwrap_or_default();
    affinity::spread(constraints, &field.child("topologySpreadConstraints"), errors);
    windows::host_process(spec, field, errors);
    security::own_users(spec, field, errors);
    security::hostname(spec, field, errors);
    names(spec, field, errors);
    windows::os(spec, field, errors);
    if let Some(group) = &spec.scheduling_group {
        let field = field.child("schedulingGroup");
        let field = field.child("podGroupName");
        match &group.pod_group_name {
            None => errors.invalid(&field, Unset, "must specify one of: `podGroupName`"),
            Some(name) => errors.malformed(&field, name, &format::dns_subdomain(name)),
        }
    }
    env::files_are_in_empty_dirs(spec, field, errors);
}

fn containers(pod: &Pod, spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let volumes = volume::check(volumes, &pod.metadata, &field.child("volumes"), errors);
    let claims = spec.resource_claims.as_deref().unwrap_or_default();
    resource::pod_claims(&pod.metadata, claims, &field.child("resourceClaims"), errors);
    let claims: BTreeSet<&str> =
        claims.iter().map(|claim| claim.name.as_str()).filter(|name| !name.is_empty()).collect();
    let context = PodContext {
        volumes,
        claims: claims.clone(),
        restart_policy: text(&spec.restart_policy),
        grace: spec.termination_grace_period_seconds,
        os: spec.os.as_ref().map(|os| os.name.as_str()),
        host_users: spec.host_users.unwrap_or(true),
    };
    container::regular(&spec.containers, &context, &field.child("containers"), errors);
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let at_init = field.child("initContainers");
    container::init(init, &spec.containers, &context, &at_init, errors);
    container::ephemeral(spec, &context, &field.child("ephemeralContainers"), errors);
    resource::of_pod(spec, &claims, field, errors);
}

fn policies(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    const RESTART: [&str; 3] = ["Always", "OnFailure", "Never"];
    let at_restart = field.child("restartPolicy");
    match text(&spec.restart_policy) {
        "" => errors.required(&at_restart, ""),
        known if RESTART.contains(&known) => {}
        other => errors.not_supported(&at_restart, other, &RESTART),
    }
    dns::policy(spec, field, errors);
}

fn gates(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let at_readiness = field.child("readinessGates");
    for (index, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        let field = at_readiness.index(index);
        let problems = format::qualified_name(&gate.condition_type);
        errors.malformed(&field.child("conditionType"), &gate.condition_type, &problems);
    }
    let at_scheduling = field.child("schedulingGates");
    let mut seen = BTreeSet::new();
    for (index, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let field = at_scheduling.index(index);
        errors.malformed(&field, &gate.name, &format::qualified_name(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            errors.duplicate(&field, &gate.name);
        }
    }
}

/// References to other objects, and the remaining single fields.
fn names(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let subdomains = |name: &str, value: &str, errors: &mut Errors| {
        if !value.is_empty() {
            errors.malformed(&field.child(name), value, &format::dns_subdomain(value));
        }
    };
    subdomains("serviceAccountName", text(&spec.service_account_name), errors);
    subdomains("nodeName", text(&spec.node_name), errors);
    if let Some(seconds) = spec.active_deadline_seconds {
        let problems = format::in_range(seconds, 1, i64::from(i32::MAX));
        errors.malformed(&field.child("activeDeadlineSeconds"), seconds, &problems);
    }
    for (name, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        let value = text(value);
        if !value.is_empty() {
            errors.malformed(&field.child(name), value, &format::dns_label(value));
        }
    }
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    toleration::check(tolerations, &field.child("tolerations"), errors);
    let aliases = spec.host_aliases.as_deref().unwrap_or_default();
    dns::host_aliases(aliases, &field.child("hostAliases"), errors);
    subdomains("priorityClassName", text(&spec.priority_class_name), errors);
    if let Some(name) = &spec.runtime_class_name {
        errors.malformed(&field.child("runtimeClassName"), name, &format::dns_subdomain(name));
    }
    if let Some(policy) = &spec.preemption_policy {
        preemption_policy(policy, &field.child("preemptionPolicy"), errors);
    }
    if spec.overhead.is_some() {
        resource::overhead(spec.overhead.as_ref(), &field.child("overhead"), errors);
    }
}

/// Whether a pod may preempt others.
pub fn preemption_policy(policy: &str, field: &Path<'_>, errors: &mut Errors) {
    const POLICIES: [&str; 2] = ["PreemptLowerPriority", "Never"];
    match policy {
        "" => errors.required(field, ""),
        known if POLICIES.contains(&known) => {}
        other => errors.not_supported(field, other, &POLICIES),
    }
}

/// A service account token needs a service account.
pub(super) fn tokens_have_an_account(spec: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    if !text(&spec.service_account_name).is_empty() {
        return;
    }
    let at_volumes = field.child("volumes");
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
        let field = at_volumes.index(index);
        let field = field.child("projected");
        let field = field.child("sources");
        for (index, source) in sources.into_iter().flatten().enumerate() {
            if source.service_account_token.is_some() {
                let field = field.index(index);
                let detail = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&field.child("serviceAccountToken"), detail);
            }
        }
    }
}
