//! Files of the repository, as paths below its root.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Every file of the repository, sorted. Build output and the git directory are left out.
pub(super) fn files(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let absolute = root.join(&directory);
        let entries = std::fs::read_dir(&absolute)
            .with_context(|| format!("cannot list {}", absolute.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", absolute.display()))?;
            let path = directory.join(entry.file_name());
            // Symbolic links are not followed: their targets are listed under their own names.
            let kind = entry
                .file_type()
                .with_context(|| format!("cannot read the type of {}", entry.path().display()))?;
            if kind.is_dir() {
                if !matches!(entry.file_name().to_str(), Some("target" | ".git")) {
                    directories.push(path);
                }
            } else {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

pub(super) fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|it| it == extension)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small repository in a temporary directory.
    pub(in crate::tidy) fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        root
    }

    #[test]
    fn files_are_sorted_without_build_output() {
        let root = repository(&[
            ("README.md", ""),
            (".ci/run", ""),
            (".git/config", ""),
            ("target/debug/x.rs", ""),
            ("crates/a/src/lib.rs", ""),
        ]);
        let found = files(root.path()).unwrap();
        assert_eq!(found, [".ci/run", "README.md", "crates/a/src/lib.rs"].map(PathBuf::from));
    }
}
