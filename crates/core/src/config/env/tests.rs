use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::super::sample;
use super::*;
use crate::pod::Source;

/// One ConfigMap `cm`, one Secret `sec`, one file.
#[derive(Default)]
struct Sources {
    config_map: v1::ConfigMap,
    secret: v1::Secret,
    no_api: bool,
}

impl Sources {
    fn new() -> Self {
        let data = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<BTreeMap<_, _>>()
        };
        let secret = BTreeMap::from([
            ("PASSWORD".to_owned(), ByteString(b"s3cret".to_vec())),
            ("BYTES".to_owned(), ByteString(vec![0xff, 0xfe])),
        ]);
        Self {
            config_map: v1::ConfigMap {
                data: Some(data(&[("COLOR", "red"), ("not-a-name", "x")])),
                ..Default::default()
            },
            secret: v1::Secret { data: Some(secret), ..Default::default() },
            no_api: false,
        }
    }
}

impl EnvSources for Sources {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        match name {
            _ if self.no_api => Lookup::NoApiServer,
            "cm" => Lookup::Found(&self.config_map),
            "broken" => Lookup::Failed("the server is on fire".to_owned()),
            _ => Lookup::Missing,
        }
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        match name {
            _ if self.no_api => Lookup::NoApiServer,
            "sec" => Lookup::Found(&self.secret),
            _ => Lookup::Missing,
        }
    }

    fn file(&self, volume: &str, path: &str) -> EnvFile<'_> {
        match (volume, path) {
            ("files", "good") => EnvFile::Read { path: "/host/good", content: b"A='1'\nB=''\n" },
            ("files", "bad") => EnvFile::Read { path: "/host/bad", content: b"A=1" },
            ("files", _) => EnvFile::Unreadable,
            _ => EnvFile::NoVolume,
        }
    }
}

fn api() -> ServiceView {
    let object = json!({"metadata": {"namespace": "default", "name": "kubernetes"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}});
    ServiceView::of(&serde_json::from_value(object).unwrap()).unwrap()
}

fn build(pod: &Pod, services: Option<&[ServiceView]>) -> Result<Environment, ConfigError> {
    Environment::build(&EnvInputs {
        pod,
        container: pod.containers.first().unwrap(),
        pod_ips: &[sample::POD_IP],
        facts: &sample::facts(),
        services,
        sources: &Sources::new(),
        granted: &[("GRANTED".to_owned(), "gpu".to_owned()), ("A".to_owned(), "device".to_owned())],
    })
}

fn environment(container: Value) -> Result<Environment, ConfigError> {
    build(&sample::pod_of(container), Some(&[]))
}

/// The container's own variables as text.
fn variables(container: Value) -> Vec<(String, String)> {
    let environment = environment(container).unwrap();
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    environment.iter().skip(2).map(|(name, value)| (name.to_owned(), text(value))).collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn env_from_comes_first_and_later_values_win() {
    let key = |name: &str, key: &str| json!({"configMapKeyRef": {"name": name, "key": key}});
    for (case, container, want) in [
        ("nothing", json!({}), &[][..]),
        (
            "a prefix, and any key",
            json!({"envFrom": [{"configMapRef": {"name": "cm"}, "prefix": "P_"}]}),
            &[("P_COLOR", "red"), ("P_not-a-name", "x")],
        ),
        (
            "env over envFrom",
            json!({"envFrom": [{"configMapRef": {"name": "cm"}}],
                "env": [{"name": "COLOR", "value": "blue"}]}),
            &[("COLOR", "blue"), ("not-a-name", "x")],
        ),
        (
            "the later of two",
            json!({"env": [{"name": "X", "value": "1"}, {"name": "X", "value": "2$(X)"}]}),
            &[("X", "21")],
        ),
        (
            "a later envFrom over an earlier one",
            json!({"envFrom": [{"configMapRef": {"name": "cm"}}, {"secretRef": {"name": "sec"},
                "prefix": "CO"}], "env": [{"name": "COLOR", "valueFrom": key("cm", "COLOR")}]}),
            &[
                ("COBYTES", "\u{fffd}\u{fffd}"),
                ("COLOR", "red"),
                ("COPASSWORD", "s3cret"),
                ("not-a-name", "x"),
            ],
        ),
        (
            "a written value over valueFrom",
            json!({"env": [{"name": "X", "value": "mine", "valueFrom": key("nope", "x")}]}),
            &[("X", "mine")],
        ),
        (
            "an empty value gives way to valueFrom",
            json!({"env": [{"name": "X", "value": "", "valueFrom": key("cm", "COLOR")}]}),
            &[("X", "red")],
        ),
        ("an empty value", json!({"env": [{"name": "X"}]}), &[("X", "")]),
    ] {
        assert_eq!(variables(container), pairs(want), "{case}");
    }
}

#[test]
fn variable_can_refer_to_earlier_ones_and_services() {
    let pod = sample::pod_of(json!({"env": [
        {"name": "EARLY", "value": "$(LATE)"}, {"name": "LATE", "value": "l"},
        {"name": "BOTH", "value": "$(EARLY) $(LATE) $$(LATE) $(A)"},
        {"name": "API", "value": "$(KUBERNETES_SERVICE_HOST)"},
        {"name": "KUBERNETES_PORT", "value": "my own"}]}));
    let environment = build(&pod, Some(&[api()])).unwrap();
    for (name, want) in [
        ("EARLY", "$(LATE)"),
        ("BOTH", "$(LATE) l $(LATE) $(A)"),
        ("API", "10.96.0.1"),
        ("KUBERNETES_PORT", "my own"),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        ("GRANTED", "gpu"),
        ("A", "device"),
    ] {
        assert_eq!(environment.get(name), Some(want.as_bytes()), "{name}");
    }
}

#[test]
fn device_variables_come_first_and_can_be_overridden() {
    let environment = environment(json!({"env": [{"name": "A", "value": "own"}]})).unwrap();
    let all: Vec<_> = environment.iter().collect();
    let want: [(&str, &[u8]); 3] = [("GRANTED", b"gpu"), ("A", b"device"), ("A", b"own")];
    assert_eq!(all, want);
    assert_eq!(environment.get("A"), Some(&b"own"[..]));
}

#[test]
fn missing_optional_references_are_omitted() {
    for source in [
        json!({"configMapKeyRef": {"name": "nope", "key": "x", "optional": true}}),
        json!({"configMapKeyRef": {"name": "cm", "key": "x", "optional": true}}),
        json!({"secretKeyRef": {"name": "nope", "key": "x", "optional": true}}),
        json!({"secretKeyRef": {"name": "sec", "key": "x", "optional": true}}),
        json!({"fileKeyRef": {"volumeName": "files", "path": "good", "key": "Z", "optional": true}}),
    ] {
        let container = json!({"env": [{"name": "X", "valueFrom": source}],
            "envFrom": [{"secretRef": {"name": "nope", "optional": true}}]});
        assert_eq!(variables(container), []);
    }
}

#[test]
fn missing_references_have_upstreams_messages() {
    let from = |source: Value| json!({"env": [{"name": "X", "valueFrom": source}]});
    let file = |volume: &str, path: &str, key: &str| {
        from(
            json!({"fileKeyRef": {"volumeName": volume, "path": path, "key": key, "optional": false}}),
        )
    };
    for (container, want) in [
        (
            from(json!({"configMapKeyRef": {"name": "cm", "key": "zzz"}})),
            "couldn't find key zzz in ConfigMap default/cm",
        ),
        (
            from(json!({"secretKeyRef": {"name": "sec", "key": "zzz"}})),
            "couldn't find key zzz in Secret default/sec",
        ),
        (from(json!({"configMapKeyRef": {"name": "a", "key": "k"}})), "configmap \"a\" not found"),
        (from(json!({"secretKeyRef": {"name": "a", "key": "k"}})), "secret \"a\" not found"),
        (json!({"envFrom": [{"configMapRef": {"name": "a"}}]}), "configmap \"a\" not found"),
        (
            json!({"envFrom": [{"configMapRef": {"name": "broken", "optional": true}}]}),
            "the server is on fire",
        ),
        (
            from(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "spec"}})),
            "field label not supported: spec",
        ),
        (file("nope", "good", "A"), "cannot find the volume \"nope\" referenced by FileKeyRef"),
        (file("files", "bad", "A"), "couldn't parse env file"),
        (file("files", "none", "A"), "couldn't parse env file"),
        (
            file("files", "good", "B"),
            "environment variable key \"B\" not found in file \"/host/good\"",
        ),
    ] {
        assert_eq!(environment(container).unwrap_err().to_string(), want);
    }
}

#[test]
fn without_an_api_server_even_optional_objects_are_an_error() {
    let pod = sample::pod_of(json!({"envFrom": [{"secretRef": {"name": "s", "optional": true}}]}));
    let sources = Sources { no_api: true, ..Sources::default() };
    let got = Environment::build(&EnvInputs {
        pod: &pod,
        container: pod.containers.first().unwrap(),
        pod_ips: &[],
        facts: &sample::facts(),
        services: Some(&[]),
        sources: &sources,
        granted: &[],
    });
    assert_eq!(
        got.unwrap_err().to_string(),
        "couldn't get secret default/s, no kubeClient defined"
    );
}

#[test]
fn values_come_from_every_kind_of_source() {
    let container = json!({"resources": {"limits": {"cpu": "1500m"}}, "env": [
        {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "COLOR"}}},
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "FILE", "valueFrom": {"fileKeyRef": {"volumeName": "files", "path": "good", "key": "A"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
        {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "PASSWORD"}}}]});
    let want =
        pairs(&[("CM", "red"), ("CPU", "2"), ("FILE", "1"), ("IP", "10.1.0.2"), ("PW", "s3cret")]);
    assert_eq!(variables(container), want);
}

#[test]
fn variables_keep_arbitrary_bytes_and_text_refuses_them() {
    let container = json!({"env": [
        {"name": "RAW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "BYTES"}}},
        {"name": "COPY", "value": "<$(RAW)>"}]});
    let environment = environment(container).unwrap();
    assert_eq!(environment.get("COPY"), Some(&[b'<', 0xff, 0xfe, b'>'][..]));
    assert_eq!(
        environment.expand("$(RAW)", "args[0]"),
        Err(ConfigError::NotText { field: "args[0]".to_owned() })
    );
}

#[test]
fn debug_output_contains_no_values() {
    let container = json!({"env": [
        {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "PASSWORD"}}}]});
    let shown = format!("{:?}", environment(container).unwrap());
    assert!(shown.contains("PW") && !shown.contains("s3cret") && !shown.contains("gpu"), "{shown}");
}

#[test]
fn services_must_be_known_unless_the_pod_is_static() {
    let pod = |source, spec: Value| sample::parsed(json!({"name": "web"}), spec, source);
    assert_eq!(
        build(&pod(Source::Api, json!({})), None).unwrap_err().to_string(),
        "services have not yet been read at least once, cannot construct envvars"
    );
    for source in [Source::File, Source::Http] {
        assert!(build(&pod(source, json!({})), None).is_ok());
    }
    assert_eq!(
        build(&pod(Source::Api, json!({"enableServiceLinks": null})), Some(&[]))
            .unwrap_err()
            .to_string(),
        "nil pod.spec.enableServiceLinks encountered, cannot construct envvars"
    );
}

#[test]
fn needs_list_every_object_once_and_required_if_any_reference_is() {
    let map = |key: &str, optional: bool| json!({"configMapKeyRef": {"name": "cm", "key": key, "optional": optional}});
    let pod = sample::pod_of(json!({
        "envFrom": [{"secretRef": {"name": "s", "optional": true}}, {"configMapRef": {"name": "all"}}],
        "env": [
            {"name": "A", "valueFrom": map("a", true)}, {"name": "B", "valueFrom": map("b", false)},
            {"name": "C", "value": "written", "valueFrom": {"secretKeyRef": {"name": "unused", "key": "k"}}},
            {"name": "D", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
            {"name": "E", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "1"}}},
            {"name": "F", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "2"}}}]}));
    let object = |kind, name: &str, optional| EnvDependency::Object {
        kind,
        name: name.to_owned(),
        optional,
    };
    assert_eq!(
        needs(pod.containers.first().unwrap()),
        [
            object(ObjectKind::Secret, "s", true),
            object(ObjectKind::ConfigMap, "all", false),
            object(ObjectKind::ConfigMap, "cm", false),
            EnvDependency::File { volume: "v".to_owned(), path: "p".to_owned() },
        ]
    );
}

#[test]
fn exec_probes_expand_only_literal_env_values() {
    let pod = sample::pod_of(json!({"env": [
        {"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "B", "value": "$(A)"},
        {"name": "PW", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "PASSWORD"}}}]}));
    let command = ["$(A)", "$(B)", "[$(PW)]", "$(NO)", "$$(A)"].map(str::to_owned);
    let want = ["2", "$(A)", "[]", "$(NO)", "$(A)"];
    assert_eq!(probe_command(pod.containers.first().unwrap(), &command), want);
}
