//! Golden test: `/configz` compared with a recording of upstream's.

use serde_json::{Map, Value, json};

use super::super::kubelet::KubeletConfiguration;
use super::*;

/// The recording, if it is available.
fn recorded() -> Option<Value> {
    let directory = podwright_testkit::report::recordings()?;
    let text = fs::read_to_string(directory.join("server/configz.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    Some(document["kubeletconfig"].clone())
}

#[test]
fn upstream_configz_round_trips() {
    let Some(recorded) = recorded() else { return };
    let read: KubeletConfiguration = serde_json::from_value(recorded.clone()).unwrap();
    assert_eq!(read.to_configz()["kubeletconfig"], recorded);
}

#[test]
fn configz_of_the_recorded_configuration_differs_only_as_listed() {
    let Some(recorded) = recorded() else { return };
    // Only the settings of the recorded node; the rest must be the defaults.
    let configured = [
        "clusterDNS",
        "clusterDomain",
        "containerRuntimeEndpoint",
        "evictionHard",
        "failSwapOn",
        "maxPods",
        "podLogsDir",
        "resolvConf",
        "staticPodPath",
        "tlsCertFile",
        "tlsPrivateKeyFile",
        "volumePluginDir",
        "authentication",
    ];
    // The recording has placeholders for absolute paths.
    let real = |value: &Value| {
        let text = value.to_string().replace("\"<", "\"/<").replace("unix://<", "unix:///<");
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let mut file = Map::from_iter([
        ("apiVersion".to_owned(), recorded["apiVersion"].clone()),
        ("kind".to_owned(), recorded["kind"].clone()),
    ]);
    for field in configured {
        file.insert(field.to_owned(), real(&recorded[field]));
    }
    let bench = Bench::new().raw_file("kubelet.json", &Value::Object(file).to_string());
    let settings = bench.settings("--kubeconfig=/k --config=kubelet.json");
    let mut shown = settings.configuration.to_configz()["kubeletconfig"].clone();

    // docs/differences.md: images are pulled in parallel, at most five at once.
    assert_eq!(shown["serializeImagePulls"], json!(false));
    assert_eq!(shown["maxParallelImagePulls"], json!(5));
    shown["serializeImagePulls"] = recorded["serializeImagePulls"].clone();
    shown.as_object_mut().unwrap().remove("maxParallelImagePulls");
    assert_eq!(shown, real(&recorded));
}
