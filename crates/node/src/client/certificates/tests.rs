#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use podwright_core::time::Mono;
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A certificate with this validity, as PEM, and its key.
fn pair(from: i64, until: i64) -> (String, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let time = |second| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(second);
    let mut params = CertificateParams::default();
    params.not_before = time(u64::try_from(from).unwrap());
    params.not_after = time(u64::try_from(until).unwrap());
    (params.self_signed(&key).unwrap().pem(), key)
}

#[test]
fn next_action_follows_from_the_certificates_validity() {
    let validity = CertificateValidity { from: at(0), until: at(1000) };
    let nothing = |seconds| CertificateAction::Nothing { until: Duration::from_secs(seconds) };
    let clocks = |wall, passed| Now { wall: at(wall), mono: Mono(Duration::from_secs(passed)) };
    let loaded = Some(Current { validity, jitter: 0.5, since: clocks(100, 0) });
    for (case, current, rotate, wall, passed, want) in [
        ("none", None, true, 0, 0, CertificateAction::New),
        ("young", loaded, true, 700, 600, nothing(100)),
        ("old", loaded, true, 800, 700, CertificateAction::Renewal),
        ("old, without rotation", loaded, false, 800, 700, nothing(200)),
        ("expired", loaded, false, 1000, 900, CertificateAction::New),
        ("the clock was set back", loaded, true, 200, 690, nothing(10)),
        ("old by the other clock", loaded, true, 200, 700, CertificateAction::Renewal),
        ("suspended since", loaded, true, 900, 1, CertificateAction::Renewal),
    ] {
        assert_eq!(next_action(current, rotate, clocks(wall, passed)), want, "{case}");
    }
}

#[test]
fn validity_of_a_certificate_is_read_from_its_file() {
    let (certificate, key) = pair(100, 5000);
    let both = format!("{certificate}{}", key.serialize_pem());
    assert_eq!(
        validity(both.as_bytes()),
        Some(CertificateValidity { from: at(100), until: at(5000) })
    );
    assert_eq!(validity(key.serialize_pem().as_bytes()), None);
    assert_eq!(validity(b"garbage"), None);
}

#[test]
fn stored_pair_is_current_and_readable_by_the_owner_only() {
    let dir = TempDir::new().unwrap();
    let store = Store::client(dir.path()).unwrap();
    for (from, now) in [(1, 1_700_000_000), (2, 1_700_000_100)] {
        let (certificate, key) = pair(from, 5000);
        store.keep(certificate.as_bytes(), &key, at(now)).unwrap();
        let current = std::fs::read(store.current()).unwrap();
        assert_eq!(validity(&current).unwrap().from, at(from));
        let mode = std::fs::metadata(store.current()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let link = std::fs::read_link(store.current()).unwrap();
    assert_eq!(link, Path::new("kubelet-client-2023-11-14-22-15-00.pem"));
    assert!(!dir.path().join("kubelet-client-updated.pem").exists());
}

#[test]
fn interrupted_switch_is_completed() {
    let dir = TempDir::new().unwrap();
    let (certificate, _) = pair(7, 5000);
    std::fs::write(dir.path().join("new.pem"), certificate).unwrap();
    let updated = dir.path().join("kubelet-client-updated.pem");
    std::os::unix::fs::symlink("new.pem", &updated).unwrap();
    let store = Store::client(dir.path()).unwrap();
    assert_eq!(validity(&std::fs::read(store.current()).unwrap()).unwrap().from, at(7));
    assert!(updated.symlink_metadata().is_err());
}

#[test]
fn pending_key_survives_a_restart_until_its_request_is_settled() {
    let dir = TempDir::new().unwrap();
    let key = || Store::client(dir.path()).unwrap().pending_key().unwrap().serialize_pem();
    let first = key();
    assert_eq!(first, key());
    Store::client(dir.path()).unwrap().remove_pending_key().unwrap();
    assert_ne!(first, key());
}

fn kubeconfig(dir: &Path, user: &serde_json::Value) -> std::path::PathBuf {
    let path = dir.join("kubeconfig");
    let document = serde_json::json!({
        "clusters": [{ "name": "c", "cluster": { "server": "https://10.0.0.1:6443" } }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    });
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

#[test]
fn only_an_unusable_kubeconfig_is_replaced() {
    let dir = TempDir::new().unwrap();
    let (certificate, _) = pair(0, 1000);
    let file = dir.path().join("pair.pem");
    std::fs::write(&file, certificate).unwrap();
    let by_file = serde_json::json!({ "client-certificate": file, "client-key": file });
    for (case, user, now, want) in [
        ("valid", by_file.clone(), 999, false),
        ("expired", by_file, 1000, true),
        ("its file is missing", serde_json::json!({ "client-certificate": "none" }), 0, true),
        ("a token", serde_json::json!({ "token": "t" }), 0, false),
        ("no credentials", serde_json::json!({}), 0, true),
    ] {
        let path = kubeconfig(dir.path(), &user);
        assert_eq!(needs_bootstrap(&path, at(now)), want, "{case}");
    }
    assert!(needs_bootstrap(&dir.path().join("absent"), at(0)));
}

#[test]
fn kubeconfig_names_the_bootstrap_cluster_and_the_stored_pair() {
    let dir = TempDir::new().unwrap();
    let bootstrap = kubeconfig(dir.path(), &serde_json::json!({ "token": "once" }));
    let path = dir.path().join("etc/node.kubeconfig");
    write_from_bootstrap(&bootstrap, &path, Path::new("/pki/current.pem")).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("once"), "the bootstrap token is not kept");
    let read = kube::config::Kubeconfig::read_from(&path).unwrap();
    assert_eq!(read.current_context.as_deref(), Some("default-context"));
    assert_eq!(read.clusters[0].name, "default-cluster");
    let user = read.auth_infos[0].auth_info.as_ref().unwrap();
    assert_eq!(user.client_certificate.as_deref(), Some("/pki/current.pem"));
}
