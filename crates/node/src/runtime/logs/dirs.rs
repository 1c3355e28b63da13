//! Directories in which logs are read and rotated.
//!
//! A runtime may keep a log in its own directory and link to it in `podLogsDir`. A pod with a
//! writable hostPath can create links there, too. So the path is resolved first, must then be
//! below one of these directories, and is opened by its real path without following links.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use podwright_host::files::Root;

/// Docker's log directory, to which cri-dockerd links, and the part of a name that marks a log.
const DOCKER: (&str, &str) = ("/var/lib/docker/containers", "-json.log");

/// The real paths of `podLogsDir` and of the runtime's log directory.
#[derive(Debug)]
pub struct LogDirs {
    pods: PathBuf,
    docker: PathBuf,
}

impl LogDirs {
    /// Resolves the directories once: links that replace them later are not followed.
    pub fn new(pod_logs: &Path) -> Self {
        Self { pods: real(pod_logs), docker: real(Path::new(DOCKER.0)) }
    }

    /// The real path of a log; an error if it is outside the log directories.
    pub(crate) fn resolve(&self, log: &Path) -> io::Result<PathBuf> {
        let real = std::fs::canonicalize(log)?;
        self.check(&real)?;
        Ok(real)
    }

    /// Opens a log by its real path. The result is a regular file at exactly that path.
    pub(crate) fn open(&self, real: &Path) -> io::Result<File> {
        self.check(real)?;
        open_below(Path::new("/"), real)
    }

    /// The directory of a log, for rotation. The log itself is not resolved: rotation does not
    /// follow links to files.
    pub(crate) fn directory(&self, log: &Path) -> io::Result<Root> {
        let real = std::fs::canonicalize(log.parent().unwrap_or(Path::new("/")))?;
        if !real.starts_with(&self.pods) {
            return Err(self.outside(&real));
        }
        let below = real.strip_prefix("/").unwrap_or(&real);
        Root::open("/").and_then(|root| root.sub(below)).map_err(io::Error::other)
    }

    fn check(&self, real: &Path) -> io::Result<()> {
        let is_docker_log = real.starts_with(&self.docker)
            && real.file_name().is_some_and(|name| name.to_string_lossy().contains(DOCKER.1));
        if real.starts_with(&self.pods) || is_docker_log {
            return Ok(());
        }
        Err(self.outside(real))
    }

    fn outside(&self, real: &Path) -> io::Error {
        let (real, pods) = (real.display(), self.pods.display());
        io::Error::other(format!("its real path {real} is outside podLogsDir {pods}"))
    }
}

/// Opens a log at the path given to the runtime, which ends in `<pod>/<container>/<log>`: links are
/// rejected in that part and followed in the configured directory above it.
pub(super) fn open_given(log: &Path) -> io::Result<File> {
    open_below(log.ancestors().nth(3).unwrap_or(Path::new("/")), log)
}

fn open_below(directory: &Path, log: &Path) -> io::Result<File> {
    let below = log.strip_prefix(directory).unwrap_or(log);
    Root::open(directory).and_then(|root| root.open_regular(below)).map_err(io::Error::other)
}

/// The path with the links of its existing part resolved.
fn real(path: &Path) -> PathBuf {
    for existing in path.ancestors() {
        if let Ok(real) = std::fs::canonicalize(existing) {
            return real.join(path.strip_prefix(existing).unwrap_or(Path::new("")));
        }
    }
    path.to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory whose `pods` is `podLogsDir`, reached through a link.
    fn scene() -> (tempfile::TempDir, PathBuf, LogDirs) {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("data/pods/ns_web_uid/app")).unwrap();
        fs::create_dir(base.join("outside")).unwrap();
        fs::write(base.join("outside/0.log"), "secret").unwrap();
        symlink("data", base.join("log")).unwrap();
        let dirs = LogDirs::new(&base.join("log/pods"));
        (dir, base, dirs)
    }

    #[test]
    fn linked_log_below_log_directory_is_read() {
        let (_dir, base, dirs) = scene();
        let own = base.join("log/pods/ns_web_uid/app");
        fs::write(own.join("real.log"), "text").unwrap();
        symlink(own.join("real.log"), own.join("0.log")).unwrap();
        let real = dirs.resolve(&own.join("0.log")).unwrap();
        assert_eq!(real, base.join("data/pods/ns_web_uid/app/real.log"));
        assert_eq!(dirs.open(&real).unwrap().metadata().unwrap().len(), 4);
    }

    #[test]
    fn log_outside_log_directory_is_rejected() {
        let (_dir, base, dirs) = scene();
        let pod = base.join("log/pods/ns_web_uid");
        symlink(base.join("outside/0.log"), pod.join("app/0.log")).unwrap();
        symlink(base.join("outside"), pod.join("other")).unwrap();
        for log in [pod.join("app/0.log"), pod.join("other/0.log")] {
            assert!(dirs.resolve(&log).is_err());
            assert!(dirs.open(&log).is_err(), "must be rejected unresolved, too");
            assert!(open_given(&log).is_err());
        }
        assert!(dirs.directory(&pod.join("other/0.log")).is_err());
        // A link that replaces the log directory itself.
        fs::rename(base.join("data/pods"), base.join("data/moved")).unwrap();
        symlink("moved", base.join("data/pods")).unwrap();
        fs::write(base.join("data/moved/ns_web_uid/app/1.log"), "x").unwrap();
        assert!(dirs.resolve(&pod.join("app/1.log")).is_err());
        assert!(dirs.open(&base.join("data/pods/ns_web_uid/app/1.log")).is_err());
    }

    #[test]
    fn only_logs_are_read_in_docker_directory() {
        let dirs = LogDirs { pods: "/logs".into(), docker: "/docker".into() };
        assert!(dirs.check(Path::new("/docker/ab/ab-json.log")).is_ok());
        assert!(dirs.check(Path::new("/docker/ab/config.v2.json")).is_err());
    }

    #[test]
    fn existing_part_of_missing_log_directory_is_resolved() {
        let (_dir, base, _) = scene();
        assert_eq!(real(&base.join("log/new/pods")), base.join("data/new/pods"));
    }
}
