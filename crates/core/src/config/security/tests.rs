use serde_json::{Value, json};

use super::super::sample;
use super::*;

fn pod(of_pod: &Value, own: &Value) -> Pod {
    sample::pod(json!({"securityContext": of_pod,
        "containers": [{"name": "c", "securityContext": own}]}))
}

fn provision() -> PodProvision {
    PodProvision { volume_groups: vec![500], ..Default::default() }
}

fn context(pod: &Pod) -> cri::LinuxContainerSecurityContext {
    let user = ImageUser::Id(0);
    of_container(pod, &pod.containers[0], &user, None, &provision(), &sample::facts()).unwrap()
}

#[test]
fn container_fields_take_precedence_over_the_pods() {
    let selinux = |level: &str| json!({"level": level, "type": "t"});
    let of_pod = json!({"runAsUser": 1, "runAsGroup": 2, "seLinuxOptions": selinux("pod")});
    let own = json!({"runAsUser": 3, "runAsGroup": 4, "seLinuxOptions": selinux("own")});
    for (case, own, user, group, level) in [
        ("the pod's", json!(null), 1, 2, "pod"),
        ("the container's", own, 3, 4, "own"),
        ("one of each", json!({"runAsUser": 0}), 0, 2, "pod"),
    ] {
        let got = context(&pod(&of_pod, &own));
        let level_of = got.selinux_options.map(|options| options.level);
        assert_eq!(
            (got.run_as_user, got.run_as_group, level_of.as_deref()),
            (number(Some(user)), number(Some(group)), Some(level)),
            "{case}"
        );
    }
}

#[test]
fn without_a_user_the_images_user_is_used() {
    for (image, spec, user, name) in [
        (ImageUser::new(None, ""), json!({}), Some(0), ""),
        (ImageUser::new(Some(7), "ignored"), json!({}), Some(7), ""),
        (ImageUser::new(None, "app"), json!({}), None, "app"),
        (ImageUser::new(None, "app"), json!({"runAsUser": 9}), Some(9), ""),
    ] {
        let pod = pod(&json!({}), &spec);
        let (provision, facts) = (provision(), sample::facts());
        let got = of_container(&pod, &pod.containers[0], &image, None, &provision, &facts).unwrap();
        assert_eq!((got.run_as_user, got.run_as_username.as_str()), (number(user), name));
    }
}

#[test]
fn capabilities_and_privileges_are_passed_on() {
    let got = context(&pod(
        &json!({}),
        &json!({"privileged": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}),
    ));
    let capabilities = got.capabilities.unwrap();
    assert!(got.privileged && got.readonly_rootfs && got.no_new_privs);
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
}

#[test]
fn no_new_privs_is_set_only_if_escalation_is_explicitly_disallowed() {
    for (value, want) in [(json!(null), false), (json!(true), false), (json!(false), true)] {
        let got = context(&pod(&json!({}), &json!({"allowPrivilegeEscalation": value})));
        assert_eq!(got.no_new_privs, want);
    }
}

#[test]
fn groups_are_in_upstreams_orders() {
    let pod = pod(
        &json!({"fsGroup": 1, "supplementalGroups": [2, 3], "supplementalGroupsPolicy": "Strict"}),
        &json!(null),
    );
    let container = context(&pod);
    let sandbox = of_sandbox(&pod, &provision(), &sample::facts()).unwrap();
    assert_eq!(container.supplemental_groups, [1, 2, 3, 500]);
    assert_eq!(sandbox.supplemental_groups, [1, 500, 2, 3]);
    let strict = cri::SupplementalGroupsPolicy::Strict;
    assert_eq!(container.supplemental_groups_policy(), strict);
    assert_eq!(sandbox.supplemental_groups_policy(), strict);
}

#[test]
fn unknown_groups_policy_is_refused() {
    let pod = pod(&json!({"supplementalGroupsPolicy": "Odd"}), &json!(null));
    let got = of_sandbox(&pod, &provision(), &sample::facts()).unwrap_err();
    assert_eq!(got.to_string(), "unsupported supplementalGroupsPolicy: Odd");
}

#[test]
fn kernel_paths_are_masked_by_default() {
    let thermal = "/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned();
    let facts = NodeFacts { thermal_paths: vec![thermal.clone()], ..sample::facts() };
    for (proc_mount, masked, read_only) in
        [(json!(null), 13, 5), (json!("Default"), 13, 5), (json!("Unmasked"), 0, 0)]
    {
        let pod = pod(&json!({}), &json!({"procMount": proc_mount}));
        let user = ImageUser::Id(0);
        let got =
            of_container(&pod, &pod.containers[0], &user, None, &provision(), &facts).unwrap();
        assert_eq!((got.masked_paths.len(), got.readonly_paths.len()), (masked, read_only));
        assert_eq!(got.masked_paths.last(), (masked > 0).then_some(&thermal));
    }
}

#[test]
fn ephemeral_container_joins_its_targets_pid_namespace_unless_shared() {
    use cri::NamespaceMode::{Container, Node, Pod, Target};
    for (spec, target, pid, id) in [
        (json!({}), Some("abc"), Target, "abc"),
        (json!({}), None, Container, ""),
        (json!({"shareProcessNamespace": true}), Some("abc"), Pod, ""),
        (json!({"hostPID": true}), Some("abc"), Node, ""),
    ] {
        let pod = sample::pod(spec);
        let (user, facts) = (ImageUser::Id(0), sample::facts());
        let got = of_container(&pod, &pod.containers[0], &user, target, &provision(), &facts);
        let options = got.unwrap().namespace_options.unwrap();
        assert_eq!((options.pid(), options.target_id.as_str()), (pid, id));
    }
}

#[test]
fn sandbox_is_privileged_if_any_container_is() {
    let privileged = json!({"name": "x", "securityContext": {"privileged": true}});
    for (spec, want) in [
        (json!({}), false),
        (json!({"initContainers": [privileged]}), true),
        (json!({"ephemeralContainers": [privileged]}), true),
        (json!({"containers": [{"name": "c"}, privileged]}), true),
    ] {
        let got = of_sandbox(&sample::pod(spec), &provision(), &sample::facts()).unwrap();
        assert_eq!(got.privileged, want);
        let profile = got.seccomp.unwrap().profile_type();
        assert_eq!(profile, cri::security_profile::ProfileType::RuntimeDefault);
    }
}

#[test]
fn pod_without_a_security_context_sets_no_namespaces() {
    let got =
        of_sandbox(&sample::pod(json!({"securityContext": null})), &provision(), &sample::facts());
    assert_eq!(got.unwrap().namespace_options, None);
}

#[test]
fn run_as_non_root_is_verified() {
    let where_ = "(pod: \"web_default(u1)\", container: c)";
    let root = format!("container's runAsUser breaks non-root policy {where_}");
    let image_root = format!("container has runAsNonRoot and image will run as root {where_}");
    let (named, numbered) = (|| ImageUser::Name("app".to_owned()), ImageUser::Id);
    for (case, of_pod, own, image, want) in [
        ("not required", json!({}), json!({}), numbered(0), Ok(())),
        (
            "the container may",
            json!({"runAsNonRoot": true}),
            json!({"runAsNonRoot": false}),
            numbered(0),
            Ok(()),
        ),
        (
            "root by the pod",
            json!({"runAsNonRoot": true, "runAsUser": 0}),
            json!({}),
            numbered(5),
            Err(root.clone()),
        ),
        (
            "root by itself",
            json!({"runAsUser": 5}),
            json!({"runAsNonRoot": true, "runAsUser": 0}),
            numbered(5),
            Err(root),
        ),
        ("another user", json!({"runAsNonRoot": true}), json!({"runAsUser": 5}), named(), Ok(())),
        ("a root image", json!({"runAsNonRoot": true}), json!({}), numbered(0), Err(image_root)),
        ("another image", json!({"runAsNonRoot": true}), json!({}), numbered(5), Ok(())),
        (
            "a named user",
            json!({"runAsNonRoot": true}),
            json!({}),
            named(),
            Err(format!(
                "container has runAsNonRoot and image has non-numeric user (app), cannot verify \
                 user is non-root {where_}"
            )),
        ),
        (
            "no user at all",
            json!({"runAsNonRoot": true}),
            json!({}),
            numbered(1 << 31),
            Err(format!(
                "container has runAsNonRoot and image has an invalid user id (2147483648). (Must be \
                 1-(2147483647)): must be between 0 and 2147483647, inclusive {where_}"
            )),
        ),
    ] {
        let pod = pod(&of_pod, &own);
        let got = verify_non_root(&pod, &pod.containers[0], &image).map_err(|e| e.to_string());
        assert_eq!(got, want, "{case}");
    }
}
