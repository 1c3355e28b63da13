//! Reviews: access, rules and token reviews, computed and not stored.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{AccessRequest, Attributes, Identity};
use crate::clock::rfc3339;
use crate::json_edit;
use crate::object::Object;
use crate::registry::{
    Resource, SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_REVIEWS, SELF_SUBJECT_RULES_REVIEWS,
    SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS,
};
use crate::server::ApiServer;
use crate::status::{ApiError, FieldError};
use crate::tokens::VerifiedToken;

impl ApiServer {
    /// The review with its result in `status`.
    pub(crate) fn review(
        &self,
        resource: &Resource,
        identity: &Identity,
        mut review: Object,
    ) -> Result<Object, ApiError> {
        let status = if resource == &TOKEN_REVIEWS {
            self.review_token(&review)?
        } else if resource == &SELF_SUBJECT_ACCESS_REVIEWS {
            check_access_review(&review, &[])?;
            self.review_access(identity, &review)
        } else if resource == &SELF_SUBJECT_REVIEWS {
            review.set("metadata", Some(json!({"creationTimestamp": rfc3339(self.now())})));
            json!({"userInfo": user_info(identity)})
        } else if resource == &SELF_SUBJECT_RULES_REVIEWS {
            self.review_rules(identity, &review)?
        } else if resource == &SUBJECT_ACCESS_REVIEWS {
            let subject = subject(&review);
            let no_subject = subject.user.is_empty() && subject.groups.is_empty();
            let why = "Invalid value: \"\": at least one of user or group must be specified";
            let errors = [refused("spec.user", why.to_owned())];
            check_access_review(&review, if no_subject { &errors } else { &[] })?;
            self.review_access(&subject, &review)
        } else {
            return Err(ApiError::method_not_allowed());
        };
        review.set_type(resource);
        review.set("status", Some(status));
        Ok(review)
    }

    fn review_token(&self, review: &Object) -> Result<Value, ApiError> {
        let token = review.text("/spec/token");
        if token.is_empty() {
            return Err(ApiError::bad_request(
                "token is required for TokenReview in authentication",
            ));
        }
        let audiences = review.value().pointer("/spec/audiences").and_then(Value::as_array);
        let audiences: Vec<&str> =
            audiences.into_iter().flatten().filter_map(Value::as_str).collect();
        Ok(match self.verify_token(token, &audiences) {
            Ok(VerifiedToken { identity, audiences }) => json!({
                "authenticated": true,
                "user": user_info(&identity),
                "audiences": audiences,
            }),
            Err(error) => json!({"user": {}, "error": error.to_string()}),
        })
    }

    fn review_rules(&self, identity: &Identity, review: &Object) -> Result<Value, ApiError> {
        match review.text("/spec/namespace") {
            "" => Err(ApiError::bad_request("no namespace on request")),
            namespace => Ok(json!(self.rules_of(identity, namespace)?)),
        }
    }

    fn review_access(&self, identity: &Identity, review: &Object) -> Value {
        let requested = if review.value().pointer("/spec/nonResourceAttributes").is_some() {
            AccessRequest::Path {
                verb: review.text("/spec/nonResourceAttributes/verb"),
                path: review.text("/spec/nonResourceAttributes/path"),
            }
        } else {
            AccessRequest::Objects(Attributes {
                verb: review.text("/spec/resourceAttributes/verb"),
                group: review.text("/spec/resourceAttributes/group"),
                resource: review.text("/spec/resourceAttributes/resource"),
                subresource: review.text("/spec/resourceAttributes/subresource"),
                namespace: review.text("/spec/resourceAttributes/namespace"),
                name: review.text("/spec/resourceAttributes/name"),
            })
        };
        match self.authorize(identity, &requested) {
            Ok(why) if why.is_empty() => json!({"allowed": true}),
            Ok(why) => json!({"allowed": true, "reason": why}),
            Err(why) if why.is_empty() => json!({"allowed": false}),
            Err(why) => json!({"allowed": false, "reason": why}),
        }
    }
}

/// Exactly one kind of attributes must be given.
fn check_access_review(review: &Object, more: &[FieldError]) -> Result<(), ApiError> {
    let given = |path: &str| review.value().pointer(path).filter(|given| !given.is_null());
    let objects = given("/spec/resourceAttributes");
    let path = given("/spec/nonResourceAttributes");
    let mut errors = Vec::new();
    match (objects, path) {
        (Some(_), Some(path)) => {
            let text = |field: &str| path.get(field).and_then(Value::as_str).unwrap_or_default();
            let shown = json!({"Path": text("path"), "Verb": text("verb")});
            let why = "cannot be specified in combination with resourceAttributes";
            errors.push(refused(
                "spec.nonResourceAttributes",
                format!("Invalid value: {shown}: {why}"),
            ));
        }
        (None, None) => errors.push(refused(
            "spec.resourceAttributes",
            "Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
                .to_owned(),
        )),
        (Some(_), None) | (None, Some(_)) => {}
    }
    errors.extend_from_slice(more);
    if errors.is_empty() {
        return Ok(());
    }
    // kube-apiserver has no kind in this message.
    Err(ApiError::invalid("", "authorization.k8s.io", "", &errors))
}

fn refused(field: &str, message: String) -> FieldError {
    FieldError { reason: "FieldValueInvalid", field: field.to_owned(), message }
}

fn user_info(identity: &Identity) -> Value {
    let mut info = json!({"username": identity.user, "groups": identity.groups});
    json_edit::put(
        &mut info,
        &["extra"],
        (!identity.extra.is_empty()).then(|| json!(identity.extra)),
    );
    json_edit::put(
        &mut info,
        &["uid"],
        (!identity.uid.is_empty()).then(|| identity.uid.as_str().into()),
    );
    info
}

fn subject(review: &Object) -> Identity {
    let groups = review.value().pointer("/spec/groups").and_then(Value::as_array);
    let groups = groups.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Identity {
        user: review.text("/spec/user").to_owned(),
        uid: review.text("/spec/uid").to_owned(),
        groups: groups.collect(),
        extra: BTreeMap::new(),
    }
}
