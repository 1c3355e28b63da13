//! Credential provider plugins.
//!
//! A plugin is a program that reads a request from its standard input and prints a response. An
//! error of one plugin is logged and does not affect the others. Neither the request nor the
//! response is ever logged or stored.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use podwright_core::credential::{
    self, Credential, CredentialOrigin, Keyring, ObjectId, Provider, ResponseError,
    ServiceAccountView, TokenCaching, TokenConfig,
};
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::records::hex;
use crate::error_chain::chain;
use crate::metrics::Metrics;

const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RESPONSE_SIZE: u64 = 1 << 20;

/// Source of service accounts and their tokens.
pub trait Accounts: Send + Sync {
    fn account<'a>(
        &'a self,
        pod: &'a Pod,
    ) -> BoxFuture<'a, Result<Option<(ObjectId, ServiceAccountView)>, String>>;
    /// A token of the pod's account, bound to the pod.
    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<String, String>>;
}

#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("cannot run the plugin")]
    Run(#[from] io::Error),
    #[error("the plugin did not respond within a minute")]
    TimedOut,
    #[error("the plugin failed ({0})")]
    Failed(std::process::ExitStatus),
    #[error("the response of the plugin is invalid")]
    Answer(#[from] ResponseError),
    #[error("cannot get the service account of the pod: {0}")]
    Account(String),
}

/// Cache key: the plugin, the image, registry or everything, and the identity of the account.
type Key = (usize, String, String);

pub(super) struct Plugins {
    providers: Vec<Provider>,
    directory: PathBuf,
    accounts: Arc<dyn Accounts>,
    clock: Clock,
    metrics: Arc<Metrics>,
    cache: Mutex<HashMap<Key, (Arc<Keyring>, Mono)>>,
}

/// A service account as passed to a plugin.
struct PresentedAccount {
    account: ObjectId,
    token: String,
    annotations: BTreeMap<String, String>,
}

impl Plugins {
    pub(super) fn new(
        providers: Vec<Provider>,
        directory: PathBuf,
        accounts: Arc<dyn Accounts>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { providers, directory, accounts, clock, metrics, cache: Mutex::default() }
    }

    pub(super) async fn lookup(&self, pod: &Pod, repository: &str) -> Vec<Credential> {
        let mut found = Vec::new();
        for (index, provider) in self.providers.iter().enumerate() {
            if !provider.serves(repository) {
                continue;
            }
            match self.call(index, provider, pod, repository).await {
                Ok(keyring) => found.extend(keyring.lookup(repository)),
                Err(error) => {
                    self.metrics.images.plugin_failed(&provider.name);
                    let (plugin, error) = (&provider.name, chain(&error));
                    tracing::warn!(
                        plugin,
                        image = repository,
                        error,
                        "credential provider plugin failed, pulling without its credentials"
                    );
                }
            }
        }
        found
    }

    async fn call(
        &self,
        index: usize,
        provider: &Provider,
        pod: &Pod,
        repository: &str,
    ) -> Result<Arc<Keyring>, PluginError> {
        let presented = match &provider.token {
            None => None,
            Some(token_config) => {
                self.present_account(token_config, pod).await.map_err(PluginError::Account)?
            }
        };
        let account_key =
            presented.as_ref().map(|presented| identity(provider, presented)).unwrap_or_default();
        if let Some(keyring) = self.cached(index, repository, &account_key) {
            return Ok(keyring);
        }
        let began = self.clock.now().mono;
        let account =
            presented.as_ref().map(|presented| (presented.token.as_str(), &presented.annotations));
        let request = credential::request(provider, repository, account);
        let printed = tokio::time::timeout(PLUGIN_TIMEOUT, self.run(provider, &request)).await;
        let now = self.clock.now().mono;
        self.metrics.images.plugin_ran(&provider.name, now.since(began));
        let answer = provider.parse_response(&printed.map_err(|_| PluginError::TimedOut)??)?;
        let mut keyring = Keyring::default();
        let origin = match presented {
            None => CredentialOrigin::Node,
            Some(presented) => CredentialOrigin::ServiceAccount(presented.account),
        };
        keyring.add(answer.logins, &origin);
        let keyring = Arc::new(keyring);
        if !answer.keep.is_zero() {
            let key = (index, cache_key(answer.key, repository), account_key);
            let mut cache = self.cache.lock();
            cache.retain(|_, (_, until)| *until > now);
            cache.insert(key, (keyring.clone(), now + answer.keep));
        }
        Ok(keyring)
    }

    fn cached(&self, index: usize, repository: &str, account_key: &str) -> Option<Arc<Keyring>> {
        use credential::CacheKey::{Global, Image, Registry};
        let now = self.clock.now().mono;
        let cache = self.cache.lock();
        let find = |kind| {
            let key = (index, cache_key(kind, repository), account_key.to_owned());
            cache.get(&key).filter(|(_, until)| *until > now).map(|(keyring, _)| keyring.clone())
        };
        [Image, Registry, Global].into_iter().find_map(find)
    }

    /// `None`: the pod has no account, and the plugin does not require one.
    async fn present_account(
        &self,
        token_config: &TokenConfig,
        pod: &Pod,
    ) -> Result<Option<PresentedAccount>, String> {
        let Some((account, view)) = self.accounts.account(pod).await? else {
            return match token_config.required {
                true => Err("the pod has no service account".to_owned()),
                false => Ok(None),
            };
        };
        let annotations = token_config
            .annotations(&view)
            .map_err(|missing| format!("the service account lacks the annotation {missing:?}"))?;
        let token = self.accounts.token(pod, &token_config.audience).await?;
        Ok(Some(PresentedAccount { account, token, annotations }))
    }

    async fn run(&self, provider: &Provider, request: &[u8]) -> Result<Vec<u8>, PluginError> {
        let mut child = Command::new(self.directory.join(&provider.name))
            .args(&provider.args)
            .envs(provider.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (mut input, mut output) = (child.stdin.take(), child.stdout.take());
        let write = async {
            if let Some(input) = &mut input {
                // A plugin that ignores the request closes its input early.
                let _ = input.write_all(request).await;
            }
            drop(input);
        };
        let read = async {
            let mut printed = Vec::new();
            if let Some(output) = &mut output {
                output.take(MAX_RESPONSE_SIZE).read_to_end(&mut printed).await?;
            }
            Ok::<_, io::Error>(printed)
        };
        let ((), printed) = tokio::join!(write, read);
        let status = child.wait().await?;
        match status.success() {
            true => Ok(printed?),
            false => Err(PluginError::Failed(status)),
        }
    }
}

/// Identity of an account in the cache. A token is only stored as a hash.
fn identity(provider: &Provider, presented: &PresentedAccount) -> String {
    let ObjectId { uid, namespace, name } = &presented.account;
    let annotations = serde_json::to_string(&presented.annotations).unwrap_or_default();
    let token = match provider.token.as_ref().map(|token_config| token_config.caching) {
        Some(TokenCaching::Token) => hex(&Sha256::digest(presented.token.as_bytes())),
        Some(TokenCaching::ServiceAccount) | None => String::new(),
    };
    format!("{namespace}/{name}/{uid}/{annotations}/{token}")
}

/// Includes the type of the key, because an image and a registry may have the same name.
fn cache_key(kind: credential::CacheKey, repository: &str) -> String {
    format!("{kind:?}/{}", kind.of(repository))
}
