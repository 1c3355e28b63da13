//! Options of `podwright up` that persist until `podwright down`.
//!
//! They are stored because a later `up` without flags must not reset them: an API server that was
//! closed to pods stays closed. A later `up` changes only the options it is given, unless running
//! pods depend on them.

use anyhow::bail;
use podwright_cri::Endpoint;
use serde::{Deserialize, Serialize};

use super::network::{Network, Subnet};
use crate::cli::UpArgs;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpOptions {
    /// Endpoint of an existing runtime; without it, a private containerd is started.
    #[serde(rename = "runtime")]
    pub runtime: Option<String>,
    #[serde(rename = "api_port")]
    pub api_port: Option<u16>,
    #[serde(rename = "no_pod_api")]
    pub no_pod_api: bool,
}

impl UpOptions {
    /// The options of a new node.
    pub fn of(arguments: &UpArgs) -> anyhow::Result<Self> {
        Ok(Self {
            runtime: requested_runtime(arguments)?,
            api_port: arguments.api_port,
            no_pod_api: arguments.no_pod_api.unwrap_or(false),
        })
    }

    /// The options of an existing node with `network`: given arguments override stored options.
    pub fn amended(&self, arguments: &UpArgs, network: &Network) -> anyhow::Result<Self> {
        let state = arguments.state_dir.display();
        if let Some(requested) = &arguments.pod_cidr {
            let requested: Subnet = requested.parse().map_err(anyhow::Error::msg)?;
            if network.subnet.parse() != Ok(requested) {
                bail!(
                    "the pods of this node use the network {}. Fix: to change it to {requested}, run \
                     podwright down --state-dir {state} first",
                    network.subnet
                );
            }
        }
        let requested = requested_runtime(arguments)?;
        if requested.is_some() && requested != self.runtime {
            bail!(
                "the pods of this node run in {}. Fix: to change to {}, run \
                 podwright down --state-dir {state} first",
                self.runtime.as_deref().unwrap_or("its private containerd"),
                requested.unwrap_or_default(),
            );
        }
        Ok(Self {
            runtime: self.runtime.clone(),
            api_port: arguments.api_port.or(self.api_port),
            no_pod_api: arguments.no_pod_api.unwrap_or(self.no_pod_api),
        })
    }
}

/// The requested runtime endpoint, normalized so that endpoints can be compared.
fn requested_runtime(arguments: &UpArgs) -> anyhow::Result<Option<String>> {
    let Some(text) = &arguments.container_runtime_endpoint else { return Ok(None) };
    let endpoint: Endpoint = text.parse()?;
    Ok(Some(format!("unix://{}", endpoint.path().display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn arguments(line: &str) -> UpArgs {
        let command = UpArgs::augment_args(clap::Command::new("up").no_binary_name(true));
        let words = line.split_whitespace();
        UpArgs::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    fn network() -> Network {
        Network { bridge: "pw-1".into(), subnet: "10.213.0.0/16".into(), plugins: "/".into() }
    }

    #[test]
    fn later_up_changes_only_the_options_it_is_given() {
        let first = UpOptions::of(&arguments("--no-pod-api --api-port 7000")).unwrap();
        for (line, port, closed) in [
            ("", 7000, true),
            ("--api-port 7001", 7001, true),
            ("--no-pod-api", 7000, true),
            ("--no-pod-api=false", 7000, false),
            ("--pod-cidr 10.213.0.0/16", 7000, true),
        ] {
            let now = first.amended(&arguments(line), &network()).unwrap();
            assert_eq!((now.api_port, now.no_pod_api), (Some(port), closed), "{line}");
        }
        assert!(!UpOptions::of(&arguments("")).unwrap().no_pod_api);
    }

    #[test]
    fn options_that_running_pods_depend_on_cannot_be_changed() {
        let private = UpOptions::default();
        let existing =
            UpOptions::of(&arguments("--container-runtime-endpoint /run/a.sock")).unwrap();
        for (up_options, line, refused) in [
            (&private, "--pod-cidr 10.9.0.0/16", true),
            (&private, "--container-runtime-endpoint /run/a.sock", true),
            (&existing, "--container-runtime-endpoint unix:///run/a.sock", false),
            (&existing, "--container-runtime-endpoint /run/b.sock", true),
            (&existing, "", false),
        ] {
            let outcome = up_options.amended(&arguments(line), &network());
            let error = outcome.as_ref().err().map(ToString::to_string);
            assert_eq!(error.is_some(), refused, "{line}");
            assert!(error.is_none_or(|error| error.contains("podwright down")), "{line}");
        }
    }
}
