//! Credentials for registries, and which of them are for which image.
//!
//! They come from pods' secrets, from files on the node and from plugins, all in the form that
//! Docker's configuration has: a map from a place in a registry to a login. What is secret is
//! never shown, not even to a debugger.

mod docker;
mod pattern;
mod provider;

pub use docker::{BadConfig, from_config, from_secret};
pub use pattern::matches;
pub use provider::{
    Answer, BadAnswer, BadProviders, CacheKey, Provider, ServiceAccountView, TokenCaching,
    TokenWish, providers, request,
};

use std::collections::BTreeMap;
use std::fmt;

/// A name and a password.
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

/// Who brought a login along.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The node: any pod may use it.
    Node,
    Secret(ObjectId),
    /// A plugin that was shown this account's token.
    ServiceAccount(ObjectId),
}

/// An object of the API, as it is and not only as it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Credential {
    pub login: Login,
    pub origin: Origin,
}

/// Logins by the place they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keyring {
    /// By host, with port and path where given.
    keys: BTreeMap<String, Vec<Credential>>,
}

/// Docker Hub goes by several names; this is the one its configuration uses.
const HUB: &str = "index.docker.io";

impl Keyring {
    /// Adds a configuration. Places are written as URLs or without a scheme.
    pub fn add(&mut self, config: Vec<(String, Login)>, origin: &Origin) {
        for (place, login) in config {
            let credential = Credential { login, origin: origin.clone() };
            self.keys.entry(pattern::key(&place)).or_default().push(credential);
        }
    }

    /// Every credential for a repository, in the order in which they are to be tried. A key with
    /// a path comes before the same one without.
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
