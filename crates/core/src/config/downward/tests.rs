use serde_json::{Value, json};

use super::super::sample;
use super::*;
use crate::pod::Source;

fn a_pod(spec: Value) -> Pod {
    let meta = json!({"name": "web", "labels": {"app": "x", "a/b": "y"},
        "annotations": {"note": "line\n\"two\"", "Example.com/Upper": "z"}});
    sample::parsed(meta, spec, Source::Api)
}

fn env_field(pod: &Pod, path: &str, pod_ips: &[&str], host_ips: &[&str]) -> Result<String, String> {
    let parse = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<_>>();
    let mut facts = sample::facts();
    facts.host_ips = parse(host_ips);
    let selector =
        v1::ObjectFieldSelector { api_version: Some("v1".to_owned()), field_path: path.to_owned() };
    field(&selector, pod, &parse(pod_ips), &facts).map_err(|error| error.to_string())
}

#[test]
fn field_refs_resolve_to_pod_fields() {
    let pod = a_pod(json!({"nodeName": "node1", "serviceAccountName": "robot"}));
    for (path, want) in [
        ("metadata.name", Ok("web")),
        ("metadata.namespace", Ok("default")),
        ("metadata.uid", Ok("u1")),
        ("metadata.labels['app']", Ok("x")),
        ("metadata.labels['a/b']", Ok("y")),
        ("metadata.labels['none']", Ok("")),
        ("metadata.annotations['note']", Ok("line\n\"two\"")),
        ("metadata.annotations['Example.com/Upper']", Ok("z")),
        ("metadata.labels", Ok("a/b=\"y\"\napp=\"x\"")),
        ("spec.nodeName", Ok("node1")),
        ("spec.host", Ok("node1")),
        ("spec.serviceAccountName", Ok("robot")),
        ("status.hostIP", Ok("10.0.0.1")),
        ("status.podIP", Ok("10.1.0.2")),
        ("spec.restartPolicy", Err("unsupported fieldPath: spec.restartPolicy")),
        ("status.phase", Err("unsupported fieldPath: status.phase")),
        ("spec.containers", Err("field label not supported: spec.containers")),
        ("spec.x['y']", Err("field label does not support subscript: spec.x['y']")),
    ] {
        let got = env_field(&pod, path, &["10.1.0.2"], &["10.0.0.1"]);
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{path}");
    }
}

#[test]
fn invalid_key_is_refused() {
    for path in ["metadata.labels['a b']", "metadata.annotations['a/b/c']", "metadata.labels['']"] {
        let got = env_field(&a_pod(json!({})), path, &[], &[]).unwrap_err();
        assert!(got.starts_with(&format!("invalid key subscript in {path}: ")), "{got}");
    }
}

#[test]
fn only_version_v1_is_supported() {
    let selector = v1::ObjectFieldSelector {
        api_version: Some("v2".to_owned()),
        field_path: "metadata.name".to_owned(),
    };
    let got = field(&selector, &a_pod(json!({})), &[], &sample::facts());
    assert_eq!(got.unwrap_err().to_string(), "unsupported pod version: v2");
}

#[test]
fn addresses_are_in_the_nodes_family_order() {
    let pod = a_pod(json!({}));
    let both = ["fd00::2", "10.1.0.2"];
    for (path, pod_ips, host_ips, want) in [
        ("status.podIPs", &both[..], &["10.0.0.1"][..], "10.1.0.2,fd00::2"),
        ("status.podIPs", &both, &["fd00::1", "10.0.0.1"], "fd00::2,10.1.0.2"),
        ("status.podIP", &both, &["fd00::1"], "fd00::2"),
        ("status.podIP", &both, &[], "10.1.0.2"),
        ("status.podIPs", &["10.1.0.2", "10.1.0.3"], &["10.0.0.1"], "10.1.0.2"),
        ("status.podIP", &[], &["10.0.0.1"], ""),
        ("status.hostIPs", &[], &["fd00::1", "10.0.0.1"], "fd00::1,10.0.0.1"),
    ] {
        assert_eq!(env_field(&pod, path, pod_ips, host_ips).unwrap(), want, "{path} {pod_ips:?}");
    }
}

#[test]
fn pod_on_the_host_network_has_the_hosts_addresses() {
    let pod = a_pod(json!({"hostNetwork": true}));
    let hosts = ["10.0.0.1", "fd00::1"];
    assert_eq!(env_field(&pod, "status.podIPs", &[], &hosts).unwrap(), "10.0.0.1,fd00::1");
}

#[test]
fn without_a_node_address_a_host_address_is_an_error() {
    for path in ["status.hostIP", "status.hostIPs"] {
        assert!(env_field(&a_pod(json!({})), path, &["10.1.0.2"], &[]).is_err());
    }
}

#[test]
fn text_in_files_is_quoted_as_go_quotes_it() {
    for (text, want) in [
        ("plain ünï", "\"plain ünï\""),
        ("\"\\", "\"\\\"\\\\\""),
        ("\u{7}\u{8}\u{c}\n\r\t\u{b}", "\"\\a\\b\\f\\n\\r\\t\\v\""),
        ("\u{0}\u{1b}\u{7f}", "\"\\x00\\x1b\\x7f\""),
        ("\u{85}\u{a0}\u{ad}\u{200b}\u{2028}", "\"\\u0085\\u00a0\\u00ad\\u200b\\u2028\""),
        ("\u{301}e\u{301}€😀", "\"\u{301}e\u{301}€😀\""),
        ("\u{e0001}\u{f0000}", "\"\\U000e0001\\U000f0000\""),
        ("'", "\"'\""),
    ] {
        assert_eq!(quoted(text), want);
    }
}

fn resources(spec: Value) -> PodResources {
    PodResources::parse(a_pod(spec).object.spec.as_ref().unwrap()).unwrap()
}

fn selector(resource: &str, divisor: &str, container: &str) -> v1::ResourceFieldSelector {
    serde_json::from_value(json!({"resource": resource, "divisor": divisor,
        "containerName": container}))
    .unwrap()
}

#[test]
fn amounts_are_in_units_of_the_divisor_rounded_up() {
    let resources = resources(json!({"containers": [{"name": "c", "resources": {
        "limits": {"cpu": "1500m", "memory": "70Mi", "hugepages-2Mi": "4Mi"},
        "requests": {"cpu": "250m", "memory": "1", "ephemeral-storage": "3Gi"}}}]}));
    for (resource, divisor, want) in [
        ("limits.cpu", "0", "2"),
        ("limits.cpu", "1", "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "70"),
        ("limits.memory", "0", "73400320"),
        ("limits.memory", "1Gi", "1"),
        ("requests.memory", "1Ki", "1"),
        ("requests.cpu", "0", "1"),
        ("requests.ephemeral-storage", "1Gi", "3"),
        ("limits.hugepages-2Mi", "1Mi", "4"),
        ("requests.hugepages-2Mi", "1Mi", "0"),
    ] {
        let got =
            resource_for_env(&selector(resource, divisor, ""), &resources, "c", &BTreeMap::new());
        assert_eq!(got.unwrap(), want, "{resource} / {divisor}");
    }
    for resource in ["limits.pods", "cpu", "uses.cpu", "limits.example.com/gpu"] {
        let got = resource_for_env(&selector(resource, "0", ""), &resources, "c", &BTreeMap::new());
        let want = format!("unsupported container resource : {resource}");
        assert_eq!(got.unwrap_err().to_string(), want);
    }
}

#[test]
fn missing_limit_defaults_to_the_pods_or_allocatable() {
    let node = sample::resources(&[("cpu", "4"), ("memory", "8Gi"), ("ephemeral-storage", "9Gi")]);
    let containers = json!([{"name": "c"}, {"name": "d", "resources": {"limits": {"cpu": "1"}}}]);
    let init = json!([{"name": "i"}]);
    let plain = resources(json!({"containers": containers, "initContainers": init}));
    let whole = resources(json!({"containers": containers, "initContainers": init,
        "resources": {"limits": {"cpu": "3", "memory": "0"}}}));
    for (case, resources, resource, own, named, want) in [
        ("the node's", &plain, "limits.cpu", "c", "", "4"),
        ("the node's, for an init container", &plain, "limits.cpu", "i", "", "4"),
        ("its own", &plain, "limits.cpu", "d", "", "1"),
        ("another's own", &plain, "limits.cpu", "c", "d", "1"),
        ("another's default", &plain, "limits.cpu", "d", "c", "4"),
        ("an init container named by another", &plain, "limits.cpu", "c", "i", "0"),
        ("the pod's", &whole, "limits.cpu", "c", "", "3"),
        ("the pod's zero is none", &whole, "limits.memory", "c", "", "8589934592"),
        ("requests have no default", &plain, "requests.cpu", "c", "", "0"),
        ("storage", &plain, "limits.ephemeral-storage", "c", "", "9663676416"),
        ("an ephemeral container", &plain, "limits.cpu", "debugger", "", "4"),
    ] {
        let got = resource_for_env(&selector(resource, "0", named), resources, own, &node);
        assert_eq!(got.unwrap(), want, "{case}");
    }
    let got = resource_for_env(&selector("limits.cpu", "0", "z"), &plain, "c", &node);
    assert_eq!(got.unwrap_err().to_string(), "container z not found");
}

#[test]
fn missing_limits_in_a_volume_default_to_allocatable() {
    let node = sample::resources(&[("cpu", "4")]);
    let resources = resources(json!({"containers": [{"name": "c"}],
        "initContainers": [{"name": "i"}], "resources": {"limits": {"cpu": "3"}}}));
    for (named, want) in [("c", Ok("4")), ("i", Ok("4")), ("", Err("container  not found"))] {
        let got = resource_for_volume(&selector("limits.cpu", "0", named), &resources, &node)
            .map_err(|error| error.to_string());
        assert_eq!(got.as_deref().map_err(String::as_str), want, "{named}");
    }
}
