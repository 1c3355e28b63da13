//! Ownership and permissions of volume files.

use k8s_openapi::api::core::v1;

use crate::pod::{ContainerKind, Pod};

const SET_GROUP_ID: u32 = 0o2000;

/// Access of the pod's containers to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    ReadWrite,
    ReadOnly,
}

/// Group that owns the pod's volumes.
pub fn fs_group(pod: &Pod) -> Option<u32> {
    u32::try_from(context(pod)?.fs_group?).ok()
}

fn context(pod: &Pod) -> Option<&v1::PodSecurityContext> {
    pod.object.spec.as_ref()?.security_context.as_ref()
}

/// Mode that gives the group access to a file or directory; no permission is removed.
pub fn group_mode(is_directory: bool, mode: u32, access: Access) -> u32 {
    let rights = match access {
        Access::ReadWrite => 0o660,
        Access::ReadOnly => 0o440,
    };
    if is_directory { mode | rights | 0o110 | SET_GROUP_ID } else { mode | rights }
}

/// Whether all files of a volume have to be changed, or its root shows that this was already done.
pub fn needs_walk(pod: &Pod, group: u32, root_group: u32, root_mode: u32, access: Access) -> bool {
    let policy = context(pod).and_then(|own| own.fs_group_change_policy.as_deref());
    match policy {
        Some("OnRootMismatch") => {
            root_group != group || group_mode(true, root_mode, access) != root_mode
        }
        Some(_) | None => true,
    }
}

/// Mode of an empty volume that any user of a container may write to. It must be in a directory
/// that is closed to the users of the machine ([`is_private`]).
pub const OPEN_MODE: u32 = 0o777;

/// Whether only root can reach what is in a directory.
pub fn is_private(user: u32, mode: u32) -> bool {
    user == 0 && mode & 0o077 == 0
}

/// Whether a directory is as an agent makes it before it is set up, or as an earlier build left it:
/// closed to all but root. Its content, if any, was then written by a container.
pub fn is_closed(user: u32, group: u32, mode: u32) -> bool {
    (user, group, mode) == (0, 0, 0o755)
}

/// Mode and owner of a token file. It is readable only by the user that all containers run as, or
/// by the pod's group, if either is set.
pub fn of_token(pod: &Pod, default_mode: u32) -> (u32, Option<u32>) {
    let user = common_user(pod);
    match (user, fs_group(pod)) {
        (None, None) => (default_mode, None),
        (Some(_), _) | (_, Some(_)) => (0o600, user),
    }
}

/// User that all containers run as; `None` if they differ, or one is unset.
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
    fn token_is_readable_by_the_common_user_or_group_only() {
        let none = json!({});
        let user = |id: i64| json!({ "runAsUser": id });
        for (case, context, containers, want) in [
            ("unset", none.clone(), vec![none.clone()], (0o644, None)),
            ("set on the pod", user(7), vec![none.clone(), none.clone()], (0o600, Some(7))),
            ("the same on all containers", none.clone(), vec![user(7), user(7)], (0o600, Some(7))),
            ("root is a user", user(0), vec![none.clone()], (0o600, Some(0))),
            ("unset on one container", none.clone(), vec![user(7), none.clone()], (0o644, None)),
            ("they differ", user(7), vec![none.clone(), user(8)], (0o644, None)),
            ("a group", json!({"fsGroup": 5}), vec![none.clone()], (0o600, None)),
            ("both", json!({"fsGroup": 5, "runAsUser": 7}), vec![none], (0o600, Some(7))),
        ] {
            assert_eq!(of_token(&pod_with(context, &containers), 0o644), want, "{case}");
        }
    }

    #[test]
    fn group_gains_permissions_and_none_are_removed() {
        for (directory, mode, access, want) in [
            (false, 0o600, Access::ReadOnly, 0o640),
            (false, 0o604, Access::ReadWrite, 0o664),
            (false, 0o755, Access::ReadOnly, 0o755),
            (true, 0o700, Access::ReadWrite, 0o2770),
            (true, 0o755, Access::ReadOnly, 0o2755),
            (true, 0o1777, Access::ReadWrite, 0o3777),
        ] {
            assert_eq!(group_mode(directory, mode, access), want, "{mode:o}");
        }
    }

    #[test]
    fn matching_root_is_walked_only_with_policy_always() {
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
