//! Checks of the level `restricted`, in addition to `baseline` or instead of some of its checks.

use std::collections::BTreeSet;

use serde_json::Value;

use super::baseline::{self, Check};
use super::{PodView, Violation, containers, list, plural, quoted, text, violation};

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

const OTHER_VOLUMES: [&str; 21] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

/// Whether a check of this level replaces one of `baseline`.
pub(super) fn replaces(check: Check, pod: &PodView<'_>) -> bool {
    match check {
        Check::Capabilities => pod.minor >= 22,
        Check::HostPaths => true,
        Check::ProcMount => pod.minor >= 35,
        Check::Seccomp => pod.minor >= 19,
        Check::AppArmor
        | Check::HostNamespaces
        | Check::HostPorts
        | Check::ProbeHosts
        | Check::Privileged
        | Check::SeLinux
        | Check::Sysctls
        | Check::HostProcess => false,
    }
}

pub(super) fn check(pod: &PodView<'_>) -> Vec<Violation> {
    let windows = pod.is_windows();
    [
        (pod.minor >= 8 && !windows).then(|| escalation(pod)).flatten(),
        (pod.minor >= 22 && !windows).then(|| capabilities(pod)).flatten(),
        (pod.minor >= 35).then(|| baseline::proc_mount(pod)).flatten(),
        volumes(pod),
        (!pod.is_relaxed()).then(|| run_as_non_root(pod)).flatten(),
        (pod.minor >= 23 && !pod.is_relaxed()).then(|| run_as_user(pod)).flatten(),
        (pod.minor >= 19 && !windows).then(|| seccomp(pod)).flatten(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn escalation(pod: &PodView<'_>) -> Option<Violation> {
    let names = pod.bad_containers(|it| {
        it.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false))
    });
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must set securityContext.allowPrivilegeEscalation=false",
            containers(&names)
        );
        violation("allowPrivilegeEscalation != false", detail)
    })
}

fn capabilities(pod: &PodView<'_>) -> Option<Violation> {
    let keeping = pod.bad_containers(|it| {
        !list(it, "/securityContext/capabilities/drop").iter().any(|name| name == "ALL")
    });
    let mut added = BTreeSet::new();
    let adding = pod.bad_containers(|it| {
        let add = list(it, "/securityContext/capabilities/add").iter().filter_map(Value::as_str);
        let bad: Vec<&str> = add.filter(|name| *name != "NET_BIND_SERVICE").collect();
        added.extend(bad.iter().map(|&name| name.to_owned()));
        !bad.is_empty()
    });
    let mut details = Vec::new();
    if !keeping.is_empty() {
        let who = containers(&keeping);
        details.push(format!("{who} must set securityContext.capabilities.drop=[\"ALL\"]"));
    }
    if !adding.is_empty() {
        let (who, added) = (containers(&adding), quoted(added));
        details.push(format!("{who} must not include {added} in securityContext.capabilities.add"));
    }
    (!details.is_empty()).then(|| violation("unrestricted capabilities", details.join("; ")))
}

fn volumes(pod: &PodView<'_>) -> Option<Violation> {
    let (mut names, mut types) = (Vec::new(), BTreeSet::new());
    for volume in pod.list("/spec/volumes") {
        let has = |kind: &&str| volume.get(*kind).is_some_and(|it| !it.is_null());
        if VOLUMES.iter().any(&has) {
            continue;
        }
        names.push(text(volume, "/name"));
        types.insert(OTHER_VOLUMES.into_iter().find(has).unwrap_or("unknown"));
    }
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} {} {} {} {}",
            plural("volume", "volumes", names.len()),
            quoted(&names),
            plural("uses", "use", names.len()),
            plural("restricted volume type", "restricted volume types", types.len()),
            quoted(types)
        );
        violation("restricted volume types", detail)
    })
}

fn run_as_non_root(pod: &PodView<'_>) -> Option<Violation> {
    const REASON: &str = "runAsNonRoot != true";
    let of_pod = pod.get("/spec/securityContext/runAsNonRoot").and_then(Value::as_bool);
    let set = |it: &Value| it.pointer("/securityContext/runAsNonRoot").and_then(Value::as_bool);
    let explicit = pod.bad_containers(|it| set(it) == Some(false));
    let mut setters: Vec<String> = Vec::new();
    setters.extend((of_pod == Some(false)).then(|| "pod".to_owned()));
    setters.extend((!explicit.is_empty()).then(|| containers(&explicit)));
    if !setters.is_empty() {
        let setters = setters.join(" and ");
        let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
        return Some(violation(REASON, detail));
    }
    let implicit = pod.bad_containers(|it| set(it).is_none() && of_pod != Some(true));
    (!implicit.is_empty()).then(|| {
        let who = containers(&implicit);
        violation(REASON, format!("pod or {who} must set securityContext.runAsNonRoot=true"))
    })
}

fn run_as_user(pod: &PodView<'_>) -> Option<Violation> {
    let is_root = |user: Option<&Value>| user.and_then(Value::as_i64) == Some(0);
    let of_pod = is_root(pod.get("/spec/securityContext/runAsUser"));
    let names = pod.bad_containers(|it| is_root(it.pointer("/securityContext/runAsUser")));
    let mut setters: Vec<String> = of_pod.then(|| "pod".to_owned()).into_iter().collect();
    setters.extend((!names.is_empty()).then(|| containers(&names)));
    (!setters.is_empty()).then(|| {
        let setters = setters.join(" and ");
        violation("runAsUser=0", format!("{setters} must not set runAsUser=0"))
    })
}

fn seccomp(pod: &PodView<'_>) -> Option<Violation> {
    if let Some(explicit) = baseline::seccomp(pod) {
        return Some(explicit);
    }
    let of_pod = pod.get("/spec/securityContext/seccompProfile").is_some();
    let names = pod.bad_containers(|it| {
        let own = it.pointer("/securityContext/seccompProfile");
        !of_pod && own.is_none_or(Value::is_null)
    });
    (!names.is_empty()).then(|| {
        let detail = format!(
            "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
             \"Localhost\"",
            containers(&names)
        );
        violation("seccompProfile", detail)
    })
}
