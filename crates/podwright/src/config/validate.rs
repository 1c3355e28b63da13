//! Validation of a configuration as a whole and on this machine.
//!
//! The rules apply to values that already have the right type. Each violation adds a problem, and
//! all rules are checked. The rules are upstream's, plus those that upstream only checks later,
//! when pods are already running.

mod auth;
mod eviction;
mod flag_only;
mod images;
mod logs;
mod machine;
mod ranges;
mod resources;
mod shutdown;

use serde_json::Value;

use super::field::FieldPath;
use super::gates::FeatureGates;
use super::host::Host;
use super::kubelet::KubeletConfiguration;
use super::layers::Layers;
use super::options::NodeOptions;
use super::problem::{Problem, Source};

/// Whether an API server is available for TokenReviews and SubjectAccessReviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiAccess {
    /// A cluster's API server, or the embedded one.
    Available,
    /// None: the node runs static pods only.
    None,
}

/// A configuration under validation.
pub struct Validator<'a> {
    pub configuration: &'a KubeletConfiguration,
    pub options: &'a NodeOptions,
    pub gates: &'a FeatureGates,
    pub host: &'a Host,
    pub api: ApiAccess,
    layers: &'a Layers,
    document: Value,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl<'a> Validator<'a> {
    pub fn new(
        configuration: &'a KubeletConfiguration,
        layers: &'a Layers,
        options: &'a NodeOptions,
        gates: &'a FeatureGates,
        host: &'a Host,
        api: ApiAccess,
    ) -> Self {
        let document = serde_json::to_value(configuration).unwrap_or_default();
        Self {
            configuration,
            options,
            gates,
            host,
            api,
            layers,
            document,
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Applies all rules; returns problems and warnings.
    pub fn run(mut self) -> (Vec<Problem>, Vec<String>) {
        ranges::examine(&mut self);
        auth::examine(&mut self);
        images::examine(&mut self);
        resources::examine(&mut self);
        eviction::examine(&mut self);
        shutdown::examine(&mut self);
        logs::examine(&mut self);
        flag_only::examine(&mut self);
        machine::examine(&mut self);
        (self.problems, self.warnings)
    }

    /// Adds a problem for a field.
    fn refuse(&mut self, field: &FieldPath, message: impl Into<String>) {
        let source = self.layers.source_of(field);
        let value = field.find(&self.document).or_else(|| self.layers.get(field));
        self.problems.push(Problem::with_field(source, field.clone(), value, message));
    }

    /// Adds a problem for a field unless `sound`.
    fn require(&mut self, sound: bool, field: &str, message: impl Into<String>) {
        if !sound {
            self.refuse(&FieldPath::of(field), message);
        }
    }

    /// Adds a problem for a flag.
    fn refuse_flag(&mut self, flag: &'static str, message: impl Into<String>) {
        self.problems.push(Problem::with_source(Source::Flag(flag), message));
    }

    fn warn(&mut self, field: &FieldPath, warning: impl AsRef<str>) {
        let source = self.layers.source_of(field);
        self.warnings.push(format!("{source}: {field} {}", warning.as_ref()));
    }
}
