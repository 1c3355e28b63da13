#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use tempfile::TempDir;

use super::*;

struct Volume {
    dir: TempDir,
    root: Root,
    editions: u32,
}

impl Volume {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        Self { dir, root, editions: 0 }
    }

    fn publish(&mut self, files: &[(&str, &str)]) -> Result<Published> {
        self.editions += 1;
        let stamp = format!("2026_01_01_00_00_00.{}", self.editions);
        self.root.publish(&set(files), &stamp, |_| Ok(()))
    }

    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.path().join(path)).ok()
    }

    fn names(&self) -> Vec<String> {
        let listed = self.root.list("").unwrap();
        let mut names: Vec<_> = listed.into_iter().map(|(n, _)| n.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn set<'a>(files: &[(&str, &'a str)]) -> BTreeMap<PathBuf, NewFile<'a>> {
    let file = |text: &'a str| NewFile { bytes: text.as_bytes(), mode: 0o644, owner: None };
    files.iter().map(|(path, text)| (PathBuf::from(path), file(text))).collect()
}

#[test]
fn edition_replaces_the_previous_one_completely() {
    let mut volume = Volume::new();
    assert_eq!(volume.publish(&[("a", "1"), ("sub/b", "2")]).unwrap(), Published::NewEdition);
    assert_eq!(
        (volume.text("a").as_deref(), volume.text("sub/b").as_deref()),
        (Some("1"), Some("2"))
    );
    assert_eq!(volume.names(), ["..2026_01_01_00_00_00.1", "..data", "a", "sub"]);
    let link = std::fs::read_link(volume.dir.path().join("sub")).unwrap();
    assert_eq!(link, Path::new("..data/sub"), "one link for a whole directory");

    assert_eq!(volume.publish(&[("a", "1"), ("c", "")]).unwrap(), Published::NewEdition);
    assert_eq!(volume.names(), ["..2026_01_01_00_00_00.2", "..data", "a", "c"]);
    assert_eq!(volume.publish(&[]).unwrap(), Published::NewEdition);
    assert_eq!(
        volume.names(),
        ["..2026_01_01_00_00_00.3", "..data"],
        "an empty edition is written too"
    );
}

#[test]
fn the_same_content_writes_nothing() {
    let mut volume = Volume::new();
    volume.publish(&[("a", "1")]).unwrap();
    let before = std::fs::metadata(volume.dir.path()).unwrap().mtime_nsec();
    assert_eq!(volume.publish(&[("a", "1")]).unwrap(), Published::Unchanged);
    assert_eq!(std::fs::metadata(volume.dir.path()).unwrap().mtime_nsec(), before);
    for other in [&[("a", "2")][..], &[("a", "12")], &[("a", "")], &[("b", "")], &[]] {
        assert_eq!(volume.publish(other).unwrap(), Published::NewEdition, "{other:?}");
    }
}

#[test]
fn leftovers_of_a_killed_process_are_removed_and_missing_links_created() {
    let mut volume = Volume::new();
    volume.publish(&[("a", "1"), ("b", "2")]).unwrap();
    let at = |name: &str| volume.dir.path().join(name);
    std::fs::create_dir(at("..2025_12_31_00_00_00.9")).unwrap();
    std::fs::write(at("..2025_12_31_00_00_00.9/half"), "x").unwrap();
    std::os::unix::fs::symlink("..2025_12_31_00_00_00.9", at("..data_tmp")).unwrap();
    std::fs::remove_file(at("b")).unwrap();
    assert_eq!(volume.publish(&[("a", "1"), ("b", "2")]).unwrap(), Published::Unchanged);
    assert_eq!(volume.names(), ["..2026_01_01_00_00_00.1", "..data", "a", "b"]);
}

#[test]
fn modes_are_exact_and_a_failed_edition_changes_nothing() {
    let mut volume = Volume::new();
    let mut files = set(&[("a", "1"), ("b", "2")]);
    files.get_mut(Path::new("a")).unwrap().mode = 0o406;
    volume.root.publish(&files, "1", |_| Ok(())).unwrap();
    let mode = |path: &str| std::fs::metadata(volume.dir.path().join(path)).unwrap().permissions();
    assert_eq!((mode("a").mode() & 0o7777, mode("b").mode() & 0o7777), (0o406, 0o644));
    assert_eq!(mode("..1").mode() & 0o7777, 0o755);

    let refuse = |root: &Root| root.remove_dir_all("..");
    volume.root.publish(&set(&[("a", "9")]), "2", refuse).unwrap_err();
    assert_eq!(volume.text("a").as_deref(), Some("1"));
    assert_eq!(volume.names(), ["..1", "..data", "a", "b"]);
    volume.publish(&[("a/b", "x"), ("a", "y")]).unwrap_err();
    assert_eq!(volume.text("a").as_deref(), Some("1"));
}

#[test]
fn link_that_leads_out_is_not_an_edition() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("a"), "1").unwrap();
    let mut volume = Volume::new();
    std::os::unix::fs::symlink(outside.path(), volume.dir.path().join("..data")).unwrap();
    assert_eq!(volume.publish(&[("a", "1")]).unwrap(), Published::NewEdition);
    assert_eq!(volume.text("a").as_deref(), Some("1"));
    assert!(outside.path().join("a").exists());
}

#[test]
fn reader_never_sees_parts_of_two_editions() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let mut volume = Volume::new();
    volume.publish(&[("a", "0"), ("b", "0")]).unwrap();
    let (path, stop) = (volume.dir.path().to_owned(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut pairs = 0u64;
            while !stop.load(Ordering::Relaxed) {
                // One edition, held by its directory handle: it may vanish but never changes.
                let Ok(edition) = std::fs::canonicalize(path.join("..data")) else { continue };
                let read = |name: &str| std::fs::read_to_string(edition.join(name)).ok();
                if let (Some(a), Some(b)) = (read("a"), read("b")) {
                    assert_eq!(a, b);
                    pairs += 1;
                }
            }
            pairs
        });
        for number in 1..400 {
            let text = number.to_string();
            volume.publish(&[("a", &text), ("b", &text)]).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(reader.join().unwrap() > 0);
    });
}
