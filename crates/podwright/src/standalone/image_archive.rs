//! Image archives: decompressed and passed to containerd, with the names of the images in them.
//!
//! An archive is read once, so that it may come from a pipe and needs no space of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, ErrorKind, Read, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::containerd::find;

/// Much more than the index of any archive.
const MAX_INDEX: u64 = 8 << 20;
/// Annotations with the name of an image in an OCI archive.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
const OCI_NAME: &str = "org.opencontainers.image.ref.name";
/// How much of the output of `ctr` is kept for an error message.
const MAX_ERROR: u64 = 64 << 10;
const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Formats that are recognised to name the program that decompresses them.
const OTHERS: [(&[u8], &str); 2] = [(&[0xfd, b'7', b'z', b'X'], "xz"), (b"BZh", "bzip2")];

/// Loads an archive into the containerd behind a socket. Returns the names of its images, as
/// containerd stores them.
pub fn load(socket: &Path, archive: impl Read, shown: &str) -> anyhow::Result<BTreeSet<String>> {
    let unreadable = || format!("cannot read {shown}");
    let archive = decompressed(archive).with_context(unreadable)?;
    let ctr = find("ctr")?.context("ctr is not installed; it comes with containerd")?;
    let mut errors = tempfile::tempfile().context("cannot create a temporary file")?;
    let mut child = Command::new(ctr)
        .arg("--address")
        .arg(socket)
        .args(["--namespace", "k8s.io", "images", "import", "--digests=false", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(errors.try_clone()?)
        .spawn()
        .context("cannot run ctr")?;
    let input = child.stdin.take().context("ctr has no input")?;
    let mut passing = Passing { archive, output: input, refused: false };
    let names = names(&mut passing);
    // Padding at the end.
    let rest = std::io::copy(&mut passing, &mut std::io::sink());
    let refused = passing.refused;
    let read = names.and_then(|names| rest.map(|_| names).map_err(Into::into));
    if read.is_err() && !refused {
        // An archive that cannot be read to its end must not be loaded in part. It may have exited.
        let _ = child.kill();
    }
    drop(passing);
    let status = child.wait().context("cannot wait for ctr")?;
    let names = match read {
        Err(error) if !refused => return Err(error).with_context(unreadable),
        names => names,
    };
    if !status.success() {
        let mut text = Vec::new();
        errors.seek(SeekFrom::Start(0))?;
        errors.take(MAX_ERROR).read_to_end(&mut text)?;
        bail!("cannot load {shown}: {}", String::from_utf8_lossy(&text).trim());
    }
    names.with_context(|| format!("{shown} is loaded, but not all of it was read"))
}

/// Reads the archive and writes what it read to `ctr`.
struct Passing<R, W> {
    archive: R,
    output: W,
    /// `ctr` reads no more, because it failed or because only padding is left.
    refused: bool,
}

impl<R: Read, W: Write> Read for Passing<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.archive.read(buffer)?;
        let passed = buffer.get(..read).unwrap_or_default();
        if !self.refused {
            match self.output.write_all(passed) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => self.refused = true,
                outcome => outcome?,
            }
        }
        Ok(read)
    }
}

/// The archive without its compression, which its first bytes tell.
fn decompressed<'a>(mut archive: impl Read + 'a) -> anyhow::Result<Box<dyn Read + 'a>> {
    let mut start = Vec::new();
    archive.by_ref().take(4).read_to_end(&mut start)?;
    if let Some((_, name)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        bail!("it is compressed with {name}. Fix: {name} -dc FILE | podwright images load -");
    }
    let (gzip, zstd) = (start.starts_with(GZIP), start.starts_with(ZSTD));
    let archive = Cursor::new(start).chain(archive);
    if gzip {
        return Ok(Box::new(MultiGzDecoder::new(archive)));
    }
    if zstd {
        return Ok(Box::new(ZstdFrames { source: archive, decoder: FrameDecoder::new() }));
    }
    Ok(Box::new(archive))
}

/// All frames of a zstd stream.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
}

impl<R: Read> ZstdFrames<R> {
    /// Begins the next frame; false at the end.
    fn next_frame(&mut self) -> std::io::Result<bool> {
        loop {
            // An empty rest is no frame.
            let mut first = [0; 1];
            if self.source.read(&mut first)? == 0 {
                return Ok(false);
            }
            match self.decoder.init(Cursor::new(first).chain(&mut self.source)) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let mut skipped = self.source.by_ref().take(length);
                    if std::io::copy(&mut skipped, &mut std::io::sink())? < length {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(std::io::Error::other(error)),
            }
        }
    }
}

impl<R: Read> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            while self.decoder.can_collect() < buffer.len() && !self.decoder.is_finished() {
                let missing = buffer.len() - self.decoder.can_collect();
                let decoded = self
                    .decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBytes(missing));
                decoded.map_err(std::io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() || !self.next_frame()? {
                return Ok(read);
            }
        }
    }
}

/// Docker's index of an archive.
#[derive(Deserialize)]
struct DockerImage {
    #[serde(rename = "RepoTags")]
    tags: Option<Vec<String>>,
}

/// The index of an OCI archive.
#[derive(Deserialize)]
struct OciIndex {
    #[serde(rename = "manifests")]
    manifests: Vec<OciManifest>,
}

#[derive(Deserialize)]
struct OciManifest {
    #[serde(rename = "annotations", default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// The names of the images in an archive. An archive with both indexes, as current Docker versions
/// write it, is read by containerd as an OCI archive.
fn names(archive: impl Read) -> anyhow::Result<BTreeSet<String>> {
    let (mut oci, mut docker) = (None, None);
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry.context("it is not a tar archive of images")?;
        let path = entry.path()?.into_owned();
        match path.strip_prefix(".").unwrap_or(&path).to_str() {
            Some("index.json") => oci = Some(index::<OciIndex>(&mut entry, "index.json")?),
            Some("manifest.json") => {
                docker = Some(index::<Vec<DockerImage>>(&mut entry, "manifest.json")?);
            }
            Some(_) | None => {}
        }
    }
    match (oci, docker) {
        (Some(OciIndex { manifests }), _) => {
            let today = Timestamp::now().strftime("%Y-%m-%d").to_string();
            Ok(manifests.iter().filter_map(|it| oci_name(it, &today)).collect())
        }
        (None, Some(images)) => {
            let tags = images.into_iter().filter_map(|image| image.tags).flatten();
            Ok(tags.map(|tag| full_name(&tag)).collect())
        }
        (None, None) => bail!("it has neither index.json (OCI) nor manifest.json (Docker)"),
    }
}

fn index<T: DeserializeOwned>(entry: impl Read, name: &str) -> anyhow::Result<T> {
    let mut text = Vec::new();
    entry.take(MAX_INDEX + 1).read_to_end(&mut text)?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > MAX_INDEX {
        bail!("its {name} is larger than {} MiB", MAX_INDEX >> 20);
    }
    serde_json::from_slice(&text).with_context(|| format!("its {name} is not valid"))
}

/// The name that `ctr` gives to an image: a tag alone is put behind the day of the import.
fn oci_name(manifest: &OciManifest, today: &str) -> Option<String> {
    let annotations = manifest.annotations.as_ref()?;
    if let Some(name) = annotations.get(CONTAINERD_NAME) {
        return Some(name.clone());
    }
    let name = annotations.get(OCI_NAME).filter(|name| !name.is_empty())?;
    let full = name.contains(['/', ':', '@']);
    Some(if full { name.clone() } else { format!("import-{today}:{name}") })
}

/// A full image name, as Docker completes a short one.
pub fn full_name(name: &str) -> String {
    let (first, rest) = name.split_once('/').unwrap_or(("", name));
    let is_registry = first.contains(['.', ':']) || first == "localhost";
    let name = match (is_registry, first) {
        (true, _) => name.to_owned(),
        (false, "") => format!("docker.io/library/{rest}"),
        (false, _) => format!("docker.io/{name}"),
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { name } else { format!("{name}:latest") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn archive(files: &[(&str, &str)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, content) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(u64::try_from(content.len()).unwrap());
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// A zstd stream of a skippable frame and two frames of one raw block each.
    fn zstd(bytes: &[u8]) -> Vec<u8> {
        let frame = |part: &[u8]| {
            let size = u32::try_from(part.len()).unwrap();
            // Single segment, size in 4 bytes; then a last raw block.
            let mut frame = [ZSTD, &[0b1010_0000], &size.to_le_bytes()].concat();
            frame.extend(&((size << 3) | 1).to_le_bytes()[..3]);
            frame.extend(part);
            frame
        };
        let (one, other) = bytes.split_at(bytes.len() / 2);
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
        [frame(one), skipped, frame(other)].concat()
    }

    fn read(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        decompressed(bytes).unwrap().read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn compression_is_found_by_the_first_bytes() {
        let plain = archive(&[("manifest.json", "[]")]);
        assert_eq!(read(&plain), plain);
        assert_eq!(read(&gzip(&plain)), plain);
        let two = [gzip(&plain), gzip(&plain)].concat();
        assert_eq!(read(&two).len(), 2 * plain.len(), "as pigz and estargz write it");
        assert_eq!(read(&zstd(&plain)), plain);
        assert_eq!(read(b""), b"");
        for (start, name) in [(&b"\xfd7zXZ\0"[..], "xz"), (b"BZh91", "bzip2")] {
            let Err(error) = decompressed(start) else { panic!("{name}") };
            assert!(error.to_string().contains(name), "{error}");
        }
        for broken in [&gzip(&plain)[..40], &zstd(&plain)[..40], &[ZSTD, b"\xff\xff"].concat()] {
            let mut out = Vec::new();
            let outcome = decompressed(broken).unwrap().read_to_end(&mut out);
            assert!(outcome.is_err(), "truncated or corrupt");
        }
    }

    #[test]
    fn names_are_those_that_containerd_gives() {
        let docker = r#"[{"RepoTags":["nginx:1","me/app"]},{"RepoTags":null}]"#;
        let oci = r#"{"manifests":[
            {"annotations":{"io.containerd.image.name":"r.io/a:1","org.opencontainers.image.ref.name":"1"}},
            {"annotations":{"org.opencontainers.image.ref.name":"r.io/b:2"}},
            {"annotations":null},{}]}"#;
        for (files, want) in [
            (
                &[("manifest.json", docker)][..],
                &["docker.io/library/nginx:1", "docker.io/me/app:latest"][..],
            ),
            (&[("blobs/x", "y"), ("./index.json", oci)], &["r.io/a:1", "r.io/b:2"]),
            (&[("manifest.json", docker), ("index.json", oci)], &["r.io/a:1", "r.io/b:2"]),
        ] {
            let found = names(&archive(files)[..]).unwrap();
            assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), want);
        }
        let tag = r#"{"manifests":[{"annotations":{"org.opencontainers.image.ref.name":"v1"}}]}"#;
        let found = names(&archive(&[("index.json", tag)])[..]).unwrap();
        let name = found.first().unwrap();
        assert!(name.starts_with("import-2") && name.ends_with(":v1"), "{name}");
    }

    #[test]
    fn what_is_not_an_archive_of_images_is_an_error() {
        for (bytes, want) in [
            (archive(&[("readme", "x")]), "neither index.json"),
            (archive(&[("index.json", "{")]), "its index.json is not valid"),
            (archive(&[("manifest.json", "{}")]), "its manifest.json is not valid"),
            (vec![7; 4096], "not a tar archive"),
            (Vec::new(), "neither index.json"),
            (archive(&[("index.json", &"x".repeat(9 << 20))]), "larger than 8 MiB"),
        ] {
            let error = format!("{:#}", names(&bytes[..]).unwrap_err());
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn short_names_are_completed_as_by_docker() {
        for (name, want) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("me/app", "docker.io/me/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("r.io/a/b", "r.io/a/b:latest"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("r.io/a@sha256:12", "r.io/a@sha256:12"),
        ] {
            assert_eq!(full_name(name), want);
        }
    }
}
