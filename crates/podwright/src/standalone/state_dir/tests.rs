//! Tests of the state directory, on temporary directories.

#![allow(clippy::unwrap_used)]

use rustix::fs::IFlags;

use super::*;

fn layout(state: &Path) -> Layout {
    Layout::new(state)
}

fn mount_at(point: &Path) -> Mount {
    let line = format!("90 1 0:7 / {} rw - tmpfs tmpfs rw", point.display());
    mounts::parse(line.as_bytes()).pop().unwrap()
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        entries(directory).unwrap().into_iter().map(|(path, _)| path).collect();
    paths.sort();
    paths
}

#[test]
fn directory_with_foreign_files_is_refused_and_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("notes.txt"), "mine").unwrap();
    let layout = layout(directory.path());
    for outcome in [examine(&layout), claim(&layout)] {
        let refused = format!("{:#}", outcome.unwrap_err());
        let shown = directory.path().display().to_string();
        for part in [shown.as_str(), "notes.txt", "Fix: ", "--state-dir"] {
            assert!(refused.contains(part), "no {part:?} in {refused}");
        }
    }
    assert_eq!(entries(directory.path()).unwrap().len(), 1);
    assert!(!is_node(&layout).unwrap());
}

#[test]
fn system_and_home_directories_are_refused_even_if_empty() {
    let home = tempfile::tempdir().unwrap();
    let homes = ["/", "/root", "/home", "/var/lib", "/mnt", "/opt"];
    for path in homes {
        let refused = examine(&layout(Path::new(path))).unwrap_err();
        assert!(format!("{refused:#}").contains("Fix: "), "{path}: {refused:#}");
    }
    let link = home.path().join("link");
    std::os::unix::fs::symlink("/mnt", &link).unwrap();
    assert!(examine(&layout(&link)).is_err(), "through a link as well");
}

#[test]
fn new_and_empty_directories_and_prepared_mounts_are_accepted() {
    let base = tempfile::tempdir().unwrap();
    let new = layout(&base.path().join("a/b"));
    claim(&new).unwrap();
    assert!(is_node(&new).unwrap());
    claim(&new).unwrap();
    let prepared = base.path().join("prepared");
    std::fs::create_dir_all(prepared.join("volumes/data")).unwrap();
    std::fs::create_dir_all(prepared.join("lost+found")).unwrap();
    std::fs::create_dir(prepared.join("volumes/disk")).unwrap();
    std::fs::write(prepared.join("volumes/disk/file"), "on the disk").unwrap();
    let table = [&prepared, &prepared.join("volumes/disk")].map(|point| mount_at(point));
    assert_eq!(foreign_entries(&prepared, &table).unwrap(), [] as [PathBuf; 0]);
    // Without the mounts the same directories contain foreign files.
    let names = |table: &[Mount]| listed(&foreign_entries(&prepared, table).unwrap());
    assert_eq!(names(&[]), "lost+found, volumes");
}

#[test]
fn state_directories_of_earlier_builds_are_recognised() {
    let base = tempfile::tempdir().unwrap();
    let with = |name: &str, file: &str, text: &str| {
        let state = base.path().join(name);
        let path = state.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        state
    };
    let written = "# Written by podwright up; overwritten at every start.\nversion = 2\n";
    let down = with("down", "containerd/config.toml", written);
    let guest = with("guest", "api/objects.redb", "a database");
    let up = base.path().join("up");
    std::fs::create_dir(&up).unwrap();
    let record = r#"{"network":{"bridge":"pw-1","subnet":"10.213.0.0/16","plugins":"/usr/lib/cni"},
        "cgroup_root":"/podwright-1"}"#;
    std::fs::write(up.join("made.json"), record).unwrap();
    for state in [down, guest, up] {
        let layout = layout(&state);
        assert_eq!(ownership(&state).unwrap(), Ownership::Unmarked);
        claim(&layout).unwrap();
        assert!(matches!(ownership(&state).unwrap(), Ownership::Marked(_)));
    }
    let foreign = base.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    for name in ["made.json", "node.json"] {
        std::fs::write(foreign.join(name), r#"{"made":"by something else"}"#).unwrap();
    }
    assert!(!is_node(&layout(&foreign)).unwrap());
}

#[test]
fn foreign_files_at_paths_of_a_node_do_not_make_it_a_node() {
    let base = tempfile::tempdir().unwrap();
    let state = base.path().join("users");
    for directory in ["manifests", "containerd", "api"] {
        std::fs::create_dir_all(state.join(directory)).unwrap();
    }
    std::fs::write(state.join("containerd/config.toml"), "version = 2\n").unwrap();
    std::fs::write(state.join("containerd/notes"), "mine").unwrap();
    let layout = layout(&state);
    assert!(!is_node(&layout).unwrap());
    let refused = format!("{:#}", examine(&layout).unwrap_err());
    assert!(refused.contains("it contains containerd"), "{refused}");
    assert!(remove_data(&layout).is_err());
    assert!(state.join("containerd/notes").exists());
}

#[test]
fn directory_with_manifests_only_is_accepted() {
    let base = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(base.path().join("manifests")).unwrap();
    std::fs::write(base.path().join("manifests/web.yaml"), "kind: Pod").unwrap();
    claim(&layout(base.path())).unwrap();
}

/// Whether the parts of a test that need root can run.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn directories_that_other_users_can_change_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let mode = |path: &Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let node = |name: &str| {
        let state = base.path().join(name);
        claim(&layout(&state)).unwrap();
        state
    };
    let writable = node("writable");
    mode(&writable, 0o777);
    let refused = format!("{:#}", examine(&layout(&writable)).unwrap_err());
    assert!(refused.contains("chmod go-w"), "{refused}");
    mode(&writable, 0o755);
    examine(&layout(&writable)).unwrap();
    // A new directory is made unwritable for others before it is used.
    let new = base.path().join("new");
    std::fs::create_dir(&new).unwrap();
    mode(&new, 0o1777);
    claim(&layout(&new)).unwrap();
    assert_eq!(std::fs::metadata(&new).unwrap().mode() & 0o7777, 0o1755);
    if !is_root() {
        return;
    }
    let foreign = node("foreign");
    std::os::unix::fs::chown(&foreign, Some(1000), None).unwrap();
    for outcome in [
        examine(&layout(&foreign)),
        claim(&layout(&foreign)),
        remove_data(&layout(&foreign)).map(drop),
    ] {
        let refused = format!("{:#}", outcome.unwrap_err());
        assert!(refused.contains("belongs to user 1000"), "{refused}");
    }
    let forged = node("forged");
    std::os::unix::fs::chown(forged.join(MARKER), Some(1000), None).unwrap();
    assert!(!is_node(&layout(&forged)).unwrap(), "a marker of another user is ignored");
}

#[test]
fn record_of_another_user_is_rejected() {
    if !is_root() {
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let layout = layout(base.path());
    layout.write_record(&crate::standalone::tests::record(&layout)).unwrap();
    layout.record().unwrap().unwrap();
    std::os::unix::fs::chown(base.path().join(RECORD), Some(1000), None).unwrap();
    let refused = format!("{:#}", layout.record().unwrap_err());
    assert!(refused.contains("belongs to user 1000") && refused.contains("Fix: "), "{refused}");
}

#[test]
fn modes_are_not_changed_through_links() {
    let base = tempfile::tempdir().unwrap();
    let (elsewhere, plain) = (base.path().join("elsewhere"), base.path().join("plain"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    for path in [&elsewhere, &plain] {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let link = base.path().join("link");
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    for path in [&link, &plain, &base.path().join("new")] {
        make_private(path).unwrap();
    }
    assert_eq!(mode(&elsewhere), 0o755);
    assert_eq!((mode(&plain), mode(&base.path().join("new"))), (0o700, 0o700));
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = format!("{:#}", make_private(&link).unwrap_err());
    assert!(refused.contains("Fix: chmod go-w"), "{refused}");
    if is_root() {
        std::os::unix::fs::chown(&plain, Some(1000), None).unwrap();
        std::os::unix::fs::lchown(&link, Some(1000), None).unwrap();
        for path in [&plain, &link] {
            assert!(make_private(path).is_err(), "{}", path.display());
        }
    }
}

#[test]
fn failed_reset_of_an_earlier_builds_directory_can_be_retried() {
    let base = tempfile::tempdir().unwrap();
    let state = base.path().join("state");
    for directory in ["api", "volumes/pvc-12ab"] {
        std::fs::create_dir_all(state.join(directory)).unwrap();
    }
    std::fs::write(state.join("api/objects.redb"), "").unwrap();
    let layout = layout(&state);
    assert_eq!(ownership(&state).unwrap(), Ownership::Unmarked);
    let kept = std::fs::File::open(state.join("volumes/pvc-12ab")).unwrap();
    // Needs a capability and a file system with support for the flag.
    if rustix::fs::ioctl_setflags(&kept, IFlags::IMMUTABLE).is_ok() {
        let failed = remove_data(&layout).unwrap();
        rustix::fs::ioctl_setflags(&kept, IFlags::empty()).unwrap();
        assert_eq!(failed.failures.len(), 1, "{failed:?}");
        assert!(!state.join("api").exists());
    }
    assert!(is_node(&layout).unwrap());
    let leftovers = remove_data(&layout).unwrap();
    assert!(leftovers.failures.is_empty() && leftovers.left.is_empty(), "{leftovers:?}");
    assert!(!state.exists());
}

#[test]
fn reset_deletes_data_of_the_node_and_lists_what_it_kept() {
    let base = tempfile::tempdir().unwrap();
    let state = base.path().join("state");
    let layout = layout(&state);
    claim(&layout).unwrap();
    for directory in ["volumes/pvc-12ab-34/deep", "volumes/pvc-mine", "logs/pods/a", "manifests"] {
        std::fs::create_dir_all(state.join(directory)).unwrap();
    }
    let mine = ["logs/notes.txt", "manifests/web.yaml", "notes.txt", "volumes/backup.tar"];
    for file in mine.into_iter().chain(["volumes/pvc-12ab-34/deep/file", "logs/agent.log.1"]) {
        std::fs::write(state.join(file), "").unwrap();
    }
    std::fs::write(state.join("kubeconfig"), "").unwrap();
    std::fs::write(state.join(".podwright-AbCdEf"), "killed while writing").unwrap();
    let leftovers = remove_data(&layout).unwrap();
    assert!(leftovers.failures.is_empty(), "{:?}", leftovers.failures);
    let mut left = leftovers.left;
    left.sort();
    let mut want: Vec<String> = mine
        .into_iter()
        .chain(["volumes/pvc-mine"])
        .map(|name| format!("{} (not made by podwright)", state.join(name).display()))
        .collect();
    want.sort();
    assert_eq!(left, want);
    let names = |directory: &str| listed(&sorted(&state.join(directory)));
    assert_eq!(names(""), "logs, manifests, notes.txt, volumes");
    assert_eq!(names("logs"), "notes.txt");
    assert_eq!(names("manifests"), "web.yaml");
    assert_eq!(names("volumes"), "backup.tar, pvc-mine");
}

#[test]
fn reset_removes_the_directory_only_if_up_created_it() {
    let base = tempfile::tempdir().unwrap();
    let (made, found) = (base.path().join("made"), base.path().join("found"));
    std::fs::create_dir(&found).unwrap();
    for state in [&made, &found] {
        let layout = layout(state);
        claim(&layout).unwrap();
        std::fs::create_dir(state.join("manifests")).unwrap();
        let leftovers = remove_data(&layout).unwrap();
        assert!(leftovers.failures.is_empty(), "{:?}", leftovers.failures);
    }
    assert!(!made.exists());
    assert_eq!(entries(&found).unwrap(), []);
    claim(&layout(&found)).unwrap();
}

#[test]
fn mounts_below_a_known_directory_are_kept() {
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().canonicalize().unwrap();
    for path in ["volumes/a/disk", "volumes/a/files", "volumes/b"] {
        std::fs::create_dir_all(directory.join(path)).unwrap();
        std::fs::write(directory.join(path).join("file"), "").unwrap();
    }
    // Not really mounted; only the mount table is consulted.
    let table = [mount_at(&directory.join("volumes/a/disk"))];
    let mut leftovers = Leftovers::default();
    remove_entries(&directory, &["volumes"], &[], &table, &mut leftovers).unwrap();
    assert!(leftovers.failures.is_empty(), "{:?}", leftovers.failures);
    let disk = directory.join("volumes/a/disk");
    assert_eq!(leftovers.left, [format!("{} (a mount)", disk.display())]);
    assert!(disk.join("file").exists());
    assert!(!directory.join("volumes/b").exists() && !directory.join("volumes/a/files").exists());
}
