//! Asks the plugins that know credentials.
//!
//! A plugin is a program: what is asked goes to its input, the answer is its output. Whatever
//! goes wrong with one is told in the log and costs nobody else anything; neither what it was
//! shown nor what it said is ever written anywhere.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use podwright_core::credential::{
    self, BadAnswer, Credential, Keyring, ObjectId, Origin, Provider, ServiceAccountView,
    TokenCaching, TokenWish,
};
use podwright_core::pod::Pod;
use podwright_core::time::Mono;
use podwright_host::clock::Clock;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::records::hex;
use crate::causes::chain;
use crate::metrics::Metrics;

const PATIENCE: Duration = Duration::from_secs(60);
const LARGEST: u64 = 1 << 20;

/// Service accounts, and tokens that prove them.
pub trait Accounts: Send + Sync {
    fn account<'a>(
        &'a self,
        pod: &'a Pod,
    ) -> BoxFuture<'a, Result<Option<(ObjectId, ServiceAccountView)>, String>>;
    /// A token of the pod's account that is good for as long as the pod is.
    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<String, String>>;
}

#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error("cannot run it")]
    Run(#[from] io::Error),
    #[error("it did not answer within a minute")]
    TimedOut,
    #[error("it failed ({0})")]
    Failed(std::process::ExitStatus),
    #[error("its answer cannot be used")]
    Answer(#[from] BadAnswer),
    #[error("it needs the pod's service account: {0}")]
    Account(String),
}

/// What an answer depends on: the plugin, the image or more, and the account it was shown.
type Key = (usize, String, String);

pub(super) struct Plugins {
    providers: Vec<Provider>,
    folder: PathBuf,
    accounts: Arc<dyn Accounts>,
    clock: Clock,
    metrics: Arc<Metrics>,
    cache: Mutex<HashMap<Key, (Arc<Keyring>, Mono)>>,
}

/// An account and what of it a plugin is shown.
struct Shown {
    account: ObjectId,
    token: String,
    annotations: BTreeMap<String, String>,
}

impl Plugins {
    pub(super) fn new(
        providers: Vec<Provider>,
        folder: PathBuf,
        accounts: Arc<dyn Accounts>,
        clock: Clock,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { providers, folder, accounts, clock, metrics, cache: Mutex::default() }
    }

    pub(super) async fn lookup(&self, pod: &Pod, repository: &str) -> Vec<Credential> {
        let mut found = Vec::new();
        for (index, provider) in self.providers.iter().enumerate() {
            if !provider.serves(repository) {
                continue;
            }
            match self.ask(index, provider, pod, repository).await {
                Ok(keyring) => found.extend(keyring.lookup(repository)),
                Err(error) => {
                    self.metrics.images.plugin_failed(&provider.name);
                    let (plugin, error) = (&provider.name, chain(&error));
                    tracing::warn!(plugin, image = repository, error, "no credentials from it");
                }
            }
        }
        found
    }

    async fn ask(
        &self,
        index: usize,
        provider: &Provider,
        pod: &Pod,
        repository: &str,
    ) -> Result<Arc<Keyring>, PluginError> {
        let shown = match &provider.token {
            None => None,
            Some(wish) => self.show(wish, pod).await.map_err(PluginError::Account)?,
        };
        let who = shown.as_ref().map(|shown| identity(provider, shown)).unwrap_or_default();
        if let Some(keyring) = self.cached(index, repository, &who) {
            return Ok(keyring);
        }
        let began = self.clock.now().mono;
        let account = shown.as_ref().map(|shown| (shown.token.as_str(), &shown.annotations));
        let request = credential::request(provider, repository, account);
        let printed = tokio::time::timeout(PATIENCE, self.run(provider, &request)).await;
        let now = self.clock.now().mono;
        self.metrics.images.plugin_ran(&provider.name, now.since(began));
        let answer = provider.answer(&printed.map_err(|_| PluginError::TimedOut)??)?;
        let mut keyring = Keyring::default();
        let origin = match shown {
            None => Origin::Node,
            Some(shown) => Origin::ServiceAccount(shown.account),
        };
        keyring.add(answer.logins, &origin);
        let keyring = Arc::new(keyring);
        if !answer.keep.is_zero() {
            let key = (index, kept_under(answer.key, repository), who);
            let mut cache = self.cache.lock();
            cache.retain(|_, (_, until)| *until > now);
            cache.insert(key, (keyring.clone(), now + answer.keep));
        }
        Ok(keyring)
    }

    fn cached(&self, index: usize, repository: &str, who: &str) -> Option<Arc<Keyring>> {
        use credential::CacheKey::{Global, Image, Registry};
        let now = self.clock.now().mono;
        let cache = self.cache.lock();
        let find = |kind| {
            let key = (index, kept_under(kind, repository), who.to_owned());
            cache.get(&key).filter(|(_, until)| *until > now).map(|(keyring, _)| keyring.clone())
        };
        [Image, Registry, Global].into_iter().find_map(find)
    }

    /// `None`: the pod has no account, and the plugin can do without.
    async fn show(&self, wish: &TokenWish, pod: &Pod) -> Result<Option<Shown>, String> {
        let Some((account, view)) = self.accounts.account(pod).await? else {
            return match wish.required {
                true => Err("the pod has none".to_owned()),
                false => Ok(None),
            };
        };
        let annotations = wish
            .annotations(&view)
            .map_err(|missing| format!("it lacks the annotation {missing:?}"))?;
        let token = self.accounts.token(pod, &wish.audience).await?;
        Ok(Some(Shown { account, token, annotations }))
    }

    async fn run(&self, provider: &Provider, request: &[u8]) -> Result<Vec<u8>, PluginError> {
        let mut child = Command::new(self.folder.join(&provider.name))
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
                // One that does not care what it is asked closes its input early.
                let _ = input.write_all(request).await;
            }
            drop(input);
        };
        let read = async {
            let mut printed = Vec::new();
            if let Some(output) = &mut output {
                output.take(LARGEST).read_to_end(&mut printed).await?;
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

/// What tells one account's answers from another's. A token is only ever kept as a hash.
fn identity(provider: &Provider, shown: &Shown) -> String {
    let ObjectId { uid, namespace, name } = &shown.account;
    let annotations = serde_json::to_string(&shown.annotations).unwrap_or_default();
    let token = match provider.token.as_ref().map(|wish| wish.caching) {
        Some(TokenCaching::Token) => hex(&Sha256::digest(shown.token.as_bytes())),
        Some(TokenCaching::ServiceAccount) | None => String::new(),
    };
    format!("{namespace}/{name}/{uid}/{annotations}/{token}")
}

/// With its kind: an image and a registry may be called the same.
fn kept_under(kind: credential::CacheKey, repository: &str) -> String {
    format!("{kind:?}/{}", kind.of(repository))
}
