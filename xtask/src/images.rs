//! Image archives built from local files, without registry, image tool or daemon.
//!
//! | archive | images in it |
//! |---|---|
//! | `pause.tar` | the sandbox, under the name that `podwright` uses |
//! | `test.tar` | the test image in four tags: `latest`, `v2`, `nonroot`, `named-user` |
//! | `busybox.tar` | the same files under the name that users' manifests use |
//!
//! The same inputs give the same bytes, so an archive is checked by building it and comparing,
//! which is quicker than tracking its inputs.

mod testserver;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use podwright_pause::elf::{self, Linkage};
use podwright_pause::oci::{self, Config, Image, Layer, PackedLayer};

use crate::cargo::Workspace;

const TEST: &str = "localhost/podwright/test";
const BUSYBOX: &str = "docker.io/library/busybox:latest";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const PASSWD: &str = "\
root:x:0:0:root:/root:/bin/sh
app:x:1000:1000:app:/home/app:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
";
/// `app` is also in a group by name only: a runtime that reads this file adds 2000 to the pod's
/// groups.
const GROUP: &str = "\
root:x:0:
app:x:1000:
extra:x:2000:app
nogroup:x:65534:
";

pub(crate) fn build(workspace: &Workspace, out: &Path, busybox: &Path) -> anyhow::Result<()> {
    let layer = test_layer(busybox, &testserver::build(workspace)?)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    for (file, images) in [
        ("pause.tar", vec![podwright_pause::image()?]),
        ("test.tar", test_images(&layer)),
        ("busybox.tar", vec![busybox_image(&layer)]),
    ] {
        let path = out.join(file);
        let archive = oci::archive(&images).with_context(|| format!("cannot build {file}"))?;
        let made = write_if_changed(&path, &archive)?;
        let verb = if made { "written" } else { "up to date" };
        let shown = path.strip_prefix(&workspace.root).unwrap_or(&path).display();
        println!("{shown}: {verb}, {} KiB", archive.len() >> 10);
        for image in &images {
            println!("    {}", image.name);
        }
    }
    Ok(())
}

fn test_images(layer: &PackedLayer) -> Vec<Image> {
    let test = |tag: &str, version: &str, user: &str| Image {
        name: format!("{TEST}:{tag}"),
        config: Config {
            user: user.into(),
            env: vec![PATH.into(), format!("TEST_VERSION={version}")],
            entrypoint: vec!["/bin/testserver".into()],
            cmd: vec!["serve".into()],
            working_dir: "/".into(),
            labels: [("org.opencontainers.image.version".into(), version.into())].into(),
        },
        layer: layer.clone(),
    };
    vec![
        test("latest", "1", ""),
        test("v2", "2", ""),
        test("nonroot", "1", "1000"),
        test("named-user", "1", "app"),
    ]
}

fn busybox_image(layer: &PackedLayer) -> Image {
    Image {
        name: BUSYBOX.into(),
        config: Config { env: vec![PATH.into()], cmd: vec!["sh".into()], ..Config::default() },
        layer: layer.clone(),
    }
}

fn test_layer(busybox: &Path, testserver: &Path) -> anyhow::Result<PackedLayer> {
    let mut layer = Layer::default();
    layer.file("/bin/busybox", 0o755, &static_program(busybox, "busybox-static")?)?;
    for applet in applets(busybox)? {
        layer.symlink(&applet, "/bin/busybox")?;
    }
    layer.file("/bin/testserver", 0o755, &static_program(testserver, "podwright-testserver")?)?;
    layer.file("/etc/passwd", 0o644, PASSWD.as_bytes())?;
    layer.file("/etc/group", 0o644, GROUP.as_bytes())?;
    layer.directory("/root", 0o700)?;
    layer.directory("/home/app", 0o755)?;
    layer.directory("/tmp", 0o1777)?;
    Ok(layer.pack()?)
}

/// A static program.
fn static_program(path: &Path, package: &str) -> anyhow::Result<Vec<u8>> {
    let program = std::fs::read(path).with_context(|| {
        format!("cannot read {}; install the Debian package {package}", path.display())
    })?;
    match elf::linkage(&program) {
        Some(Linkage::Static) => Ok(program),
        Some(Linkage::Dynamic) => {
            bail!("{} is dynamically linked; use the one of {package}", path.display())
        }
        None => bail!("{} is not an executable for this machine", path.display()),
    }
}

/// Absolute path of each busybox applet.
fn applets(busybox: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new(busybox)
        .arg("--list-full")
        .output()
        .with_context(|| format!("cannot run {}", busybox.display()))?;
    ensure!(output.status.success(), "{} --list-full: {}", busybox.display(), output.status);
    let list =
        String::from_utf8(output.stdout).context("output of busybox --list-full is not UTF-8")?;
    let applets: Vec<String> =
        list.lines().filter(|path| *path != "bin/busybox").map(|path| format!("/{path}")).collect();
    ensure!(applets.iter().any(|path| path == "/bin/sh"), "this busybox has no sh");
    Ok(applets)
}

/// Writes the file if its content changes and returns whether it did. The file is replaced
/// atomically: an import may run at the same time.
fn write_if_changed(path: &Path, content: &[u8]) -> anyhow::Result<bool> {
    if std::fs::read(path).is_ok_and(|there| there == content) {
        return Ok(false);
    }
    let cannot = || format!("cannot write {}", path.display());
    let directory = path.parent().with_context(cannot)?;
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(directory)
        .with_context(cannot)?;
    file.write_all(content).with_context(cannot)?;
    file.persist(path).with_context(cannot)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tags_of_the_test_image_differ_in_their_id_and_share_their_files() {
        let mut layer = Layer::default();
        layer.file("/bin/testserver", 0o755, b"").unwrap();
        let images = test_images(&layer.pack().unwrap());
        let mut ids: Vec<String> = images.iter().map(|i| i.id().unwrap().to_string()).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 4);
        assert_eq!(images[2].config.user, "1000");
        assert_eq!(images[3].config.user, "app");
    }

    #[test]
    fn dynamically_linked_program_is_refused() {
        let refused = static_program(Path::new("/proc/self/exe"), "x-static").unwrap_err();
        assert!(refused.to_string().contains("use the one of x-static"), "{refused}");
        assert!(static_program(Path::new("/proc/self/status"), "x").is_err());
    }

    #[test]
    fn archive_is_written_only_when_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar");
        assert!(write_if_changed(&path, b"1").unwrap());
        assert!(!write_if_changed(&path, b"1").unwrap());
        assert!(write_if_changed(&path, b"2").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"2");
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
}
