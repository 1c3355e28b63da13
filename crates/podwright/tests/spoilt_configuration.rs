//! Property tests of corrupted configuration files: valid parts are read, invalid values are
//! reported.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use podwright::config::decode::decode;
use podwright::config::document::Document;
use podwright_testkit::mutation::{self, mutated_text};
use proptest::prelude::*;

fn files() -> Vec<&'static str> {
    vec![
        "apiVersion: kubelet.config.k8s.io/v1beta1\n\
         kind: KubeletConfiguration\n\
         staticPodPath: /etc/kubernetes/manifests\n\
         syncFrequency: 1m0s\n\
         authentication:\n  anonymous:\n    enabled: false\n  x509:\n    clientCAFile: /ca.crt\n\
         evictionHard:\n  memory.available: 100Mi\n\
         registerWithTaints:\n- key: a\n  value: b\n  effect: NoSchedule\n\
         systemReserved:\n  cpu: 100m\n\
         podsPerCore: 10\nmaxPods: 110\nfeatureGates:\n  NodeSwap: true\n",
        r#"{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",
            "clusterDNS":["10.0.0.10"],"cpuCFSQuotaPeriod":"100ms","imageGCHighThresholdPercent":85,
            "shutdownGracePeriod":"30s","logging":{"format":"json","verbosity":3}}"#,
    ]
}

proptest! {
    #![proptest_config(mutation::config())]

    #[test]
    fn valid_parts_of_a_corrupted_file_are_read(text in mutated_text(files())) {
        let Ok(document) = Document::parse(&text) else { return Ok(()) };
        let decoded = decode(&document.value);
        for invalid_value in &decoded.invalid_values {
            prop_assert!(!invalid_value.message.is_empty(), "{}", invalid_value.field);
        }
        // The decoded configuration round-trips without invalid values.
        let again = decode(&serde_json::to_value(&decoded.configuration).unwrap());
        prop_assert!(again.invalid_values.is_empty() && again.unknown.is_empty());
    }
}
