//! Image names, registry logins, and the output of credential plugins.

use podwright_api::image_name;
use podwright_core::credential::{self, CredentialOrigin, Keyring, Provider};
use serde_json::json;

pub(crate) fn image_names(bytes: &[u8]) {
    let Ok(name) = std::str::from_utf8(bytes) else { return };
    let parsed = image_name::parse(name).is_ok();
    if let Ok(full) = image_name::full_name(name) {
        assert!(parsed, "{name:?}");
        let again = image_name::full_name(&full);
        assert!(again.is_ok_and(|again| again == full), "{name:?}: {full:?} is not stable");
        let tagged = image_name::with_default_tag(name);
        assert!(tagged.is_ok_and(|tagged| image_name::parse(&tagged).is_ok()), "{name:?}");
    }
    if let Ok(repository) = image_name::repository(name) {
        let _ = Keyring::default().lookup(&repository);
    }
}

pub(crate) fn name_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "busybox",
        // The full name is almost as long as it may be.
        concat!(
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
            "0123456789012345678901234567890123456789",
        ),
        "docker.io/library/busybox:1.36",
        "localhost:5000/a/b-c_d.e__f:Tag.1-x",
        "r.io/i@sha256:0123456789012345678901234567890123456789012345678901234567890123",
        "[::1]:5000/i:1@sha256:0123456789012345678901234567890123456789012345678901234567890123",
    ])
}

pub(crate) fn docker_configs(bytes: &[u8]) {
    for old in [false, true] {
        match credential::from_config(bytes, old) {
            Ok(logins) => {
                let mut keyring = Keyring::default();
                keyring.add(logins, &CredentialOrigin::Node);
                let _ = keyring.lookup("index.docker.io/library/busybox");
                let _ = keyring.lookup("r.io:5000/a/b");
            }
            Err(error) => assert!(error.to_string().len() < 4096, "it repeats the content"),
        }
    }
}

pub(crate) fn docker_config_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        r#"{"auths":{"https://index.docker.io/v1/":{"auth":"dXNlcjpwYXNz"},"r.io:5000/a":
            {"username":"u","password":"p"},"*.r.io":{"auth":""},"x":null}}"#,
        r#"{"r.io":{"auth":"dXNlcjpwYXNz","email":"e"}}"#,
    ])
}

pub(crate) fn credential_plugins(bytes: &[u8]) {
    let document = json!({
        "kind": "CredentialProviderConfig",
        "apiVersion": "kubelet.config.k8s.io/v1",
        "providers": [{
            "name": "p",
            "matchImages": ["*.r.io", "r.io:5000/a"],
            "defaultCacheDuration": "12h",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        }],
    });
    let providers: Vec<Provider> = credential::providers(&[document])
        .unwrap_or_else(|error| panic!("the configuration of the target: {error}"));
    for provider in &providers {
        match provider.parse_response(bytes) {
            Ok(response) => {
                let _ = response.key.of("r.io:5000/a/b");
                let _ = provider.check_token(&response, "token");
                let mut keyring = Keyring::default();
                keyring.add(response.logins, &CredentialOrigin::Node);
                let _ = keyring.lookup("r.io:5000/a/b");
            }
            Err(error) => assert!(error.to_string().len() < 256, "it repeats the output"),
        }
    }
}

pub(crate) fn plugin_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[r#"{"kind":"CredentialProviderResponse",
        "apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"Registry",
        "cacheDuration":"6h","auth":{"*.r.io":{"username":"u","password":"p"},"[::1]:5000":{"username":"","password":""}}}"#])
}
