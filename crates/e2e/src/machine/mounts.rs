//! Mounts of a machine snapshot, with propagation.

use std::collections::BTreeMap;

use anyhow::Result;

use super::{Entry, Kind};
use crate::mounts::{self, Mount};

pub(super) fn entries() -> Result<Vec<Entry>> {
    Ok(describe(&mounts::all()?))
}

/// The kernel gives a new number to a peer group that is made again, so a group is named by the
/// mount points that are in it.
fn describe(table: &[Mount]) -> Vec<Entry> {
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
        let Mount { kind, root, source, options, .. } = mount;
        let mut detail = format!("{kind} {source} root {root} {options}");
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
        Entry::new(Kind::Mount, mount.point.display().to_string(), detail)
    };
    table.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_groups_compare_by_their_members_and_not_by_their_numbers() {
        let mount = |point: &str, shared, master| Mount {
            point: point.into(),
            kind: "tmpfs".to_owned(),
            root: "/".to_owned(),
            device: "0:1".to_owned(),
            source: "tmpfs".to_owned(),
            options: "rw rw".to_owned(),
            shared,
            master,
            unbindable: false,
        };
        let table = |group| {
            let peers = [mount("/a", Some(group), None), mount("/b", Some(group), None)];
            let others = [mount("/c", None, Some(group)), mount("/d", None, None)];
            describe(&[peers, others].concat())
        };
        assert_eq!(table(7), table(19));
        let said: Vec<String> = table(7).iter().map(ToString::to_string).collect();
        let prefix = "tmpfs tmpfs root / rw rw";
        assert_eq!(
            said,
            [
                format!("mount /a: {prefix} shared [/a /b]"),
                format!("mount /b: {prefix} shared [/a /b]"),
                format!("mount /c: {prefix} slave of [/a /b]"),
                format!("mount /d: {prefix} private"),
            ]
        );
    }
}
