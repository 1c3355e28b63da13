//! Pull credentials of a pod: its pull secrets, the Docker configuration of the node, and plugins.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1;
use parking_lot::Mutex;
use podwright_core::config::Lookup;
use podwright_core::credential::{
    self, Credential, CredentialOrigin, DockerConfigError, Keyring, Login, ObjectId,
};
use podwright_core::image::access::PullCredential;
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use sha2::{Digest, Sha256};

use super::plugins::Plugins;
use super::records::hex;

/// How long the files of the node are cached.
const CACHE_TTL: Duration = Duration::from_secs(300);
const MAX_FILE_SIZE: u64 = 1 << 20;

/// Source of the pods' pull secrets.
pub trait Secrets: Send + Sync {
    fn secret<'a>(&'a self, pod: &'a Pod, name: &'a str) -> BoxFuture<'a, Lookup<Arc<v1::Secret>>>;
}

pub(super) struct Credentials {
    pub(super) secrets: Arc<dyn Secrets>,
    pub(super) node: NodeFiles,
    pub(super) plugins: Plugins,
}

/// Credentials of a pod, and the pull secrets that could not be read.
pub(super) struct Gathered {
    pub(super) credentials: Vec<Credential>,
    pub(super) missing: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use the pull secret {namespace}/{name}")]
pub(super) struct BadSecret {
    namespace: String,
    name: String,
    source: DockerConfigError,
}

impl Credentials {
    /// Credentials for an image of a pod, in the order in which they are tried.
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
                    let origin = CredentialOrigin::Secret(ObjectId { uid, namespace, name });
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

/// Entry for the pull records: the origin of the login and its hash in upstream's format.
pub(super) fn pass(credential: &Credential) -> PullCredential {
    PullCredential { origin: credential.origin.clone(), hash: hash(&credential.login) }
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
    directories: Vec<PathBuf>,
    clock: Clock,
    read: Mutex<Option<(Arc<Keyring>, Mono)>>,
}

impl NodeFiles {
    pub(super) fn new(directories: Vec<PathBuf>, clock: Clock) -> Self {
        Self { directories, clock, read: Mutex::default() }
    }

    fn keyring(&self) -> Arc<Keyring> {
        let now = self.clock.now().mono;
        let mut read = self.read.lock();
        if let Some((keyring, at)) = &*read
            && now.since(*at) < CACHE_TTL
        {
            return keyring.clone();
        }
        let mut keyring = Keyring::default();
        keyring.add(self.first_readable(), &CredentialOrigin::Node);
        let keyring = Arc::new(keyring);
        *read = Some((keyring.clone(), now));
        keyring
    }

    /// `config.json` in any of the directories, else `.dockercfg`.
    fn first_readable(&self) -> Vec<(String, Login)> {
        for (name, old) in [("config.json", false), (".dockercfg", true)] {
            for directory in &self.directories {
                let path = directory.join(name);
                let Some(bytes) = read(&path) else { continue };
                match credential::from_config(&bytes, old) {
                    Ok(logins) => return logins,
                    Err(error) => {
                        tracing::warn!(
                            %error, path = %path.display(),
                            "invalid docker configuration, ignoring it"
                        );
                    }
                }
            }
        }
        Vec::new()
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let metadata = std::fs::metadata(path).ok()?;
    (metadata.is_file() && metadata.len() <= MAX_FILE_SIZE).then(|| std::fs::read(path).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_hash_matches_upstream() {
        let login = Login { username: "u".into(), password: "<&>\"".into() };
        let json = r#"{"username":"u","password":"\u003c\u0026\u003e\""}"#;
        assert_eq!(hash(&login), hex(&Sha256::digest(json.as_bytes())));
    }

    #[test]
    fn config_json_is_preferred_and_files_are_reread_after_expiry() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let old = r#"{"a.io":{"username":"old","password":"p"}}"#;
        let new = r#"{"auths":{"a.io":{"username":"new","password":"p"}}}"#;
        std::fs::write(first.path().join(".dockercfg"), old).unwrap();
        std::fs::write(first.path().join("config.json"), "{ broken").unwrap();
        let clock = Clock::manual(podwright_core::builders::t(0));
        let directories = vec![first.path().to_owned(), second.path().to_owned()];
        let files = NodeFiles::new(directories, clock.clone());
        let user = || files.keyring().lookup("a.io/app")[0].login.username.clone();
        assert_eq!(user(), "old");
        std::fs::write(second.path().join("config.json"), new).unwrap();
        assert_eq!(user(), "old", "still cached");
        clock.advance(CACHE_TTL);
        assert_eq!(user(), "new");
    }
}
