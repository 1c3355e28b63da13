//! Environment variables of a container.
//!
//! `envFrom` objects first, then `env` in order, where each variable can refer to earlier ones;
//! service variables fill in names that are still unset. The later value of a name wins.
//!
//! The shell reads objects and files first: [`needs`] lists them, [`EnvSources`] provides them.
//! Values are bytes, not text: a Secret may hold any bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1;
use podwright_api::qos::PodResources;

use super::downward;
use super::env_file::{self, EnvFile};
use super::error::ConfigError;
use super::expand::expand;
use super::facts::NodeFacts;
use super::services::{self, ServiceView};
use crate::pod::{Container, Pod};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    ConfigMap,
    Secret,
}

impl ObjectKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConfigMap => "ConfigMap",
            Self::Secret => "Secret",
        }
    }

    /// Resource name in "not found" errors.
    pub fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    pub fn variable(self) -> &'static str {
        match self {
            Self::ConfigMap => "configMap",
            Self::Secret => "secret",
        }
    }
}

/// An object or file that has to be read before a container's variables can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvDependency {
    Object {
        kind: ObjectKind,
        name: String,
        /// Every reference to it is optional.
        optional: bool,
    },
    File {
        volume: String,
        path: String,
    },
}

/// Result of reading an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    Found(T),
    Missing,
    /// No API server is configured.
    NoApiServer,
    /// The read failed, with the message to report.
    Failed(String),
}

/// Objects of the pod's namespace and files of its volumes, read by the shell.
pub trait EnvSources {
    fn config_map(&self, name: &str) -> Lookup<&v1::ConfigMap>;
    fn secret(&self, name: &str) -> Lookup<&v1::Secret>;
    fn file(&self, volume: &str, path: &str) -> EnvFile<'_>;
}

#[derive(Clone, Copy)]
pub struct EnvInputs<'a> {
    pub pod: &'a Pod,
    pub container: &'a Container,
    /// Empty on the host network.
    pub pod_ips: &'a [IpAddr],
    pub facts: &'a NodeFacts,
    /// `None` until services were listed once.
    pub services: Option<&'a [ServiceView]>,
    pub sources: &'a dyn EnvSources,
    /// From device plugins. They come first and may be overridden.
    pub granted: &'a [(String, String)],
}

/// Environment variables of a container. `Debug` prints only the names.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    granted: Vec<(String, String)>,
    own: BTreeMap<String, Vec<u8>>,
}

impl Environment {
    pub fn build(inputs: &EnvInputs<'_>) -> Result<Self, ConfigError> {
        let services = from_services(inputs)?;
        let mut own = BTreeMap::new();
        for source in inputs.container.spec.env_from.iter().flatten() {
            own.extend(whole_object(source, inputs)?);
        }
        for variable in inputs.container.spec.env.iter().flatten() {
            let value = match literal(variable) {
                Some(template) => Some(expand(template, |name| {
                    let own = own.get(name).map(Vec::as_slice);
                    own.or_else(|| services.get(name).map(String::as_bytes))
                })),
                None => from_source(variable, inputs)?,
            };
            if let Some(value) = value {
                own.insert(variable.name.clone(), value);
            }
        }
        for (name, value) in services {
            own.entry(name).or_insert(value.into_bytes());
        }
        Ok(Self { granted: inputs.granted.to_vec(), own })
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let own = self.own.get(name).map(Vec::as_slice);
        let granted = || self.granted.iter().rfind(|(known, _)| known == name);
        own.or_else(|| granted().map(|(_, value)| value.as_bytes()))
    }

    /// In the order of the CRI message: the later of two with the same name wins.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let granted = self.granted.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        granted.chain(self.own.iter().map(|(name, value)| (name.as_str(), value.as_slice())))
    }

    /// Expands the variable references of a template. `field` names it in the error.
    pub(super) fn expand(&self, template: &str, field: &str) -> Result<String, ConfigError> {
        String::from_utf8(expand(template, |name| self.get(name)))
            .map_err(|_| ConfigError::NotText { field: field.to_owned() })
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Objects and files that the container's variables refer to.
pub fn needs(container: &Container) -> Vec<EnvDependency> {
    let mut needs = Vec::new();
    for source in container.spec.env_from.iter().flatten() {
        // If both are set, both are read, but only the first is used.
        if let Some(map) = &source.config_map_ref {
            need_object(&mut needs, ObjectKind::ConfigMap, &map.name, map.optional);
        }
        if let Some(secret) = &source.secret_ref {
            need_object(&mut needs, ObjectKind::Secret, &secret.name, secret.optional);
        }
    }
    for variable in container.spec.env.iter().flatten().filter(|v| literal(v).is_none()) {
        let Some(from) = &variable.value_from else { continue };
        if let Some(key) = &from.config_map_key_ref {
            need_object(&mut needs, ObjectKind::ConfigMap, &key.name, key.optional);
        }
        if let Some(key) = &from.secret_key_ref {
            need_object(&mut needs, ObjectKind::Secret, &key.name, key.optional);
        }
        if let Some(file) = &from.file_key_ref {
            let need =
                EnvDependency::File { volume: file.volume_name.clone(), path: file.path.clone() };
            if !needs.contains(&need) {
                needs.push(need);
            }
        }
    }
    needs
}

fn need_object(
    needs: &mut Vec<EnvDependency>,
    kind: ObjectKind,
    name: &str,
    optional: Option<bool>,
) {
    let optional = optional.unwrap_or(false);
    for need in needs.iter_mut() {
        match need {
            EnvDependency::Object { kind: known_kind, name: known, optional: known_optional }
                if *known_kind == kind && known == name =>
            {
                *known_optional &= optional;
                return;
            }
            EnvDependency::Object { .. } | EnvDependency::File { .. } => {}
        }
    }
    needs.push(EnvDependency::Object { kind, name: name.to_owned(), optional });
}

/// Command of an exec probe. Only literal values of `env` are expanded: other variables count as
/// empty, and service variables are not available.
pub fn probe_command(container: &Container, command: &[String]) -> Vec<String> {
    let variables = container.spec.env.as_deref().unwrap_or_default();
    let value = |name: &str| {
        let known = variables.iter().rfind(|variable| variable.name == name)?;
        Some(known.value.as_deref().unwrap_or_default().as_bytes())
    };
    // Template and values are both text here, so the result is text.
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    command.iter().map(|word| text(expand(word, value))).collect()
}

/// A literal value, which takes precedence over `valueFrom`.
fn literal(variable: &v1::EnvVar) -> Option<&str> {
    let written = variable.value.as_deref().filter(|value| !value.is_empty());
    written.or_else(|| variable.value_from.is_none().then_some(""))
}

fn from_services(inputs: &EnvInputs<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
    let spec = inputs.pod.object.spec.as_ref();
    let links = spec.and_then(|spec| spec.enable_service_links);
    let links = links.ok_or(ConfigError::NoServiceLinks)?;
    let services = match inputs.services {
        Some(services) => services,
        // A static pod may run the API server, so it does not wait for services.
        None if inputs.pod.is_static() => &[],
        None => return Err(ConfigError::ServicesUnknown),
    };
    Ok(services::variables(services, &inputs.pod.name.namespace, links))
}

/// `Found`, or `None` if the reference is optional.
fn found_or_optional<T>(
    lookup: Lookup<T>,
    kind: ObjectKind,
    name: &str,
    optional: Option<bool>,
    pod: &Pod,
) -> Result<Option<T>, ConfigError> {
    match lookup {
        Lookup::Found(object) => Ok(Some(object)),
        Lookup::Missing if optional.unwrap_or(false) => Ok(None),
        Lookup::Missing => Err(ConfigError::ObjectMissing { kind, name: name.to_owned() }),
        Lookup::NoApiServer => Err(ConfigError::NoApiServer {
            kind,
            namespace: pod.name.namespace.to_string(),
            name: name.to_owned(),
        }),
        Lookup::Failed(message) => Err(ConfigError::ObjectUnreadable { message }),
    }
}

/// All keys of an object. Keys are not checked as variable names.
fn whole_object(
    source: &v1::EnvFromSource,
    inputs: &EnvInputs<'_>,
) -> Result<Vec<(String, Vec<u8>)>, ConfigError> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    let named = |key: &String| format!("{prefix}{key}");
    if let Some(v1::ConfigMapEnvSource { name, optional }) = &source.config_map_ref {
        let found = inputs.sources.config_map(name);
        let found = found_or_optional(found, ObjectKind::ConfigMap, name, *optional, inputs.pod)?;
        let data = found.and_then(|map| map.data.as_ref()).into_iter().flatten();
        return Ok(data.map(|(key, value)| (named(key), value.clone().into_bytes())).collect());
    }
    if let Some(v1::SecretEnvSource { name, optional }) = &source.secret_ref {
        let found = inputs.sources.secret(name);
        let found = found_or_optional(found, ObjectKind::Secret, name, *optional, inputs.pod)?;
        let data = found.and_then(|secret| secret.data.as_ref()).into_iter().flatten();
        return Ok(data.map(|(key, value)| (named(key), value.0.clone())).collect());
    }
    Ok(Vec::new())
}

/// `None`: the reference is optional and the value is missing.
fn from_source(
    variable: &v1::EnvVar,
    inputs: &EnvInputs<'_>,
) -> Result<Option<Vec<u8>>, ConfigError> {
    let Some(from) = &variable.value_from else { return Ok(Some(Vec::new())) };
    if let Some(selector) = &from.field_ref {
        let value = downward::field(selector, inputs.pod, inputs.pod_ips, inputs.facts)?;
        return Ok(Some(value.into_bytes()));
    }
    if let Some(selector) = &from.resource_field_ref {
        return resource(selector, inputs).map(|value| Some(value.into_bytes()));
    }
    if let Some(v1::ConfigMapKeySelector { name, key, optional }) = &from.config_map_key_ref {
        let found = inputs.sources.config_map(name);
        let found = found_or_optional(found, ObjectKind::ConfigMap, name, *optional, inputs.pod)?;
        let Some(map) = found else { return Ok(None) };
        let value = map.data.as_ref().and_then(|data| data.get(key));
        let value = value.map(|value| value.clone().into_bytes());
        return key_of(value, ObjectKind::ConfigMap, name, key, *optional, inputs.pod);
    }
    if let Some(v1::SecretKeySelector { name, key, optional }) = &from.secret_key_ref {
        let found = inputs.sources.secret(name);
        let found = found_or_optional(found, ObjectKind::Secret, name, *optional, inputs.pod)?;
        let Some(secret) = found else { return Ok(None) };
        let value = secret.data.as_ref().and_then(|data| data.get(key));
        let value = value.map(|value| value.0.clone());
        return key_of(value, ObjectKind::Secret, name, key, *optional, inputs.pod);
    }
    match &from.file_key_ref {
        Some(selector) => from_file(selector, inputs),
        None => Ok(Some(Vec::new())),
    }
}

fn resource(
    selector: &v1::ResourceFieldSelector,
    inputs: &EnvInputs<'_>,
) -> Result<String, ConfigError> {
    let resources = match &inputs.pod.object.spec {
        Some(spec) => PodResources::parse(spec)?,
        None => PodResources::default(),
    };
    let (own, node) = (&inputs.container.name, &inputs.facts.allocatable);
    Ok(downward::resource_for_env(selector, &resources, own, node)?)
}

fn key_of(
    value: Option<Vec<u8>>,
    kind: ObjectKind,
    name: &str,
    key: &str,
    optional: Option<bool>,
    pod: &Pod,
) -> Result<Option<Vec<u8>>, ConfigError> {
    if value.is_some() || optional.unwrap_or(false) {
        return Ok(value);
    }
    Err(ConfigError::KeyMissing {
        kind,
        key: key.to_owned(),
        namespace: pod.name.namespace.to_string(),
        name: name.to_owned(),
    })
}

/// An empty value counts as missing.
fn from_file(
    selector: &v1::FileKeySelector,
    inputs: &EnvInputs<'_>,
) -> Result<Option<Vec<u8>>, ConfigError> {
    let v1::FileKeySelector { key, optional, path, volume_name } = selector;
    match inputs.sources.file(volume_name, path) {
        EnvFile::NoVolume => Err(ConfigError::NoEnvFileVolume { volume: volume_name.clone() }),
        EnvFile::Unreadable => Err(ConfigError::BadEnvFile),
        EnvFile::Read { path, content } => {
            let value = env_file::value(content, key)?;
            if !value.is_empty() {
                return Ok(Some(value));
            }
            match optional {
                Some(true) => Ok(None),
                Some(false) | None => {
                    Err(ConfigError::NotInEnvFile { key: key.clone(), path: path.to_owned() })
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "env/tests.rs"]
mod tests;
