//! Resources of a container and its pod, as reported in the status.
//!
//! The allocated resources are reported, overridden by those that are actually enforced, so that a
//! resize shows when it is actuated, not when it is requested. An equal value keeps the spelling
//! of the spec: `100M` does not become `100000000`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use podwright_api::qos::{CPU, MEMORY, Overhead, PodResources, ResourceList};
use podwright_api::quantity::Quantity;

use crate::observed::{Instance, Resources};
use crate::pod::Container;
use crate::resize::Amounts;
use crate::resize::allocation::as_actuated;
use crate::status::StatusSources;

type ApiList = BTreeMap<String, ApiQuantity>;

/// Minimum CPU shares of the kernel; smaller requests become this.
const MIN_SHARES: i64 = 2;
/// Minimum CPU quota of the kernel in millicores; smaller limits become this.
const MIN_LIMIT: i64 = 10;

pub(super) struct PodTotals {
    pub allocated: Option<ApiList>,
    pub enforced: ResourceRequirements,
}

/// Totals of the pod.
pub(super) fn of_pod(sources: &StatusSources<'_>) -> PodTotals {
    let spec = sources.pod().object.spec.as_ref();
    let resizing = &sources.inputs.local_state.resizing;
    let totals = |spec: &PodSpec| PodResources::parse(spec).unwrap_or_default();
    let granted = spec.map(totals).unwrap_or_default();
    let under_way = spec.filter(|_| resizing.progress.is_some() && !sources.is_terminal());
    let applied = under_way.map(|spec| totals(&as_actuated(spec, &resizing.applied)));
    let enforced = applied.as_ref().unwrap_or(&granted);
    PodTotals {
        allocated: to_api(&granted.requests(Overhead::Included)),
        enforced: ResourceRequirements {
            requests: to_api(&enforced.requests(Overhead::Included)),
            limits: to_api(&enforced.limits(Overhead::Included)),
            claims: None,
        },
    }
}

/// `same` is the last report about this instance.
pub(super) fn of_container(
    container: &Container,
    newest: &Instance,
    same: Option<&ContainerStatus>,
    applied: Option<&Amounts>,
) -> ResourceRequirements {
    let mut resources = container.spec.resources.clone().unwrap_or_default();
    if newest.is_running() {
        // Older runtimes do not report what they enforce; then the applied amounts are used.
        let reported = newest.resources.as_ref().map(Enforced::read);
        let enforced = reported.or_else(|| applied.map(Enforced::applied)).unwrap_or_default();
        let last = same.filter(|same| super::container::is_running(same));
        overlay(&mut resources, &enforced, last.and_then(|last| last.resources.as_ref()));
    }
    resources
}

/// The requests of the container as allocated.
pub(super) fn requests(container: &Container) -> Option<ApiList> {
    container.spec.resources.as_ref()?.requests.clone().filter(|requests| !requests.is_empty())
}

/// Values that the kernel enforces; `None` if unset or unlimited.
#[derive(Default)]
struct Enforced {
    cpu_request: Option<Quantity>,
    cpu_limit: Option<Quantity>,
    memory_limit: Option<Quantity>,
}

impl Enforced {
    fn applied(amounts: &Amounts) -> Self {
        let milli = |milli: i64| (milli > 0).then(|| Quantity::from_milli(milli));
        let bytes = u64::try_from(amounts.memory_limit).ok().filter(|bytes| *bytes > 0);
        Self {
            cpu_request: milli(amounts.cpu_request),
            cpu_limit: milli(amounts.cpu_limit),
            memory_limit: bytes.map(Quantity::from_bytes),
        }
    }

    fn read(resources: &Resources) -> Self {
        let positive = |value: Option<i64>| value.filter(|value| *value > 0);
        let milli = |value: i64, of: i64, up: i64| {
            let milli = (i128::from(value) * 1000 + i128::from(up)) / i128::from(of);
            i64::try_from(milli).ok().filter(|milli| *milli > 0).map(Quantity::from_milli)
        };
        let quota = positive(resources.cpu_quota).zip(positive(resources.cpu_period));
        let bytes = positive(resources.memory_limit).and_then(|bytes| u64::try_from(bytes).ok());
        Self {
            // Converting millicores to shares rounds down, so the way back rounds up.
            cpu_request: positive(resources.cpu_shares).and_then(|s| milli(s, 1024, 1023)),
            cpu_limit: quota.and_then(|(quota, period)| milli(quota, period, 0)),
            memory_limit: bytes.map(Quantity::from_bytes),
        }
    }
}

fn overlay(
    allocated: &mut ResourceRequirements,
    enforced: &Enforced,
    last: Option<&ResourceRequirements>,
) {
    let last_of =
        |list: Option<&ApiList>, name: &str| list.and_then(|list| list.get(name).cloned());
    if let Some(limits) = &mut allocated.limits {
        let last = last.and_then(|last| last.limits.as_ref());
        set(limits, CPU, enforced.cpu_limit, MIN_LIMIT, || last_of(last, CPU));
        set(limits, MEMORY, enforced.memory_limit, 0, || last_of(last, MEMORY));
    }
    if let Some(requests) = &mut allocated.requests {
        let last = last.and_then(|last| last.requests.as_ref());
        // A memory request has no cgroup setting, so the allocated value is reported.
        set(requests, CPU, enforced.cpu_request, MIN_SHARES, || last_of(last, CPU));
    }
}

/// Overrides the allocated amount with the enforced one, or with the last report if that is
/// unknown. Amounts at or below `least` (in thousandths) are equal to the kernel.
fn set(
    list: &mut ApiList,
    name: &str,
    enforced: Option<Quantity>,
    least: i64,
    last: impl Fn() -> Option<ApiQuantity>,
) {
    let Some(enforced) = enforced else {
        if let Some(last) = last() {
            list.insert(name.to_owned(), last);
        }
        return;
    };
    let allocated = list.get(name).and_then(|text| Quantity::try_from(text).ok());
    let means_the_same = |allocated: Quantity| {
        let both_tiny = enforced.milli_value() <= least && allocated.milli_value() <= least;
        enforced == allocated || both_tiny
    };
    if !means_the_same(allocated.unwrap_or_default()) {
        list.insert(name.to_owned(), enforced.into());
    }
}

fn to_api(list: &ResourceList) -> Option<ApiList> {
    let api = || list.iter().map(|(name, amount)| (name.clone(), (*amount).into())).collect();
    (!list.is_empty()).then(api)
}
