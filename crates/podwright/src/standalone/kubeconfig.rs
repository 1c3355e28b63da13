//! Kubeconfig of the standalone node. `~/.kube/config` is never changed.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use podwright_apiserver::authority::CertificatePair;

use super::write_private;

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
pub fn text(server: &str, authority: &str, user: &str, client: &CertificatePair) -> String {
    format!(
        "\
# Written by podwright. podwright up writes that of podwright-admin again before it expires.
apiVersion: v1
kind: Config
current-context: podwright
clusters:
- name: podwright
  cluster:
    server: {server}
    certificate-authority-data: {}
users:
- name: \"{user}\"
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: podwright
  context:
    cluster: podwright
    user: \"{user}\"
",
        BASE64_STANDARD.encode(authority),
        BASE64_STANDARD.encode(&client.certificate),
        BASE64_STANDARD.encode(&client.key),
    )
}

/// The user and group that ran sudo, if any.
fn invoking_user() -> Option<(u32, u32)> {
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
        let text = text("https://127.0.0.1:6443", "authority", "bob@example.com", &client);
        write(&path, &text).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("podwright"));
        let cluster = read.clusters.first().unwrap().cluster.clone().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
    }
}
