//! Validation of an in-place resize.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::container::is_sidecar;
use super::field::Errors;
use super::update::same;
use crate::qos::{PodResources, QosClass};
use crate::schema::{Path, Type};

type List = BTreeMap<String, Quantity>;

/// A resize may change only requests and limits of CPU and memory.
pub(super) fn check(new: &Pod, old: &Pod, errors: &mut Errors) {
    let (Some(new_spec), Some(old_spec)) = (&new.spec, &old.spec) else { return };
    let spec = Path::new("spec");
    let class = PodResources::parse(new_spec).map(|resources| resources.class());
    if QosClass::of(old).ok() != class.ok() {
        let shown = new.status.as_ref().and_then(|status| status.qos_class.as_deref());
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.invalid(&spec, shown.unwrap_or_default(), detail);
    }
    if !node_can_resize(old) {
        errors.forbidden(&spec, "Pod running on node without support for resize");
    }
    let mut masked = new_spec.clone();
    if has_own(old_spec) || has_own(new_spec) {
        of_pod(new_spec, old_spec, &mut masked, &spec, errors);
    }
    let claims =
        old.status.as_ref().and_then(|s| s.node_allocatable_resource_claim_statuses.as_ref());
    if claims.is_some_and(|claims| !claims.is_empty()) {
        errors.forbidden(&spec, "pods with node allocatable resource claims cannot be resized");
    }
    if !same_order(new_spec, old_spec, &spec, errors) {
        return;
    }
    removals(new_spec, old_spec, &spec, errors);
    containers(&mut masked, old_spec, &spec, errors);
    init_containers(&mut masked, new_spec, old_spec, &spec, errors);
    if errors.is_empty() && !same(&Type::Struct("PodSpec"), &masked, old_spec) {
        errors.forbidden(&spec, "only cpu and memory resources are mutable");
    }
}

/// A node that supports resizing reports the resources of the containers it runs.
fn node_can_resize(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let mut running = statuses
        .into_iter()
        .flatten()
        .filter(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    running.next().is_none_or(|status| status.resources.is_some())
}

fn has_own(spec: &PodSpec) -> bool {
    let is_set = |list: &Option<List>| list.as_ref().is_some_and(|list| !list.is_empty());
    spec.resources.as_ref().is_some_and(|own| is_set(&own.requests) || is_set(&own.limits))
}

fn of_pod(
    new: &PodSpec,
    old: &PodSpec,
    masked: &mut PodSpec,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let at_resources = field.child("resources");
    if old.resources.is_some() && new.resources.is_none() {
        return errors.forbidden(&at_resources, "pod-level resources cannot be removed");
    }
    if let (Some(before), Some(now)) = (&old.resources, &new.resources) {
        if is_removed(now.requests.as_ref(), before.requests.as_ref()) {
            let detail = "pod-level resource requests cannot be removed";
            errors.forbidden(&at_resources.child("requests"), detail);
        }
        if is_removed(now.limits.as_ref(), before.limits.as_ref()) {
            let detail = "pod-level resource limits cannot be removed";
            errors.forbidden(&at_resources.child("limits"), detail);
        }
    }
    if let Some(own) = &mut masked.resources {
        mask(own, old.resources.as_ref());
        let nothing = own.requests.is_none() && own.limits.is_none() && own.claims.is_none();
        if old.resources.is_none() && nothing {
            masked.resources = None;
        }
    }
    let ty = Type::Pointer(Box::new(Type::Struct("ResourceRequirements")));
    if !same(&ty, &masked.resources, &old.resources) {
        errors.forbidden(field, "only cpu and memory resources are mutable at pod-level");
    }
}

/// The following checks compare containers one by one.
fn same_order(new: &PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    let init = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
    let lists = [
        ("containers", new.containers.clone(), old.containers.clone()),
        ("initContainers", init(new), init(old)),
    ];
    for (name, new, old) in lists {
        let field = field.child(name);
        if new.len() != old.len() {
            errors.forbidden(&field, &format!("{name} may not be added or removed on resize"));
            continue;
        }
        for (index, _) in new.iter().zip(&old).enumerate().filter(|(_, (n, o))| n.name != o.name) {
            let detail = format!("{name} may not be renamed or reordered on resize");
            let field = field.index(index);
            errors.forbidden(&field.child("name"), &detail);
        }
    }
    errors.len() == before
}

fn removals(new: &PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    let init = |spec: &PodSpec| spec.init_containers.clone().unwrap_or_default();
    let lists = [
        ("initContainers", init(new), init(old)),
        ("containers", new.containers.clone(), old.containers.clone()),
    ];
    for (name, new, old) in lists {
        let field = field.child(name);
        for (index, (new, old)) in new.iter().zip(&old).enumerate() {
            let field = field.index(index);
            let field = field.child("resources");
            let list = |c: &Container, of: fn(&ResourceRequirements) -> Option<&List>| {
                c.resources.as_ref().and_then(of).cloned()
            };
            let requests = |c: &Container| list(c, |resources| resources.requests.as_ref());
            let limits = |c: &Container| list(c, |resources| resources.limits.as_ref());
            if is_removed(requests(new).as_ref(), requests(old).as_ref()) {
                let detail = "resource requests cannot be removed";
                errors.forbidden(&field.child("requests"), detail);
            }
            if is_removed(limits(new).as_ref(), limits(old).as_ref()) {
                let detail = "resource limits cannot be removed";
                errors.forbidden(&field.child("limits"), detail);
            }
        }
    }
}

fn is_removed(now: Option<&List>, before: Option<&List>) -> bool {
    let kept = |name: &String| now.is_some_and(|now| now.contains_key(name));
    !before.into_iter().flatten().all(|(name, _)| kept(name))
}

fn containers(masked: &mut PodSpec, old: &PodSpec, field: &Path<'_>, errors: &mut Errors) {
    for (container, old) in masked.containers.iter_mut().zip(&old.containers) {
        mask_container(container, old);
        if !same(&Type::Struct("Container"), container, old) {
            errors.forbidden(field, "only cpu and memory resources are mutable");
        }
    }
}

fn init_containers(
    masked: &mut PodSpec,
    new: &PodSpec,
    old: &PodSpec,
    field: &Path<'_>,
    errors: &mut Errors,
) {
    let field = field.child("initContainers");
    let (new, old) = (new.init_containers.iter().flatten(), old.init_containers.iter().flatten());
    let masked = masked.init_containers.iter_mut().flatten();
    for (index, ((container, new), old)) in masked.zip(new).zip(old).enumerate() {
        let field = field.index(index);
        let changed = !same(&Type::Struct("Container"), new, old);
        mask_container(container, old);
        if !same(&Type::Struct("Container"), container, old) {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.forbidden(&field, detail);
        }
        let restarts = |container: &Container| {
            let policies = container.resize_policy.iter().flatten();
            policies.filter(|policy| policy.restart_policy == "RestartContainer").count()
        };
        if changed && !is_sidecar(container) {
            for _ in 0..restarts(container) {
                let detail = "non-sidecar init containers with a resize policy of \
                              RestartContainer cannot be resized";
                errors.forbidden(&field, detail);
            }
        }
    }
}

/// Sets CPU and memory of a container back to the old values. As upstream, claims are lost, so a
/// container with claims cannot be resized.
fn mask_container(container: &mut Container, old: &Container) {
    let own = container.resources.get_or_insert_default();
    mask(own, old.resources.as_ref());
    own.claims = None;
}

fn mask(resources: &mut ResourceRequirements, old: Option<&ResourceRequirements>) {
    set_back(&mut resources.limits, old.and_then(|old| old.limits.as_ref()));
    set_back(&mut resources.requests, old.and_then(|old| old.requests.as_ref()));
}

fn set_back(list: &mut Option<List>, old: Option<&List>) {
    let mut masked = list.take().unwrap_or_default();
    for name in ["cpu", "memory"] {
        match old.and_then(|old| old.get(name)) {
            Some(amount) => {
                masked.insert(name.to_owned(), amount.clone());
            }
            None => {
                masked.remove(name);
            }
        }
    }
    *list = (!masked.is_empty()).then_some(masked);
}
