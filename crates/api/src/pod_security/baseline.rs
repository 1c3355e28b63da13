//! Checks of the level `baseline`, in the order of their names upstream.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{PodView, Violation, containers, list, plural, quoted, text, violation};

const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Each with the version that added it.
const SYSCTLS: [(&str, u32); 12] = [
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";

/// A check that a stricter one of `restricted` may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    AppArmor,
    Capabilities,
    HostNamespaces,
    HostPaths,
    HostPorts,
    ProbeHosts,
    Privileged,
    ProcMount,
    SeLinux,
    Seccomp,
    Sysctls,
    HostProcess,
}

type CheckFn = fn(&PodView<'_>) -> Option<Violation>;

const CHECKS: [(Check, CheckFn); 12] = [
    (Check::AppArmor, app_armor),
    (Check::Capabilities, capabilities),
    (Check::HostNamespaces, host_namespaces),
    (Check::HostPaths, host_paths),
    (Check::HostPorts, host_ports),
    (Check::ProbeHosts, probe_hosts),
    (Check::Privileged, privileged),
    (Check::ProcMount, relaxed_proc_mount),
    (Check::SeLinux, se_linux),
    (Check::Seccomp, seccomp),
    (Check::Sysctls, sysctls),
    (Check::HostProcess, host_process),
];

pub(super) fn check(pod: &PodView<'_>, applies: impl Fn(Check) -> bool) -> Vec<Violation> {
    let checks = CHECKS.iter().filter(|(check, _)| applies(*check));
    checks.filter_map(|(_, run)| run(pod)).collect()
}

/// The setters of a bad value: the pod, its containers.
fn setters(pod: bool, names: &[&str]) -> Vec<String> {
    let pod = pod.then(|| "pod".to_owned());
    pod.into_iter().chain((!names.is_empty()).then(|| containers(names))).collect()
}

fn annotations<'a>(pod: &PodView<'a>) -> impl Iterator<Item = (&'a str, &'a str)> {
    let all = pod.get("/metadata/annotations").and_then(Value::as_object);
    all.into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()))
}

fn app_armor(pod: &PodView<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let mut is_bad = |profile: Option<&Value>| {
        let Some(profile) = profile.filter(|profile| profile.is_object()) else { return false };
        let kind = text(profile, "/type");
        let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            values.insert(kind.to_owned());
        }
        bad
    };
    let of_pod = is_bad(pod.get("/spec/securityContext/appArmorProfile"));
    let names = pod.bad_containers(|it| is_bad(it.pointer("/securityContext/appArmorProfile")));
    let mut setters = setters(of_pod, &names);
    let is_allowed = |value: &str| {
        value.is_empty() || value == "runtime/default" || value.starts_with("localhost/")
    };
    let mut annotated: Vec<String> = annotations(pod)
        .filter(|(key, value)| key.starts_with(APPARMOR) && !is_allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    annotated.sort_unstable();
    if !annotated.is_empty() {
        setters.push(plural("annotation", "annotations", annotated.len()).to_owned());
    }
    let values: Vec<String> = values.into_iter().chain(annotated).collect();
    if setters.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    let setters = setters.join(" and ");
    let detail = format!("{setters} must not set AppArmor profile type to {}", quoted(values));
    Some(violation(reason, detail))
}

fn capabilities(pod: &PodView<'_>) -> Option<Violation> {
    let mut added = BTreeSet::new();
    let names = pod.bad_containers(|it| {
        let add = list(it, "/securityContext/capabilities/add").iter().filter_map(Value::as_str);
        let bad: Vec<&str> = add.filter(|name| !CAPABILITIES.contains(name)).collect();
        added.extend(bad.iter().map(|&name| name.to_owned()));
        !bad.is_empty()
    });
    (!names.is_empty()).then(|| {
        let detail = format!(
            "{} must not include {} in securityContext.capabilities.add",
            containers(&names),
            quoted(added)
        );
        violation("non-default capabilities", detail)
    })
}

fn host_namespaces(pod: &PodView<'_>) -> Option<Violation> {
    let is_set = |name: &&str| pod.get(&format!("/spec/{name}")) == Some(&Value::Bool(true));
    let set = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(is_set);
    let set: Vec<String> = set.map(|name| format!("{name}=true")).collect();
    (!set.is_empty()).then(|| violation("host namespaces", set.join(", ")))
}

fn host_paths(pod: &PodView<'_>) -> Option<Violation> {
    let volumes = pod.list("/spec/volumes").iter();
    let names: Vec<&str> = volumes
        .filter(|volume| volume.get("hostPath").is_some_and(|it| !it.is_null()))
        .map(|volume| text(volume, "/name"))
        .collect();
    (!names.is_empty()).then(|| {
        let detail = format!("{} {}", plural("volume", "volumes", names.len()), quoted(&names));
        violation("hostPath volumes", detail)
    })
}

fn host_ports(pod: &PodView<'_>) -> Option<Violation> {
    let mut ports = BTreeSet::new();
    let names = pod.bad_containers(|it| {
        let of_container = list(it, "/ports").iter();
        let used = of_container.filter_map(|port| port.get("hostPort")?.as_i64());
        let used: Vec<i64> = used.filter(|port| *port != 0).collect();
        ports.extend(used.iter().map(ToString::to_string));
        !used.is_empty()
    });
    (!names.is_empty()).then(|| {
        let listed: Vec<String> = ports.into_iter().collect();
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural("uses", "use", names.len()),
            plural("hostPort", "hostPorts", listed.len()),
            listed.join(", ")
        );
        violation("hostPort", detail)
    })
}

fn probe_hosts(pod: &PodView<'_>) -> Option<Violation> {
    if pod.minor < 34 {
        return None;
    }
    let mut hosts = BTreeSet::new();
    let names = pod.bad_containers(|it| {
        let mut found = false;
        for handler in [
            "/livenessProbe",
            "/readinessProbe",
            "/startupProbe",
            "/lifecycle/postStart",
            "/lifecycle/preStop",
        ] {
            for action in ["httpGet", "tcpSocket"] {
                let host = text(it, &format!("{handler}/{action}/host"));
                if !host.is_empty() {
                    hosts.insert(host.to_owned());
                    found = true;
                }
            }
        }
        found
    });
    (!names.is_empty()).then(|| {
        let names: BTreeSet<&str> = names.into_iter().collect();
        let names: Vec<&str> = names.into_iter().collect();
        let detail = format!(
            "{} {} {} {}",
            containers(&names),
            plural("uses", "use", names.len()),
            plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len()),
            quoted(hosts)
        );
        violation("probe or lifecycle host", detail)
    })
}

fn privileged(pod: &PodView<'_>) -> Option<Violation> {
    let names = pod
        .bad_containers(|it| it.pointer("/securityContext/privileged") == Some(&Value::Bool(true)));
    (!names.is_empty()).then(|| {
        let who = containers(&names);
        violation("privileged", format!("{who} must not set securityContext.privileged=true"))
    })
}

fn relaxed_proc_mount(pod: &PodView<'_>) -> Option<Violation> {
    if pod.is_relaxed() { None } else { proc_mount(pod) }
}

pub(super) fn proc_mount(pod: &PodView<'_>) -> Option<Violation> {
    let mut types = BTreeSet::new();
    let names = pod.bad_containers(|it| match text(it, "/securityContext/procMount") {
        "" | "Default" => false,
        other => {
            types.insert(other.to_owned());
            true
        }
    });
    (!names.is_empty()).then(|| {
        let (who, types) = (containers(&names), quoted(types));
        violation("procMount", format!("{who} must not set securityContext.procMount to {types}"))
    })
}

fn se_linux(pod: &PodView<'_>) -> Option<Violation> {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut is_bad = |options: Option<&Value>| {
        let Some(options) = options.filter(|options| options.is_object()) else { return false };
        let kind = text(options, "/type");
        let known = matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (pod.minor >= 31 && kind == "container_engine_t");
        let (has_user, has_role) =
            (!text(options, "/user").is_empty(), !text(options, "/role").is_empty());
        if !known {
            types.insert(kind.to_owned());
        }
        user |= has_user;
        role |= has_role;
        !known || has_user || has_role
    };
    let of_pod = is_bad(pod.get("/spec/securityContext/seLinuxOptions"));
    let names = pod.bad_containers(|it| is_bad(it.pointer("/securityContext/seLinuxOptions")));
    let setters = setters(of_pod, &names);
    if setters.is_empty() {
        return None;
    }
    let mut data = Vec::new();
    if !types.is_empty() {
        data.push(format!("{} {}", plural("type", "types", types.len()), quoted(types)));
    }
    data.extend(user.then(|| "user may not be set".to_owned()));
    data.extend(role.then(|| "role may not be set".to_owned()));
    let detail = format!(
        "{} set forbidden securityContext.seLinuxOptions: {}",
        setters.join(" and "),
        data.join("; ")
    );
    Some(violation("seLinuxOptions", detail))
}

/// The violation of a profile that is set and not allowed.
pub(super) fn seccomp(pod: &PodView<'_>) -> Option<Violation> {
    if pod.minor < 19 {
        return seccomp_annotations(pod);
    }
    let mut types = BTreeSet::new();
    let mut is_bad = |profile: Option<&Value>| {
        let Some(profile) = profile.filter(|profile| profile.is_object()) else { return false };
        let kind = text(profile, "/type");
        let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
        if bad {
            types.insert(kind.to_owned());
        }
        bad
    };
    let of_pod = is_bad(pod.get("/spec/securityContext/seccompProfile"));
    let names = pod.bad_containers(|it| is_bad(it.pointer("/securityContext/seccompProfile")));
    let setters = setters(of_pod, &names).join(" and ");
    (!setters.is_empty()).then(|| {
        let types = quoted(types);
        let detail =
            format!("{setters} must not set securityContext.seccompProfile.type to {types}");
        violation("seccompProfile", detail)
    })
}

fn seccomp_annotations(pod: &PodView<'_>) -> Option<Violation> {
    let keys = pod.containers().map(|it| format!("{SECCOMP_CONTAINER}{}", text(it, "/name")));
    let keys: BTreeSet<String> = keys.chain([SECCOMP_POD.to_owned()]).collect();
    let is_allowed = |value: &str| {
        matches!(value, "runtime/default" | "docker/default") || value.starts_with("localhost/")
    };
    let bad: BTreeSet<String> = annotations(pod)
        .filter(|(key, value)| keys.contains(*key) && !is_allowed(value))
        .map(|(key, value)| format!("{key}={value:?}"))
        .collect();
    (!bad.is_empty()).then(|| {
        let word = plural("annotation", "annotations", bad.len());
        let listed: Vec<String> = bad.into_iter().collect();
        violation("seccompProfile", format!("forbidden {word} {}", listed.join(", ")))
    })
}

fn sysctls(pod: &PodView<'_>) -> Option<Violation> {
    let allowed = |name: &str| SYSCTLS.iter().any(|(it, since)| *it == name && *since <= pod.minor);
    let set = pod.list("/spec/securityContext/sysctls").iter().map(|it| text(it, "/name"));
    let bad: Vec<&str> = set.filter(|name| !allowed(name)).collect();
    (!bad.is_empty()).then(|| violation("forbidden sysctls", bad.join(", ")))
}

fn host_process(pod: &PodView<'_>) -> Option<Violation> {
    let is_set = |context: Option<&Value>| context.and_then(Value::as_bool).unwrap_or(false);
    let of_pod = is_set(pod.get("/spec/securityContext/windowsOptions/hostProcess"));
    let names =
        pod.bad_containers(|it| is_set(it.pointer("/securityContext/windowsOptions/hostProcess")));
    let setters = setters(of_pod, &names).join(" and ");
    (!setters.is_empty()).then(|| {
        let detail =
            format!("{setters} must not set securityContext.windowsOptions.hostProcess=true");
        violation("hostProcess", detail)
    })
}
