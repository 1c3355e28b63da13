//! Whether a configuration makes sense, as a whole and on this machine.
//!
//! Everything here is a rule about values that are already of the right type. Each rule that is
//! broken adds a problem and none stops the others. The rules are upstream's, plus those upstream
//! only finds out about later, when pods already run.

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

/// Who answers questions about tokens and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiAccess {
    /// A real API server, or one in this process.
    Available,
    /// Nobody: the node stands alone.
    None,
}

/// A configuration under examination.
pub struct Examination<'a> {
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

impl<'a> Examination<'a> {
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

    /// Applies every rule; what is broken, and what is only odd.
    pub fn conduct(mut self) -> (Vec<Problem>, Vec<String>) {
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

    /// A field must be otherwise.
    fn refuse(&mut self, field: &FieldPath, trouble: impl Into<String>) {
        let source = self.layers.source_of(field);
        let value = field.find(&self.document).or_else(|| self.layers.get(field));
        self.problems.push(Problem::with_field(source, field.clone(), value, trouble));
    }

    /// A field must be otherwise unless `sound`.
    fn require(&mut self, sound: bool, field: &str, trouble: impl Into<String>) {
        if !sound {
            self.refuse(&FieldPath::of(field), trouble);
        }
    }

    /// A flag must be otherwise.
    fn refuse_flag(&mut self, flag: &'static str, trouble: impl Into<String>) {
        self.problems.push(Problem::with_source(Source::Flag(flag), trouble));
    }

    fn warn(&mut self, field: &FieldPath, warning: impl AsRef<str>) {
        let source = self.layers.source_of(field);
        self.warnings.push(format!("{source}: {field} {}", warning.as_ref()));
    }
}
