//! Validation of resource names: `cpu`, `hugepages-2Mi`, `example.com/gpu`.

use crate::quantity::Quantity;
use crate::schema::Path;
use crate::validation::field::Errors;
use crate::validation::format;

const HUGE_PAGES: &str = "hugepages-";

/// Native resources; a container may request the first three.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
const OF_CONTAINERS: usize = 3;
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

pub(crate) fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Defined by Kubernetes, not by a device vendor.
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name)
        && !name.starts_with("requests.")
        && format::qualified_name(&format!("requests.{name}")).is_empty()
}

/// The limit of a container may exceed its request.
pub(crate) fn is_overcommittable(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// May be set at pod level.
pub(crate) fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory" || is_huge_page(name)
}

fn is_whole(name: &str) -> bool {
    COUNTED.contains(&name) || is_extended(name)
}

fn check(name: &str, field: &Path<'_>, errors: &mut Errors) -> bool {
    let problems = format::qualified_name(name);
    errors.malformed(field, name, &problems);
    if !problems.is_empty() {
        return false;
    }
    let quota_pages = name.starts_with("requests.hugepages-");
    if !name.contains('/') && !STANDARD.contains(&name) && !is_huge_page(name) && !quota_pages {
        errors.invalid(field, name, "must be a standard resource type or fully qualified");
        return false;
    }
    true
}

pub(super) fn check_for_container(name: &str, field: &Path<'_>, errors: &mut Errors) {
    check(name, field, errors);
    if !name.contains('/') {
        if !STANDARD.iter().take(OF_CONTAINERS).any(|known| *known == name) && !is_huge_page(name) {
            errors.invalid(field, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(field, name, "doesn't follow extended resource name standard");
    }
}

pub(super) fn check_for_pod(name: &str, field: &Path<'_>, errors: &mut Errors) {
    if check(name, field, errors) && !is_pod_level(name) {
        errors.not_supported(field, name, &["cpu", HUGE_PAGES, "memory"]);
    }
}

/// An amount must not be negative, and must be an integer for countable resources.
pub fn check_amount(name: &str, amount: Quantity, field: &Path<'_>, errors: &mut Errors) {
    if amount.is_negative() {
        let detail = "must be greater than or equal to 0";
        errors.invalid(field, &amount.to_string(), detail);
    }
    if is_whole(name) && amount.milli_value() % 1000 != 0 {
        errors.invalid(field, &amount.to_string(), "must be an integer");
    }
}

/// Whether the amount is a whole number of such huge pages.
pub(super) fn is_divisible(name: &str, amount: Quantity) -> bool {
    let size: Option<Quantity> = name.strip_prefix(HUGE_PAGES).and_then(|size| size.parse().ok());
    size.is_some_and(|size| {
        size > Quantity::ZERO
            && size.milli_value() % 1000 == 0
            && amount.value() % size.value() == 0
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn problems(check: fn(&str, &Path<'_>, &mut Errors), name: &str) -> Vec<String> {
        let mut errors = Errors::new();
        check(name, &Path::new("r"), &mut errors);
        errors.into_vec().into_iter().map(|error| error.message).collect()
    }

    #[test]
    fn containers_may_request_some_native_and_any_extended_resources() {
        for name in ["cpu", "memory", "ephemeral-storage", "hugepages-1Gi", "example.com/gpu"] {
            assert_eq!(problems(check_for_container, name), [""; 0], "{name}");
        }
        assert_eq!(
            problems(check_for_container, "pods"),
            ["Invalid value: \"pods\": must be a standard resource for containers"]
        );
        assert_eq!(
            problems(check_for_container, "gpu"),
            [
                "Invalid value: \"gpu\": must be a standard resource type or fully qualified",
                "Invalid value: \"gpu\": must be a standard resource for containers"
            ]
        );
        assert_eq!(
            problems(check_for_container, "requests.example.com/gpu"),
            [
                "Invalid value: \"requests.example.com/gpu\": doesn't follow extended resource name standard"
            ]
        );
    }

    #[test]
    fn pod_level_resources_are_limited() {
        assert_eq!(problems(check_for_pod, "memory"), [""; 0]);
        assert_eq!(
            problems(check_for_pod, "ephemeral-storage"),
            [
                "Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\""
            ]
        );
    }

    #[test]
    fn huge_page_amounts_are_whole_pages() {
        for (amount, want) in [("2Mi", true), ("4Mi", true), ("3Mi", false), ("0", true)] {
            assert_eq!(is_divisible("hugepages-2Mi", amount.parse().unwrap()), want, "{amount}");
        }
        assert!(!is_divisible("hugepages-0", "1".parse().unwrap()));
        assert!(!is_divisible("hugepages-x", "1".parse().unwrap()));
    }
}
