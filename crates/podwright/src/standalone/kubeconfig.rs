//! The file by which `kubectl` finds the node. `~/.kube/config` is never touched.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use podwright_apiserver::authority::Pair;

use super::write_private;

/// Writes it for whoever ran the command, through sudo or not.
pub fn write(path: &Path, server: &str, authority: &str, client: &Pair) -> anyhow::Result<()> {
    write_private(path, text(server, authority, client).as_bytes())?;
    if let Some((user, group)) = invoking_user() {
        std::os::unix::fs::chown(path, Some(user), Some(group))
            .with_context(|| format!("cannot give {} to the user {user}", path.display()))?;
    }
    Ok(())
}

fn text(server: &str, authority: &str, client: &Pair) -> String {
    format!(
        "\
# Written by podwright up, anew at every start.
apiVersion: v1
kind: Config
current-context: podwright
clusters:
- name: podwright
  cluster:
    server: {server}
    certificate-authority-data: {}
users:
- name: podwright-admin
  user:
    client-certificate-data: {}
    client-key-data: {}
contexts:
- name: podwright
  context:
    cluster: podwright
    user: podwright-admin
",
        BASE64_STANDARD.encode(authority),
        BASE64_STANDARD.encode(&client.certificate),
        BASE64_STANDARD.encode(&client.key),
    )
}

/// Who asked sudo, if it was sudo.
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
    fn what_is_written_can_be_read_by_clients_and_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let client = Pair { certificate: "certificate".into(), key: "key".into() };
        write(&path, "https://127.0.0.1:6443", "authority", &client).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let read = Kubeconfig::read_from(&path).unwrap();
        assert_eq!(read.current_context.as_deref(), Some("podwright"));
        let cluster = read.clusters.first().unwrap().cluster.clone().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
    }
}
