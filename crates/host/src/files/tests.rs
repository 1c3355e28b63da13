#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::os::unix::fs::{PermissionsExt, symlink};

use tempfile::TempDir;

use super::*;

fn root() -> (TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::open(dir.path()).unwrap();
    (dir, root)
}

fn mode_of(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn paths_that_leave_the_root_are_refused() {
    let (dir, root) = root();
    std::fs::create_dir(dir.path().join("in")).unwrap();
    let root = root.sub("in").unwrap();
    std::fs::write(dir.path().join("secret"), "x").unwrap();
    for path in ["../secret", "/etc/hostname", "a/../../secret", ".."] {
        assert!(
            matches!(root.read(path, 10), Err(FileError::Escapes { .. } | FileError::Io { .. })),
            "{path}"
        );
        let error = root.write_atomic(path, b"", 0o600, Durability::Cache).unwrap_err();
        assert!(!error.to_string().is_empty(), "{path}");
        root.remove_file(path).ok();
        root.remove_dir_all(path).ok();
        root.create_dir(path, 0o700).expect_err(path);
    }
    assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"x");
}

#[test]
fn links_are_refused_in_our_tree_and_confined_in_a_volume() {
    let (dir, root) = root();
    std::fs::write(dir.path().join("real"), "x").unwrap();
    symlink("real", dir.path().join("inside")).unwrap();
    symlink("/etc/passwd", dir.path().join("outside")).unwrap();
    symlink("/proc/self/exe", dir.path().join("magic")).unwrap();

    let error = root.read("inside", 10).unwrap_err();
    assert!(matches!(error, FileError::Escapes { .. }), "{error}");
    root.pin("inside", Links::FollowBeneath).unwrap();
    for link in ["outside", "magic"] {
        let error = root.pin(link, Links::FollowBeneath).unwrap_err();
        assert!(matches!(error, FileError::Escapes { .. }), "{error}");
    }
    assert_eq!(root.kind("outside").unwrap(), Some(Kind::Symlink));
}

#[test]
fn link_never_redirects_a_write() {
    let (dir, root) = root();
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path(), dir.path().join("way")).unwrap();
    root.write_atomic("way/file", b"x", 0o600, Durability::Cache).unwrap_err();
    root.create_dir("way/dir", 0o700).unwrap_err();
    root.create_dir_all("way", 0o700).unwrap_err();
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    // a link at the end is replaced, not followed
    symlink(outside.path().join("file"), dir.path().join("end")).unwrap();
    root.write_atomic("end", b"x", 0o600, Durability::Cache).unwrap();
    assert_eq!(root.kind("end").unwrap(), Some(Kind::File));
    assert!(!outside.path().join("file").exists());
}

#[test]
fn modes_do_not_depend_on_the_umask() {
    let (dir, root) = root();
    let before = rustix::process::umask(Mode::from_raw_mode(0o077));
    root.create_dir("d", 0o2777).unwrap();
    root.create_dir_all("x/y", 0o755).unwrap();
    root.write_atomic("f", b"", 0o644, Durability::Cache).unwrap();
    let made = Root::create(dir.path().join("deep/root"), 0o750).unwrap();
    rustix::process::umask(before);
    let want = [("d", 0o2777), ("x", 0o755), ("x/y", 0o755), ("f", 0o644), ("deep/root", 0o750)];
    for (name, mode) in want {
        assert_eq!(mode_of(&dir.path().join(name)), mode, "{name}");
    }
    assert_eq!(made.path(), dir.path().join("deep/root"));
}

#[test]
fn existing_directories_are_not_changed() {
    let (dir, root) = root();
    root.create_dir("d", 0o700).unwrap();
    root.create_dir_all("d/e", 0o755).unwrap();
    assert_eq!(mode_of(&dir.path().join("d")), 0o700);
    assert!(root.create_dir("d", 0o700).unwrap_err().is_already_there());
    std::fs::write(dir.path().join("file"), "").unwrap();
    root.create_dir_all("file", 0o700).unwrap_err();
    root.create_dir_all("file/below", 0o700).unwrap_err();
}

#[test]
fn atomic_write_replaces_the_file_and_leaves_no_temporary_file() {
    let (dir, root) = root();
    root.create_dir("d", 0o700).unwrap();
    for text in ["one", "two"] {
        root.write_atomic("d/f", text.as_bytes(), 0o640, Durability::Disk).unwrap();
        assert_eq!(root.read("d/f", 10).unwrap(), text.as_bytes());
    }
    assert_eq!(root.list("d").unwrap(), [("f".into(), Kind::File)]);
    assert_eq!(mode_of(&dir.path().join("d/f")), 0o640);
    // and neither does a failed one
    root.create_dir_all("d/dir/full", 0o700).unwrap();
    root.write_atomic("d/dir", b"x", 0o640, Durability::Cache).unwrap_err();
    assert_eq!(root.list("d").unwrap().len(), 2);
}

#[test]
fn temporary_files_of_a_killed_process_are_removed() {
    let (dir, root) = root();
    let left = dir.path().join(format!(".state.json.0-0123456789abcdef{TEMPORARY}"));
    let ours = dir.path().join(temporary_name(OsStr::new("state.json")));
    for path in [&left, &ours, &dir.path().join(".hidden"), &dir.path().join("state.json")] {
        std::fs::write(path, "").unwrap();
    }
    root.sweep_temporaries("").unwrap();
    assert!(!left.exists());
    assert!(ours.exists(), "another thread may be writing it");
    assert_eq!(root.list("").unwrap().len(), 3);
    let long = OsString::from("n".repeat(255));
    assert!(temporary_name(&long).len() <= 255);
}

#[test]
fn reading_is_limited_in_size() {
    let (_dir, root) = root();
    root.write_atomic("f", b"12345", 0o600, Durability::Cache).unwrap();
    assert_eq!(root.read("f", 5).unwrap(), b"12345");
    assert!(matches!(root.read("f", 4), Err(FileError::TooLarge { limit: 4, .. })));
    assert!(root.read("none", 4).unwrap_err().is_not_found());
    rustix::fs::mkfifoat(&root, "pipe", Mode::RUSR).unwrap();
    assert_eq!(root.read("pipe", 4).unwrap(), b"", "a pipe does not block");
}

#[test]
fn removing_a_missing_file_is_no_error() {
    let (_dir, root) = root();
    root.remove_file("no/such").unwrap();
    root.remove_dir("no").unwrap();
    root.remove_dir_all("no/such").unwrap();
    assert_eq!(root.kind("no/such").unwrap(), None);
}

#[test]
fn a_tree_is_removed_without_following_links() {
    let (dir, root) = root();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("keep"), "").unwrap();
    root.create_dir_all("t/a/b", 0o700).unwrap();
    root.write_atomic("t/a/f", b"", 0o600, Durability::Cache).unwrap();
    root.symlink(outside.path(), "t/a/b/link").unwrap();
    rustix::fs::mkfifoat(&root, "t/pipe", Mode::RUSR).unwrap();
    root.remove_dir_all("t").unwrap();
    assert!(!dir.path().join("t").exists());
    assert!(outside.path().join("keep").exists());
    // a link in place of the tree is not entered
    root.symlink(outside.path(), "t").unwrap();
    root.remove_dir_all("t").unwrap_err();
    assert!(outside.path().join("keep").exists());
}

/// A chain of directories deeper than any path can be, with files in some of them.
fn nest(root: &Root, top: &str, depth: usize) {
    root.create_dir(top, 0o700).unwrap();
    let mut here = root.sub(top).unwrap();
    for level in 0..depth {
        change::mkdirat(&here, "dir", Mode::RWXU).unwrap();
        if level % 100 == 0 {
            here.write_atomic("file", b"", 0o600, Durability::Cache).unwrap();
        }
        here = Root { path: PathBuf::new(), ..here.sub("dir").unwrap() };
    }
}

#[test]
fn hundred_thousand_nested_directories_are_removed_on_a_small_stack() {
    const STACK: usize = 64 << 10;
    // On tmpfs, where it takes seconds: a disk would be much slower.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let root = Root::open(dir.path()).unwrap();
    nest(&root, "t", 100_000);
    std::thread::scope(|scope| {
        let remove = || root.remove_dir_all("t");
        let small = std::thread::Builder::new().stack_size(STACK);
        small.spawn_scoped(scope, remove).unwrap().join().unwrap().unwrap();
    });
    assert_eq!(root.kind("t").unwrap(), None);
}

#[test]
fn directory_with_more_entries_than_one_read_returns_is_removed() {
    let (dir, root) = root();
    root.create_dir_all("t/inner", 0o700).unwrap();
    for n in 0..5_000 {
        std::fs::write(dir.path().join(format!("t/inner/{n}")), "").unwrap();
    }
    root.remove_dir_all("t").unwrap();
    assert_eq!(root.kind("t").unwrap(), None);
}

#[test]
fn real_removal_stops_at_a_mount() {
    podwright_testkit::needs_root!();
    let (dir, root) = root();
    let precious = tempfile::tempdir().unwrap();
    std::fs::write(precious.path().join("keep"), "").unwrap();
    root.create_dir_all("t/mnt", 0o700).unwrap();
    root.write_atomic("t/file", b"", 0o600, Durability::Cache).unwrap();
    // given a bind mount from the very same filesystem, and one of a single file
    let target = dir.path().join("t/mnt");
    let _dir_mount = crate::mounts::tests::bind_guard(precious.path(), &target);

    let error = root.remove_dir_all("t").unwrap_err();
    assert!(matches!(error, FileError::Mounted { .. }), "{error}");
    let error = root.remove_dir_all("t/mnt").unwrap_err();
    assert!(matches!(error, FileError::Mounted { .. }), "{error}");
    assert!(precious.path().join("keep").exists());

    root.create_dir_all("u", 0o700).unwrap();
    root.write_atomic("u/file", b"", 0o600, Durability::Cache).unwrap();
    let _file_mount =
        crate::mounts::tests::bind_guard(&precious.path().join("keep"), &dir.path().join("u/file"));
    let error = root.remove_dir_all("u").unwrap_err();
    assert!(matches!(error, FileError::Mounted { .. }), "{error}");
    assert!(precious.path().join("keep").exists());
}
