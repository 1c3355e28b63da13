//! Authentication of bearer tokens by TokenReview.

use std::time::Duration;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::Api;
use kube::api::PostParams;
use sha2::{Digest, Sha256};

use super::User;
use super::access::REVIEW_TIMEOUT;
use super::cache::Cache;

pub(super) struct TokenAuthenticator {
    client: kube::Client,
    /// By the hash of the token; the token itself is not stored.
    cache: Cache<[u8; 32], User>,
    ttl: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReviewError {
    #[error("TokenReview failed")]
    Request(#[source] Box<kube::Error>),
    #[error("TokenReview took longer than {REVIEW_TIMEOUT:?}")]
    TimedOut,
    #[error("the API server cannot review the token: {0}")]
    Failed(String),
}

/// The bearer token of a request, if it has one.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

impl TokenAuthenticator {
    pub(super) fn new(client: kube::Client, ttl: Duration) -> Self {
        Self { client, cache: Cache::new(), ttl }
    }

    /// The user of a token; `None`: the token is invalid. That is not cached, because it may become
    /// valid soon.
    pub(super) async fn user_of(&self, token: &str) -> Result<Option<User>, ReviewError> {
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = self.cache.get(&key) {
            return Ok(Some(user));
        }
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), ..Default::default() },
            ..Default::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let params = PostParams::default();
        let reviewed = tokio::time::timeout(REVIEW_TIMEOUT, reviews.create(&params, &review)).await;
        let answer = reviewed.map_err(|_| ReviewError::TimedOut)?;
        let status =
            answer.map_err(|e| ReviewError::Request(Box::new(e)))?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return match status.error.filter(|error| !error.is_empty()) {
                Some(error) if status.authenticated.is_none() => Err(ReviewError::Failed(error)),
                Some(_) | None => Ok(None),
            };
        }
        let user = status.user.map(user_from).filter(|user| !user.name.is_empty());
        if let Some(user) = &user {
            self.cache.put(key, user.clone(), self.ttl);
        }
        Ok(user)
    }
}

fn user_from(info: UserInfo) -> User {
    User {
        name: info.username.unwrap_or_default(),
        uid: info.uid.filter(|uid| !uid.is_empty()),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    }
}
