use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1;
use serde_json::json;

use super::*;

fn login(name: &str) -> Login {
    Login { username: name.into(), password: format!("{name}-password") }
}

#[test]
fn pattern_matches_a_registry_location() {
    for (pattern, image, want) in [
        ("registry.io", "registry.io/app", true),
        ("registry.io", "registry.io:5000/app", false),
        ("registry.io:5000", "registry.io:5000/app", true),
        ("registry.io/team", "registry.io/team/app", true),
        ("registry.io/team", "registry.io/teams/app", true),
        ("registry.io/team/", "registry.io/teams/app", false),
        ("*.registry.io", "eu.registry.io/app", true),
        ("*.registry.io", "registry.io/app", false),
        ("*.registry.io", "a.b.registry.io/app", false),
        ("*.*.registry.io", "a.b.registry.io/app", true),
        ("eu-?.registry.io", "eu-1.registry.io/app", true),
        ("eu-?.registry.io", "eu-12.registry.io/app", false),
        ("[a-c]u.registry.io", "bu.registry.io/app", true),
        ("[^a-c]u.registry.io", "bu.registry.io/app", false),
        ("[a", "a/app", false),
        (r"\*.io", "*.io/app", true),
        (r"\*.io", "x.io/app", false),
        ("a*b*c.io", "axxbyybzzc.io/app", true),
        ("a*b*c.io", "axxbyybzz.io/app", false),
        ("[fd00::1]:5000", "[fd00::1]:5000/app", true),
        ("", "registry.io/app", false),
    ] {
        assert_eq!(matches(pattern, image), want, "{pattern} {image}");
    }
}

#[test]
fn pattern_of_stars_matches_in_bounded_time() {
    let stars = "*a".repeat(2000);
    assert!(!matches(&stars, &"a".repeat(1500)));
}

#[test]
fn all_matching_locations_are_tried_longest_first() {
    let mut keyring = Keyring::default();
    let places = ["registry.io", "https://registry.io/team/app", "registry.io/team", "other.io"];
    for place in places {
        keyring.add(vec![(place.to_owned(), login(place))], &CredentialOrigin::Node);
    }
    let found = keyring.lookup("registry.io/team/app");
    let names: Vec<&str> = found.iter().map(|c| c.login.username.as_str()).collect();
    assert_eq!(names, ["https://registry.io/team/app", "registry.io/team", "registry.io"]);
    assert_eq!(keyring.lookup("unknown.io/app"), []);
}

#[test]
fn docker_hub_matches_under_all_its_names() {
    for (place, image, found) in [
        ("https://index.docker.io/v1/", "docker.io/library/busybox", true),
        ("https://index.docker.io/v1/", "docker.io/user/app", true),
        ("index.docker.io/v2/", "docker.io/user/app", true),
        ("docker.io", "docker.io/user/app", true),
        ("https://index.docker.io/v1/", "quay.io/user/app", false),
        ("https://index.docker.io/v1/", "localhost:5000/app", false),
    ] {
        let mut keyring = Keyring::default();
        keyring.add(vec![(place.to_owned(), login("me"))], &CredentialOrigin::Node);
        assert_eq!(!keyring.lookup(image).is_empty(), found, "{place} {image}");
    }
    let mut both = Keyring::default();
    both.add(vec![("index.docker.io".into(), login("hub"))], &CredentialOrigin::Node);
    both.add(vec![("docker.io/user".into(), login("user"))], &CredentialOrigin::Node);
    assert_eq!(both.lookup("docker.io/user/app").len(), 1, "the hub only if nothing else fits");
}

#[test]
fn logins_are_read_from_both_formats_and_auth_takes_precedence() {
    let new = json!({ "auths": {
        "a.io": { "username": "u", "password": "p", "email": "e" },
        "b.io": { "username": "no", "password": "no", "auth": "dTpwOnE=" },
        "c.io": { "auth": "dTpw" },
        "d.io": {},
    }, "credsStore": "desktop" });
    let logins = from_config(new.to_string().as_bytes(), false).unwrap();
    let read: Vec<(&str, &str, &str)> = logins
        .iter()
        .map(|(p, l)| (p.as_str(), l.username.as_str(), l.password.as_str()))
        .collect();
    assert_eq!(read, [("a.io", "u", "p"), ("b.io", "u", "p:q"), ("c.io", "u", "p")]);
    let old = from_config(br#"{"a.io":{"auth":"dTpw"}}"#, true).unwrap();
    assert_eq!(old[0].1.username, "u");
    assert_eq!(from_config(b"{}", false), Ok(vec![]));
}

#[test]
fn errors_show_the_position_but_no_content() {
    for bytes in [
        &br#"{"auths":{"a.io":{"password":"hunter2"#[..],
        br#"{"auths":{"a.io":{"auth":"aHVudGVyMg=="}}}"#,
        br#"{"auths":{"a.io":{"auth":"hunter2!"}}}"#,
        br#"{"auths":{"a.io":{"password":["hunter2"]}}}"#,
    ] {
        let error = from_config(bytes, false).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2") && !text.contains("aHVudGVyMg"), "{text}");
    }
    assert!(!format!("{:?}", login("me")).contains("password"));
}

#[test]
fn secret_of_another_type_has_no_logins() {
    let secret = |kind: &str, key: &str, data: &str| v1::Secret {
        type_: Some(kind.to_owned()),
        data: Some([(key.to_owned(), ByteString(data.as_bytes().to_vec()))].into()),
        ..Default::default()
    };
    let (new, old) = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg");
    let one = r#"{"a.io":{"auth":"dTpw"}}"#;
    let count = |secret: &v1::Secret| from_secret(secret).map(|logins| logins.len());
    assert_eq!(count(&secret(new, ".dockerconfigjson", &format!("{{\"auths\":{one}}}"))), Ok(1));
    assert_eq!(count(&secret(old, ".dockercfg", one)), Ok(1));
    assert_eq!(count(&secret(new, ".dockercfg", one)), Ok(0));
    assert_eq!(count(&secret("Opaque", ".dockercfg", one)), Ok(0));
    assert!(count(&secret(old, ".dockercfg", "{")).is_err());
}

fn config(provider: serde_json::Value) -> serde_json::Value {
    let providers = serde_json::Value::Array(vec![provider]);
    let config = json!({
        "kind": "CredentialProviderConfig",
        "apiVersion": "kubelet.config.k8s.io/v1",
    });
    with(config, "providers", providers)
}

fn plugin() -> serde_json::Value {
    json!({
        "name": "plugin",
        "matchImages": ["*.registry.io", "registry.io/team"],
        "defaultCacheDuration": "10m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "args": ["get"],
        "env": [{ "name": "REGION", "value": "eu" }],
    })
}

fn with(mut object: serde_json::Value, field: &str, value: serde_json::Value) -> serde_json::Value {
    object[field] = value;
    object
}

#[test]
fn plugin_serves_the_images_it_is_configured_for() {
    let providers = providers(&[config(plugin())]).unwrap();
    let provider = &providers[0];
    assert_eq!(
        (provider.name.as_str(), provider.args.as_slice()),
        ("plugin", &["get".to_owned()][..])
    );
    assert!(provider.serves("eu.registry.io/app") && provider.serves("registry.io/team/app"));
    assert!(!provider.serves("registry.io/app"));
    let asked: serde_json::Value =
        serde_json::from_slice(&request(provider, "eu.registry.io/app", None)).unwrap();
    assert_eq!(
        asked,
        json!({
            "kind": "CredentialProviderRequest",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "image": "eu.registry.io/app",
        })
    );
}

#[test]
fn invalid_configuration_is_refused_with_a_reason() {
    let token = |fields: serde_json::Value| with(plugin(), "tokenAttributes", fields);
    for (document, want) in [
        (json!({}), "not a CredentialProviderConfig"),
        (with(config(plugin()), "apiVersion", json!("v9")), "apiVersion \"v9\" is not supported"),
        (with(config(plugin()), "providers", json!([])), "no providers configured"),
        (with(config(plugin()), "providers", json!([plugin(), plugin()])), "named twice"),
        (config(with(plugin(), "name", json!("../sh"))), "a file name in the plugin directory"),
        (config(with(plugin(), "matchImages", json!([]))), "at least one image"),
        (config(with(plugin(), "defaultCacheDuration", json!("soon"))), "a duration such as"),
        (config(with(plugin(), "apiVersion", json!("v1"))), "credentialprovider.kubelet.k8s.io/v1"),
        (
            config(token(json!({ "serviceAccountTokenAudience": "a", "cacheType": "Token" }))),
            "requireServiceAccount must be set",
        ),
        (
            config(token(json!({
                "serviceAccountTokenAudience": "a", "requireServiceAccount": true,
                "cacheType": "Pod",
            }))),
            "cacheType must be",
        ),
    ] {
        let error = providers(&[document]).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn response_sets_cache_key_and_duration() {
    let provider = providers(&[config(plugin())]).unwrap().remove(0);
    let reply = |key: serde_json::Value, duration: serde_json::Value| {
        json!({
            "kind": "CredentialProviderResponse",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType": key, "cacheDuration": duration,
            "auth": { "*.registry.io": { "username": "u", "password": "hunter2" } },
        })
        .to_string()
    };
    for (duration, want) in [
        (json!(null), Duration::from_secs(600)),
        (json!("0s"), Duration::ZERO),
        (json!("1h30m0.5s"), Duration::from_millis(5_400_500)),
        (json!(1_000_000_000), Duration::from_secs(1)),
    ] {
        let answer =
            provider.parse_response(reply(json!("Registry"), duration).as_bytes()).unwrap();
        assert_eq!((answer.keep, answer.key, answer.logins.len()), (want, CacheKey::Registry, 1));
    }
    for (printed, want) in [
        ("{\"auth\": hunter2".to_owned(), "cannot parse"),
        ("{}".to_owned(), "cannot parse"),
        (reply(json!("Moon"), json!(null)), "cacheKeyType"),
        (reply(json!("Image"), json!("later")), "cacheDuration"),
        (
            reply(json!("Image"), json!(null)).replace("k8s.io/v1", "k8s.io/v2"),
            "not a CredentialProviderResponse",
        ),
    ] {
        let error = provider.parse_response(printed.as_bytes()).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(want) && !text.contains("hunter2"), "{text}");
    }
    let image = "eu.registry.io/team/app";
    let keys = [CacheKey::Image, CacheKey::Registry, CacheKey::Global].map(|key| key.of(image));
    assert_eq!(keys, [image, "eu.registry.io", ""]);
}

#[test]
fn plugin_receives_only_the_annotations_it_declares() {
    let attributes = with(
        plugin(),
        "tokenAttributes",
        json!({
            "serviceAccountTokenAudience": "registry", "cacheType": "ServiceAccount",
            "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": ["role"],
            "optionalServiceAccountAnnotationKeys": ["region"],
        }),
    );
    let provider = providers(&[config(attributes)]).unwrap().remove(0);
    let attributes = provider.token.clone().unwrap();
    let account = |keys: &[&str]| ServiceAccountView {
        annotations: keys.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect(),
    };
    assert_eq!(attributes.annotations(&account(&["region"])), Err("role".to_owned()));
    let shown = attributes.annotations(&account(&["role", "private"])).unwrap();
    assert_eq!(shown.keys().map(String::as_str).collect::<Vec<_>>(), ["role"]);
    let asked: serde_json::Value =
        serde_json::from_slice(&request(&provider, "i", Some(("jwt", &shown)))).unwrap();
    assert_eq!(asked["serviceAccountToken"], "jwt");
    assert_eq!(asked["serviceAccountAnnotations"], json!({ "role": "x" }));
}

#[test]
fn wrapped_base64_and_null_are_read_as_go_reads_them() {
    let login = |auth: &str| {
        let config = serde_json::json!({ "auths": { "r.io": { "auth": auth } } }).to_string();
        let logins = from_config(config.as_bytes(), false).unwrap();
        logins.into_iter().map(|(_, l)| (l.username, l.password)).collect::<Vec<_>>()
    };
    let want = [("user".to_owned(), "password".to_owned())];
    for auth in [
        "dXNlcjpwYXNzd29yZA==",
        "dXNlcjpw\nYXNzd29y\r\nZA==\n",
        "dXNlcjpw\nYXNzd29yZA",
        // Bits after the last byte are ignored.
        "dXNlcjpwYXNzd29yZB==",
    ] {
        assert_eq!(login(auth), want, "{auth:?}");
    }
    for (config, old) in [
        (r#"{"auths": null}"#, false),
        ("{}", false),
        ("null", false),
        (r#"{"auths": {"r.io": null}}"#, false),
        ("null", true),
        (r#"{"r.io": null}"#, true),
    ] {
        assert_eq!(from_config(config.as_bytes(), old), Ok(Vec::new()), "{config}");
    }
}
