//! PUT, and the parts shared by all updates of existing objects.

use crate::access::{AccessRequest, Attributes, Identity, denied, node};
use crate::events;
use crate::object::Object;
use crate::options::WriteOptions;
use crate::ownership::{Author, same_but_for_times};
use crate::registry::{self, Verb};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::{ApiError, FieldError};
use crate::{admission, defaults, strategy, validation};

use super::create::{match_name, match_namespace, read_only};
use super::{
    ATTEMPTS, at_revision, invalid, lost_race, precondition_failed, put, remove, revision_of,
};

/// An object after a write.
#[derive(Debug)]
pub struct Updated {
    pub object: Object,
    pub created: bool,
    /// Warnings for the client.
    pub warnings: Vec<String>,
}

impl ApiServer {
    /// Replaces an object by one given in its stored form.
    pub async fn update(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        mut object: Object,
        options: &WriteOptions,
    ) -> Result<Updated, ApiError> {
        if info.subresource.is_none() && !info.resource.allows(Verb::Update) {
            return Err(read_only(info.resource));
        }
        match_namespace(info, &mut object)?;
        match_name(info, &object)?;
        object.set_meta("name", Some(info.name.clone().into()));
        let stored_as = events::stored_as(info.resource);
        object.edit(|value| defaults::apply(stored_as, value));
        let unversioned = matches!(object.resource_version(), "" | "0");
        let author = Author::new(info, options, self.now());
        let rewritten = self
            .rewrite(identity, info, options, |old| {
                if !object.uid().is_empty() && object.uid() != old.uid() {
                    return Err(precondition_failed(info, "UID", object.uid(), old.uid()));
                }
                if unversioned && !strategy::updates_unconditionally(info.resource) {
                    return Err(version_missing(info));
                }
                let mut new = object.clone();
                author.updated(old, &mut new);
                Ok(new)
            })
            .await;
        match rewritten {
            Err(error) if error.code == 404 && strategy::creates_on_update(info.resource) => {
                let create = RequestInfo { verb: Verb::Create, ..info.clone() };
                self.may_also(identity, &create)?;
                self.restrict_create(identity, info, &object)?;
                self.check_grant(identity, info, None, &object)?;
                object.set_meta("resourceVersion", None);
                let object = self.create(info, object, options).await?;
                Ok(Updated { object, created: true, warnings: Vec::new() })
            }
            Err(error) => Err(error),
            Ok((object, warnings)) => Ok(Updated { object, created: false, warnings }),
        }
    }

    /// Authorizes what a request does beside its own verb.
    pub(super) fn may_also(&self, identity: &Identity, info: &RequestInfo) -> Result<(), ApiError> {
        let requested = Attributes::from(info);
        self.authorize(identity, &AccessRequest::Objects(requested))
            .map(drop)
            .map_err(|why| denied(identity, &requested, &why))
    }

    /// Reads the object, applies `change`, validates and writes the result. If the client gave a
    /// version, the object must still have it. Returns warnings for the client, too.
    pub(super) async fn rewrite(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        options: &WriteOptions,
        change: impl Fn(&Object) -> Result<Object, ApiError>,
    ) -> Result<(Object, Vec<String>), ApiError> {
        let resource = info.resource;
        let stored_as = events::stored_as(resource);
        let subresource = info.subresource.map(|sub| sub.name);
        for _ in 0..ATTEMPTS {
            let (key, old, revision) = self.named(info)?;
            let mut new = change(&old)?;
            node::restrict_change(identity, info, &old, &new)?;
            self.check_grant(identity, info, Some(&old), &new)?;
            if !matches!(new.resource_version(), "" | "0")
                && new.resource_version() != old.resource_version()
            {
                return Err(ApiError::stale(resource, &info.name));
            }
            if resource == &registry::PODS && subresource.is_none() {
                admission::admit_pod_update(&mut new, &old);
            }
            strategy::prepare_update(stored_as, subresource, &mut new, &old);
            new.set_meta("resourceVersion", old.meta().get("resourceVersion").cloned());
            new.set_type(stored_as);
            let warnings = self.check_pod_security(identity, info, Some(&old), &new)?;
            let errors = validation::update(stored_as, subresource, new.value(), old.value());
            invalid(resource, &info.name, &errors)?;
            if same_but_for_times(&new, &old) {
                return Ok((old, warnings));
            }
            if options.dry_run {
                return Ok((new, warnings));
            }
            let change = if nothing_holds(stored_as, &new) {
                remove(key, revision, &new)
            } else {
                put(key, Some((&old, revision)), &new)
            };
            match self.store().commit(vec![change]).await {
                Ok(revisions) => {
                    return Ok((at_revision(new, revision_of(&revisions)), warnings));
                }
                Err(error) => lost_race(error)?,
            }
        }
        Err(ApiError::stale(resource, &info.name))
    }
}

/// Whether an object being deleted has just lost its last finalizer.
fn nothing_holds(resource: &registry::Resource, object: &Object) -> bool {
    if !object.is_being_deleted() || !object.finalizers().is_empty() {
        return false;
    }
    if resource == &registry::NAMESPACES {
        let finalizers = object.value().pointer("/spec/finalizers");
        return finalizers.and_then(serde_json::Value::as_array).is_none_or(Vec::is_empty);
    }
    object.deletion_grace().unwrap_or(0) == 0
}

fn version_missing(info: &RequestInfo) -> ApiError {
    let error = FieldError {
        reason: "FieldValueInvalid",
        field: "metadata.resourceVersion".to_owned(),
        message: "Invalid value: 0: must be specified for an update".to_owned(),
    };
    // kube-apiserver uses the resource here where it uses the kind elsewhere.
    ApiError::invalid(info.resource.plural, info.resource.group, &info.name, &[error])
}
