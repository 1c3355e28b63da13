//! POST to a collection.

use crate::access::Identity;
use crate::admission::pod_security;
use crate::clock::rfc3339;
use crate::controllers::namespace_contents;
use crate::events;
use crate::object::Object;
use crate::options::WriteOptions;
use crate::ownership::Author;
use crate::registry::{self, Resource};
use crate::request::RequestInfo;
use crate::server::ApiServer;
use crate::status::ApiError;
use crate::store::{CommitError, Key};
use crate::{defaults, strategy, validation};

use super::{at_revision, invalid, put, revision_of};

/// Number of generated names tried.
const GENERATED_NAMES: usize = 8;
/// Longer bases are truncated, so that the name with its suffix fits.
const MAX_BASE_LENGTH: usize = 58;

impl ApiServer {
    /// Stores a new object, given in its stored form, and returns it as stored.
    pub async fn create(
        &self,
        info: &RequestInfo,
        mut object: Object,
        options: &WriteOptions,
    ) -> Result<Object, ApiError> {
        match_namespace(info, &mut object)?;
        object.edit(|value| defaults::apply(events::stored_as(info.resource), value));
        Author::new(info, options, self.now()).created(&mut object);
        self.create_tracked(info, object, options).await
    }

    /// Checks what only a creation needs, beyond authorization. Returns warnings for the client.
    pub(crate) fn check_new(
        &self,
        identity: &Identity,
        info: &RequestInfo,
        object: &Object,
    ) -> Result<Vec<String>, ApiError> {
        self.restrict_create(identity, info, object)?;
        self.check_grant(identity, info, None, object)?;
        if !pod_security::concerns(info) {
            return Ok(Vec::new());
        }
        let mut defaulted = object.clone();
        defaulted.edit(|value| defaults::apply(info.resource, value));
        self.check_pod_security(identity, info, None, &defaulted)
    }

    /// As [`Self::create`], for an object with defaults and field managers.
    pub(super) async fn create_tracked(
        &self,
        info: &RequestInfo,
        mut object: Object,
        options: &WriteOptions,
    ) -> Result<Object, ApiError> {
        let dry_run = options.dry_run;
        let resource = info.resource;
        if !resource.allows(registry::Verb::Create) {
            return Err(read_only(resource));
        }
        if !matches!(object.resource_version(), "" | "0") {
            return Err(ApiError::unclassified(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        object.set_meta("resourceVersion", None);
        self.check_namespace(info, &object)?;
        let stored_as = events::stored_as(resource);
        if resource == &registry::PODS {
            self.admit_pod(&mut object)?;
        }
        strategy::prepare_create(stored_as, &mut object);
        object.edit(|value| defaults::on_create(stored_as, value));
        object.set_meta("uid", Some(self.ids().uid().into()));
        object.set_meta("creationTimestamp", Some(rfc3339(self.now()).into()));
        let base = object.text("/metadata/generateName").to_owned();
        if !object.name().is_empty() || base.is_empty() {
            return self.insert(info, object, dry_run).await;
        }
        let mut taken = String::new();
        for _ in 0..GENERATED_NAMES {
            let mut named = object.clone();
            let name = format!("{}{}", shortened(&base), self.ids().suffix());
            named.set_meta("name", Some(name.clone().into()));
            match self.insert(info, named, dry_run).await {
                Err(error) if error.reason == "AlreadyExists" => taken = name,
                other => return other,
            }
        }
        Err(ApiError::generated_name_taken(resource, &taken))
    }

    async fn insert(
        &self,
        info: &RequestInfo,
        mut object: Object,
        dry_run: bool,
    ) -> Result<Object, ApiError> {
        let resource = info.resource;
        let stored_as = events::stored_as(resource);
        strategy::finish_create(stored_as, &mut object);
        let errors = if resource == &registry::EVENTS_V1 {
            validation::create_newer_event(object.value())
        } else {
            validation::create(stored_as, object.value())
        };
        // Validation messages use the kind of the stored form.
        invalid(stored_as, object.name(), &errors)?;
        let key = Key::new(resource, &info.namespace, object.name());
        if dry_run {
            return match self.store().get(&key)? {
                Some(_) => Err(ApiError::already_exists(resource, object.name())),
                None => Ok(object),
            };
        }
        let mut changes = vec![put(key.clone(), None, &object)];
        if resource == &registry::NAMESPACES {
            changes.extend(namespace_contents(self, object.name()));
        }
        match self.store().commit(changes).await {
            Ok(revisions) => Ok(at_revision(object, revision_of(&revisions))),
            Err(CommitError::Store(error)) => Err(error.into()),
            // Leftovers of a namespace of that name exist: they belong to the new one.
            Err(CommitError::Conflict { key: found, .. }) if found != key => {
                let changes = vec![put(key, None, &object)];
                match self.store().commit(changes).await {
                    Ok(revisions) => Ok(at_revision(object, revision_of(&revisions))),
                    Err(CommitError::Store(error)) => Err(error.into()),
                    Err(CommitError::Conflict { .. }) => {
                        Err(ApiError::already_exists(resource, object.name()))
                    }
                }
            }
            Err(CommitError::Conflict { .. }) => {
                Err(ApiError::already_exists(resource, object.name()))
            }
        }
    }

    /// Refuses to create anything in a namespace that does not exist or is being deleted.
    fn check_namespace(&self, info: &RequestInfo, object: &Object) -> Result<(), ApiError> {
        if !info.resource.namespaced {
            return Ok(());
        }
        let key = Key::new(&registry::NAMESPACES, "", &info.namespace);
        let Some(namespace) = self.read(&registry::NAMESPACES, &key)? else {
            return Err(ApiError::not_found(&registry::NAMESPACES, &info.namespace));
        };
        if namespace.is_being_deleted() {
            let name = object.shown_name();
            return Err(ApiError::namespace_terminating(info.resource, name, &info.namespace));
        }
        Ok(())
    }
}

/// The namespace in the path applies to the object.
pub(super) fn match_namespace(info: &RequestInfo, object: &mut Object) -> Result<(), ApiError> {
    if !info.resource.namespaced {
        object.set_meta("namespace", None);
        return Ok(());
    }
    if info.namespace.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    if !object.namespace().is_empty() && object.namespace() != info.namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    object.set_meta("namespace", Some(info.namespace.clone().into()));
    Ok(())
}

/// The name in the path, if any, must be that of the object.
pub(super) fn match_name(info: &RequestInfo, object: &Object) -> Result<(), ApiError> {
    if object.name().is_empty() || object.name() == info.name {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the name of the object ({}) does not match the name on the URL ({})",
        object.name(),
        info.name
    )))
}

pub(crate) fn read_only(resource: &Resource) -> ApiError {
    if resource == &registry::SERVICES {
        return ApiError::not_supported(
            resource,
            "services are read-only here: a Service needs a proxy and a DNS server for the whole cluster, and podwright \
             runs one machine without them; reach a pod by its IP, a hostPort or `kubectl port-forward`, or join a \
             cluster with `podwright kubelet --kubeconfig`",
        );
    }
    ApiError::method_not_allowed()
}

fn shortened(base: &str) -> &str {
    let mut end = base.len().min(MAX_BASE_LENGTH);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    base.get(..end).unwrap_or_default()
}
