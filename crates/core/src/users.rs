//! Ranges of the node's user ids for pods with users of their own (`hostUsers: false`).
//!
//! Each such pod gets a block of ids that no other pod has: its root is nobody on the node and
//! nobody in another pod. The block is kept in the pod's folder, in upstream's form, for as long
//! as the folder is there; so nothing has to be given back.

use podwright_proto::cri;
use serde::{Deserialize, Serialize};

use crate::config::IdMappings;

/// The smallest block, and the step in which blocks are counted: every id of an image has 16 bits.
pub const BLOCK: u32 = 1 << 16;

/// The ids set aside for pods, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRange {
    pub first: u32,
    /// Blocks in it.
    pub blocks: u32,
    /// `userNamespaces.idsPerPod`: ids in a block.
    pub ids_per_pod: u32,
}

impl UserRange {
    /// Right above the node's own, for as many pods as the node takes.
    pub fn for_pods(max_pods: u32, ids_per_pod: u32) -> Self {
        let ids_per_pod = ids_per_pod.max(BLOCK);
        let room = (u32::MAX - ids_per_pod) / ids_per_pod;
        Self { first: ids_per_pod, blocks: max_pods.min(room), ids_per_pod }
    }

    /// What the node's administrator set aside for the user `kubelet`, in the words of
    /// `getsubids`: `0: kubelet 65536 7208960`. Several ranges, or one that does not begin with a
    /// block, are not for us to understand.
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

    /// The first block nobody has.
    pub fn free(&self, taken: &[Block]) -> Option<Block> {
        let block = |number: u32| {
            let first = self.first.checked_add(number.checked_mul(self.ids_per_pod)?)?;
            Some(Block { first, length: self.ids_per_pod })
        };
        let free = |block: &Block| !taken.iter().any(|other| block.overlaps(other));
        (0..self.blocks).map_while(block).find(free)
    }
}

/// Ids of one pod: its 0 is the node's `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub first: u32,
    pub length: u32,
}

impl Block {
    fn overlaps(&self, other: &Self) -> bool {
        let end = |block: &Self| u64::from(block.first) + u64::from(block.length);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }

    pub fn mappings(&self) -> IdMappings {
        let mapping = cri::IdMapping { host_id: self.first, container_id: 0, length: self.length };
        IdMappings { uids: vec![mapping], gids: vec![mapping] }
    }

    /// As it is kept in the pod's folder.
    pub fn to_file(&self) -> Vec<u8> {
        let row = Row { host_id: self.first, container_id: 0, length: self.length };
        let file = File { uid_mappings: vec![row], gid_mappings: vec![row] };
        serde_json::to_vec(&file).unwrap_or_default()
    }

    /// `None` if this is not a file of ours or of upstream's.
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
    use super::*;

    fn block(number: u32) -> Block {
        Block { first: BLOCK * number, length: BLOCK }
    }

    #[test]
    fn a_pod_gets_the_first_block_nobody_has() {
        let range = UserRange::for_pods(3, 0);
        for (taken, want) in [
            (vec![], Some(block(1))),
            (vec![block(1), block(3)], Some(block(2))),
            (vec![Block { first: 70_000, length: 10 }], Some(block(2))),
            (vec![block(1), block(2), block(3)], None),
        ] {
            assert_eq!(range.free(&taken), want, "{taken:?}");
        }
        let all = UserRange::for_pods(u32::MAX, BLOCK);
        assert!(all.free(&[Block { first: BLOCK, length: u32::MAX - BLOCK }]).is_none());
    }

    #[test]
    fn a_range_of_the_administrators_is_taken_if_it_is_one() {
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
    fn a_block_is_kept_in_upstreams_form() {
        let kept = block(2).to_file();
        let text = String::from_utf8(kept.clone()).unwrap();
        assert_eq!(
            text,
            r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#
        );
        assert_eq!(Block::from_file(&kept), Some(block(2)));
        for bad in ["", "{}", &text.replace("131072", "0x"), &text.replacen("131072", "65536", 1)] {
            assert_eq!(Block::from_file(bad.as_bytes()), None, "{bad}");
        }
    }
}
