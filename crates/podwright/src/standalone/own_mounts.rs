//! The mounts of a node, told apart from all others on the machine.
//!
//! What the node's parts mount is known by place: containerd below its state directory, the agent
//! below the directories of pods, and the agent's root directory on itself, which is recorded before
//! it is made. Whatever else is mounted at, in or above the node's directories is somebody else's:
//! a disk for the whole state directory, one for the volumes. It stays, with all of ours that it is
//! mounted in.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;
use podwright_host::detach::{Detached, detach};
use podwright_host::mounts::{self, Mount};
use serde::{Deserialize, Serialize};

use super::{Layout, write_private};

/// Where the node's directories really are, as the mount table names them.
#[derive(Clone, Debug)]
pub struct Places {
    /// Of the private containerd, for as long as it runs.
    runtime_state: PathBuf,
    /// Of the private containerd, for good.
    runtime_root: PathBuf,
    /// Of the agent.
    agent_root: PathBuf,
    /// Mounts that were on the agent's root directory before we mounted it on itself; `None`: an
    /// earlier build did that, and wrote down nothing.
    before: Option<BTreeSet<u64>>,
}

/// Written before the agent's root directory is mounted on itself.
#[derive(Debug, Serialize, Deserialize)]
struct Intent {
    #[serde(rename = "mounted_before")]
    mounted_before: BTreeSet<u64>,
}

impl Places {
    pub fn of(layout: &Layout) -> anyhow::Result<Self> {
        let path = layout.agent_root_mount();
        let before = match std::fs::read(&path) {
            Ok(text) => {
                let damaged = || format!("{} is damaged; delete it", path.display());
                let intent: Intent = serde_json::from_slice(&text).with_context(damaged)?;
                Some(intent.mounted_before)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(super::unreadable(error, &path)),
        };
        Ok(Self {
            runtime_state: real(&layout.runtime_state()),
            runtime_root: real(&layout.containerd().join("root")),
            agent_root: real(&layout.root_dir()),
            before,
        })
    }

    fn is_ours(&self, mount: &Mount, table: &[Mount]) -> bool {
        let names = |base: &Path| -> Option<Vec<String>> {
            let rest = mount.point.strip_prefix(base).ok()?;
            let name = |part: Component<'_>| part.as_os_str().to_string_lossy().into_owned();
            Some(rest.components().map(name).collect())
        };
        let in_runtime_state = names(&self.runtime_state).is_some_and(|names| {
            let of_plugin = |name: &String| {
                name.starts_with("io.containerd.") || name == "netns" || name == "tmpmounts"
            };
            names.len() > 1 && names.first().is_some_and(of_plugin)
        });
        let temporary = names(&self.runtime_root).is_some_and(|names| {
            names.len() == 2 && names.first().is_some_and(|name| name == "tmpmounts")
        });
        let of_a_pod = names(&self.agent_root).is_some_and(|names| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            matches!(
                names.as_slice(),
                ["pods", _, "volumes", _, _] | ["pods", _, "volume-subpaths", _, _, _]
            )
        });
        in_runtime_state || temporary || of_a_pod || self.is_root_on_itself(mount, table)
    }

    /// The agent's root directory, mounted on itself by us.
    fn is_root_on_itself(&self, mount: &Mount, table: &[Mount]) -> bool {
        if mount.point != self.agent_root {
            return false;
        }
        let Some(below) = table.iter().find(|other| other.id == mount.parent) else { return false };
        let on_itself = mount.device == below.device
            && mount.point.strip_prefix(&below.point).is_ok_and(|rest| {
                // Joining an empty path would append a slash.
                mount.root.components().eq(below.root.join(rest).components())
            });
        on_itself && self.before.as_ref().is_none_or(|before| !before.contains(&mount.id))
    }
}

/// As the kernel names it; one that is not there cannot have mounts.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Lets mounts below the agent's root directory be passed on to containers. Where the file system
/// around it does not do that, the directory is mounted on itself; what is mounted there already is
/// not changed.
pub fn share_agent_root(layout: &Layout) -> anyhow::Result<()> {
    let root = real(&layout.root_dir());
    let table = mounts::table(Path::new("/proc"))?;
    if mounts::around(&table, &root).is_some_and(|mount| mount.shared) {
        return Ok(());
    }
    let there = table.iter().filter(|mount| mount.point == root);
    let intent = Intent { mounted_before: there.map(|mount| mount.id).collect() };
    write_private(&layout.agent_root_mount(), &serde_json::to_vec(&intent)?)?;
    Ok(mounts::bind_shared_on_itself(&table, &root)?)
}

/// Takes off the mounts of the node. Returns what had to stay, and why.
pub fn unmount(places: &Places) -> anyhow::Result<Vec<String>> {
    let table = mounts::table(Path::new("/proc"))?;
    let (chosen, mut left) = choose(places, &table);
    for mount in chosen {
        match detach(mount)? {
            Detached::Yes | Detached::Gone => {}
            Detached::Hidden => {
                left.push(format!("{} (something is mounted over it)", mount.point.display()));
            }
        }
    }
    Ok(left)
}

/// The mounts to take off, in order, and what stays with something of somebody else's in it.
fn choose<'a>(places: &Places, table: &'a [Mount]) -> (Vec<&'a Mount>, Vec<String>) {
    let ours: BTreeSet<u64> =
        table.iter().filter(|it| places.is_ours(it, table)).map(|it| it.id).collect();
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    for mount in table.iter().rev().filter(|mount| ours.contains(&mount.id)) {
        let inside = table.iter().filter(|other| is_below(table, other, mount.id));
        let foreign = inside
            .filter(|other| !ours.contains(&other.id))
            .find(|other| !is_copy(table, other, mount.id));
        match foreign {
            None => chosen.push(mount),
            Some(foreign) => left.push(format!(
                "{} ({} is mounted in it, not by podwright)",
                mount.point.display(),
                foreign.point.display()
            )),
        }
    }
    (chosen, left)
}

/// Whether a mount is mounted in another one, directly or not.
fn is_below(table: &[Mount], mount: &Mount, above: u64) -> bool {
    let mut parent = mount.parent;
    // A path through the table is no longer than the table.
    for _ in table {
        if parent == above {
            return true;
        }
        match table.iter().find(|other| other.id == parent && other.parent != parent) {
            Some(next) => parent = next.parent,
            None => return false,
        }
    }
    false
}

/// Whether the same is mounted outside of `above` as well: then it came along when `above` was
/// bound, and goes with it without being missed.
fn is_copy(table: &[Mount], mount: &Mount, above: u64) -> bool {
    table.iter().any(|other| {
        other.device == mount.device
            && other.root == mount.root
            && other.id != mount.id
            && other.id != above
            && !is_below(table, other, above)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn places(before: Option<&[u64]>) -> Places {
        Places {
            runtime_state: "/run/podwright/1/containerd".into(),
            runtime_root: "/s/containerd/root".into(),
            agent_root: "/s/kubelet".into(),
            before: before.map(|ids| ids.iter().copied().collect()),
        }
    }

    /// Id, parent, device, root, point.
    fn table(lines: &[(u64, u64, &str, &str, &str)]) -> Vec<Mount> {
        let line = |(id, parent, device, root, point): &(u64, u64, &str, &str, &str)| {
            format!("{id} {parent} {device} {root} {point} rw - ext4 /dev/x rw\n")
        };
        mounts::parse(lines.iter().map(line).collect::<String>().as_bytes())
    }

    fn points(chosen: &[&Mount]) -> Vec<String> {
        chosen.iter().map(|mount| mount.point.display().to_string()).collect()
    }

    #[test]
    fn only_mounts_of_the_nodes_parts_are_taken_off() {
        let task = "/run/podwright/1/containerd/io.containerd.runtime.v2.task/k8s.io/a/rootfs";
        let pod = "/s/kubelet/pods/u/volumes/kubernetes.io~secret/token";
        let table = table(&[
            (1, 0, "8:1", "/", "/"),
            (2, 1, "8:2", "/", "/s"),
            (3, 2, "8:3", "/", "/s/volumes"),
            (4, 2, "8:4", "/", "/s/containerd"),
            (5, 2, "8:5", "/", "/s/volumes/default/data"),
            (6, 1, "0:9", "/", task),
            (7, 1, "0:4", "net:[1]", "/run/podwright/1/containerd/netns/cni-1"),
            (8, 2, "0:8", "/", pod),
            (9, 2, "0:8", "/", "/s/kubelet/pods/u/volumes/kubernetes.io~empty-dir/cache/users"),
            (10, 1, "0:4", "net:[2]", "/run/podwright/12/containerd/netns/cni-2"),
            (11, 1, "0:7", "/", "/run/podwright/1/users"),
        ]);
        let (chosen, left) = choose(&places(None), &table);
        let want = [pod, "/run/podwright/1/containerd/netns/cni-1", task];
        assert_eq!((points(&chosen), left), (want.map(str::to_owned).to_vec(), vec![]));
    }

    #[test]
    fn root_on_itself_goes_with_the_copies_in_it_and_a_disk_there_stays() {
        let disk = (2, 1, "8:2", "/", "/s/kubelet/pods");
        let itself = (3, 1, "8:1", "/s/kubelet", "/s/kubelet");
        let copy = (4, 3, "8:2", "/", "/s/kubelet/pods");
        let system = (1, 0, "8:1", "/", "/");
        let with_copy = table(&[system, disk, itself, copy]);
        let (chosen, left) = choose(&places(Some(&[])), &with_copy);
        assert_eq!((points(&chosen), left), (vec!["/s/kubelet".to_owned()], vec![]));
        for (case, table, places) in [
            ("bound before us", table(&[system, itself]), places(Some(&[3]))),
            ("a disk", table(&[system, (3, 1, "8:9", "/", "/s/kubelet")]), places(Some(&[]))),
            ("part of a disk", table(&[system, (3, 1, "8:1", "/b", "/s/kubelet")]), places(None)),
        ] {
            assert!(choose(&places, &table).0.is_empty(), "{case}");
        }
        // On top of a disk that was there.
        let disk = (2, 1, "8:2", "/", "/s/kubelet");
        let table = table(&[system, disk, (3, 2, "8:2", "/", "/s/kubelet")]);
        let chosen: Vec<u64> =
            choose(&places(Some(&[2])), &table).0.iter().map(|it| it.id).collect();
        assert_eq!(chosen, [3]);
    }

    #[test]
    fn volume_with_a_mount_of_somebody_elses_in_it_stays_and_is_named() {
        let volume = "/s/kubelet/pods/u/volumes/kubernetes.io~empty-dir/cache";
        let disk = format!("{volume}/disk");
        let table = table(&[
            (1, 0, "8:1", "/", "/"),
            (2, 1, "0:8", "/", volume),
            (3, 2, "8:7", "/", &disk),
        ]);
        let (chosen, left) = choose(&places(None), &table);
        assert!(chosen.is_empty());
        assert_eq!(left, [format!("{volume} ({disk} is mounted in it, not by podwright)")]);
    }
}
