//! The `Status` object: reports every failure, and some successes, to the client.
//!
//! Clients match on `reason` and `code`, people and scripts on `message`; so the wording is
//! kube-apiserver's, and every message of the server is defined here unless it belongs to one field
//! of one kind.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use serde::Serialize;

use podwright_api::managed_fields::Cause as FieldConflict;
use podwright_api::rbac::ObjectRequest;
pub use podwright_api::validation::FieldError;

use crate::registry::Resource;
use crate::unserved::UnservedKind;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub code: u16,
    /// Machine-readable; empty for the few errors to which kube-apiserver gives none.
    pub reason: &'static str,
    pub message: String,
    pub details: Option<Box<Details>>,
}

/// The object that the error is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub group: Cow<'static, str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One cause, with the field where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cause {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'static str,
    pub message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by serde")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Details {
    fn of(resource: &Resource, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            group: resource.group.into(),
            kind: resource.plural.to_owned(),
            ..Self::default()
        }
    }
}

impl ApiError {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code: code.as_u16(), reason, message: message.into(), details: None }
    }

    fn with(mut self, details: Details) -> Self {
        self.details = Some(Box::new(details));
        self
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{} \"{name}\" not found", resource.qualified()),
        )
        .with(Details::of(resource, name))
    }

    /// The object exists, but its usage was not measured; `shown` is its name in the message.
    pub fn no_metrics(kind: &'static str, name: &str, shown: &str, why: &str) -> Self {
        let group = "metrics.k8s.io";
        let message = format!("{kind}.{group} \"{shown}\" not found: {why}");
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).with(Details {
            name: name.to_owned(),
            group: group.into(),
            kind: kind.to_owned(),
            ..Details::default()
        })
    }

    /// A path that Kubernetes has and this server does not serve.
    pub fn not_served(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!(
                "the server could not find the requested resource: {what} is not served here; podwright serves pods \
                 and what pods need on one machine, so join a cluster with `podwright kubelet --kubeconfig` for the rest"
            ),
        )
        .with(Details::default())
    }

    /// A kind of Kubernetes that is not served here. Clients create an object that they did not
    /// find, so only its creation is "not allowed".
    pub fn unserved_kind(kind: &UnservedKind, method: &Method) -> Self {
        let (code, reason) = match *method {
            Method::POST | Method::PATCH | Method::PUT => {
                (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed")
            }
            _ => (StatusCode::NOT_FOUND, "NotFound"),
        };
        let message = format!(
            "{} is not served by podwright, which runs pods on one machine. Instead: {}. Or join a \
             cluster with `podwright kubelet --kubeconfig`",
            kind.kind, kind.instead
        );
        Self::new(code, reason, message).with(Details {
            group: kind.group.into(),
            kind: kind.plural.to_owned(),
            ..Details::default()
        })
    }

    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", resource.qualified()),
        )
        .with(Details::of(resource, name))
    }

    /// Every generated name was already taken.
    pub fn generated_name_taken(resource: &Resource, name: &str) -> Self {
        let mut error = Self::already_exists(resource, name);
        error
            .message
            .push_str(", the server was not able to generate a unique name for the object");
        error
    }

    /// `kind` is the name in the message: a plural, `pods/binding`, or a kind.
    pub fn conflict(kind: &str, group: &'static str, name: &str, why: &str) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        Self::new(
            StatusCode::CONFLICT,
            "Conflict",
            format!("Operation cannot be fulfilled on {qualified} \"{name}\": {why}"),
        )
        .with(Details {
            name: name.to_owned(),
            group: group.into(),
            kind: kind.to_owned(),
            ..Details::default()
        })
    }

    /// The client had read an older version.
    pub fn stale(resource: &Resource, name: &str) -> Self {
        Self::conflict(
            resource.plural,
            resource.group,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    pub fn invalid(
        kind: &'static str,
        group: &'static str,
        name: &str,
        errors: &[FieldError],
    ) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let mut sentences: Vec<String> = Vec::with_capacity(errors.len());
        for error in errors {
            let sentence = format!("{}: {}", error.field, error.message);
            if !sentences.contains(&sentence) {
                sentences.push(sentence); // a field may fail twice for the same reason
            }
        }
        let all = match sentences.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let causes = errors
            .iter()
            .map(|error| Cause {
                reason: error.reason,
                message: error.message.clone(),
                field: error.field.clone(),
            })
            .collect();
        Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Invalid",
            format!("{qualified} \"{name}\" is invalid: {all}"),
        )
        .with(Details {
            name: name.to_owned(),
            group: group.into(),
            kind: kind.to_owned(),
            causes,
            ..Details::default()
        })
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let about = if name.is_empty() {
            resource.qualified()
        } else {
            format!("{} \"{name}\"", resource.qualified())
        };
        Self::new(StatusCode::FORBIDDEN, "Forbidden", format!("{about} is forbidden: {why}"))
            .with(Details::of(resource, name))
    }

    /// For a path that is not an object's.
    pub fn path_forbidden(user: &str, verb: &str, path: &str) -> Self {
        let message = format!("forbidden: User \"{user}\" cannot {verb} path \"{path}\"");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with(Details::default())
    }

    /// For a request that is not authorized.
    pub fn access_forbidden(requested: &ObjectRequest<'_>, why: &str) -> Self {
        let qualified = match requested.group {
            "" => requested.resource.to_owned(),
            group => format!("{}.{group}", requested.resource),
        };
        let about = match requested.name {
            "" => qualified,
            name => format!("{qualified} \"{name}\""),
        };
        let message = format!("{about} is forbidden: {why}");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message).with(Details {
            name: requested.name.to_owned(),
            group: requested.group.to_owned().into(),
            kind: requested.resource.to_owned(),
            ..Details::default()
        })
    }

    pub fn namespace_terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let mut error = Self::forbidden(
            resource,
            name,
            &format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            ),
        );
        if let Some(details) = &mut error.details {
            details.causes.push(Cause {
                reason: "NamespaceTerminating",
                message: format!("namespace {namespace} is being terminated"),
                field: "metadata.namespace".to_owned(),
            });
        }
        error
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
        .with(Details::default())
    }

    /// The method is served for other resources, but not for this one; `why` gives the reason.
    pub fn not_supported(resource: &Resource, why: &str) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", why)
            .with(Details::of(resource, ""))
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "UnsupportedMediaType",
            format!(
                "the body of the request was in an unknown format - accepted media types include: {accepted}"
            ),
        )
    }

    /// A patch of an unknown type.
    pub fn unsupported_patch() -> Self {
        let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(code, "UnsupportedMediaType", "415: Unsupported Media Type")
            .with(Details::default())
    }

    /// An apply would change fields of other managers. The object is not in the details.
    pub fn apply_conflict(message: String, causes: Vec<FieldConflict>) -> Self {
        let causes = causes.into_iter().map(|cause| Cause {
            reason: "FieldManagerConflict",
            message: cause.message,
            field: cause.field,
        });
        Self::new(StatusCode::CONFLICT, "Conflict", message)
            .with(Details { causes: causes.collect(), ..Details::default() })
    }

    pub fn not_acceptable(accepted: &str) -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            format!("only the following media types are accepted: {accepted}"),
        )
    }

    pub fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {limit}"),
        )
        .with(Details::default())
    }

    /// Too much is in progress; the same request may succeed later.
    pub fn too_many_requests() -> Self {
        let details = Details { retry_after_seconds: 1, ..Details::default() };
        let message = "too many requests, please try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(details)
    }

    /// The requested history is no longer kept; the client must list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// The client requests a version newer than the current one.
    pub fn version_too_large(requested: u64, current: u64) -> Self {
        Self::new(
            StatusCode::GATEWAY_TIMEOUT,
            "Timeout",
            format!("Timeout: Too large resource version: {requested}, current: {current}"),
        )
        .with(Details {
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge",
                message: "Too large resource version".to_owned(),
                field: String::new(),
            }],
            retry_after_seconds: 1,
            ..Details::default()
        })
    }

    pub fn timed_out(message: &str) -> Self {
        let message = format!("Timeout: {message}");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", message).with(Details::default())
    }

    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let causes = vec![Cause { reason: "", message: message.clone(), field: String::new() }];
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "InternalError",
            format!("Internal error occurred: {message}"),
        )
        .with(Details { causes, ..Details::default() })
    }

    /// An error that kube-apiserver returns without a reason.
    pub fn unclassified(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message)
    }

    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
    }

    /// The storage does not work now; the same request may succeed later.
    pub fn storage_failed(message: impl Into<String>) -> Self {
        let details = Details { retry_after_seconds: 1, ..Details::default() };
        Self::unavailable(message).with(details)
    }

    /// The whole `Status` as JSON text.
    pub fn to_json(&self) -> Vec<u8> {
        let status = Wire {
            kind: "Status",
            api_version: "v1",
            metadata: Empty {},
            status: "Failure",
            message: &self.message,
            reason: self.reason,
            details: self.details.as_deref(),
            code: self.code,
        };
        serde_json::to_vec(&status).unwrap_or_default()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response =
            (code, [(header::CONTENT_TYPE, "application/json")], self.to_json()).into_response();
        if let Some(seconds) =
            self.details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0)
        {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A `Status` for a success without an object.
pub fn success(code: Option<StatusCode>, details: Option<&Details>) -> Response {
    let body = Wire {
        kind: "Status",
        api_version: "v1",
        metadata: Empty {},
        status: "Success",
        message: "",
        reason: "",
        details,
        code: code.map_or(0, |code| code.as_u16()),
    };
    let text = serde_json::to_vec(&body).unwrap_or_default();
    (code.unwrap_or(StatusCode::OK), [(header::CONTENT_TYPE, "application/json")], text)
        .into_response()
}

#[derive(Serialize)]
struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Details>,
    #[serde(skip_serializing_if = "is_unset")]
    code: u16,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "signature required by serde")]
fn is_unset(code: &u16) -> bool {
    *code == 0
}
