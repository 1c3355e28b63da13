//! Validation of settings that exist only as flags.

use podwright_core::node_status::labels::{SELF_LABEL_NAMESPACES, SELF_LABELS, may_label_itself};

use super::super::names::{key_error, value_error};
use super::Validator;

pub(super) fn examine(validator: &mut Validator<'_>) {
    node_labels(validator);
    let options = validator.options;
    if options.bootstrap_kubeconfig.is_some() && options.kubeconfig.is_none() {
        validator.refuse_flag(
            "bootstrap-kubeconfig",
            "needs --kubeconfig, the file to write once a certificate is issued",
        );
    }
    if options.exit_on_lock_contention && options.lock_file.is_none() {
        validator.refuse_flag("exit-on-lock-contention", "needs --lock-file");
    }
    match (&options.image_credential_provider_config, &options.image_credential_provider_bin_dir) {
        (Some(_), None) => validator.refuse_flag(
            "image-credential-provider-config",
            "needs --image-credential-provider-bin-dir",
        ),
        (None, Some(_)) => validator.refuse_flag(
            "image-credential-provider-bin-dir",
            "needs --image-credential-provider-config",
        ),
        (Some(_), Some(_)) | (None, None) => {}
    }
}

fn node_labels(validator: &mut Validator<'_>) {
    const FLAG: &str = "node-labels";
    let options = validator.options;
    let kept: Vec<&str> = options
        .node_labels
        .keys()
        .map(String::as_str)
        .filter(|key| !may_label_itself(key))
        .collect();
    if !kept.is_empty() {
        validator.refuse_flag(
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
        if let Some(message) = key_error(key) {
            validator.refuse_flag(FLAG, format!("the label key {key:?} {message}"));
        }
        if let Some(message) = value_error(value) {
            validator.refuse_flag(FLAG, format!("the value {value:?} of {key} {message}"));
        }
    }
}
