//! Configuration: files and flags resolved to validated settings.
//!
//! Sources in order of precedence; each overrides the one before:
//!
//! 1. built-in defaults ([`kubelet`]), and those of the mode ([`Preset`]);
//! 2. the `--config` file ([`files`]);
//! 3. the drop-ins of `--config-dir`, in lexical order;
//! 4. flags ([`flags`]).
//!
//! The sources are merged as untyped documents (`assembly`, [`layers`]), decoded into types
//! ([`decode`]) and validated as a whole ([`validate`]). [`resolve`] does all of it and is the only
//! way to get [`KubeletSettings`], which therefore need no further checks.

mod assembly;
pub mod decode;
pub mod document;
pub mod duration;
pub mod field;
pub mod files;
pub mod flags;
pub mod gates;
pub mod host;
pub mod inert;
pub mod kubelet;
pub mod layers;
pub mod names;
pub mod options;
pub mod problem;
pub mod suggestion;
pub mod validate;

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use assembly::Assembly;
use flags::Flags;
use gates::FeatureGates;
use host::Host;
use kubelet::KubeletConfiguration;
use layers::Layers;
use options::NodeOptions;
use problem::{Invalid, Source};
use validate::ApiAccess;

/// Complete and validated settings of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletSettings {
    pub configuration: KubeletConfiguration,
    pub gates: FeatureGates,
    pub options: NodeOptions,
    pub node_name: String,
    /// Warnings to log once logging is set up.
    pub warnings: Vec<String>,
}

/// Defaults of a mode of Podwright, overridden by files and flags.
#[derive(Clone, Debug)]
pub struct Preset {
    name: &'static str,
    values: Value,
    /// The mode has an embedded API server.
    serves_api: bool,
}

impl Preset {
    /// `podwright kubelet`: nothing but the built-in defaults.
    pub fn kubelet() -> Self {
        Self { name: "podwright kubelet", values: json!({}), serves_api: false }
    }

    /// `podwright up`: swap is allowed, because the machine is also used for other things. `values`
    /// are further defaults of the mode, such as the socket of its private runtime.
    pub fn up(values: &Value) -> Self {
        let mut layers = Layers::default();
        let source = Source::Preset("podwright up");
        layers.merge(&json!({"failSwapOn": false}), &source);
        layers.merge(values, &source);
        Self { name: "podwright up", values: layers.document().clone(), serves_api: true }
    }
}

/// Merges flags and the files they name, and validates the result.
///
/// Blocks on reading files; the error contains all problems, including those of the command line.
pub fn resolve(flags: &Flags, preset: &Preset, host: &Host) -> Result<KubeletSettings, Invalid> {
    let mut assembly = Assembly::default();
    assembly.add_flag_problems(flags);
    let options = assembly.options(flags, host);
    let api = match options.kubeconfig {
        // An unknown flag may be a misspelt --kubeconfig, so its absence is not conclusive.
        None if !preset.serves_api && flags.problems().is_empty() => ApiAccess::None,
        _ => ApiAccess::Available,
    };
    assembly.add_preset(preset);
    assembly.restrict_without_api(api);
    if let Some(path) = &options.config {
        assembly.add_file(path);
    }
    if let Some(directory) = &options.config_dir {
        assembly.add_drop_ins(directory);
    }
    assembly.add_flags(flags, host);
    assembly.finish(flags, options, host, api)
}
