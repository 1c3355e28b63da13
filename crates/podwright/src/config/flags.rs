//! Kubelet flags, with upstream's names and syntax.
//!
//! One table defines for each flag its type and what it sets. Parsing, precedence over files, help
//! text, shell completions, man page and the warning about flags without effect are all derived
//! from it. Clap does not parse these flags, because scripts rely on details of upstream's syntax
//! (pflag).

mod pflag;
mod table;
mod value;

pub use pflag::Flags;
pub use table::FLAGS;
pub use value::parse as parse_value;

use super::inert;

/// A flag of the kubelet.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub name: &'static str,
    pub short: Option<char>,
    pub kind: Kind,
    pub sets: Sets,
    pub group: Group,
    pub help: &'static str,
}

/// Type of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Alone it means true; a value needs the equals sign.
    Bool,
    Text,
    Int32,
    Int64,
    /// A count from zero.
    Level,
    Duration,
    Address,
    Quantity,
    /// `a,b`; may be repeated.
    List,
    /// `key=value,…`; may be repeated.
    Map,
    /// `key=value`, one at a time, since values may hold commas; may be repeated.
    Pair,
    /// `signal<quantity,…`; may be repeated.
    Thresholds,
    /// `Gate=true,…`; may be repeated.
    Gates,
    /// `Name:value,…`; may be repeated, also for one name.
    Headers,
    /// `key=value,…`, where the value may be left out.
    Labels,
    /// `key=value:Effect,…`.
    Taints,
    /// `node:memory=1Gi,…;…`; may be repeated.
    NumaMemory,
    /// `pattern=N,…`.
    ModuleLevels,
}

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    /// A field of the KubeletConfiguration.
    Field(&'static str),
    /// A setting that exists only as a flag: a field of [`super::options::NodeOptions`].
    Option(&'static str),
    /// Nothing: it exists upstream and has no counterpart here.
    Nothing,
}

/// Sections of the help text, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    Configuration,
    Node,
    Pods,
    Runtime,
    Images,
    Server,
    Resources,
    Network,
    Storage,
    Api,
    Process,
    Logs,
}

impl Group {
    pub fn title(self) -> &'static str {
        match self {
            Self::Configuration => "Configuration",
            Self::Node => "Node and cluster",
            Self::Pods => "Pods",
            Self::Runtime => "Container runtime",
            Self::Images => "Images",
            Self::Server => "Server, authentication and authorization",
            Self::Resources => "Resources and cgroups",
            Self::Network => "Network and DNS",
            Self::Storage => "Storage and container logs",
            Self::Api => "API server requests",
            Self::Process => "Agent process",
            Self::Logs => "Agent logs",
        }
    }
}

/// Section of flags that are accepted for existing scripts.
pub const WITHOUT_EFFECT: &str = "Accepted, without effect";

impl Flag {
    /// Whether giving it changes anything.
    pub fn has_effect(&self) -> bool {
        match self.sets {
            Sets::Field(field) => !inert::covers(field),
            Sets::Option(option) => !inert::covers_option(option),
            Sets::Nothing => false,
        }
    }

    /// Its section in the help text.
    pub fn heading(&self) -> &'static str {
        if self.has_effect() { self.group.title() } else { WITHOUT_EFFECT }
    }
}

/// The flag of that name, written with dashes or underscores.
pub fn find(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    FLAGS.iter().find(|flag| flag.name == name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::super::field::FieldPath;
    use super::super::kubelet::KubeletConfiguration;
    use super::super::options::NodeOptions;
    use super::*;

    #[test]
    fn flags_are_unique_and_have_help() {
        for (at, flag) in FLAGS.iter().enumerate() {
            assert!(
                FLAGS.iter().skip(at + 1).all(|other| other.name != flag.name),
                "{}",
                flag.name
            );
            assert!(flag.help.len() > 10 && !flag.help.ends_with('.'), "{}", flag.name);
        }
    }

    /// A sample value for each type of flag.
    fn sample(kind: Kind, field: &str) -> serde_json::Value {
        let text = match (kind, field) {
            (Kind::Bool, _) => "true",
            (Kind::Int32 | Kind::Int64 | Kind::Level, _) => "1",
            (Kind::Duration, _) => "1s",
            (Kind::Address, _) => "127.0.0.1",
            (Kind::Quantity, _) => "1Ki",
            (Kind::List, "enforceNodeAllocatable") => "pods",
            (Kind::List, _) => "a,b",
            (Kind::Map | Kind::Pair | Kind::Labels, _) => "a=b",
            (Kind::Thresholds, _) => "memory.available<1Gi",
            (Kind::Gates, _) => "EventedPLEG=true",
            (Kind::Headers, _) => "a:b",
            (Kind::Taints, _) => "a=b:NoSchedule",
            (Kind::NumaMemory, _) => "0:memory=1Gi",
            (Kind::ModuleLevels, _) => "pleg=4",
            (Kind::Text, "authorization.mode") => "AlwaysAllow",
            (Kind::Text, "cgroupDriver") => "systemd",
            (Kind::Text, "cpuManagerPolicy") => "static",
            (Kind::Text, "memoryManagerPolicy") => "Static",
            (Kind::Text, "topologyManagerPolicy") => "restricted",
            (Kind::Text, "topologyManagerScope") => "pod",
            (Kind::Text, "hairpinMode") => "none",
            (Kind::Text, "tlsMinVersion") => "VersionTLS13",
            (Kind::Text, "logging.format") => "json",
            (Kind::Text, "cloudProvider") => "external",
            (Kind::Text, "nodeIp") => "10.0.0.1",
            (Kind::Text, _) => "text",
        };
        parse_value(kind, &[text.to_owned()]).unwrap()
    }

    #[test]
    fn every_flag_sets_an_existing_field_of_its_type() {
        let default = KubeletConfiguration::default();
        for flag in &FLAGS {
            let (Sets::Field(field) | Sets::Option(field)) = flag.sets else { continue };
            let document = FieldPath::of(field).document_with(sample(flag.kind, field));
            if let Sets::Option(_) = flag.sets {
                serde_json::from_value::<NodeOptions>(document.clone())
                    .unwrap_or_else(|error| panic!("--{}: {document}: {error}", flag.name));
                continue;
            }
            let mut unknown = Vec::new();
            let read: Result<KubeletConfiguration, _> =
                serde_ignored::deserialize(&document, |path| unknown.push(path.to_string()));
            let read = read.unwrap_or_else(|error| panic!("--{}: {document}: {error}", flag.name));
            assert_eq!(unknown, Vec::<String>::new(), "--{}", flag.name);
            let off_default = flag.kind != Kind::Bool && field != "enforceNodeAllocatable";
            assert!(
                read != default
                    || !off_default
                    || document == json!({"healthzBindAddress": "127.0.0.1"}),
                "--{} changes nothing",
                flag.name
            );
        }
    }

    #[test]
    fn underscores_are_equivalent_to_dashes() {
        assert_eq!(find("max_pods").unwrap().name, "max-pods");
        assert!(find("max__pods").is_none());
    }
}
