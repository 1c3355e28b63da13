use std::collections::BTreeMap;
use std::io::Read as _;

use serde_json::Value;

use super::*;

/// Every entry of a tar: path -> (type, mode, content or target), in the order written.
fn entries(tar: &[u8]) -> Vec<(String, tar::EntryType, u32, Vec<u8>)> {
    let mut archive = tar::Archive::new(tar);
    let entries = archive.entries().unwrap();
    entries
        .map(|entry| {
            let mut entry = entry.unwrap();
            let header = entry.header();
            assert_eq!(header.mtime().unwrap(), 0);
            assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
            let (kind, mode) = (header.entry_type(), header.mode().unwrap());
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if let Some(target) = entry.link_name_bytes() {
                content = target.into_owned();
            }
            (path, kind, mode, content)
        })
        .collect()
}

fn blobs(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    entries(archive).into_iter().map(|(path, _, _, content)| (path, content)).collect()
}

/// The content a descriptor points to, with its size checked.
fn follow<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap();
    let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
    assert_eq!(descriptor["size"], content.len());
    assert_eq!(Digest::of(content).to_string(), digest);
    content
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

fn image(name: &str, layer: &Layer) -> Image {
    Image { name: name.into(), config: Config::default(), layer: layer.pack().unwrap() }
}

fn hello() -> Layer {
    let mut layer = Layer::default();
    layer.file("/bin/hello", 0o755, b"hello").unwrap();
    layer
}

#[test]
fn layer_is_ordered_and_contains_no_host_metadata() {
    let mut layer = Layer::default();
    layer.symlink("/bin/sh", "busybox").unwrap();
    layer.directory("/tmp", 0o1777).unwrap();
    layer.file("/usr/share/doc/readme", 0o640, b"text").unwrap();
    layer.file("/bin/busybox", 0o755, b"program").unwrap();

    use tar::EntryType::{Directory, Regular, Symlink};
    let want = [
        ("bin/", Directory, 0o755, ""),
        ("bin/busybox", Regular, 0o755, "program"),
        ("bin/sh", Symlink, 0o777, "busybox"),
        ("tmp/", Directory, 0o1777, ""),
        ("usr/", Directory, 0o755, ""),
        ("usr/share/", Directory, 0o755, ""),
        ("usr/share/doc/", Directory, 0o755, ""),
        ("usr/share/doc/readme", Regular, 0o640, "text"),
    ]
    .map(|(path, kind, mode, content)| (path.to_owned(), kind, mode, content.into()));
    assert_eq!(entries(&layer.pack().unwrap().0.bytes), want);
}

#[test]
fn order_of_adding_does_not_change_the_bytes() {
    let files = [("/a", "1"), ("/a-b", "2"), ("/d/e", "3"), ("/d/c/f", "4")];
    let build = |order: &mut dyn Iterator<Item = &(&str, &str)>| {
        let mut layer = Layer::default();
        for (path, content) in order {
            layer.file(path, 0o644, content.as_bytes()).unwrap();
        }
        archive(&[image("localhost/x:1", &layer)]).unwrap()
    };
    assert_eq!(build(&mut files.iter()), build(&mut files.iter().rev()));
}

#[test]
fn path_longer_than_a_tar_header_is_kept() {
    let long = format!("{}/file", "directory/".repeat(20).trim_end_matches('/'));
    let mut layer = Layer::default();
    layer.file(&format!("/{long}"), 0o644, b"deep").unwrap();
    layer.symlink("/link", &format!("/{long}")).unwrap();

    let entries = entries(&layer.pack().unwrap().0.bytes);
    assert!(entries.iter().any(|(path, .., content)| *path == long && content == b"deep"));
    assert!(
        entries
            .iter()
            .any(|(path, .., target)| path == "link" && *target == format!("/{long}").into_bytes())
    );
}

#[test]
fn paths_that_leave_the_root_or_repeat_are_refused() {
    for path in ["", "/", "relative", "/a//b", "/a/", "/..", "/a/../b", "/./a", "/nul\0"] {
        let refused = Layer::default().file(path, 0o644, b"");
        assert!(matches!(refused, Err(Error::Path { .. })), "{path:?}");
    }

    let mut layer = hello();
    assert!(matches!(layer.file("/bin/hello", 0o644, b""), Err(Error::Taken { .. })));
    assert!(matches!(layer.symlink("/bin", "/usr/bin"), Err(Error::Taken { .. })));
    assert!(matches!(layer.file("/bin/hello/more", 0o644, b""), Err(Error::Parent { .. })));
    layer.directory("/bin", 0o555).unwrap();
    assert!(matches!(layer.directory("/bin", 0o755), Err(Error::Taken { .. })));
}

#[test]
fn archive_resolves_from_the_name_to_every_file() {
    let mut image = image("localhost/podwright/test:v2", &hello());
    image.config = Config {
        user: "1000".into(),
        env: vec!["A=b".into()],
        entrypoint: vec!["/bin/hello".into()],
        labels: [("version".to_owned(), "2".to_owned())].into(),
        ..Config::default()
    };
    let files = blobs(&archive(std::slice::from_ref(&image)).unwrap());

    assert_eq!(json(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
    let index = json(&files["index.json"]);
    let entry = &index["manifests"][0];
    assert_eq!(entry["annotations"]["io.containerd.image.name"], "localhost/podwright/test:v2");
    assert_eq!(entry["annotations"]["org.opencontainers.image.ref.name"], "v2");
    assert_eq!(entry["platform"]["os"], "linux");

    let manifest = json(follow(&files, entry));
    assert_eq!(manifest["mediaType"], entry["mediaType"]);
    let config = json(follow(&files, &manifest["config"]));
    assert_eq!(image.id().unwrap().to_string(), manifest["config"]["digest"].as_str().unwrap());
    let want = serde_json::json!({
        "User": "1000", "Env": ["A=b"], "Entrypoint": ["/bin/hello"], "Labels": {"version": "2"},
    });
    assert_eq!(config["config"], want);

    let layer = &manifest["layers"][0];
    assert_eq!(config["rootfs"]["diff_ids"][0], layer["digest"]);
    assert_eq!(entries(follow(&files, layer))[1].3, b"hello");
}

#[test]
fn images_of_the_same_files_share_their_layer() {
    let layer = hello();
    let mut two = [image("localhost/x:1", &layer), image("localhost/x:2", &layer)];
    two[1].config.user = "1000".into();
    let files = blobs(&archive(&two).unwrap());

    let blobs = files.keys().filter(|path| path.starts_with("blobs/sha256/") && path.len() > 20);
    assert_eq!(blobs.count(), 5, "one layer, two configurations, two manifests");
    assert_ne!(two[0].id().unwrap(), two[1].id().unwrap());
}

#[test]
fn tag_follows_the_last_colon_of_the_last_part() {
    for (name, tag) in [
        ("docker.io/library/busybox:1.36", "1.36"),
        ("localhost:5000/x", "latest"),
        ("localhost:5000/x:y", "y"),
        ("x", "latest"),
    ] {
        assert_eq!(image(name, &hello()).tag(), tag, "{name}");
    }
}

#[test]
fn pause_archive_is_reproducible_and_contains_the_program() {
    let archive = crate::archive().unwrap();
    assert_eq!(archive, crate::archive().unwrap());

    let files = blobs(&archive);
    let manifest = json(follow(&files, &json(&files["index.json"])["manifests"][0]));
    let layer = entries(follow(&files, &manifest["layers"][0]));
    let want = ("pause".to_owned(), tar::EntryType::Regular, 0o755, crate::PROGRAM.to_vec());
    assert_eq!(layer, [want]);
}
