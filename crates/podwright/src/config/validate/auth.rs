//! Validation of authentication, authorization, TLS and taints.

use std::collections::BTreeSet;

use super::super::field::FieldPath;
use super::super::kubelet::AuthorizationMode;
use super::super::names::{key_error, value_error};
use super::super::suggestion::did_you_mean;
use super::{ApiAccess, Validator};

/// Supported cipher suites of the TLS library.
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

pub(super) fn examine(validator: &mut Validator<'_>) {
    webhooks(validator);
    anonymous_access(validator);
    certificate(validator);
    cipher_suites(validator);
    taints(validator);
}

fn webhooks(validator: &mut Validator<'_>) {
    if validator.api == ApiAccess::Available {
        return;
    }
    let c = validator.configuration;
    validator.require(
        !c.authentication.webhook.enabled,
        "authentication.webhook.enabled",
        "needs an API server; give --kubeconfig or set it to false",
    );
    validator.require(
        c.authorization.mode != AuthorizationMode::Webhook,
        "authorization.mode",
        "needs an API server; give --kubeconfig or set it to AlwaysAllow",
    );
}

/// Warns if anonymous requests are allowed to run commands in every container.
fn anonymous_access(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    let everyone = c.authentication.anonymous.enabled
        && c.authorization.mode == AuthorizationMode::AlwaysAllow;
    if c.enable_server && everyone && !c.address.is_loopback() {
        let field = FieldPath::of("authentication.anonymous.enabled");
        validator.warn(
            &field,
            format!(
                "with authorization.mode AlwaysAllow allows every client that reaches {}:{} to run commands in \
                 every container",
                c.address, c.port
            ),
        );
    }
}

fn certificate(validator: &mut Validator<'_>) {
    let c = validator.configuration;
    for (field, given, other, other_given) in [
        ("tlsCertFile", &c.tls_cert_file, "tlsPrivateKeyFile", &c.tls_private_key_file),
        ("tlsPrivateKeyFile", &c.tls_private_key_file, "tlsCertFile", &c.tls_cert_file),
    ] {
        validator.require(
            given.is_empty() || !other_given.is_empty(),
            field,
            format!("must be given together with {other}"),
        );
    }
    validator.require(
        !c.server_tls_bootstrap || validator.gates.enabled("RotateKubeletServerCertificate"),
        "serverTLSBootstrap",
        "needs the feature gate RotateKubeletServerCertificate",
    );
    // Without effect, the API server would meet a self-signed certificate instead of one of its CA.
    validator.require(
        !c.server_tls_bootstrap
            || !validator.gates.enabled("RotateKubeletServerCertificate")
            || !c.tls_cert_file.is_empty(),
        "serverTLSBootstrap",
        "is not supported yet, no serving certificate is requested; give tlsCertFile and \
         tlsPrivateKeyFile, or set it to false for a self-signed certificate",
    );
}

fn cipher_suites(validator: &mut Validator<'_>) {
    let suites = &validator.configuration.tls_cipher_suites;
    for (at, suite) in suites.iter().enumerate() {
        if !CIPHER_SUITES.contains(&suite.as_str()) {
            let near = did_you_mean(suite, CIPHER_SUITES);
            let field = FieldPath::of("tlsCipherSuites").index(at);
            validator.warn(
                &field,
                format!("is ignored: {suite:?} is not a supported cipher suite{near}"),
            );
        }
    }
    validator.require(
        suites.is_empty() || suites.iter().any(|suite| CIPHER_SUITES.contains(&suite.as_str())),
        "tlsCipherSuites",
        format!("must name at least one of {}", CIPHER_SUITES.join(", ")),
    );
}

fn taints(validator: &mut Validator<'_>) {
    let list = FieldPath::of("registerWithTaints");
    let mut seen = BTreeSet::new();
    for (at, taint) in validator.configuration.register_with_taints.iter().enumerate() {
        let field = list.index(at);
        if let Some(message) = key_error(&taint.key) {
            validator.refuse(&field.key("key"), message);
        }
        if let Some(message) = value_error(&taint.value) {
            validator.refuse(&field.key("value"), message);
        }
        if taint.time_added.is_some() {
            validator.refuse(&field.key("timeAdded"), "must not be set");
        }
        if !seen.insert((&taint.key, taint.effect.as_str())) {
            validator.refuse(&field, "has the key and effect of a taint before it");
        }
    }
}
