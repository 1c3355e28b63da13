//! Questions put as objects: may I do this, whose token is that? They are answered, not stored.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::access::{Asked, Attributes, Identity};
use crate::object::Object;
use crate::registry::{
    Resource, SELF_SUBJECT_ACCESS_REVIEWS, SELF_SUBJECT_REVIEWS, SELF_SUBJECT_RULES_REVIEWS,
    SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS,
};
use crate::server::ApiServer;
use crate::status::ApiError;
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
            self.review_access(who, &review)
        } else if resource == &SELF_SUBJECT_REVIEWS {
            json!({"userInfo": user_info(who)})
        } else if resource == &SELF_SUBJECT_RULES_REVIEWS {
            self.review_rules(who, &review)?
        } else if resource == &SUBJECT_ACCESS_REVIEWS {
            self.review_access(&subject(&review), &review)
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
