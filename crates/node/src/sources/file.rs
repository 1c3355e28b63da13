//! Pod source: static pods from a manifest directory or a single file.
//!
//! Changes are read at once by inotify; a slow re-read remains, because network file systems send
//! no events. A file that is not a valid pod keeps its last valid pod: a typo in an editor must not
//! stop the network or proxy of a node. Only the removal of a file removes its pod.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use k8s_openapi::api::core::v1;
use podwright_core::pod::Source;
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::manifest::{self, ManifestError, Origin, UnknownField};
use podwright_core::pod::merge::SourceUpdate;
use podwright_host::clock::Clock;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::problems::{ManifestEffect, ManifestProblem, ManifestReporter};
use crate::pods::Delivery;

/// Larger files are not manifests.
const MAX_SIZE: u64 = 10 * 1024 * 1024;
/// Unknown fields of a manifest that are named.
const SHOWN: usize = 5;
/// Editors write in bursts; one read after the burst is enough.
const SETTLE: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    #[error("the file is larger than 10 MiB")]
    TooLarge,
    #[error("the file is not UTF-8")]
    NotText,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
}

pub struct Manifests {
    path: PathBuf,
    node: Arc<str>,
    /// `fileCheckFrequency`: interval of the re-read.
    recheck: Duration,
    features: PodFeatures,
    /// The last valid pod of each file.
    valid: BTreeMap<PathBuf, v1::Pod>,
    reporter: ManifestReporter,
    clock: Clock,
}

impl Manifests {
    pub fn new(
        path: PathBuf,
        recheck: Duration,
        features: PodFeatures,
        reporter: ManifestReporter,
        clock: Clock,
    ) -> Self {
        let node = reporter.node.clone();
        Self { path, node, recheck, features, valid: BTreeMap::new(), reporter, clock }
    }

    /// Delivers the whole set, again after every change, until stopped.
    pub async fn run(mut self, deliveries: mpsc::Sender<Delivery>, stop: CancellationToken) {
        let work = async {
            let mut changes = self.watch();
            loop {
                let news = SourceUpdate::All(self.read_all());
                if deliveries.send(Delivery { source: Source::File, news }).await.is_err() {
                    return;
                }
                let deleted = self.changed(&mut changes).await;
                if self.valid.keys().any(|path| deleted.contains(path)) {
                    self.valid.retain(|path, _| !deleted.contains(path));
                    let news = SourceUpdate::All(last_of_each_name(self.valid.values()));
                    if deliveries.send(Delivery { source: Source::File, news }).await.is_err() {
                        return;
                    }
                }
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Waits for a change or for the re-read interval. Returns the files that were deleted, even if
    /// they exist again: deleting a manifest ends its pod. (An editor that keeps the old file moves
    /// it.)
    async fn changed(&self, changes: &mut Option<EventStream<[u8; 4096]>>) -> BTreeSet<PathBuf> {
        let mut deleted = BTreeSet::new();
        match changes {
            Some(stream) => {
                let mut next = tokio::time::timeout(self.recheck, stream.next()).await.ok();
                if matches!(next, Some(Some(Ok(_)))) {
                    tokio::time::sleep(SETTLE).await;
                }
                while let Some(Some(Ok(event))) = next {
                    if event.mask.contains(EventMask::DELETE) {
                        deleted.extend(event.name.map(|name| self.directory().join(name)));
                    }
                    next = stream.next().now_or_never();
                }
                if matches!(next, Some(None | Some(Err(_)))) {
                    *changes = self.watch();
                }
            }
            None => {
                tokio::time::sleep(self.recheck.min(Duration::from_secs(1))).await;
                *changes = self.watch();
            }
        }
        deleted
    }

    /// For a single file its parent directory, because editors replace files.
    fn directory(&self) -> &Path {
        match self.path.is_dir() {
            true => &self.path,
            false => self.path.parent().unwrap_or(&self.path),
        }
    }

    fn watch(&self) -> Option<EventStream<[u8; 4096]>> {
        let changes = WatchMask::CREATE
            | WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let inotify = Inotify::init().ok()?;
        inotify.watches().add(self.directory(), changes).ok()?;
        inotify.into_event_stream([0; 4096]).ok()
    }

    fn read_all(&mut self) -> Vec<v1::Pod> {
        let files = match files(&self.path) {
            Ok(files) => files,
            Err(error) => {
                self.report(&self.path, None, format!("cannot list the directory: {error}"));
                // Which files were removed is unknown; keep all pods.
                return self.valid.values().cloned().collect();
            }
        };
        self.valid.retain(|path, _| files.contains(path));
        self.reporter.retain(|known| files.iter().any(|file| file.to_string_lossy() == known));
        for file in files {
            match self.read(&file) {
                Ok((pod, unknown)) => {
                    self.report_unknown(&file, &unknown);
                    self.valid.insert(file, pod);
                }
                Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                    self.reporter.fine(&file.to_string_lossy());
                    self.valid.remove(&file);
                }
                Err(error) => {
                    let (line, text) = match &error {
                        ReadError::Manifest(error) => (error.line(), error.detail()),
                        other @ (ReadError::Io(_) | ReadError::TooLarge | ReadError::NotText) => {
                            (None, crate::error_chain::chain(other))
                        }
                    };
                    self.report(&file, line, text);
                }
            }
        }
        last_of_each_name(self.valid.values())
    }

    fn read(&self, file: &Path) -> Result<(v1::Pod, Vec<UnknownField>), ReadError> {
        let mut bytes = Vec::new();
        // Not by the size in its metadata: the file may grow, or be a device without end.
        let read = File::open(file)?.take(MAX_SIZE + 1).read_to_end(&mut bytes)?;
        if u64::try_from(read).is_ok_and(|read| read > MAX_SIZE) {
            return Err(ReadError::TooLarge);
        }
        let text = String::from_utf8(bytes).map_err(|_| ReadError::NotText)?;
        let location = file.to_string_lossy();
        let (source, features) = (Source::File, self.features);
        let origin = Origin { source, location: &location, node: &self.node, features };
        Ok(manifest::read(&text, origin)?)
    }

    fn report(&self, file: &Path, line: Option<u64>, error: String) {
        let effect = match self.valid.contains_key(file) {
            true => ManifestEffect::PreviousVersionRuns,
            false => ManifestEffect::Ignored,
        };
        self.report_as(file, line, error, effect);
    }

    fn report_as(&self, file: &Path, line: Option<u64>, error: String, effect: ManifestEffect) {
        let (file, since) = (file.to_string_lossy().into_owned(), self.clock.now().wall);
        self.reporter.report(&ManifestProblem { file, line, error, effect, since });
    }

    fn report_unknown(&self, file: &Path, unknown: &[UnknownField]) {
        let Some(first) = unknown.first() else {
            return self.reporter.fine(&file.to_string_lossy());
        };
        let fields: Vec<&str> = unknown.iter().map(|it| it.field.as_str()).take(SHOWN).collect();
        let more = unknown.len() - fields.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let error = format!("unknown fields: {}{more}", fields.join(", "));
        self.report_as(file, first.line, error, ManifestEffect::FieldsIgnored);
    }
}

/// Regular files, sorted; names that begin with a dot are skipped.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let hidden = path.file_name().and_then(OsStr::to_str).is_none_or(|n| n.starts_with('.'));
        // Follows links: manifests are often linked in from elsewhere.
        if !hidden && std::fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// If two files define a pod of the same name, the last one is used.
fn last_of_each_name<'a>(pods: impl Iterator<Item = &'a v1::Pod>) -> Vec<v1::Pod> {
    let mut by_name = BTreeMap::new();
    for pod in pods {
        let meta = &pod.metadata;
        by_name.insert((meta.namespace.clone(), meta.name.clone()), pod.clone());
    }
    by_name.into_values().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::report::events::Recorder;
    use crate::sources::problems::ManifestProblems;

    #[test]
    fn manifest_of_more_than_ten_mebibytes_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pod.yaml");
        let clock = Clock::real();
        let (events, _recorded) = Recorder::new(clock.clone());
        let problems = ManifestProblems::default();
        let reporter = ManifestReporter { problems, events, node: "n".into() };
        let recheck = Duration::from_secs(1);
        let manifests =
            Manifests::new(path.clone(), recheck, PodFeatures::DEFAULT, reporter, clock);
        let file = File::create(&path).unwrap();
        for (size, is_refused) in [(MAX_SIZE, false), (MAX_SIZE + 1, true), (1 << 40, true)] {
            file.set_len(size).unwrap();
            let error = manifests.read(&path).unwrap_err();
            assert_eq!(matches!(error, ReadError::TooLarge), is_refused, "{size}: {error}");
        }
        let endless = manifests.read(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(endless, ReadError::TooLarge), "{endless}");
    }
}
