use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use podwright_testkit::needs_root;
use rustix::fs::RenameFlags;
use tempfile::TempDir;

use super::*;

const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;

struct Scene {
    dir: TempDir,
    pod: Root,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for below in ["pod", "volume", "host"] {
            std::fs::create_dir(dir.path().join(below)).unwrap();
        }
        std::fs::write(dir.path().join("host/shadow"), "secret").unwrap();
        let pod = Root::open(dir.path().join("pod")).unwrap();
        Self { dir, pod }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn bind(&self, sub_path: &str) -> Result<PathBuf, SubPathError> {
        let place = Path::new("v/c/0");
        bind(&self.pod, &self.at("volume"), sub_path, place, Propagation::FromSource)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = mounts::detach_own(&self.at("pod/volume-subpaths/v/c/0"), InUse::Detach);
    }
}

#[test]
fn missing_sub_path_is_created_with_the_mode_of_the_volume() {
    needs_root!();
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let mode = std::fs::Permissions::from_mode(0o2777);
    std::fs::set_permissions(scene.at("volume"), mode).unwrap();
    let bound = scene.bind("x/y").unwrap();
    std::fs::write(bound.join("file"), "1").unwrap();
    assert_eq!(std::fs::read(scene.at("volume/x/y/file")).unwrap(), b"1");
    let made = std::fs::metadata(scene.at("volume/x")).unwrap().permissions().mode();
    assert_eq!(made & 0o7777, 0o2777);
    assert_eq!(scene.bind("x/y").unwrap(), bound, "binding again succeeds");
}

#[test]
fn replaced_file_is_bound_again() {
    needs_root!();
    let scene = Scene::new();
    std::fs::create_dir(scene.at("volume/..1")).unwrap();
    std::fs::write(scene.at("volume/..1/key"), "old").unwrap();
    symlink("..1", scene.at("volume/..data")).unwrap();
    symlink("..data/key", scene.at("volume/key")).unwrap();
    let bound = scene.bind("key").unwrap();
    assert_eq!(std::fs::read_to_string(&bound).unwrap(), "old");

    std::fs::create_dir(scene.at("volume/..2")).unwrap();
    std::fs::write(scene.at("volume/..2/key"), "new").unwrap();
    std::fs::remove_file(scene.at("volume/..data")).unwrap();
    symlink("..2", scene.at("volume/..data")).unwrap();
    std::fs::remove_dir_all(scene.at("volume/..1")).unwrap();
    assert_eq!(std::fs::read_to_string(&bound).unwrap(), "old", "kept for a running container");
    assert_eq!(std::fs::read_to_string(scene.bind("key").unwrap()).unwrap(), "new");
}

#[test]
fn paths_and_links_out_of_the_volume_are_rejected() {
    needs_root!();
    let scene = Scene::new();
    symlink(scene.at("host"), scene.at("volume/absolute")).unwrap();
    symlink("../host", scene.at("volume/up")).unwrap();
    symlink("../host/new", scene.at("volume/dangling")).unwrap();
    let bad = ["../host", "/etc", "absolute", "up/shadow", "absolute/new/deep", "dangling", "up/x"];
    for sub_path in bad {
        scene.bind(sub_path).unwrap_err();
    }
    let host: Vec<_> = std::fs::read_dir(scene.at("host")).unwrap().collect();
    assert_eq!(host.len(), 1, "nothing was created outside");
}

#[test]
fn symlink_swapped_in_a_loop_never_leads_a_bind_out_of_the_volume() {
    needs_root!();
    let scene = Scene::new();
    std::fs::create_dir(scene.at("volume/swap")).unwrap();
    std::fs::write(scene.at("volume/swap/shadow"), "harmless").unwrap();
    symlink(scene.at("host"), scene.at("volume/evil")).unwrap();
    let volume = Root::open(scene.at("volume")).unwrap();
    // Alternates between a directory and a link to the host, and always exists.
    let swap = || rustix::fs::renameat_with(&volume, "swap", &volume, "evil", EXCHANGE).unwrap();
    let stop = AtomicBool::new(false);
    let (mut bound, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swap();
            }
        });
        for round in 0..1_000_000 {
            let part = if round % 2 == 0 { "swap/shadow".into() } else { format!("swap/{round}") };
            match scene.bind(&part) {
                Ok(path) => {
                    bound += 1;
                    if let Ok(text) = std::fs::read_to_string(&path) {
                        assert_eq!(text, "harmless", "the host's file was reached");
                    }
                }
                Err(_) => refused += 1,
            }
            if bound >= 50 && refused >= 50 {
                break;
            }
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let made_outside = std::fs::read_dir(scene.at("host")).unwrap().count();
    assert_eq!(made_outside, 1, "something was created on the host");
    assert!(bound > 0 && refused > 0, "{bound} bound, {refused} rejected: no race happened");
}

#[test]
fn absolute_link_that_stays_in_the_volume_is_followed() {
    needs_root!();
    let scene = Scene::new();
    std::fs::create_dir(scene.at("volume/real")).unwrap();
    std::fs::write(scene.at("volume/real/file"), "1").unwrap();
    symlink(scene.at("volume/real"), scene.at("volume/link")).unwrap();
    let bound = scene.bind("link").unwrap();
    assert_eq!(std::fs::read(bound.join("file")).unwrap(), b"1");
    let bound = scene.bind("link/new").unwrap();
    std::fs::write(bound.join("file"), "2").unwrap();
    assert_eq!(std::fs::read(scene.at("volume/real/new/file")).unwrap(), b"2");
}

#[test]
fn link_is_resolved_only_within_the_volume() {
    let scene = Scene::new();
    let volume = scene.at("volume");
    std::fs::create_dir(scene.at("volume/real")).unwrap();
    symlink(scene.at("volume/real"), scene.at("volume/inside")).unwrap();
    symlink(scene.at("host"), scene.at("volume/outside")).unwrap();
    symlink("/", scene.at("volume/root")).unwrap();
    for (sub_path, want) in [
        ("inside", Some("real")),
        ("inside/a/b", Some("real/a/b")),
        ("outside", None),
        ("outside/a", None),
        ("inside/../outside", None),
        ("root", None),
        ("/etc", None),
    ] {
        assert_eq!(resolve(&volume, sub_path).as_deref(), want.map(Path::new), "{sub_path}");
    }
}
