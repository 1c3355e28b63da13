//! Who may read and write a volume's files.

use k8s_openapi::api::core::v1;

use crate::pod::{ContainerKind, Pod};

const SET_GROUP_ID: u32 = 0o2000;

/// What the pod's containers may do with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// The group that the pod's volumes belong to.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    u32::try_from(context(pod)?.fs_group?).ok()
}

fn context(pod: &Pod) -> Option<&v1::PodSecurityContext> {
    pod.object.spec.as_ref()?.security_context.as_ref()
}

/// The mode by which the group gets at a file or a folder; no right is taken away.
pub fn group_mode(is_folder: bool, mode: u32, access: Access) -> u32 {
    let rights = match access {
        Access::ReadWrite => 0o660,
        Access::ReadOnly => 0o440,
    };
    if is_folder { mode | rights | 0o110 | SET_GROUP_ID } else { mode | rights }
}

/// Whether a volume has to be walked through, or its root shows that this was done before.
pub fn needs_walk(pod: &Pod, group: u32, root_group: u32, root_mode: u32, access: Access) -> bool {
    let policy = context(pod).and_then(|own| own.fs_group_change_policy.as_deref());
    match policy {
        Some("OnRootMismatch") => {
            root_group != group || group_mode(true, root_mode, access) != root_mode
        }
        Some(_) | None => true,
    }
}

/// Mode and owner of a token's file. Only whoever is meant to may read it, if that can be told:
/// the one user that all containers run as, or the pod's group.
pub fn of_token(pod: &Pod, default_mode: u32) -> (u32, Option<u32>) {
    let user = common_user(pod);
    match (user, fs_group(pod)) {
        (None, None) => (default_mode, None),
        (Some(_), _) | (_, Some(_)) => (0o600, user),
    }
}

/// The user that all containers run as; `None` if they differ, or one does not say.
fn common_user(pod: &Pod) -> Option<u32> {
    let of_pod = context(pod).and_then(|own| own.run_as_user);
    let mut users = pod.containers.iter().filter(|c| c.kind != ContainerKind::Ephemeral).map(|c| {
        let own = c.spec.security_context.as_ref().and_then(|own| own.run_as_user);
        own.or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then(|| u32::try_from(first).ok())?
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::builders::pod;

    fn pod_with(context: Value, containers: &[Value]) -> Pod {
        let mut builder = pod("p").spec("securityContext", context);
        for (index, own) in containers.iter().enumerate() {
            let fields = json!({ "securityContext": own });
            builder = builder.container_with(&format!("c{index}"), fields);
        }
        builder.ephemeral("debug").build()
    }

    #[test]
    fn a_token_is_for_the_one_user_or_the_group_if_there_is_one() {
        let none = json!({});
        let user = |id: i64| json!({ "runAsUser": id });
        for (case, context, containers, want) in [
            ("nobody says", none.clone(), vec![none.clone()], (0o644, None)),
            ("the pod says", user(7), vec![none.clone(), none.clone()], (0o600, Some(7))),
            ("all say the same", none.clone(), vec![user(7), user(7)], (0o600, Some(7))),
            ("root is a user", user(0), vec![none.clone()], (0o600, Some(0))),
            ("one says nothing", none.clone(), vec![user(7), none.clone()], (0o644, None)),
            ("they differ", user(7), vec![none.clone(), user(8)], (0o644, None)),
            ("a group", json!({"fsGroup": 5}), vec![none.clone()], (0o600, None)),
            ("both", json!({"fsGroup": 5, "runAsUser": 7}), vec![none], (0o600, Some(7))),
        ] {
            assert_eq!(of_token(&pod_with(context, &containers), 0o644), want, "{case}");
        }
    }

    #[test]
    fn the_group_gains_rights_and_nobody_loses_any() {
        for (folder, mode, access, want) in [
            (false, 0o600, Access::ReadOnly, 0o640),
            (false, 0o604, Access::ReadWrite, 0o664),
            (false, 0o755, Access::ReadOnly, 0o755),
            (true, 0o700, Access::ReadWrite, 0o2770),
            (true, 0o755, Access::ReadOnly, 0o2755),
            (true, 0o1777, Access::ReadWrite, 0o3777),
        ] {
            assert_eq!(group_mode(folder, mode, access), want, "{mode:o}");
        }
    }

    #[test]
    fn a_root_that_fits_is_walked_only_if_the_policy_says_always() {
        let with = |policy: &str| {
            pod_with(json!({"fsGroup": 5, "fsGroupChangePolicy": policy}), &[json!({})])
        };
        let write = Access::ReadWrite;
        assert!(needs_walk(&with("Always"), 5, 5, 0o2770, write));
        assert!(!needs_walk(&with("OnRootMismatch"), 5, 5, 0o2770, write));
        assert!(needs_walk(&with("OnRootMismatch"), 5, 6, 0o2770, write), "another group");
        assert!(needs_walk(&with("OnRootMismatch"), 5, 5, 0o770, write), "no set-group-id");
        assert!(needs_walk(&with("OnRootMismatch"), 5, 5, 0o2750, write), "not writable");
        assert_eq!(fs_group(&with("Always")), Some(5));
    }
}
