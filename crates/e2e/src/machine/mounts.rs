//! Mounts of a machine snapshot, with propagation.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::{Entry, Kind};
use crate::mounts::{self, Mount};

pub(super) fn entries() -> Result<Vec<Entry>> {
    Ok(describe(&mounts::all()?, birth))
}

/// Birth time of the file system's root, if known. The kernel gives a new file system the lowest
/// free number, which may be that of one just unmounted: only the birth time reveals a remount.
fn birth(point: &Path) -> Option<String> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, point, flags, StatxFlags::BTIME).ok()?;
    let knows = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    knows.then(|| format!("{}.{:09}", found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
}

/// The kernel gives a recreated peer group a new number, so a group is identified by its mount
/// points.
fn describe(table: &[Mount], birth: impl Fn(&Path) -> Option<String>) -> Vec<Entry> {
    let mut members: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for mount in table {
        if let Some(group) = mount.shared {
            members.entry(group).or_default().push(mount.point.display().to_string());
        }
    }
    for points in members.values_mut() {
        points.sort();
    }
    let group = |number: u32| match members.get(&number) {
        Some(points) => format!("[{}]", points.join(" ")),
        None => "[elsewhere]".to_owned(),
    };
    let entry = |mount: &Mount| {
        let Mount { kind, root, device, source, options, .. } = mount;
        let mut detail = format!("{kind} {source} device {device} root {root} {options}");
        match (mount.shared, mount.master) {
            (None, None) => detail.push_str(" private"),
            (shared, master) => {
                detail.extend(shared.map(|number| format!(" shared {}", group(number))));
                detail.extend(master.map(|number| format!(" slave of {}", group(number))));
            }
        }
        if mount.unbindable {
            detail.push_str(" unbindable");
        }
        detail.extend(birth(&mount.point).map(|time| format!(" made at {time}")));
        Entry::new(Kind::Mount, mount.point.display().to_string(), detail)
    };
    table.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(point: &str, shared: Option<u32>, master: Option<u32>) -> Mount {
        Mount {
            point: point.into(),
            kind: "tmpfs".to_owned(),
            root: "/".to_owned(),
            device: "0:1".to_owned(),
            source: "tmpfs".to_owned(),
            options: "rw rw".to_owned(),
            shared,
            master,
            unbindable: false,
        }
    }

    #[test]
    fn remounted_file_system_is_a_difference() {
        let first = mount("/a", None, None);
        let other = Mount { device: "0:2".to_owned(), ..first.clone() };
        let at = |mount: &Mount, time: &str| {
            describe(std::slice::from_ref(mount), |_| Some(time.to_owned()))
        };
        assert_eq!(at(&first, "1"), at(&first, "1"));
        assert_ne!(at(&first, "1"), at(&other, "1"), "another device");
        assert_ne!(at(&first, "1"), at(&first, "2"), "the same number, made later");
    }

    #[test]
    fn peer_groups_are_compared_by_members_not_by_numbers() {
        let table = |group| {
            let peers = [mount("/a", Some(group), None), mount("/b", Some(group), None)];
            let others = [mount("/c", None, Some(group)), mount("/d", None, None)];
            describe(&[peers, others].concat(), |_| None)
        };
        assert_eq!(table(7), table(19));
        let output: Vec<String> = table(7).iter().map(ToString::to_string).collect();
        let prefix = "tmpfs tmpfs device 0:1 root / rw rw";
        assert_eq!(
            output,
            [
                format!("mount /a: {prefix} shared [/a /b]"),
                format!("mount /b: {prefix} shared [/a /b]"),
                format!("mount /c: {prefix} slave of [/a /b]"),
                format!("mount /d: {prefix} private"),
            ]
        );
    }
}
