//! Validation of node shutdown settings.

use std::collections::BTreeSet;

use super::super::duration::GoDuration;
use super::super::field::FieldPath;
use super::Validator;

/// Longer periods than a year are a mistake.
const MAX_SECONDS: i64 = 366 * 24 * 3600;

pub(super) fn examine(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    let (whole, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    for (field, period) in
        [("shutdownGracePeriod", whole), ("shutdownGracePeriodCriticalPods", critical)]
    {
        validator.require(
            period.is_zero() || period >= GoDuration::from_secs(1),
            field,
            "must be 0s, or 1s or longer",
        );
        validator.require(
            period.is_zero() || validator.gates.enabled("GracefulNodeShutdown"),
            field,
            "needs the feature gate GracefulNodeShutdown",
        );
    }
    validator.require(
        critical <= whole,
        "shutdownGracePeriodCriticalPods",
        format!("must not be longer than shutdownGracePeriod, which is {whole}"),
    );
    if c.shutdown_grace_period_by_pod_priority.is_empty() {
        return;
    }
    const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
    validator.require(
        validator.gates.enabled("GracefulNodeShutdownBasedOnPodPriority"),
        BY_PRIORITY,
        "needs the feature gate GracefulNodeShutdownBasedOnPodPriority",
    );
    validator.require(
        whole.is_zero() && critical.is_zero(),
        BY_PRIORITY,
        "must not be combined with shutdownGracePeriod",
    );
    let list = FieldPath::of(BY_PRIORITY);
    let mut seen = BTreeSet::new();
    for (at, group) in c.shutdown_grace_period_by_pod_priority.iter().enumerate() {
        let group_field = list.index(at);
        if !seen.insert(group.priority) {
            validator.refuse(&group_field.key("priority"), "must not be in two groups");
        }
        let seconds = group.shutdown_grace_period_seconds;
        if !(0..=MAX_SECONDS).contains(&seconds) {
            validator.refuse(
                &group_field.key("shutdownGracePeriodSeconds"),
                format!("must be from 0 to {MAX_SECONDS}"),
            );
        }
    }
}
