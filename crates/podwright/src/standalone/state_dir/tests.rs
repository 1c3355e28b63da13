//! Which directories are a node's, on temporary directories.

#![allow(clippy::unwrap_used)]

use super::*;

fn layout(state: &Path) -> Layout {
    Layout::new(state)
}

fn mount_at(point: &Path) -> Mount {
    let line = format!("90 1 0:7 / {} rw - tmpfs tmpfs rw", point.display());
    mounts::parse(line.as_bytes()).pop().unwrap()
}

#[test]
fn directory_with_files_of_others_is_refused_by_name_and_not_changed() {
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
fn directories_of_the_system_and_homes_are_refused_even_if_empty() {
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
fn new_and_empty_directories_and_prepared_mounts_are_taken() {
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
    // The same directories with files of somebody else's in them are not empty.
    let names = |table: &[Mount]| listed(&foreign_entries(&prepared, table).unwrap());
    assert_eq!(names(&[]), "lost+found, volumes");
}

#[test]
fn state_directories_of_earlier_builds_are_recognised() {
    let base = tempfile::tempdir().unwrap();
    let down = base.path().join("down");
    for name in ["manifests", "containerd"] {
        std::fs::create_dir_all(down.join(name)).unwrap();
    }
    let up = base.path().join("up");
    std::fs::create_dir(&up).unwrap();
    let record = r#"{"network":{"bridge":"pw-1","subnet":"10.213.0.0/16","plugins":"/usr/lib/cni"},
        "cgroup_root":"/podwright-1"}"#;
    std::fs::write(up.join("made.json"), record).unwrap();
    for state in [down, up] {
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
fn reset_deletes_what_a_node_made_and_names_what_it_left() {
    let base = tempfile::tempdir().unwrap();
    let state = base.path().join("state");
    let layout = layout(&state);
    claim(&layout).unwrap();
    std::fs::create_dir_all(state.join("volumes/default/data")).unwrap();
    std::fs::write(state.join("volumes/default/data/file"), "").unwrap();
    std::fs::write(state.join("kubeconfig"), "").unwrap();
    std::fs::write(state.join(".podwright-AbCdEf"), "killed while writing").unwrap();
    std::fs::write(state.join("notes.txt"), "mine").unwrap();
    let leftovers = remove_data(&layout).unwrap();
    assert!(leftovers.failures.is_empty(), "{:?}", leftovers.failures);
    let notes = format!("{} (not made by podwright)", state.join("notes.txt").display());
    assert_eq!(leftovers.left, [notes]);
    assert_eq!(entries(&state).unwrap(), [(state.join("notes.txt"), false)]);
}

#[test]
fn reset_removes_the_directory_only_if_up_made_it() {
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
fn what_is_mounted_below_a_known_directory_stays() {
    let base = tempfile::tempdir().unwrap();
    let directory = base.path().canonicalize().unwrap();
    for path in ["volumes/a/disk", "volumes/a/files", "volumes/b"] {
        std::fs::create_dir_all(directory.join(path)).unwrap();
        std::fs::write(directory.join(path).join("file"), "").unwrap();
    }
    // Not really mounted: whatever the table names is not looked into.
    let table = [mount_at(&directory.join("volumes/a/disk"))];
    let mut leftovers = Leftovers::default();
    remove_entries(&directory, &["volumes"], &[], &table, &mut leftovers).unwrap();
    assert!(leftovers.failures.is_empty(), "{:?}", leftovers.failures);
    let disk = directory.join("volumes/a/disk");
    assert_eq!(leftovers.left, [format!("{} (a mount)", disk.display())]);
    assert!(disk.join("file").exists());
    assert!(!directory.join("volumes/b").exists() && !directory.join("volumes/a/files").exists());
}
