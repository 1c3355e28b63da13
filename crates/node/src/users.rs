//! Gives pods with users of their own a block of the node's ids.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_core::config::IdMappings;
use podwright_core::ids::PodUid;
use podwright_core::users::{Block, UserRange};
use podwright_host::files::{Durability, FileError, Kind, Root};
use podwright_host::threads;

use crate::tools::Tools;

/// In the pod's folder, where upstream keeps it.
const FILE: &str = "userns";
const LARGEST: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum UserRangeError {
    #[error("no user ids are left for pod {0}: end a pod with hostUsers: false, or raise maxPods")]
    Exhausted(PodUid),
    #[error("pod {pod}: its file {FILE} is damaged; remove it once nothing of the pod runs")]
    Damaged { pod: PodUid },
    #[error(
        "no user ids are given to pod {pod}: which ones pod {owner} has cannot be read from its \
         file {FILE}; end that pod, or remove the file once nothing of the pod runs"
    )]
    OthersUnknown { pod: PodUid, owner: PodUid, source: Option<FileError> },
    #[error("pod {pod}: cannot keep its range of user ids")]
    File { pod: PodUid, source: FileError },
    #[error("pod {0}: the agent stops before it has user ids")]
    Stopping(PodUid),
}

/// [`Users::of_pod`], away from the threads that others wait for: a block that is given out is on
/// the disk before it is used.
pub async fn give(tools: &Arc<Tools>, pod: &PodUid) -> Result<IdMappings, UserRangeError> {
    let (tools, uid) = (tools.clone(), pod.clone());
    let given = threads::blocking(move || tools.users.of_pod(tools.volumes.pods(), &uid)).await;
    given.unwrap_or_else(|_| Err(UserRangeError::Stopping(pod.clone())))
}

pub struct Users {
    range: UserRange,
    /// Two pods must not find the same block free.
    choosing: Mutex<()>,
}

impl Users {
    pub fn new(range: UserRange) -> Self {
        Self { range, choosing: Mutex::default() }
    }

    /// The pod's block: the one it has, or a free one. `pods` is the folder of all pods' folders;
    /// the block is taken until it is given back, or the pod's folder goes.
    pub fn of_pod(&self, pods: &Root, pod: &PodUid) -> Result<IdMappings, UserRangeError> {
        let failed = |source| UserRangeError::File { pod: pod.clone(), source };
        if let Some(kept) = read(pods, pod.as_str()).map_err(failed)? {
            let damaged = || UserRangeError::Damaged { pod: pod.clone() };
            return kept.map(|block| block.mappings()).ok_or_else(damaged);
        }
        let _alone = self.choosing.lock();
        let mut taken = Vec::new();
        for (name, kind) in pods.list("").map_err(failed)? {
            // A stray file is no pod's, and a pod's directory is never a link.
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
                // Any block might be that pod's: two pods of one block could reach each other.
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

/// At the end of a pod's life another may have its block, however long its folder is kept.
pub(crate) fn give_back(pods: &Root, pod: &PodUid) -> Result<(), FileError> {
    pods.remove_file(format!("{pod}/{FILE}"))
}

/// `None`: no file. `Some(None)`: one that says nothing.
fn read(pods: &Root, pod: &str) -> Result<Option<Option<Block>>, FileError> {
    match pods.read(format!("{pod}/{FILE}"), LARGEST) {
        Ok(bytes) => Ok(Some(Block::from_file(&bytes))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_keeps_its_block_until_it_is_given_back_or_its_folder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let pods = Root::open(folder.path()).unwrap();
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
        give_back(&pods, &a).unwrap();
        assert_eq!(users.of_pod(&pods, &c).unwrap(), first);
        pods.remove_dir_all("c").unwrap();
        assert_eq!(users.of_pod(&pods, &a).unwrap(), first);
        std::fs::write(folder.path().join("b/userns"), "torn").unwrap();
        assert!(matches!(users.of_pod(&pods, &b), Err(UserRangeError::Damaged { .. })));
    }

    #[test]
    fn no_range_is_given_out_while_another_pods_range_is_unknown() {
        let damages: [fn(&std::path::Path); 3] = [
            |file| std::fs::write(file, "torn").unwrap(),
            |file| std::fs::write(file, vec![b' '; 5000]).unwrap(),
            |file| std::fs::create_dir(file).unwrap(),
        ];
        for (case, damage) in damages.into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let pods = Root::open(folder.path()).unwrap();
            let users = Users::new(UserRange::for_pods(8, 0));
            let [a, b, c] = ["a", "b", "c"].map(PodUid::new);
            for pod in [&a, &b, &c] {
                pods.create_dir(pod.as_str(), 0o750).unwrap();
            }
            // Not a pod's, and nobody's business.
            std::fs::write(folder.path().join("stray"), "x").unwrap();
            let first = users.of_pod(&pods, &a).unwrap();
            let record = folder.path().join("b/userns");
            damage(&record);
            let refused = users.of_pod(&pods, &c);
            let owner = match refused {
                Err(UserRangeError::OthersUnknown { owner, .. }) => owner,
                other => panic!("case {case}: {other:?}"),
            };
            assert_eq!(owner, b, "case {case}");
            assert_eq!(users.of_pod(&pods, &a).unwrap(), first, "what is known goes on");
            pods.remove_dir_all("b").unwrap();
            assert_ne!(users.of_pod(&pods, &c).unwrap(), first);
        }
    }
}
