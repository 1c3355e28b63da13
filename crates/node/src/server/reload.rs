//! Reloading of certificate and CA files that change while the agent runs.
//!
//! The files' times are checked when the value is used, at most once a second. So there is neither
//! a watch nor a timer, and an idle node does nothing. An invalid file leaves the last valid value
//! in use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} {problem}", path.display())]
    Content { path: PathBuf, problem: String },
}

/// Loads the value from the files.
type Load<T> = Box<dyn Fn() -> Result<T, FileProblem> + Send + Sync>;

/// Whether a changed file is read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reload {
    #[default]
    OnChange,
    Never,
}

pub(super) struct Reloading<T> {
    paths: Vec<PathBuf>,
    reload: Reload,
    load: Load<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
    checked_at: Instant,
}

/// Changes when a file is replaced; `None`: the file is missing.
type Stamp = Option<(SystemTime, u64)>;

impl<T> Reloading<T> {
    pub(super) fn load(
        paths: Vec<PathBuf>,
        reload: Reload,
        load: impl Fn() -> Result<T, FileProblem> + Send + Sync + 'static,
    ) -> Result<Self, FileProblem> {
        // Before the content, so that a change in between is detected later.
        let stamps = stamps(&paths);
        let state = State { value: Arc::new(load()?), stamps, checked_at: Instant::now() };
        Ok(Self { paths, reload, load: Box::new(load), state: Mutex::new(state) })
    }

    /// The current value, reloaded if the files changed.
    pub(super) fn get(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if self.reload == Reload::OnChange && state.checked_at.elapsed() >= CHECK_INTERVAL {
            state.checked_at = Instant::now();
            let stamps = stamps(&self.paths);
            if stamps != state.stamps {
                match (self.load)() {
                    Ok(value) => {
                        state.value = Arc::new(value);
                        tracing::info!(files = ?self.paths, "reloaded changed files");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "changed file is invalid, keeping the last valid one");
                    }
                }
                state.stamps = stamps;
            }
        }
        state.value.clone()
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |path: &PathBuf| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    paths.iter().map(stamp).collect()
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, FileProblem> {
    std::fs::read(path).map_err(|source| FileProblem::Read { path: path.to_owned(), source })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn changed_file_is_reloaded_and_invalid_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let file = path.clone();
        let fresh = Reloading::load(vec![path.clone()], Reload::OnChange, move || {
            let text = String::from_utf8(read(&file)?).unwrap();
            let problem = |_| FileProblem::Content { path: file.clone(), problem: "is bad".into() };
            text.parse::<u32>().map_err(problem)
        })
        .unwrap();
        assert_eq!(*fresh.get(), 1);
        std::fs::write(&path, "22").unwrap();
        assert_eq!(*fresh.get(), 1, "not checked again within a second");
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(*fresh.get(), 22);
        for broken in [Some("words"), None] {
            match broken {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            tokio::time::advance(CHECK_INTERVAL).await;
            assert_eq!(*fresh.get(), 22, "{broken:?}");
        }
        std::fs::write(&path, "333").unwrap();
        tokio::time::advance(CHECK_INTERVAL).await;
        assert_eq!(*fresh.get(), 333);
    }

    #[tokio::test(start_paused = true)]
    async fn changed_file_is_not_read_again_while_its_feature_gate_is_off() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("text");
        std::fs::write(&path, "first").unwrap();
        let file = path.clone();
        let fixed =
            Reloading::load(vec![path.clone()], Reload::Never, move || read(&file)).unwrap();
        std::fs::write(&path, "the second").unwrap();
        tokio::time::advance(2 * CHECK_INTERVAL).await;
        assert_eq!(*fixed.get(), b"first");
    }
}
