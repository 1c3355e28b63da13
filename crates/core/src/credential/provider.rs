//! Credential provider plugins: configuration, image matching, request and response.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Login;
use super::pattern::matches;

/// A plugin from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// File name of the program in the plugin directory.
    pub name: String,
    match_images: Vec<String>,
    default_cache: Duration,
    api_version: String,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub token: Option<TokenConfig>,
}

/// The plugin requires a token of the pod's service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    pub audience: String,
    pub caching: TokenCaching,
    /// The plugin is skipped for pods without a service account.
    pub required: bool,
    pub required_annotations: BTreeSet<String>,
    pub optional_annotations: BTreeSet<String>,
}

/// Cache scope of a response to a request with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenCaching {
    /// All pods of the service account.
    ServiceAccount,
    /// Until the token changes.
    Token,
}

/// Fields of a service account that a plugin may receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountView {
    pub annotations: BTreeMap<String, String>,
}

impl TokenConfig {
    /// Annotations to send; `Err` names a required annotation that is missing.
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

/// Invalid plugin configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderConfigError {
    #[error("not a CredentialProviderConfig: {0}")]
    Form(String),
    #[error("apiVersion {0:?} is not supported; use kubelet.config.k8s.io/v1")]
    Version(String),
    #[error("provider {provider:?}: {why}")]
    Provider { provider: String, why: String },
    #[error("no providers configured")]
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

/// Plugins of all configuration documents, in order.
pub fn providers(documents: &[Value]) -> Result<Vec<Provider>, ProviderConfigError> {
    let (mut providers, mut names) = (Vec::new(), BTreeSet::new());
    for document in documents {
        let document: Document = serde_json::from_value(document.clone())
            .map_err(|error| ProviderConfigError::Form(error.to_string()))?;
        if document.kind != "CredentialProviderConfig" {
            return Err(ProviderConfigError::Form(format!("kind is {:?}", document.kind)));
        }
        if !CONFIG_VERSIONS.contains(&document.api_version.as_str()) {
            return Err(ProviderConfigError::Version(document.api_version));
        }
        for entry in document.providers {
            if !names.insert(entry.name.clone()) {
                let why = "named twice".to_owned();
                return Err(ProviderConfigError::Provider { provider: entry.name, why });
            }
            providers.push(provider(entry)?);
        }
    }
    if providers.is_empty() {
        return Err(ProviderConfigError::Empty);
    }
    Ok(providers)
}

fn provider(entry: Entry) -> Result<Provider, ProviderConfigError> {
    let bad =
        |why: &str| ProviderConfigError::Provider { provider: entry.name.clone(), why: why.into() };
    let name = entry.name.as_str();
    if name.is_empty() || matches!(name, "." | "..") || name.contains(['/', ' ']) {
        return Err(bad("name must be a file name in the plugin directory"));
    }
    let protocol = entry.api_version.strip_prefix(PROTOCOL);
    if !matches!(protocol, Some("v1" | "v1beta1" | "v1alpha1")) {
        return Err(bad("apiVersion must be credentialprovider.kubelet.k8s.io/v1"));
    }
    if entry.match_images.is_empty() {
        return Err(bad("matchImages must have at least one image"));
    }
    let default_cache = entry.default_cache_duration.as_ref().map(duration);
    let Some(Some(default_cache)) = default_cache else {
        return Err(bad("defaultCacheDuration must be a duration such as 10m"));
    };
    let token = match entry.token_attributes {
        None => None,
        Some(_) if protocol != Some("v1") => {
            return Err(bad("tokenAttributes require credentialprovider.kubelet.k8s.io/v1"));
        }
        Some(attributes) => Some(parse_token_attributes(attributes).map_err(bad)?),
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

fn parse_token_attributes(attributes: TokenAttributes) -> Result<TokenConfig, &'static str> {
    if attributes.service_account_token_audience.is_empty() {
        return Err("serviceAccountTokenAudience must not be empty");
    }
    let required = attributes
        .require_service_account
        .ok_or("requireServiceAccount must be set with tokenAttributes")?;
    if !required && !attributes.required_service_account_annotation_keys.is_empty() {
        return Err("requiredServiceAccountAnnotationKeys require requireServiceAccount");
    }
    let caching = match attributes.cache_type.as_deref() {
        Some("ServiceAccount") => TokenCaching::ServiceAccount,
        Some("Token") => TokenCaching::Token,
        Some(_) | None => return Err("cacheType must be ServiceAccount or Token"),
    };
    Ok(TokenConfig {
        audience: attributes.service_account_token_audience,
        caching,
        required,
        required_annotations: attributes.required_service_account_annotation_keys,
        optional_annotations: attributes.optional_service_account_annotation_keys,
    })
}

impl Provider {
    /// Whether the plugin provides credentials for this image.
    pub fn serves(&self, repository: &str) -> bool {
        self.match_images.iter().any(|pattern| matches(pattern, repository))
    }

    /// Parses the plugin's output.
    pub fn parse_response(&self, printed: &[u8]) -> Result<ProviderResponse, ResponseError> {
        let response: Response = serde_json::from_slice(printed)
            .map_err(|error| ResponseError::Json { line: error.line(), column: error.column() })?;
        if response.kind != "CredentialProviderResponse" || response.api_version != self.api_version
        {
            return Err(ResponseError::Kind { want: self.api_version.clone() });
        }
        let key = match response.cache_key_type.as_deref() {
            Some("Image") => CacheKey::Image,
            Some("Registry") => CacheKey::Registry,
            Some("Global") => CacheKey::Global,
            Some(_) | None => return Err(ResponseError::CacheKey),
        };
        let keep = match &response.cache_duration {
            None | Some(Value::Null) => self.default_cache,
            Some(value) => duration(value).ok_or(ResponseError::Duration)?,
        };
        let logins = response.auth.unwrap_or_default();
        let logins = logins.into_iter().map(|(place, auth)| {
            (place, Login { username: auth.username, password: auth.password })
        });
        Ok(ProviderResponse { logins: logins.collect(), key, keep })
    }

    /// Refuses a response that contains the pod's own token, unless responses are cached by token:
    /// another pod of the same account would get this pod's token.
    pub fn check_token(&self, answer: &ProviderResponse, token: &str) -> Result<(), ResponseError> {
        let by_token = self.token.as_ref().is_some_and(|wish| wish.caching == TokenCaching::Token);
        let echoed = |login: &Login| login.password == token || login.username == token;
        match !by_token && answer.logins.iter().any(|(_, login)| echoed(login)) {
            true => Err(ResponseError::Token),
            false => Ok(()),
        }
    }
}

/// Parsed response of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderResponse {
    pub logins: Vec<(String, Login)>,
    pub key: CacheKey,
    /// Zero disables caching.
    pub keep: Duration,
}

/// Invalid plugin output. It holds none of the output, which may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("cannot parse CredentialProviderResponse at line {line}, column {column}")]
    Json { line: usize, column: usize },
    #[error("not a CredentialProviderResponse of {want}")]
    Kind { want: String },
    #[error("cacheKeyType is not Image, Registry or Global")]
    CacheKey,
    #[error("cacheDuration is not a duration such as 10m")]
    Duration,
    #[error("it returns the service account token as a credential, which needs cacheType: Token")]
    Token,
}

/// Scope in which a response can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKey {
    Image,
    Registry,
    Global,
}

impl CacheKey {
    /// Cache key of a response for this image.
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
struct Response {
    kind: String,
    api_version: String,
    cache_key_type: Option<String>,
    cache_duration: Option<Value>,
    auth: Option<BTreeMap<String, ResponseAuth>>,
}

#[derive(Deserialize)]
struct ResponseAuth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Request to a plugin as JSON. The token is the service account's.
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

/// A duration in Go's format, such as `1h30m`, or a number of nanoseconds.
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
