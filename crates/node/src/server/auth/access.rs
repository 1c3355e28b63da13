//! Whether somebody may, asked of the API server.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;

use super::User;
use super::cache::Cache;

/// How long the API server has for an answer.
pub(super) const ASK: Duration = Duration::from_secs(10);

type Question = (User, &'static str, &'static str);

pub(super) struct Access {
    client: kube::Client,
    node: Arc<str>,
    known: Cache<Question, bool>,
    allowed_for: Duration,
    denied_for: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum AccessError {
    #[error("the API server does not answer a SubjectAccessReview")]
    Ask(#[source] Box<kube::Error>),
    #[error("the API server took longer than {ASK:?} over a SubjectAccessReview")]
    TimedOut,
}

impl Access {
    pub(super) fn new(
        client: kube::Client,
        node: Arc<str>,
        allowed_for: Duration,
        denied_for: Duration,
    ) -> Self {
        Self { client, node, known: Cache::new(), allowed_for, denied_for }
    }

    /// An error is not an answer, and not remembered.
    pub(super) async fn allows(
        &self,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, AccessError> {
        let question = (user.clone(), verb, subresource);
        if let Some(allowed) = self.known.get(&question) {
            return Ok(allowed);
        }
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let (params, review) = (PostParams::default(), self.review(user, verb, subresource));
        let asked = tokio::time::timeout(ASK, reviews.create(&params, &review)).await;
        let answer = asked.map_err(|_| AccessError::TimedOut)?;
        let status = answer.map_err(|e| AccessError::Ask(Box::new(e)))?.status.unwrap_or_default();
        if !status.allowed
            && let Some(error) = status.evaluation_error.filter(|error| !error.is_empty())
            && status.denied != Some(true)
        {
            // Rules that could not be read might have allowed it; that is no reason to.
            tracing::warn!(error, "the API server could not weigh every rule");
        }
        let good_for = if status.allowed { self.allowed_for } else { self.denied_for };
        self.known.put(question, status.allowed, good_for);
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
