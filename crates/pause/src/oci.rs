//! Writer of OCI image archives, as read by `ctr images import` and similar tools.
//!
//! Why our own and not a tool's: an image here is one layer of a few files, and its bytes must be
//! **reproducible**: its digest is its identity, and that decides whether a node already has it. So
//! no clock, no owner and no directory order gets in. Nothing is compressed: these archives are
//! only copied locally.

mod layer;

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use serde::Serialize;
use sha2::{Digest as _, Sha256};

pub use layer::{Layer, PackedLayer};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("layer: {path:?} is not a valid image path: use an absolute path without . and ..")]
    Path { path: String },
    #[error("layer: {path} is already present; add each path once")]
    Taken { path: String },
    #[error("layer: {path} is under {parent}, which is not a directory")]
    Parent { path: String, parent: String },
    #[error("archive: cannot write {path}")]
    Write { path: String, source: io::Error },
    #[error("image {image}: cannot write its configuration")]
    Describe { image: String, source: serde_json::Error },
}

/// An image of one layer, for the architecture this was compiled for.
#[derive(Clone, Debug)]
pub struct Image {
    /// The full name, with registry and tag: a runtime stores it under exactly this.
    pub name: String,
    pub config: Config,
    pub layer: PackedLayer,
}

/// How to run it. Empty fields are left out, and mean the runtime's default.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Config {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub working_dir: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl Image {
    /// What the CRI calls the image's id: the digest of its configuration.
    pub fn id(&self) -> Result<Digest, Error> {
        Ok(self.describe()?.config.digest)
    }

    fn describe(&self) -> Result<Described, Error> {
        let config = self.json(&ImageConfig {
            created: "1970-01-01T00:00:00Z",
            architecture: ARCHITECTURE,
            os: OS,
            config: &self.config,
            rootfs: RootFs { kind: "layers", diff_ids: [&self.layer.0.digest] },
        })?;
        let manifest = self.json(&Manifest {
            schema_version: 2,
            media_type: MEDIA_TYPE_MANIFEST,
            config: Descriptor::of(&config, "application/vnd.oci.image.config.v1+json"),
            layers: [Descriptor::of(&self.layer.0, "application/vnd.oci.image.layer.v1.tar")],
        })?;
        Ok(Described { config, manifest })
    }

    fn json(&self, document: &impl Serialize) -> Result<Blob, Error> {
        let bytes = serde_json::to_vec(document)
            .map_err(|source| Error::Describe { image: self.name.clone(), source })?;
        Ok(Blob::new(bytes))
    }

    /// `latest` of `docker.io/library/busybox:latest`; the OCI calls it the reference name.
    fn tag(&self) -> &str {
        match self.name.rsplit_once(':') {
            Some((_, tag)) if !tag.contains('/') => tag,
            _ => "latest",
        }
    }
}

struct Described {
    config: Blob,
    manifest: Blob,
}

/// One archive of all these images; shared content is in it once.
pub fn archive(images: &[Image]) -> Result<Vec<u8>, Error> {
    let described = images.iter().map(Image::describe).collect::<Result<Vec<_>, _>>()?;
    let index = Index {
        schema_version: 2,
        media_type: "application/vnd.oci.image.index.v1+json",
        manifests: images
            .iter()
            .zip(&described)
            .map(|(image, it)| index_entry(image, it))
            .collect(),
    };
    let index = serde_json::to_vec(&index)
        .map_err(|source| Error::Describe { image: "index".into(), source })?;

    let mut blobs = BTreeMap::new();
    for (image, Described { config, manifest }) in images.iter().zip(&described) {
        for blob in [&image.layer.0, config, manifest] {
            blobs.insert(blob.digest.hex.as_str(), &blob.bytes[..]);
        }
    }

    let mut tree = layer::Tree::default();
    tree.file("/oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    tree.file("/index.json", 0o644, &index)?;
    for (hex, bytes) in blobs {
        tree.file(&format!("/blobs/sha256/{hex}"), 0o644, bytes)?;
    }
    tree.tar()
}

fn index_entry<'a>(image: &'a Image, described: &'a Described) -> IndexEntry<'a> {
    IndexEntry {
        manifest: Descriptor::of(&described.manifest, MEDIA_TYPE_MANIFEST),
        platform: Platform { architecture: ARCHITECTURE, os: OS },
        annotations: [
            ("io.containerd.image.name", image.name.as_str()),
            ("org.opencontainers.image.ref.name", image.tag()),
        ]
        .into(),
    }
}

const OS: &str = "linux";
/// Go's architecture names.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
const MEDIA_TYPE_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A SHA-256 digest; displayed as images display it, `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    hex: String,
}

impl Digest {
    fn of(bytes: &[u8]) -> Self {
        Self { hex: Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex)
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Content with its digest.
#[derive(Clone, Debug)]
struct Blob {
    digest: Digest,
    bytes: std::sync::Arc<[u8]>,
}

impl Blob {
    fn new(bytes: Vec<u8>) -> Self {
        Self { digest: Digest::of(&bytes), bytes: bytes.into() }
    }
}

// Documents of the image specification. Structs and not free JSON: the order of the fields is part
// of the digest, and must not depend on the features of serde_json that other crates enable.

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u8,
    media_type: &'static str,
    manifests: Vec<IndexEntry<'a>>,
}

#[derive(Serialize)]
struct IndexEntry<'a> {
    #[serde(flatten)]
    manifest: Descriptor<'a>,
    platform: Platform,
    annotations: BTreeMap<&'static str, &'a str>,
}

#[derive(Serialize)]
struct Platform {
    architecture: &'static str,
    os: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u8,
    media_type: &'static str,
    config: Descriptor<'a>,
    layers: [Descriptor<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    media_type: &'static str,
    digest: &'a Digest,
    size: usize,
}

impl<'a> Descriptor<'a> {
    fn of(blob: &'a Blob, media_type: &'static str) -> Self {
        Self { media_type, digest: &blob.digest, size: blob.bytes.len() }
    }
}

#[derive(Serialize)]
struct ImageConfig<'a> {
    created: &'static str,
    architecture: &'static str,
    os: &'static str,
    config: &'a Config,
    rootfs: RootFs<'a>,
}

#[derive(Serialize)]
struct RootFs<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    diff_ids: [&'a Digest; 1],
}

#[cfg(test)]
mod tests;
