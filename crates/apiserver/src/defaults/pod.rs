//! Pod defaults of the API server only; those that static pods share are in core.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodAffinityTerm, PodCondition, PodSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use podwright_api::defaults;
use podwright_api::schema;
use podwright_api::validation::annotations::APP_ARMOR;
use serde_json::Value;
use std::collections::BTreeMap;

type Labels = BTreeMap<String, String>;

pub(super) fn apply(object: &mut Value) {
    edit(object, |pod| {
        if let Some(spec) = &mut pod.spec {
            drop_disabled_fields(spec);
        }
        defaults::apply(pod);
    });
}

pub(super) fn on_create(object: &mut Value) {
    edit(object, |pod| {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let annotations = pod.metadata.annotations.clone().unwrap_or_default();
        let Some(spec) = &mut pod.spec else { return };
        select_by_own_labels(spec, &labels);
        app_armor_from_annotations(spec, &annotations);
        if spec.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
            let conditions = pod.status.get_or_insert_default().conditions.get_or_insert_default();
            if !conditions.iter().any(|condition| condition.type_ == "PodScheduled") {
                conditions.push(PodCondition {
                    type_: "PodScheduled".to_owned(),
                    status: "False".to_owned(),
                    reason: Some("SchedulingGated".to_owned()),
                    message: Some(
                        "Scheduling is blocked due to non-empty scheduling gates".to_owned(),
                    ),
                    ..PodCondition::default()
                });
            }
        }
    });
}

/// Edits the pod in its typed form. An object that cannot be parsed is left alone; it is refused
/// later.
fn edit(object: &mut Value, change: impl FnOnce(&mut Pod)) {
    let Ok(mut pod) = schema::typed::<Pod>(object) else { return };
    change(&mut pod);
    if let Ok(value) = serde_json::to_value(pod) {
        *object = value;
    }
}

/// Drops fields of features that are disabled in this version.
fn drop_disabled_fields(spec: &mut PodSpec) {
    spec.scheduling_group = None;
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    let lifecycles = containers.filter_map(|container| container.lifecycle.as_mut());
    let ephemeral = spec.ephemeral_containers.iter_mut().flatten();
    let lifecycles = lifecycles.chain(ephemeral.filter_map(|each| each.lifecycle.as_mut()));
    for lifecycle in lifecycles {
        lifecycle.stop_signal = None;
    }
    let volumes = spec.volumes.iter_mut().flatten();
    let projected = volumes.filter_map(|volume| volume.projected.as_mut());
    for source in projected.flat_map(|projected| projected.sources.iter_mut().flatten()) {
        source.cluster_trust_bundle = None;
        source.pod_certificate = None;
    }
}

/// Resolves `matchLabelKeys`: a term "same value of this label as mine" gets the value.
fn select_by_own_labels(spec: &mut PodSpec, labels: &Labels) {
    if let Some(affinity) = &mut spec.affinity {
        let near = affinity.pod_affinity.iter_mut().flat_map(|affinity| {
            let preferred =
                affinity.preferred_during_scheduling_ignored_during_execution.iter_mut();
            let required = affinity.required_during_scheduling_ignored_during_execution.iter_mut();
            let preferred = preferred.flatten().map(|term| &mut term.pod_affinity_term);
            preferred.chain(required.flatten())
        });
        let far = affinity.pod_anti_affinity.iter_mut().flat_map(|affinity| {
            let preferred =
                affinity.preferred_during_scheduling_ignored_during_execution.iter_mut();
            let required = affinity.required_during_scheduling_ignored_during_execution.iter_mut();
            let preferred = preferred.flatten().map(|term| &mut term.pod_affinity_term);
            preferred.chain(required.flatten())
        });
        near.chain(far).for_each(|term| select_in_term(term, labels));
    }
    for constraint in spec.topology_spread_constraints.iter_mut().flatten() {
        if let Some(selector) = &mut constraint.label_selector {
            require(selector, constraint.match_label_keys.as_deref(), "In", labels);
        }
    }
}

fn select_in_term(term: &mut PodAffinityTerm, labels: &Labels) {
    if let Some(selector) = &mut term.label_selector {
        require(selector, term.match_label_keys.as_deref(), "In", labels);
        require(selector, term.mismatch_label_keys.as_deref(), "NotIn", labels);
    }
}

fn require(selector: &mut LabelSelector, keys: Option<&[String]>, operator: &str, labels: &Labels) {
    for key in keys.into_iter().flatten() {
        if let Some(value) = labels.get(key) {
            selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                key: key.clone(),
                operator: operator.to_owned(),
                values: Some(vec![value.clone()]),
            });
        }
    }
}

/// Converts the AppArmor annotation of old clients to the field that agents read.
fn app_armor_from_annotations(spec: &mut PodSpec, annotations: &Labels) {
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return;
    }
    let of_pod = spec.security_context.as_ref().and_then(|it| it.app_armor_profile.clone());
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    for container in containers {
        let has_own = |it: &Container| {
            it.security_context.as_ref().is_some_and(|c| c.app_armor_profile.is_some())
        };
        let key = format!("{APP_ARMOR}{}", container.name);
        let Some(profile) = annotations.get(&key).and_then(|text| app_armor(text)) else {
            continue;
        };
        if !has_own(container) && of_pod.as_ref() != Some(&profile) {
            container.security_context.get_or_insert_default().app_armor_profile = Some(profile);
        }
    }
}

fn app_armor(text: &str) -> Option<AppArmorProfile> {
    let (kind, file) = match text {
        "unconfined" => ("Unconfined", None),
        "runtime/default" => ("RuntimeDefault", None),
        _ => {
            let file = text.strip_prefix("localhost/")?;
            let sound = !file.is_empty() && file.trim() == file;
            ("Localhost", Some(sound.then(|| file.to_owned())?))
        }
    };
    Some(AppArmorProfile { type_: kind.to_owned(), localhost_profile: file })
}
