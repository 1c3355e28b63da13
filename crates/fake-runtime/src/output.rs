//! Files that containers write on the host: logs and termination messages.
//!
//! Only below the directory the fake was given, whatever paths it gets: a simulation never touches
//! the machine it runs on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;

use super::containers::Container;

/// A log exists from the start of its container, even if it stays empty.
pub(super) fn open_log(below: Option<&Path>, container: &Container, now: Timestamp) {
    let lines = container.script.prints.iter().map(|line| format!("{now:.9} stdout F {line}\n"));
    let lines: String = lines.collect();
    write(below, &container.log_path, &lines, true);
}

/// Creates a rotated log again, empty.
pub(super) fn reopen_log(below: Option<&Path>, container: &Container) {
    write(below, &container.log_path, "", true);
}

/// The files a program writes.
pub(super) fn write_files(below: Option<&Path>, container: &Container) {
    for (inside, text) in &container.script.writes {
        if let Some(outside) = host_path(container, inside) {
            write(below, &outside, text, false);
        }
    }
}

/// The host path of a path in the container; the innermost mount applies.
fn host_path(container: &Container, inside: &str) -> Option<String> {
    let mounts = container.config.mounts.iter().filter_map(|mount| {
        let rest = Path::new(inside).strip_prefix(&mount.container_path).ok()?;
        Some((mount, rest))
    });
    let (mount, rest) = mounts.max_by_key(|(mount, _)| mount.container_path.len())?;
    // If the file itself is the mount, nothing is appended, not even a slash.
    Some(match rest.to_str()? {
        "" => mount.host_path.clone(),
        rest => format!("{}/{rest}", mount.host_path),
    })
}

/// The host path of a mount that cannot be bound: what is mounted there has been deleted.
pub(super) fn deleted_source(below: Option<&Path>, container: &Container) -> Option<String> {
    let is_deleted = |host_path: &&str| {
        let found = permitted(below, host_path).map(fs::metadata);
        found.is_some_and(|found| found.is_ok_and(|found| found.nlink() == 0))
    };
    let paths = container.config.mounts.iter().map(|mount| mount.host_path.as_str());
    paths.filter(is_deleted).map(str::to_owned).next()
}

fn write(below: Option<&Path>, path: &str, text: &str, append: bool) {
    let Some(path) = permitted(below, path) else { return };
    let attempt = || {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut file =
            fs::OpenOptions::new().create(true).append(append).write(true).open(&path)?;
        if !append {
            file.set_len(0)?;
        }
        file.write_all(text.as_bytes())
    };
    if let Err(error) = attempt() {
        tracing::warn!(%error, path = %path.display(), "write file of container failed");
    }
}

fn permitted(below: Option<&Path>, path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let plain = path.components().all(|part| part != Component::ParentDir);
    (plain && path.starts_with(below?)).then(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_outside_of_the_directory() {
        let below = Some(Path::new("/tmp/sim"));
        assert!(permitted(below, "/tmp/sim/a/b.log").is_some());
        for path in ["/tmp/simulation/a", "/etc/passwd", "/tmp/sim/../x", "", "a"] {
            assert_eq!(permitted(below, path), None, "{path}");
        }
        assert_eq!(permitted(None, "/tmp/sim/a"), None);
    }
}
