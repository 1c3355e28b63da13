//! Who asks, and whether that is allowed.
//!
//! Everything on the authenticated port runs commands as root or shows what pods do, so nothing is
//! answered before both questions are. A credential that is shown and wrong is refused even where
//! strangers are welcome: whoever shows one means it.

mod access;
mod attributes;
mod cache;
mod token;
pub(super) mod x509;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use rustls::pki_types::CertificateDer;

use super::answer::{Answer, words};
use super::fresh::FileProblem;
use access::Access;
use attributes::Attributes;
use token::Tokens;
use x509::Authorities;

const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Somebody, as the cluster knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    /// What else the authenticator said of them.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// How to find out.
#[derive(Clone)]
pub struct Settings {
    /// Certificates of clients are checked against the authorities in this file.
    pub client_ca: Option<PathBuf>,
    /// Bearer tokens are asked about at the API server; an answer is good for so long.
    pub tokens: Option<(kube::Client, Duration)>,
    pub anonymous: bool,
    pub access: AccessSettings,
}

#[derive(Clone)]
pub enum AccessSettings {
    AlwaysAllow,
    /// There is nobody to ask.
    NeverAllow,
    /// Asked of the API server; yes and no are remembered for a while each.
    Webhook {
        client: kube::Client,
        allowed_for: Duration,
        denied_for: Duration,
    },
}

/// A client's side of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    /// The certificate it showed and could sign with, and what came along.
    pub(super) certificates: Arc<[CertificateDer<'static>]>,
}

enum Rule {
    Everything,
    Nothing,
    Asked(Access),
}

pub(super) struct Guard {
    node: Arc<str>,
    authorities: Option<Authorities>,
    tokens: Option<Tokens>,
    anonymous: bool,
    access: Rule,
}

/// Why somebody is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Unauthorized,
    Forbidden {
        user: String,
        verb: &'static str,
        subresources: Vec<&'static str>,
    },
    /// Nobody could be asked.
    Unknown {
        user: String,
        verb: &'static str,
        subresource: &'static str,
    },
}

impl Refusal {
    pub(super) fn answer(&self) -> Answer {
        match self {
            Self::Unauthorized => words(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { user, verb, subresources } => {
                let list = subresources.join(" ");
                let text = format!(
                    "Forbidden (user={user}, verb={verb}, resource=nodes, subresource(s)=[{list}])\n"
                );
                words(StatusCode::FORBIDDEN, text)
            }
            Self::Unknown { user, verb, subresource } => {
                let text = format!(
                    "Authorization error (user={user}, verb={verb}, resource=nodes, \
                     subresource={subresource})"
                );
                words(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }
}

impl Guard {
    pub(super) fn new(settings: Settings, node: Arc<str>) -> Result<Self, FileProblem> {
        let access = match settings.access {
            AccessSettings::AlwaysAllow => Rule::Everything,
            AccessSettings::NeverAllow => Rule::Nothing,
            AccessSettings::Webhook { client, allowed_for, denied_for } => {
                Rule::Asked(Access::new(client, node.clone(), allowed_for, denied_for))
            }
        };
        Ok(Self {
            node,
            authorities: settings.client_ca.as_deref().map(Authorities::open).transpose()?,
            tokens: settings.tokens.map(|(client, ttl)| Tokens::new(client, ttl)),
            anonymous: settings.anonymous,
            access,
        })
    }

    /// Whether a client should be asked for a certificate at all.
    pub(super) fn invites_certificates(&self) -> bool {
        self.authorities.is_some()
    }

    /// Lets a request in, or says why not.
    pub(super) async fn admit(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        peer: &Peer,
    ) -> Result<User, Refusal> {
        let user = self.identify(headers, peer).await.ok_or(Refusal::Unauthorized)?;
        let attributes = Attributes::of(method, path);
        for &subresource in &attributes.subresources {
            let allowed = match &self.access {
                Rule::Everything => Ok(true),
                Rule::Nothing => Ok(false),
                Rule::Asked(access) => access.allows(&user, attributes.verb, subresource).await,
            };
            match allowed {
                Ok(true) => return Ok(user),
                Ok(false) => {}
                Err(error) => {
                    let (node, user) = (&self.node, &user.name);
                    tracing::error!(%error, %node, user, "cannot ask whether a request is allowed");
                    return Err(Refusal::Unknown {
                        user: user.clone(),
                        verb: attributes.verb,
                        subresource,
                    });
                }
            }
        }
        tracing::debug!(user = user.name, verb = attributes.verb, path, "forbidden");
        Err(Refusal::Forbidden {
            user: user.name,
            verb: attributes.verb,
            subresources: attributes.subresources,
        })
    }

    async fn identify(&self, headers: &HeaderMap, peer: &Peer) -> Option<User> {
        let mut refused = false;
        if let (Some(authorities), false) = (&self.authorities, peer.certificates.is_empty()) {
            match authorities.user_of(&peer.certificates) {
                Ok(Some(user)) => return Some(authenticated(user)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "a client's certificate is not good");
                    refused = true;
                }
            }
        }
        if let (Some(tokens), Some(bearer)) = (&self.tokens, token::bearer(headers)) {
            match tokens.user_of(bearer).await {
                Ok(Some(user)) => return Some(authenticated(user)),
                Ok(None) => refused = true,
                Err(error) => {
                    tracing::error!(%error, "cannot ask whom a token belongs to");
                    refused = true;
                }
            }
        }
        let stranger = self.anonymous && !refused;
        stranger.then(|| User {
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
