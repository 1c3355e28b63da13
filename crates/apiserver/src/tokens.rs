//! Service account tokens: issues them to pods through their node, and verifies them.
//!
//! A token is a JSON Web Token signed with a key that never leaves this server, so HMAC is enough.
//! It is bound to its account and, if requested, to one pod or node: once that object is gone or
//! replaced, the token is invalid, even before it expires.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::{AUTHENTICATED, CREDENTIAL, Identity};
use crate::clock::rfc3339;
use crate::object::Object;
use crate::options::Freshness;
use crate::registry::{NODES, PODS, Resource, SECRETS, SERVICE_ACCOUNTS};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::{ApiError, FieldError};
use crate::store::Key;

/// Issuer, and default audience.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
/// How long tokens of an object are valid after it was to be gone: its processes may be ending.
const DELETION_LEEWAY: SignedDuration = SignedDuration::from_secs(60);
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";
const HEADER: &str = r#"{"alg":"HS256","typ":"JWT"}"#;

/// The key that tokens are signed with.
#[derive(Clone)]
pub struct TokenKey(hmac::Key);

impl TokenKey {
    /// From 32 secret random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// A new secret for [`TokenKey::new`]; `None` if the kernel provides no randomness.
    pub fn secret() -> Option<[u8; 32]> {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).ok()?;
        Some(secret)
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey(…)")
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Claims {
    #[serde(rename = "aud")]
    aud: Vec<String>,
    #[serde(rename = "exp")]
    exp: i64,
    #[serde(rename = "iat")]
    iat: i64,
    #[serde(rename = "nbf")]
    nbf: i64,
    #[serde(rename = "iss")]
    iss: String,
    #[serde(rename = "jti")]
    jti: String,
    #[serde(rename = "sub")]
    sub: String,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Bound,
}

/// The objects to which the token is bound.
#[derive(Debug, Serialize, Deserialize)]
struct Bound {
    #[serde(rename = "namespace")]
    namespace: String,
    #[serde(rename = "serviceaccount")]
    serviceaccount: Reference,
    #[serde(rename = "pod", skip_serializing_if = "Option::is_none")]
    pod: Option<Reference>,
    #[serde(rename = "node", skip_serializing_if = "Option::is_none")]
    node: Option<Reference>,
    #[serde(rename = "secret", skip_serializing_if = "Option::is_none")]
    secret: Option<Reference>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Reference {
    #[serde(rename = "name")]
    name: String,
    #[serde(rename = "uid")]
    uid: String,
}

impl Reference {
    fn to(object: &Object) -> Self {
        Self { name: object.name().to_owned(), uid: object.uid().to_owned() }
    }
}

/// A valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedToken {
    pub identity: Identity,
    /// The requested audiences that the token has; never empty.
    pub audiences: Vec<String>,
}

/// Why a token is invalid, in kube-apiserver's wording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not issued by this server.
    #[error("invalid bearer token")]
    Unknown,
    #[error(
        "[invalid bearer token, token audiences {given} is invalid for the target audiences {wanted}]"
    )]
    Audience { given: String, wanted: String },
    #[error("[invalid bearer token, service account token has expired]")]
    Expired,
    #[error("[invalid bearer token, service account token is not valid yet]")]
    Early,
    /// An object that it was bound to is gone.
    #[error("[invalid bearer token, service account token has been invalidated]")]
    Void,
}

impl ApiServer {
    /// `POST serviceaccounts/{name}/token`
    pub(crate) fn issue_token(
        &self,
        info: &RequestInfo,
        mut request: Object,
    ) -> Result<Object, ApiError> {
        let seconds = seconds(&request)?;
        let document = self.get(info, Freshness::Newest)?;
        let account = document.object(&SERVICE_ACCOUNTS)?;
        let Some(key) = &self.settings().token_key else {
            return Err(ApiError::unavailable("this server has no key to sign tokens with"));
        };
        let bound = self.bind_token(&account, &request)?;
        let now = self.now();
        let audiences = audiences(&request);
        let expires = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
        let claims = Claims {
            aud: audiences.clone(),
            exp: expires.as_second(),
            iat: now.as_second(),
            nbf: now.as_second(),
            iss: ISSUER.to_owned(),
            jti: self.ids().uid(),
            sub: format!("system:serviceaccount:{}:{}", account.namespace(), account.name()),
            kubernetes: bound,
        };
        let token = sign(key, &claims)?;
        let reference = request.value().pointer("/spec/boundObjectRef").cloned();
        request.put(&["kind"], Some("TokenRequest".into()));
        request.put(&["apiVersion"], Some("authentication.k8s.io/v1".into()));
        request.set_meta("name", Some(account.name().into()));
        request.set_meta("namespace", Some(account.namespace().into()));
        request.set_meta("uid", Some(account.uid().into()));
        request.set_meta("creationTimestamp", Some(rfc3339(now).into()));
        let spec = json!({
            "audiences": audiences,
            "expirationSeconds": seconds,
            "boundObjectRef": reference,
        });
        request.put(&["spec"], Some(spec));
        let status = json!({"token": token, "expirationTimestamp": rfc3339(expires)});
        request.put(&["status"], Some(status));
        Ok(request)
    }

    fn bind_token(&self, account: &Object, request: &Object) -> Result<Bound, ApiError> {
        let mut bound = Bound {
            namespace: account.namespace().to_owned(),
            serviceaccount: Reference::to(account),
            pod: None,
            node: None,
            secret: None,
        };
        let name = request.text("/spec/boundObjectRef/name");
        let uid = request.text("/spec/boundObjectRef/uid");
        match request.text("/spec/boundObjectRef/kind") {
            "" => {}
            "Pod" => {
                let pod = self.bound_object(&PODS, account.namespace(), name, uid)?;
                if pod.text("/spec/serviceAccountName") != account.name() {
                    return Err(ApiError::bad_request(format!(
                        "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
                        account.name()
                    )));
                }
                let node = Key::new(&NODES, "", pod.text("/spec/nodeName"));
                bound.node = self.read(&NODES, &node)?.as_ref().map(Reference::to);
                bound.pod = Some(Reference::to(&pod));
            }
            "Node" => {
                let node = self.bound_object(&NODES, "", name, uid)?;
                bound.node = Some(Reference::to(&node));
            }
            "Secret" => {
                let secret = self.bound_object(&SECRETS, account.namespace(), name, uid)?;
                bound.secret = Some(Reference::to(&secret));
            }
            other => {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token to object of type {other}"
                )));
            }
        }
        Ok(bound)
    }

    fn bound_object(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Object, ApiError> {
        let found = self.read(resource, &Key::new(resource, namespace, name))?;
        let object = found.ok_or_else(|| ApiError::not_found(resource, name))?;
        if !uid.is_empty() && uid != object.uid() {
            return Err(ApiError::conflict(
                resource.plural,
                resource.group,
                name,
                &format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. The object might \
                     have been deleted and then recreated"
                ),
            ));
        }
        Ok(object)
    }

    /// Verifies a token: its identity, and which of the requested audiences it has. No requested
    /// audiences means this server.
    pub fn verify_token(
        &self,
        token: &str,
        audiences: &[&str],
    ) -> Result<VerifiedToken, TokenError> {
        let key = self.settings().token_key.as_ref().ok_or(TokenError::Unknown)?;
        let claims = verify(key, token).filter(|claims| claims.iss == ISSUER);
        let claims = claims.ok_or(TokenError::Unknown)?;
        let wanted = if audiences.is_empty() { &[ISSUER] } else { audiences };
        let (shared, others): (Vec<String>, Vec<String>) =
            claims.aud.into_iter().partition(|audience| wanted.contains(&audience.as_str()));
        if shared.is_empty() {
            let wanted = quoted(wanted.iter().copied());
            return Err(TokenError::Audience {
                given: quoted(others.iter().map(String::as_str)),
                wanted,
            });
        }
        let now = self.now().as_second();
        if now >= claims.exp {
            return Err(TokenError::Expired);
        }
        if now < claims.nbf {
            return Err(TokenError::Early);
        }
        self.check_bound(&claims.kubernetes)?;
        let Bound { namespace, serviceaccount, pod, node, .. } = claims.kubernetes;
        let mut extra = BTreeMap::from([(CREDENTIAL, vec![format!("JTI={}", claims.jti)])]);
        let mut add = |field, value| extra.insert(field, vec![value]);
        if let Some(Reference { name, uid }) = pod {
            add(POD_NAME, name);
            add(POD_UID, uid);
        }
        if let Some(Reference { name, uid }) = node {
            add(NODE_NAME, name);
            add(NODE_UID, uid);
        }
        let identity = Identity {
            user: claims.sub,
            uid: serviceaccount.uid,
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
            extra,
        };
        Ok(VerifiedToken { identity, audiences: shared })
    }

    /// Identity of a token; `None` if it is invalid.
    pub fn identify(&self, token: &str, audiences: &[&str]) -> Option<Identity> {
        self.verify_token(token, audiences).ok().map(|verified| verified.identity)
    }

    /// Whether the objects that the token is bound to still exist.
    fn check_bound(&self, bound: &Bound) -> Result<(), TokenError> {
        let exists = |resource: &'static Resource, namespace: &str, reference: &Reference| {
            let key = Key::new(resource, namespace, &reference.name);
            let found = self.read(resource, &key).ok().flatten();
            found.is_some_and(|object| {
                let gone = object.deletion_timestamp();
                // A finalizer keeps the object, but not its tokens.
                let overdue =
                    gone.is_some_and(|at| self.now().duration_since(at) > DELETION_LEEWAY);
                object.uid() == reference.uid && !overdue
            })
        };
        let Bound { namespace, serviceaccount, pod, node, secret } = bound;
        // The node in a pod's token is informational: a node that registers again keeps its pods.
        let node = node.as_ref().filter(|_| pod.is_none());
        let valid = exists(&SERVICE_ACCOUNTS, namespace, serviceaccount)
            && pod.as_ref().is_none_or(|pod| exists(&PODS, namespace, pod))
            && node.is_none_or(|node| exists(&NODES, "", node))
            && secret.as_ref().is_none_or(|secret| exists(&SECRETS, namespace, secret));
        if valid { Ok(()) } else { Err(TokenError::Void) }
    }
}

/// A list of strings as Go prints it.
fn quoted<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    let texts: Vec<String> = texts.map(|text| format!("{text:?}")).collect();
    format!("[{}]", texts.join(" "))
}

fn seconds(request: &Object) -> Result<i64, ApiError> {
    let requested = request.value().pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    let seconds = requested.unwrap_or(DEFAULT_SECONDS);
    let why = if seconds < MIN_SECONDS {
        "may not specify a duration less than 10 minutes"
    } else if seconds > MAX_SECONDS {
        "may not specify a duration larger than 2^32 seconds"
    } else {
        return Ok(seconds);
    };
    let error = FieldError {
        reason: "FieldValueInvalid",
        field: "spec.expirationSeconds".to_owned(),
        message: format!("Invalid value: {seconds}: {why}"),
    };
    Err(ApiError::invalid("TokenRequest", "authentication.k8s.io", "", &[error]))
}

fn audiences(request: &Object) -> Vec<String> {
    let given = request.value().pointer("/spec/audiences").and_then(Value::as_array);
    let given: Vec<String> =
        given.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if given.is_empty() { vec![ISSUER.to_owned()] } else { given }
}

fn sign(key: &TokenKey, claims: &Claims) -> Result<String, ApiError> {
    let claims = serde_json::to_vec(claims)
        .map_err(|error| ApiError::internal(format!("cannot write a token: {error}")))?;
    let mut token = BASE64_URL_SAFE_NO_PAD.encode(HEADER);
    token.push('.');
    token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(claims));
    let signature = hmac::sign(&key.0, token.as_bytes());
    token.push('.');
    token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(signature));
    Ok(token)
}

/// The claims, if the signature is valid. The algorithm in the header is not used.
fn verify(key: &TokenKey, token: &str) -> Option<Claims> {
    let (signed, signature) = token.rsplit_once('.')?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    hmac::verify(&key.0, signed.as_bytes(), &signature).ok()?;
    let (_, claims) = signed.split_once('.')?;
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Tokens are in pods' volumes across an upgrade.
    #[test]
    fn claims_keep_their_serialized_form() {
        let text = concat!(
            r#"{"aud":["a"],"exp":4,"iat":1,"nbf":2,"iss":"i","jti":"j","sub":"s","#,
            r#""kubernetes.io":{"namespace":"n","serviceaccount":{"name":"r","uid":"1"},"#,
            r#""pod":{"name":"p","uid":"2"},"node":{"name":"m","uid":"3"},"#,
            r#""secret":{"name":"t","uid":"4"}}}"#,
        );
        let claims: Claims = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&claims).unwrap(), text);
        let key = TokenKey::new(&[7; 32]);
        let again = verify(&key, &sign(&key, &claims).unwrap()).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
    }
}
