//! Docker configuration files, from home directories, nodes and secrets.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use k8s_openapi::api::core::v1;
use serde::Deserialize;

use super::Login;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    // As lenient as Go's decoder.
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Invalid configuration. It holds none of the content, which may be a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    #[error("cannot parse Docker configuration at line {line}, column {column}")]
    Json { line: usize, column: usize },
    #[error(
        "the auth field of {location:?} is not valid: it must be formatted as base64(username:password)"
    )]
    Auth { location: String },
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: Option<Entries>,
}

/// `null` is as good as nothing at every level.
type Entries = BTreeMap<String, Option<Entry>>;

#[derive(Deserialize, Default)]
struct Entry {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    auth: Option<String>,
}

/// Logins of a `config.json`, or of the older `.dockercfg`, which has them at top level.
pub fn from_config(bytes: &[u8], old: bool) -> Result<Vec<(String, Login)>, DockerConfigError> {
    let bad = |error: serde_json::Error| DockerConfigError::Json {
        line: error.line(),
        column: error.column(),
    };
    let entries: Option<Entries> = match old {
        true => serde_json::from_slice(bytes).map_err(bad)?,
        false => serde_json::from_slice::<Option<ConfigJson>>(bytes)
            .map_err(bad)?
            .and_then(|config| config.auths),
    };
    let mut logins = Vec::new();
    for (location, entry) in entries.unwrap_or_default() {
        if let Some(login) = login(&location, entry.unwrap_or_default())? {
            logins.push((location, login));
        }
    }
    Ok(logins)
}

/// Logins of a pull secret; other types of secrets have none.
pub fn from_secret(secret: &v1::Secret) -> Result<Vec<(String, Login)>, DockerConfigError> {
    let (key, old) = match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => (".dockerconfigjson", false),
        Some("kubernetes.io/dockercfg") => (".dockercfg", true),
        Some(_) | None => return Ok(Vec::new()),
    };
    match secret.data.as_ref().and_then(|data| data.get(key)) {
        Some(bytes) if !bytes.0.is_empty() => from_config(&bytes.0, old),
        Some(_) | None => Ok(Vec::new()),
    }
}

/// An entry without a login refers to a credential helper and counts as none.
fn login(location: &str, entry: Entry) -> Result<Option<Login>, DockerConfigError> {
    let Entry { username, password, auth } = entry;
    let Some(auth) = auth.filter(|auth| !auth.is_empty()) else {
        let (username, password) = (username.unwrap_or_default(), password.unwrap_or_default());
        let empty = username.is_empty() && password.is_empty();
        return Ok((!empty).then_some(Login { username, password }));
    };
    let bad = || DockerConfigError::Auth { location: location.to_owned() };
    // Tools wrap long lines; Go's decoder skips the line breaks.
    let unwrapped: String = auth.trim().chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let decoded = BASE64.decode(unwrapped).map_err(|_| bad())?;
    let decoded = String::from_utf8(decoded).map_err(|_| bad())?;
    let (username, password) = decoded.split_once(':').ok_or_else(bad)?;
    Ok(Some(Login { username: username.to_owned(), password: password.to_owned() }))
}
