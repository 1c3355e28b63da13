//! Validation of requests, limits and resource claims.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, PodResourceClaim, PodSpec, ResourceClaim, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::field::{Errors, Internal};
use super::resource_name::{
    check_amount, check_for_container, check_for_pod, is_divisible, is_huge_page,
    is_overcommittable,
};
use super::{format, is_mirror, text};
use crate::qos::{Overhead, PodResources, ResourceList};
use crate::quantity::Quantity;
use crate::schema::{DecodeError, Path, Type};

type List = BTreeMap<String, resource::Quantity>;
type NameCheck = fn(&str, &Path<'_>, &mut Errors);

pub(super) fn of_container(
    container: &Container,
    claims: &BTreeSet<&str>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    if let Some(resources) = &container.resources {
        requirements(resources, check_for_container, claims, field, errors);
    }
}

/// Overhead that a runtime class adds to each of its pods.
pub fn overhead(amounts: Option<&List>, field: &Path<'_>, errors: &mut Errors) {
    let resources = ResourceRequirements { limits: amounts.cloned(), ..Default::default() };
    requirements(&resources, check_for_container, &BTreeSet::new(), field, errors);
}

fn requirements(
    resources: &ResourceRequirements,
    check_name: NameCheck,
    claims: &BTreeSet<&str>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let (at_limits, at_requests) = (field.child("limits"), field.child("requests"));
    let limits = readable(resources.limits.as_ref(), &at_limits, errors);
    let requests = readable(resources.requests.as_ref(), &at_requests, errors);
    amounts(&limits, check_name, &at_limits, errors, |_, _, _| {});
    amounts(&requests, check_name, &at_requests, errors, |name, amount, errors| {
        let limit = limits.get(name);
        let overcommittable = is_overcommittable(name);
        match limit {
            Some(limit) if amount != limit && !overcommittable => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.invalid(&at_requests, &amount.to_string(), &detail);
            }
            Some(limit) if amount > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(&at_requests, &amount.to_string(), &detail);
            }
            None if !overcommittable => {
                errors.required(&at_limits, "Limit must be set for non overcommitable resources");
            }
            Some(_) | None => {}
        }
    });
    let names = || limits.keys().chain(requests.keys());
    if names().any(|name| is_huge_page(name))
        && !names().any(|name| name == "cpu" || name == "memory")
    {
        errors.forbidden(field, "HugePages require cpu or memory");
    }
    let claimed = resources.claims.as_deref().unwrap_or_default();
    claim_names(claimed, claims, &field.child("claims"), errors);
}

/// The amounts that can be parsed. The API server refuses the others when it decodes the object; a
/// static manifest passes no API server.
fn readable(list: Option<&List>, field: &Path<'_>, errors: &mut Errors) -> ResourceList {
    let mut amounts = ResourceList::new();
    for (name, amount) in list.into_iter().flatten() {
        match Quantity::try_from(amount) {
            Ok(amount) => {
                amounts.insert(name.clone(), amount);
            }
            Err(_) => {
                errors.invalid(&field.key(name), &amount.0, &DecodeError::Quantity.to_string());
            }
        }
    }
    amounts
}

fn amounts(
    amounts: &ResourceList,
    check_name: NameCheck,
    field: &Path<'_>,
    errors: &mut Errors,
    compare: impl Fn(&str, &Quantity, &mut Errors),
) {
    for (name, amount) in amounts {
        let field = field.key(name);
        check_name(name, &field, errors);
        check_amount(name, *amount, &field, errors);
        compare(name, amount, errors);
        if is_huge_page(name) && !is_divisible(name, *amount) {
            let detail = format!("{amount} is not positive integer multiple of {name}");
            errors.invalid(&field, &amount.to_string(), &detail);
        }
    }
}

/// A container may use only claims that its pod declares, each request once.
fn claim_names(
    claims: &[ResourceClaim],
    known: &BTreeSet<&str>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        let field = field.index(index);
        let (name, request) = (claim.name.as_str(), text(&claim.request));
        if name.is_empty() {
            errors.required(&field, "");
            continue;
        }
        if seen.contains(name) {
            errors.duplicate(&field, name);
        } else {
            let mut key = name.to_owned();
            if !request.is_empty() {
                errors.malformed(&field.child("request"), request, &format::dns_label(request));
                key = format!("{name}/{request}");
            }
            let part_of = format!("{name}/");
            if seen.contains(&key) {
                errors.duplicate(&field, &key);
            } else if request.is_empty() {
                for _ in seen.iter().filter(|other| other.starts_with(&part_of)) {
                    errors.duplicate(&field, name);
                }
            }
            seen.insert(key);
        }
        if !known.contains(name) {
            let names: Vec<&str> = known.iter().copied().collect();
            let detail = if names.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}", names.join(", "))
            };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{detail}");
            errors.not_found(&field, name, &detail);
        }
    }
}

/// Resource claims that a pod declares.
pub(super) fn pod_claims(
    meta: &ObjectMeta,
    claims: &[PodResourceClaim],
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let mut names = BTreeSet::new();
    for (index, claim) in claims.iter().enumerate() {
        if is_mirror(meta) {
            errors.forbidden(&Path::new("[]"), "static pods do not support resource claims");
            continue;
        }
        let field = field.index(index);
        let name = claim.name.as_str();
        if name.is_empty() {
            errors.required(&field.child("name"), "");
        } else if names.insert(name) {
            errors.malformed(&field.child("name"), name, &format::dns_label(name));
        } else {
            errors.duplicate(&field.child("name"), name);
        }
        let shown = || Internal(Type::Struct("PodResourceClaim"), claim);
        match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(_), Some(_)) => {
                let detail = "at most one of `resourceClaimName` or `resourceClaimTemplateName` \
                              may be specified";
                errors.invalid(&field, shown(), detail);
            }
            (None, None) => {
                let detail =
                    "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.invalid(&field, shown(), detail);
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
        for (child, name) in [
            ("resourceClaimName", &claim.resource_claim_name),
            ("resourceClaimTemplateName", &claim.resource_claim_template_name),
        ] {
            if let Some(name) = name {
                errors.malformed(&field.child(child), name, &format::dns_subdomain(name));
            }
        }
    }
}

/// Pod-level resources, and whether the containers fit into them.
pub(super) fn of_pod(
    spec: &PodSpec,
    claims: &BTreeSet<&str>,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let Some(resources) = &spec.resources else { return };
    let field = field.child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return errors.forbidden(&field, "may not be set for a windows pod");
    }
    if resources.claims.is_some() {
        let detail = "claims may not be set for Resources at pod-level";
        errors.forbidden(&field.child("claims"), detail);
    }
    requirements(resources, check_for_pod, claims, &field, errors);

    // An invalid amount was already reported and cannot be compared.
    let Ok(mut whole) = PodResources::parse(spec) else { return };
    let Some(own) = whole.pod.take() else { return };
    let (requests, limits) = (own.requests, own.limits);
    let at_requests = field.child("requests");
    for (name, together) in whole.container_requests() {
        if let Some(of_pod) = requests.get(&name).filter(|of_pod| together > **of_pod) {
            let detail = format!(
                "must be greater than or equal to aggregate container requests of {together}"
            );
            errors.invalid(&at_requests.key(&name), &of_pod.to_string(), &detail);
        }
    }
    let at_limits = field.child("limits");
    let together = whole.limits(Overhead::Excluded);
    for (name, together) in together.into_iter().filter(|(name, _)| is_huge_page(name)) {
        if let Some(of_pod) = limits.get(&name).filter(|of_pod| together > **of_pod) {
            let detail = format!(
                "must be greater than or equal to aggregate container limits of {together}"
            );
            errors.invalid(&at_limits.key(&name), &of_pod.to_string(), &detail);
        }
    }
    let at_containers = field.child("containers");
    for (index, container) in whole.containers.iter().enumerate() {
        let at_container = at_containers.index(index);
        for (name, limit) in &container.resources.limits {
            if let Some(of_pod) = limits.get(name).filter(|of_pod| limit > *of_pod) {
                let field = at_container.key(name);
                let detail = format!("must be less than or equal to pod limits of {of_pod}");
                errors.invalid(&field.child("limits"), &limit.to_string(), &detail);
            }
        }
    }
}
