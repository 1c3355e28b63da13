//! Certificate signing requests.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use podwright_core::certificate::{CLIENT_SIGNER, NODES_GROUP, client_usages, node_user};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};
use sha2::{Digest, Sha256};

use super::StoreError;

/// An administrator may have to approve the request.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot encode the certificate signing request")]
    Encode(#[source] rcgen::Error),
    #[error("cannot create the certificate signing request")]
    Create(#[source] Box<kube::Error>),
    #[error("cannot watch the certificate signing request {name}")]
    Watch { name: String, source: Box<kube::runtime::wait::Error> },
    #[error(
        "the certificate signing request {name} is not approved yet. \
         Fix: kubectl certificate approve {name}"
    )]
    NotApproved { name: String },
    #[error("the certificate signing request {name} was rejected: {why}")]
    Rejected { name: String, why: String },
}

/// Requests a client certificate of the node for `key` and waits for it.
///
/// The request is named after the key, so one that was sent before a restart is found again.
pub(super) async fn client_certificate(
    client: &kube::Client,
    node: &str,
    key: &KeyPair,
) -> Result<Vec<u8>, RequestError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let name = format!("node-csr-{}", digest(node, key));
    let usages = client_usages(minor_version(client).await);
    let request = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(encode(node, key)?),
            signer_name: CLIENT_SIGNER.to_owned(),
            usages: Some(usages.into_iter().map(str::to_owned).collect()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    match requests.create(&PostParams::default(), &request).await {
        Ok(_) => tracing::info!(name, "requested a client certificate"),
        // Created before a restart.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(RequestError::Create(Box::new(error))),
    }
    let settled = await_condition(requests, &name, is_settled);
    let settled = match tokio::time::timeout(APPROVAL_TIMEOUT, settled).await {
        Err(_) => return Err(RequestError::NotApproved { name }),
        Ok(Err(source)) => return Err(RequestError::Watch { name, source: Box::new(source) }),
        Ok(Ok(settled)) => settled,
    };
    let gone = || "it was deleted".to_owned();
    match settled.map(|request| outcome(&request)) {
        Some(Some(Ok(certificate))) => Ok(certificate),
        Some(Some(Err(why))) => Err(RequestError::Rejected { name, why }),
        Some(None) | None => Err(RequestError::Rejected { name, why: gone() }),
    }
}

/// 36 for v1.36; `None` if unknown.
async fn minor_version(client: &kube::Client) -> Option<u32> {
    let version = client.apiserver_version().await.ok()?;
    let digits: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Whether the request is approved, rejected or deleted.
#[allow(clippy::ref_option, reason = "the shape that the condition has")]
fn is_settled(request: Option<&CertificateSigningRequest>) -> bool {
    request.is_none_or(|request| outcome(request).is_some())
}

fn outcome(request: &CertificateSigningRequest) -> Option<Result<Vec<u8>, String>> {
    let status = request.status.as_ref()?;
    if let Some(ByteString(certificate)) = &status.certificate
        && !certificate.is_empty()
    {
        return Some(Ok(certificate.clone()));
    }
    let mut conditions = status.conditions.iter().flatten();
    let refusal = conditions.find(|condition| matches!(&*condition.type_, "Denied" | "Failed"))?;
    let why = [refusal.reason.as_deref(), refusal.message.as_deref()];
    let why: Vec<&str> = why.into_iter().flatten().filter(|text| !text.is_empty()).collect();
    Some(Err(format!("{}: {}", refusal.type_, why.join(": "))))
}

/// The signing request as PEM.
fn encode(node: &str, key: &KeyPair) -> Result<Vec<u8>, RequestError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, NODES_GROUP);
    subject.push(DnType::CommonName, node_user(node));
    params.distinguished_name = subject;
    let request = params.serialize_request(key).map_err(RequestError::Encode)?;
    Ok(request.pem().map_err(RequestError::Encode)?.into_bytes())
}

fn digest(node: &str, key: &KeyPair) -> String {
    let hash = Sha256::new().chain_update(key.der_bytes()).chain_update(node.as_bytes()).finalize();
    hash.iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use x509_parser::prelude::{FromDer, X509CertificationRequest};

    use super::*;

    #[test]
    fn request_names_the_node_and_its_group() {
        let key = KeyPair::generate().unwrap();
        let pem = encode("node-1", &key).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        assert_eq!(pem.label, "CERTIFICATE REQUEST");
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
        let subject = request.certification_request_info.subject.to_string();
        assert_eq!(subject, "O=system:nodes, CN=system:node:node-1");
    }

    #[test]
    fn same_key_and_node_give_the_same_name() {
        let (one, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let again = KeyPair::from_pem(&one.serialize_pem()).unwrap();
        assert_eq!(digest("n", &one), digest("n", &again));
        assert_ne!(digest("n", &one), digest("n", &other));
        assert_ne!(digest("n", &one), digest("m", &one));
    }
}
