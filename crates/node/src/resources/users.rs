//! User ID allocation for pods with a user namespace.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::config::IdMappings;
use podwright_core::ids::PodUid;
use podwright_core::users::{IdBlock, UserRange};
use podwright_host::files::{Durability, FileError, Kind, Root};
use podwright_host::threads;

use crate::context::NodeContext;

/// In the pod directory, as upstream.
const FILE: &str = "userns";
const MAX_SIZE: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum UserRangeError {
    #[error("pod {0}: no free user IDs. Fix: delete a pod with hostUsers: false, or raise maxPods")]
    Exhausted(PodUid),
    #[error(
        "pod {pod}: the file {FILE} is damaged. Fix: remove it once no container of the pod runs"
    )]
    Damaged { pod: PodUid },
    #[error(
        "pod {pod}: cannot allocate user IDs: the file {FILE} of pod {owner} is unreadable. Fix: \
         delete that pod, or remove the file once no container of the pod runs"
    )]
    OthersUnknown { pod: PodUid, owner: PodUid, source: Option<FileError> },
    #[error("pod {pod}: cannot store its range of user IDs")]
    File { pod: PodUid, source: FileError },
    #[error("pod {0}: the agent is stopping, no user IDs allocated")]
    Stopping(PodUid),
}

/// [`Users::of_pod`] on a blocking thread: a block is written to disk before it is used.
pub async fn allocate(
    context: &Arc<NodeContext>,
    pod: &PodUid,
) -> Result<IdMappings, UserRangeError> {
    let (context, uid) = (context.clone(), pod.clone());
    let allocated =
        threads::blocking(move || context.users.of_pod(context.volumes.pods(), &uid)).await;
    allocated.unwrap_or_else(|_| Err(UserRangeError::Stopping(pod.clone())))
}

pub struct Users {
    range: UserRange,
    /// Prevents two pods from choosing the same free block.
    allocating: Mutex<()>,
}

impl Users {
    pub fn new(range: UserRange) -> Self {
        Self { range, allocating: Mutex::default() }
    }

    /// The block of the pod: the one it has, or a free one. `pods` is the directory that holds all
    /// pod directories; the block is in use until it is released or the pod directory is removed.
    pub fn of_pod(&self, pods: &Root, pod: &PodUid) -> Result<IdMappings, UserRangeError> {
        let failed = |source| UserRangeError::File { pod: pod.clone(), source };
        if let Some(kept) = read(pods, pod.as_str()).map_err(failed)? {
            let damaged = || UserRangeError::Damaged { pod: pod.clone() };
            return kept.map(|block| block.mappings()).ok_or_else(damaged);
        }
        let _guard = self.allocating.lock();
        let mut taken = Vec::new();
        for (name, kind) in pods.list("").map_err(failed)? {
            // Stray files are ignored; a pod directory is never a link.
            match kind {
                Kind::File | Kind::Symlink => continue,
                Kind::Directory | Kind::Other => {}
            }
            // UIDs are text.
            let Some(name) = name.to_str() else { continue };
            let unknown = |source| UserRangeError::OthersUnknown {
                pod: pod.clone(),
                owner: PodUid::new(name),
                source,
            };
            match read(pods, name) {
                Ok(None) => {}
                Ok(Some(Some(block))) => taken.push(block),
                // Any block may belong to that pod: two pods with one block could reach each other.
                Ok(Some(None)) => return Err(unknown(None)),
                Err(error) => return Err(unknown(Some(error))),
            }
        }
        let free = self.range.free(&taken);
        let block = free.ok_or_else(|| UserRangeError::Exhausted(pod.clone()))?;
        let path = format!("{pod}/{FILE}");
        pods.write_atomic(path, &block.to_file(), 0o644, Durability::Disk).map_err(failed)?;
        Ok(block.mappings())
    }
}

/// Releases the block of a finished pod, even if the pod directory is kept.
pub(crate) fn release(pods: &Root, pod: &PodUid) -> Result<(), FileError> {
    pods.remove_file(format!("{pod}/{FILE}"))
}

/// `None`: no file. `Some(None)`: the file is damaged.
fn read(pods: &Root, pod: &str) -> Result<Option<Option<IdBlock>>, FileError> {
    match pods.read(format!("{pod}/{FILE}"), MAX_SIZE) {
        Ok(bytes) => Ok(Some(IdBlock::from_file(&bytes))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_keeps_its_block_until_it_is_released_or_its_directory_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let pods = Root::open(directory.path()).unwrap();
        let users = Users::new(UserRange::for_pods(2, 0));
        let [a, b, c] = ["a", "b", "c"].map(PodUid::new);
        for pod in [&a, &b, &c] {
            pods.create_dir(pod.as_str(), 0o750).unwrap();
        }
        let first = users.of_pod(&pods, &a).unwrap();
        let second = users.of_pod(&pods, &b).unwrap();
        assert_ne!(first, second);
        assert_eq!(users.of_pod(&pods, &a).unwrap(), first);
        assert!(matches!(users.of_pod(&pods, &c), Err(UserRangeError::Exhausted(_))));
        release(&pods, &a).unwrap();
        assert_eq!(users.of_pod(&pods, &c).unwrap(), first);
        pods.remove_dir_all("c").unwrap();
        assert_eq!(users.of_pod(&pods, &a).unwrap(), first);
        std::fs::write(directory.path().join("b/userns"), "torn").unwrap();
        assert!(matches!(users.of_pod(&pods, &b), Err(UserRangeError::Damaged { .. })));
    }

    #[test]
    fn nothing_is_allocated_while_the_range_of_another_pod_is_unknown() {
        let damages: [fn(&std::path::Path); 3] = [
            |file| std::fs::write(file, "torn").unwrap(),
            |file| std::fs::write(file, vec![b' '; 5000]).unwrap(),
            |file| std::fs::create_dir(file).unwrap(),
        ];
        for (case, damage) in damages.into_iter().enumerate() {
            let directory = tempfile::tempdir().unwrap();
            let pods = Root::open(directory.path()).unwrap();
            let users = Users::new(UserRange::for_pods(8, 0));
            let [a, b, c] = ["a", "b", "c"].map(PodUid::new);
            for pod in [&a, &b, &c] {
                pods.create_dir(pod.as_str(), 0o750).unwrap();
            }
            // A stray file, which is ignored.
            std::fs::write(directory.path().join("stray"), "x").unwrap();
            let first = users.of_pod(&pods, &a).unwrap();
            let record = directory.path().join("b/userns");
            damage(&record);
            let refused = users.of_pod(&pods, &c);
            let owner = match refused {
                Err(UserRangeError::OthersUnknown { owner, .. }) => owner,
                other => panic!("case {case}: {other:?}"),
            };
            assert_eq!(owner, b, "case {case}");
            assert_eq!(users.of_pod(&pods, &a).unwrap(), first, "known ranges are still returned");
            pods.remove_dir_all("b").unwrap();
            assert_ne!(users.of_pod(&pods, &c).unwrap(), first);
        }
    }
}
