//! REST verbs: create, read, update, patch, delete, the same for every kind.
//!
//! Every write reads the object, builds the new one from it, validates, and commits on the
//! condition that the object has not changed; on a conflict it starts over. So nothing is locked,
//! and a slow or hostile request blocks no other.

use crate::document::{Document, DocumentError, Revision};
use crate::events;
use crate::object::Object;
use crate::options::WriteOptions;
use crate::ownership::Author;
use crate::registry::{Resource, Verb};
use crate::request::RequestInfo;
use crate::selector::Facets;
use crate::server::ApiServer;
use crate::status::{ApiError, FieldError};
use crate::store::{Change, CommitError, Key, Precondition, StoreError, WriteOp};

mod apply;
mod create;
mod delete;
mod patch;
mod pods;
mod read;
mod update;

pub(crate) use create::read_only;
pub use delete::Deleted;
pub(crate) use delete::{FOREGROUND, ORPHAN};
pub use patch::PatchBody;
pub(crate) use pods::set_condition;
pub use read::ListPage;
pub use update::Updated;

/// Number of attempts of a write before the client gets a conflict.
const ATTEMPTS: usize = 32;

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.is_transient() {
            return Self::storage_failed(error.to_string()); // the store has logged it
        }
        tracing::error!(%error, "store failed");
        Self::internal(error.to_string())
    }
}

impl From<DocumentError> for ApiError {
    fn from(error: DocumentError) -> Self {
        tracing::error!(%error, "cannot parse stored object");
        Self::internal(error.to_string())
    }
}

impl ApiServer {
    /// An object in its stored form.
    pub(crate) fn read(
        &self,
        resource: &'static Resource,
        key: &Key,
    ) -> Result<Option<Object>, ApiError> {
        let document = self.store().get(key)?;
        Ok(document.map(|document| document.object(events::stored_as(resource))).transpose()?)
    }

    /// Changes an object that the server maintains, at whatever version, without the rules for
    /// clients. Returns whether anything changed; false if the object does not exist.
    pub(crate) async fn amend(
        &self,
        resource: &'static Resource,
        key: &Key,
        change: impl Fn(&mut Object),
    ) -> Result<bool, ApiError> {
        let options = WriteOptions::of_server();
        for _ in 0..ATTEMPTS {
            let Some(document) = self.store().get(key)? else { return Ok(false) };
            let old = document.object(resource)?;
            let mut new = old.clone();
            change(&mut new);
            if new == old {
                return Ok(false);
            }
            let info = RequestInfo {
                verb: Verb::Update,
                resource,
                subresource: None,
                namespace: new.namespace().to_owned(),
                name: key.name().to_owned(),
            };
            Author::new(&info, &options, self.now()).updated(&old, &mut new);
            let change = put(key.clone(), Some((&old, document.revision)), &new);
            match self.store().commit(vec![change]).await {
                Ok(_) => return Ok(true),
                Err(error) => lost_race(error)?,
            }
        }
        Err(ApiError::stale(resource, key.name()))
    }

    /// The object of a request, with the revision it was read at.
    fn named(&self, info: &RequestInfo) -> Result<(Key, Object, Revision), ApiError> {
        let key = Key::new(info.resource, &info.namespace, &info.name);
        let document = self.store().get(&key)?;
        let document = document.ok_or_else(|| ApiError::not_found(info.resource, &info.name))?;
        let object = document.object(events::stored_as(info.resource))?;
        Ok((key, object, document.revision))
    }
}

/// The object exists, but does not meet the client's precondition.
fn precondition_failed(info: &RequestInfo, what: &str, requested: &str, found: &str) -> ApiError {
    let directory = match info.resource.storage {
        "nodes" => "minions", // their storage path since before they were called nodes
        storage => storage,
    };
    let path = match info.namespace.as_str() {
        "" => format!("/registry/{directory}/{}", info.name),
        namespace => format!("/registry/{directory}/{namespace}/{}", info.name),
    };
    ApiError::conflict(
        info.resource.plural,
        info.resource.group,
        &info.name,
        &format!(
            "StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
             failed: {what} in precondition: {requested}, {what} in object meta: {found}"
        ),
    )
}

fn invalid(resource: &'static Resource, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(resource.kind, resource.group, name, errors))
}

fn at_revision(mut object: Object, revision: Revision) -> Object {
    object.set_meta("resourceVersion", Some(revision.to_string().into()));
    object
}

/// The change that writes `new` over `old`.
fn put(key: Key, old: Option<(&Object, Revision)>, new: &Object) -> Change {
    let previous = old.and_then(|(old, _)| {
        let moved = Facets::of(old.value()) != Facets::of(new.value());
        moved.then(|| Document::text(old.clone()))
    });
    Change {
        key,
        expect: old.map_or(Precondition::Absent, |(_, revision)| Precondition::At(revision)),
        op: WriteOp::Put { text: Document::text(new.clone()), previous },
    }
}

fn remove(key: Key, revision: Revision, last: &Object) -> Change {
    Change {
        key,
        expect: Precondition::At(revision),
        op: WriteOp::Delete { last: Document::text(last.clone()) },
    }
}

/// Handles a failed commit: `Ok` means that another client wrote first.
fn lost_race(error: CommitError) -> Result<(), ApiError> {
    match error {
        CommitError::Conflict { .. } => Ok(()),
        CommitError::Store(error) => Err(error.into()),
    }
}

fn revision_of(revisions: &[Revision]) -> Revision {
    revisions.first().copied().unwrap_or_default()
}
