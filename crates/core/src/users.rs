//! Host id ranges for pods with user namespaces (`hostUsers: false`).
//!
//! Each such pod gets a block of ids that no other pod has, so its root user is unprivileged on the
//! node and in other pods. The block is stored in the pod's directory, in upstream's format, and is
//! free again once the directory is removed.

use std::collections::BTreeMap;

use podwright_proto::cri;
use serde::{Deserialize, Serialize};

use crate::config::IdMappings;
use crate::ids::PodUid;

/// Minimum block size and alignment: ids of an image have 16 bits.
pub const BLOCK: u32 = 1 << 16;

/// Ids reserved for pods, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRange {
    pub first: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// `userNamespaces.idsPerPod`: ids per block.
    pub ids_per_pod: u32,
}

impl UserRange {
    /// Directly above the node's own ids, for the maximum number of pods.
    pub fn for_pods(max_pods: u32, ids_per_pod: u32) -> Self {
        let ids_per_pod = ids_per_pod.max(BLOCK);
        let room = (u32::MAX - ids_per_pod) / ids_per_pod;
        Self { first: ids_per_pod, blocks: max_pods.min(room), ids_per_pod }
    }

    /// Range reserved by the administrator for the user `kubelet`, in the output of `getsubids`:
    /// `0: kubelet 65536 7208960`. Several ranges, or an unaligned one, are not supported.
    pub fn from_subids(printed: &str, ids_per_pod: u32) -> Option<Self> {
        let ids_per_pod = ids_per_pod.max(BLOCK);
        let mut lines = printed.lines().filter(|line| !line.trim().is_empty());
        let mut words = lines.next()?.split_whitespace();
        let (index, user) = (words.next()?, words.next()?);
        let first: u32 = words.next()?.parse().ok()?;
        let count: u32 = words.next()?.parse().ok()?;
        let one = lines.next().is_none() && index == "0:" && user == "kubelet";
        let sound = one && first >= BLOCK && first.is_multiple_of(BLOCK) && count >= ids_per_pod;
        sound.then_some(Self { first, blocks: count / ids_per_pod, ids_per_pod })
    }

    /// `None` beyond the ids of the node.
    fn block(&self, number: u32) -> Option<IdBlock> {
        let first = self.first.checked_add(number.checked_mul(self.ids_per_pod)?)?;
        Some(IdBlock { first, length: self.ids_per_pod })
    }

    /// Numbers of the blocks of this range that overlap `other`, which may lie anywhere.
    fn numbers(&self, other: &IdBlock) -> std::ops::Range<usize> {
        let (start, size) = (u64::from(self.first), u64::from(self.ids_per_pod.max(1)));
        let from = u64::from(other.first).saturating_sub(start) / size;
        let to = other.end().saturating_sub(start).div_ceil(size);
        let number = |number: u64| usize::try_from(number.min(self.blocks.into())).unwrap_or(0);
        number(from)..number(to)
    }
}

/// The blocks that pods have, and which blocks of the range are free.
#[derive(Clone, Debug)]
pub struct UsedBlocks {
    range: UserRange,
    by_pod: BTreeMap<PodUid, IdBlock>,
    /// For each block of the range, how many pods have an id in it. More than one if the range
    /// was configured differently before.
    pods: Vec<u32>,
}

impl UsedBlocks {
    pub fn new(range: UserRange) -> Self {
        Self {
            range,
            by_pod: BTreeMap::new(),
            pods: vec![0; usize::try_from(range.blocks).unwrap_or(0)],
        }
    }

    /// First free block.
    pub fn free(&self) -> Option<IdBlock> {
        let number = self.pods.iter().position(|pods| *pods == 0)?;
        self.range.block(u32::try_from(number).ok()?)
    }

    /// Records the block of a pod, in place of its former one.
    pub fn insert(&mut self, pod: PodUid, block: IdBlock) {
        self.remove(&pod);
        self.by_pod.insert(pod, block);
        for pods in self.overlapping(&block) {
            *pods += 1;
        }
    }

    pub fn remove(&mut self, pod: &PodUid) {
        let Some(block) = self.by_pod.remove(pod) else { return };
        for pods in self.overlapping(&block) {
            *pods -= 1;
        }
    }

    fn overlapping(&mut self, block: &IdBlock) -> &mut [u32] {
        let numbers = self.range.numbers(block);
        self.pods.get_mut(numbers).unwrap_or_default()
    }
}

/// Ids of one pod: id 0 in the pod is `first` on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdBlock {
    pub first: u32,
    pub length: u32,
}

impl IdBlock {
    /// The id after the last one.
    fn end(&self) -> u64 {
        u64::from(self.first) + u64::from(self.length)
    }

    pub fn mappings(&self) -> IdMappings {
        let mapping = cri::IdMapping { host_id: self.first, container_id: 0, length: self.length };
        IdMappings { uids: vec![mapping], gids: vec![mapping] }
    }

    /// File content in the pod's directory.
    pub fn to_file(&self) -> Vec<u8> {
        let row = Row { host_id: self.first, container_id: 0, length: self.length };
        let file = File { uid_mappings: vec![row], gid_mappings: vec![row] };
        serde_json::to_vec(&file).unwrap_or_default()
    }

    /// `None` if the file is neither ours nor upstream's.
    pub fn from_file(bytes: &[u8]) -> Option<Self> {
        let file: File = serde_json::from_slice(bytes).ok()?;
        let (&[uids], &[gids]) = (&*file.uid_mappings, &*file.gid_mappings) else { return None };
        let sound = uids == gids && uids.container_id == 0 && uids.length > 0;
        sound.then_some(Self { first: uids.host_id, length: uids.length })
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    #[serde(rename = "uidMappings")]
    uid_mappings: Vec<Row>,
    #[serde(rename = "gidMappings")]
    gid_mappings: Vec<Row>,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Row {
    #[serde(rename = "hostId")]
    host_id: u32,
    #[serde(rename = "containerId")]
    container_id: u32,
    #[serde(rename = "length")]
    length: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(number: u32) -> IdBlock {
        IdBlock { first: BLOCK * number, length: BLOCK }
    }

    #[test]
    fn pod_gets_the_first_free_block() {
        let range = UserRange::for_pods(3, 0);
        for (taken, want) in [
            (vec![], Some(block(1))),
            (vec![block(1), block(3)], Some(block(2))),
            (vec![IdBlock { first: 70_000, length: 10 }], Some(block(2))),
            (vec![IdBlock { first: 70_000, length: BLOCK }], Some(block(3))),
            (vec![IdBlock { first: 0, length: BLOCK }], Some(block(1))),
            (vec![block(4)], Some(block(1))),
            (vec![block(1), block(2), block(3)], None),
        ] {
            assert_eq!(used(range, &taken).free(), want, "{taken:?}");
        }
        let all = UserRange::for_pods(u32::MAX, BLOCK);
        let taken = [IdBlock { first: BLOCK, length: u32::MAX - BLOCK }];
        assert!(used(all, &taken).free().is_none());
    }

    fn used(range: UserRange, taken: &[IdBlock]) -> UsedBlocks {
        let mut used = UsedBlocks::new(range);
        for (number, block) in taken.iter().enumerate() {
            used.insert(PodUid::new(format!("uid-{number}")), *block);
        }
        used
    }

    proptest! {
        #[test]
        fn used_blocks_match_a_search_through_all_pods(
            first in 1u32..4, blocks in 0u32..6, size in 1u32..3,
            steps in prop::collection::vec((0u8..6, prop::option::of((0u32..12, 1u32..6))), 0..40),
        ) {
            const HALF: u32 = BLOCK / 2;
            let range = UserRange { first: first * BLOCK, blocks, ids_per_pod: size * BLOCK };
            let mut used = UsedBlocks::new(range);
            let mut model: BTreeMap<PodUid, IdBlock> = BTreeMap::new();
            for (pod, block) in steps {
                let pod = PodUid::new(format!("uid-{pod}"));
                match block {
                    Some((first, length)) => {
                        let block = IdBlock { first: first * HALF, length: length * HALF };
                        used.insert(pod.clone(), block);
                        model.insert(pod, block);
                    }
                    None => {
                        used.remove(&pod);
                        model.remove(&pod);
                    }
                }
                let overlaps = |a: &IdBlock, b: &IdBlock| {
                    u64::from(a.first) < b.end() && u64::from(b.first) < a.end()
                };
                let free = (0..blocks)
                    .filter_map(|number| range.block(number))
                    .find(|block| !model.values().any(|other| overlaps(block, other)));
                prop_assert_eq!(used.free(), free);
            }
        }
    }

    #[test]
    fn administrators_range_is_used_if_valid() {
        for (printed, want) in [
            ("0: kubelet 131072 131072\n", Some((131_072, 2))),
            ("0: kubelet 131072 65535", None),
            ("0: kubelet 1000 131072", None),
            ("0: kubelet 65537 131072", None),
            ("0: other 131072 131072", None),
            ("0: kubelet 131072 131072\n1: kubelet 1310720 65536", None),
            ("Error fetching ranges", None),
            ("", None),
        ] {
            let range = UserRange::from_subids(printed, BLOCK);
            assert_eq!(range.map(|range| (range.first, range.blocks)), want, "{printed}");
        }
    }

    #[test]
    fn block_is_stored_in_upstreams_format() {
        let kept = block(2).to_file();
        let text = String::from_utf8(kept.clone()).unwrap();
        assert_eq!(
            text,
            r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#
        );
        assert_eq!(IdBlock::from_file(&kept), Some(block(2)));
        for bad in ["", "{}", &text.replace("131072", "0x"), &text.replacen("131072", "65536", 1)] {
            assert_eq!(IdBlock::from_file(bad.as_bytes()), None, "{bad}");
        }
    }
}
