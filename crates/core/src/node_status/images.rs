//! Image list of the node status, which the scheduler uses to prefer nodes that already have an
//! image.

use k8s_openapi::api::core::v1;

/// Limit on names per image, to keep the object small.
const MOST_NAMES: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    pub size: u64,
}

/// The largest images first, at most `most`. `None` if there are none.
pub(super) fn listed(images: &[Image], most: Option<usize>) -> Option<Vec<v1::ContainerImage>> {
    let mut images: Vec<&Image> = images.iter().collect();
    // Ordered by name where sizes are equal, so that the same images give the same list.
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.tags.cmp(&b.tags)));
    images.truncate(most.unwrap_or(usize::MAX));
    let entry = |image: &Image| {
        let names = image.digests.iter().chain(&image.tags).take(MOST_NAMES);
        v1::ContainerImage {
            names: Some(names.cloned().collect()),
            size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
        }
    };
    Some(images.into_iter().map(entry).collect()).filter(|list: &Vec<_>| !list.is_empty())
}
