//! Node shutdown.

use super::super::duration::GoDuration;
use super::Examination;

pub(super) fn examine(exam: &mut Examination<'_>) {
    let c = exam.configuration;
    let (whole, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    for (field, period) in
        [("shutdownGracePeriod", whole), ("shutdownGracePeriodCriticalPods", critical)]
    {
        exam.require(
            period.is_zero() || period >= GoDuration::from_secs(1),
            field,
            "must be 0s, or 1s or longer",
        );
        exam.require(
            period.is_zero() || exam.gates.enabled("GracefulNodeShutdown"),
            field,
            "needs the feature gate GracefulNodeShutdown",
        );
    }
    exam.require(
        critical <= whole,
        "shutdownGracePeriodCriticalPods",
        format!("must not be longer than shutdownGracePeriod, which is {whole}"),
    );
    if c.shutdown_grace_period_by_pod_priority.is_empty() {
        return;
    }
    const BY_PRIORITY: &str = "shutdownGracePeriodByPodPriority";
    exam.require(
        exam.gates.enabled("GracefulNodeShutdownBasedOnPodPriority"),
        BY_PRIORITY,
        "needs the feature gate GracefulNodeShutdownBasedOnPodPriority",
    );
    exam.require(
        whole.is_zero() && critical.is_zero(),
        BY_PRIORITY,
        "must not be combined with shutdownGracePeriod",
    );
}
