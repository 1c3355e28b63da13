//! Who may speak to the node's server, and how it proves itself.

use std::collections::BTreeSet;

use super::super::field::FieldPath;
use super::super::kubelet::AuthorizationMode;
use super::super::names::{key_trouble, value_trouble};
use super::super::suggestion::did_you_mean;
use super::{ApiAccess, Examination};

/// The cipher suites our TLS library has.
const CIPHER_SUITES: [&str; 11] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

pub(super) fn examine(exam: &mut Examination<'_>) {
    webhooks(exam);
    openness(exam);
    certificate(exam);
    cipher_suites(exam);
    taints(exam);
}

fn webhooks(exam: &mut Examination<'_>) {
    if exam.api == ApiAccess::Available {
        return;
    }
    let c = exam.configuration;
    exam.require(
        !c.authentication.webhook.enabled,
        "authentication.webhook.enabled",
        "needs an API server to ask; give --kubeconfig or set it to false",
    );
    exam.require(
        c.authorization.mode != AuthorizationMode::Webhook,
        "authorization.mode",
        "needs an API server to ask; give --kubeconfig or set it to AlwaysAllow",
    );
}

/// Anonymous requests that are all allowed can run commands in every container.
fn openness(exam: &mut Examination<'_>) {
    let c = exam.configuration;
    let everyone = c.authentication.anonymous.enabled
        && c.authorization.mode == AuthorizationMode::AlwaysAllow;
    if c.enable_server && everyone && !c.address.is_loopback() {
        let field = FieldPath::of("authentication.anonymous.enabled");
        exam.warn(
            &field,
            format!(
                "with authorization.mode AlwaysAllow lets anyone who reaches {}:{} run commands in \
                 every container",
                c.address, c.port
            ),
        );
    }
}

fn certificate(exam: &mut Examination<'_>) {
    let c = exam.configuration;
    for (field, given, other, other_given) in [
        ("tlsCertFile", &c.tls_cert_file, "tlsPrivateKeyFile", &c.tls_private_key_file),
        ("tlsPrivateKeyFile", &c.tls_private_key_file, "tlsCertFile", &c.tls_cert_file),
    ] {
        exam.require(
            given.is_empty() || !other_given.is_empty(),
            field,
            format!("must be given together with {other}"),
        );
    }
    exam.require(
        !c.server_tls_bootstrap || exam.gates.enabled("RotateKubeletServerCertificate"),
        "serverTLSBootstrap",
        "needs the feature gate RotateKubeletServerCertificate",
    );
}

fn cipher_suites(exam: &mut Examination<'_>) {
    let suites = &exam.configuration.tls_cipher_suites;
    for (at, suite) in suites.iter().enumerate() {
        if !CIPHER_SUITES.contains(&suite.as_str()) {
            let near = did_you_mean(suite, CIPHER_SUITES);
            let field = FieldPath::of("tlsCipherSuites").index(at);
            exam.warn(
                &field,
                format!("is ignored: {suite:?} is not among our cipher suites{near}"),
            );
        }
    }
    exam.require(
        suites.is_empty() || suites.iter().any(|suite| CIPHER_SUITES.contains(&suite.as_str())),
        "tlsCipherSuites",
        format!("must name at least one of {}", CIPHER_SUITES.join(", ")),
    );
}

fn taints(exam: &mut Examination<'_>) {
    let list = FieldPath::of("registerWithTaints");
    let mut seen = BTreeSet::new();
    for (at, taint) in exam.configuration.register_with_taints.iter().enumerate() {
        let field = list.index(at);
        if let Some(trouble) = key_trouble(&taint.key) {
            exam.refuse(&field.key("key"), trouble);
        }
        if let Some(trouble) = value_trouble(&taint.value) {
            exam.refuse(&field.key("value"), trouble);
        }
        if taint.time_added.is_some() {
            exam.refuse(&field.key("timeAdded"), "must not be set");
        }
        if !seen.insert((&taint.key, taint.effect.as_str())) {
            exam.refuse(&field, "has the key and effect of a taint before it");
        }
    }
}
