//! Plugins that know credentials: which to ask for which image, and what is said both ways.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Login;
use super::pattern::matches;

/// A plugin, as its configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// The program in the plugins' folder.
    pub name: String,
    match_images: Vec<String>,
    default_cache: Duration,
    api_version: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub token: Option<TokenWish>,
}

/// The plugin wants to be shown a token of the pod's service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWish {
    pub audience: String,
    pub caching: TokenCaching,
    /// It is of no use to a pod without an account.
    pub required: bool,
    pub required_annotations: BTreeSet<String>,
    pub optional_annotations: BTreeSet<String>,
}

/// What an answer that came for a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCaching {
    /// Every pod of the account.
    ServiceAccount,
    /// As long as the token is the same.
    Token,
}

/// Of a service account, what a plugin may be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountView {
    pub annotations: BTreeMap<String, String>,
}

impl TokenWish {
    /// The annotations to be shown; `Err` names one that is required and missing.
    pub fn annotations(
        &self,
        account: &ServiceAccountView,
    ) -> Result<BTreeMap<String, String>, String> {
        let missing =
            self.required_annotations.iter().find(|key| !account.annotations.contains_key(*key));
        if let Some(missing) = missing {
            return Err(missing.clone());
        }
        let wanted = self.required_annotations.union(&self.optional_annotations);
        let shown = wanted.filter_map(|key| account.annotations.get_key_value(key));
        Ok(shown.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

/// A configuration of plugins that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProviders {
    #[error("it is not a CredentialProviderConfig: {0}")]
    Form(String),
    #[error("apiVersion {0:?} is not known; use kubelet.config.k8s.io/v1")]
    Version(String),
    #[error("provider {provider:?}: {why}")]
    Provider { provider: String, why: String },
    #[error("it names no provider")]
    Empty,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    kind: String,
    api_version: String,
    #[serde(default)]
    providers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<Value>,
    api_version: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<Variable>,
    token_attributes: Option<TokenAttributes>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenAttributes {
    service_account_token_audience: String,
    cache_type: Option<String>,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: BTreeSet<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: BTreeSet<String>,
}

const CONFIG_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
const PROTOCOL: &str = "credentialprovider.kubelet.k8s.io/";

/// The plugins that some configuration documents name, in their order.
pub fn providers(documents: &[Value]) -> Result<Vec<Provider>, BadProviders> {
    let (mut providers, mut names) = (Vec::new(), BTreeSet::new());
    for document in documents {
        let document: Document = serde_json::from_value(document.clone())
            .map_err(|error| BadProviders::Form(error.to_string()))?;
        if document.kind != "CredentialProviderConfig" {
            return Err(BadProviders::Form(format!("its kind is {:?}", document.kind)));
        }
        if !CONFIG_VERSIONS.contains(&document.api_version.as_str()) {
            return Err(BadProviders::Version(document.api_version));
        }
        for entry in document.providers {
            if !names.insert(entry.name.clone()) {
                let why = "it is named twice".to_owned();
                return Err(BadProviders::Provider { provider: entry.name, why });
            }
            providers.push(provider(entry)?);
        }
    }
    if providers.is_empty() {
        return Err(BadProviders::Empty);
    }
    Ok(providers)
}

fn provider(entry: Entry) -> Result<Provider, BadProviders> {
    let bad = |why: &str| BadProviders::Provider { provider: entry.name.clone(), why: why.into() };
    let name = entry.name.as_str();
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', ' ']) {
        return Err(bad("the name must be that of a file in the plugins' folder"));
    }
    let protocol = entry.api_version.strip_prefix(PROTOCOL);
    if !matches!(protocol, Some("v1" | "v1beta1" | "v1alpha1")) {
        return Err(bad("apiVersion must be credentialprovider.kubelet.k8s.io/v1"));
    }
    if entry.match_images.is_empty() {
        return Err(bad("matchImages must name at least one image"));
    }
    let default_cache = entry.default_cache_duration.as_ref().map(duration);
    let Some(Some(default_cache)) = default_cache else {
        return Err(bad("defaultCacheDuration must be a duration such as 10m"));
    };
    let token = match entry.token_attributes {
        None => None,
        Some(_) if protocol != Some("v1") => {
            return Err(bad("tokenAttributes need credentialprovider.kubelet.k8s.io/v1"));
        }
        Some(wish) => Some(token_wish(wish).map_err(bad)?),
    };
    Ok(Provider {
        match_images: entry.match_images,
        default_cache,
        api_version: entry.api_version,
        args: entry.args,
        env: entry.env.into_iter().map(|v| (v.name, v.value)).collect(),
        token,
        name: entry.name,
    })
}

fn token_wish(wish: TokenAttributes) -> Result<TokenWish, &'static str> {
    if wish.service_account_token_audience.is_empty() {
        return Err("serviceAccountTokenAudience must not be empty");
    }
    let required = wish
        .require_service_account
        .ok_or("requireServiceAccount must be set when tokenAttributes are")?;
    if !required && !wish.required_service_account_annotation_keys.is_empty() {
        return Err("requiredServiceAccountAnnotationKeys need requireServiceAccount");
    }
    let caching = match wish.cache_type.as_deref() {
        Some("ServiceAccount") => TokenCaching::ServiceAccount,
        Some("Token") => TokenCaching::Token,
        Some(_) | None => return Err("cacheType must be ServiceAccount or Token"),
    };
    Ok(TokenWish {
        audience: wish.service_account_token_audience,
        caching,
        required,
        required_annotations: wish.required_service_account_annotation_keys,
        optional_annotations: wish.optional_service_account_annotation_keys,
    })
}

impl Provider {
    /// Whether it is to be asked for this image.
    pub fn serves(&self, repository: &str) -> bool {
        self.match_images.iter().any(|pattern| matches(pattern, repository))
    }

    /// Reads what the plugin printed.
    pub fn answer(&self, printed: &[u8]) -> Result<Answer, BadAnswer> {
        let reply: Reply = serde_json::from_slice(printed)
            .map_err(|error| BadAnswer::Json { line: error.line(), column: error.column() })?;
        if reply.kind != "CredentialProviderResponse" || reply.api_version != self.api_version {
            return Err(BadAnswer::Kind { want: self.api_version.clone() });
        }
        let key = match reply.cache_key_type.as_deref() {
            Some("Image") => CacheKey::Image,
            Some("Registry") => CacheKey::Registry,
            Some("Global") => CacheKey::Global,
            Some(_) | None => return Err(BadAnswer::CacheKey),
        };
        let keep = match &reply.cache_duration {
            None | Some(Value::Null) => self.default_cache,
            Some(value) => duration(value).ok_or(BadAnswer::Duration)?,
        };
        let logins = reply.auth.unwrap_or_default();
        let logins = logins.into_iter().map(|(place, auth)| {
            (place, Login { username: auth.username, password: auth.password })
        });
        Ok(Answer { logins: logins.collect(), key, keep })
    }
}

/// What a plugin gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub logins: Vec<(String, Login)>,
    pub key: CacheKey,
    /// Zero: not at all.
    pub keep: Duration,
}

/// What a plugin printed is not an answer. What it printed is not in here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAnswer {
    #[error("it is no JSON of the expected form (line {line}, column {column})")]
    Json { line: usize, column: usize },
    #[error("it is no CredentialProviderResponse of {want}")]
    Kind { want: String },
    #[error("cacheKeyType is not Image, Registry or Global")]
    CacheKey,
    #[error("cacheDuration is not a duration such as 10m")]
    Duration,
}

/// For what else an answer is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKey {
    Image,
    Registry,
    Global,
}

impl CacheKey {
    /// The name under which an answer for this image is kept.
    pub fn of(self, repository: &str) -> &str {
        match self {
            Self::Image => repository,
            Self::Registry => repository.split_once('/').map_or(repository, |(host, _)| host),
            Self::Global => "",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Reply {
    kind: String,
    api_version: String,
    cache_key_type: Option<String>,
    cache_duration: Option<Value>,
    auth: Option<BTreeMap<String, ReplyAuth>>,
}

#[derive(Deserialize)]
struct ReplyAuth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// What a plugin is asked, as JSON. The token is the account's.
pub fn request(
    provider: &Provider,
    repository: &str,
    account: Option<(&str, &BTreeMap<String, String>)>,
) -> Vec<u8> {
    let mut request = json!({
        "kind": "CredentialProviderRequest",
        "apiVersion": provider.api_version,
        "image": repository,
    });
    if let (Some((token, annotations)), Some(request)) = (account, request.as_object_mut()) {
        request.insert("serviceAccountToken".into(), json!(token));
        if !annotations.is_empty() {
            request.insert("serviceAccountAnnotations".into(), json!(annotations));
        }
    }
    request.to_string().into_bytes()
}

/// A duration in Go's words, such as `1h30m`, or a number of nanoseconds.
fn duration(value: &Value) -> Option<Duration> {
    let text = match value {
        Value::Number(nanos) => return nanos.as_u64().map(Duration::from_nanos),
        Value::String(text) if text == "0" => return Some(Duration::ZERO),
        Value::String(text) if !text.is_empty() => text.as_str(),
        _ => return None,
    };
    let (mut rest, mut total) = (text, 0.0);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let end = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match rest.get(..end)? {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number * unit;
        rest = rest.get(end..)?;
    }
    Duration::try_from_secs_f64(total).ok()
}
