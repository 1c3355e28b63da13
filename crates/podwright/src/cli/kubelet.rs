//! Clap command of the kubelet's flags, for help text, completions and man page only.

use std::io;

use clap::{Arg, ArgAction, Command, ValueHint};
use serde_json::Value;

use crate::config::field::FieldPath;
use crate::config::flags::{FLAGS, Flag, Kind, Sets, WITHOUT_EFFECT};
use crate::config::kubelet::KubeletConfiguration;
use crate::config::options::NodeOptions;

const ABOUT: &str = "Run the node agent with upstream's flags and configuration file";

const AFTER: &str = "\
With --kubeconfig it runs the pods that are bound to this node; without it, static pods from a
directory or URL. Settings come from defaults, then --config, then --config-dir, then flags; later
ones override earlier ones. A list or map may be given in one flag or in several.

Examples:
  podwright kubelet --config=/etc/kubernetes/kubelet.yaml --kubeconfig=/etc/kubernetes/kubelet.conf
  podwright kubelet --pod-manifest-path=/etc/kubernetes/manifests --v=2";

/// The `kubelet` subcommand.
pub(super) fn command() -> Command {
    let default = Defaults::gather();
    let with_effect = FLAGS.iter().filter(|flag| flag.has_effect());
    let without = FLAGS.iter().filter(|flag| !flag.has_effect());
    Command::new("kubelet")
        .about(ABOUT)
        .after_help(AFTER)
        .disable_version_flag(true)
        .args(with_effect.chain(without).map(|flag| argument(flag, &default)))
        .arg(
            Arg::new("version")
                .long("version")
                .action(ArgAction::SetTrue)
                .help("Print the version and exit"),
        )
}

/// Prints the help text of `podwright kubelet`, coloured on terminals.
pub(super) fn print_help() -> io::Result<()> {
    let mut whole = super::command();
    whole.build();
    whole.find_subcommand_mut("kubelet").map_or(Ok(()), Command::print_help)
}

fn argument(flag: &'static Flag, default: &Defaults) -> Arg {
    let mut help = flag.help.to_owned();
    if let Some(default) = default.of(flag) {
        help.push_str(&format!(" (default {default})"));
    }
    let mut argument = Arg::new(flag.name)
        .long(flag.name)
        .help(help)
        .help_heading(flag.heading())
        .value_name(value_name(flag))
        .value_hint(hint(flag));
    if let Some(letter) = flag.short {
        argument = argument.short(letter);
    }
    match flag.kind {
        Kind::Bool => argument.num_args(0..=1).require_equals(true),
        _ => argument,
    }
}

fn value_name(flag: &Flag) -> &'static str {
    match flag.kind {
        Kind::Bool => "BOOL",
        Kind::Text => match hint(flag) {
            ValueHint::FilePath => "FILE",
            ValueHint::DirPath => "DIR",
            ValueHint::AnyPath => "PATH",
            _ => "TEXT",
        },
        Kind::Int32 | Kind::Int64 | Kind::Level => "N",
        Kind::Duration => "DURATION",
        Kind::Address => "IP",
        Kind::Quantity => "QUANTITY",
        Kind::List => "A,B",
        Kind::Map | Kind::Pair | Kind::Labels => "KEY=VALUE",
        Kind::Thresholds => "THRESHOLDS",
        Kind::Gates => "GATE=BOOL",
        Kind::Headers => "NAME:VALUE",
        Kind::Taints => "KEY=VALUE:EFFECT",
        Kind::NumaMemory => "NODE:TYPE=QUANTITY",
        Kind::ModuleLevels => "PATTERN=N",
    }
}

/// Completion hint for the value, derived from the name of the flag.
fn hint(flag: &Flag) -> ValueHint {
    let named = |endings: &[&str]| endings.iter().any(|ending| flag.name.ends_with(ending));
    match flag.kind {
        Kind::Text if named(&["-dir"]) => ValueHint::DirPath,
        Kind::Text if named(&["config", "-file", "-conf"]) => ValueHint::FilePath,
        Kind::Text if named(&["-path", "-endpoint"]) => ValueHint::AnyPath,
        _ => ValueHint::Unknown,
    }
}

/// The defaults, as text for the help.
struct Defaults {
    configuration: Value,
    options: Value,
}

impl Defaults {
    fn gather() -> Self {
        Self {
            configuration: serde_json::to_value(KubeletConfiguration::default())
                .unwrap_or_default(),
            options: serde_json::to_value(NodeOptions::default()).unwrap_or_default(),
        }
    }

    /// The default of a flag, unless it is empty or the flag has no effect.
    fn of(&self, flag: &Flag) -> Option<String> {
        if flag.heading() == WITHOUT_EFFECT {
            return None;
        }
        let value = match flag.sets {
            Sets::Field(field) => FieldPath::of(field).find(&self.configuration),
            Sets::Option(field) => FieldPath::of(field).find(&self.options),
            Sets::Nothing => None,
        }?;
        match value {
            Value::Bool(true) => Some("true".to_owned()),
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) if !text.is_empty() && text != "none" => Some(text.clone()),
            Value::Array(items) if !items.is_empty() => {
                let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                Some(items.join(","))
            }
            Value::Null
            | Value::Bool(false)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// The help text, without colours.
    fn help() -> String {
        command().render_help().to_string()
    }

    #[test]
    fn help_lists_every_flag_and_those_without_effect_last() {
        let help = help();
        for flag in &FLAGS {
            assert!(help.contains(&format!("--{}", flag.name)), "{}", flag.name);
        }
        let last = help.lines().position(|line| line.starts_with(WITHOUT_EFFECT)).unwrap();
        for flag in &FLAGS {
            let shown = format!("--{}", flag.name);
            // Only at the beginning of a line, where the flag is described.
            let line = help.lines().position(|line| {
                let words: Vec<&str> =
                    line.split([' ', ',', '[']).filter(|w| !w.is_empty()).collect();
                words.iter().take(2).any(|word| *word == shown)
            });
            assert_eq!(line.unwrap() < last, flag.has_effect(), "{}", flag.name);
        }
    }

    #[test]
    fn help_shows_defaults() {
        let help = help();
        assert!(help.contains("Pods that may run on this node (default 110)"), "{help}");
        assert!(help.contains("(default /var/lib/kubelet)"));
        assert!(help.contains("(default pods)"));
    }
}
