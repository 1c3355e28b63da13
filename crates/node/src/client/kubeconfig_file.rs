//! Kubeconfig files, read as Go reads them: base64 data may be wrapped.

use std::path::Path;

use kube::config::{AuthInfo, Kubeconfig, KubeconfigError};

pub(crate) fn read(path: &Path) -> Result<Kubeconfig, KubeconfigError> {
    let mut file = Kubeconfig::read_from(path)?;
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        if let Some(data) = &mut cluster.certificate_authority_data {
            *data = unwrapped(data);
        }
    }
    for user in file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        if let Some(read) = with_unwrapped_data(user) {
            *user = read;
        }
    }
    Ok(file)
}

/// The key is a secret of kube's own type, which can be changed only in its serialized form.
fn with_unwrapped_data(user: &AuthInfo) -> Option<AuthInfo> {
    let mut fields = serde_json::to_value(user).ok()?;
    for name in ["client-certificate-data", "client-key-data"] {
        if let Some(value) = fields.get_mut(name)
            && let Some(text) = value.as_str()
        {
            *value = unwrapped(text).into();
        }
    }
    serde_json::from_value(fields).ok()
}

fn unwrapped(data: &str) -> String {
    data.chars().filter(|c| !matches!(c, '\r' | '\n')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapped_data_of_a_kubeconfig_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\n\
            clusters:\n- name: c\n  cluster:\n    server: https://x\n    \
            certificate-authority-data: |\n      YWI\n      =\n\
            users:\n- name: u\n  user:\n    client-certificate-data: |\n      Y2\n      Q=\n    \
            client-key-data: \"ZW\\r\\nY=\"\n    token: t\n";
        std::fs::write(&path, text).unwrap();
        let file = read(&path).unwrap();
        let cluster = file.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("YWI="));
        let user = file.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate_data.as_deref(), Some("Y2Q="));
        let shown = serde_json::to_value(user).unwrap();
        assert_eq!(shown["client-key-data"], "ZWY=");
        assert_eq!(shown["token"], "t");
    }
}
