//! Snapshot of the objects for one use.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use podwright_core::config::env::ObjectKind;
use podwright_core::config::env_file::EnvFile;
use podwright_core::config::{EnvSources, Lookup};
use podwright_core::volume::{sources, token};

use super::Object;

pub struct Fetched {
    api: bool,
    config_maps: BTreeMap<String, Lookup<Arc<v1::ConfigMap>>>,
    secrets: BTreeMap<String, Lookup<Arc<v1::Secret>>>,
    tokens: BTreeMap<token::TokenSpec, Result<Arc<str>, String>>,
    /// By volume and path; `None` if it cannot be read.
    files: BTreeMap<(String, String), Option<FileRead>>,
}

/// A file of a volume. No `Debug`, because it may hold secrets.
pub struct FileRead {
    /// Its path on the host.
    pub path: String,
    pub content: Vec<u8>,
}

impl Fetched {
    pub(super) fn new(api: bool) -> Self {
        Self {
            api,
            config_maps: BTreeMap::new(),
            secrets: BTreeMap::new(),
            tokens: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    pub(super) fn add(&mut self, kind: ObjectKind, name: String, found: Lookup<Object>) {
        match (kind, found) {
            (ObjectKind::ConfigMap, found) => {
                let found = only(found, |object| match object {
                    Object::ConfigMap(map) => Some(map),
                    Object::Secret(_) => None,
                });
                self.config_maps.insert(name, found);
            }
            (ObjectKind::Secret, found) => {
                let found = only(found, |object| match object {
                    Object::Secret(secret) => Some(secret),
                    Object::ConfigMap(_) => None,
                });
                self.secrets.insert(name, found);
            }
        }
    }

    pub fn add_token(&mut self, wanted: token::TokenSpec, token: Result<Arc<str>, String>) {
        self.tokens.insert(wanted, token);
    }

    /// Adds a file of a volume; `None` if it cannot be read.
    pub fn add_file(&mut self, volume: &str, path: &str, read: Option<FileRead>) {
        self.files.insert((volume.to_owned(), path.to_owned()), read);
    }

    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        borrowed(self.api, self.config_maps.get(name))
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        borrowed(self.api, self.secrets.get(name))
    }
}

impl EnvSources for Fetched {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        self.config_map(name)
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        self.secret(name)
    }

    fn file(&self, volume: &str, path: &str) -> EnvFile<'_> {
        match self.files.get(&(volume.to_owned(), path.to_owned())) {
            None => EnvFile::NoVolume,
            Some(None) => EnvFile::Unreadable,
            Some(Some(FileRead { path, content })) => EnvFile::Read { path, content },
        }
    }
}

impl sources::Objects for Fetched {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap> {
        self.config_map(name)
    }

    fn secret(&self, name: &str) -> Lookup<&v1::Secret> {
        self.secret(name)
    }

    fn token(&self, wanted: &token::TokenSpec) -> Result<&str, String> {
        match self.tokens.get(wanted) {
            Some(Ok(token)) => Ok(token),
            Some(Err(problem)) => Err(problem.clone()),
            None => Err("the token was not requested".into()),
        }
    }
}

fn only<T>(found: Lookup<Object>, pick: impl FnOnce(Object) -> Option<T>) -> Lookup<T> {
    match found {
        Lookup::Found(object) => pick(object).map_or(Lookup::Missing, Lookup::Found),
        Lookup::Missing => Lookup::Missing,
        Lookup::NoApiServer => Lookup::NoApiServer,
        Lookup::Failed(problem) => Lookup::Failed(problem),
    }
}

fn borrowed<T>(api: bool, found: Option<&Lookup<Arc<T>>>) -> Lookup<&T> {
    match found {
        Some(Lookup::Found(object)) => Lookup::Found(object),
        Some(Lookup::Missing) => Lookup::Missing,
        Some(Lookup::Failed(problem)) => Lookup::Failed(problem.clone()),
        Some(Lookup::NoApiServer) | None if !api => Lookup::NoApiServer,
        Some(Lookup::NoApiServer) | None => Lookup::Missing,
    }
}
