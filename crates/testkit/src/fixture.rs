//! Fixtures: the files, runtime state and API objects that an earlier version left on a machine, as
//! one text file.
//!
//! Git keeps neither empty directories nor permissions, and a database is not text; a node that
//! starts finds all three. So a fixture is one JSON document: the files of a directory tree, and
//! what the runtime and the API server held when the agent was killed. The program `fixtures` of
//! `crates/e2e` records them on a real containerd.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "a fixture that cannot be read or written fails its test"
)]

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};

/// Line length for the content of a binary file.
const LINE: usize = 96;

/// A document as it was read.
#[derive(Clone, Debug)]
pub struct Fixture(Value);

/// One entry of the directory tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: PathBuf,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Directory { mode: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link(PathBuf),
}

impl Fixture {
    /// Panics on error: a fixture is part of a test.
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let value = serde_json::from_str(&text);
        Self(value.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    pub fn value(&self, pointer: &str) -> &Value {
        self.0.pointer(pointer).unwrap_or_else(|| panic!("the fixture has no {pointer}"))
    }

    pub fn text(&self, pointer: &str) -> &str {
        let text = self.value(pointer).as_str();
        text.unwrap_or_else(|| panic!("{pointer} of the fixture is not a string"))
    }

    pub fn list(&self, pointer: &str) -> &[Value] {
        let list = self.0.pointer(pointer).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// The directory tree, each directory before what is in it.
    pub fn entries(&self) -> Vec<Entry> {
        self.list("/files").iter().map(entry).collect()
    }

    /// The content of a file.
    pub fn file(&self, path: &str) -> Vec<u8> {
        let found = self.entries().into_iter().find(|entry| entry.path == Path::new(path));
        match found.map(|entry| entry.content) {
            Some(Content::File { bytes, .. }) => bytes,
            other => panic!("{path} is not a file of the fixture: {other:?}"),
        }
    }

    /// Writes the directory tree as it was.
    pub fn unpack(&self, into: &Path) -> io::Result<()> {
        fs::create_dir_all(into)?;
        let entries = self.entries();
        for Entry { path, content } in &entries {
            let path = into.join(path);
            match content {
                Content::Directory { .. } => fs::create_dir(path)?,
                Content::Link(target) => symlink(target, path)?,
                Content::File { mode, bytes } => {
                    fs::write(&path, bytes)?;
                    fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
                }
            }
        }
        // Last, and the deepest first: a directory may deny access to its own owner.
        for Entry { path, content } in entries.iter().rev() {
            if let Content::Directory { mode } = content {
                fs::set_permissions(into.join(path), fs::Permissions::from_mode(*mode))?;
            }
        }
        Ok(())
    }
}

/// The entries below a directory, as a fixture keeps them. A mount point is recorded as an empty
/// directory; sockets are skipped.
pub fn capture(directory: &Path, is_left_out: &dyn Fn(&Path) -> bool) -> io::Result<Value> {
    let device = fs::symlink_metadata(directory)?.dev();
    let (mut entries, mut directories) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = directories.pop() {
        for found in fs::read_dir(directory.join(&below))? {
            let path = below.join(found?.file_name());
            if is_left_out(&path) {
                continue;
            }
            let outside = directory.join(&path);
            let about = fs::symlink_metadata(&outside)?;
            let mode = format!("{:04o}", about.permissions().mode() & 0o7777);
            let mut entry = json!({ "path": path, "mode": mode });
            if about.is_dir() {
                entry["directory"] = json!(true);
                if about.dev() == device {
                    directories.push(path);
                }
            } else if about.is_symlink() {
                entry = json!({ "path": path, "link": fs::read_link(outside)? });
            } else if about.is_file() {
                match String::from_utf8(fs::read(&outside)?) {
                    Ok(text) if !text.contains('\0') => entry["text"] = json!(text),
                    Ok(text) => entry["zlib"] = json!(compressed(text.as_bytes())?),
                    Err(bytes) => entry["zlib"] = json!(compressed(bytes.as_bytes())?),
                }
            } else {
                continue;
            }
            entries.push(entry);
        }
    }
    entries.sort_by_key(|entry| entry["path"].as_str().map(PathBuf::from));
    Ok(Value::Array(entries))
}

fn entry(entry: &Value) -> Entry {
    let text = |field: &str| entry[field].as_str();
    let path = PathBuf::from(text("path").expect("a path"));
    let mode = || u32::from_str_radix(text("mode").expect("a mode"), 8).expect("an octal mode");
    let content = match (text("link"), text("text"), entry["zlib"].as_array()) {
        (Some(target), ..) => Content::Link(target.into()),
        (_, Some(text), _) => Content::File { mode: mode(), bytes: text.into() },
        (_, _, Some(lines)) => Content::File { mode: mode(), bytes: restored(lines) },
        (None, None, None) => Content::Directory { mode: mode() },
    };
    Entry { path, content }
}

fn compressed(bytes: &[u8]) -> io::Result<Vec<String>> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    let text = BASE64_STANDARD.encode(encoder.finish()?);
    let lines = text.as_bytes().chunks(LINE).map(|line| String::from_utf8_lossy(line).into_owned());
    Ok(lines.collect())
}

fn restored(lines: &[Value]) -> Vec<u8> {
    let text: String = lines.iter().filter_map(Value::as_str).collect();
    let packed = BASE64_STANDARD.decode(text).expect("base64");
    let mut bytes = Vec::new();
    ZlibDecoder::new(packed.as_slice()).read_to_end(&mut bytes).expect("compressed bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_directory_is_unpacked_unchanged() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let set_mode = |path: &str, mode: u32| {
            let path = from.path().join(path);
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::create_dir_all(from.path().join("a/empty")).unwrap();
        fs::write(from.path().join("a/text"), "line\n").unwrap();
        fs::write(from.path().join("a/binary"), [0, 255, 0, 1].repeat(1000)).unwrap();
        fs::write(from.path().join("left"), "out").unwrap();
        symlink("text", from.path().join("a/link")).unwrap();
        set_mode("a/text", 0o600);
        set_mode("a/empty", 0o711);
        let left_out = |path: &Path| path == Path::new("left");
        let files = capture(from.path(), &left_out).unwrap();
        let fixture = Fixture(json!({ "files": files }));
        fixture.unpack(&to.path().join("copy")).unwrap();
        let again = capture(&to.path().join("copy"), &|_| false).unwrap();
        assert_eq!(again, files);
        let paths: Vec<_> = fixture.entries().into_iter().map(|entry| entry.path).collect();
        let want = ["a", "a/binary", "a/empty", "a/link", "a/text"].map(PathBuf::from);
        assert_eq!(paths, want);
    }
}
