#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use serde_json::{Value, json};

use super::*;
use crate::pod::features::PodFeatures;
use crate::pod::manifest::{self, Origin};

const PREDECESSOR: &str = "5f1c1d3b8ef84e0a9f60a2b7f4d2c8aa";

fn facts() -> NodeFacts {
    config::sample::facts()
}

/// Like the static pods of kubeadm: host network, host paths, probes.
fn etcd() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "etcd", "namespace": "kube-system", "labels": {"tier": "control-plane"},
            "annotations": {"kubeadm.kubernetes.io/etcd.advertise-client-urls": "https://10.0.0.1:2379"}},
        "spec": {"hostNetwork": true, "priorityClassName": "system-node-critical",
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "etcd", "image": "registry.k8s.io/etcd:3.6.4-0",
                "command": ["etcd", "--name=a"], "imagePullPolicy": "IfNotPresent",
                "env": [{"name": "COLOUR", "value": "blue"},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
                "livenessProbe": {"httpGet": {"path": "/livez", "port": 2381, "host": "127.0.0.1"}},
                "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/var/lib/etcd"},
                    {"name": "names", "mountPath": "/names"}]}],
            "volumes": [{"name": "data", "hostPath": {"path": "/var/lib/etcd", "type": "DirectoryOrCreate"}},
                {"name": "names", "downwardAPI": {"items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}})
}

fn manifest(value: &Value) -> v1::Pod {
    let origin = Origin {
        source: Source::File,
        location: "/m/etcd.yaml",
        node: "node1",
        features: PodFeatures::DEFAULT,
    };
    manifest::pod(&value.to_string(), origin).unwrap()
}

fn comparable_pod(value: &Value) -> Pod {
    comparable(&manifest(value), Source::File, &PodUid::new(PREDECESSOR)).unwrap()
}

/// What the previous agent created for this manifest.
fn created(value: &Value) -> RecordedPod {
    let pod = comparable_pod(value);
    let (facts, host_dns) = (facts(), HostDns::Unused);
    let node = AdoptingNode { facts: &facts, host_dns: &host_dns, cgroup_parent: "/kubepods/pod" };
    let provision = PodProvision { cgroup_parent: "/kubepods/pod".into(), ..Default::default() };
    let mut running = RecordedPod {
        uid: pod.uid.clone(),
        sandbox: config::sandbox(&pod, 0, &facts, &provision).unwrap().config,
        handler: String::new(),
        ips: Vec::new(),
        containers: Vec::new(),
    };
    running.sandbox.annotations.insert("kubernetes.io/config.seen".into(), "long ago".into());
    let volumes = volumes(&pod, pod.object.spec.as_ref().unwrap(), &facts).unwrap();
    let user = ImageUser::Id(0);
    for container in &pod.containers {
        let termination_log = cri::Mount {
            container_path: "/dev/termination-log".into(),
            host_path: format!("{}/containers/{}/0a1b2c3d", pod_dir(&pod, &facts), container.name),
            ..Default::default()
        };
        let seed = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: container.name.to_string(), attempt: 3 }),
            image: Some(cri::ImageSpec { image: "sha256:1".into(), ..Default::default() }),
            mounts: vec![termination_log],
            ..Default::default()
        };
        let comparison = Comparison {
            pod: &pod,
            container,
            running: &running,
            volumes: &volumes,
            provision: &provision,
            node: &node,
        };
        let mut config = comparison.config(&seed, &user).unwrap();
        config.envs.reverse();
        let state = match container.kind {
            ContainerKind::Init => RecordedState::Succeeded,
            ContainerKind::Sidecar | ContainerKind::Regular | ContainerKind::Ephemeral => {
                RecordedState::Running
            }
        };
        running.containers.push(RecordedContainer {
            config,
            state,
            image_user: Some(user.clone()),
        });
    }
    running
}

fn compare(value: &Value, running: &RecordedPod) -> Result<(), Mismatch> {
    let facts = facts();
    let host_dns = &HostDns::Unused;
    let node = AdoptingNode { facts: &facts, host_dns, cgroup_parent: "/kubepods/pod" };
    check(&comparable_pod(value), running, &node)
}

#[test]
fn pod_with_the_same_requests_is_adopted() {
    assert_eq!(compare(&etcd(), &created(&etcd())), Ok(()));
}

/// The mounts are written out: those of [`created`] come from the code under test.
#[test]
fn mounts_of_volumes_are_compared_as_they_are_requested() {
    let mut running = created(&etcd());
    let mounts = &mut running.containers[0].config.mounts;
    let of_pod = format!("/var/lib/kubelet/pods/{PREDECESSOR}");
    let names = format!("{of_pod}/volumes/kubernetes.io~downward-api/names");
    let mut requested: Vec<_> = mounts.iter().map(|m| (&*m.container_path, m.readonly)).collect();
    requested.sort_unstable();
    let want = [
        ("/dev/termination-log", false),
        ("/etc/hosts", false),
        ("/names", true),
        ("/var/lib/etcd", false),
    ];
    assert_eq!(requested, want);
    let mount = mounts.iter_mut().find(|mount| mount.container_path == "/names").unwrap();
    assert_eq!(mount.host_path, names);
    mount.readonly = false;
    let field = "set of mounts";
    let want = Mismatch::Container { container: "etcd".into(), field };
    assert_eq!(compare(&etcd(), &running), Err(want));
}

#[test]
fn what_a_restart_would_not_keep_either_is_not_compared() {
    let mut running = created(&etcd());
    let config = &mut running.containers[0].config;
    config.image.as_mut().unwrap().image = "sha256:2".into();
    for (key, value) in
        [("KUBERNETES_SERVICE_HOST", "10.96.0.1"), ("KUBERNETES_SERVICE_PORT", "443")]
    {
        config.envs.push(cri::KeyValue { key: key.into(), value: value.into() });
    }
    assert_eq!(compare(&etcd(), &running), Ok(()));
}

#[test]
fn edit_that_containers_do_not_see_is_adopted() {
    for (path, value) in [
        ("/spec/containers/0/livenessProbe", json!(null)),
        ("/spec/nodeSelector", json!({"disk": "ssd"})),
        ("/spec/tolerations", json!([{"operator": "Exists"}])),
    ] {
        let mut edited = etcd();
        set(&mut edited, path, value);
        assert_eq!(compare(&edited, &created(&etcd())), Ok(()), "{path}");
    }
}

fn set(object: &mut Value, path: &str, value: Value) {
    if let Some(existing) = object.pointer_mut(path) {
        *existing = value;
        return;
    }
    let (parent, key) = path.rsplit_once('/').unwrap();
    object.pointer_mut(parent).unwrap()[key] = value;
}

#[test]
fn edit_that_containers_see_is_not_adopted() {
    let sandbox = |field| Mismatch::Sandbox { field };
    let container = |field| Mismatch::Container { container: "etcd".into(), field };
    for (path, value, want) in [
        ("/metadata/labels/tier", json!("other"), sandbox("set of labels")),
        ("/metadata/annotations/new", json!("x"), sandbox("set of annotations")),
        ("/spec/hostPID", json!(true), sandbox("security context")),
        ("/spec/dnsConfig", json!({"searches": ["x"]}), sandbox("DNS configuration")),
        ("/spec/containers/0/image", json!("registry.k8s.io/etcd:3.7"), container("image")),
        ("/spec/containers/0/command", json!(["etcd", "--name=b"]), container("command")),
        ("/spec/containers/0/args", json!(["-v"]), container("arguments")),
        ("/spec/containers/0/workingDir", json!("/w"), container("working directory")),
        ("/spec/containers/0/env/0/value", json!("red"), container("set of variables")),
        ("/spec/containers/0/env", json!([]), container("set of variables")),
        ("/spec/volumes/0/hostPath/path", json!("/other"), container("set of mounts")),
        ("/spec/containers/0/volumeMounts/0/readOnly", json!(true), container("set of mounts")),
        ("/spec/terminationGracePeriodSeconds", json!(5), container("set of annotations")),
        ("/spec/priorityClassName", json!("standard"), container("resources")),
        ("/spec/containers/0/tty", json!(true), container("configuration")),
        (
            "/spec/containers/0/securityContext",
            json!({"runAsUser": 7}),
            container("security context"),
        ),
    ] {
        let mut edited = etcd();
        set(&mut edited, path, value);
        assert_eq!(compare(&edited, &created(&etcd())), Err(want), "{path}");
    }
}

#[test]
fn pod_whose_requests_do_not_show_everything_is_not_adopted() {
    let running = created(&etcd());
    for (path, value, want) in [
        ("/spec/containers/0/volumeMounts/0/subPath", json!("b"), "it mounts a part of a volume"),
        ("/spec/volumes/1", json!({"name": "names", "emptyDir": {}}), "an emptyDir cannot be"),
        ("/spec/runtimeClassName", json!("kata"), "its RuntimeClass cannot be compared"),
        ("/spec/hostUsers", json!(false), "its user namespace cannot be compared"),
    ] {
        let mut edited = etcd();
        if path.ends_with("hostUsers") {
            edited["spec"]["hostNetwork"] = json!(false);
        }
        set(&mut edited, path, value);
        let found = compare(&edited, &running).unwrap_err().to_string();
        assert!(found.contains(want), "{path}: {found}");
    }
}

#[test]
fn pod_of_another_node_agents_directory_is_not_adopted() {
    let mut running = created(&etcd());
    for mount in &mut running.containers[0].config.mounts {
        mount.host_path = mount.host_path.replace("/var/lib/kubelet", "/data/kubelet");
    }
    let field = "set of mounts";
    let want = Mismatch::Container { container: "etcd".into(), field };
    assert_eq!(compare(&etcd(), &running), Err(want));
    let mut running = created(&etcd());
    running.sandbox.linux.as_mut().unwrap().cgroup_parent = "/elsewhere".into();
    let want = Mismatch::Sandbox { field: "cgroup parent" };
    assert_eq!(compare(&etcd(), &running), Err(want));
}

#[test]
fn pod_without_a_running_container_is_not_adopted() {
    let mut running = created(&etcd());
    running.containers[0].state = RecordedState::Other;
    assert_eq!(compare(&etcd(), &running), Err(Mismatch::NothingRuns));
    running.containers.clear();
    assert_eq!(compare(&etcd(), &running), Err(Mismatch::NothingRuns));
}

#[test]
fn container_that_the_manifest_does_not_name_prevents_adoption() {
    let mut running = created(&etcd());
    running.containers[0].config.metadata.as_mut().unwrap().name = "old".into();
    let want = Mismatch::ExtraContainer { container: "old".into() };
    assert_eq!(compare(&etcd(), &running), Err(want));
}

#[test]
fn every_init_container_has_to_be_known_to_have_succeeded() {
    let mut with_init = etcd();
    with_init["spec"]["initContainers"] = json!([{"name": "first", "image": "i"}]);
    assert_eq!(compare(&with_init, &created(&with_init)), Ok(()));
    let want = Err(Mismatch::InitContainer { container: "first".into() });
    let mut failed = created(&with_init);
    failed.containers[0].state = RecordedState::Other;
    assert_eq!(compare(&with_init, &failed), want);
    let mut forgotten = created(&with_init);
    forgotten.containers.remove(0);
    assert_eq!(compare(&with_init, &forgotten), want);
}

#[test]
fn pod_whose_image_is_gone_is_not_adopted() {
    let mut running = created(&etcd());
    running.containers[0].image_user = None;
    let found = compare(&etcd(), &running);
    assert!(matches!(found, Err(Mismatch::Unknown { .. })), "{found:?}");
}

#[test]
fn uid_that_the_manifest_sets_is_not_computed() {
    assert!(has_computed_uid(&manifest(&etcd())));
    let mut named = etcd();
    named["metadata"]["uid"] = json!("8b7e9f3c-0c55-4d5b-9a52-0b5f9f2c1d11");
    assert!(!has_computed_uid(&manifest(&named)));
}

#[test]
fn adopted_pod_has_the_uid_in_its_hash_annotation() {
    let adopted = with_uid(&manifest(&etcd()), &PodUid::new(PREDECESSOR));
    assert_eq!(adopted.metadata.uid.as_deref(), Some(PREDECESSOR));
    assert_eq!(adopted.metadata.annotations.unwrap()[ANNOTATION_HASH], PREDECESSOR);
}
