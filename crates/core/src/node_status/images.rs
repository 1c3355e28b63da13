//! Which images are here, so that the scheduler can prefer a node that need not pull.

use k8s_openapi::api::core::v1;

/// More names than that help nobody and make the object large.
const MOST_NAMES: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    pub tags: Vec<String>,
    pub digests: Vec<String>,
    pub size: u64,
}

/// The largest images first; at most `most` of them. `None` if there is none.
pub(super) fn listed(images: &[Image], most: Option<usize>) -> Option<Vec<v1::ContainerImage>> {
    let mut images: Vec<&Image> = images.iter().collect();
    // By name where sizes are equal: the same images are the same list.
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
