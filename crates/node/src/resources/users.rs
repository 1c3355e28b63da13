//! User ID allocation for pods with a user namespace.

use parking_lot::Mutex;
use podwright_core::config::IdMappings;
use podwright_core::ids::PodUid;
use podwright_core::users::{IdBlock, UsedBlocks, UserRange};
use podwright_host::files::{Durability, FileError, Kind, Root};
use podwright_host::threads;

use super::NodeResources;

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
    resources: &NodeResources,
    pod: &PodUid,
) -> Result<IdMappings, UserRangeError> {
    let (users, volumes, uid) = (resources.users.clone(), resources.volumes.clone(), pod.clone());
    let allocated = threads::blocking(move || users.of_pod(volumes.pods(), &uid)).await;
    allocated.unwrap_or_else(|_| Err(UserRangeError::Stopping(pod.clone())))
}

pub struct Users {
    range: UserRange,
    /// The blocks of all pods. Read from the pod directories with the first allocation; from then
    /// on only this agent changes them. `None`: not read yet, or to be read again because a record
    /// may differ. The lock also prevents two pods from choosing the same free block.
    used: Mutex<Option<UsedBlocks>>,
}

impl Users {
    pub fn new(range: UserRange) -> Self {
        Self { range, used: Mutex::default() }
    }

    /// The block of the pod: the one it has, or a free one. `pods` is the directory that holds all
    /// pod directories; the block is in use until it is released or the pod directory is removed.
    pub fn of_pod(&self, pods: &Root, pod: &PodUid) -> Result<IdMappings, UserRangeError> {
        let failed = |source| UserRangeError::File { pod: pod.clone(), source };
        let mut used = self.used.lock();
        match read(pods, pod.as_str()) {
            Ok(Some(Some(block))) => {
                if let Some(used) = &mut *used {
                    used.insert(pod.clone(), block);
                }
                return Ok(block.mappings());
            }
            Ok(Some(None)) => {
                *used = None;
                return Err(UserRangeError::Damaged { pod: pod.clone() });
            }
            Err(error) => {
                *used = None;
                return Err(failed(error));
            }
            Ok(None) => {}
        }
        let known = used.take().and_then(|mut used| {
            // Its record is gone, so its block is free.
            used.remove(pod);
            let block = used.free()?;
            Some((used, block))
        });
        let (blocks, block) = match known {
            Some(known) => known,
            // Not read yet; or none is free, unless records were removed by hand.
            None => {
                let read = self.read_all(pods, pod)?;
                let free = read.free();
                (read, free.ok_or_else(|| UserRangeError::Exhausted(pod.clone()))?)
            }
        };
        let path = format!("{pod}/{FILE}");
        // If this fails the record may exist or not: `used` stays unset, and all are read again.
        pods.write_atomic(path, &block.to_file(), 0o644, Durability::Disk).map_err(failed)?;
        used.insert(blocks).insert(pod.clone(), block);
        Ok(block.mappings())
    }

    /// Reads the blocks of all pods for an allocation to `pod`.
    fn read_all(&self, pods: &Root, pod: &PodUid) -> Result<UsedBlocks, UserRangeError> {
        let failed = |source| UserRangeError::File { pod: pod.clone(), source };
        let mut used = UsedBlocks::new(self.range);
        for (name, kind) in pods.list("").map_err(failed)? {
            // Stray files are ignored; a pod directory is never a link.
            match kind {
                Kind::File | Kind::Symlink => continue,
                Kind::Directory | Kind::Other => {}
            }
            // UIDs are text.
            let Some(name) = name.to_str() else { continue };
            let owner = PodUid::new(name);
            let unknown = |source| UserRangeError::OthersUnknown {
                pod: pod.clone(),
                owner: owner.clone(),
                source,
            };
            match read(pods, name) {
                Ok(None) => {}
                Ok(Some(Some(block))) => used.insert(owner, block),
                // Any block may belong to that pod: two pods with one block could reach each other.
                Ok(Some(None)) => return Err(unknown(None)),
                Err(error) => return Err(unknown(Some(error))),
            }
        }
        Ok(used)
    }

    /// Frees the block of a pod whose record was removed. It stays in use while the record exists,
    /// or if that is unknown.
    pub(crate) fn note_removed(&self, pods: &Root, pod: &PodUid) {
        let mut used = self.used.lock();
        let Some(used) = &mut *used else { return };
        if let Ok(None) = pods.kind(format!("{pod}/{FILE}")) {
            used.remove(pod);
        }
    }
}

/// Removes the record of a finished pod, even if the pod directory is kept. The block is free with
/// [`Users::note_removed`].
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
        users.note_removed(&pods, &a);
        assert_eq!(users.of_pod(&pods, &c).unwrap(), first);
        // By hand, without notice.
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
            // After a restart: until then only the agent itself writes records.
            let users = Users::new(UserRange::for_pods(8, 0));
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

    #[test]
    fn records_are_read_once_and_ranges_stay_in_use_until_they_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let pods = Root::open(directory.path()).unwrap();
        let users = Users::new(UserRange::for_pods(8, 0));
        let [a, b, c, d] = ["a", "b", "c", "d"].map(PodUid::new);
        for pod in [&a, &b, &c, &d] {
            pods.create_dir(pod.as_str(), 0o750).unwrap();
        }
        let first = users.of_pod(&pods, &a).unwrap();
        let second = users.of_pod(&pods, &b).unwrap();
        // The records are not read again, so the damage is not seen, and the range stays in use.
        std::fs::write(directory.path().join("a/userns"), "torn").unwrap();
        users.note_removed(&pods, &a);
        let third = users.of_pod(&pods, &c).unwrap();
        assert!(third != first && third != second);
        // From the moment the damage is seen nothing is allocated.
        assert!(matches!(users.of_pod(&pods, &a), Err(UserRangeError::Damaged { .. })));
        assert!(matches!(users.of_pod(&pods, &d), Err(UserRangeError::OthersUnknown { .. })));
        assert_eq!(users.of_pod(&pods, &b).unwrap(), second);
        release(&pods, &a).unwrap();
        users.note_removed(&pods, &a);
        assert_eq!(users.of_pod(&pods, &d).unwrap(), first);
    }

    #[test]
    fn record_that_was_not_written_leaves_its_range_free() {
        let directory = tempfile::tempdir().unwrap();
        let pods = Root::open(directory.path()).unwrap();
        let users = Users::new(UserRange::for_pods(2, 0));
        let [a, b] = ["a", "b"].map(PodUid::new);
        pods.create_dir("a", 0o750).unwrap();
        assert!(matches!(users.of_pod(&pods, &b), Err(UserRangeError::File { .. })));
        let first = users.of_pod(&pods, &a).unwrap();
        assert!(matches!(users.of_pod(&pods, &b), Err(UserRangeError::File { .. })));
        pods.create_dir("b", 0o750).unwrap();
        assert_ne!(users.of_pod(&pods, &b).unwrap(), first);
    }
}
