//! Authorization by SubjectAccessReview.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::User;
use super::cache::Cache;

/// Timeout of a review by the API server.
pub(super) const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

type ReviewKey = (User, &'static str, &'static str);

pub(super) struct WebhookAuthorizer {
    client: kube::Client,
    node: Arc<str>,
    cache: Cache<ReviewKey, bool>,
    allowed_for: Duration,
    denied_for: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error("SubjectAccessReview failed")]
    Request(#[source] Box<kube::Error>),
    #[error("SubjectAccessReview took longer than {REVIEW_TIMEOUT:?}")]
    TimedOut,
}

impl WebhookAuthorizer {
    pub(super) fn new(
        client: kube::Client,
        node: Arc<str>,
        allowed_for: Duration,
        denied_for: Duration,
    ) -> Self {
        Self { client, node, cache: Cache::new(), allowed_for, denied_for }
    }

    /// An error is not a decision and is not cached.
    pub(super) async fn allows(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, AccessError> {
        let key = (user.clone(), verb, subresource);
        if let Some(allowed) = self.cache.get(&key) {
            return Ok(allowed);
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let (params, review) = (PostParams::default(), self.review(user, verb, subresource));
        let reviewed = tokio::time::timeout(REVIEW_TIMEOUT, reviews.create(&params, &review)).await;
        let answer = reviewed.map_err(|_| AccessError::TimedOut)?;
        let status =
            answer.map_err(|e| AccessError::Request(Box::new(e)))?.status.unwrap_or_default();
        if !status.allowed
            && let Some(error) = status.evaluation_error.filter(|error| !error.is_empty())
            && status.denied != Some(true)
        {
            // A rule that could not be evaluated might have allowed the request; it stays denied.
            tracing::warn!(error, "API server could not evaluate every rule, request denied");
        }
        let good_for = if status.allowed { self.allowed_for } else { self.denied_for };
        self.cache.put(key, status.allowed, good_for);
        Ok(status.allowed)
    }

    fn review(&self, user: &User, verb: &str, subresource: &str) -> SubjectAccessReview {
        let some = |text: &str| Some(text.to_owned());
        SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: user.uid.clone(),
                groups: Some(user.groups.clone()),
                extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: some(verb),
                    version: some("v1"),
                    resource: some("nodes"),
                    subresource: some(subresource),
                    name: some(&self.node),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        }
    }
}
