//! User id range for pods with user namespaces.

use podwright_core::users::{self, UserRange};

use crate::config::kubelet::KubeletConfiguration;

/// The range that `getsubids` reports for `kubelet`, otherwise the range above the host's users.
pub(super) fn range(configuration: &KubeletConfiguration, max_pods: usize) -> UserRange {
    let wanted = configuration.user_namespaces.as_ref().and_then(|users| users.ids_per_pod);
    let ids_per_pod = wanted.and_then(|ids| u32::try_from(ids).ok()).unwrap_or(users::BLOCK);
    let ranges = |arguments: &[&str]| {
        let ran = std::process::Command::new("getsubids").args(arguments).output().ok()?;
        let printed = String::from_utf8(ran.stdout).ok()?;
        ran.status.success().then(|| UserRange::from_subids(&printed, ids_per_pod))?
    };
    let (uids, gids) = (ranges(&["kubelet"]), ranges(&["-g", "kubelet"]));
    let most = u32::try_from(max_pods).unwrap_or(u32::MAX);
    uids.filter(|_| uids == gids).unwrap_or_else(|| UserRange::for_pods(most, ids_per_pod))
}
