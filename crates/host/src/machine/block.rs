//! Block devices: I/O counters, and the filesystems on them.

use std::collections::BTreeMap;

use super::{Disk, Machine, Result, disk};
use crate::mounts::{self, Mount};

/// A device's counters since boot, as in `/proc/diskstats`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// Major and minor number.
    pub number: (u32, u32),
    pub name: String,
    pub reads: u64,
    pub reads_merged: u64,
    pub sectors_read: u64,
    pub read_millis: u64,
    pub writes: u64,
    pub writes_merged: u64,
    pub sectors_written: u64,
    pub write_millis: u64,
    pub in_progress: u64,
    pub io_millis: u64,
    pub weighted_io_millis: u64,
}

/// A filesystem on a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filesystem {
    /// `/dev/sda1`.
    pub device: String,
    pub disk: Disk,
    /// All zero if the kernel does not count it.
    pub activity: BlockDevice,
}

impl Machine {
    pub fn block_devices(&self) -> Result<Vec<BlockDevice>> {
        Ok(self.read("proc/diskstats")?.lines().filter_map(block_device).collect())
    }

    /// Every filesystem with a device, once, no matter how often it is mounted.
    pub fn filesystems(&self) -> Result<Vec<Filesystem>> {
        let table = self.read("proc/self/mountinfo")?;
        let mut found: BTreeMap<String, Mount> = BTreeMap::new();
        for mount in mounts::parse(table.as_bytes()) {
            let Some(source) = mount.source.to_str().filter(|name| name.starts_with("/dev/"))
            else {
                continue;
            };
            found.entry(source.to_owned()).or_insert(mount);
        }
        let devices = self.block_devices()?;
        let filesystem = |(device, mount): (String, Mount)| {
            let named = |known: &&BlockDevice| device.strip_prefix("/dev/") == Some(&known.name);
            // `/dev/root` and `/dev/mapper/…` are named differently there.
            let numbered = |known: &&BlockDevice| known.number == mount.device;
            let known = devices.iter().find(named).or_else(|| devices.iter().find(numbered));
            let activity = known.cloned().unwrap_or_default();
            // A filesystem that was unmounted meanwhile is left out.
            Some(Filesystem { disk: disk(&mount.point).ok()?, device, activity })
        };
        Ok(found.into_iter().filter_map(filesystem).collect())
    }
}

fn block_device(line: &str) -> Option<BlockDevice> {
    let mut words = line.split_ascii_whitespace();
    let number = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let name = words.next()?.to_owned();
    let mut next = || words.next()?.parse().ok();
    Some(BlockDevice {
        number,
        name,
        reads: next()?,
        reads_merged: next()?,
        sectors_read: next()?,
        read_millis: next()?,
        writes: next()?,
        writes_merged: next()?,
        sectors_written: next()?,
        write_millis: next()?,
        in_progress: next()?,
        io_millis: next()?,
        weighted_io_millis: next()?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn filesystem_is_listed_once_with_its_device_counters() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let diskstats = " 8 1 sda1 1 2 3 4 5 6 7 8 9 10 11 12 13\n 8 2 sda2 1\nbroken\n \
                         253 0 dm-0 21 2 3 4 5 6 7 8 9 10 11\n";
        std::fs::write(root.path().join("proc/diskstats"), diskstats).unwrap();
        let table = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:1 /x /mnt rw - ext4 /dev/sda1 rw\n\
                     3 1 0:2 / /proc rw - proc proc rw\n4 1 9:9 / /gone/away rw - xfs /dev/gone rw\n\
                     5 1 253:0 / /proc rw - ext4 /dev/root rw\n6 1 9:8 / /proc rw - fuse /dev/odd rw\n";
        std::fs::write(root.path().join("proc/self/mountinfo"), table).unwrap();
        let machine = Machine::at(root.path());
        let found = machine.filesystems().unwrap();
        let summary = |fs: &Filesystem| (fs.device.clone(), fs.activity.number, fs.activity.reads);
        assert_eq!(
            found.iter().map(summary).collect::<Vec<_>>(),
            [
                ("/dev/odd".into(), (0, 0), 0),
                ("/dev/root".into(), (253, 0), 21),
                ("/dev/sda1".into(), (8, 1), 1),
            ]
        );
        assert!(found.iter().any(|fs| fs.disk.capacity > 0));
        assert_eq!(machine.block_devices().unwrap().len(), 2);
    }
}
