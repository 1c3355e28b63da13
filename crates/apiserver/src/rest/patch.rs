//! PATCH of an object.

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;

use crate::access::Identity;
use crate::decode::PatchText;
use crate::object::Object;
use crate::options::WriteOptions;
use crate::ownership::Author;
use crate::patch::{self, PatchType};
use crate::registry::Verb;
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::{decode, defaults, events};

use super::create::{match_name, match_namespace, read_only};

/// The patch in a request.
#[derive(Debug)]
pub struct PatchBody {
    pub kind: PatchType,
    pub text: Bytes,
}

impl ApiServer {
    /// Applies a patch to the newest version, and again if that changed meanwhile. Returns the
    /// object in its stored form, and warnings for the client.
    pub async fn patch(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        body: &PatchBody,
        options: &WriteOptions,
    ) -> Result<(Object, Vec<String>), ApiError> {
        if info.subresource.is_none() && !info.resource.allows(Verb::Patch) {
            return Err(read_only(info.resource));
        }
        let patch = read(body)?;
        let warnings = Mutex::new(Vec::new());
        let author = Author::new(info, options, self.now());
        let (object, more) = self
            .rewrite(identity, info, options, |old| {
                let original = events::from_stored(info.resource, old.clone());
                let patched =
                    patch::apply(body.kind, info.resource, original.value(), &patch.value)?;
                let shown = || match body.kind {
                    PatchType::Strategic => in_go(&patch.value),
                    PatchType::Json | PatchType::Merge => patched.to_string(),
                };
                let decoded = decode::patched(
                    info.resource,
                    &patched,
                    &patch,
                    shown,
                    options.field_validation,
                )?;
                *warnings.lock() = decoded.warnings;
                let mut new = events::to_stored(info.resource, decoded.object);
                match_namespace(info, &mut new)?;
                match_name(info, &new)?;
                new.edit(|value| defaults::apply(events::stored_as(info.resource), value));
                author.updated(old, &mut new);
                Ok(new)
            })
            .await?;
        Ok((object, [warnings.into_inner(), more].concat()))
    }
}

fn read(body: &PatchBody) -> Result<PatchText, ApiError> {
    let prefix = match body.kind {
        PatchType::Json | PatchType::Merge => "error decoding patch: ",
        PatchType::Strategic => "",
    };
    let refuse = |why: &str| ApiError::bad_request(format!("{prefix}{why}"));
    let patch = decode::patch(&body.text).map_err(|why| refuse(&why))?;
    let (fits, wanted) = match body.kind {
        PatchType::Json => (patch.value.is_array(), "[]handlers.jsonPatchOp"),
        PatchType::Merge | PatchType::Strategic => {
            (patch.value.is_object(), "map[string]interface {}")
        }
    };
    if !fits {
        let found = decode::kind_of(&patch.value);
        let why = format!("json: cannot unmarshal {found} into Go value of type {wanted}");
        return Err(refuse(&why));
    }
    Ok(patch)
}

/// Kind of value as Go prints it.
fn in_go(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(" ");
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", joined(list.iter().map(in_go).collect())),
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| format!("{key}:{}", in_go(value));
            format!("map[{}]", joined(map.iter().map(entry).collect()))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}
