//! Progress of image downloads, from the content store of containerd.
//!
//! The store knows blobs, not images: which image a layer belongs to is in the manifest that names
//! it, which is there before the first layer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Larger manifests are not read; registries refuse them as well.
pub const MAX_MANIFEST: u64 = 4 << 20;
/// Label of a manifest that names one of its blobs, followed by a number or a kind.
const REFERENCE: &str = "containerd.io/gc.ref.content";
/// Label with the repository of a blob, followed by the registry.
const SOURCE: &str = "containerd.io/distribution.source.";

/// A blob that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// Name of the write, which ends with the blob's digest.
    pub name: String,
    pub offset: u64,
    pub started: Option<Timestamp>,
}

impl Ingest {
    fn digest(&self) -> Option<&str> {
        self.name.find("sha256:").and_then(|at| self.name.get(at..))
    }
}

/// A complete blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub digest: String,
    pub size: u64,
    pub labels: BTreeMap<String, String>,
}

/// An image that is being pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDownload {
    /// Registry and repository, without tag: a layer does not depend on it.
    #[serde(rename = "image")]
    pub image: String,
    #[serde(rename = "bytesDone")]
    pub done: u64,
    #[serde(rename = "bytesTotal")]
    pub total: u64,
    /// Average rate of the layers that are being downloaded.
    #[serde(rename = "bytesPerSecond")]
    pub rate: u64,
}

impl ImageDownload {
    pub fn percent(&self) -> u64 {
        match self.total {
            0 => 0,
            total => u64::try_from(u128::from(self.done) * 100 / u128::from(total)).unwrap_or(100),
        }
    }
}

/// Manifests of the images that are being downloaded.
pub fn manifests<'a>(ingests: &[Ingest], blobs: &'a [Blob]) -> Vec<&'a Blob> {
    let active: BTreeSet<&str> = ingests.iter().filter_map(Ingest::digest).collect();
    let names_active = |blob: &&Blob| {
        let mut references = blob.labels.iter().filter(|(name, _)| name.starts_with(REFERENCE));
        references.any(|(_, digest)| active.contains(digest.as_str()))
    };
    blobs.iter().filter(names_active).filter(|blob| blob.size <= MAX_MANIFEST).collect()
}

/// The downloads, by image. `read` has the content of [`manifests`]; other documents, such as the
/// index of an image for several platforms, are ignored.
pub fn downloads(
    ingests: &[Ingest],
    blobs: &[Blob],
    read: &[(&Blob, Vec<u8>)],
    now: Timestamp,
) -> Vec<ImageDownload> {
    let active: BTreeMap<&str, &Ingest> =
        ingests.iter().filter_map(|ingest| Some((ingest.digest()?, ingest))).collect();
    let complete: BTreeSet<&str> = blobs.iter().map(|blob| blob.digest.as_str()).collect();
    let mut found: BTreeMap<String, ImageDownload> = BTreeMap::new();
    for (blob, content) in read {
        let Ok(manifest) = serde_json::from_slice::<Manifest>(content) else { continue };
        let image = image_of(blob);
        let layers: BTreeMap<&str, u64> =
            manifest.layers.iter().map(|layer| (layer.digest.as_str(), layer.size)).collect();
        if !layers.keys().any(|digest| active.contains_key(digest)) {
            continue;
        }
        let (mut done, mut total, mut running, mut since) = (0_u64, 0_u64, 0_u64, None);
        for (digest, size) in layers {
            total = total.saturating_add(size);
            if complete.contains(digest) {
                done = done.saturating_add(size);
            } else if let Some(ingest) = active.get(digest) {
                let offset = ingest.offset.min(size);
                done = done.saturating_add(offset);
                running = running.saturating_add(offset);
                since = match (since, ingest.started) {
                    (Some(one), Some(other)) => Some(std::cmp::min::<Timestamp>(one, other)),
                    (one, other) => one.or(other),
                };
            }
        }
        let seconds = since.map_or(0, |since| now.duration_since(since).as_secs());
        let rate = u64::try_from(seconds.max(1)).map_or(0, |seconds| running / seconds);
        found.insert(image.clone(), ImageDownload { image, done, total, rate });
    }
    found.into_values().collect()
}

fn image_of(blob: &Blob) -> String {
    let source = blob.labels.iter().find_map(|(name, repositories)| {
        let registry = name.strip_prefix(SOURCE)?;
        let repository = repositories.split(',').next()?;
        Some(format!("{registry}/{repository}"))
    });
    source.unwrap_or_else(|| blob.digest.clone())
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(rename = "layers")]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "digest")]
    digest: String,
    #[serde(rename = "size")]
    size: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn ingest(digest: &str, offset: u64) -> Ingest {
        Ingest { name: format!("layer-sha256:{digest}"), offset, started: Some(t(100)) }
    }

    fn blob(digest: &str, size: u64, labels: &[(&str, &str)]) -> Blob {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Blob { digest: format!("sha256:{digest}"), size, labels: labels.collect() }
    }

    fn manifest(digest: &str, repository: &str, layers: &[(&str, u64)]) -> (Blob, Vec<u8>) {
        let reference = |number: usize| format!("containerd.io/gc.ref.content.l.{number}");
        let mut found = blob(digest, 900, &[]);
        for (number, (layer, _)) in layers.iter().enumerate() {
            found.labels.insert(reference(number), format!("sha256:{layer}"));
        }
        found.labels.insert("containerd.io/distribution.source.r.io".into(), repository.into());
        let layers: Vec<serde_json::Value> = layers
            .iter()
            .map(|(layer, size)| {
                serde_json::json!({"digest": format!("sha256:{layer}"), "size": size})
            })
            .collect();
        (found, serde_json::json!({ "layers": layers }).to_string().into_bytes())
    }

    #[test]
    fn layers_are_added_up_by_the_manifest_that_names_them() {
        let (app, app_text) =
            manifest("m1", "team/app,fork/app", &[("a", 100), ("b", 300), ("c", 600)]);
        let (other, other_text) = manifest("m2", "db", &[("d", 1000)]);
        let (idle, _) = manifest("m3", "idle", &[("x", 5)]);
        let blobs = [app.clone(), other.clone(), idle, blob("a", 100, &[])];
        let ingests = [ingest("b", 150), ingest("d", 5000), ingest("unknown", 7)];
        let found = manifests(&ingests, &blobs);
        assert_eq!(found, [&app, &other]);
        let read = [(&app, app_text), (&other, other_text)];
        let found = downloads(&ingests, &blobs, &read, t(110));
        assert_eq!(
            found,
            [
                ImageDownload { image: "r.io/db".into(), done: 1000, total: 1000, rate: 100 },
                ImageDownload { image: "r.io/team/app".into(), done: 250, total: 1000, rate: 15 },
            ]
        );
        assert_eq!(found.iter().map(ImageDownload::percent).collect::<Vec<_>>(), [100, 25]);
        assert_eq!(downloads(&[], &blobs, &read, t(110)), [], "nothing is being downloaded");
    }

    #[test]
    fn hostile_manifests_are_ignored() {
        let (good, _) = manifest("m1", "app", &[("a", 1)]);
        let ingests = [ingest("a", 1)];
        for text in ["", "[]", "{}", r#"{"layers":[{"digest":"sha256:a","size":-1}]}"#] {
            let read = [(&good, text.as_bytes().to_vec())];
            assert_eq!(downloads(&ingests, &[], &read, t(0)), [], "{text}");
        }
        let huge = format!(
            r#"{{"layers":[{{"digest":"sha256:a","size":{0}}},{{"digest":"sha256:b","size":{0}}}]}}"#,
            u64::MAX
        );
        let read = [(&good, huge.into_bytes())];
        assert_eq!(downloads(&ingests, &[], &read, t(0))[0].total, u64::MAX);
        let large = Blob { size: MAX_MANIFEST + 1, ..good.clone() };
        assert_eq!(manifests(&ingests, &[large]), Vec::<&Blob>::new());
    }
}
