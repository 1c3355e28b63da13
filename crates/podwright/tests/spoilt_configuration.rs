//! Configuration files, spoilt: read as far as they can be, and every misfit is named.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use podwright::config::decode::decode;
use podwright::config::document::Document;
use podwright_testkit::mutation::{self, spoilt_text};
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
    fn a_spoilt_file_is_read_as_far_as_it_can_be(text in spoilt_text(files())) {
        let Ok(document) = Document::parse(&text) else { return Ok(()) };
        let decoded = decode(&document.value);
        for misfit in &decoded.misfits {
            prop_assert!(!misfit.trouble.is_empty(), "{}", misfit.field);
        }
        // What was read is whole: shown and read again it has nothing that does not fit.
        let again = decode(&serde_json::to_value(&decoded.configuration).unwrap());
        prop_assert!(again.misfits.is_empty() && again.unknown.is_empty());
    }
}
