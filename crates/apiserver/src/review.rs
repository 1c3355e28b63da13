//! Questions put as objects: may I do this, whose token is that? They are answered, not stored.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{Asked, Attributes, Identity};
use crate::clock::rfc3339;
use crate::object::Object;
use crate::registry::{
    Resource, SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_REVIEWS, SELF_SUBJECT_RULES_REVIEWS,
    SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS,
};
use crate::server::ApiServer;
use crate::status::{ApiError, FieldError};
use crate::tokens::Recognised;
use crate::tree;

impl ApiServer {
    /// The review with its answer in `status`.
    pub(crate) fn review(
        &self,
        resource: &Resource,
        who: &Identity,
        mut review: Object,
    ) -> Result<Object, ApiError> {
        let status = if resource == &TOKEN_REVIEWS {
            self.review_token(&review)?
        } else if resource == &SELF_SUBJECT_ACCESS_REVIEWS {
            check_access_review(&review, &[])?;
            self.review_access(who, &review)
        } else if resource == &SELF_SUBJECT_REVIEWS {
            review.set("metadata", Some(json!({"creationTimestamp": rfc3339(self.now())})));
            json!({"userInfo": user_info(who)})
        } else if resource == &SELF_SUBJECT_RULES_REVIEWS {
            self.review_rules(who, &review)?
        } else if resource == &SUBJECT_ACCESS_REVIEWS {
            let subject = subject(&review);
            let nobody = subject.user.is_empty() && subject.groups.is_empty();
            let why = "Invalid value: \"\": at least one of user or group must be specified";
            let errors = [refused("spec.user", why.to_owned())];
            check_access_review(&review, if nobody { &errors } else { &[] })?;
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
        Ok(match self.recognise(token, &audiences) {
            Ok(Recognised { who, audiences }) => json!({
                "authenticated": true,
                "user": user_info(&who),
                "audiences": audiences,
            }),
            Err(error) => json!({"user": {}, "error": error.to_string()}),
        })
    }

    fn review_rules(&self, who: &Identity, review: &Object) -> Result<Value, ApiError> {
        match review.text("/spec/namespace") {
            "" => Err(ApiError::bad_request("no namespace on request")),
            namespace => Ok(json!(self.rules_of(who, namespace))),
        }
    }

    fn review_access(&self, who: &Identity, review: &Object) -> Value {
        let asked = if review.value().pointer("/spec/nonResourceAttributes").is_some() {
            Asked::Path {
                verb: review.text("/spec/nonResourceAttributes/verb"),
                path: review.text("/spec/nonResourceAttributes/path"),
            }
        } else {
            Asked::Objects(Attributes {
                verb: review.text("/spec/resourceAttributes/verb"),
                group: review.text("/spec/resourceAttributes/group"),
                resource: review.text("/spec/resourceAttributes/resource"),
                subresource: review.text("/spec/resourceAttributes/subresource"),
                namespace: review.text("/spec/resourceAttributes/namespace"),
                name: review.text("/spec/resourceAttributes/name"),
            })
        };
        match self.authorize(who, &asked) {
            Ok(()) => json!({"allowed": true}),
            Err(why) if why.is_empty() => json!({"allowed": false}),
            Err(why) => json!({"allowed": false, "reason": why}),
        }
    }
}

/// Something must be asked for, and one thing only.
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
    // The kind is lost on the way to this message.
    Err(ApiError::invalid("", "authorization.k8s.io", "", &errors))
}

fn refused(field: &str, message: String) -> FieldError {
    FieldError { reason: "FieldValueInvalid", field: field.to_owned(), message }
}

fn user_info(who: &Identity) -> Value {
    let mut info = json!({"username": who.user, "groups": who.groups});
    tree::put(&mut info, &["extra"], (!who.extra.is_empty()).then(|| json!(who.extra)));
    tree::put(&mut info, &["uid"], (!who.uid.is_empty()).then(|| who.uid.as_str().into()));
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
