//! Corrupted input: manifests from files and URLs, and lines of container logs.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use podwright_core::log::Line;
use podwright_core::pod::features::PodFeatures;
use podwright_core::pod::manifest::{self, Origin};
use podwright_core::pod::{Pod, Source};
use podwright_testkit::mutation::{self, mutated, mutated_text};
use proptest::prelude::*;

const ORIGIN: Origin<'static> = Origin {
    source: Source::File,
    location: "/etc/kubernetes/manifests/a.yaml",
    node: "node-1",
    features: PodFeatures::DEFAULT,
};

fn manifests() -> Vec<&'static str> {
    vec![
        include_str!("../../../examples/hello.yaml"),
        include_str!("../../../examples/hooks.yaml"),
        include_str!("../../../examples/init.yaml"),
        include_str!("../../../examples/resources.yaml"),
        include_str!("../../../examples/shared-volume.yaml"),
        include_str!("../../../examples/sidecar.yaml"),
        r#"{"apiVersion":"v1","kind":"PodList","items":[{"apiVersion":"v1","kind":"Pod",
            "metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}]}"#,
    ]
}

fn lines() -> Vec<&'static str> {
    vec![
        "2026-01-02T03:04:05.678901234Z stdout F a line\n",
        "2026-01-02T03:04:05.678901234+01:00 stderr P half a line",
        "{\"log\":\"a line\\n\",\"stream\":\"stdout\",\"time\":\"2026-01-02T03:04:05.6Z\"}\n",
    ]
}

proptest! {
    #![proptest_config(mutation::config())]

    #[test]
    fn corrupted_manifest_is_a_valid_pod_or_an_error_that_names_it(
        text in mutated_text(manifests())
    ) {
        match manifest::pod(&text, ORIGIN) {
            // An accepted pod has a name, a UID and a container.
            Ok(pod) => {
                let pod = Pod::parse(pod, Source::File);
                prop_assert!(pod.is_ok_and(|pod| !pod.uid.as_str().is_empty()));
            }
            Err(error) => prop_assert!(error.to_string().starts_with(ORIGIN.location), "{error}"),
        }
        let _ = manifest::pods(&text, ORIGIN);
    }

    #[test]
    fn corrupted_log_line_is_a_line_or_none(raw in mutated(lines())) {
        if let Some((_, line)) = Line::recognise(&raw) {
            prop_assert!(line.text.len() <= raw.len(), "text is not longer than the line");
            prop_assert!(!line.time_in_nanoseconds().is_empty());
        }
    }
}
