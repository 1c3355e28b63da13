//! Kubeconfigs of the standalone node. `~/.kube/config` is changed only on request ([`merge`]).

pub mod merge;

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use podwright_apiserver::authority::CertificatePair;

use super::{Layout, write_private};
use crate::cli::STATE_DIR;

/// Names in a kubeconfig, which differ between the nodes of a machine and between users, so that
/// files can be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryNames {
    pub cluster: String,
    pub user: String,
    pub context: String,
}

impl EntryNames {
    /// Those of the owner; the context has the name of the cluster.
    pub fn of_admin(layout: &Layout, admin: &str) -> Self {
        let cluster = cluster_name(layout);
        Self { user: format!("{admin}@{cluster}"), context: cluster.clone(), cluster }
    }

    pub fn of_user(layout: &Layout, user: &str) -> Self {
        let cluster = cluster_name(layout);
        let name = format!("{user}@{cluster}");
        Self { user: name.clone(), context: name, cluster }
    }
}

/// Short for the usual state directory; any other node is named by its instance.
fn cluster_name(layout: &Layout) -> String {
    if layout.state() == Path::new(STATE_DIR) {
        "podwright".to_owned()
    } else {
        format!("podwright-{}", layout.instance())
    }
}

/// Writes the kubeconfig, owned by the user that ran the command, directly or through sudo.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    write_private(path, text.as_bytes())?;
    if let Some((user, group)) = invoking_user() {
        std::os::unix::fs::lchown(path, Some(user), Some(group)).with_context(|| {
            format!("cannot change the owner of {} to user {user}", path.display())
        })?;
    }
    Ok(())
}

/// A kubeconfig for one user. The name of the user is checked by the caller.
pub fn text(server: &str, authority: &str, names: &EntryNames, client: &CertificatePair) -> String {
    let EntryNames { cluster, user, context } = names;
    format!(
        "\
# Written by podwright. podwright up writes that of podwright-admin again before it expires.
apiVersion: v1
kind: Config
current-context: \"{context}\"
clusters:
- name: \"{cluster}\"
  cluster:
    server: {server}
    certificate-authority-data: {}
users:
- name: \"{user}\"
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: \"{context}\"
  context:
    cluster: \"{cluster}\"
    user: \"{user}\"
",
        BASE64_STANDARD.encode(authority),
        BASE64_STANDARD.encode(&client.certificate),
        BASE64_STANDARD.encode(&client.key),
    )
}

/// The user and group that ran sudo, if any.
pub fn invoking_user() -> Option<(u32, u32)> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    Some((number("SUDO_UID")?, number("SUDO_GID")?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use kube::config::Kubeconfig;

    use super::*;

    #[test]
    fn kubeconfig_is_valid_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let client = CertificatePair { certificate: "certificate".into(), key: "key".into() };
        let names = EntryNames::of_user(&Layout::new(Path::new(STATE_DIR)), "bob@example.com");
        let text = text("https://127.0.0.1:6443", "authority", &names, &client);
        write(&path, &text).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("bob@example.com@podwright"));
        let cluster = read.clusters.first().unwrap().cluster.clone().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
    }

    #[test]
    fn nodes_and_users_have_different_names() {
        let names = |state: &str, user: Option<&str>| {
            let layout = Layout::new(Path::new(state));
            let names = match user {
                None => EntryNames::of_admin(&layout, "admin"),
                Some(user) => EntryNames::of_user(&layout, user),
            };
            (names.context, names.user, names.cluster)
        };
        let usual = names(STATE_DIR, None);
        assert_eq!(usual, ("podwright".into(), "admin@podwright".into(), "podwright".into()));
        let (context, user, cluster) = names("/srv/one", None);
        assert!(context.starts_with("podwright-") && context == cluster);
        assert_eq!(user, format!("admin@{cluster}"));
        assert_ne!(names("/srv/two", None).0, context);
        let bob = names("/srv/one", Some("bob"));
        assert_eq!(bob, (format!("bob@{cluster}"), format!("bob@{cluster}"), cluster));
    }
}
