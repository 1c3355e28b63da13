//! Sample pod and node for the tests of this module.

use std::net::IpAddr;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1;
use podwright_api::qos::ResourceList;
use serde_json::{Value, json};

use super::env::{EnvInputs, EnvSources, Environment, Lookup};
use super::env_file::EnvFile;
use super::error::ConfigError;
use super::facts::{CgroupVersion, Machine, NodeFacts};
use crate::pod::{Pod, Source};

pub(super) const POD_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 2));

/// A pod `default/web` with this spec and the API server's defaults.
pub(super) fn pod(spec: Value) -> Pod {
    named_pod("web", spec)
}

pub(super) fn named_pod(name: &str, spec: Value) -> Pod {
    parsed(json!({"name": name}), spec, Source::Api)
}

/// With one container `c` of these fields.
pub(super) fn pod_of(container: Value) -> Pod {
    pod(json!({"containers": [with_name(container)]}))
}

pub(super) fn parsed(meta: Value, spec: Value, source: Source) -> Pod {
    let mut object = json!({"metadata": {"namespace": "default", "uid": "u1"}, "spec": {
        "containers": [{"name": "c", "image": "busybox:1"}], "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": true, "securityContext": {}, "terminationGracePeriodSeconds": 30}});
    merge(&mut object["metadata"], meta);
    merge(&mut object["spec"], spec);
    Pod::parse(serde_json::from_value(object).unwrap(), source).unwrap()
}

fn with_name(container: Value) -> Value {
    let mut whole = json!({"name": "c", "image": "busybox:1",
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
    merge(&mut whole, container);
    whole
}

fn merge(into: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more} is not an object") };
    into.as_object_mut().unwrap().extend(more);
}

pub(crate) fn facts() -> NodeFacts {
    let allocatable = [("cpu", "4"), ("memory", "8Gi"), ("ephemeral-storage", "100Gi")];
    NodeFacts {
        host_ips: vec!["10.0.0.1".parse().unwrap()],
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
        standalone: false,
        resolv_conf: String::new(),
        root_dir: "/var/lib/kubelet".to_owned(),
        pod_logs_dir: "/var/log/pods".to_owned(),
        seccomp_default: false,
        selinux: false,
        thermal_paths: Vec::new(),
        allocatable: resources(&allocatable),
        machine: Machine {
            memory: 10 << 30,
            hugepage_sizes: vec!["2MB".to_owned(), "1GB".to_owned()],
            cgroups: CgroupVersion::V2,
            cpu_quota_period: Some(100_000),
            whole_container_oom: true,
            swap: None,
            memory_qos: None,
        },
        handlers: Vec::new(),
    }
}

pub(super) fn resources(amounts: &[(&str, &str)]) -> ResourceList {
    amounts.iter().map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap())).collect()
}

/// Every Secret has the key `BYTES`, which is not text; there are no other objects.
struct Bytes(v1::Secret);

impl EnvSources for Bytes {
    fn config_map(&self, _: &str) -> Lookup<&v1::ConfigMap> {
        Lookup::Missing
    }

    fn secret(&self, _: &str) -> Lookup<&v1::Secret> {
        Lookup::Found(&self.0)
    }

    fn file(&self, _: &str, _: &str) -> EnvFile<'_> {
        EnvFile::NoVolume
    }
}

/// Variables of a container, and `GPU` from a device.
pub(super) fn environment(pod: &Pod, container: &str) -> Result<Environment, ConfigError> {
    let bytes = ByteString(vec![0xff, 0xfe]);
    let data = Some([("BYTES".to_owned(), bytes)].into());
    Environment::build(&EnvInputs {
        pod,
        container: pod.container(container).unwrap(),
        pod_ips: &[POD_IP],
        facts: &facts(),
        services: Some(&[]),
        sources: &Bytes(v1::Secret { data, ..Default::default() }),
        granted: &[("GPU".to_owned(), "0".to_owned())],
    })
}
