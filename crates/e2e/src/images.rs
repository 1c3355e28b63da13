//! Images that a bed starts with: OCI archives built by `cargo xtask images`, without a registry.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::tools::repository;

/// containerd names an image by this annotation of its index entry.
const NAME: &str = "io.containerd.image.name";

#[derive(Clone, Debug)]
pub struct Archive {
    pub path: PathBuf,
    /// Names of the images in it.
    pub names: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    annotations: std::collections::BTreeMap<String, String>,
}

/// Every archive in `PODWRIGHT_IMAGES`, `target/images` by default.
pub fn archives() -> Result<Vec<Archive>> {
    let directory = std::env::var_os("PODWRIGHT_IMAGES")
        .map_or_else(|| repository().join("target/images"), PathBuf::from);
    let mut paths: Vec<_> = fs::read_dir(&directory)
        .with_context(|| format!("no images in {}; run cargo xtask images", directory.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "tar"))
        .collect();
    paths.sort();
    ensure!(!paths.is_empty(), "no images in {}; run cargo xtask images", directory.display());
    paths.into_iter().map(|path| Archive::open(&path)).collect()
}

/// The sandbox image.
pub(crate) fn pause(archives: &[Archive]) -> Result<&str> {
    let mut names = archives.iter().flat_map(|archive| &archive.names);
    let pause = names.find(|name| {
        let last = name.rsplit('/').next().unwrap_or_default();
        last.split([':', '@']).next() == Some("pause")
    });
    pause.map(String::as_str).context("no archive contains the pause image; run cargo xtask images")
}

impl Archive {
    pub fn open(path: &Path) -> Result<Self> {
        let names = names_in(File::open(path)?)
            .with_context(|| format!("{} is not an OCI archive", path.display()))?;
        Ok(Self { path: path.to_owned(), names })
    }
}

fn names_in(archive: impl std::io::Read) -> Result<Vec<String>> {
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        if entry.path()?.as_ref() == Path::new("index.json") {
            let index: Index = serde_json::from_reader(entry)?;
            let named = index.manifests.into_iter().filter_map(|mut m| m.annotations.remove(NAME));
            return Ok(named.collect());
        }
    }
    anyhow::bail!("index.json not found")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn archive_of(file: &str, content: &str) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        let mut archive = tar::Builder::new(Vec::new());
        archive.append_data(&mut header, file, content.as_bytes()).unwrap();
        archive.into_inner().unwrap()
    }

    #[test]
    fn names_are_read_from_the_index() {
        let index = r#"{"manifests":[
            {"annotations":{"io.containerd.image.name":"localhost/podwright/pause:1"}},
            {"digest":"sha256:0"}]}"#;
        let names = names_in(archive_of("index.json", index).as_slice()).unwrap();
        assert_eq!(names, ["localhost/podwright/pause:1"]);
        assert!(names_in(archive_of("manifest.json", "[]").as_slice()).is_err());
    }

    #[test]
    fn pause_image_is_found_by_last_path_component() {
        for (names, want) in [
            (
                &["a/paused:1", "localhost/podwright/pause:3"][..],
                Some("localhost/podwright/pause:3"),
            ),
            (&["localhost/pause/test:1"], None),
            (&[], None),
        ] {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            let archives = [Archive { path: PathBuf::new(), names }];
            assert_eq!(pause(&archives).ok(), want);
        }
    }
}
