//! Something read from files that others replace while we run: certificates and authorities.
//!
//! Nobody has to be told of a change: whoever uses the value asks for it, and asking looks at the
//! files' times first, at most once a second. So there is no watch and no timer, and a node that
//! nobody talks to does nothing. A file that is broken leaves the last good value in use.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::time::Instant;

const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} {problem}", path.display())]
    Content { path: PathBuf, problem: String },
}

/// How the value comes from the files.
type Load<T> = Box<dyn Fn() -> Result<T, FileProblem> + Send + Sync>;

pub(super) struct Fresh<T> {
    paths: Vec<PathBuf>,
    load: Load<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    stamps: Vec<Stamp>,
    looked: Instant,
}

/// What changes when a file is replaced; `None`: it is not there.
type Stamp = Option<(SystemTime, u64)>;

impl<T> Fresh<T> {
    pub(super) fn load(
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T, FileProblem> + Send + Sync + 'static,
    ) -> Result<Self, FileProblem> {
        // Before the content: what changes in between is read again.
        let stamps = stamps(&paths);
        let state = State { value: Arc::new(load()?), stamps, looked: Instant::now() };
        Ok(Self { paths, load: Box::new(load), state: Mutex::new(state) })
    }

    /// The value as the files have it now.
    pub(super) fn get(&self) -> Arc<T> {
        let mut state = self.state.lock();
        if state.looked.elapsed() >= LOOK_AGAIN {
            state.looked = Instant::now();
            let stamps = stamps(&self.paths);
            if stamps != state.stamps {
                match (self.load)() {
                    Ok(value) => {
                        state.value = Arc::new(value);
                        tracing::info!(files = ?self.paths, "read again");
                    }
                    Err(error) => {
                        tracing::warn!(%error, "changed and unusable; what was read before stays");
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
    async fn a_changed_file_is_read_again_and_a_broken_one_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let file = path.clone();
        let fresh = Fresh::load(vec![path.clone()], move || {
            let text = String::from_utf8(read(&file)?).unwrap();
            let problem = |_| FileProblem::Content { path: file.clone(), problem: "is bad".into() };
            text.parse::<u32>().map_err(problem)
        })
        .unwrap();
        assert_eq!(*fresh.get(), 1);
        std::fs::write(&path, "22").unwrap();
        assert_eq!(*fresh.get(), 1, "not looked at again within a second");
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(*fresh.get(), 22);
        for broken in [Some("words"), None] {
            match broken {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            tokio::time::advance(LOOK_AGAIN).await;
            assert_eq!(*fresh.get(), 22, "{broken:?}");
        }
        std::fs::write(&path, "333").unwrap();
        tokio::time::advance(LOOK_AGAIN).await;
        assert_eq!(*fresh.get(), 333);
    }
}
