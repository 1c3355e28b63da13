//! NoExecute taints and tolerations.

use k8s_openapi::api::core::v1;

use super::spec;
use crate::pod::Pod;

const NO_EXECUTE: &str = "NoExecute";

/// First NoExecute taint that the pod does not tolerate.
pub(super) fn untolerated<'a>(pod: &Pod, taints: &'a [v1::Taint]) -> Option<&'a v1::Taint> {
    let tolerations = spec(pod).and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let harmful = taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
    harmful.into_iter().find(|taint| !tolerations.iter().any(|t| tolerates(t, taint)))
}

pub(super) fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let taint = v1::Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..v1::Taint::default()
    };
    let tolerations = spec(pod).and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    tolerations.iter().any(|toleration| tolerates(toleration, &taint))
}

pub(super) fn tolerates(toleration: &v1::Toleration, taint: &v1::Taint) -> bool {
    fn text(value: Option<&String>) -> &str {
        value.map(String::as_str).unwrap_or_default()
    }
    let effect = text(toleration.effect.as_ref());
    let key = text(toleration.key.as_ref());
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let (wanted, value) = (text(toleration.value.as_ref()), text(taint.value.as_ref()));
    match text(toleration.operator.as_ref()) {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && wanted == value,
        "Lt" => numbers(value, wanted).is_some_and(|(value, wanted)| value < wanted),
        "Gt" => numbers(value, wanted).is_some_and(|(value, wanted)| value > wanted),
        _ => false,
    }
}

fn numbers(value: &str, wanted: &str) -> Option<(i64, i64)> {
    Some((value.parse().ok()?, wanted.parse().ok()?))
}
