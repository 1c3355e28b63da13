//! Settings that exist only as flags.

use podwright_core::node_status::labels::{SELF_LABEL_NAMESPACES, SELF_LABELS, may_label_itself};

use super::super::names::{key_trouble, value_trouble};
use super::Examination;

pub(super) fn examine(exam: &mut Examination<'_>) {
    node_labels(exam);
    let options = exam.options;
    if options.bootstrap_kubeconfig.is_some() && options.kubeconfig.is_none() {
        exam.refuse_flag(
            "bootstrap-kubeconfig",
            "needs --kubeconfig, the file to write once a certificate is issued",
        );
    }
    if options.exit_on_lock_contention && options.lock_file.is_none() {
        exam.refuse_flag("exit-on-lock-contention", "needs --lock-file");
    }
    match (&options.image_credential_provider_config, &options.image_credential_provider_bin_dir) {
        (Some(_), None) => exam.refuse_flag(
            "image-credential-provider-config",
            "needs --image-credential-provider-bin-dir",
        ),
        (None, Some(_)) => exam.refuse_flag(
            "image-credential-provider-bin-dir",
            "needs --image-credential-provider-config",
        ),
        (Some(_), Some(_)) | (None, None) => {}
    }
}

fn node_labels(exam: &mut Examination<'_>) {
    const FLAG: &str = "node-labels";
    let options = exam.options;
    let kept: Vec<&str> = options
        .node_labels
        .keys()
        .map(String::as_str)
        .filter(|key| !may_label_itself(key))
        .collect();
    if !kept.is_empty() {
        exam.refuse_flag(
            FLAG,
            format!(
                "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: {}; of \
                 these a node may only set {}, and any in {}",
                kept.join(", "),
                SELF_LABELS.join(", "),
                SELF_LABEL_NAMESPACES.join(", "),
            ),
        );
    }
    for (key, value) in &options.node_labels {
        if let Some(trouble) = key_trouble(key) {
            exam.refuse_flag(FLAG, format!("the label key {key:?} {trouble}"));
        }
        if let Some(trouble) = value_trouble(value) {
            exam.refuse_flag(FLAG, format!("the value {value:?} of {key} {trouble}"));
        }
    }
}
