//! Gathers the credentials a pod may use: its own secrets, the node's files, and plugins.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::config::Lookup;
use podwright_core::credential::{self, BadConfig, Credential, Keyring, Login, ObjectId, Origin};
use podwright_core::image::access::Pass;
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use sha2::{Digest, Sha256};

use super::plugins::Plugins;
use super::records::hex;

/// Files on the node are read again after this.
const FRESH: Duration = Duration::from_secs(300);
const LARGEST: u64 = 1 << 20;

/// Where pods' secrets come from.
pub trait Secrets: Send + Sync {
    fn secret<'a>(&'a self, pod: &'a Pod, name: &'a str) -> BoxFuture<'a, Lookup<Arc<v1::Secret>>>;
}

pub(super) struct Credentials {
    pub(super) secrets: Arc<dyn Secrets>,
    pub(super) node: NodeFiles,
    pub(super) plugins: Plugins,
}

/// What a pod can show, and which of its secrets could not be had.
pub(super) struct Gathered {
    pub(super) credentials: Vec<Credential>,
    pub(super) missing: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use the pull secret {namespace}/{name}")]
pub(super) struct BadSecret {
    namespace: String,
    name: String,
    source: BadConfig,
}

impl Credentials {
    /// For an image of a pod, in the order in which they are to be tried.
    pub(super) async fn gather(&self, pod: &Pod, repository: &str) -> Result<Gathered, BadSecret> {
        let (mut credentials, mut missing) = (Vec::new(), Vec::new());
        let namespace = &pod.name.namespace;
        let mut keyring = Keyring::default();
        for name in pull_secrets(pod) {
            match self.secrets.secret(pod, name).await {
                Lookup::Found(secret) => {
                    let logins = credential::from_secret(&secret).map_err(|source| BadSecret {
                        namespace: namespace.to_string(),
                        name: name.to_owned(),
                        source,
                    })?;
                    let uid = secret.metadata.uid.clone().unwrap_or_default();
                    let (namespace, name) = (namespace.to_string(), name.to_owned());
                    let origin = Origin::Secret(ObjectId { uid, namespace, name });
                    keyring.add(logins, &origin);
                }
                Lookup::Missing | Lookup::Failed(_) | Lookup::NoApiServer => {
                    missing.push(name.to_owned());
                }
            }
        }
        credentials.extend(keyring.lookup(repository));
        credentials.extend(self.node.keyring().lookup(repository));
        credentials.extend(self.plugins.lookup(pod, repository).await);
        Ok(Gathered { credentials, missing })
    }
}

fn pull_secrets(pod: &Pod) -> impl Iterator<Item = &str> {
    let secrets = pod.object.spec.as_ref().and_then(|spec| spec.image_pull_secrets.as_ref());
    let names = secrets.into_iter().flatten().map(|secret| secret.name.as_str());
    names.filter(|name| !name.is_empty())
}

/// A pass for the records: who brought the login, and a hash of it in upstream's form.
pub(super) fn pass(credential: &Credential) -> Pass {
    Pass { origin: credential.origin.clone(), hash: hash(&credential.login) }
}

fn hash(login: &Login) -> String {
    let escaped = |text: &str| {
        let text = serde_json::Value::from(text).to_string();
        text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    };
    let mut fields = Vec::new();
    for (name, value) in [("username", &login.username), ("password", &login.password)] {
        if !value.is_empty() {
            fields.push(format!("\"{name}\":{}", escaped(value)));
        }
    }
    hex(&Sha256::digest(format!("{{{}}}", fields.join(",")).as_bytes()))
}

/// Docker's configuration files on the node.
pub(super) struct NodeFiles {
    folders: Vec<PathBuf>,
    clock: Clock,
    read: Mutex<Option<(Arc<Keyring>, Mono)>>,
}

impl NodeFiles {
    pub(super) fn new(folders: Vec<PathBuf>, clock: Clock) -> Self {
        Self { folders, clock, read: Mutex::default() }
    }

    fn keyring(&self) -> Arc<Keyring> {
        let now = self.clock.now().mono;
        let mut read = self.read.lock();
        if let Some((keyring, at)) = &*read
            && now.since(*at) < FRESH
        {
            return keyring.clone();
        }
        let mut keyring = Keyring::default();
        keyring.add(self.first_readable(), &Origin::Node);
        let keyring = Arc::new(keyring);
        *read = Some((keyring.clone(), now));
        keyring
    }

    /// The new form in any of the folders, else the old one.
    fn first_readable(&self) -> Vec<(String, Login)> {
        for (name, old) in [("config.json", false), (".dockercfg", true)] {
            for folder in &self.folders {
                let path = folder.join(name);
                let Some(bytes) = read(&path) else { continue };
                match credential::from_config(&bytes, old) {
                    Ok(logins) => return logins,
                    Err(error) => {
                        tracing::warn!(%error, path = %path.display(), "cannot use these credentials");
                    }
                }
            }
        }
        Vec::new()
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let metadata = std::fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= LARGEST).then(|| std::fs::read(path).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_hashed_as_upstream_does() {
        let login = Login { username: "u".into(), password: "<&>\"".into() };
        let json = r#"{"username":"u","password":"\u003c\u0026\u003e\""}"#;
        assert_eq!(hash(&login), hex(&Sha256::digest(json.as_bytes())));
    }

    #[test]
    fn the_new_form_anywhere_is_preferred_and_files_are_read_again_after_a_while() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = r#"{"a.io":{"username":"old","password":"p"}}"#;
        let new = r#"{"auths":{"a.io":{"username":"new","password":"p"}}}"#;
        std::fs::write(first.path().join(".dockercfg"), old).unwrap();
        std::fs::write(first.path().join("config.json"), "{ broken").unwrap();
        let clock = Clock::manual(podwright_core::builders::t(0));
        let folders = vec![first.path().to_owned(), second.path().to_owned()];
        let files = NodeFiles::new(folders, clock.clone());
        let user = || files.keyring().lookup("a.io/app")[0].login.username.clone();
        assert_eq!(user(), "old");
        std::fs::write(second.path().join("config.json"), new).unwrap();
        assert_eq!(user(), "old", "still fresh");
        clock.advance(FRESH);
        assert_eq!(user(), "new");
    }
}
