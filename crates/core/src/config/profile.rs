//! Seccomp and AppArmor profiles of containers.

use k8s_openapi::api::core::v1;
use podwright_api::validation::file_path::steps_up;
use podwright_proto::cri;
use podwright_proto::cri::security_profile::ProfileType;

use super::error::ConfigError;
use super::facts::NodeFacts;
use super::security::pod_context;
use crate::pod::{Container, Pod};

/// Used before the API had fields for it; manifests on disk may still have it.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
const LOCALHOST: &str = "localhost/";

fn plain(profile: ProfileType) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: profile.into(), localhost_ref: String::new() }
}

fn local(localhost_ref: String) -> cri::SecurityProfile {
    cri::SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref }
}

/// The sandbox always uses the runtime's default profile: it needs nothing more, and a strict
/// profile written for the pod's containers could prevent it from starting.
pub fn seccomp_of_sandbox() -> cri::SecurityProfile {
    plain(ProfileType::RuntimeDefault)
}

/// The container's profile, else the pod's, else the node's default.
pub fn seccomp(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
) -> Result<cri::SecurityProfile, ConfigError> {
    let own = container.spec.security_context.as_ref().and_then(|sc| sc.seccomp_profile.as_ref());
    let of_pod = || pod_context(pod).and_then(|sc| sc.seccomp_profile.as_ref());
    let Some(profile) = own.or_else(of_pod) else {
        let default = facts.seccomp_default;
        return Ok(plain(if default {
            ProfileType::RuntimeDefault
        } else {
            ProfileType::Unconfined
        }));
    };
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(plain(ProfileType::RuntimeDefault)),
        "Localhost" => {
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            if name.is_empty() {
                return Err(ConfigError::NoSeccompProfile);
            }
            // A profile outside the seccomp directory would expose other files of the node.
            if steps_up(name) {
                return Err(ConfigError::BackstepsInSeccompProfile { profile: name.to_owned() });
            }
            let root = facts.root_dir.trim_end_matches('/');
            Ok(local(format!("{root}/seccomp/{}", name.trim_start_matches('/'))))
        }
        _ => Ok(plain(ProfileType::Unconfined)),
    }
}

/// The profile, also in the format of older runtimes. `None`: the runtime's default.
pub fn apparmor(
    pod: &Pod,
    container: &Container,
) -> Result<Option<(cri::SecurityProfile, String)>, ConfigError> {
    let own = container.spec.security_context.as_ref().and_then(|sc| sc.app_armor_profile.clone());
    let of_pod = || pod_context(pod).and_then(|sc| sc.app_armor_profile.clone());
    let Some(profile) = own.or_else(|| annotated(pod, container)).or_else(of_pod) else {
        return Ok(None);
    };
    let (profile, old) = match profile.type_.as_str() {
        "RuntimeDefault" => (plain(ProfileType::RuntimeDefault), "runtime/default".to_owned()),
        "Unconfined" => (plain(ProfileType::Unconfined), "unconfined".to_owned()),
        "Localhost" => {
            let name = profile.localhost_profile.ok_or(ConfigError::NoAppArmorProfile)?;
            let old = format!("{LOCALHOST}{name}");
            (local(name), old)
        }
        kind => return Err(ConfigError::AppArmorType { kind: kind.to_owned() }),
    };
    Ok(Some((profile, old)))
}

fn annotated(pod: &Pod, container: &Container) -> Option<v1::AppArmorProfile> {
    let text = pod.annotation(&format!("{APPARMOR_ANNOTATION}{}", container.name))?;
    let profile = |type_: &str, localhost_profile| v1::AppArmorProfile {
        type_: type_.to_owned(),
        localhost_profile,
    };
    match (text, text.strip_prefix(LOCALHOST)) {
        ("runtime/default", _) => Some(profile("RuntimeDefault", None)),
        ("unconfined", _) => Some(profile("Unconfined", None)),
        (_, Some(name)) => Some(profile("Localhost", Some(name.to_owned()))),
        (_, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sample;
    use super::*;
    use crate::pod::Source;

    fn pod(field: &str, of_pod: &Value, own: &Value, annotation: Option<&str>) -> Pod {
        let key = format!("{APPARMOR_ANNOTATION}c");
        let annotations = annotation.map_or(json!({}), |text| json!({key: text}));
        let context = |profile: &Value| json!({field: profile});
        let spec = json!({"securityContext": context(of_pod),
            "containers": [{"name": "c", "securityContext": context(own)}]});
        sample::parsed(json!({"name": "web", "annotations": annotations}), spec, Source::Api)
    }

    #[test]
    fn seccomp_profile_of_container_precedes_pod_and_node() {
        let none = json!(null);
        let typed = |kind: &str| json!({"type": kind});
        let named = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
        let (default, unconfined) = (ProfileType::RuntimeDefault, ProfileType::Unconfined);
        for (case, of_pod, own, node_default, want) in [
            ("unset", &none, &none, false, Ok(plain(unconfined))),
            ("from the node", &none, &none, true, Ok(plain(default))),
            ("from the pod", &typed("RuntimeDefault"), &none, false, Ok(plain(default))),
            (
                "from the container",
                &typed("RuntimeDefault"),
                &typed("Unconfined"),
                true,
                Ok(plain(unconfined)),
            ),
            (
                "a file",
                &none,
                &named("p/x.json"),
                false,
                Ok(local("/var/lib/kubelet/seccomp/p/x.json".into())),
            ),
            ("an unknown type", &none, &typed("Odd"), true, Ok(plain(unconfined))),
            (
                "no file name",
                &none,
                &typed("Localhost"),
                false,
                Err("localhostProfile must be set if seccompProfile type is Localhost."),
            ),
            (
                "a path out of the directory",
                &none,
                &named("../x"),
                false,
                Err("seccomp profile \"../x\" must not contain '..'"),
            ),
        ] {
            let pod = pod("seccompProfile", of_pod, own, None);
            let facts = NodeFacts { seccomp_default: node_default, ..sample::facts() };
            let got = seccomp(&pod, &pod.containers[0], &facts);
            assert_eq!(got.map_err(|e| e.to_string()), want.map_err(str::to_owned), "{case}");
        }
    }

    #[test]
    fn apparmor_profile_of_container_precedes_annotation_and_pod() {
        let none = json!(null);
        let typed = |kind: &str| json!({"type": kind});
        let named = json!({"type": "Localhost", "localhostProfile": "p"});
        let default = (plain(ProfileType::RuntimeDefault), "runtime/default".to_owned());
        let unconfined = (plain(ProfileType::Unconfined), "unconfined".to_owned());
        let of_name = |name: &str| (local(name.to_owned()), format!("localhost/{name}"));
        for (case, of_pod, own, annotation, want) in [
            ("unset", &none, &none, None, Ok(None)),
            ("from the pod", &typed("RuntimeDefault"), &none, None, Ok(Some(default.clone()))),
            (
                "annotated",
                &typed("RuntimeDefault"),
                &none,
                Some("unconfined"),
                Ok(Some(unconfined.clone())),
            ),
            ("annotated default", &none, &none, Some("runtime/default"), Ok(Some(default.clone()))),
            ("annotated name", &none, &none, Some("localhost/q"), Ok(Some(of_name("q")))),
            ("annotated nonsense", &typed("RuntimeDefault"), &none, Some("x"), Ok(Some(default))),
            ("from the container", &none, &named, Some("unconfined"), Ok(Some(of_name("p")))),
            ("unconfined", &none, &typed("Unconfined"), None, Ok(Some(unconfined))),
            (
                "no name",
                &none,
                &typed("Localhost"),
                None,
                Err("missing localhost apparmor profile name"),
            ),
            (
                "an unknown type",
                &none,
                &typed("Odd"),
                None,
                Err("unknown apparmor profile type: \"Odd\""),
            ),
        ] {
            let pod = pod("appArmorProfile", of_pod, own, annotation);
            let got = apparmor(&pod, &pod.containers[0]).map_err(|error| error.to_string());
            assert_eq!(got, want.map_err(str::to_owned), "{case}");
        }
    }
}
