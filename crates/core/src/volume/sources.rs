//! Content of configMap, secret, downwardAPI and projected volumes.
//!
//! [`wanted`] lists what has to be read first, [`payload`] builds the files. Messages are
//! upstream's where it has one: they appear in events that users search for. None contains the
//! content of a Secret.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1;
use podwright_api::qos::{PodResources, ResourceError, ResourceList};

use super::ownership;
use super::payload::{File, PathError, Payload};
use super::token;
use crate::config::downward::{self, FieldError};
use crate::config::env::{Lookup, ObjectKind};
use crate::pod::Pod;

const DEFAULT_MODE: i32 = 0o644;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("{} {name:?} not found", .kind.resource())]
    Missing { kind: ObjectKind, name: String },
    #[error("cannot read {} {name:?}: no API server configured", .kind.resource())]
    NoApiServer { kind: ObjectKind, name: String },
    #[error("cannot read {} {name:?}: {message}", .kind.resource())]
    Unreadable { kind: ObjectKind, name: String, message: String },
    #[error("configmap references non-existent config key: {key}")]
    NoConfigKey { key: String },
    #[error("references non-existent secret key: {key}")]
    NoSecretKey { key: String },
    #[error(transparent)]
    Field(#[from] FieldError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("failed to fetch token: {message}")]
    Token { message: String },
    #[error("{source_kind} projection is not supported by this node")]
    NotSupported { source_kind: &'static str },
    #[error("[{}]", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<SourceError>),
}

/// Objects listed by [`wanted`], read by the shell.
pub trait Objects {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap>;
    fn secret(&self, name: &str) -> Lookup<&v1::Secret>;
    /// `Err`: the error message to report.
    fn token(&self, wanted: &token::TokenSpec) -> Result<&str, String>;
}

/// Sources of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContentSources {
    pub objects: Vec<(ObjectKind, String)>,
    pub tokens: Vec<token::TokenSpec>,
    /// The content depends on the pod's labels, annotations or resources.
    pub pod: bool,
}

pub fn wanted(pod: &Pod, volume: &v1::Volume) -> ContentSources {
    let mut wanted = ContentSources::default();
    if let Some(source) = &volume.config_map {
        wanted.objects.push((ObjectKind::ConfigMap, source.name.clone()));
    }
    if let Some(name) = volume.secret.as_ref().and_then(|source| source.secret_name.clone()) {
        wanted.objects.push((ObjectKind::Secret, name));
    }
    if let Some(source) = &volume.downward_api {
        wanted.pod |= source.items.iter().flatten().any(changes_with_the_pod);
    }
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if let Some(map) = &source.config_map {
            wanted.objects.push((ObjectKind::ConfigMap, map.name.clone()));
        }
        if let Some(secret) = &source.secret {
            wanted.objects.push((ObjectKind::Secret, secret.name.clone()));
        }
        if let Some(fields) = &source.downward_api {
            wanted.pod |= fields.items.iter().flatten().any(changes_with_the_pod);
        }
        if let Some(source) = &source.service_account_token {
            wanted.tokens.push(token::TokenSpec::new(pod, source));
        }
    }
    wanted
}

fn changes_with_the_pod(file: &v1::DownwardAPIVolumeFile) -> bool {
    let field = file.field_ref.as_ref().map(|field| field.field_path.as_str()).unwrap_or_default();
    file.resource_field_ref.is_some()
        || field.starts_with("metadata.labels")
        || field.starts_with("metadata.annotations")
}

/// Files of a configMap, secret, downwardAPI or projected volume.
pub fn payload(
    pod: &Pod,
    volume: &v1::Volume,
    allocatable: &ResourceList,
    objects: &dyn Objects,
) -> Result<Payload, SourceError> {
    let mut builder = PayloadBuilder { pod, allocatable, objects, payload: Payload::default() };
    if let Some(source) = &volume.config_map {
        let keys = Keys::new(&source.items, source.optional, source.default_mode);
        builder.config_map(&source.name, &keys)?;
    } else if let Some(source) = &volume.secret {
        let keys = Keys::new(&source.items, source.optional, source.default_mode);
        builder.secret(source.secret_name.as_deref().unwrap_or_default(), &keys)?;
    } else if let Some(source) = &volume.downward_api {
        builder.fields(source.items.as_deref().unwrap_or_default(), source.default_mode)?;
    } else if let Some(source) = &volume.projected {
        builder.projected(source)?;
    }
    builder.payload.check()?;
    Ok(builder.payload)
}

/// Mapping of an object's keys to files.
struct Keys<'a> {
    items: &'a [v1::KeyToPath],
    optional: bool,
    default_mode: Option<i32>,
}

impl<'a> Keys<'a> {
    fn new(
        items: &'a Option<Vec<v1::KeyToPath>>,
        optional: Option<bool>,
        default_mode: Option<i32>,
    ) -> Self {
        let items = items.as_deref().unwrap_or_default();
        Self { items, optional: optional.unwrap_or(false), default_mode }
    }
}

struct PayloadBuilder<'a> {
    pod: &'a Pod,
    allocatable: &'a ResourceList,
    objects: &'a dyn Objects,
    payload: Payload,
}

impl PayloadBuilder<'_> {
    fn config_map(&mut self, name: &str, keys: &Keys<'_>) -> Result<(), SourceError> {
        let found = self.objects.config_map(name);
        let Some(map) = found_or_optional(found, ObjectKind::ConfigMap, name, keys.optional)?
        else {
            return Ok(());
        };
        let text = map.data.iter().flatten().map(|(key, text)| (key, text.as_bytes()));
        let bytes =
            map.binary_data.iter().flatten().map(|(key, ByteString(b))| (key, b.as_slice()));
        self.keys(text.chain(bytes), keys, |key| SourceError::NoConfigKey { key })
    }

    fn secret(&mut self, name: &str, keys: &Keys<'_>) -> Result<(), SourceError> {
        let found = self.objects.secret(name);
        let Some(secret) = found_or_optional(found, ObjectKind::Secret, name, keys.optional)?
        else {
            return Ok(());
        };
        let data = secret.data.iter().flatten().map(|(key, ByteString(b))| (key, b.as_slice()));
        self.keys(data, keys, |key| SourceError::NoSecretKey { key })
    }

    fn keys<'b>(
        &mut self,
        mut data: impl Iterator<Item = (&'b String, &'b [u8])> + Clone,
        keys: &Keys<'_>,
        missing: impl Fn(String) -> SourceError,
    ) -> Result<(), SourceError> {
        let file = |bytes: &[u8], own: Option<i32>| File {
            bytes: bytes.to_vec(),
            mode: mode(own.or(keys.default_mode)),
            owner: None,
        };
        if keys.items.is_empty() {
            return data.try_for_each(|(key, bytes)| {
                self.payload.insert(key, file(bytes, None)).map_err(SourceError::from)
            });
        }
        for v1::KeyToPath { key, mode, path } in keys.items {
            match data.clone().find(|(known, _)| *known == key) {
                Some((_, bytes)) => self.payload.insert(path, file(bytes, *mode))?,
                None if keys.optional => {}
                None => return Err(missing(key.clone())),
            }
        }
        Ok(())
    }

    fn fields(
        &mut self,
        items: &[v1::DownwardAPIVolumeFile],
        default_mode: Option<i32>,
    ) -> Result<(), SourceError> {
        let mut problems = Vec::new();
        for item in items {
            match self.field(item) {
                Ok(text) => {
                    let mode = mode(item.mode.or(default_mode));
                    let file = File { bytes: text.into_bytes(), mode, owner: None };
                    self.payload.insert(&item.path, file)?;
                }
                Err(problem) => problems.push(problem),
            }
        }
        one_or_several(problems)
    }

    fn field(&self, item: &v1::DownwardAPIVolumeFile) -> Result<String, SourceError> {
        if let Some(field) = &item.field_ref {
            return Ok(downward::metadata(self.pod, &field.field_path)?);
        }
        let Some(selector) = &item.resource_field_ref else { return Ok(String::new()) };
        let resources = match &self.pod.object.spec {
            Some(spec) => PodResources::parse(spec)?,
            None => PodResources::default(),
        };
        Ok(downward::resource_for_volume(selector, &resources, self.allocatable)?)
    }

    /// All sources are tried, so that one message lists everything that is missing.
    fn projected(&mut self, projected: &v1::ProjectedVolumeSource) -> Result<(), SourceError> {
        let default_mode = projected.default_mode;
        let mut problems = Vec::new();
        for source in projected.sources.iter().flatten() {
            let made = if let Some(map) = &source.config_map {
                self.config_map(&map.name, &Keys::new(&map.items, map.optional, default_mode))
            } else if let Some(secret) = &source.secret {
                let keys = Keys::new(&secret.items, secret.optional, default_mode);
                self.secret(&secret.name, &keys)
            } else if let Some(fields) = &source.downward_api {
                self.fields(fields.items.as_deref().unwrap_or_default(), default_mode)
            } else if let Some(token) = &source.service_account_token {
                self.token(token, default_mode)
            } else if source.cluster_trust_bundle.is_some() {
                Err(SourceError::NotSupported { source_kind: "ClusterTrustBundle" })
            } else if source.pod_certificate.is_some() {
                Err(SourceError::NotSupported { source_kind: "PodCertificate" })
            } else {
                Ok(())
            };
            problems.extend(made.err());
        }
        one_or_several(problems)
    }

    fn token(
        &mut self,
        source: &v1::ServiceAccountTokenProjection,
        default_mode: Option<i32>,
    ) -> Result<(), SourceError> {
        let wanted = token::TokenSpec::new(self.pod, source);
        let text = self.objects.token(&wanted).map_err(|message| SourceError::Token { message })?;
        let (mode, owner) = ownership::of_token(self.pod, mode(default_mode));
        let file = File { bytes: text.as_bytes().to_vec(), mode, owner };
        Ok(self.payload.insert(&source.path, file)?)
    }
}

fn mode(mode: Option<i32>) -> u32 {
    u32::try_from(mode.unwrap_or(DEFAULT_MODE)).unwrap_or(0) & 0o777
}

fn one_or_several(mut problems: Vec<SourceError>) -> Result<(), SourceError> {
    match (problems.pop(), problems.is_empty()) {
        (None, _) => Ok(()),
        (Some(only), true) => Err(only),
        (Some(last), false) => {
            problems.push(last);
            Err(SourceError::Several(problems))
        }
    }
}

/// `Found`, or `None` if the reference is optional.
fn found_or_optional<T>(
    lookup: Lookup<T>,
    kind: ObjectKind,
    name: &str,
    optional: bool,
) -> Result<Option<T>, SourceError> {
    let name = name.to_owned();
    match lookup {
        Lookup::Found(object) => Ok(Some(object)),
        Lookup::Missing if optional => Ok(None),
        Lookup::Missing => Err(SourceError::Missing { kind, name }),
        Lookup::NoApiServer => Err(SourceError::NoApiServer { kind, name }),
        Lookup::Failed(message) => Err(SourceError::Unreadable { kind, name, message }),
    }
}

#[cfg(test)]
#[path = "sources/tests.rs"]
mod tests;
