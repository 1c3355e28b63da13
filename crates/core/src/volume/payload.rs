//! Files of a volume with content from API objects.
//!
//! Paths come from the author of the pod or of the object, so they are checked here, before any
//! file is written.

use std::collections::BTreeMap;
use std::fmt;

/// The kernel's limits.
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("invalid path: must not be empty: {path:?}")]
    Empty { path: String },
    #[error("invalid path: must be relative path: {path}")]
    Absolute { path: String },
    #[error("invalid path: must be less than or equal to {LONGEST_PATH} characters")]
    TooLong,
    #[error("invalid path: filenames must be less than or equal to {LONGEST_NAME} characters")]
    NameTooLong,
    #[error("invalid path: must not contain '..': {path}")]
    StepsUp { path: String },
    #[error("invalid path: must not start with '..': {path}")]
    Reserved { path: String },
    #[error("invalid path: must not contain a null byte: {path:?}")]
    Null { path: String },
    #[error("invalid path: {path} is both a file and a directory")]
    Conflict { path: String },
}

/// One file. `Debug` does not print the content.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub bytes: Vec<u8>,
    pub mode: u32,
    /// Owner, if not root.
    pub owner: Option<u32>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File({} bytes, {:o}, {:?})", self.bytes.len(), self.mode, self.owner)
    }
}

/// Files by normalized path in the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload(BTreeMap<String, File>);

impl Payload {
    /// If two sources name the same file, the later one wins.
    pub fn insert(&mut self, path: &str, file: File) -> Result<(), PathError> {
        self.0.insert(normalised(path)?, file);
        Ok(())
    }

    pub fn files(&self) -> impl Iterator<Item = (&str, &File)> {
        self.0.iter().map(|(path, file)| (path.as_str(), file))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A file must not have the path of a directory of another file.
    pub fn check(&self) -> Result<(), PathError> {
        for path in self.0.keys() {
            let directories = path.char_indices().filter(|(_, c)| *c == '/');
            for (end, _) in directories {
                if let Some(directory) =
                    path.get(..end).filter(|directory| self.0.contains_key(*directory))
                {
                    return Err(PathError::Conflict { path: directory.to_owned() });
                }
            }
        }
        Ok(())
    }
}

fn normalised(path: &str) -> Result<String, PathError> {
    let owned = || path.to_owned();
    if path.is_empty() {
        return Err(PathError::Empty { path: owned() });
    }
    if path.starts_with('/') {
        return Err(PathError::Absolute { path: owned() });
    }
    if path.len() > LONGEST_PATH {
        return Err(PathError::TooLong);
    }
    if path.contains('\0') {
        return Err(PathError::Null { path: owned() });
    }
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(PathError::StepsUp { path: owned() });
    }
    if parts.iter().any(|part| part.len() > LONGEST_NAME) {
        return Err(PathError::NameTooLong);
    }
    match parts.first() {
        None => Err(PathError::Empty { path: owned() }),
        Some(first) if first.starts_with("..") => Err(PathError::Reserved { path: owned() }),
        Some(_) => Ok(parts.join("/")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(text: &str) -> File {
        File { bytes: text.as_bytes().to_vec(), mode: 0o644, owner: None }
    }

    #[test]
    fn paths_out_of_the_volume_are_refused() {
        let long = "x/".repeat(2049);
        let name = "y".repeat(256);
        for (path, want) in [
            ("", "invalid path: must not be empty: \"\""),
            (".", "invalid path: must not be empty: \".\""),
            ("/etc/passwd", "invalid path: must be relative path: /etc/passwd"),
            ("..", "invalid path: must not contain '..': .."),
            ("a/../../b", "invalid path: must not contain '..': a/../../b"),
            ("..data", "invalid path: must not start with '..': ..data"),
            ("./..data/x", "invalid path: must not start with '..': ./..data/x"),
            (&long, "invalid path: must be less than or equal to 4096 characters"),
            (&name, "invalid path: filenames must be less than or equal to 255 characters"),
            ("a\0b", "invalid path: must not contain a null byte: \"a\\0b\""),
        ] {
            let mut payload = Payload::default();
            let error = payload.insert(path, file("x")).unwrap_err();
            assert_eq!(error.to_string(), want);
            assert!(payload.is_empty());
        }
    }

    #[test]
    fn path_is_normalised_and_the_later_file_wins() {
        let mut payload = Payload::default();
        payload.insert("a//./b", file("1")).unwrap();
        payload.insert("a/b", file("2")).unwrap();
        payload.insert("a/..b", file("3")).unwrap();
        let files: Vec<_> = payload.files().map(|(p, f)| (p, f.bytes.as_slice())).collect();
        assert_eq!(files, [("a/..b", &b"3"[..]), ("a/b", b"2")]);
    }

    #[test]
    fn file_cannot_also_be_a_directory() {
        let mut payload = Payload::default();
        payload.insert("a/b/c", file("1")).unwrap();
        assert_eq!(payload.check(), Ok(()));
        payload.insert("a/b", file("2")).unwrap();
        assert_eq!(payload.check(), Err(PathError::Conflict { path: "a/b".into() }));
    }

    #[test]
    fn content_is_not_printed() {
        assert!(!format!("{:?}", file("hunter2")).contains("hunter2"));
    }

    proptest! {
        #[test]
        fn accepted_paths_stay_inside_the_volume(path in "[./a\\PC]{0,40}") {
            let mut payload = Payload::default();
            if payload.insert(&path, file("")).is_ok() {
                let (kept, _) = payload.files().next().unwrap();
                prop_assert!(!kept.starts_with("..") && !kept.starts_with('/'));
                prop_assert!(kept.split('/').all(|part| !part.is_empty() && part != ".."));
            }
        }
    }
}
