use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use std::sync::Arc;

use podwright_apiserver::{Clock, Limits, Store};

use super::*;

/// A node that is down, with some content.
struct Node {
    layout: Layout,
    _base: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let layout = Layout { state: base.path().join("state"), runs: base.path().join("run") };
        Self { layout, _base: base }
    }

    fn filled() -> Self {
        let node = Self::new();
        let layout = &node.layout;
        state_dir::claim(layout).unwrap();
        layout.make().unwrap();
        drop(Store::open(&layout.api().join(OBJECTS), Limits::default(), Clock::system()).unwrap());
        for (name, content) in [("ca.key", "key"), ("port", "6444")] {
            super::super::write_private(&layout.api().join(name), content.as_bytes()).unwrap();
        }
        std::fs::create_dir(layout.manifests().join("sub")).unwrap();
        std::fs::write(layout.manifests().join("sub/web.yaml"), "kind: Pod").unwrap();
        let volume = layout.volumes().join("default_data");
        std::fs::create_dir(&volume).unwrap();
        std::fs::write(volume.join("file"), vec![7; 100_000]).unwrap();
        std::fs::set_permissions(volume.join("file"), std::fs::Permissions::from_mode(0o4751))
            .unwrap();
        symlink("/etc/shadow", volume.join("link")).unwrap();
        std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o2770)).unwrap();
        nix::unistd::mkfifo(&volume.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        node
    }

    fn lock(&self) -> NodeLock {
        NodeLock::take(&self.layout, "test", &|_| {}).unwrap()
    }

    fn backup(&self, volumes: VolumeData) -> (Vec<u8>, Summary) {
        let mut archive = Vec::new();
        let summary = write(&self.layout, &self.lock(), volumes, &mut archive).unwrap();
        (archive, summary)
    }

    fn restore(&self, archive: &[u8], existing: Existing) -> anyhow::Result<Summary> {
        restore(&self.layout, &mut self.lock(), archive, existing)
    }

    /// Paths, modes, owners, times and content of what a backup contains.
    fn content(&self) -> Vec<(PathBuf, u32, u32, i64, Vec<u8>)> {
        let mut found = Vec::new();
        let mut left = ["api", "manifests", "volumes"].map(PathBuf::from).to_vec();
        while let Some(path) = left.pop() {
            let real = self.layout.state().join(&path);
            let Ok(metadata) = std::fs::symlink_metadata(&real) else { continue };
            let content = if metadata.is_dir() {
                left.extend(
                    std::fs::read_dir(&real).unwrap().map(|it| path.join(it.unwrap().file_name())),
                );
                Vec::new()
            } else if metadata.is_symlink() {
                std::fs::read_link(&real).unwrap().into_os_string().into_encoded_bytes()
            } else if metadata.is_file() && !path.ends_with(OBJECTS) {
                std::fs::read(&real).unwrap()
            } else {
                Vec::new()
            };
            let is_in_tree = path.starts_with("volumes/default_data");
            let time = if is_in_tree && !metadata.is_symlink() { metadata.mtime() } else { 0 };
            if metadata.is_dir() || metadata.is_file() || metadata.is_symlink() {
                found.push((path, metadata.mode(), metadata.uid(), time, content));
            }
        }
        found.sort();
        found
    }
}

fn relisted(archive: &[u8], change: impl Fn(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
    let mut changed = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(MultiGzDecoder::new(archive)).entries().unwrap() {
        let mut entry = entry.unwrap();
        let (mut header, path) = (entry.header().clone(), entry.path().unwrap().into_owned());
        changed.append_data(&mut header, path, &mut entry).unwrap();
    }
    change(&mut changed);
    gzip(&changed.into_inner().unwrap())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// An entry whose path or type the tar library would not write.
fn raw(builder: &mut tar::Builder<Vec<u8>>, path: &str, kind: tar::EntryType, size: u64) {
    let mut header = tar::Header::new_gnu();
    let name = &mut header.as_old_mut().name;
    name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header.set_cksum();
    builder.append(&header, &b"x"[..usize::from(size == 1)]).unwrap();
}

#[test]
fn everything_is_restored_with_owners_modes_and_times() {
    let node = Node::filled();
    let before = node.content();
    let (archive, summary) = node.backup(VolumeData::Included);
    assert_eq!(summary.skipped, 1, "the pipe");
    std::fs::remove_dir_all(node.layout.state()).unwrap();
    let restored = node.restore(&archive, Existing::Refuse).unwrap();
    assert_eq!(restored.description, summary.description);
    assert_eq!(node.content(), before);
    let left: Vec<_> = std::fs::read_dir(node.layout.state()).unwrap().flatten().collect();
    assert!(left.iter().all(|it| !it.file_name().to_string_lossy().starts_with(TEMPORARY)));
}

#[test]
fn existing_content_is_replaced_only_on_request_and_volumes_only_by_volumes() {
    let node = Node::filled();
    let (archive, _) = node.backup(VolumeData::LeftOut);
    std::fs::write(node.layout.manifests().join("newer.yaml"), "kind: Pod").unwrap();
    std::fs::write(node.layout.volumes().join("newer"), "data").unwrap();
    let before = node.content();
    let refused = format!("{:#}", node.restore(&archive, Existing::Refuse).unwrap_err());
    assert!(refused.contains("--overwrite"), "{refused}");
    assert_eq!(node.content(), before);
    node.restore(&archive, Existing::Replace).unwrap();
    assert!(!node.layout.manifests().join("newer.yaml").exists());
    assert!(node.layout.volumes().join("newer").exists());
    assert!(node.layout.volumes().join("default_data/file").exists());
}

#[test]
fn node_that_is_up_and_another_state_directory_are_refused() {
    let (node, other) = (Node::filled(), Node::new());
    let (archive, _) = node.backup(VolumeData::LeftOut);
    let refused = format!("{:#}", other.restore(&archive, Existing::Refuse).unwrap_err());
    assert!(refused.contains("--state-dir"), "{refused}");
    let record = super::super::tests::record(&node.layout);
    node.layout.write_record(&record).unwrap();
    let refused = format!("{:#}", node.restore(&archive, Existing::Replace).unwrap_err());
    assert!(refused.contains("podwright down"), "{refused}");
}

#[test]
fn hostile_archives_are_refused_and_change_nothing() {
    use tar::EntryType as Type;
    let node = Node::filled();
    let (archive, _) = node.backup(VolumeData::Included);
    let before = node.content();
    let outside = tempfile::tempdir().unwrap();
    let link = |builder: &mut tar::Builder<Vec<u8>>, path: &str, target: &Path| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(Type::Symlink);
        header.set_mode(0o777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        builder.append_link(&mut header, path, target).unwrap();
    };
    let target = outside.path();
    type Act<'a> = Box<dyn Fn(&mut tar::Builder<Vec<u8>>) + 'a>;
    let cases: Vec<(&str, Act<'_>)> = vec![
        ("parent", Box::new(|it| raw(it, "volumes/../../evil", Type::Regular, 1))),
        ("absolute", Box::new(|it| raw(it, "/etc/evil", Type::Regular, 1))),
        ("unknown file", Box::new(|it| raw(it, "kubelet/evil", Type::Regular, 1))),
        ("unknown key", Box::new(|it| raw(it, "api/evil", Type::Regular, 1))),
        ("device", Box::new(|it| raw(it, "volumes/null", Type::Char, 0))),
        ("block device", Box::new(|it| raw(it, "volumes/disk", Type::Block, 0))),
        ("pipe", Box::new(|it| raw(it, "volumes/pipe", Type::Fifo, 0))),
        ("hard link", Box::new(|it| raw(it, "volumes/hard", Type::Link, 0))),
        ("directory for a key", Box::new(|it| raw(it, "api/token.key", Type::Directory, 0))),
        ("huge key", Box::new(|it| raw(it, "api/token.key", Type::Regular, 1 << 30))),
        ("huge file", Box::new(|it| raw(it, "volumes/huge", Type::Regular, 1 << 33))),
        ("twice", Box::new(|it| raw(it, "api/port", Type::Regular, 1))),
        ("second description", Box::new(|it| raw(it, DESCRIPTION, Type::Regular, 1))),
        (
            "through a link",
            Box::new(|it| {
                link(it, "volumes/out", target);
                raw(it, "volumes/out/evil", Type::Regular, 1);
            }),
        ),
        (
            "over a link",
            Box::new(|it| {
                link(it, "volumes/out", &target.join("evil"));
                raw(it, "volumes/out", Type::Regular, 1);
            }),
        ),
        (
            "directory over a link",
            Box::new(|it| {
                link(it, "volumes/out", target);
                raw(it, "volumes/out", Type::Directory, 0);
            }),
        ),
        ("link for objects", Box::new(|it| link(it, "api/token.key", target))),
    ];
    for (case, act) in cases {
        let hostile = relisted(&archive, act);
        let error = node.restore(&hostile, Existing::Replace).map(drop).unwrap_err();
        assert_eq!(node.content(), before, "{case}");
        assert_eq!(std::fs::read_dir(target).unwrap().count(), 0, "{case}");
        assert!(format!("{error:#}").contains("nothing was changed"), "{case}: {error:#}");
        let left = std::fs::read_dir(node.layout.state()).unwrap().flatten();
        let temporary =
            left.filter(|it| it.file_name().to_string_lossy().starts_with(TEMPORARY)).count();
        assert_eq!(temporary, 0, "{case}");
    }
    // Truncated, not an archive, and objects that are none.
    let tar = gzip(b"not a tar archive, but long enough to be read as one");
    let empty = gzip(&tar::Builder::new(Vec::new()).into_inner().unwrap());
    for bytes in [&archive[..archive.len() / 2], &archive[..archive.len() - 4], b"x", &tar, &empty]
    {
        assert!(node.restore(bytes, Existing::Replace).is_err());
        assert_eq!(node.content(), before);
    }
    std::fs::write(node.layout.api().join(OBJECTS), "not a database").unwrap();
    let (corrupt, _) = node.backup(VolumeData::LeftOut);
    let error = format!("{:#}", node.restore(&corrupt, Existing::Replace).unwrap_err());
    assert!(error.contains("objects in the archive are corrupt"), "{error}");
}

#[tokio::test]
async fn objects_of_a_running_agent_come_from_the_agent() {
    let node = Node::filled();
    let layout = node.layout.clone();
    let objects = layout.api().join(OBJECTS);
    let store = Arc::new(Store::open(&objects, Limits::default(), Clock::system()).unwrap());
    let stop = tokio_util::sync::CancellationToken::new();
    let copied = store.clone();
    let copy: CopyObjects = Arc::new(move |path| Ok(copied.copy_to(path)?));
    let serving = tokio::spawn(serve_objects(layout.clone(), copy, stop.clone()));
    while !layout.backup_socket().exists() {
        tokio::task::yield_now().await;
    }
    super::super::agent::Agent::of(&layout).daemon().write_own_pid_file().unwrap();
    let of_agent = layout.clone();
    let mut snapshot =
        tokio::task::spawn_blocking(move || objects::snapshot(&of_agent)).await.unwrap().unwrap();
    let mut bytes = Vec::new();
    snapshot.read_to_end(&mut bytes).unwrap();
    let path = layout.state().join("copy.redb");
    std::fs::write(&path, bytes).unwrap();
    let copy = Store::open(&path, Limits::default(), Clock::system()).unwrap();
    assert!(copy.revision() >= store.revision());
    stop.cancel();
    serving.await.unwrap();
    assert!(!layout.backup_socket().exists());
}
