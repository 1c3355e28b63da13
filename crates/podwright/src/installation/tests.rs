use super::*;

fn target(root: &Path) -> Target {
    Target {
        root: root.to_owned(),
        prefix: "/usr/local".into(),
        systemd: true,
        state_dir: cli::STATE_DIR.into(),
    }
}

fn planned(build: &str) -> Vec<PlannedFile> {
    let file = |path: &str, content: String, mode| {
        PlannedFile::new(path.into(), content.into_bytes(), mode)
    };
    vec![
        file("/usr/local/bin/podwright", format!("program {build}"), 0o755),
        file("/etc/systemd/system/podwright-up.service", "unit".to_owned(), 0o644),
        file("/usr/local/share/man/man1/podwright.1", format!("page {build}"), 0o644),
    ]
}

fn install(target: &Target, files: Vec<PlannedFile>) -> anyhow::Result<Vec<(PathBuf, Change)>> {
    let packages = Packages::of(&target.root)?;
    let plan = Plan::check(target.clone(), files, &packages)?;
    plan.apply()?;
    Ok(plan.changes)
}

/// All files and directories below a directory.
fn tree(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(next) = left.pop() {
        for entry in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            found.push(entry.strip_prefix(directory).unwrap().to_str().unwrap().to_owned());
            if entry.is_dir() {
                left.push(entry);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn uninstall_removes_exactly_what_install_created() {
    let root = tempfile::tempdir().unwrap();
    let target = target(root.path());
    std::fs::create_dir_all(root.path().join("usr/local/bin")).unwrap();
    std::fs::write(root.path().join("usr/local/bin/other"), "other").unwrap();
    let before = tree(root.path());
    let changes = install(&target, planned("1")).unwrap();
    assert!(changes.iter().all(|(_, change)| *change == Change::Create), "{changes:?}");
    let program = root.path().join("usr/local/bin/podwright");
    assert_eq!(std::fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
    // Again: nothing changes.
    let inode = std::fs::metadata(&program).unwrap().ino();
    let changes = install(&target, planned("1")).unwrap();
    assert!(changes.iter().all(|(_, change)| *change == Change::Keep), "{changes:?}");
    assert_eq!(std::fs::metadata(&program).unwrap().ino(), inode);
    // A file of someone else in a directory that was created stays, and so does the directory.
    let foreign = root.path().join("usr/local/share/man/man1/other.1");
    std::fs::write(&foreign, "other").unwrap();
    let dry = uninstall(&target, true).unwrap().unwrap();
    assert_eq!((dry.removed.len(), dry.kept.len()), (3, 0));
    assert!(program.exists());
    let done = uninstall(&target, false).unwrap().unwrap();
    assert_eq!(done, dry);
    std::fs::remove_file(&foreign).unwrap();
    for directory in ["usr/local/share/man/man1", "usr/local/share/man", "usr/local/share"] {
        std::fs::remove_dir(root.path().join(directory)).unwrap();
    }
    assert_eq!(tree(root.path()), before);
    assert_eq!(uninstall(&target, false).unwrap(), None);
}

#[test]
fn upgrade_replaces_own_files_and_removes_those_that_the_new_build_has_not() {
    let root = tempfile::tempdir().unwrap();
    let target = target(root.path());
    install(&target, planned("1")).unwrap();
    let new = planned("2").into_iter().take(2).collect();
    let changes: Vec<Change> =
        install(&target, new).unwrap().into_iter().map(|(_, change)| change).collect();
    assert_eq!(changes, [Change::Replace, Change::Keep, Change::Remove]);
    let program = root.path().join("usr/local/bin/podwright");
    assert_eq!(std::fs::read_to_string(program).unwrap(), "program 2");
    assert!(!root.path().join("usr/local/share/man/man1/podwright.1").exists());
    assert_eq!(uninstall(&target, false).unwrap().unwrap().removed.len(), 2);
}

#[test]
fn interrupted_upgrade_is_completed_or_removed() {
    for complete in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let target = target(root.path());
        install(&target, planned("1")).unwrap();
        // The record of both, and one new file, as after a power cut.
        let mut record = Record::read(&target.record()).unwrap().unwrap();
        record.files.extend(planned("2").iter().map(InstalledFile::of));
        record.write(&target.record()).unwrap();
        let program = root.path().join("usr/local/bin/podwright");
        std::fs::write(&program, "program 2").unwrap();
        if complete {
            install(&target, planned("2")).unwrap();
            assert_eq!(std::fs::read_to_string(&program).unwrap(), "program 2");
        }
        let done = uninstall(&target, false).unwrap().unwrap();
        assert_eq!((done.removed.len(), done.kept), (3, vec![]), "{complete}");
        assert_eq!(tree(root.path()), [""; 0]);
    }
}

#[test]
fn foreign_and_changed_files_are_refused_before_anything_changes() {
    let root = tempfile::tempdir().unwrap();
    let target = target(root.path());
    let program = root.path().join("usr/local/bin/podwright");
    std::fs::create_dir_all(program.parent().unwrap()).unwrap();
    std::fs::write(&program, "built by hand").unwrap();
    let before = tree(root.path());
    let refused = |target: &Target| format!("{:#}", install(target, planned("1")).unwrap_err());
    assert!(refused(&target).contains("was not installed by podwright"));
    assert_eq!(tree(root.path()), before);
    std::fs::remove_file(&program).unwrap();
    std::os::unix::fs::symlink("/bin/true", &program).unwrap();
    assert!(refused(&target).contains("not a regular file"));
    std::fs::remove_file(&program).unwrap();

    install(&target, planned("1")).unwrap();
    let unit = root.path().join("etc/systemd/system/podwright-up.service");
    std::fs::write(&unit, "edited").unwrap();
    assert!(refused(&target).contains("was changed after it was installed"));
    let done = uninstall(&target, false).unwrap().unwrap();
    assert_eq!(done.kept, [Path::new("/etc/systemd/system/podwright-up.service")]);
    assert_eq!(std::fs::read_to_string(&unit).unwrap(), "edited");
}

#[test]
fn link_that_leads_out_of_the_root_is_refused() {
    let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::os::unix::fs::symlink(outside.path(), root.path().join("usr")).unwrap();
    let error = format!("{:#}", install(&target(root.path()), planned("1")).unwrap_err());
    assert!(error.contains("leads out of"), "{error}");
    assert_eq!(tree(outside.path()), [""; 0]);
}

#[test]
fn file_of_a_package_is_refused() {
    // dpkg's own database of a package, as dpkg-query reads it.
    if find_dpkg().is_none() {
        return podwright_testkit::report::skipped("dpkg-query is not installed");
    }
    let root = tempfile::tempdir().unwrap();
    let info = root.path().join("var/lib/dpkg/info");
    std::fs::create_dir_all(&info).unwrap();
    let status = "Package: podwright\nStatus: install ok installed\nMaintainer: x <x@example.org>\n\
                  Architecture: all\nVersion: 1\nDescription: x\n";
    std::fs::write(root.path().join("var/lib/dpkg/status"), status).unwrap();
    std::fs::write(info.join("format"), "1\n").unwrap();
    std::fs::write(
        info.join("podwright.list"),
        "/.\n/usr\n/usr/local\n/usr/local/bin\n/usr/local/bin/podwright\n",
    )
    .unwrap();
    let target = target(root.path());
    let error = format!("{:#}", install(&target, planned("1")).unwrap_err());
    assert!(error.contains("/usr/local/bin/podwright belongs to the package podwright"), "{error}");
    assert!(!root.path().join("usr").exists());
    std::fs::write(info.join("podwright.list"), "/.\n").unwrap();
    install(&target, planned("1")).unwrap();
    assert!(root.path().join("usr/local/bin/podwright").exists());
}

fn find_dpkg() -> Option<PathBuf> {
    crate::standalone::containerd::find("dpkg-query").unwrap()
}

#[test]
fn unit_starts_the_installed_program() {
    let usual = unit(Path::new("/usr/local/bin/podwright"), Path::new(cli::STATE_DIR)).unwrap();
    assert_eq!(usual, UNIT_TEXT);
    let other = unit(Path::new("/opt/p/bin/podwright"), Path::new("/srv/node")).unwrap();
    let line = "\nExecStart=/opt/p/bin/podwright up --foreground --state-dir /srv/node\n";
    assert!(other.contains(line), "{other}");
    for path in ["/srv/a b", "/srv/$x", "/srv/%h", "/srv/\n"] {
        assert!(unit(Path::new("/bin/podwright"), Path::new(path)).is_err(), "{path:?}");
    }
}

#[test]
fn record_that_names_other_paths_or_is_corrupt_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let target = target(root.path());
    std::fs::create_dir_all(target.record().parent().unwrap()).unwrap();
    for text in [
        "",
        "{}",
        r#"{"files":[{"path":"/usr/../../etc/passwd","sha256":""}],"directories":[]}"#,
        r#"{"files":[],"directories":["etc"]}"#,
    ] {
        std::fs::write(target.record(), text).unwrap();
        let error = format!("{:#}", uninstall(&target, false).unwrap_err());
        assert!(error.contains("installed.json is corrupt"), "{error}");
    }
    std::fs::write(target.record(), r#"{"files":[],"directories":[]}"#).unwrap();
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(target.record(), open).unwrap();
    let error = format!("{:#}", uninstall(&target, false).unwrap_err());
    assert!(error.contains("another user"), "{error}");
}
