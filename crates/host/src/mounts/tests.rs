#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;

use super::*;

/// A bind mount for the time of a test, gone even if the test fails.
pub(crate) struct BindGuard(PathBuf);

pub(crate) fn bind_guard(source: &Path, target: &Path) -> BindGuard {
    bind(source, target, Depth::This).unwrap();
    BindGuard(target.to_owned())
}

impl Drop for BindGuard {
    fn drop(&mut self) {
        unmount(&self.0, Unmount::Lazy).ok();
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
fn mounts_below_a_path_come_in_the_order_to_unmount_them() {
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
fn lines_that_make_no_sense_are_left_out() {
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
fn a_missing_table_is_named() {
    let error = table(Path::new("/no/proc")).unwrap_err();
    assert_eq!(error.to_string(), "cannot read the mount table /no/proc/self/mountinfo");
}

#[test]
fn real_binds_appear_in_the_table_and_go_again() {
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

    unmount(&target, Unmount::Now).unwrap();
    unmount(&target, Unmount::Now).unwrap();
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
    bind_pinned(&pinned, &target, Depth::This).unwrap();
    let _guard = BindGuard(target.clone());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "good");
}

#[test]
fn real_a_tmpfs_keeps_what_it_forbids_when_it_becomes_read_only() {
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
fn real_folder_becomes_shared_once() {
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
fn the_mount_around_a_path_is_the_last_on_the_longest_part_of_it() {
    let table = parse(
        b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /var rw - ext4 b rw\n\
          3 1 0:3 / /var/lib rw - ext4 c rw\n4 3 0:4 / /var/lib rw shared:9 - ext4 d rw\n",
    );
    let around = |path: &str| around(&table, Path::new(path)).unwrap().id;
    assert_eq!((around("/var/lib/kubelet"), around("/var/library"), around("/etc")), (4, 2, 1));
}

#[test]
fn a_mount_that_fails_names_both_ends() {
    let error =
        bind(Path::new("/no/source"), Path::new("/no/target"), Depth::Recursive).unwrap_err();
    assert_eq!(error.to_string(), "cannot bind /no/source on /no/target");
    let error =
        mount("tmpfs", "s", Path::new("/no/target"), MountFlags::empty(), "a\0b").unwrap_err();
    assert_eq!(error.to_string(), "cannot mount tmpfs on /no/target");
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
    fn no_table_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        parse(&bytes);
    }
}
