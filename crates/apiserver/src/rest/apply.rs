//! Server-side apply: a PATCH that says all that its manager wants of an object.

use parking_lot::Mutex;
use podwright_api::schema;
use serde_json::Value;

use crate::access::Identity;
use crate::decode::{self, PatchText};
use crate::object::Object;
use crate::options::{FieldValidation, WriteOptions};
use crate::ownership::Author;
use crate::registry::{Resource, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::{defaults, events};

use super::create::{match_name, match_namespace, read_only};
use super::{ATTEMPTS, Updated};

impl ApiServer {
    /// Applies a body, JSON or YAML, to an object, which is created if it does not exist.
    pub async fn apply(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        text: &[u8],
        options: &WriteOptions,
    ) -> Result<Updated, ApiError> {
        if info.subresource.is_none() && !info.resource.allows(Verb::Patch) {
            return Err(read_only(info.resource));
        }
        let body = decode::yaml(text)
            .map_err(|why| ApiError::bad_request(format!("error decoding YAML: {why}")))?;
        check_kind(info.resource, &body.value)?;
        let author = Author::new(info, options, self.now());
        for _ in 0..ATTEMPTS {
            let duplicates = Mutex::new(Vec::new());
            let applied = self
                .rewrite(identity, info, options, |old| {
                    let object = author.applied(Some(old), &body.value)?;
                    let (mut new, warnings) = decoded(info, &author, &object, &body, options)?;
                    *duplicates.lock() = warnings;
                    match_namespace(info, &mut new)?;
                    match_name(info, &new)?;
                    new.edit(|value| defaults::apply(events::stored_as(info.resource), value));
                    Ok(new)
                })
                .await;
            match applied {
                Ok((object, warnings)) => {
                    let warnings = [duplicates.into_inner(), warnings].concat();
                    return Ok(Updated { object, created: false, warnings });
                }
                Err(error) if error.code == 404 && info.subresource.is_none() => {}
                Err(error) => return Err(error),
            }
            match self.apply_new(identity, info, &author, &body, options).await {
                // Another request created it meanwhile.
                Err(error) if error.reason == "AlreadyExists" => {}
                created => return created,
            }
        }
        Err(ApiError::stale(info.resource, &info.name))
    }

    /// Creates the object of an apply.
    async fn apply_new(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        author: &Author<'_>,
        body: &PatchText,
        options: &WriteOptions,
    ) -> Result<Updated, ApiError> {
        if !info.resource.allows(Verb::Create) {
            return Err(ApiError::not_found(info.resource, &info.name));
        }
        let create = RequestInfo { verb: Verb::Create, ..info.clone() };
        self.may_also(identity, &create)?;
        let object = author.applied(None, &body.value)?;
        let (mut object, mut warnings) = decoded(info, author, &object, body, options)?;
        if !object.uid().is_empty() {
            return Err(ApiError::conflict(
                info.resource.plural,
                info.resource.group,
                &info.name,
                &format!(
                    "uid mismatch: the provided object specified uid {}, and no existing object was found",
                    object.uid()
                ),
            ));
        }
        match_namespace(info, &mut object)?;
        match_name(info, &object)?;
        object.set_meta("name", Some(info.name.clone().into()));
        object.set_meta("resourceVersion", None);
        object.edit(|value| defaults::apply(events::stored_as(info.resource), value));
        warnings.extend(self.check_new(identity, &create, &object)?);
        let object = self.create_tracked(&create, object, options).await?;
        Ok(Updated { object, created: true, warnings })
    }
}

/// Reads the object after an apply, in its stored form, with warnings about duplicate keys.
fn decoded(
    info: &RequestInfo,
    author: &Author<'_>,
    object: &Value,
    body: &PatchText,
    options: &WriteOptions,
) -> Result<(Object, Vec<String>), ApiError> {
    let problems = body.duplicates.iter().map(|path| format!("duplicate field \"{path}\""));
    let problems: Vec<String> = problems.collect();
    let warnings = match options.field_validation {
        FieldValidation::Strict if !problems.is_empty() => {
            let all = problems.join(", ");
            return Err(ApiError::bad_request(format!("error strict decoding YAML: {all}")));
        }
        FieldValidation::Strict | FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => problems,
    };
    let refuse = |why: String| {
        ApiError::unclassified(format!(
            "failed to convert new typed object ({}) to object: {why}",
            author.shown(&body.value)
        ))
    };
    let shape = schema::kind(info.resource.group, info.resource.kind)
        .ok_or_else(|| refuse(format!("no shape of {} is known", info.resource.kind)))?;
    let read = schema::decode(shape, object).map_err(|error| refuse(error.to_string()))?;
    let object = Object::try_from(read.value).map_err(|error| refuse(error.to_string()))?;
    Ok((events::to_stored(info.resource, object), warnings))
}

/// The body must name the version and kind of the path.
fn check_kind(resource: &Resource, body: &Value) -> Result<(), ApiError> {
    let text = |field| body.get(field).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("apiVersion"), text("kind"));
    if version == resource.api_version() && kind == resource.kind {
        return Ok(());
    }
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    Err(ApiError::bad_request(format!("invalid object type: {group}/{version}, Kind={kind}")))
}
