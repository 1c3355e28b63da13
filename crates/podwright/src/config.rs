//! Configuration: from files and flags to settings a node can run with.
//!
//! The way of a value, in this order; each step wins over the one before:
//!
//! 1. built-in defaults ([`kubelet`]), and those of the mode ([`Preset`]);
//! 2. the `--config` file ([`files`]);
//! 3. the drop-ins of `--config-dir`, in lexical order;
//! 4. flags ([`flags`]).
//!
//! The steps are laid over each other untyped (`assembly`, [`layers`]), read into types ([`decode`])
//! and checked as a whole ([`validate`]). [`resolve`] does all of it and is the only way to get
//! [`KubeletSettings`]: whoever holds them need not check anything again.

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

/// Everything a node was told, put together and found sound.
#[derive(Clone, Debug, PartialEq)]
pub struct KubeletSettings {
    pub configuration: KubeletConfiguration,
    pub gates: FeatureGates,
    pub options: NodeOptions,
    pub node_name: String,
    /// What is not wrong but should be known; for the log, once it is set up.
    pub warnings: Vec<String>,
}

/// What a mode of Podwright sets before anyone else.
#[derive(Clone, Debug)]
pub struct Preset {
    name: &'static str,
    values: Value,
    /// The mode brings an API server of its own.
    serves_api: bool,
}

impl Preset {
    /// `podwright kubelet`: nothing but the built-in defaults.
    pub fn kubelet() -> Self {
        Self { name: "podwright kubelet", values: json!({}), serves_api: false }
    }

    /// `podwright up`: the machine is somebody's own, so its swap is no reason to refuse. `values`
    /// are further defaults of the mode, such as its private runtime's socket.
    pub fn up(values: &Value) -> Self {
        let mut layers = Layers::default();
        let source = Source::Preset("podwright up");
        layers.merge(&json!({"failSwapOn": false}), &source);
        layers.merge(values, &source);
        Self { name: "podwright up", values: layers.document().clone(), serves_api: true }
    }
}

/// Puts flags and the files they name together and checks the result.
///
/// Blocks on reading files; everything that is wrong is in the error, the command line included.
pub fn resolve(flags: &Flags, preset: &Preset, host: &Host) -> Result<KubeletSettings, Invalid> {
    let mut assembly = Assembly::default();
    assembly.note_not_understood(flags);
    let options = assembly.options(flags, host);
    let api = match options.kubeconfig {
        // What was not understood may be a misspelt --kubeconfig: nothing follows from its absence.
        None if !preset.serves_api && flags.problems().is_empty() => ApiAccess::None,
        _ => ApiAccess::Available,
    };
    assembly.add_preset(preset);
    assembly.close_if_alone(api);
    if let Some(path) = &options.config {
        assembly.add_file(path);
    }
    if let Some(folder) = &options.config_dir {
        assembly.add_drop_ins(folder);
    }
    assembly.add_flags(flags, host);
    assembly.finish(flags, options, host, api)
}
