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

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;
use podwright_core::credential::{
    self, Credential, CredentialOrigin, Keyring, ObjectId, Provider, ResponseError,
    ServiceAccountView, TokenCaching, TokenConfig,
};
use podwright_core::ids::PodUid;
use podwright_core::pod::Pod;
use podwright_core::time::{Mono, Now};
use podwright_host::clock::Clock;
use podwright_host::trusted_path::{self, UntrustedPath};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::records::hex;
use crate::error_chain::chain;
use crate::telemetry::metrics::Metrics;

const PLUGIN_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RESPONSE_SIZE: u64 = 1 << 20;
/// How long a token is reused. It is valid for an hour, the API server's default.
const TOKEN_REUSE: Duration = Duration::from_secs(45 * 60);

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
    #[error("the plugin is not run as root, because another user can change it")]
    Untrusted(#[from] UntrustedPath),
    #[error("the plugin did not respond within a minute")]
    TimedOut,
    #[error("the plugin failed ({0})")]
    Failed(std::process::ExitStatus),
    #[error("the response of the plugin is invalid")]
    Answer(#[from] ResponseError),
    #[error("cannot get the service account of the pod: {0}")]
    Account(String),
    #[error(transparent)]
    Shared(Arc<PluginError>),
}

/// Output of a plugin, shared by all concurrent callers with the same request.
type PluginOutput = Result<Arc<Vec<u8>>, Arc<PluginError>>;
type PluginRun = BoxFuture<'static, PluginOutput>;

/// Runs the program of a plugin with a request and returns its output. Replaced in tests.
type PluginRunner = Arc<
    dyn Fn(PathBuf, Provider, Vec<u8>) -> BoxFuture<'static, Result<Vec<u8>, PluginError>>
        + Send
        + Sync,
>;

/// Cache key: the plugin, the image, registry or everything, and the identity of the account.
type Key = (usize, String, String);

/// Cache key of a token: pod, account and audience.
type TokenKey = (PodUid, ObjectId, String);

pub(super) struct Plugins {
    providers: Vec<Provider>,
    directory: PathBuf,
    accounts: Arc<dyn Accounts>,
    runner: PluginRunner,
    clock: Clock,
    metrics: Arc<Metrics>,
    cache: Mutex<HashMap<Key, (Arc<Keyring>, Mono)>>,
    /// Runs in progress, by plugin and hash of the request.
    running: Mutex<HashMap<(usize, String), WeakShared<PluginRun>>>,
    /// Tokens and the times of their requests. A response cached by token is only found again if
    /// the next lookup uses the same token.
    tokens: Mutex<HashMap<TokenKey, (String, Now)>>,
}

/// Whether a plugin runs for a pod, and with which account.
enum AccountChoice {
    /// The plugin runs without an account.
    Omit,
    /// The plugin does not run for this pod, for this reason.
    SkipPlugin(String),
    Present(ObjectId, BTreeMap<String, String>),
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
        let (cache, running, tokens) = (Mutex::default(), Mutex::default(), Mutex::default());
        let runner: PluginRunner = Arc::new(|program, provider, request| {
            async move { Self::run(program, &provider, &request).await }.boxed()
        });
        Self { providers, directory, accounts, runner, clock, metrics, cache, running, tokens }
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
        let account = match &provider.token {
            None => AccountChoice::Omit,
            Some(token_config) => {
                self.choose_account(token_config, pod).await.map_err(PluginError::Account)?
            }
        };
        let presented = match (account, &provider.token) {
            (AccountChoice::SkipPlugin(reason), _) => {
                let plugin = &provider.name;
                tracing::debug!(plugin, reason, "credential provider plugin is skipped");
                return Ok(Arc::default());
            }
            (AccountChoice::Present(account, annotations), Some(token_config)) => {
                let presented = PresentedAccount { account, token: String::new(), annotations };
                // A response cached by account is found without a token.
                if token_config.caching == TokenCaching::ServiceAccount
                    && let Some(keyring) =
                        self.cached(index, repository, &identity(provider, &presented))
                {
                    return Ok(keyring);
                }
                let token = self.token(pod, &presented.account, &token_config.audience).await;
                Some(PresentedAccount { token: token.map_err(PluginError::Account)?, ..presented })
            }
            (AccountChoice::Omit | AccountChoice::Present(..), _) => None,
        };
        let account_key =
            presented.as_ref().map(|presented| identity(provider, presented)).unwrap_or_default();
        if let Some(keyring) = self.cached(index, repository, &account_key) {
            return Ok(keyring);
        }
        let account =
            presented.as_ref().map(|presented| (presented.token.as_str(), &presented.annotations));
        let request = credential::request(provider, repository, account);
        let printed = self.join(index, provider, request).await.map_err(PluginError::Shared)?;
        let now = self.clock.now().mono;
        let answer = provider.parse_response(&printed)?;
        if let Some(presented) = &presented {
            provider.check_token(&answer, &presented.token)?;
        }
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

    /// A missing account or annotation is not an error: accounts opt in with the annotation.
    async fn choose_account(
        &self,
        token_config: &TokenConfig,
        pod: &Pod,
    ) -> Result<AccountChoice, String> {
        let Some((account, view)) = self.accounts.account(pod).await? else {
            return Ok(match token_config.required {
                true => AccountChoice::SkipPlugin("the pod has no service account".to_owned()),
                false => AccountChoice::Omit,
            });
        };
        Ok(match token_config.annotations(&view) {
            Ok(annotations) => AccountChoice::Present(account, annotations),
            Err(missing) => AccountChoice::SkipPlugin(format!(
                "the service account lacks the annotation {missing:?}"
            )),
        })
    }

    async fn token(&self, pod: &Pod, account: &ObjectId, audience: &str) -> Result<String, String> {
        let key = (pod.uid.clone(), account.clone(), audience.to_owned());
        let requested = self.clock.now();
        let known = self.tokens.lock().get(&key).cloned();
        if let Some((token, _)) = known.filter(|(_, since)| is_reusable(*since, requested)) {
            return Ok(token);
        }
        let token = self.accounts.token(pod, audience).await?;
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, (_, since)| is_reusable(*since, requested));
        tokens.insert(key, (token.clone(), requested));
        Ok(token)
    }

    /// Joins the run of this plugin with this request, or starts it.
    fn join(&self, index: usize, provider: &Provider, request: Vec<u8>) -> Shared<PluginRun> {
        let key = (index, hex(&Sha256::digest(&request)));
        let mut running = self.running.lock();
        running.retain(|_, run| run.upgrade().is_some());
        if let Some(run) = running.get(&key).and_then(WeakShared::upgrade) {
            return run;
        }
        let (clock, metrics) = (self.clock.clone(), self.metrics.clone());
        let (program, name) = (self.directory.join(&provider.name), provider.name.clone());
        let run = (self.runner)(program, provider.clone(), request);
        let run = async move {
            let began = clock.now().mono;
            let printed = tokio::time::timeout(PLUGIN_TIMEOUT, run).await;
            metrics.images.plugin_ran(&name, clock.now().mono.since(began));
            printed.unwrap_or(Err(PluginError::TimedOut)).map(Arc::new).map_err(Arc::new)
        };
        let run = run.boxed().shared();
        if let Some(weak) = run.downgrade() {
            running.insert(key, weak);
        }
        run
    }

    async fn run(
        program: PathBuf,
        provider: &Provider,
        request: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        trusted_path::check_program(&program)?;
        let mut child = Command::new(program)
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

/// By both clocks: the monotonic one stops while the machine is suspended, the other can be set.
fn is_reusable(since: Now, now: Now) -> bool {
    let by_wall = now.wall.duration_since(since.wall);
    now.mono.since(since.mono) < TOKEN_REUSE
        && !by_wall.is_negative()
        && by_wall.unsigned_abs() < TOKEN_REUSE
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

#[cfg(test)]
mod tests;
