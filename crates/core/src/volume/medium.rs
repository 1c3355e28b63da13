//! Medium and size of an emptyDir.

use k8s_openapi::api::core::v1;
use podwright_api::qos::{
    HUGEPAGES, MEMORY, Overhead, PodResources, QosClass, Requirements, ResourceError, ResourceList,
    amount,
};
use podwright_api::quantity::{ParseQuantityError, Quantity};

use crate::pod::Pod;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Disk,
    /// Size in bytes; `None` for the kernel's default.
    Memory {
        size: Option<u64>,
    },
    /// Page size in bytes.
    HugePages {
        page: u64,
    },
}

/// Medium in the record of an emptyDir. The file is upstream's marker of a volume that is set up,
/// which upstream and earlier builds leave empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedMedium {
    /// There is no record, or an empty one.
    Unrecorded,
    Disk,
    Memory,
    HugePages,
    /// A value that this version does not support.
    Unknown,
}

impl RecordedMedium {
    const TEXTS: [(Self, &'static str); 4] = [
        (Self::Unrecorded, ""),
        (Self::Disk, "disk"),
        (Self::Memory, "memory"),
        (Self::HugePages, "hugepages"),
    ];

    pub fn parse(record: &[u8]) -> Self {
        let known = Self::TEXTS.iter().find(|(_, text)| text.as_bytes() == record);
        known.map_or(Self::Unknown, |(medium, _)| *medium)
    }

    /// Whether we mount a filesystem of this type on a volume of this medium.
    pub fn mounts(self, fs_type: &str) -> bool {
        match self {
            Self::Unrecorded => matches!(fs_type, "tmpfs" | "hugetlbfs"),
            Self::Memory => fs_type == "tmpfs",
            Self::HugePages => fs_type == "hugetlbfs",
            Self::Disk | Self::Unknown => false,
        }
    }
}

impl Medium {
    /// Content of the record.
    pub fn record(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory { .. } => "memory",
            Self::HugePages { .. } => "hugepages",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediumError {
    #[error("unknown storage medium {medium:?}")]
    Unknown { medium: String },
    #[error("medium {medium} requested, but there is no resource request for huge pages")]
    NoHugePages { medium: String },
    #[error(
        "medium HugePages is ambiguous: the pod requests pages of several sizes; specify one, such as HugePages-2Mi"
    )]
    SeveralSizes,
    #[error("invalid huge page size in {text:?}")]
    PageSize { text: String, source: ParseQuantityError },
    #[error("invalid sizeLimit")]
    SizeLimit(#[source] ParseQuantityError),
    #[error(transparent)]
    Resources(#[from] ResourceError),
}

pub fn of_empty_dir(
    pod: &Pod,
    source: &v1::EmptyDirVolumeSource,
    allocatable: &ResourceList,
) -> Result<Medium, MediumError> {
    match source.medium.as_deref().unwrap_or_default() {
        "" => Ok(Medium::Disk),
        "Memory" => {
            let limit = source.size_limit.as_ref().map(Quantity::try_from).transpose();
            let limit = limit.map_err(MediumError::SizeLimit)?;
            Ok(Medium::Memory { size: memory(pod, limit, allocatable)? })
        }
        medium if medium == "HugePages" || medium.starts_with("HugePages-") => {
            huge_pages(pod, medium).map(|page| Medium::HugePages { page })
        }
        medium => Err(MediumError::Unknown { medium: medium.to_owned() }),
    }
}

/// Size of a memory-backed filesystem: the minimum of the node's allocatable memory, the pod's
/// limit and the volume's size limit.
pub fn memory(
    pod: &Pod,
    limit: Option<Quantity>,
    allocatable: &ResourceList,
) -> Result<Option<u64>, ResourceError> {
    let of_node = Some(amount(allocatable, MEMORY)).filter(|memory| !memory.is_zero());
    let sizes = [of_node, pod_limit(pod)?, limit];
    let positive =
        |size: Quantity| (!size.is_zero() && !size.is_negative()).then(|| size.unsigned_value());
    Ok(sizes.into_iter().flatten().filter_map(positive).min())
}

/// Memory limit of the pod's cgroup.
fn pod_limit(pod: &Pod) -> Result<Option<Quantity>, ResourceError> {
    let Some(spec) = &pod.object.spec else { return Ok(None) };
    let resources = PodResources::parse(spec)?;
    let limited = match QosClass::of(&pod.object)? {
        QosClass::Guaranteed => true,
        QosClass::Burstable => resources.is_limited(MEMORY),
        QosClass::BestEffort => false,
    };
    Ok(limited.then(|| amount(&resources.limits(Overhead::Included), MEMORY)))
}

fn huge_pages(pod: &Pod, medium: &str) -> Result<u64, MediumError> {
    let requested = match &pod.object.spec {
        Some(spec) => requested_pages(&PodResources::parse(spec)?),
        None => Vec::new(),
    };
    let parse = |text: &str| {
        let size: Result<Quantity, _> = text.parse();
        size.map(Quantity::unsigned_value)
            .map_err(|source| MediumError::PageSize { text: text.to_owned(), source })
    };
    let mut sizes = requested.iter().map(|size| parse(size)).collect::<Result<Vec<u64>, _>>()?;
    sizes.sort_unstable();
    sizes.dedup();
    let none = || MediumError::NoHugePages { medium: medium.to_owned() };
    match medium.strip_prefix("HugePages-") {
        Some(size) => {
            let size = parse(size)?;
            sizes.contains(&size).then_some(size).ok_or_else(none)
        }
        None => match sizes.as_slice() {
            [] => Err(none()),
            [only] => Ok(*only),
            _ => Err(MediumError::SeveralSizes),
        },
    }
}

fn requested_pages(resources: &PodResources) -> Vec<String> {
    let of = |own: &Requirements| -> Vec<String> {
        let names = own.requests.keys().chain(own.limits.keys());
        names.filter_map(|name| name.strip_prefix(HUGEPAGES)).map(str::to_owned).collect()
    };
    let regular = resources.containers.iter().map(|container| &container.resources);
    let init = resources.init.iter().map(|container| &container.resources);
    regular.chain(init).flat_map(of).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;

    fn medium(source: Value, resources: &Value) -> Result<Medium, String> {
        let pod = pod("p").container_with("c", json!({ "resources": resources })).build();
        let node = ResourceList::from([(MEMORY.to_owned(), "8Gi".parse().unwrap())]);
        let source = serde_json::from_value(source).unwrap();
        of_empty_dir(&pod, &source, &node).map_err(|error| error.to_string())
    }

    #[test]
    fn memory_size_is_the_minimum_of_node_pod_and_volume() {
        let limit = |memory: &str| {
            json!({"limits": {"memory": memory, "cpu": "1"},
            "requests": {"memory": memory, "cpu": "1"}})
        };
        for (source, resources, gib) in [
            (json!({"medium": "Memory"}), json!({}), 8),
            (json!({"medium": "Memory"}), limit("1Gi"), 1),
            (json!({"medium": "Memory", "sizeLimit": "2Gi"}), json!({}), 2),
            (json!({"medium": "Memory", "sizeLimit": "2Gi"}), limit("1Gi"), 1),
            (json!({"medium": "Memory", "sizeLimit": "0"}), limit("16Gi"), 8),
        ] {
            let want = Medium::Memory { size: Some(gib << 30) };
            assert_eq!(medium(source.clone(), &resources), Ok(want), "{source}");
        }
        assert_eq!(medium(json!({"sizeLimit": "1Gi"}), &json!({})), Ok(Medium::Disk));
    }

    #[test]
    fn huge_pages_must_be_requested() {
        let two = json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"hugepages-2Mi": "4Mi"}});
        let both = json!({"limits": {"hugepages-2Mi": "4Mi", "hugepages-1Gi": "1Gi"}});
        let source = |medium: &str| json!({ "medium": medium });
        let page = |page: u64| Ok(Medium::HugePages { page });
        assert_eq!(medium(source("HugePages"), &two), page(2 << 20));
        assert_eq!(medium(source("HugePages-1Gi"), &both), page(1 << 30));
        assert!(medium(source("HugePages"), &both).unwrap_err().contains("several sizes"));
        let error = medium(source("HugePages"), &json!({})).unwrap_err();
        assert!(error.contains("no resource request for huge pages"), "{error}");
        medium(source("HugePages-1Gi"), &two).unwrap_err();
        medium(source("HugePages-lots"), &two).unwrap_err();
        let error = medium(source("Tape"), &two).unwrap_err();
        assert_eq!(error, "unknown storage medium \"Tape\"");
    }
}
