#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

use proptest::prelude::*;

use super::*;

/// A bind mount for the duration of a test, removed even if the test fails.
pub(crate) struct BindGuard(PathBuf);

pub(crate) fn bind_guard(source: &Path, target: &Path) -> BindGuard {
    bind(source, target, Propagation::FromSource).unwrap();
    BindGuard(target.to_owned())
}

impl Drop for BindGuard {
    fn drop(&mut self) {
        let all = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        change::propagate(&self.0, all).ok();
        change::unmount(&self.0, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).ok();
    }
}

fn not_root() -> bool {
    let unprivileged = !podwright_testkit::report::is_root();
    if unprivileged {
        podwright_testkit::report::skipped("needs root");
    }
    unprivileged
}

const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
50 27 0:41 /sub\\040dir /mnt/a\\040b\\011c\\134d rw,nosuid shared:7 master:2 propagate_from:3 - tmpfs none\\040x rw
51 50 0:42 / /mnt/a\\040b\\011c\\134d/below ro - tmpfs tmpfs ro
52 27 0:43 / /mnt/a rw - 9p src
";

#[test]
fn the_table_is_read_with_its_escapes_and_optional_fields() {
    let table = parse(TABLE.as_bytes());
    assert_eq!(table.len(), 6);
    assert_eq!(
        table[3],
        Mount {
            id: 50,
            parent: 27,
            device: (0, 41),
            root: "/sub dir".into(),
            point: "/mnt/a b\tc\\d".into(),
            options: "rw,nosuid".into(),
            shared: true,
            fs_type: "tmpfs".into(),
            source: "none x".into(),
            super_options: "rw".into(),
        }
    );
    let cpu = table[2].super_option_list().collect::<Vec<_>>();
    assert_eq!(cpu, ["rw", "cpu", "cpuacct"]);
    assert!(table[4].is_read_only() && !table[3].is_read_only());
    assert_eq!(table[5].super_options, "", "some filesystems have none");
}

#[test]
fn mounts_below_a_path_are_in_unmount_order() {
    let table = parse(TABLE.as_bytes());
    let below = |path: &str| {
        at_or_below(&table, Path::new(path)).iter().map(|mount| mount.id).collect::<Vec<_>>()
    };
    assert_eq!(below("/mnt/a b\tc\\d"), [51, 50]);
    assert_eq!(below("/mnt/a"), [52], "another name that begins the same is not below");
    assert_eq!(below("/mnt"), [52, 51, 50]);
    assert!(below("/srv").is_empty());
}

#[test]
fn invalid_lines_are_left_out() {
    for line in ["", "x", "1 2 0:1 / /a rw", "1 2 0:1 / /a rw shared:1", "a b c d e f - g h i"] {
        assert_eq!(parse(line.as_bytes()), [], "{line:?}");
    }
}

#[test]
fn this_machines_own_table_can_be_read() {
    let table = table(Path::new("/proc")).unwrap();
    assert!(table.iter().any(|mount| mount.point == Path::new("/")));
    assert!(is_mount_point(Path::new("/proc")).unwrap());
    assert!(!is_mount_point(Path::new("/proc/self/status")).unwrap());
    assert!(!is_mount_point(Path::new("/no/such/path")).unwrap());
}

#[test]
fn error_names_a_missing_table() {
    let error = table(Path::new("/no/proc")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the mount table /no/proc/self/mountinfo");
}

#[test]
fn real_bind_mounts_appear_in_the_table_and_are_removed() {
    if not_root() {
        return;
    }
    let dir = tempfile::Builder::new().prefix("pod wright\t\\").tempdir().unwrap();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir_all(&source).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(source.join("file"), "x").unwrap();
    assert!(!is_mount_point(&target).unwrap());

    let guard = bind_guard(&source, &target);
    assert!(is_mount_point(&target).unwrap());
    let mounted = table(Path::new("/proc")).unwrap();
    assert_eq!(at_or_below(&mounted, dir.path()).len(), 1);

    remount_read_only(&target).unwrap();
    let error = std::fs::write(target.join("file"), "y").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
    std::fs::write(source.join("file"), "y").unwrap();

    detach_own(&target, InUse::Fail).unwrap();
    detach_own(&target, InUse::Fail).unwrap();
    assert!(!is_mount_point(&target).unwrap());
    drop(guard);
}

#[test]
fn real_a_file_can_be_bound_by_its_handle_after_its_name_changed() {
    if not_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = crate::files::Root::open(dir.path()).unwrap();
    for name in ["good", "evil", "target"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let pinned = root.pin("good", crate::files::Links::Refuse).unwrap();
    std::fs::rename(dir.path().join("good"), dir.path().join("moved")).unwrap();
    std::fs::rename(dir.path().join("evil"), dir.path().join("good")).unwrap();
    let target = dir.path().join("target");
    bind_pinned(&pinned, &target, Propagation::FromSource).unwrap();
    let _guard = BindGuard(target.clone());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "good");
}

#[test]
fn real_tmpfs_keeps_its_restrictions_when_it_becomes_read_only() {
    if not_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", "podwright-test", dir.path(), flags, "size=64k,mode=0700").unwrap();
    let _guard = BindGuard(dir.path().to_owned());
    reconfigure(dir.path(), flags, "size=128k").unwrap();
    let size = rustix::fs::statvfs(dir.path()).unwrap();
    assert_eq!(size.f_blocks * size.f_frsize, 128 << 10);
    remount_read_only(dir.path()).unwrap();
    let table = table(Path::new("/proc")).unwrap();
    let mount = table.iter().find(|mount| mount.point == dir.path()).unwrap();
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(mount.options.split(',').any(|set| set == option), "{option}: {}", mount.options);
    }
}

#[test]
fn real_directory_becomes_shared_once() {
    if not_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let outer = dir.path().join("outer");
    std::fs::create_dir(&outer).unwrap();
    let _outer = bind_guard(&outer, &outer);
    change::propagate(&outer, MountPropagationFlags::PRIVATE).unwrap();
    let inner = outer.join("inner");
    std::fs::create_dir(&inner).unwrap();
    let _inner = BindGuard(inner.clone());
    ensure_shared(&inner).unwrap();
    ensure_shared(&inner).unwrap();
    let table = table(Path::new("/proc")).unwrap();
    let on_it: Vec<bool> =
        table.iter().filter(|mount| mount.point == inner).map(|mount| mount.shared).collect();
    assert_eq!(on_it, [true]);
}

#[test]
fn mount_of_a_path_is_the_last_on_its_longest_prefix() {
    let table = parse(
        b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /var rw - ext4 b rw\n\
          3 1 0:3 / /var/lib rw - ext4 c rw\n4 3 0:4 / /var/lib rw shared:9 - ext4 d rw\n",
    );
    let around = |path: &str| around(&table, Path::new(path)).unwrap().id;
    assert_eq!((around("/var/lib/kubelet"), around("/var/library"), around("/etc")), (4, 2, 1));
}

#[test]
fn failed_mount_names_source_and_target() {
    let error =
        bind(Path::new("/no/source"), Path::new("/no/target"), Propagation::Both).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind /no/source on /no/target");
    let error =
        mount("tmpfs", "s", Path::new("/no/target"), MountFlags::empty(), "a\0b").unwrap_err();
    assert_eq!(error.to_string(), "cannot mount tmpfs on /no/target");
}

/// A directory of the host on a shared filesystem, and a directory of ours beside it.
struct Host {
    dir: tempfile::TempDir,
    _shared: BindGuard,
    _ours: BindGuard,
}

impl Host {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mounted = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            mount("tmpfs", "host", &path, MountFlags::empty(), "").unwrap();
            change::propagate(&path, MountPropagationFlags::SHARED).unwrap();
            BindGuard(path)
        };
        let (shared, ours) = (mounted("mnt"), mounted("ours"));
        let this = Self { dir, _shared: shared, _ours: ours };
        std::fs::create_dir_all(this.at("mnt/disks")).unwrap();
        this
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// A filesystem with a file in it, as a user of the host would mount it.
    fn mount(&self, path: &str) {
        let path = self.at(path);
        std::fs::create_dir_all(&path).unwrap();
        mount("tmpfs", "users", &path, MountFlags::empty(), "").unwrap();
        std::fs::write(path.join("file"), "precious").unwrap();
    }

    fn ours(&self, name: &str) -> PathBuf {
        let path = self.at("ours").join(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    fn is_there(&self, path: &str) -> bool {
        std::fs::read_to_string(self.at(path).join("file")).is_ok_and(|text| text == "precious")
    }
}

#[test]
fn real_detached_bind_leaves_the_mounts_of_its_source() {
    if not_root() {
        return;
    }
    for propagation in [Propagation::FromSource, Propagation::Both] {
        // given a bind mount of a directory with mounts below it, some older and some newer
        let host = Host::new();
        host.mount("mnt/disks/before");
        let target = host.ours("bind");
        bind(&host.at("mnt/disks"), &target, propagation).unwrap();
        assert!(!host.is_there("ours/bind/before"), "a bind is not recursive");
        host.mount("mnt/disks/later");
        host.mount("mnt/disks/later/nested");
        assert!(host.is_there("ours/bind/later"), "mounts of the host propagate");
        // and one that a user mounted on our path
        host.mount("ours/bind/by-hand");
        let at_source = host.is_there("mnt/disks/by-hand");
        assert_eq!(at_source, propagation == Propagation::Both);
        if !at_source {
            // then it is mounted nowhere else, and nothing is touched
            let error = detach_own(&target, InUse::Fail).unwrap_err();
            assert!(error.to_string().contains("ours/bind/by-hand"), "{error}");
            assert!(host.is_there("ours/bind/by-hand") && host.is_there("ours/bind/later"));
            change::unmount(host.at("ours/bind/by-hand").as_path(), UnmountFlags::empty()).unwrap();
        }
        // when our bind mount is removed
        detach_own(&target, InUse::Fail).unwrap();
        // then only ours is gone
        assert!(!is_mount_point(&target).unwrap());
        for path in ["mnt/disks/before", "mnt/disks/later", "mnt/disks/later/nested"] {
            assert!(host.is_there(path), "{propagation:?}: {path}");
        }
        assert_eq!(host.is_there("mnt/disks/by-hand"), at_source);
    }
}

#[test]
fn real_propagating_bind_receives_mounts_and_returns_none() {
    if not_root() {
        return;
    }
    // given a private source, too: what the runtime checks is that the bind is shared or a slave
    for private in [false, true] {
        let host = Host::new();
        if private {
            change::propagate(&host.at("mnt"), MountPropagationFlags::PRIVATE).unwrap();
        }
        let target = host.ours("bind");
        bind(&host.at("mnt/disks"), &target, Propagation::FromSource).unwrap();
        let table = table(Path::new("/proc")).unwrap();
        assert!(table.iter().find(|mount| mount.point == target).unwrap().shared);
        host.mount("ours/bind/x");
        assert!(!host.is_there("mnt/disks/x"));
    }
}

#[test]
fn real_mounts_stacked_on_ours_are_not_unmounted() {
    if not_root() {
        return;
    }
    let host = Host::new();
    let target = host.ours("memory");
    mount("tmpfs", "tmpfs", &target, MountFlags::empty(), "").unwrap();
    host.mount("ours/memory");
    let error = detach_own(&target, InUse::Fail).unwrap_err();
    assert!(matches!(error, MountError::Occupied { .. }), "{error}");
    assert!(host.is_there("ours/memory"));
    // when the topmost mount is mounted elsewhere too, it can be unmounted with ours
    std::fs::create_dir(host.at("elsewhere")).unwrap();
    let _kept = bind_guard(&target, &host.at("elsewhere"));
    detach_own(&target, InUse::Fail).unwrap();
    assert!(!is_mount_point(&target).unwrap());
    assert!(host.is_there("elsewhere"));
}

#[test]
fn mount_visible_twice_below_ours_still_counts_as_lost() {
    // given a tmpfs of ours, a bind of a part of it, and a user's mount that is visible in both
    let table = parse(
        b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /p/memory rw shared:1 - tmpfs b rw\n\
          3 1 0:2 /d /p/part rw master:1 - tmpfs b rw\n4 2 0:3 / /p/memory/d/x rw - tmpfs c rw\n\
          5 3 0:3 / /p/part/x rw - tmpfs c rw\n6 2 0:1 /home /p/memory/home rw - ext4 a rw\n",
    );
    let (memory, part) = (PathBuf::from("/p/memory"), PathBuf::from("/p/part"));
    check_own(&table, std::slice::from_ref(&memory)).unwrap();
    check_own(&table, std::slice::from_ref(&part)).unwrap();
    let error = check_own(&table, &[part, memory]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot unmount /p/part: /p/part/x is mounted on it and nowhere else, and would be lost. \
         Fix: umount /p/part/x"
    );
}

#[test]
fn network_namespace_pinned_only_on_ours_counts_as_lost() {
    // given a tmpfs of ours with a namespace pinned in it; all of them share one device
    let table = parse(
        b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /p/memory rw - tmpfs b rw\n\
          3 1 0:4 net:[1] /run/netns/other rw - nsfs nsfs rw\n\
          4 2 0:4 net:[2] /p/memory/pinned rw - nsfs nsfs rw\n",
    );
    let memory = [PathBuf::from("/p/memory")];
    let error = check_own(&table, &memory).unwrap_err();
    assert!(error.to_string().contains("/p/memory/pinned is mounted on it"), "{error}");
    // when it is pinned elsewhere as well, it stays there
    let elsewhere = b"5 1 0:4 net:[2] /run/netns/same rw - nsfs nsfs rw\n";
    let table: Vec<Mount> = table.into_iter().chain(parse(elsewhere)).collect();
    check_own(&table, &memory).unwrap();
}

#[test]
fn file_system_counts_as_mounted_elsewhere_only_if_that_part_of_it_is() {
    for (elsewhere, is_kept) in [("/", true), ("/data", true), ("/data/x", false), ("/y", false)] {
        let table = parse(
            format!(
                "1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /p/memory rw - tmpfs b rw\n\
                 3 1 0:4 {elsewhere} /mnt rw - tmpfs c rw\n\
                 4 2 0:4 /data /p/memory/data rw - tmpfs c rw\n"
            )
            .as_bytes(),
        );
        let checked = check_own(&table, &[PathBuf::from("/p/memory")]);
        assert_eq!(checked.is_ok(), is_kept, "{elsewhere}");
    }
}

#[test]
fn real_shared_directory_keeps_the_mounts_below_it_visible() {
    if not_root() {
        return;
    }
    let host = Host::new();
    change::propagate(&host.at("mnt"), MountPropagationFlags::PRIVATE).unwrap();
    host.mount("mnt/disks/users");
    change::propagate(&host.at("mnt/disks/users"), MountPropagationFlags::PRIVATE).unwrap();
    let disks = host.at("mnt/disks");
    ensure_shared(&disks).unwrap();
    assert!(host.is_there("mnt/disks/users"));
    let shared = |path: &Path| {
        let table = table(Path::new("/proc")).unwrap();
        table.iter().rfind(|mount| mount.point == path).unwrap().shared
    };
    assert!(shared(&disks) && !shared(&disks.join("users")), "a user's mount is not changed");
    detach_own(&disks, InUse::Fail).unwrap();
    assert!(host.is_there("mnt/disks/users"));
}

proptest! {
    #[test]
    fn any_path_survives_escaping(path in proptest::collection::vec(1u8.., 1..50)) {
        // given: as the kernel escapes it
        let escaped: String = path
            .iter()
            .map(|b| match b {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{b:03o}"),
                b => char::from(*b).to_string(),
            })
            .collect();
        let latin: Vec<u8> = escaped.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
        let plain = unescape(&latin);
        prop_assert_eq!(plain.as_bytes(), &path[..]);
    }

    #[test]
    fn arbitrary_tables_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        parse(&bytes);
    }
}

#[test]
fn directory_without_mounts_is_recognized_without_the_table() {
    if not_root() {
        return;
    }
    let scene = tempfile::tempdir().unwrap();
    let at = |path: &str| scene.path().join(path);
    std::fs::create_dir_all(at("pod/volumes/a/b")).unwrap();
    std::fs::create_dir_all(at("elsewhere")).unwrap();
    std::fs::write(at("file"), "x").unwrap();
    std::fs::write(at("pod/volumes/a/file"), "x").unwrap();
    let parent = std::fs::File::open(scene.path()).unwrap();
    let free = || has_no_mounts(&parent, Path::new("pod"));
    assert!(free());

    // Itself, at any depth, of the same filesystem, and on a file.
    for (source, target) in [
        ("elsewhere", "pod"),
        ("elsewhere", "pod/volumes"),
        ("elsewhere", "pod/volumes/a/b"),
        ("file", "pod/volumes/a/file"),
    ] {
        let _bound = bind_guard(&at(source), &at(target));
        assert!(!free(), "{target}");
    }
    assert!(free(), "unmounted again");

    let mounted = bind_guard(&at("file"), &at("file"));
    std::os::unix::fs::symlink(at("file"), at("pod/link")).unwrap();
    assert!(free(), "a link is not followed");
    drop(mounted);

    std::os::unix::fs::symlink(at("pod"), at("linked")).unwrap();
    for unknown in ["absent", "linked", "file"] {
        assert!(!has_no_mounts(&parent, Path::new(unknown)), "{unknown}");
    }
    for number in 0..MAX_VISITED {
        std::fs::write(at("pod/volumes").join(number.to_string()), "").unwrap();
    }
    assert!(!free(), "too many entries to be certain");
}

/// The kernel has no such table, but a loop would take all memory.
#[test]
fn mounts_that_are_each_others_parents_are_listed_once() {
    let table = parse(b"22 24 0:1 / /p rw - proc proc rw\n24 22 0:2 / /p rw - proc proc rw\n");
    let point = Path::new("/p");
    let stacked: Vec<u64> = stack(&table, point).iter().map(|mount| mount.id).collect();
    assert_eq!(stacked, [24, 22]);
    let _ = check_own(&table, &[point.to_owned()]);
}
