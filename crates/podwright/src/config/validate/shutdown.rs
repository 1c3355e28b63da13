//! Validation of node shutdown settings.

use super::super::duration::GoDuration;
use super::Validator;

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
}
