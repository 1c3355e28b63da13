//! Authentication and authorization of requests to the kubelet server.
//!
//! The authenticated port runs commands as root and shows what pods do, so no request is handled
//! before both checks pass. An invalid credential is rejected even if anonymous requests are
//! allowed.

mod access;
mod attributes;
mod cache;
mod token;
pub(super) mod x509;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use rustls::pki_types::CertificateDer;

use super::reload::{FileProblem, Reload};
use super::response::{HttpResponse, plain_text};
use access::WebhookAuthorizer;
use attributes::Attributes;
use token::TokenAuthenticator;
use x509::ClientCas;

const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// An authenticated user.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    /// Further attributes from the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Configuration of authentication and authorization.
#[derive(Clone)]
pub struct AuthSettings {
    /// CA bundle for client certificates.
    pub client_ca: Option<PathBuf>,
    /// `ReloadKubeletClientCAFile`.
    pub client_ca_reload: Reload,
    /// Client for TokenReviews, and how long a result is cached.
    pub tokens: Option<(kube::Client, Duration)>,
    pub anonymous: bool,
    pub access: AccessSettings,
}

#[derive(Clone)]
pub enum AccessSettings {
    AlwaysAllow,
    /// Denies everything: there is no API server for a SubjectAccessReview.
    NeverAllow,
    /// Authorizes by SubjectAccessReview, with separate cache times for allowed and denied.
    Webhook {
        client: kube::Client,
        allowed_for: Duration,
        denied_for: Duration,
    },
}

/// The client side of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// The verified certificate of the client, and its chain.
    pub(super) certificates: Arc<[CertificateDer<'static>]>,
}

enum Authorization {
    AllowAll,
    DenyAll,
    Webhook(WebhookAuthorizer),
}

pub(super) struct AccessControl {
    node: Arc<str>,
    authorities: Option<ClientCas>,
    tokens: Option<TokenAuthenticator>,
    anonymous: bool,
    access: Authorization,
}

/// Reason that a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    Unauthorized,
    Forbidden {
        user: String,
        verb: &'static str,
        subresources: Vec<&'static str>,
    },
    /// The authorizer could not be reached.
    Unknown {
        user: String,
        verb: &'static str,
        subresource: &'static str,
    },
}

impl Rejection {
    pub(super) fn answer(&self) -> HttpResponse {
        match self {
            Self::Unauthorized => plain_text(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { user, verb, subresources } => {
                let list = subresources.join(" ");
                let text = format!(
                    "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{list}])\n"
                );
                plain_text(StatusCode::FORBIDDEN, text)
            }
            Self::Unknown { user, verb, subresource } => {
                let text = format!(
                    "Authorization error (user={user}, verb={verb}, resource=nodes, \
                     subresource={subresource})"
                );
                plain_text(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

impl AccessControl {
    pub(super) fn new(settings: AuthSettings, node: Arc<str>) -> Result<Self, FileProblem> {
        let open = |path: &Path| ClientCas::open(path, settings.client_ca_reload);
        let authorities = settings.client_ca.as_deref().map(open);
        let access = match settings.access {
            AccessSettings::AlwaysAllow => Authorization::AllowAll,
            AccessSettings::NeverAllow => Authorization::DenyAll,
            AccessSettings::Webhook { client, allowed_for, denied_for } => Authorization::Webhook(
                WebhookAuthorizer::new(client, node.clone(), allowed_for, denied_for),
            ),
        };
        Ok(Self {
            node,
            authorities: authorities.transpose()?,
            tokens: settings.tokens.map(|(client, ttl)| TokenAuthenticator::new(client, ttl)),
            anonymous: settings.anonymous,
            access,
        })
    }

    /// Whether the server requests a client certificate.
    pub(super) fn requests_certificates(&self) -> bool {
        self.authorities.is_some()
    }

    /// Authenticates and authorizes a request.
    pub(super) async fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<User, Rejection> {
        let user = self.identify(headers, peer).await.ok_or(Rejection::Unauthorized)?;
        let attributes = Attributes::of(method, path);
        for &subresource in &attributes.subresources {
            let allowed = match &self.access {
                Authorization::AllowAll => Ok(true),
                Authorization::DenyAll => Ok(false),
                Authorization::Webhook(access) => {
                    access.allows(&user, attributes.verb, subresource).await
                }
            };
            match allowed {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    let (node, user) = (&self.node, &user.name);
                    tracing::error!(%error, %node, user, "authorize request failed, rejecting it");
                    return Err(Rejection::Unknown {
                        user: user.clone(),
                        verb: attributes.verb,
                        subresource,
                    });
                }
            }
        }
        tracing::debug!(user = user.name, verb = attributes.verb, path, "forbidden");
        Err(Rejection::Forbidden {
            user: user.name,
            verb: attributes.verb,
            subresources: attributes.subresources,
        })
    }

    async fn identify(&self, headers: &HeaderMap, peer: &Peer) -> Option<User> {
        let mut rejected = false;
        if let (Some(authorities), false) = (&self.authorities, peer.certificates.is_empty()) {
            match authorities.user_of(&peer.certificates) {
                Ok(Some(user)) => return Some(authenticated(user)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "invalid client certificate");
                    rejected = true;
                }
            }
        }
        if let (Some(tokens), Some(bearer)) = (&self.tokens, token::bearer(headers)) {
            match tokens.user_of(bearer).await {
                Ok(Some(user)) => return Some(authenticated(user)),
                Ok(None) => rejected = true,
                Err(error) => {
                    tracing::error!(%error, "review bearer token failed, rejecting the request");
                    rejected = true;
                }
            }
        }
        let allow_anonymous = self.anonymous && !rejected;
        allow_anonymous.then(|| User {
            name: ANONYMOUS.into(),
            groups: vec![UNAUTHENTICATED.into()],
            ..User::default()
        })
    }
}

fn authenticated(mut user: User) -> User {
    if !user.groups.iter().any(|group| group == AUTHENTICATED) {
        user.groups.push(AUTHENTICATED.into());
    }
    user
}

#[cfg(test)]
mod tests;
