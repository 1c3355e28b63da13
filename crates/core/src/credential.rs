//! Registry credentials and the lookup of those that apply to an image.
//!
//! They come from pull secrets, from files on the node and from credential provider plugins, all in
//! the format of Docker's configuration: a map from a registry location to a login. Passwords are
//! never printed, not even by `Debug`.

mod docker;
mod pattern;
mod provider;

pub use docker::{DockerConfigError, from_config, from_secret};
pub use pattern::matches;
pub use provider::{
    CacheKey, Provider, ProviderConfigError, ProviderResponse, ResponseError, ServiceAccountView,
    TokenCaching, TokenConfig, providers, request,
};

use std::collections::BTreeMap;
use std::fmt;

/// User name and password.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Login {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(hidden)")
    }
}

/// Source of a login.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CredentialOrigin {
    /// The node: every pod may use it.
    Node,
    Secret(ObjectId),
    /// A plugin that received a token of this service account.
    ServiceAccount(ObjectId),
}

/// An API object by UID and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credential {
    pub login: Login,
    pub origin: CredentialOrigin,
}

/// Logins by registry location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// By host, with port and path where given.
    keys: BTreeMap<String, Vec<Credential>>,
}

/// Docker Hub has several names; this is the one in Docker's configuration.
const HUB: &str = "index.docker.io";

impl Keyring {
    /// Adds a configuration. Locations are URLs or have no scheme.
    pub fn add(&mut self, config: Vec<(String, Login)>, origin: &CredentialOrigin) {
        for (place, login) in config {
            let credential = Credential { login, origin: origin.clone() };
            self.keys.entry(pattern::key(&place)).or_default().push(credential);
        }
    }

    /// All credentials for a repository, in the order in which to try them. A key with a path comes
    /// before the same host without one.
    pub fn lookup(&self, repository: &str) -> Vec<Credential> {
        let fitting = self.keys.iter().rev().filter(|(key, _)| matches(key, repository));
        let found: Vec<Credential> = fitting.flat_map(|(_, all)| all).cloned().collect();
        if !found.is_empty() || !is_on_hub(repository) {
            return found;
        }
        self.keys.get(HUB).cloned().unwrap_or_default()
    }
}

fn is_on_hub(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some(("", _)) => false,
        Some((host, _)) => host == "docker.io" || host == HUB || !host.contains(['.', ':']),
    }
}

#[cfg(test)]
mod tests;
