use serde_json::{Value, json};

use super::super::sample;
use super::*;

fn volumes() -> Volumes {
    let volume = |source, read_only| MountedVolume { source, read_only, relabel: true };
    let directory = |name: &str| VolumeSource::Directory(format!("/volumes/{name}"));
    let link = |name: &str| VolumeSource::Device { link: Some(format!("/devices/{name}")) };
    let image = VolumeSource::Image { reference: "sha256:1".into(), user_image: "data:1".into() };
    [
        ("v", volume(directory("v"), false)),
        ("ro", volume(directory("ro"), true)),
        ("image", volume(image, false)),
        ("block", volume(link("block"), false)),
        ("ro-block", volume(link("ro-block"), true)),
        ("lost-block", volume(VolumeSource::Device { link: None }, false)),
    ]
    .map(|(name, volume)| (name.to_owned(), volume))
    .into()
}

fn supporting(recursive: bool) -> NodeFacts {
    let features = Some(cri::RuntimeHandlerFeatures {
        recursive_read_only_mounts: recursive,
        ..Default::default()
    });
    let mut facts = sample::facts();
    facts.handlers = vec![cri::RuntimeHandler { name: "h".to_owned(), features }];
    facts
}

fn container(mount: &Value) -> Pod {
    sample::pod_of(json!({"volumeMounts": [mount],
        "env": [{"name": "N", "value": "x"}, {"name": "EMPTY"}, {"name": "UP", "value": "../y"}]}))
}

fn request(mount: &Value, recursive: bool) -> Result<MountRequest, ConfigError> {
    let pod = container(mount);
    let facts = supporting(recursive);
    let got = requests(
        &pod,
        &pod.containers[0],
        &sample::environment(&pod, "c").unwrap(),
        &volumes(),
        &facts,
        "h",
    )?;
    Ok(got.into_iter().next().unwrap())
}

#[test]
fn mount_is_the_whole_volume_or_a_sub_path() {
    let part = |sub_path: &str| Mountable::SubPath {
        volume_path: "/volumes/v".to_owned(),
        sub_path: sub_path.to_owned(),
    };
    for (mount, want) in [
        (json!({"name": "v"}), Mountable::Directory("/volumes/v".to_owned())),
        (json!({"name": "v", "subPath": "a/b"}), part("a/b")),
        (json!({"name": "v", "subPathExpr": "$(N)/$$(N)"}), part("x/$(N)")),
        (json!({"name": "v", "subPath": "..a"}), part("..a")),
    ] {
        let mut mount = mount;
        mount["mountPath"] = json!("m");
        let got = request(&mount, false).unwrap();
        assert_eq!((got.what, got.container_path.as_str(), got.index), (want, "/m", 0), "{mount}");
    }
}

#[test]
fn invalid_mount_is_refused_with_upstreams_message() {
    for (mount, want) in [
        (json!({"name": "z"}), "cannot find volume \"z\" to mount into container \"c\""),
        (json!({"name": "block"}), "cannot find volume \"block\" to mount into container \"c\""),
        (json!({"name": "v", "subPathExpr": "$(NO)/$(EMPTY)"}), "missing value for EMPTY, NO"),
        (
            json!({"name": "v", "subPath": "/abs"}),
            "error SubPath `/abs` must not be an absolute path",
        ),
        (
            json!({"name": "v", "subPath": "a/../b"}),
            "unable to provision SubPath `a/../b`: must not contain '..'",
        ),
        (
            json!({"name": "v", "subPathExpr": "$(UP)"}),
            "unable to provision SubPath `../y`: must not contain '..'",
        ),
        (json!({"name": "v", "mountPropagation": "Odd"}), "invalid MountPropagation mode: \"Odd\""),
    ] {
        let mut mount = mount;
        mount["mountPath"] = json!("/m");
        assert_eq!(request(&mount, false).unwrap_err().to_string(), want);
    }
}

#[test]
fn mount_is_read_only_if_mount_or_volume_is() {
    for (volume, mount, want) in
        [("v", false, false), ("v", true, true), ("ro", false, true), ("image", false, true)]
    {
        let mount = json!({"name": volume, "mountPath": "/m", "readOnly": mount});
        assert_eq!(request(&mount, false).unwrap().read_only, want, "{volume}");
    }
}

#[test]
fn propagation_is_private_by_default() {
    use cri::MountPropagation::{
        PropagationBidirectional, PropagationHostToContainer, PropagationPrivate,
    };
    for (mode, want) in [
        (json!(null), PropagationPrivate),
        (json!("None"), PropagationPrivate),
        (json!("HostToContainer"), PropagationHostToContainer),
        (json!("Bidirectional"), PropagationBidirectional),
    ] {
        let mount = json!({"name": "v", "mountPath": "/m", "mountPropagation": mode});
        assert_eq!(request(&mount, false).unwrap().propagation, want);
    }
}

#[test]
fn recursive_read_only_follows_the_handler() {
    let base = "failed to resolve recursive read-only mode: ";
    let asked = "volume \"v\" requested recursive read-only mode, but it is";
    for (mode, read_only, propagation, supported, want) in [
        (json!(null), false, json!(null), true, Ok(false)),
        (json!("Disabled"), false, json!(null), true, Ok(false)),
        (json!("IfPossible"), true, json!(null), true, Ok(true)),
        (json!("IfPossible"), true, json!("None"), false, Ok(false)),
        (json!("Enabled"), true, json!(null), true, Ok(true)),
        (
            json!("Enabled"),
            true,
            json!(null),
            false,
            Err(format!("{asked} not supported by the runtime")),
        ),
        (json!("IfPossible"), false, json!(null), true, Err(format!("{asked} not read-only"))),
        (
            json!("Enabled"),
            true,
            json!("HostToContainer"),
            true,
            Err(format!("{asked} not compatible with propagation \"HostToContainer\"")),
        ),
        (
            json!("Odd"),
            true,
            json!(null),
            true,
            Err("unknown recursive read-only mode \"Odd\"".to_owned()),
        ),
    ] {
        let mount = json!({"name": "v", "mountPath": "/m", "readOnly": read_only,
            "recursiveReadOnly": mode, "mountPropagation": propagation});
        let got = request(&mount, supported).map(|request| request.recursive_read_only);
        let want = want.map_err(|why| format!("{base}{why}"));
        assert_eq!(got.map_err(|error| error.to_string()), want, "{mount}");
    }
}

#[test]
fn unlisted_handler_does_not_support_recursive_read_only() {
    assert!(!sample::facts().supports_recursive_read_only(""));
    assert!(!supporting(true).supports_recursive_read_only("other"));
}

#[test]
fn managed_etc_hosts_yields_to_the_containers_own_mount() {
    let mount = |path: &str| json!({"volumeMounts": [{"name": "v", "mountPath": path}]});
    for (case, pod, ips, want) in [
        ("with an address", sample::pod_of(json!({})), &[sample::POD_IP][..], true),
        ("no address yet", sample::pod_of(json!({})), &[], false),
        ("on the host's network", sample::pod(json!({"hostNetwork": true})), &[], true),
        ("its own file", sample::pod_of(mount("/etc/hosts")), &[sample::POD_IP], false),
        ("its parent directory", sample::pod_of(mount("/etc")), &[sample::POD_IP], true),
    ] {
        assert_eq!(needs_etc_hosts(&pod, &pod.containers[0], ips), want, "{case}");
    }
}

#[test]
fn mounts_are_in_upstreams_order() {
    let pod = sample::pod_of(json!({"terminationMessagePath": "dev/log", "volumeMounts": [
        {"name": "v", "mountPath": "/part", "subPath": "p"},
        {"name": "image", "mountPath": "/image", "subPath": "bin"},
        {"name": "v", "mountPath": "/whole", "readOnly": true}]}));
    let container = &pod.containers[0];
    let facts = sample::facts();
    let requests =
        requests(&pod, container, &sample::environment(&pod, "c").unwrap(), &volumes(), &facts, "")
            .unwrap();
    let bound = BTreeMap::from([(0, "/bound/0".to_owned())]);
    let got =
        assembled(container, &requests, &bound, Some("/pod/etc-hosts"), Some("/pod/log"), true);
    let got: Vec<_> = got
        .unwrap()
        .into_iter()
        .map(|m| {
            assert!(m.selinux_relabel, "{m:?}");
            let image = m.image.map(|image| (image.image, image.user_specified_image));
            (m.container_path, m.host_path, m.readonly, image, m.image_sub_path)
        })
        .collect();
    let mount = |path: &str, host: &str, read_only| {
        (path.to_owned(), host.to_owned(), read_only, None, String::new())
    };
    let image = Some(("sha256:1".to_owned(), "data:1".to_owned()));
    assert_eq!(
        got,
        [
            mount("/part", "/bound/0", false),
            ("/image".to_owned(), String::new(), true, image, "bin".to_owned()),
            mount("/whole", "/volumes/v", true),
            mount("/etc/hosts", "/pod/etc-hosts", false),
            mount("/dev/log", "/pod/log", false),
        ]
    );
}

#[test]
fn unprepared_sub_path_is_an_error_without_host_paths() {
    let mount = json!({"name": "v", "mountPath": "/m", "subPath": "link-to-root"});
    let pod = container(&mount);
    let request = request(&mount, false).unwrap();
    let got = assembled(&pod.containers[0], &[request], &BTreeMap::new(), None, None, false);
    assert_eq!(
        got.unwrap_err().to_string(),
        "failed to prepare subPath for volumeMount \"v\" of container \"c\""
    );
}

#[test]
fn without_a_path_there_is_no_termination_message_file() {
    let pod = sample::pod_of(json!({"terminationMessagePath": ""}));
    let got = assembled(&pod.containers[0], &[], &BTreeMap::new(), None, Some("/pod/log"), false);
    assert_eq!(got.unwrap(), []);
}

#[test]
fn block_volumes_become_devices() {
    let devices = |name: &str, path: &str| {
        let pod = sample::pod_of(json!({"volumeDevices": [{"name": name, "devicePath": path}]}));
        block_devices(&pod.containers[0], &volumes()).map_err(|error| error.to_string())
    };
    let device = |name: &str, permissions: &str| cri::Device {
        container_path: "/dev/x".to_owned(),
        host_path: format!("/devices/{name}"),
        permissions: permissions.to_owned(),
    };
    assert_eq!(devices("block", "/dev/x"), Ok(vec![device("block", "mrw")]));
    assert_eq!(devices("ro-block", "/dev/x"), Ok(vec![device("ro-block", "r")]));
    assert_eq!(devices("lost-block", "/dev/x"), Ok(vec![]));
    for (name, path, want) in [
        ("block", "dev/x", "error DevicePath `dev/x` must be an absolute path"),
        ("v", "/dev/x", "cannot find volume \"v\" to pass into container \"c\""),
        ("z", "/dev/x", "cannot find volume \"z\" to pass into container \"c\""),
    ] {
        assert_eq!(devices(name, path), Err(want.to_owned()));
    }
}
