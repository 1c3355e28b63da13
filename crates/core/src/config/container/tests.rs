use serde_json::{Value, json};

use super::super::facts::IdMappings;
use super::super::sample;
use super::*;

/// Inputs from the node; the rest comes from the pod.
#[derive(Default)]
struct NodeInputs {
    pod: PodProvision,
    container: ContainerProvision,
    target: Option<&'static str>,
    handlers: Vec<cri::RuntimeHandler>,
}

fn config_of(
    pod: &Pod,
    name: &str,
    node_inputs: &NodeInputs,
) -> Result<cri::ContainerConfig, ConfigError> {
    let facts = NodeFacts { handlers: node_inputs.handlers.clone(), ..sample::facts() };
    let container = pod.container(name).unwrap();
    let environment = sample::environment(pod, name)?;
    super::container(&ContainerInputs {
        pod,
        container,
        attempt: 3,
        facts: &facts,
        pod_provision: &node_inputs.pod,
        provision: &node_inputs.container,
        image: &ResolvedImage { reference: "sha256:1".to_owned(), user: ImageUser::Id(0) },
        environment: &environment,
        mounts: &[],
        sub_paths: &BTreeMap::new(),
        block_devices: &[device("block")],
        etc_hosts: Some("/pod/etc-hosts"),
        termination_log: Some("/pod/log"),
        target: node_inputs.target.map(ContainerId::new).as_ref(),
    })
}

fn device(name: &str) -> cri::Device {
    cri::Device { host_path: name.to_owned(), ..Default::default() }
}

fn config(container: Value) -> Result<cri::ContainerConfig, ConfigError> {
    config_of(&sample::pod_of(container), "c", &NodeInputs::default())
}

#[test]
fn command_and_arguments_expand_variables() {
    let got = config(json!({"command": ["$(A)", "$$(A)"], "args": ["$(GPU) $(NO)"],
        "env": [{"name": "A", "value": "x"}]}));
    let got = got.unwrap();
    assert_eq!(got.command, ["x", "$(A)"]);
    assert_eq!(got.args, ["0 $(NO)"]);
    let keys: Vec<_> = got.envs.iter().map(|env| env.key.as_str()).collect();
    assert_eq!(keys, ["GPU", "A"]);
}

#[test]
fn argument_that_is_not_utf8_is_named_in_the_error() {
    let got = config(json!({"args": ["fine", "$(RAW)"], "env": [{"name": "RAW",
        "valueFrom": {"secretKeyRef": {"name": "s", "key": "BYTES"}}}]}));
    assert_eq!(got, Err(ConfigError::NotText { field: "args[1]".to_owned() }));
}

#[test]
fn stop_signal_is_passed_by_its_name_in_the_cri() {
    for (signal, want) in [
        (json!("SIGUSR1"), cri::Signal::Sigusr1),
        (json!("SIGRTMIN+3"), cri::Signal::Sigrtminplus3),
        (json!("SIGRTMAX-14"), cri::Signal::Sigrtmaxminus14),
        (json!("SIGNEW"), cri::Signal::RuntimeDefault),
        (json!(null), cri::Signal::RuntimeDefault),
    ] {
        let config = config(json!({"lifecycle": {"stopSignal": signal}})).unwrap();
        assert_eq!(config.stop_signal(), want, "{signal}");
    }
}

#[test]
fn instance_name_and_log_path_contain_the_attempt() {
    let got = config(json!({"workingDir": "/w", "stdin": true, "stdinOnce": true, "tty": true}));
    let got = got.unwrap();
    let metadata = got.metadata.unwrap();
    assert_eq!(
        (metadata.name.as_str(), metadata.attempt, got.log_path.as_str()),
        ("c", 3, "c/3.log")
    );
    let image = got.image.unwrap();
    assert_eq!(
        (image.image.as_str(), image.user_specified_image.as_str()),
        ("sha256:1", "busybox:1")
    );
    assert_eq!(
        (got.working_dir.as_str(), got.stdin, got.stdin_once, got.tty),
        ("/w", true, true, true)
    );
}

#[test]
fn provisioned_devices_and_mounts_come_first() {
    let node_inputs = NodeInputs {
        container: ContainerProvision {
            devices: vec![device("granted")],
            cdi_devices: vec!["vendor/gpu=0".to_owned()],
            mounts: vec![cri::Mount { container_path: "/granted".into(), ..Default::default() }],
            annotations: vec![("vendor".to_owned(), "v".to_owned())],
            placement: Placement { cpus: "1".to_owned(), ..Default::default() },
        },
        ..Default::default()
    };
    let got = config_of(&sample::pod_of(json!({})), "c", &node_inputs).unwrap();
    let paths: Vec<_> = got.mounts.iter().map(|mount| mount.container_path.as_str()).collect();
    assert_eq!(paths, ["/granted", "/etc/hosts", "/dev/termination-log"]);
    assert_eq!(got.devices, [device("granted"), device("block")]);
    assert_eq!(got.cdi_devices, [cri::CdiDevice { name: "vendor/gpu=0".to_owned() }]);
    assert_eq!(got.annotations.get("vendor").map(String::as_str), Some("v"));
    assert_eq!(got.linux.unwrap().resources.unwrap().cpuset_cpus, "1");
}

#[test]
fn in_a_user_namespace_every_mount_is_mapped() {
    let uid = cri::IdMapping { host_id: 65536, container_id: 0, length: 65536 };
    let gid = cri::IdMapping { host_id: 131_072, ..uid };
    let features = cri::RuntimeHandlerFeatures { user_namespaces: true, ..Default::default() };
    let node_inputs = NodeInputs {
        pod: PodProvision {
            id_mappings: Some(IdMappings { uids: vec![uid], gids: vec![gid] }),
            ..Default::default()
        },
        handlers: vec![cri::RuntimeHandler { name: String::new(), features: Some(features) }],
        ..Default::default()
    };
    let got = config_of(&sample::pod(json!({"hostUsers": false})), "c", &node_inputs).unwrap();
    assert!(!got.mounts.is_empty());
    for mount in got.mounts {
        assert_eq!((mount.uid_mappings, mount.gid_mappings), (vec![uid], vec![gid]));
    }
}

#[test]
fn ephemeral_container_requires_its_target() {
    let pod = sample::pod(json!({"ephemeralContainers": [
        {"name": "dbg", "targetContainerName": "c"}, {"name": "free"}]}));
    let pid = |name, target| {
        let got = config_of(&pod, name, &NodeInputs { target, ..Default::default() })?;
        let options = got.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        Ok((options.pid(), options.target_id))
    };
    assert_eq!(pid("dbg", Some("id1")), Ok((cri::NamespaceMode::Target, "id1".to_owned())));
    assert_eq!(pid("free", None), Ok((cri::NamespaceMode::Container, String::new())));
    let missing: ConfigError = pid("dbg", None).unwrap_err();
    assert_eq!(missing.to_string(), "unable to find target container c");
}

#[test]
fn root_user_is_refused_with_run_as_non_root() {
    let got = config(json!({"securityContext": {"runAsNonRoot": true}}));
    assert!(matches!(got, Err(ConfigError::ImageRunsAsRoot { .. })), "{got:?}");
}
