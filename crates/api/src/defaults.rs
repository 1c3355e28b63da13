//! Pod defaulting, with the values of the API server (v1.36).
//!
//! It is in this crate because a static pod never passes an API server and must run as if it had.
//! The object is expected in canonical form (`schema::decode`), where empty means unset.

mod resources;
mod volume;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EphemeralContainer, HTTPGetAction, Lifecycle,
    LifecycleHandler, ObjectFieldSelector, Pod, PodIP, PodSpec, PodStatus, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::image_name;

const GRACE_SECONDS: i64 = 30;

/// Obsolete annotations that old agents would act on; they are dropped.
const DROPPED_ANNOTATIONS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
];

pub fn apply(pod: &mut Pod) {
    drop_annotations(&mut pod.metadata);
    if let Some(spec) = &mut pod.spec {
        apply_to_spec(spec);
    }
    if let Some(status) = &mut pod.status {
        pair_addresses(status);
    }
}

fn apply_to_spec(spec: &mut PodSpec) {
    for volume in spec.volumes.iter_mut().flatten() {
        volume::apply(volume);
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        apply_to_container(container);
        resources::requests_from_limits(container);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        apply_to_ephemeral_container(container);
    }
    resources::apply_to_pod(spec);
    set(&mut spec.dns_policy, "ClusterFirst");
    set(&mut spec.restart_policy, "Always");
    set(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.enable_service_links.get_or_insert(true);
    let grace = spec.termination_grace_period_seconds.get_or_insert(GRACE_SECONDS);
    if *grace < 0 {
        *grace = 1;
    }
    if spec.host_network == Some(true) {
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            host_ports_equal_container_ports(container);
        }
    }
    pair_account_names(spec);
}

/// The service account has an old and a new field; the new one wins, and both are always written.
pub fn pair_account_names(spec: &mut PodSpec) {
    if is_unset(spec.service_account_name.as_ref()) {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
}

/// `podIP` equals the first of `podIPs`, and wins if they differ: old agents write only `podIP`.
fn pair_addresses(status: &mut PodStatus) {
    let first = status.pod_ips.as_ref().and_then(|ips| ips.first()).map(|ip| ip.ip.clone());
    match status.pod_ip.clone().filter(|ip| !ip.is_empty()) {
        Some(ip) if first.as_ref() != Some(&ip) => status.pod_ips = Some(vec![PodIP { ip }]),
        Some(_) => {}
        None => status.pod_ip = first,
    }
}

fn drop_annotations(meta: &mut ObjectMeta) {
    if let Some(annotations) = &mut meta.annotations {
        for name in DROPPED_ANNOTATIONS {
            annotations.remove(name);
        }
        if annotations.is_empty() {
            meta.annotations = None;
        }
    }
}

fn apply_to_container(container: &mut Container) {
    pull_policy(&mut container.image_pull_policy, container.image.as_deref());
    set(&mut container.termination_message_path, "/dev/termination-log");
    set(&mut container.termination_message_policy, "File");
    container.ports.iter_mut().flatten().for_each(apply_to_port);
    container.env.iter_mut().flatten().for_each(apply_to_env);
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    probes.into_iter().flatten().for_each(apply_to_probe);
    container.lifecycle.iter_mut().for_each(apply_to_lifecycle);
}

/// The same fields in another struct. Fields that an ephemeral container must not have are refused
/// later; they are defaulted first, so that the error names only what the author wrote.
fn apply_to_ephemeral_container(container: &mut EphemeralContainer) {
    pull_policy(&mut container.image_pull_policy, container.image.as_deref());
    set(&mut container.termination_message_path, "/dev/termination-log");
    set(&mut container.termination_message_policy, "File");
    container.ports.iter_mut().flatten().for_each(apply_to_port);
    container.env.iter_mut().flatten().for_each(apply_to_env);
    let probes = [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ];
    probes.into_iter().flatten().for_each(apply_to_probe);
    container.lifecycle.iter_mut().for_each(apply_to_lifecycle);
}

/// An image whose tag may change (`latest`) is always pulled.
fn pull_policy(policy: &mut Option<String>, image: Option<&str>) {
    let changes = image_name::parse(image.unwrap_or_default()).is_ok_and(|name| match name.tag {
        Some(tag) => tag == "latest",
        None => name.digest.is_none(),
    });
    set(policy, if changes { "Always" } else { "IfNotPresent" });
}

fn apply_to_port(port: &mut ContainerPort) {
    set(&mut port.protocol, "TCP");
}

fn apply_to_env(env: &mut EnvVar) {
    let Some(source) = &mut env.value_from else { return };
    source.field_ref.iter_mut().for_each(apply_to_field_ref);
    if let Some(file) = &mut source.file_key_ref {
        file.optional.get_or_insert(false);
    }
}

fn apply_to_field_ref(field: &mut ObjectFieldSelector) {
    set(&mut field.api_version, "v1");
}

fn apply_to_probe(probe: &mut Probe) {
    set_number(&mut probe.timeout_seconds, 1);
    set_number(&mut probe.period_seconds, 10);
    set_number(&mut probe.success_threshold, 1);
    set_number(&mut probe.failure_threshold, 3);
    probe.http_get.iter_mut().for_each(apply_to_http);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn apply_to_lifecycle(lifecycle: &mut Lifecycle) {
    let apply = |handler: &mut LifecycleHandler| {
        handler.http_get.iter_mut().for_each(apply_to_http);
    };
    lifecycle.post_start.iter_mut().for_each(apply);
    lifecycle.pre_stop.iter_mut().for_each(apply);
}

fn apply_to_http(http: &mut HTTPGetAction) {
    set(&mut http.path, "/");
    set(&mut http.scheme, "HTTP");
}

/// On the host network a container port is also the host port.
fn host_ports_equal_container_ports(container: &mut Container) {
    for port in container.ports.iter_mut().flatten() {
        set_number(&mut port.host_port, port.container_port);
    }
}

fn is_unset(text: Option<&String>) -> bool {
    text.is_none_or(String::is_empty)
}

fn set(text: &mut Option<String>, default: &str) {
    if is_unset(text.as_ref()) {
        *text = Some(default.to_owned());
    }
}

fn set_number(number: &mut Option<i32>, default: i32) {
    if number.unwrap_or(0) == 0 {
        *number = Some(default);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
#[allow(clippy::needless_pass_by_value, reason = "json literals are given as they stand")]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::schema;

    /// The spec as the API server would return it.
    fn defaulted(spec: Value) -> Value {
        let shape = schema::find("Pod").unwrap();
        let read = schema::decode(shape, &json!({"spec": spec})).unwrap().value;
        let mut pod: Pod = serde_json::from_value(read).unwrap();
        apply(&mut pod);
        let written = serde_json::to_value(pod).unwrap();
        schema::decode(shape, &written).unwrap().value["spec"].clone()
    }

    fn with_container(container: Value) -> Value {
        let mut given = json!({"name": "c", "image": "a:1"});
        given.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
        defaulted(json!({"containers": [given]}))["containers"][0].clone()
    }

    #[test]
    fn minimal_pod_gets_the_api_servers_defaults() {
        assert_eq!(
            defaulted(json!({"containers": [{"name": "c", "image": "busybox"}]})),
            json!({
                "containers": [{"name": "c", "image": "busybox", "resources": {},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}],
                "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
                "dnsPolicy": "ClusterFirst", "securityContext": {},
                "schedulerName": "default-scheduler", "enableServiceLinks": true
            })
        );
    }

    #[test]
    fn image_with_a_mutable_tag_is_always_pulled() {
        let digest = format!("a@sha256:{}", "0".repeat(64));
        for (image, want) in [
            ("busybox", "Always"),
            ("busybox:latest", "Always"),
            ("localhost:5000/a", "Always"),
            ("busybox:1.36", "IfNotPresent"),
            ("localhost:5000/a:1", "IfNotPresent"),
            (digest.as_str(), "IfNotPresent"),
            ("Not A Name", "IfNotPresent"),
        ] {
            assert_eq!(with_container(json!({"image": image}))["imagePullPolicy"], want, "{image}");
        }
        let given = with_container(json!({"image": "a", "imagePullPolicy": "Never"}));
        assert_eq!(given["imagePullPolicy"], "Never");
    }

    #[test]
    fn negative_grace_period_becomes_one_second_and_zero_stays() {
        for (given, want) in [(-5, 1), (0, 0), (7, 7)] {
            let spec = defaulted(json!({"containers": [], "terminationGracePeriodSeconds": given}));
            assert_eq!(spec["terminationGracePeriodSeconds"], want);
        }
    }

    #[test]
    fn probe_gets_thresholds_and_its_handler_a_default_target() {
        let container = with_container(json!({
            "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 3},
            "startupProbe": {"grpc": {"port": 1}},
            "lifecycle": {"preStop": {"httpGet": {"port": "web", "path": "/bye"}}}
        }));
        assert_eq!(
            container["livenessProbe"],
            json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                "periodSeconds": 3, "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(container["startupProbe"]["grpc"], json!({"port": 1, "service": ""}));
        assert_eq!(
            container["lifecycle"]["preStop"]["httpGet"],
            json!({"path": "/bye", "port": "web", "scheme": "HTTP"})
        );
    }

    #[test]
    fn host_network_makes_container_ports_host_ports() {
        let spec =
            defaulted(json!({"hostNetwork": true, "containers": [{"name": "c", "image": "a",
            "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82}]}]}));
        assert_eq!(
            spec["containers"][0]["ports"],
            json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
                   {"containerPort": 81, "hostPort": 82, "protocol": "TCP"}])
        );
    }

    #[test]
    fn field_references_get_an_api_version() {
        let container = with_container(json!({"env": [{"name": "a", "valueFrom":
            {"fieldRef": {"fieldPath": "metadata.name"}}}]}));
        assert_eq!(container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
    }

    #[test]
    fn both_service_account_fields_are_written_and_the_new_one_wins() {
        for (given, want) in [
            (json!({"serviceAccount": "old"}), "old"),
            (json!({"serviceAccountName": "new"}), "new"),
            (json!({"serviceAccount": "old", "serviceAccountName": "new"}), "new"),
        ] {
            let spec = defaulted(given);
            assert_eq!(
                (&spec["serviceAccountName"], &spec["serviceAccount"]),
                (&json!(want), &json!(want))
            );
        }
    }

    #[test]
    fn pod_ip_is_the_first_of_pod_ips() {
        for (ip, ips, want_ip, want_ips) in [
            (Some("1.1.1.1"), vec![], "1.1.1.1", vec!["1.1.1.1"]),
            (None, vec!["1.1.1.1", "::1"], "1.1.1.1", vec!["1.1.1.1", "::1"]),
            (Some("1.1.1.1"), vec!["2.2.2.2", "::1"], "1.1.1.1", vec!["1.1.1.1"]),
            (Some("1.1.1.1"), vec!["1.1.1.1", "::1"], "1.1.1.1", vec!["1.1.1.1", "::1"]),
        ] {
            let mut pod = Pod {
                status: Some(PodStatus {
                    pod_ip: ip.map(str::to_owned),
                    pod_ips: Some(ips.into_iter().map(|ip| PodIP { ip: ip.to_owned() }).collect()),
                    ..PodStatus::default()
                }),
                ..Pod::default()
            };
            apply(&mut pod);
            let status = pod.status.unwrap();
            let got: Vec<_> = status.pod_ips.unwrap().into_iter().map(|ip| ip.ip).collect();
            assert_eq!(
                (status.pod_ip.as_deref(), got),
                (Some(want_ip), want_ips.into_iter().map(str::to_owned).collect())
            );
        }
    }

    #[test]
    fn defaulting_is_idempotent() {
        let once =
            defaulted(json!({"hostNetwork": true, "containers": [{"name": "c", "image": "a",
            "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}},
            "readinessProbe": {"tcpSocket": {"port": 1}}}], "volumes": [{"name": "v"}],
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}));
        assert_eq!(defaulted(once.clone()), once);
    }
}
