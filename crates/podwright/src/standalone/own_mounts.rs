//! Mounts of a node, distinguished from all other mounts of the machine.
//!
//! They are identified by path: containerd mounts below its state directory; the agent mounts at
//! the paths of volumes, with the file system that their plugin uses, and bind-mounts its root
//! directory on itself, which is recorded before it is done. At each path only the first mount is
//! the node's. Everything else mounted at, in or above the node's directories is foreign: a disk
//! for the whole state directory, one for the volumes, one over a volume. Foreign mounts stay, and
//! so do mounts of the node that contain them.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use anyhow::Context as _;
use podwright_core::volume::teardown::{self, Plugin, Scope, Teardown};
use podwright_host::detach::{Detached, detach};
use podwright_host::mounts::{self, Mount, MountError};
use podwright_node::resources::volumes;
use serde::{Deserialize, Serialize};

use super::{Layout, state_dir, write_private};

/// Resolved paths of the node's directories, as in the mount table.
#[derive(Clone, Debug)]
pub struct MountLocations {
    /// State directory of the private containerd, below `/run`.
    runtime_state: PathBuf,
    /// Root directory of the private containerd, persistent.
    runtime_root: PathBuf,
    /// Root directory of the agent.
    agent_root: PathBuf,
    root_mount: RootMount,
    plugins: Vec<Plugin>,
}

/// What is known about the bind mount of the agent's root directory on itself.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RootMount {
    /// It may have been made by this build; these mounts existed before.
    After(BTreeSet<u64>),
    /// It may have been made by an earlier build, which recorded nothing.
    EarlierBuild,
    /// It was not made; no agent has started yet.
    NotMade,
}

/// Written before the agent's root directory is mounted on itself.
#[derive(Debug, Serialize, Deserialize)]
struct Intent {
    #[serde(rename = "mounted_before")]
    mounted_before: BTreeSet<u64>,
}

impl MountLocations {
    pub fn of(layout: &Layout) -> anyhow::Result<Self> {
        let root_mount = match Intent::read(layout)? {
            Some(intent) => RootMount::After(intent.mounted_before),
            None if state_dir::is_of_earlier_build(layout)? => RootMount::EarlierBuild,
            None => RootMount::NotMade,
        };
        Ok(Self {
            runtime_state: real(&layout.runtime_state()),
            runtime_root: real(&layout.containerd().join("root")),
            agent_root: real(&layout.root_dir()),
            root_mount,
            plugins: volumes::plugins(),
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
        let by_path = in_runtime_state || temporary || self.is_of_a_pod(mount);
        (by_path && !is_over_another(mount, table)) || self.is_root_on_itself(mount, table)
    }

    /// Whether the agent mounts this file system at this path.
    fn is_of_a_pod(&self, mount: &Mount) -> bool {
        let Ok(below) = mount.point.strip_prefix(self.agent_root.join("pods")) else {
            return false;
        };
        let mut parts = below.components();
        let Some(Component::Normal(uid)) = parts.next() else { return false };
        let pod = self.agent_root.join("pods").join(uid);
        let seen = volumes::seen_mount(&pod, parts.as_path(), &mount.fs_type, &self.plugins);
        // An unknown mount is foreign.
        let Ok(seen) = seen else { return false };
        match teardown::plan(&[seen], Scope::Directory, &self.plugins) {
            Teardown::Unmount(own) => !own.is_empty(),
            Teardown::Foreign(_) => false,
        }
    }

    /// Whether this is the agent's bind mount of its root directory on itself.
    fn is_root_on_itself(&self, mount: &Mount, table: &[Mount]) -> bool {
        let by_us = match &self.root_mount {
            RootMount::After(before) => !before.contains(&mount.id),
            RootMount::EarlierBuild => true,
            RootMount::NotMade => false,
        };
        by_us && mount.point == self.agent_root && is_on_itself(mount, table)
    }
}

/// Whether it is mounted over another mount at the same path.
fn is_over_another(mount: &Mount, table: &[Mount]) -> bool {
    table.iter().any(|other| other.id == mount.parent && other.point == mount.point)
}

/// Whether this is a bind mount of a directory on itself.
fn is_on_itself(mount: &Mount, table: &[Mount]) -> bool {
    let Some(below) = table.iter().find(|other| other.id == mount.parent) else { return false };
    mount.device == below.device
        && mount.point.strip_prefix(&below.point).is_ok_and(|rest| {
            // Compared by components, because joining an empty path appends a slash.
            mount.root.components().eq(below.root.join(rest).components())
        })
}

impl Intent {
    fn read(layout: &Layout) -> anyhow::Result<Option<Self>> {
        let path = layout.agent_root_mount();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(super::unreadable(error, &path)),
        };
        let damaged = || {
            let (path, root) = (path.display(), layout.root_dir());
            let root = root.display();
            format!(
                "{path} is corrupt. Fix: delete it, and unmount {root} manually after the next down"
            )
        };
        Ok(Some(serde_json::from_slice(&text).with_context(damaged)?))
    }

    fn write(&self, layout: &Layout) -> anyhow::Result<()> {
        write_private(&layout.agent_root_mount(), &serde_json::to_vec(self)?)
    }
}

/// The resolved path; a path that does not exist cannot have mounts.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Makes mounts below the agent's root directory propagate to containers. If the surrounding mount
/// is not shared, the directory is bind-mounted on itself; existing mounts are not changed.
pub fn share_agent_root(layout: &Layout) -> anyhow::Result<()> {
    let root = real(&layout.root_dir());
    let table = mounts::table(Path::new("/proc"))?;
    let before = match Intent::read(layout)? {
        // Recorded by an earlier start, before it made the mount.
        Some(intent) => intent.mounted_before,
        None => {
            let there = table.iter().filter(|mount| mount.point == root);
            let mounted_before = there.map(|mount| mount.id).collect();
            let intent = Intent { mounted_before };
            intent.write(layout)?;
            intent.mounted_before
        }
    };
    match mounts::around(&table, &root) {
        Some(mount) if mount.shared => Ok(()),
        // An earlier start was killed between mounting and sharing it.
        Some(mount)
            if mount.point == root
                && !before.contains(&mount.id)
                && is_on_itself(mount, &table) =>
        {
            Ok(mounts::ensure_shared(&root)?)
        }
        Some(_) | None => Ok(mounts::bind_shared_on_itself(&table, &root)?),
    }
}

/// Records, for a node that an earlier build started and that is still up, that its agent may have
/// bind-mounted the root directory on itself.
pub fn adopt_agent_root(layout: &Layout) -> anyhow::Result<()> {
    let is_up = layout.record_path().exists() && layout.run().exists();
    match Intent::read(layout)? {
        None if is_up => Intent { mounted_before: BTreeSet::new() }.write(layout),
        None | Some(_) => Ok(()),
    }
}

/// Unmounts the mounts of the node. Returns the mounts that had to stay, with reasons.
pub fn unmount(locations: &MountLocations) -> anyhow::Result<Vec<String>> {
    let table = mounts::table(Path::new("/proc"))?;
    let (chosen, mut left) = choose(locations, &table);
    for mount in chosen {
        let point = mount.point.display();
        match detach(mount) {
            Ok(Detached::Yes | Detached::Gone) => {}
            Ok(Detached::Hidden) => left.push(format!("{point} (something is mounted over it)")),
            // It was mounted after the mount table was read.
            Err(MountError::Occupied { mounted, .. }) => left.push(format!(
                "{point} ({} is mounted in it, not by podwright)",
                mounted.display()
            )),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(left)
}

/// The mounts to unmount, in order, and those that stay because of a foreign mount in them.
fn choose<'a>(locations: &MountLocations, table: &'a [Mount]) -> (Vec<&'a Mount>, Vec<String>) {
    let ours: BTreeSet<u64> =
        table.iter().filter(|it| locations.is_ours(it, table)).map(|it| it.id).collect();
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

/// Whether a mount is below another one, directly or indirectly.
fn is_below(table: &[Mount], mount: &Mount, above: u64) -> bool {
    let mut parent = mount.parent;
    // Bounded by the size of the table, in case of a cycle.
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

/// Whether the same is also mounted outside of `above`: then it was copied by the recursive bind
/// mount of `above`, and can be unmounted with it.
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
    use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};

    use super::*;

    fn locations(before: Option<&[u64]>) -> MountLocations {
        MountLocations {
            runtime_state: "/run/podwright/1/containerd".into(),
            runtime_root: "/s/containerd/root".into(),
            agent_root: "/s/kubelet".into(),
            root_mount: match before {
                Some(ids) => RootMount::After(ids.iter().copied().collect()),
                None => RootMount::EarlierBuild,
            },
            plugins: volumes::plugins(),
        }
    }

    /// Id, parent, device, root, mount point; device `0:n` is tmpfs.
    fn table(lines: &[(u64, u64, &str, &str, &str)]) -> Vec<Mount> {
        let line = |(id, parent, device, root, point): &(u64, u64, &str, &str, &str)| {
            let fs_type = if device.starts_with("0:") { "tmpfs" } else { "ext4" };
            format!("{id} {parent} {device} {root} {point} rw - {fs_type} x rw\n")
        };
        mounts::parse(lines.iter().map(line).collect::<String>().as_bytes())
    }

    fn points(chosen: &[&Mount]) -> Vec<String> {
        chosen.iter().map(|mount| mount.point.display().to_string()).collect()
    }

    #[test]
    fn only_mounts_of_the_node_are_unmounted() {
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
        let (chosen, left) = choose(&locations(None), &table);
        let want = [pod, "/run/podwright/1/containerd/netns/cni-1", task];
        assert_eq!((points(&chosen), left), (want.map(str::to_owned).to_vec(), vec![]));
    }

    #[test]
    fn disks_at_and_over_the_paths_of_volumes_stay() {
        let at = |path: &str| format!("/s/kubelet/pods/u/{path}");
        let disk = at("volumes/kubernetes.io~empty-dir/disk");
        let nfs = at("volumes/kubernetes.io~nfs/n");
        let map = at("volumes/kubernetes.io~configmap/m");
        let memory = at("volumes/kubernetes.io~empty-dir/memory");
        let part = at("volume-subpaths/v/c/0");
        let rootfs = "/run/podwright/1/containerd/io.containerd.runtime.v2.task/k8s.io/a/rootfs";
        let table = table(&[
            (1, 0, "8:1", "/", "/"),
            (2, 1, "8:2", "/", &disk),
            (3, 1, "8:3", "/", &nfs),
            (4, 1, "0:4", "/", &map),
            (5, 1, "0:5", "/", &memory),
            (6, 5, "0:6", "/", &memory),
            (7, 1, "8:1", "/host", &part),
            (8, 7, "8:8", "/", &part),
            (9, 1, "0:9", "/", rootfs),
            (10, 9, "8:10", "/", rootfs),
        ]);
        let (chosen, left) = choose(&locations(None), &table);
        assert_eq!(points(&chosen), [] as [String; 0]);
        let stays = |point: &str| format!("{point} ({point} is mounted in it, not by podwright)");
        assert_eq!(left, [rootfs, &part, &memory].map(stays));
    }

    #[test]
    fn root_bound_by_the_user_stays_if_no_agent_was_started() {
        let table = table(&[(1, 0, "8:1", "/", "/"), (3, 1, "8:1", "/s/kubelet", "/s/kubelet")]);
        let no_agent = MountLocations { root_mount: RootMount::NotMade, ..locations(None) };
        assert!(choose(&no_agent, &table).0.is_empty());
        assert_eq!(points(&choose(&locations(None), &table).0), ["/s/kubelet"], "an earlier build");
    }

    /// A node whose directories are on a private tmpfs.
    struct RealNode {
        base: PathBuf,
        layout: Layout,
        _directory: tempfile::TempDir,
    }

    impl RealNode {
        /// None without root.
        fn new() -> Option<Self> {
            if !rustix::process::geteuid().is_root() {
                return None;
            }
            let directory = tempfile::tempdir().unwrap();
            let base = directory.path().canonicalize().unwrap();
            mounts::mount("tmpfs", "node", &base, MountFlags::empty(), "mode=700").unwrap();
            rustix::mount::mount_change(&base, MountPropagationFlags::PRIVATE).unwrap();
            let layout = Layout { state: base.join("s"), runs: base.join("run") };
            state_dir::claim(&layout).unwrap();
            for directory in [layout.root_dir(), layout.run()] {
                std::fs::create_dir_all(directory).unwrap();
            }
            Some(Self { base, layout, _directory: directory })
        }

        fn below(&self, path: &Path) -> Vec<PathBuf> {
            let table = mounts::table(Path::new("/proc")).unwrap();
            let below = table.into_iter().filter(|mount| mount.point.starts_with(path));
            below.map(|mount| mount.point).collect()
        }

        fn unmount(&self) -> Vec<String> {
            unmount(&MountLocations::of(&self.layout).unwrap()).unwrap()
        }

        fn make(&self, relative: &str) -> PathBuf {
            let path = self.layout.root_dir().join(relative);
            std::fs::create_dir_all(&path).unwrap();
            path
        }
    }

    impl Drop for RealNode {
        fn drop(&mut self) {
            for point in self.below(&self.base).into_iter().rev() {
                let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
            }
        }
    }

    fn bind_on_itself(directory: &Path) {
        rustix::mount::mount_bind(directory, directory).unwrap();
    }

    fn mount(fs_type: &str, point: &Path) {
        mounts::mount(fs_type, "user", point, MountFlags::empty(), "").unwrap();
    }

    #[test]
    fn real_mounts_of_the_user_at_and_over_volumes_stay() {
        let Some(node) = RealNode::new() else { return };
        share_agent_root(&node.layout).unwrap();
        let disk = node.make("pods/u/volumes/kubernetes.io~empty-dir/cache");
        let memory = node.make("pods/u/volumes/kubernetes.io~empty-dir/mem");
        let secret = node.make("pods/u/volumes/kubernetes.io~secret/token");
        mount("ramfs", &disk);
        mount("tmpfs", &memory);
        mount("ramfs", &memory);
        mount("tmpfs", &secret);
        for point in [&disk, &memory] {
            std::fs::write(point.join("file"), "precious").unwrap();
        }
        let left = node.unmount();
        assert!(left.iter().any(|it| it.starts_with(&memory.display().to_string())), "{left:?}");
        for point in [&disk, &memory] {
            assert_eq!(std::fs::read_to_string(point.join("file")).unwrap(), "precious");
        }
        assert_eq!(node.below(&secret), [] as [PathBuf; 0]);
        // Once they are unmounted, the node's mount is unmounted as well.
        for point in [&disk, &memory] {
            rustix::mount::unmount(point.as_path(), UnmountFlags::empty()).unwrap();
        }
        assert_eq!(node.unmount(), [] as [String; 0]);
        assert_eq!(node.below(&node.layout.root_dir()), [] as [PathBuf; 0]);
    }

    #[test]
    fn real_root_bound_by_the_user_stays_shared_or_not() {
        for shared in [false, true] {
            let Some(node) = RealNode::new() else { return };
            let root = node.layout.root_dir();
            bind_on_itself(&root);
            if shared {
                rustix::mount::mount_change(&root, MountPropagationFlags::SHARED).unwrap();
            }
            let before = node.below(&root);
            share_agent_root(&node.layout).unwrap();
            share_agent_root(&node.layout).unwrap();
            assert_eq!(node.unmount(), [] as [String; 0]);
            assert_eq!(node.below(&root), before, "shared: {shared}");
        }
    }

    #[test]
    fn real_root_bound_by_a_killed_start_is_shared_and_unmounted() {
        let Some(node) = RealNode::new() else { return };
        let root = node.layout.root_dir();
        Intent { mounted_before: BTreeSet::new() }.write(&node.layout).unwrap();
        bind_on_itself(&root);
        share_agent_root(&node.layout).unwrap();
        assert_eq!(node.below(&root).len(), 1, "bound once");
        let table = mounts::table(Path::new("/proc")).unwrap();
        assert!(mounts::around(&table, &root).unwrap().shared);
        assert_eq!(node.unmount(), [] as [String; 0]);
        assert_eq!(node.below(&root), [] as [PathBuf; 0]);
    }

    #[test]
    fn real_root_bound_by_an_earlier_build_is_unmounted() {
        for claimed in [false, true] {
            let Some(node) = RealNode::new() else { return };
            let root = node.layout.root_dir();
            std::fs::remove_file(node.layout.state().join("node.json")).unwrap();
            node.layout.write_record(&crate::standalone::tests::record(&node.layout)).unwrap();
            bind_on_itself(&root);
            rustix::mount::mount_change(&root, MountPropagationFlags::SHARED).unwrap();
            if claimed {
                state_dir::claim(&node.layout).unwrap();
                share_agent_root(&node.layout).unwrap();
            }
            assert_eq!(node.unmount(), [] as [String; 0]);
            assert_eq!(node.below(&root), [] as [PathBuf; 0], "claimed: {claimed}");
        }
    }

    #[test]
    fn root_bound_on_itself_is_unmounted_with_copies_in_it_and_a_disk_stays() {
        let disk = (2, 1, "8:2", "/", "/s/kubelet/pods");
        let itself = (3, 1, "8:1", "/s/kubelet", "/s/kubelet");
        let copy = (4, 3, "8:2", "/", "/s/kubelet/pods");
        let system = (1, 0, "8:1", "/", "/");
        let with_copy = table(&[system, disk, itself, copy]);
        let (chosen, left) = choose(&locations(Some(&[])), &with_copy);
        assert_eq!((points(&chosen), left), (vec!["/s/kubelet".to_owned()], vec![]));
        for (case, table, locations) in [
            ("bound before us", table(&[system, itself]), locations(Some(&[3]))),
            ("a disk", table(&[system, (3, 1, "8:9", "/", "/s/kubelet")]), locations(Some(&[]))),
            (
                "part of a disk",
                table(&[system, (3, 1, "8:1", "/b", "/s/kubelet")]),
                locations(None),
            ),
        ] {
            assert!(choose(&locations, &table).0.is_empty(), "{case}");
        }
        // Over an existing disk.
        let disk = (2, 1, "8:2", "/", "/s/kubelet");
        let table = table(&[system, disk, (3, 2, "8:2", "/", "/s/kubelet")]);
        let chosen: Vec<u64> =
            choose(&locations(Some(&[2])), &table).0.iter().map(|it| it.id).collect();
        assert_eq!(chosen, [3]);
    }

    #[test]
    fn volume_with_a_foreign_mount_in_it_stays_and_is_listed() {
        let volume = "/s/kubelet/pods/u/volumes/kubernetes.io~empty-dir/cache";
        let disk = format!("{volume}/disk");
        let table = table(&[
            (1, 0, "8:1", "/", "/"),
            (2, 1, "0:8", "/", volume),
            (3, 2, "8:7", "/", &disk),
        ]);
        let (chosen, left) = choose(&locations(None), &table);
        assert!(chosen.is_empty());
        assert_eq!(left, [format!("{volume} ({disk} is mounted in it, not by podwright)")]);
    }
}
