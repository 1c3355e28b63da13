//! Manifests, pods from the API, and configuration files.

use k8s_openapi::api::core::v1;
use podwright::config::decode::decode;
use podwright::config::document::Document;
use podwright_api::{defaults, schema};
use podwright_apiserver::{registry, validation};
use podwright_core::credential;
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::manifest::{self, Origin};
use podwright_core::pod::{Pod, Source};
use serde_json::Value;

const LOCATION: &str = "/etc/kubernetes/manifests/a.yaml";
const ORIGIN: Origin<'static> = Origin {
    source: Source::File,
    location: LOCATION,
    node: "node-1",
    features: PodFeatures::DEFAULT,
};

/// A manifest file or the response of a manifest URL.
pub(crate) fn manifests(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match manifest::pod(&text, ORIGIN) {
        Ok(pod) => accepted(&pod),
        Err(error) => assert!(error.to_string().starts_with(LOCATION), "{error}"),
    }
    if let Ok(pods) = manifest::pods(&text, ORIGIN) {
        pods.iter().flatten().for_each(accepted);
    }
}

fn accepted(pod: &v1::Pod) {
    let parsed = Pod::parse(pod.clone(), Source::File);
    let parsed =
        parsed.unwrap_or_else(|error| panic!("accepted, but cannot run: {error}: {pod:?}"));
    assert!(!parsed.uid.as_str().is_empty(), "{pod:?}");
}

/// A pod as an API server sends it.
pub(crate) fn pods(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<Value>(bytes) else { return };
    let errors = validation::create(&registry::PODS, &object);
    let Some(shape) = schema::find("Pod") else { panic!("Pod has no schema") };
    let Ok(mut decoded) = schema::decode(shape, &object) else { return };
    // Every caller has checked the type before, or sets it.
    for (field, text) in [("apiVersion", "v1"), ("kind", "Pod")] {
        if let Value::Object(fields) = &mut decoded.value {
            fields.insert(field.to_owned(), text.into());
        }
    }
    let pod = serde_json::from_value::<v1::Pod>(decoded.value.clone());
    let mut pod = pod.unwrap_or_else(|error| panic!("decoded without its type: {error}"));
    let again = schema::decode(shape, &decoded.value).map(|again| again.value);
    assert_eq!(again.ok().as_ref(), Some(&decoded.value), "decoding changes a decoded object");
    defaults::apply(&mut pod);
    let _ = podwright_api::validation::create(&pod);
    let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
    let parsed = Pod::parse(pod, Source::Api);
    // Errors may name a field that has a default.
    if errors.is_empty() && namespace.is_some() && parsed.is_ok() {
        let _ = validation::update(&registry::PODS, None, &object, &object);
    }
}

/// A `--config` file, its drop-ins, and the file of credential plugins.
pub(crate) fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(document) = Document::parse(&text) else { return };
    let decoded = decode(&document.value);
    for invalid in &decoded.invalid_values {
        assert!(!invalid.message.is_empty(), "{}", invalid.field);
    }
    let value = serde_json::to_value(&decoded.configuration);
    let again = decode(&value.unwrap_or_else(|error| panic!("cannot be written: {error}")));
    assert!(again.invalid_values.is_empty() && again.unknown.is_empty(), "it does not round-trip");
    let _ = credential::providers(&[document.value]);
}

pub(crate) fn manifest_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        include_str!("../../../examples/hello.yaml"),
        include_str!("../../../examples/hooks.yaml"),
        include_str!("../../../examples/init.yaml"),
        include_str!("../../../examples/resources.yaml"),
        include_str!("../../../examples/shared-volume.yaml"),
        include_str!("../../../examples/sidecar.yaml"),
        "a: &a {b: [1, 0x10, 1e3, ~, !!str 7]}\nc: *a\nd: |\n  text\n",
        r#"{"apiVersion":"v1","kind":"PodList","items":[{"apiVersion":"v1","kind":"Pod",
            "metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}"#,
    ])
}

pub(crate) fn pod_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        r#"{"apiVersion":"v0","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[]}}"#,
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"default","uid":"u"},
            "spec":{"containers":[{"name":"c","image":"i"}]}}"#,
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":"u",
            "labels":{"a":"b"},"annotations":{"kubernetes.io/config.source":"api"},
            "deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":30},
            "spec":{"restartPolicy":"OnFailure","terminationGracePeriodSeconds":5,"hostNetwork":true,
            "nodeSelector":{"a":"b"},"tolerations":[{"key":"k","operator":"Exists","effect":"NoExecute",
            "tolerationSeconds":3}],"initContainers":[{"name":"i","image":"i","restartPolicy":"Always"}],
            "containers":[{"name":"c","image":"r.io/i:1@sha256:0123456789012345678901234567890123456789012345678901234567890123",
            "command":["a","$(B)"],"env":[{"name":"B","valueFrom":{"fieldRef":{"fieldPath":"metadata.labels['a']"}}}],
            "envFrom":[{"prefix":"P","configMapRef":{"name":"m","optional":true}}],
            "ports":[{"containerPort":80,"hostPort":8080,"protocol":"TCP","name":"web"}],
            "resources":{"limits":{"cpu":"100m","memory":"1Gi","hugepages-2Mi":"4Mi"},"requests":{"cpu":"0.1"}},
            "resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"}],
            "livenessProbe":{"httpGet":{"path":"/","port":"web","httpHeaders":[{"name":"A","value":"b"}]},"periodSeconds":1},
            "startupProbe":{"exec":{"command":["true"]},"failureThreshold":30},
            "readinessProbe":{"grpc":{"port":9,"service":"s"}},
            "lifecycle":{"preStop":{"sleep":{"seconds":1}},"postStart":{"tcpSocket":{"port":1}}},
            "securityContext":{"runAsUser":1000,"capabilities":{"add":["NET_ADMIN"],"drop":["ALL"]},
            "seccompProfile":{"type":"Localhost","localhostProfile":"p.json"},"procMount":"Default"},
            "volumeMounts":[{"name":"v","mountPath":"/v","subPathExpr":"$(B)","recursiveReadOnly":"Disabled","readOnly":true}]}],
            "volumes":[{"name":"v","emptyDir":{"medium":"Memory","sizeLimit":"1Mi"}},
            {"name":"h","hostPath":{"path":"/x","type":"Directory"}},
            {"name":"p","projected":{"defaultMode":420,"sources":[{"serviceAccountToken":{"path":"t","expirationSeconds":600}},
            {"downwardAPI":{"items":[{"path":"l","fieldRef":{"fieldPath":"metadata.labels"}}]}}]}},
            {"name":"s","secret":{"secretName":"s","items":[{"key":"k","path":"a/b","mode":256}]}},
            {"name":"c","persistentVolumeClaim":{"claimName":"c"}}],
            "securityContext":{"fsGroup":2000,"sysctls":[{"name":"net.ipv4.tcp_syncookies","value":"1"}]},
            "topologySpreadConstraints":[{"maxSkew":1,"topologyKey":"k","whenUnsatisfiable":"DoNotSchedule"}],
            "hostAliases":[{"ip":"10.0.0.1","hostnames":["a"]}],"dnsPolicy":"None","dnsConfig":{"nameservers":["1.1.1.1"]}},
            "status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],
            "containerStatuses":[{"name":"c","image":"i","imageID":"","ready":true,"restartCount":1,
            "state":{"running":{"startedAt":"2026-01-02T03:04:05Z"}}}]}}"#,
    ])
}

pub(crate) fn configuration_seeds() -> Vec<Vec<u8>> {
    crate::seeds(&[
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         staticPodPath: /etc/kubernetes/manifests\nsyncFrequency: 1m0s\n\
         authentication:\n  anonymous:\n    enabled: false\n  x509:\n    clientCAFile: /ca.crt\n\
         evictionHard:\n  memory.available: 100Mi\nregisterWithTaints:\n- key: a\n  value: b\n  effect: NoSchedule\n\
         systemReserved:\n  cpu: 100m\npodsPerCore: 10\nmaxPods: 110\nfeatureGates:\n  NodeSwap: true\n\
         containerLogMaxSize: 10Mi\nmemorySwap:\n  swapBehavior: LimitedSwap\ntlsMinVersion: VersionTLS12\n",
        r#"{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",
            "clusterDNS":["10.0.0.10"],"cpuCFSQuotaPeriod":"100ms","imageGCHighThresholdPercent":85,
            "shutdownGracePeriod":"30s","logging":{"format":"json","verbosity":3},
            "staticPodURLHeader":{"A":["b"]},"crashLoopBackOff":{"maxContainerRestartPeriod":"30s"},
            "userNamespaces":{"idsPerPod":65536}}"#,
        "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: p\n\
         \x20 matchImages: [\"*.r.io\", \"r.io:5000/a\"]\n  defaultCacheDuration: 12h\n\
         \x20 apiVersion: credentialprovider.kubelet.k8s.io/v1\n  args: [a]\n  env:\n  - name: N\n    value: v\n\
         \x20 tokenAttributes:\n    serviceAccountTokenAudience: a\n    requireServiceAccount: true\n    cacheType: Token\n",
    ])
}
